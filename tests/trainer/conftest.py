"""What tests of the logging half share."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(pairs) == len(dict(pairs)), f"a key stands twice: {pairs}"
    return dict(pairs)


def _strict(line: str | bytes) -> Any:
    value = json.loads(line, parse_constant=_refuse, object_pairs_hook=_without_doubles)
    json.dumps(value, ensure_ascii=False).encode("utf-8")  # raises at a lone surrogate
    return value


@pytest.fixture(scope="session")
def strict_json() -> Callable[[str | bytes], Any]:
    """Parses JSON as its strictest readers do: no NaN words, no key twice, no lone surrogates."""
    return _strict


@pytest.fixture(scope="session")
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program in a fresh interpreter, which must end well unless ``status`` says otherwise."""

    def run(source: str, *args: object, status: int | None = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", source, *map(str, args)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
        assert status is None or done.returncode == status, done.stderr
        return done

    return run
