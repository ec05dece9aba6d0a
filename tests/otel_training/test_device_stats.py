"""DeviceStatsMonitor: for any trainer that calls the batch hooks, at the loggers' cadence."""

import inspect
import io
import itertools
import json
import sys
from collections import namedtuple
from types import SimpleNamespace

import psutil
import pytest
import torch

import otel_training
from otel_training.device_stats import DeviceStatsMonitor, MisconfigurationException
from trainer import MetricLogger

CPU_BASES = {"cpu_percent", "cpu_vm_percent", "cpu_swap_percent"}


class FakeLogger:
    """A logger that keeps what was emitted."""

    def __init__(self, every_steps=1):
        self.every_steps = every_steps
        self.emitted = []

    def emit(self, event, payload):
        assert event == "device_stats"
        self.emitted.append(payload)

    @property
    def hooks(self):
        """``(step, hook)`` of each event."""
        return [(payload["step"], hook_of(payload)) for payload in self.emitted]

    @property
    def bases(self):
        return {key.partition("/")[2] for payload in self.emitted for key in payload if "/" in key}


def hook_of(payload):
    [hook] = {key.partition("/")[0].removeprefix("DeviceStatsMonitor.") for key in payload if "/" in key}
    return hook


class FakeTrainer:
    def __init__(self, *loggers, device="cpu", accumulation_steps=1, step=0):
        self.loggers = list(loggers)
        self.device = device
        self.accumulation_steps = accumulation_steps
        self.step = step

    def fit(self, monitor, steps):
        monitor.setup(self, None, "fit")
        batch_idx = 0
        for _ in range(steps):
            for _ in range(self.accumulation_steps):
                monitor.on_train_batch_start(self, None, "batch", batch_idx)
                monitor.on_train_batch_end(self, None, {"loss": 1.0}, "batch", batch_idx)
                batch_idx += 1
            self.step += 1

    def evaluate(self, monitor, stage, batches):
        monitor.setup(self, None, "validate" if stage == "validation" else "test")
        for batch_idx in range(batches):
            getattr(monitor, f"on_{stage}_batch_start")(self, None, "batch", batch_idx, 0)
            getattr(monitor, f"on_{stage}_batch_end")(self, None, {"loss": 1.0}, "batch", batch_idx, 0)


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


def make_monitor(*args, **kwargs):
    clock = Clock()
    return DeviceStatsMonitor(*args, **kwargs, clock=clock, sleep=clock.sleep), clock


START, END = "on_train_batch_start", "on_train_batch_end"


def tick(times, count):
    return times(user=1.0 * count, idle=3.0 * count)


@pytest.fixture
def ticking_cpu(monkeypatch):
    """CPU times that go on with each reading, a quarter of them busy."""
    times = namedtuple("times", "user idle")
    readings = itertools.count()
    monkeypatch.setattr(psutil, "cpu_times", lambda: tick(times, next(readings)))


def test_the_signatures_are_those_that_trainers_call():
    shown = {
        name: list(inspect.signature(getattr(DeviceStatsMonitor, name)).parameters)[1:]
        for name in dir(DeviceStatsMonitor)
        if name.startswith("on_") or name == "setup"
    }
    held_out = {
        f"on_{stage}_batch_{moment}": [
            "trainer",
            "pl_module",
            *outputs,
            "batch",
            "batch_idx",
            "dataloader_idx",
        ]
        for stage in ("validation", "test")
        for moment, outputs in (("start", []), ("end", ["outputs"]))
    }
    assert shown == {
        "setup": ["trainer", "pl_module", "stage"],
        START: ["trainer", "pl_module", "batch", "batch_idx"],
        END: ["trainer", "pl_module", "outputs", "batch", "batch_idx"],
        **held_out,
    }
    assert otel_training.DeviceStatsMonitor is DeviceStatsMonitor
    assert otel_training.MisconfigurationException is MisconfigurationException


def test_start_and_end_of_a_step_have_the_number_of_the_step_in_progress(ticking_cpu):
    log = FakeLogger(every_steps=2)
    monitor, _ = make_monitor()
    FakeTrainer(log).fit(monitor, steps=4)
    assert log.hooks == [(2, START), (2, END), (4, START), (4, END)]
    assert {payload["stage"] for payload in log.emitted} == {"fit"}
    assert log.bases == CPU_BASES
    assert log.emitted[0]["DeviceStatsMonitor.on_train_batch_start/cpu_percent"] == 25


def test_under_accumulation_a_step_has_its_first_start_and_its_last_end():
    log = FakeLogger()
    calls = []
    monitor, _ = make_monitor()
    trainer = FakeTrainer(log, accumulation_steps=3)
    for name in (START, END):
        original = getattr(monitor, name)
        setattr(
            monitor, name, lambda *args, original=original: (original(*args), calls.append(len(log.emitted)))
        )
    trainer.fit(monitor, steps=2)
    assert log.hooks == [(1, START), (1, END), (2, START), (2, END)]
    assert calls == [1, 1, 1, 1, 1, 2, 3, 3, 3, 3, 3, 4]


