"""Tests of the description of a run that its processes compare."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner import LearnerError
from learner.data import DataLoaderBuilder, PerProcess
from learner.data.sharding import ProcessShard
from learner.data.source import source_of
from learner.training.checks.agreement import SAMPLED, data_description, digest, propagate_failures, sampled_digest
from learner.training.checks.step_tracing import Tracing
from learner.training.feed.inputs import Inputs


def test_the_digest_of_arrays_covers_each_value():
    """Random keys and half precision are included; the description compares dtypes separately."""
    trees = [
        {"w": jnp.ones(2), "key": jax.random.key(0)},
        {"w": jnp.ones(2).at[1].set(2), "key": jax.random.key(0)},
        {"w": jnp.ones(2), "key": jax.random.key(1)},
        {"w": jnp.ones(2, jnp.bfloat16), "key": jax.random.key(0)},
    ]
    assert len({digest(tree) for tree in trees}) == 4
    assert digest(trees[0]) == digest({"w": np.ones(2, np.float32), "key": jax.random.key(0)})


def test_the_digest_covers_python_numbers():
    """`nnx.Variable(0.5)` contains one."""
    assert digest({"w": 0.5}) == digest({"w": 0.5}) != digest({"w": 0.25})


def test_the_digest_of_samples_covers_names_keys_and_large_arrays():
    large = jnp.zeros((3, SAMPLED))
    trees = [
        {"w": large, "key": jax.random.key(0)},
        {"w": large + 1.0, "key": jax.random.key(0)},
        {"w": large, "key": jax.random.key(1)},
        {"v": large, "key": jax.random.key(0)},
        {"w": large, "key": jax.random.key(0), "n": 0.5},
    ]
    assert len({sampled_digest(tree) for tree in trees}) == 5
    assert sampled_digest(trees[0]) == sampled_digest(
        {"w": np.zeros((3, SAMPLED), np.float32), "key": jax.random.key(0)}
    )


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (lambda batches: [jax.tree.map(lambda x: x + 1, batch) for batch in batches], True),
        (lambda batches: PerProcess([jax.tree.map(lambda x: x[2:] + 1, batch) for batch in batches]), False),
        (lambda batches: DataLoaderBuilder().batch_size(4).build({"x": np.ones((8, 2))}), True),
        (lambda batches: DataLoaderBuilder().batch_size(4).shuffle(1).build({"x": np.zeros((8, 2))}), True),
        (lambda batches: DataLoaderBuilder().batch_size(4).shuffle(0).build({"x": np.zeros((8, 2))}), False),
    ],
    ids=["values", "own values", "values of a loader", "another order", "the same loader"],
)
def test_data_of_processes_is_described_by_its_values_and_its_order(other, differs):
    batches = [{"x": np.zeros((4, 2))}] * 2
    given = [batches, other(batches)]
    if isinstance(given[1], PerProcess):
        given[0] = PerProcess([jax.tree.map(lambda x: x[:2], batch) for batch in batches])
    elif not isinstance(given[1], list):
        given[0] = DataLoaderBuilder().batch_size(4).shuffle(0).build({"x": np.zeros((8, 2))})
    described = []
    for index, data in enumerate(given):
        source = source_of(data, "valid", share=ProcessShard(index, 2, 2))
        inputs = Inputs(None, {"valid": source}, {"valid": source.peek(1)})
        described.append(data_description(inputs, "valid", source.fingerprint()))
    assert (described[0] != described[1]) == differs


def test_own_data_is_described_if_all_processes_have_the_same_rows():
    described = []
    for value in range(2):
        source = source_of(PerProcess([{"x": np.full(4, value)}]), "valid", share=ProcessShard(0, 1, 1))
        inputs = Inputs(None, {"valid": source}, {"valid": source.peek(1)})
        described.append(data_description(inputs, "valid", source.fingerprint()))
    assert described[0] != described[1]


class Peers:
    """A group of two processes whose other process has reported no failure."""

    count, index = 2, 0

    def __init__(self):
        self.reported = []

    def raise_if_peer_failed(self):
        pass

    compare_passes = raise_if_peer_failed

    def fail(self, text):
        self.reported.append(text)


def test_a_lost_process_is_not_an_error_of_the_step():
    """On CPUs, JAX raises a ValueError if the connection is lost during a program."""
    peers, error = Peers(), ValueError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer")
    with (
        pytest.raises(LearnerError) as raised,
        propagate_failures(peers),
        Tracing("valid_step", "valid", lambda: {"x": np.zeros(2)}),
    ):
        raise error
    assert raised.value.code == "process-devices-lost"
    assert raised.value.__cause__ is error
    assert peers.reported == [f"ValueError: {error}"]
