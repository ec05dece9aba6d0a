"""What the machine says of itself: one file per source, each a pure ``read(source, previous) -> Reading``.

A reader is handed its library, or something that answers like it, and the time; it holds nothing and calls
nothing else. ``sources`` finds the libraries that are in use in this process.
"""