def test_a_fit_that_was_broken_off_does_not_shift_the_next():
    log = FakeLogger()
    monitor, _ = make_monitor()
    trainer = FakeTrainer(log, accumulation_steps=2)
    monitor.setup(trainer, None, "fit")
    monitor.on_train_batch_start(trainer, None, "batch", 0)
    trainer.fit(monitor, steps=1)
    assert log.hooks == [(1, START), (1, START), (1, END)]


def test_each_logger_has_its_own_cadence():
    often, seldom = FakeLogger(1), FakeLogger(3)
    monitor, _ = make_monitor()
    FakeTrainer(often, seldom).fit(monitor, steps=4)
    assert [step for step, hook in often.hooks if hook == START] == [1, 2, 3, 4]
    assert [step for step, hook in seldom.hooks if hook == START] == [3]


@pytest.mark.parametrize("stage", ["validation", "test"])
def test_held_out_data_is_told_from_its_first_batch_on(stage):
    log = FakeLogger(every_steps=2)
    monitor, _ = make_monitor()
    FakeTrainer(log, step=7).evaluate(monitor, stage, batches=4)
    start, end = f"on_{stage}_batch_start", f"on_{stage}_batch_end"
    assert log.hooks == [(7, start), (7, end), (7, start), (7, end)]
    assert {payload["stage"] for payload in log.emitted} == {stage}


@pytest.mark.parametrize("stage", ["predict", "tune", SimpleNamespace(value="predict")])
def test_other_stages_do_nothing(stage):
    monitor, _ = make_monitor()
    monitor.setup(FakeTrainer(), None, stage)  # though there is no logger


@pytest.mark.parametrize("stage", ["fit", "validate", "test", SimpleNamespace(value="fit")])
def test_a_trainer_without_logger_is_refused(stage):
    monitor, _ = make_monitor()
    with pytest.raises(MisconfigurationException, match="logger=False"):
        monitor.setup(FakeTrainer(), None, stage)


@pytest.mark.parametrize(
    ("cpu_stats", "device", "missed"),
    [
        (None, "cpu", True),
        (True, "cpu", True),
        (False, "cpu", False),
        (None, "cuda:0", False),
        (True, "cuda:0", True),
    ],
)
def test_psutil_is_missed_where_cpu_stats_are_wanted(monkeypatch, cpu_stats, device, missed):
    monkeypatch.setitem(sys.modules, "psutil", None)
    monitor, _ = make_monitor(cpu_stats)
    trainer = FakeTrainer(FakeLogger(), device=device)
    if missed:
        with pytest.raises(ModuleNotFoundError, match="psutil"):
            monitor.setup(trainer, None, "fit")
    else:
        monitor.setup(trainer, None, "fit")


@pytest.fixture
def cuda_stats(monkeypatch):
    asked = []
    stats = {"allocated_bytes.all.current": 100, "segment.all.current": 3, "num_ooms": 0}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: asked.append(device) or stats)
    return asked


@pytest.mark.parametrize(
    ("cpu_stats", "bases"),
    [
        (None, {"allocated_bytes.all.current", "segment.all.current", "num_ooms"}),
        (False, {"allocated_bytes.all.current", "segment.all.current", "num_ooms"}),
        (True, {"allocated_bytes.all.current", "segment.all.current", "num_ooms", *CPU_BASES}),
    ],
)
def test_cuda_is_read_on_the_trainers_device(ticking_cpu, cuda_stats, cpu_stats, bases):
    log = FakeLogger()
    monitor, _ = make_monitor(cpu_stats)
    FakeTrainer(log, device=torch.device("cuda", 1)).fit(monitor, steps=1)
    assert log.bases == bases
    assert set(cuda_stats) == {"cuda:1"}
    assert not torch.cuda.is_initialized()


def test_cpu_stats_switched_off_on_a_cpu_leave_nothing_to_tell():
    log = FakeLogger()
    monitor, _ = make_monitor(cpu_stats=False)
    FakeTrainer(log).fit(monitor, steps=2)
    assert log.emitted == []


def test_the_first_percent_of_the_cpu_means_something():
    """Two readings of the real psutil, 0.1 s apart: setup waits for the second, once."""
    slept_s = []
    log = FakeLogger()
    monitor = DeviceStatsMonitor(sleep=lambda seconds: (slept_s.append(seconds), burn(0.15)))
    trainer = FakeTrainer(log)
    trainer.fit(monitor, steps=1)
    trainer.evaluate(monitor, "validation", 1)
    percent = log.emitted[0]["DeviceStatsMonitor.on_train_batch_start/cpu_percent"]
    assert 0 < percent <= 100
    assert slept_s == [0.1]


def burn(seconds):
    clock = psutil.time.monotonic
    end_s = clock() + seconds
    while clock() < end_s:
        sum(range(1000))


