"""A feed resumes with exactly the batches that were to come."""

import itertools
import multiprocessing
import random

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from trainer.data import make_loader
from trainer.feed import BatchFeed

NUMBERS = TensorDataset(torch.arange(20))


class Noisy(Dataset):
    """Draws from the random state of whatever process reads it."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.tensor([float(index), random.random(), torch.rand(()).item()])


def _shuffled(workers=0):
    return DataLoader(NUMBERS, batch_size=3, shuffle=True, num_workers=workers)


def _own_generator():
    generator = torch.Generator().manual_seed(5)
    return DataLoader(NUMBERS, batch_size=3, shuffle=True, generator=generator)


def _replacement():
    return DataLoader(NUMBERS, batch_size=3, sampler=RandomSampler(NUMBERS, replacement=True, num_samples=40))


def _text():
    return make_loader(torch.arange(200, dtype=torch.uint8), context=4, batch_size=5, seed=1)


def _noisy_workers():
    return DataLoader(Noisy(), batch_size=3, shuffle=True, num_workers=2)


def _flat(batch):
    return torch.cat([part.flatten().float() for part in batch]).tolist()


@pytest.mark.parametrize(
    "make", [_shuffled, lambda: _shuffled(2), _own_generator, _replacement, _text, _noisy_workers]
)
@pytest.mark.parametrize("used", [1, 4, 7, 10])
def test_a_resumed_feed_continues(make, used):
    torch.manual_seed(11)
    feed = BatchFeed(make())
    for _ in range(used):
        feed.next_batch()
        torch.rand(3)  # the model draws as well
    position, rng = feed.state_dict(), torch.get_rng_state()
    expected = [_flat(feed.next_batch()) for _ in range(9)]

    torch.manual_seed(99)
    resumed = BatchFeed(make())
    resumed.load_state_dict(position)
    torch.set_rng_state(rng)
    assert [_flat(resumed.next_batch()) for _ in range(9)] == expected


def test_loading_leaves_the_processes_random_state_alone():
    feed = BatchFeed(_shuffled())
    feed.next_batch()
    position = feed.state_dict()
    torch.manual_seed(4)
    expected = torch.get_rng_state()
    BatchFeed(_shuffled()).load_state_dict(position)
    assert torch.equal(torch.get_rng_state(), expected)


def test_a_fresh_position_is_the_start():
    feed = BatchFeed([1, 2])
    feed.load_state_dict(BatchFeed([1, 2]).state_dict())
    assert [feed.next_batch() for _ in range(3)] == [1, 2, 1]


def test_epochs_follow_one_another_and_peeking_uses_nothing():
    feed = BatchFeed([1, 2])
    assert feed.peek() == feed.peek() == 1
    assert feed.batch == 0
    assert [(feed.next_batch(), feed.epoch, feed.batch) for _ in range(3)] == [
        (1, 0, 1),
        (2, 0, 2),
        (1, 1, 1),
    ]


@pytest.mark.parametrize("loader", [[], iter([])])
def test_no_batch_at_all_is_an_error(loader):
    with pytest.raises(ValueError, match="gave no batch"):
        BatchFeed(loader).next_batch()


def test_data_that_cannot_be_iterated_twice_is_an_error_at_its_end():
    feed = BatchFeed(iter([1]))
    feed.next_batch()
    with pytest.raises(ValueError, match="cannot be iterated twice"):
        feed.next_batch()


def test_a_sampler_with_seek_reads_nothing_of_what_was_used():
    reads = []

    class Recording(torch.utils.data.Sampler):
        begin = 0

        def seek(self, sample):
            self.begin = sample

        def __iter__(self):
            for index in itertools.islice(range(20), self.begin, None):
                reads.append(index)
                yield index

    feed = BatchFeed(DataLoader(NUMBERS, batch_size=3, sampler=Recording()))
    feed.load_state_dict({"epoch": 0, "batch": 4, "start": _start()})
    assert feed.next_batch()[0].tolist() == [12, 13, 14]
    assert reads == [12, 13, 14]


def _start():
    feed = BatchFeed([1])
    feed.next_batch()
    return feed.state_dict()["start"]


def test_a_closed_feed_goes_on_where_it_was_and_leaves_no_worker():
    torch.manual_seed(2)
    feed = BatchFeed(_shuffled(2))
    first = [_flat(feed.next_batch()) for _ in range(3)]
    position = feed.state_dict()
    expected = [_flat(feed.next_batch()) for _ in range(2)]
    feed.load_state_dict(position)
    feed.close()
    assert multiprocessing.active_children() == []
    assert [_flat(feed.next_batch()) for _ in range(2)] == expected
    assert len({tuple(batch) for batch in first + expected}) == 5
    feed.close()
