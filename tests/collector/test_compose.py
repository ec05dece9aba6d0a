"""The compose file: what it mounts exists, what it talks to is there, and nothing is open to the network."""

import re
from pathlib import Path

import pytest
import yaml


@pytest.fixture
def compose(document):
    return document("compose/compose.yaml")


def test_every_file_that_is_mounted_exists(compose, folder):
    sources = [
        volume.split(":")[0] for service in compose["services"].values() for volume in service["volumes"]
    ]
    files = [source for source in sources if source.startswith(".")]
    assert len(files) >= 7
    assert [source for source in files if not (folder / "compose" / source).exists()] == []
    assert {source for source in sources if source not in files} == set(compose["volumes"])


def test_every_config_that_a_command_names_is_mounted(compose):
    for name, service in compose["services"].items():
        targets = {volume.split(":")[1] for volume in service["volumes"]}
        named = {
            word.partition("=")[2]
            for word in service.get("command", ())
            if "config" in word.partition("=")[0]
        }
        assert named <= targets, name


def test_what_one_needs_is_there(compose):
    for service in compose["services"].values():
        assert set(service.get("depends_on", ())) <= set(compose["services"])


def test_ports_are_open_to_this_machine_only(compose):
    ports = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert ports
    assert [port for port in ports if not re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port)] == []


def test_the_addresses_inside_are_services_and_their_ports(compose, document, folder):
    listens = {
        "collector": {8888, 8889, 4317, 4318, 13133},
        "prometheus": {9090},
        "tempo": {
            document("compose/tempo.yaml")["server"]["http_listen_port"],
            int(document("compose/tempo.yaml")["distributor"]["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
                .rpartition(":")[2]),
        },
        "grafana": {3000},
    }  # fmt: skip
    assert set(listens) == set(compose["services"])
    # Not preceded by a slash alone: that is the tag of an image.
    pattern = re.compile(rf"(?:http://|\[|, )({'|'.join(listens)}):(\d+)\b")
    texts = [path.read_text() for path in sorted((folder / "compose").glob("*.yaml"))]
    asked = {(host, int(port)) for text in texts for host, port in pattern.findall(text)}
    assert {host for host, _ in asked} == {"collector", "prometheus", "tempo"}
    assert [(host, port) for host, port in asked if port not in listens[host]] == []


def test_prometheus_reads_the_rules_that_are_mounted(compose, document):
    [rules] = document("compose/prometheus.yaml")["rule_files"]
    assert (
        f"../../grafana/rules:{rules.removesuffix('/*.yaml')}:ro"
        in compose["services"]["prometheus"]["volumes"]
    )


def test_grafana_finds_dashboards_and_data_sources_where_the_provisioning_says(compose, folder):
    grafana = compose["services"]["grafana"]
    mounts = dict(volume.split(":")[1::-1] for volume in grafana["volumes"])
    provisioning = folder.parent / "grafana" / "provisioning"
    [provider] = yaml.safe_load((provisioning / "dashboards" / "otel-training.yaml").read_text())["providers"]
    inside = Path(provider["options"]["path"])
    [source] = [source for target, source in mounts.items() if inside.is_relative_to(target)]
    [target] = [target for target in mounts if inside.is_relative_to(target)]
    assert list((folder / "compose" / source / inside.relative_to(target)).glob("*.json"))
    text = (provisioning / "datasources" / "otel-training.yaml").read_text()
    for variable in re.findall(r"\$\{(\w+)\}", text):
        assert variable in grafana["environment"]


def test_rates_span_the_scrapes_of_this_prometheus(document, folder):
    path = folder.parent / "grafana" / "provisioning" / "datasources" / "otel-training.yaml"
    [source] = yaml.safe_load(path.read_text())["datasources"]
    assert (
        source["jsonData"]["timeInterval"] == document("compose/prometheus.yaml")["global"]["scrape_interval"]
    )
