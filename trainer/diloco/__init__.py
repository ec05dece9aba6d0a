"""DiLoCo: workers that train on their own and meet only at a store, now and then.

Each worker makes many local steps and then tells the sum of what they changed, its *delta*; a master averages
the deltas and applies them with an outer optimizer to the *global weights*, which the workers adopt. Source:
Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models".
"""
