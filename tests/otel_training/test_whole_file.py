"""Files that are replaced as a whole."""

import os
import stat

import pytest

from otel_training.whole_file import check_writable, write_whole


def test_a_file_is_made_and_replaced_and_nothing_stays_beside_it(tmp_path):
    path = tmp_path / "run.prom"
    write_whole(path, b"one")
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_others_may_read_it_as_far_as_the_umask_lets_them(tmp_path):
    former = os.umask(0o022)
    try:
        write_whole(tmp_path / "run.prom", b"")
    finally:
        os.umask(former)
    assert stat.S_IMODE((tmp_path / "run.prom").stat().st_mode) == 0o644


def test_what_cannot_be_written_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "run.prom"
    path.mkdir()
    with pytest.raises(OSError, match=r"run\.prom"):
        write_whole(path, b"new")
    assert list(tmp_path.iterdir()) == [path]


def test_checking_makes_folders_and_leaves_no_file(tmp_path):
    check_writable(tmp_path / "a" / "b" / "run.prom", "prometheus_textfile")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_what_cannot_be_written_is_told_with_its_setting(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "run.prom", tmp_path):
        with pytest.raises(ValueError, match=r"prometheus_textfile='.*' cannot be written: "):
            check_writable(path, "prometheus_textfile")
