"""docs/reliability.md names tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "reliability.md").read_text(encoding="utf-8")


def named():
    """Yield file and test of each `file: test`, and of each `test` after it in the same row."""
    for row in PAGE.splitlines():
        file = None
        for words in re.findall(r"`([^`]+)`", row):
            path, _, test = words.rpartition(": ")
            file = path or file
            if test.startswith("test_") and file:
                yield file, test


def test_every_test_that_the_page_names_exists():
    found = list(named())
    assert len(found) > 40
    missing = [
        (file, test)
        for file, test in found
        if f"def {test}(" not in (TESTS / file).read_text(encoding="utf-8")
    ]
    assert missing == []


def test_every_file_that_the_page_names_exists():
    files = re.findall(r"`((?:\w+/)+\w+\.py)", PAGE)
    roots = (TESTS, TESTS.parent)
    assert [file for file in files if not any((root / file).exists() for root in roots)] == []
