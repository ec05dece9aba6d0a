"""When an alert fires: every number of the rules, with its reason.

To use others: ``alerts.alerts(replace(Thresholds(), data_wait_ratio=0.5))``, or edit the written rules.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """The numbers. Names end in their unit; ``_ratio`` is a factor, ``_hold_s`` is how long it must last."""

    stalled_steps_ratio: float = 10.0
    """Ten usual steps without one is no jitter, also where now and then a step is five times as long."""
    stalled_floor_s: float = 300.0
    """Fast runs pause for more than ten steps whenever a loader restarts; five minutes still beats the ten
    after which NCCL's watchdog ends a hung run."""
    stalled_checkpoints_ratio: float = 3.0
    """A checkpoint counts as no step; three usual ones leave room for a slow file system."""
    stalled_validation_s: float = 3600.0
    """A validation counts as no step, either; nobody waits an hour for one."""
    stalled_start_s: float = 1800.0
    """Half an hour without a first step: compiling and loading the largest models takes minutes."""
    stalled_hold_s: float = 60.0
    """Two evaluations, so that one late scrape calls nobody."""

    nonfinite_window_s: float = 600.0
    """A NaN in the loss does not heal; ten minutes keep the alert up if the process ends because of it."""
    nonfinite_gradient_ratio: float = 0.5
    """fp16 loss scaling makes a gradient norm infinite in a few steps of thousands, never in half."""

    diverging_deviations: float = 4.0
    """Four standard deviations above the mean of the hour before is beyond the noise of batches."""
    diverging_rise_ratio: float = 0.1
    """A loss as flat as a plateau has next to no deviation: it must have risen by a tenth as well."""
    diverging_samples: float = 20.0
    """Mean and deviation of fewer recorded values of the loss mean nothing."""
    diverging_hold_s: float = 300.0
    """A warm restart of the learning rate makes a bump that is over sooner."""

    throughput_ratio: float = 0.7
    """A third slower than the median of six hours costs as much of the money; shared networks vary less."""
    throughput_samples: float = 60.0
    """Half an hour of recorded values, before which "usual" is not known."""
    throughput_hold_s: float = 900.0
    """A quarter of an hour, so that a busy neighbour alone calls nobody."""

    checkpoint_intervals_ratio: float = 3.0
    """Two checkpoints in a row have failed or are overdue."""
    checkpoint_floor_s: float = 1800.0
    """Less than half an hour of lost work is no reason to call anybody."""
    checkpoint_first_s: float = 21600.0
    """Six hours without a first checkpoint: the most that a night's failure should cost."""
    checkpoint_hold_s: float = 300.0
    """A save that is running now gets its chance."""

    goodput_ratio: float = 0.5
    """Less than half of the paid time went into steps that were kept."""
    goodput_after_s: float = 3600.0
    """Start-up and compilation dominate the first hour of any run."""
    goodput_hold_s: float = 1800.0
    """Goodput is a mean over the whole run: it moves slowly, and so may we."""

    data_wait_ratio: float = 0.2
    """Waiting for data a fifth of the time idles a fifth of the accelerators; good loaders stay below 2 %."""
    data_wait_hold_s: float = 600.0
    """Caches warm up and epochs turn within ten minutes."""

    memory_ratio: float = 0.95
    """With a twentieth left, one longer sequence is an out-of-memory error. Live tensors count, not what the
    allocator keeps in reserve, which is near the limit in any healthy run."""
    memory_hold_s: float = 300.0
    """Five minutes, so that one unusual batch alone calls nobody."""

    retries: float = 5.0
    """Each retry empties the cache and stops the GPU; changing shapes make a few, not five in 15 minutes."""

    straggler_wait_ratio: float = 0.15
    """Waits for data this much more than the median rank; the others wait as long inside their all-reduce."""
    straggler_step_ratio: float = 1.5
    """Half as slow again as the median rank; ranks that wait for each other never differ this much."""
    straggler_behind_s: float = 600.0
    """Ten minutes of steps behind the first rank; scrapes of different moments explain one or two."""
    straggler_hold_s: float = 600.0
    """A rank that catches up within ten minutes calls nobody."""

    ranks_hold_s: float = 300.0
    """Ranks start and end within five minutes of each other."""

    uploads_failed_ratio: float = 0.25
    """One upload in four fails: the outer steps average over too few workers."""
    uploads_failed: float = 3.0
    """Fewer than three failures in half an hour are the network's ordinary weather."""

    deltas_rejected_ratio: float = 0.2
    """One delta in five is thrown away, and with it a fifth of the inner training."""
    deltas_rejected: float = 3.0
    """Fewer than three in an hour say nothing."""
