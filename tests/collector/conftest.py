"""The shipped files, parsed."""

import socket
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "collector-config"


@pytest.fixture
def folder():
    return FOLDER


@pytest.fixture
def documents():
    """Call it with a path below collector-config to get the YAML documents of the file."""

    def load(name):
        return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))

    return load


@pytest.fixture
def document(documents):
    """Call it with a path below collector-config to get the only YAML document of the file."""

    def load(name):
        [one] = documents(name)
        return one

    return load


@pytest.fixture
def unused_port():
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