def test_the_host_is_read_at_most_ten_times_a_second(monkeypatch):
    reads = []
    real = psutil.virtual_memory
    monkeypatch.setattr(psutil, "virtual_memory", lambda: reads.append(1) or real())
    log = FakeLogger()
    monitor, clock = make_monitor()
    trainer = FakeTrainer(log)
    trainer.fit(monitor, steps=50)
    assert (len(log.emitted), len(reads)) == (100, 1)
    clock.now_s += 0.2
    monitor.on_train_batch_start(trainer, None, "batch", 0)
    assert len(reads) == 2


def test_keys_are_filtered_and_unknown_ones_told_once(caplog):
    log = FakeLogger()
    monitor, _ = make_monitor(filter_keys={"cpu_vm_percent", "cpu_vm_precent", "gpu"})
    trainer = FakeTrainer(log)
    trainer.fit(monitor, steps=2)
    trainer.evaluate(monitor, "test", 1)
    assert log.bases == {"cpu_vm_percent"}
    assert [record.getMessage() for record in caplog.records] == [
        "DeviceStatsMonitor: filter_keys ['cpu_vm_precent', 'gpu'] name nothing on cpu"
    ]


def test_nothing_is_said_of_keys_while_the_device_is_not_in_use(caplog):
    monitor, _ = make_monitor(filter_keys={"num_ooms"})
    monitor.setup(FakeTrainer(FakeLogger(), device="cuda:0"), None, "fit")
    assert caplog.records == []
    assert not torch.cuda.is_initialized()


def test_mps_has_the_names_that_lightning_gave_it(ticking_cpu):
    log = FakeLogger()
    monitor, _ = make_monitor()
    FakeTrainer(log, device="mps:0").fit(monitor, steps=1)
    assert log.bases == {"M1_percent", "M1_vm_percent", "M1_swap_percent"}


def test_xla_has_the_names_that_lightning_documents(monkeypatch):
    counters = {"CachedCompile": 4, "xla::add": 2}
    metrics = SimpleNamespace(counter_names=lambda: list(counters), counter_value=counters.get)
    memory = {"bytes_used": 4 << 30, "bytes_limit": 16 << 30}
    model = SimpleNamespace(get_memory_info=lambda device: memory)
    for parent in ("torch_xla", "torch_xla.debug", "torch_xla.core"):
        monkeypatch.setitem(sys.modules, parent, SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "torch_xla.debug.metrics", metrics)
    monkeypatch.setitem(sys.modules, "torch_xla.core.xla_model", model)
    log = FakeLogger()
    monitor, _ = make_monitor()
    FakeTrainer(log, device="xla:0").fit(monitor, steps=1)
    prefix = f"DeviceStatsMonitor.{START}/"
    assert log.emitted[0] == {
        "step": 1,
        "stage": "fit",
        prefix + "memory.free.xla:0": 12288.0,
        prefix + "memory.used.xla:0": 4096.0,
        prefix + "memory.percent.xla:0": 25.0,
        prefix + "CachedCompile.xla": 4,
        prefix + "xla::add.xla": 2,
    }


def test_a_reading_that_raises_does_not_end_training(monkeypatch, caplog):
    def refuse(device):
        raise RuntimeError("CUDA error: device lost")

    monkeypatch.setattr(torch.cuda, "memory_stats", refuse)
    monitor, _ = make_monitor()
    FakeTrainer(FakeLogger(), device="cuda:0").fit(monitor, steps=3)
    assert len(caplog.records) == 1


def test_a_trainer_of_another_make_is_enough():
    log = FakeLogger()
    monitor, _ = make_monitor()
    trainer = SimpleNamespace(loggers=[log], global_step=4)
    module = torch.nn.Linear(1, 1)
    monitor.setup(trainer, module, "fit")
    monitor.on_train_batch_start(trainer, module, "batch", 0)
    monitor.on_train_batch_end(trainer, module, None, "batch", 0)
    assert log.hooks == [(5, START), (5, END)]


def test_the_text_line_has_the_curated_keys_and_json_all(tmp_path, cuda_stats):
    text, lines = io.StringIO(), tmp_path / "log.jsonl"
    with MetricLogger(stream=text, json_file=lines) as log:
        monitor, _ = make_monitor()
        FakeTrainer(log, device="cuda:0").fit(monitor, steps=1)
    written = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [payload[f"DeviceStatsMonitor.{START}/segment.all.current"] for payload in written[:1]] == [3]
    assert "segment.all.current" not in text.getvalue()
    assert f"DeviceStatsMonitor.{START}/allocated_bytes.all.current=100" in text.getvalue()
    assert "elapsed_s=" in text.getvalue()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"cpu_stats": "yes"}, "cpu_stats='yes'"),
        ({"filter_keys": "cpu_percent"}, "filter_keys="),
        ({"filter_keys": [1]}, "filter_keys="),
    ],
)
def test_what_is_not_accepted_is_refused_when_it_is_made(arguments, named):
    with pytest.raises(ValueError, match=named):
        DeviceStatsMonitor(**arguments)
