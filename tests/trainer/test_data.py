"""Text files as blocks of bytes."""

import pytest
import torch

from trainer.data import BlockSampler, TextBlocks, find_text_files, make_loader, read_tokens, split_tokens


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "b.txt").write_bytes(b"bb")
    (tmp_path / "a.txt").write_bytes(b"a")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "c.md").write_bytes(b"ccc")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x").write_bytes(b"hidden")
    return tmp_path


@pytest.mark.parametrize(
    ("paths", "text"),
    [
        (["a.txt"], b"a"),
        (["."], b"abbccc"),
        (["*.txt"], b"abb"),
        (["**/*.md"], b"ccc"),
        (["b.txt", "a.txt", "b.txt"], b"bba"),
    ],
)
def test_files_folders_and_globs(folder, paths, text):
    files = find_text_files([str(folder / path) for path in paths])
    assert bytes(read_tokens(files).tolist()) == text


def test_a_path_without_a_file_is_named(folder):
    with pytest.raises(FileNotFoundError, match="nothing-here"):
        find_text_files([str(folder), str(folder / "nothing-here*")])


def test_the_standard_library_comes_without_its_tests():
    files = find_text_files(["stdlib"])
    assert any(file.name == "argparse.py" for file in files)
    assert all(file.suffix == ".py" for file in files)
    assert not any({"test", "tests", "site-packages"}.intersection(file.parts[-3:-1]) for file in files)
    assert files == find_text_files(["stdlib"])


def test_a_tail_is_held_out_for_validation_and_test():
    parts = split_tokens(torch.arange(100, dtype=torch.uint8), 0.2)
    assert [part.tolist() for part in parts] == [list(range(80)), list(range(80, 90)), list(range(90, 100))]


def test_the_target_is_the_input_one_token_later():
    blocks = TextBlocks(torch.arange(10, dtype=torch.uint8), context=4)
    inputs, targets = blocks[5]
    assert (inputs.tolist(), targets.tolist()) == ([5, 6, 7, 8], [6, 7, 8, 9])
    assert len(blocks) == 6
    assert inputs.dtype == torch.int64


@pytest.mark.parametrize("sampling", ["random", "sequential"])
def test_any_position_of_an_epoch_can_be_found_again(sampling):
    def order(epoch, begin=0):
        sampler = BlockSampler(100, 7, sampling=sampling, seed=3)
        sampler.set_epoch(epoch)
        sampler.seek(begin)
        return list(sampler)

    assert len(order(0)) == len(BlockSampler(100, 7)) == 15
    assert order(1, begin=6) == order(1)[6:]
    assert all(0 <= start < 100 for start in order(2))
    assert (order(0) == order(1)) == (sampling == "sequential")


def test_a_second_pass_begins_at_the_start_again():
    sampler = BlockSampler(20, 5, sampling="sequential")
    sampler.seek(2)
    assert list(sampler) == [10, 15]
    assert list(sampler) == [0, 5, 10, 15]


def test_a_batch_and_texts_that_are_too_short():
    tokens = torch.arange(50, dtype=torch.uint8)
    inputs, targets = next(iter(make_loader(tokens, context=4, batch_size=3, sampling="sequential")))
    assert inputs.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert targets[0].tolist() == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="50 bytes, one block needs 51"):
        make_loader(tokens, context=50, batch_size=1)
    with pytest.raises(ValueError, match="one batch needs 99"):
        make_loader(tokens, context=4, batch_size=99)
    with pytest.raises(ValueError, match="accepted: random, sequential"):
        make_loader(tokens, context=4, batch_size=1, sampling="other")
