"""``device_stats`` events become numbers in the cells that the sampler writes too."""

from __future__ import annotations

from otel_training import catalog, device_keys
from otel_training.clock import Moment
from otel_training.device_cells import DeviceCells
from otel_training.fields import Fields, Payload

DEVICE_STATS = "device_stats"


class DeviceEvents:
    """What ``DeviceStatsMonitor``, ours or Lightning's, reports.

    Args:
        cells: Where the numbers go; stage and hook are left behind.
        fields: Reads the payloads.
        host: Whether this process tells of its host; where several do, the host would show as often.
    """

    def __init__(self, cells: DeviceCells, fields: Fields, *, host: bool) -> None:
        self._cells = cells
        self._host = host
        self._fields = fields

    def stats(self, payload: Payload, _now: Moment) -> None:
        """Write each number to its cell; one that no metric is for reaches ``training.custom``."""
        others = {}
        for key, given in payload.items():
            if not device_keys.is_monitor_key(key):
                others[key] = given
                continue
            base, value = device_keys.base_of(key), self._fields.number(payload, key)
            if device_keys.has_metric(base):
                found = device_keys.sample_of(base, value, self._cells.device)
                if found is not None and (self._host or found[0] != "cpu"):
                    self._cells.put(*found)
            elif device_keys.is_cuda_stat(base):
                sample = device_keys.other_cuda_stat(base, value, self._cells.device)
                if sample is not None and self._cells.all_stats:
                    self._cells.put("cuda", sample)
            else:
                others[base] = value
        self._fields.custom(DEVICE_STATS, others, catalog.EVENTS[DEVICE_STATS])
