"""Tests of random streams by epoch and index."""

from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest

from learner.data.streams import Streams


def numbers(streams, epoch, index, count=3):
    with streams.at(epoch, index) as rng:
        return rng.random(count).tolist()


def test_streams_share_no_buffer():
    """Philox draws blocks of four numbers, and buffers half of a 64-bit number."""
    streams, fresh = Streams(1, 0), numbers(Streams(1, 0), 2, 7)
    for count in (1, 2, 3, 4, 5):
        numbers(streams, 2, 6, count)
        assert numbers(streams, 2, 7) == fresh
    with streams.at(2, 6) as rng:
        rng.integers(0, 10, dtype=np.uint32)
    with streams.at(2, 7) as rng, Streams(1, 0).at(2, 7) as other:
        assert rng.integers(0, 2**31, 3, dtype=np.uint32).tolist() == other.integers(0, 2**31, 3, np.uint32).tolist()


def test_streams_do_not_overlap():
    streams = Streams(0, 0)
    values = [number for index in (0, 1, 2**32, 2**63) for number in numbers(streams, 1, index, 5000)]
    assert len(set(values)) == 20000
    assert len({numbers(Streams(s, p), e, 0)[0] for s in (0, 1) for p in (0, 1) for e in (1, 2)}) == 8


def test_nested_streams():
    streams = Streams(0, 0)
    with streams.at(1, 0) as outer:
        first = outer.random()
        assert numbers(streams, 1, 1) == numbers(Streams(0, 0), 1, 1)
        assert [first, outer.random(), outer.random()] == numbers(Streams(0, 0), 1, 0)


def test_generators_are_reused_except_after_errors():
    streams = Streams(0, 0)
    with streams.at(1, 0) as first:
        pass
    with streams.at(1, 1) as second:
        assert second is first
    with pytest.raises(KeyError), streams.at(1, 2):
        raise KeyError
    assert numbers(streams, 1, 2) == numbers(Streams(0, 0), 1, 2)


def test_streams_can_be_pickled():
    streams = Streams(3, 1)
    expected = numbers(streams, 4, 5)
    assert numbers(ForkingPickler.loads(ForkingPickler.dumps(streams)), 4, 5) == expected


def test_epochs_of_one_object_differ():
    streams = Streams(0, 0)
    assert numbers(streams, 1, 0) != numbers(streams, 2, 0) == numbers(Streams(0, 0), 2, 0)
