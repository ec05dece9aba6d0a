"""A store that is away for ten seconds: training goes on, and everything gets there in the end."""

import time

import fsspec
import torch
from fsspec.implementations.memory import MemoryFileSystem

from trainer.diloco.objects import read_newest_globals, read_parameters
from trainer.diloco.participant import DiLoCo
from trainer.diloco.store import Store

OUTAGE_S = 10.0


class FailingFileSystem(MemoryFileSystem):
    """Fails for ten seconds, beginning with the first delta that is written."""

    protocol = "failing"
    began_s = None
    refused = 0

    def _check(self):
        began_s = FailingFileSystem.began_s
        if began_s is not None and time.monotonic() - began_s < OUTAGE_S:
            FailingFileSystem.refused += 1
            raise ConnectionError("the store is away")

    def ls(self, path, detail=True, **kwargs):
        self._check()
        return super().ls(path, detail, **kwargs)

    def cat_file(self, path, start=None, end=None, **kwargs):
        self._check()
        return super().cat_file(path, start, end, **kwargs)

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        if "/deltas/" in path and FailingFileSystem.began_s is None:
            FailingFileSystem.began_s = time.monotonic()
        self._check()
        return super().pipe_file(path, value, mode, **kwargs)


class Pace:
    """Makes training last longer than the outage."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.step >= 4:
            time.sleep(0.4)


def test_ten_seconds_without_a_store_lose_nothing(make_run, quiet_logger, heard, settings):
    fsspec.register_implementation("failing", FailingFileSystem, clobber=True)
    diloco = DiLoCo(settings(inner_steps=4, overflow="skip", upload_backoff_s=0.5), "failing://run")
    trainer = make_run(logger=quiet_logger, max_steps=36, diloco=diloco, callbacks=[Pace()])
    trainer.fit()
    assert FailingFileSystem.refused > 3
    queued = [payload["step"] for payload in heard.of("delta_upload_queued")]
    assert queued[0] == 4
    assert [payload["step"] for payload in heard.of("delta_uploaded")] == queued
    assert heard.of("delta_upload_failed") == heard.of("delta_upload_stale") == []
    skipped = heard.of("delta_upload_skipped")
    assert skipped
    assert {payload["reason"] for payload in skipped} == {"upload_in_flight"}
    # Steps went on: what was skipped is part of the next delta, and each delta of an outer step.
    assert sum(payload["deltas_included"] for payload in heard.of("outer_step")) == len(queued)
    newest = read_newest_globals(Store("failing://run"))
    for name, parameter in read_parameters(trainer.model).items():
        assert torch.equal(parameter, newest.tensors[name])
