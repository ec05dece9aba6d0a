"""Which libraries are found, and that looking for them sets nothing up."""

import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from otel_training import catalog, options
from otel_training.devices.reading import Unavailable
from otel_training.devices.sources import make_sources
from otel_training.rank_device import RankDevice


def named(devices="auto", device=None, modules=None, **arguments):
    known = {} if modules is None else {"modules": modules}
    found = make_sources(devices, RankDevice(device), **{"host": True, **known, **arguments})
    return {source.name: source for source in found}


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        ("auto", ["cpu", "cuda", "mps", "xla", "nvml"]),
        ("all", ["cpu", "cuda", "mps", "xla", "nvml"]),
        (("nvml", "cpu"), ["cpu", "nvml"]),
        ((), []),
    ],
)
def test_sources_are_those_asked_for(devices, names):
    assert list(named(devices)) == names


def test_names_are_those_of_the_settings_and_of_the_metrics():
    assert tuple(named()) == options.DEVICE_SOURCES == catalog.DEVICE_SOURCE.values


def test_the_real_psutil_is_read():
    reading = named()["cpu"].read(None, 1.0)
    rss = [sample.value for sample in reading.samples if sample.metric is catalog.PROCESS_MEMORY_USAGE]
    assert rss == [pytest.approx(psutil.Process().memory_info().rss, rel=0.2)]


@pytest.mark.parametrize(
    ("name", "modules", "reason"),
    [
        ("cuda", {}, "torch is not loaded"),
        ("nvml", {}, "torch is not loaded"),
        ("nvml", {"torch": torch}, "CUDA is not in use"),
        ("mps", {"torch": torch}, "MPS is not in use"),
        ("xla", {"torch": torch}, "torch_xla is not loaded"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA may be in use here")
def test_a_source_that_has_nothing_says_why(name, modules, reason):
    with pytest.raises(Unavailable, match=reason):
        named(modules=modules)[name].read(None, 1.0)
    assert not torch.cuda.is_initialized()


def test_cuda_is_read_on_the_device_that_was_named(fake_cuda):
    fake = fake_cuda({0: {"num_ooms": 7}, 1: {"num_ooms": 9}})
    modules = {"torch": SimpleNamespace(cuda=fake)}
    reading = named(device="cuda:1", modules=modules)["cuda"].read(None, 1.0)
    assert [s.value for s in reading.samples if s.metric is catalog.CUDA_OOMS] == [9]


def test_everything_of_the_allocator_comes_with_all(fake_cuda, cuda_stats):
    modules = {"torch": SimpleNamespace(cuda=fake_cuda({0: cuda_stats}))}
    count = {
        devices: len(named(devices, modules=modules)["cuda"].read(None, 1.0).samples)
        for devices in ("auto", "all")
    }
    assert count["auto"] == 25
    assert count["all"] == 122


def test_nvml_is_asked_for_the_gpu_of_the_named_device(fake_cuda, fake_nvml, monkeypatch):
    uuids = ["aaaaaaaa-0000-4000-8000-000000000001", "bbbbbbbb-0000-4000-8000-000000000002"]
    library = fake_nvml({f"GPU-{uuid}": {"temperature": 40 + place} for place, uuid in enumerate(uuids)})
    monkeypatch.setitem(sys.modules, "pynvml", library)
    modules = {"torch": SimpleNamespace(cuda=fake_cuda({0: {}, 1: {}}, uuids))}
    source = named(device="cuda:1", modules=modules)["nvml"]
    for _ in range(2):
        samples = source.read(None, 1.0).samples
        assert [(s.metric.name, s.value, s.labels[0]) for s in samples] == [
            ("hw.temperature", 41, f"GPU-{uuids[1]}")
        ]
    assert library.init_count == 1
    assert {gpu for gpu, _ in library.asked} == {f"GPU-{uuids[1]}"}


def test_nvml_does_not_guess_a_device(fake_cuda):
    modules = {"torch": SimpleNamespace(cuda=fake_cuda({0: {}, 1: {}}, ["a", "b"]))}
    with pytest.raises(Unavailable, match="pass device="):
        named(modules=modules)["nvml"].read(None, 1.0)


def test_a_library_that_is_not_installed_names_its_package(fake_cuda, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    modules = {"torch": SimpleNamespace(cuda=fake_cuda({0: {}}, ["a"]))}
    with pytest.raises(Unavailable, match=r"pip install otel-training\[nvml\]"):
        named(device="cuda:0", modules=modules)["nvml"].read(None, 1.0)


def test_mps_is_read_where_it_is_used():
    mps = SimpleNamespace(current_allocated_memory=lambda: 5, driver_allocated_memory=lambda: 9)
    backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: True))
    modules = {"torch": SimpleNamespace(mps=mps, backends=backends)}
    assert len(named(device="mps", modules=modules)["mps"].read(None, 1.0).samples) == 2
    with pytest.raises(Unavailable):
        named(device="cpu", modules=modules)["mps"].read(None, 1.0)


def test_xla_is_left_alone_until_it_is_in_use(monkeypatch, xla_answers):
    counters = {}
    metrics = SimpleNamespace(
        counter_names=lambda: list(counters), counter_value=counters.get, metric_data=lambda name: None
    )
    asked = []
    model = SimpleNamespace(get_memory_info=lambda device: asked.append(device) or {"bytes_limit": 8})
    library = SimpleNamespace(device=lambda: "xla:0")
    for name, module in {"": library, ".debug.metrics": metrics, ".core.xla_model": model}.items():
        monkeypatch.setitem(sys.modules, f"torch_xla{name}", module)
    for parent in ("torch_xla.debug", "torch_xla.core"):
        monkeypatch.setitem(sys.modules, parent, SimpleNamespace(__path__=[]))
    source = named(modules={"torch_xla": library})["xla"]
    with pytest.raises(Unavailable, match="not in use yet"):
        source.read(None, 1.0)
    assert asked == []
    counters.update(xla_answers["counters"])
    source.read(None, 1.0)
    assert asked == ["xla:0"]
    named(device="xla:3", modules={"torch_xla": library})["xla"].read(None, 1.0)
    assert asked == ["xla:0", "xla:3"]


def test_looking_for_sources_loads_neither_torch_nor_psutil():
    code = (
        "import sys; from otel_training.devices.sources import make_sources;"
        "from otel_training.rank_device import RankDevice;"
        "make_sources('auto', RankDevice(None), host=True);"
        "print([name for name in ('torch', 'psutil', 'pynvml', 'torch_xla') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
