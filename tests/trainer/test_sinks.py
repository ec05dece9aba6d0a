"""Files and streams that lines go to, and what goes wrong with them."""

import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.sinks import FileSink, StreamSink


class Clock:
    """Monotonic seconds that stand still until a test moves them."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "log.jsonl"


@pytest.fixture
def sink(path, clock):
    sink = FileSink(path, clock)
    yield sink
    sink.close()


# ---- set-up


def test_the_file_and_its_folders_are_made(tmp_path):
    FileSink(tmp_path / "a" / "b" / "log").close()
    assert (tmp_path / "a" / "b" / "log").read_bytes() == b""


def test_a_folder_that_cannot_be_made_raises(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        FileSink(tmp_path / "file" / "log")


def test_a_path_that_is_a_folder_raises(tmp_path):
    with pytest.raises(IsADirectoryError):
        FileSink(tmp_path)


def test_a_pipe_that_nobody_reads_raises_instead_of_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe"):
        FileSink(tmp_path / "pipe")


# ---- appending


def test_a_line_is_with_the_kernel_when_write_returns(sink, path):
    sink.write("größe\n")
    assert path.read_text(encoding="utf-8") == "größe\n"
    sink.write_bytes(b"two\n")
    assert path.read_bytes() == "größe\ntwo\n".encode()


def test_earlier_lines_stay(path, clock):
    for text in ("one\n", "two\n"):
        sink = FileSink(path, clock)
        sink.write(text)
        sink.close()
    assert path.read_text() == "one\ntwo\n"


def test_a_surrogate_does_not_break_the_file(sink, path):
    sink.write("a\udcff\n")
    assert path.read_text(encoding="utf-8") == "a\\udcff\n"


def test_a_torn_last_line_is_closed_off(path, clock):
    path.parent.mkdir()
    path.write_text('{"step":1}\n{"st')
    sink = FileSink(path, clock)
    assert path.read_text() == '{"step":1}\n{"st', "nothing is written before there is a line"
    sink.write('{"step":2}\n')
    sink.write('{"step":3}\n')
    sink.close()
    assert path.read_text() == '{"step":1}\n{"st\n{"step":2}\n{"step":3}\n'


def test_a_torn_file_that_gets_no_line_stays_as_it_is(path, clock):
    path.parent.mkdir()
    path.write_text("torn")
    FileSink(path, clock).close()
    assert path.read_text() == "torn"


WRITER = """
import sys
from trainer.sinks import FileSink
sink = FileSink(sys.argv[1])
for number in range(400):
    sink.write(sys.argv[2] * (1 + number * 37 % 9000) + "\\n")
sink.close()
"""


def test_lines_of_several_processes_do_not_mix(path):
    root = Path(__file__).resolve().parents[2]
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, path, letter], cwd=root) for letter in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    lines = path.read_text().splitlines()
    assert len(lines) == 1200
    assert all(len(set(line)) == 1 for line in lines)


# ---- following the file by its name


@pytest.mark.parametrize(
    "gone", [lambda path: path.rename(path.with_suffix(".1")), lambda path: path.unlink()]
)
def test_a_moved_or_removed_file_is_noticed_within_a_second(sink, path, clock, gone):
    sink.write("one\n")
    gone(path)
    clock.now_s += 0.9
    sink.write("two\n")
    assert not path.exists(), "looking more often than once a second costs too much"
    clock.now_s += 0.1
    sink.write("three\n")
    sink.write("four\n")
    assert path.read_text() == "three\nfour\n"
    if path.with_suffix(".1").exists():
        assert path.with_suffix(".1").read_text() == "one\ntwo\n"


def test_a_removed_folder_is_made_again(sink, path, clock):
    path.unlink()
    path.parent.rmdir()
    clock.now_s += 1
    sink.write("one\n")
    assert path.read_text() == "one\n"


def test_a_file_that_takes_the_name_is_appended_to(sink, path, clock):
    path.unlink()
    path.write_text("torn")
    clock.now_s += 1
    sink.write("one\n")
    assert path.read_text() == "torn\none\n"


def test_a_truncated_file_is_gone_on_with(sink, path, clock):
    sink.write("one\n")
    os.truncate(path, 0)
    clock.now_s += 1
    sink.write("two\n")
    assert path.read_text() == "two\n"


def test_when_the_file_cannot_be_made_again_the_old_one_goes_on(sink, path, clock, caplog):
    moved = path.parent.with_name("moved")
    path.parent.rename(moved)
    path.parent.write_text("in the way")
    for number in range(3):
        clock.now_s += 1
        sink.write(f"{number}\n")
    assert (moved / path.name).read_text() == "0\n1\n2\n"
    assert sink.failures.count == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    path.parent.unlink()
    clock.now_s += 1
    sink.write("back\n")
    assert path.read_text() == "back\n"


def test_rotation_does_not_leak_handles(sink, path, clock):
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        path.unlink()
        clock.now_s += 1
        sink.write("x\n")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# ---- a full disk


def test_a_full_disk_warns_at_growing_intervals_and_counts(clock, caplog):
    sink = FileSink("/dev/full", clock)
    for _ in range(123):
        sink.write("line\n")
    sink.close()
    assert sink.failures.count == 123
    assert len(caplog.records) == 3
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert "/dev/full cannot be written: No space left on device (1 lines" in caplog.records[0].getMessage()
    assert "100 lines" in caplog.records[2].getMessage()


def test_a_line_that_was_taken_in_part_is_completed_before_the_next(sink, path, full_at):
    sink.write("one\n")
    full_at(7)
    sink.write("two two\n")
    assert path.read_text() == "one\ntwo"
    for _ in range(3):
        sink.write("lost\n")
    full_at(9)
    sink.write("lost too\n")
    assert path.read_text() == "one\ntwo t"
    full_at(None)
    sink.write("three\n")
    sink.write("four\n")
    assert path.read_text() == "one\ntwo two\nthree\nfour\n"
    assert sink.failures.count == 5


def test_close_completes_a_line_that_was_taken_in_part(sink, path, full_at):
    full_at(3)
    sink.write("one one\n")
    full_at(None)
    sink.close()
    assert path.read_text() == "one one\n"


def test_a_moved_file_gets_the_rest_of_its_line(sink, path, clock, full_at):
    full_at(3)
    sink.write("one one\n")
    full_at(None)
    moved = path.rename(path.with_suffix(".1"))
    clock.now_s += 1
    sink.write("two\n")
    assert moved.read_text() == "one one\n"
    assert path.read_text() == "two\n"


def break_handle(path):
    """Make the open handle of the file one that refuses every write, as a network's file system may do."""
    (fd,) = [int(entry.name) for entry in Path("/proc/self/fd").iterdir() if entry.resolve() == path]
    broken = os.open("/dev/full", os.O_WRONLY)
    os.dup2(broken, fd)
    os.close(broken)


