from pathlib import Path

from otel_training.artifacts import files

GRAFANA = Path(__file__).resolve().parents[3] / "grafana"


def test_what_is_committed_is_what_the_catalog_makes():
    assert files.differences(GRAFANA) == [], f"run `{files.COMMAND}` and commit grafana/"


def test_a_difference_is_seen_whichever_it_is(tmp_path):
    files.write(tmp_path)
    assert files.differences(tmp_path) == []
    (tmp_path / "rules" / "alerts.yaml").write_text("groups: []\n")
    (tmp_path / "rules" / "records.yaml").unlink()
    (tmp_path / "dashboards" / "old.json").write_text("{}")
    assert files.differences(tmp_path) == ["dashboards/old.json", "rules/alerts.yaml", "rules/records.yaml"]


def test_writing_twice_writes_the_same(tmp_path):
    first = {path: path.read_bytes() for path in files.write(tmp_path)}
    assert {path: path.read_bytes() for path in files.write(tmp_path)} == first


def test_alerts_link_to_the_runbook_that_is_asked_for(tmp_path):
    files.write(tmp_path, "https://example.org/runbook")
    assert (
        "runbook_url: https://example.org/runbook#trainingstalled"
        in (tmp_path / "rules" / "alerts.yaml").read_text()
    )
