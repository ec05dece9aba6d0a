"""DeviceStatsMonitor named in a configuration works in fit and in validation, within it and alone."""

import json

import yaml

from trainer import build_runtime, load_config


def test_a_configured_monitor_tells_every_stage(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("all work and no play makes jack a dull boy\n" * 400)
    config = {
        "run": {"name": "stats", "directory": str(tmp_path / "run"), "device": "cpu"},
        "model": {"layers": 1, "heads": 1, "width": 8, "context": 16},
        "data": {"paths": [str(text)], "batch_size": 4},
        "train": {"max_steps": 4, "validate_every_steps": 2},
        "logging": {"every_steps": 2, "hooks": [{"otel": {"prometheus_port": 0}}]},
        "callbacks": [
            {"otel_training:DeviceStatsMonitor": {"filter_keys": ["cpu_percent", "cpu_vm_percent"]}}
        ],
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    trainer, _ = build_runtime(load_config(path))
    with trainer:
        trainer.fit()
        trainer.validate()
    [log] = (tmp_path / "run").glob("*.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    stats = [line for line in lines if line["event"] == "device_stats"]
    assert [line["step"] for line in stats if line["stage"] == "fit"] == [2, 2, 4, 4]
    assert [line for line in stats if line["stage"] == "validation"]
    bases = {key.partition("/")[2] for line in stats for key in line if "/" in key}
    assert bases == {"cpu_percent", "cpu_vm_percent"}
