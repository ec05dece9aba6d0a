"""gRPC without its fork handlers, which end DataLoader workers, and without lines of its own on stderr."""

from __future__ import annotations

import os
import sys

_SETTINGS = {"GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "NONE"}


def import_grpc() -> None:
    """Import gRPC, unless somebody has, set for a training as far as the environment says nothing else.

    Its C library writes a line to standard error for each handshake that fails, past every logger; what is
    wrong stands in the error of the call as well, which is told.

    When a call is under way while the process forks, gRPC's handlers skip a part of their work, and the child
    then aborts: a training whose loader starts workers in that moment would end. Without them a child leaves
    the parent's connections alone, and telemetry that it starts itself has connections of its own.
    """
    if "grpc" in sys.modules:
        return
    ours = {name: value for name, value in _SETTINGS.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        import grpc

        # The library reads the variables when its first channel is made.
        grpc.insecure_channel("127.0.0.1:1").close()
    finally:
        for name in ours:
            del os.environ[name]