def test_a_handle_that_broke_is_opened_anew_and_the_line_completed(sink, path, clock, full_at):
    full_at(3)
    sink.write("one one\n")
    full_at(None)
    break_handle(path)
    sink.write("lost\n")
    clock.now_s += 1
    sink.write("two\n")
    assert path.read_text() == "one one\ntwo\n"


def test_a_child_begins_a_line_of_its_own_and_leaves_the_rest_to_its_parent(sink, path, full_at):
    full_at(3)
    sink.write("one one\n")
    full_at(None)
    sink.after_fork()
    sink.write("child\n")
    assert path.read_text() == "one\nchild\n"


def test_a_child_that_writes_nothing_leaves_the_file_alone(sink, path, full_at):
    full_at(3)
    sink.write("one one\n")
    full_at(None)
    sink.after_fork()
    sink.close()
    assert path.read_text() == "one"


# ---- closing


def test_close_is_idempotent_and_a_later_line_is_counted(sink, path, caplog):
    sink.write("one\n")
    sink.close()
    sink.close()
    sink.write("late\n")
    assert path.read_text() == "one\n"
    assert sink.failures.count == 1


def test_a_sink_that_nobody_closed_does_not_keep_its_handle(path, clock):
    open_before = set(Path("/proc/self/fd").iterdir())
    sink = FileSink(path, clock)
    assert set(Path("/proc/self/fd").iterdir()) != open_before
    del sink
    assert set(Path("/proc/self/fd").iterdir()) == open_before


# ---- streams


def test_a_stream_is_flushed_at_each_line():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8", write_through=False)
    StreamSink(stream).write("größe\n")
    assert raw.getvalue() == "größe\n".encode()


def test_standard_output_is_the_one_of_the_moment(capsys, monkeypatch):
    sink = StreamSink()
    sink.write("one\n")
    assert capsys.readouterr().out == "one\n"
    other = io.StringIO()
    monkeypatch.setattr(sys, "stdout", other)
    sink.write("two\n")
    assert other.getvalue() == "two\n"
    monkeypatch.setattr(sys, "stdout", None)
    sink.write("nowhere\n")
    sink.close()
    assert sink.failures.count == 0


def test_characters_that_a_stream_cannot_hold_are_escaped():
    raw = io.BytesIO()
    sink = StreamSink(io.TextIOWrapper(raw, encoding="ascii"))
    sink.write("größe\n")
    assert raw.getvalue() == b"gr\\xf6\\xdfe\n"
    assert sink.failures.count == 0


class BrokenStream(io.StringIO):
    def write(self, text):
        raise RuntimeError("broken")


def test_a_broken_stream_warns_at_growing_intervals_and_counts(caplog):
    sink = StreamSink(BrokenStream())
    for _ in range(12):
        sink.write("x\n")
    assert sink.failures.count == 12
    assert len(caplog.records) == 2
    assert "broken" in caplog.text


def test_a_closed_stream_is_no_error(caplog):
    stream = io.StringIO()
    stream.close()
    sink = StreamSink(stream)
    sink.write("x\n")
    sink.close()
    assert sink.failures.count == 1


def test_close_leaves_the_stream_open():
    stream = io.StringIO()
    StreamSink(stream).close()
    assert not stream.closed


def test_a_reader_that_goes_away_ends_nothing_and_changes_no_exit_status(tmp_path):
    source = """
import sys
from trainer.sinks import StreamSink
sink = StreamSink()
sink.write("one\\n")
sys.stdin.readline()  # by now nobody reads
for _ in range(100):
    sink.write("more\\n")
print("the program's own")
open(sys.argv[1], "w").write(str(sink.failures.count))
"""
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", source, tmp_path / "done"],
        cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "one\n"
    process.stdout.close()
    process.stdin.write("\n")
    process.stdin.close()
    told = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 0
    assert told.count("\n") == 1
    assert "Broken pipe" in told
    assert (tmp_path / "done").read_text() == "1"
