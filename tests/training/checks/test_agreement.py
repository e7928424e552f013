"""Tests of the description of a run that its processes compare."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner import Learner, LearnerError, MetricEarlyStopping, ReduceOnPlateau
from learner.data import DataLoaderBuilder, PerProcess
from learner.data.sharding import ProcessShard
from learner.data.source import source_of
from learner.distributed.differences import describe_difference
from learner.records import CompactRecorder
from learner.training.checks.agreement import (
    SAME_HOOKS,
    SAMPLED,
    data_description,
    description,
    digest,
    error_of_shapes,
    propagate_failures,
)
from learner.training.checks.step_tracing import Tracing
from learner.training.feed.inputs import Inputs
from tests.support.runs import build_line, quiet


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
    assert len({digest(tree, sampled=True) for tree in trees}) == 5
    same = {"w": np.zeros((3, SAMPLED), np.float32), "key": jax.random.key(0)}
    assert digest(trees[0], sampled=True) == digest(same, sampled=True)


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


def described(facts, lr=0.1, **shapes):
    """Return the description of a run in a process, by the shapes of the first batch of each split."""
    batches = {split: {"x": f"float32{shape}", "mask": f"bool{shape[:2]}"} for split, shape in shapes.items()}
    data = {split: {"first batch": batch, "facts": facts} for split, batch in batches.items()}
    step = {"hash of the train step with its metrics": str(shapes)}
    return {"learning rate": lr, "data": data, "programs": {"hashes": step, "batches": batches}, **step}


def test_descriptions_that_differ_in_shapes_alone_name_field_and_remedy():
    facts, others = {"fields": {"x": "[5, 2]"}}, {"fields": {"x": "[9, 2]"}}
    first = described(facts, train=[4, 5, 2], valid=[4, 5, 2])
    second = described(others, train=[4, 9, 2], valid=[4, 5, 2])
    error = error_of_shapes([first, second, first])
    assert error.code == "process-shapes-differ"
    shapes = "x [4, 5, 2] in process 0, x [4, 9, 2] in process 1, x [4, 5, 2] in process 2"
    assert str(error).startswith(f"batch 1 in pass 1 of the train data has {shapes}: ")
    assert "Pad(length=n)" in str(error)
    fewer = described(facts, train=[4, 5, 2], valid=[2, 5, 2])
    assert "the valid data has 4 rows in process 0, 2 rows in process 1" in str(error_of_shapes([first, fewer]))


def test_descriptions_that_differ_in_anything_else_have_no_error_of_shapes():
    first, facts = described({}, train=[4, 5, 2]), {"seed": 1}
    assert error_of_shapes([first, first]) is None
    assert error_of_shapes([first, described({}, lr=0.2, train=[4, 9, 2])]) is None
    assert error_of_shapes([first, described(facts, train=[4, 9, 2])]) is None
    other_field = described({}, train=[4, 9, 2])
    other_field["data"]["train"]["first batch"]["y"] = "int32[4]"
    assert error_of_shapes([first, other_field]) is None
    for text in ("float16[4, 9, 2]", "float32[4]"):
        other = described({}, train=[4, 9, 2])
        other["data"]["train"]["first batch"]["x"] = text
        assert error_of_shapes([first, other]) is None


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


def plateau(**settings):
    return lambda builder: build_line(builder, ReduceOnPlateau(0.1, **settings))


DIFFERENCES = {
    "a directory of checkpoints": (
        lambda b: b.with_file_checkpointer(every_steps=5, directory="/runs/one"),
        lambda b: b.with_file_checkpointer(every_steps=5, directory="/runs/two"),
        ['checkpoints.directory is "/runs/one" in process 0; "/runs/two" in process 1'],
    ),
    "a record": (
        lambda b: b.with_file_checkpointer(record=CompactRecorder()),
        lambda b: b.with_file_checkpointer(),
        ['checkpoints.record is "CompactRecorder()" in process 0; "None" in process 1'],
    ),
    "a patience": (
        lambda b: b.early_stopping(MetricEarlyStopping(patience=1)),
        lambda b: b.early_stopping(MetricEarlyStopping(patience=2)),
        ["early stopping.0.patience is 1 in process 0; 2 in process 1"],
    ),
    "the best model": (
        lambda b: b.restore_best(),
        lambda b: b,
        ["options.restore_best is true in process 0; null in process 1"],
    ),
    "hooks": (
        lambda b: b.on_epoch_end(print).every(2, print),
        lambda b: b.every(2, print).every(2, print),
        [
            f"hooks.on_epoch_end ({SAME_HOOKS}) is 1 in process 0; missing in process 1",
            f"hooks.every(2) ({SAME_HOOKS}) is 1 in process 0; 2 in process 1",
        ],
    ),
    "the order of hooks": (
        lambda b: b.every(3, print).every(5, print),
        lambda b: b.every(5, print).every(3, print),
        [f'hooks.order of every ({SAME_HOOKS}) is "3, 5" in process 0; "5, 3" in process 1'],
    ),
    "a factor of ReduceOnPlateau": (
        plateau(factor=0.5),
        plateau(factor=0.1),
        ["ReduceOnPlateau.factor is 0.5 in process 0; 0.1 in process 1"],
    ),
    "a direction of ReduceOnPlateau": (
        plateau(mode="min"),
        plateau(mode="max"),
        ['ReduceOnPlateau.mode is "min" in process 0; "max" in process 1'],
    ),
    "no ReduceOnPlateau": (
        lambda b: b,
        plateau(patience=3),
        [
            "learning rate is 0.05 in process 0; 0.1 in process 1",
            'ReduceOnPlateau is null in process 0; {"factor": 0.1, "patience": 3, "cooldown": 0, "min_lr": 0.0, '
            '"monitor": "valid/Loss", "min_delta": 0.0, "mode": null} in process 1',
        ],
    ),
}


@pytest.mark.parametrize(("first", "second", "lines"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_options_that_differ_are_named(tmp_path, first, second, lines):
    inputs = SimpleNamespace(first_batches={})
    fingerprint = {"settings": {"schedules": {}}, "programs": {}}
    described = []
    for change in (first, second):
        changed = change(quiet(tmp_path / "run", saves=True))
        learner = changed if isinstance(changed, Learner) else build_line(changed)
        described.append(json.loads(json.dumps(description(learner.definition, inputs, None, {}, fingerprint))))
    assert describe_difference("it", described).splitlines()[1:] == [f"  {line}" for line in lines]
