"""README.md says what is there."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def readme_tree():
    spec = importlib.util.spec_from_file_location("readme_tree", ROOT / "docs" / "readme_tree.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tree_is_the_one_of_today():
    assert readme_tree().with_tree(README) == README, "run `make docs` and commit README.md"


def test_the_tree_has_a_sentence_for_every_module():
    lines = readme_tree().tree().splitlines()[1:-1]
    assert [line for line in lines if len(line.split()) < 2] == []
    modules = [path for package in ("trainer", "otel_training") for path in (ROOT / package).rglob("*.py")]
    assert len(lines) == len([path for path in modules if path.name != "__main__.py"])


def test_every_path_and_make_target_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    outside_tree = re.sub(r"```text\n.*?```", "", README, flags=re.DOTALL)
    targets = re.findall(r"\bmake ([a-z]+)\b", outside_tree)
    assert targets
    assert [target for target in targets if f"\n{target}:" not in makefile] == []
    paths = re.findall(r"\]\(([\w./-]+)\)", outside_tree)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def python_block(containing):
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    [block] = [block for block in blocks if containing in block]
    return block


def run_in(folder, *command):
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_loop_of_ones_own_runs(tmp_path):
    (tmp_path / "mine.py").write_text(python_block("start(run_name="))
    assert re.search(r"scrape page: http://\S+:\d+", run_in(tmp_path, "mine.py"))


def test_the_test_of_ones_own_passes(tmp_path):
    (tmp_path / "test_mine.py").write_text(python_block("def test_"))
    assert "1 passed" in run_in(tmp_path, "-m", "pytest", "-q", "test_mine.py")
