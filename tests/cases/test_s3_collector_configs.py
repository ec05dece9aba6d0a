"""S3, open-telemetry/opentelemetry-collector#11337: collector configs name what exists, and use all of it.

No exporter of type ``logging`` (``debug`` took its place); every component named in a pipeline is defined,
every defined one is used. The rules are tried on planted mistakes, too, so that a blind rule fails here.
"""

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("receivers", "processors", "exporters", "connectors")


def collector_configs():
    """Every YAML file below collector-config that has pipelines."""
    files = sorted((ROOT / "collector-config").rglob("*.yaml"))
    documents = {path: list(yaml.safe_load_all(path.read_text(encoding="utf-8"))) for path in files}
    return {
        path.relative_to(ROOT): document
        for path, [document, *_] in documents.items()
        if "pipelines" in (document.get("service") or {})
    }


def complaints(config):
    found = []
    service = config["service"]
    for kind in KINDS:
        defined = set(config.get(kind) or {})
        named = {name for pipeline in service["pipelines"].values() for name in pipeline.get(kind) or ()}
        if kind == "connectors":
            ends = [*service["pipelines"].values()]
            named = {name for end in ends for side in ("receivers", "exporters") for name in end[side]}
            named &= defined
        elif kind in ("receivers", "exporters"):
            named -= set(config.get("connectors") or {})
        found += [f"{kind}: {name} is not defined" for name in sorted(named - defined)]
        found += [f"{kind}: {name} is not used" for name in sorted(defined - named)]
    extensions, started = set(config.get("extensions") or {}), set(service.get("extensions") or ())
    found += [f"extensions: {name} is not defined" for name in sorted(started - extensions)]
    found += [f"extensions: {name} is not started" for name in sorted(extensions - started)]
    found += [
        f"exporters: {name} is of type logging, which is gone: debug"
        for name in config.get("exporters") or {}
        if name.partition("/")[0] == "logging"
    ]
    return found


def test_there_are_an_agent_and_two_gateways():
    assert {path.name for path in collector_configs()} == {
        "agent.yaml",
        "gateway-prometheus.yaml",
        "gateway-remote-write.yaml",
    }


@pytest.mark.parametrize("path", collector_configs(), ids=str)
def test_every_component_is_defined_and_used(path):
    assert complaints(collector_configs()[path]) == []


PIPELINE = {"receivers": ["otlp"], "processors": ["batch"], "exporters": ["debug"]}
SOUND = {
    "receivers": {"otlp": None},
    "processors": {"batch": None},
    "exporters": {"debug": None},
    "extensions": {"health_check": None},
    "service": {"extensions": ["health_check"], "pipelines": {"traces": PIPELINE}},
}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({}, None),
        ({"processors": None}, "processors: batch is not defined"),
        ({"processors": {"batch": None, "batch/2": None}}, "processors: batch/2 is not used"),
        ({"receivers": {}}, "receivers: otlp is not defined"),
        ({"extensions": {}}, "extensions: health_check is not defined"),
        ({"extensions": {"health_check": None, "zpages": None}}, "extensions: zpages is not started"),
        ({"connectors": {"forward": None}}, "connectors: forward is not used"),
        (
            {"exporters": {"debug": None, "logging/verbose": None}},
            "exporters: logging/verbose is of type logging, which is gone: debug",
        ),
    ],
)
def test_the_rules_see_a_planted_mistake(change, complaint):
    found = complaints({**SOUND, **change})
    assert complaint in found if complaint else found == []
