"""Objects whose names say when they are whole."""

import threading

import fsspec
import pytest

from trainer.diloco.store import Store, StoreError, TornError


def _path(store, *parts):
    return "/".join((store._root, *parts))


@pytest.fixture
def files(store):
    """The file system under the store."""
    return store._fs


def test_what_is_written_is_listed_and_read(store):
    written = store.write("deltas", "b", b"two")
    store.write("deltas", "a", b"one")
    store.write("globals", "g", b"")
    assert [found.label for found in store.objects("deltas")] == ["a", "b"]
    assert store.objects("deltas")[1] == written
    assert store.read(written) == b"two"
    assert store.read(store.objects("globals")[0]) == b""


def test_a_folder_that_is_not_there_is_empty(store):
    assert store.objects("deltas") == []
    assert store.names("finished") == []


def test_marks_are_names_alone(store):
    store.mark("finished", "w1")
    store.mark("finished", "w1")
    assert store.names("finished") == ["w1"]
    assert store.objects("finished") == []
    store.remove("finished", "w1")
    store.remove("finished", "w1")
    assert store.names("finished") == []


def test_written_again_is_the_same_object(store):
    assert store.write("d", "a", b"data") == store.write("d", "a", b"data")
    assert len(store.objects("d")) == 1


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_half_an_object_is_seen_in_the_listing(store, files, kept):
    written = store.write("d", "a", b"12345")
    files.pipe_file(_path(store, "d", written.name), b"12345"[:kept])
    (found,) = store.objects("d")
    assert not found.is_whole
    for stale_or_fresh in (found, written):
        with pytest.raises(TornError, match="torn"):
            store.read(stale_or_fresh)


def test_an_object_of_the_right_size_with_other_bytes_is_torn(store, files):
    written = store.write("d", "a", b"12345")
    files.pipe_file(_path(store, "d", written.name), b"12340")
    assert store.objects("d")[0].is_whole
    with pytest.raises(TornError, match="torn"):
        store.read(written)


@pytest.mark.parametrize(
    "name", ["notes.txt", "a.safetensors", "a.5.safetensors", "a.x.0123456789abcdef.safetensors", ".hidden"]
)
def test_files_of_others_are_not_listed(store, files, name):
    store.write("d", "a", b"1")
    files.pipe_file(_path(store, "d", name), b"whatever")
    files.makedirs(_path(store, "d", "a.1.0123456789abcdef.safetensors"), exist_ok=True)
    assert [found.label for found in store.objects("d")] == ["a"]


def test_an_object_that_is_gone_is_a_store_error(store):
    written = store.write("d", "a", b"1")
    store.remove("d", written.name)
    with pytest.raises(StoreError, match=r"cannot read .*FileNotFoundError"):
        store.read(written)


def test_a_reader_beside_a_writer_never_gets_half_an_object(tmp_path):
    data = bytes(range(256)) * 4096
    store, done, read, torn = Store(str(tmp_path / "s")), threading.Event(), [], []

    def write():
        for _ in range(60):
            store.write("d", "a", data)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        for found in store.objects("d"):
            try:
                read.append(store.read(found) == data)
            except TornError:
                torn.append(found)
    writer.join()
    assert all(read)
    assert store.read(store.objects("d")[0]) == data


class Unkind(fsspec.AbstractFileSystem):
    """Raises what file systems should not."""

    protocol = "unkind"
    cachable = False

    def ls(self, path, detail=True, **kwargs):
        raise RuntimeError("no\nlist")

    def cat_file(self, path, **kwargs):
        raise KeyError("no read")

    def pipe_file(self, path, value, **kwargs):
        raise MemoryError

    def rm_file(self, path):
        raise ZeroDivisionError("no remove")


def test_whatever_a_file_system_raises_is_a_store_error_of_one_line(store):
    fsspec.register_implementation("unkind", Unkind, clobber=True)
    unkind = Store("unkind://x")
    asked = [
        (lambda: unkind.objects("d"), "cannot list .*: RuntimeError: no list"),
        (lambda: unkind.read(store.write("d", "a", b"1")), "cannot read .*: KeyError: 'no read'"),
        (lambda: unkind.write("d", "a", b""), "cannot write .*: MemoryError: no reason given"),
        (lambda: unkind.remove("d", "a"), "cannot remove .*: ZeroDivisionError"),
    ]
    for ask, message in asked:
        with pytest.raises(StoreError, match=message):
            ask()


def test_a_folder_that_was_removed_is_made_again(store, files):
    store.write("d", "a", b"1")
    files.rm(store._root, recursive=True)
    assert store.objects("d") == []
    store.write("d", "a", b"1")
    assert len(store.objects("d")) == 1


def test_a_store_that_cannot_be_opened_says_what_is_accepted():
    with pytest.raises(ValueError, match=r"'nosuch://x' cannot be opened .*accepted: a path, file://"):
        Store("nosuch://x")
