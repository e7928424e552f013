"""Tests of dispatches: order, grouping, buffers, positions, prefetching and malformed batches."""

import collections
import contextlib
import dataclasses
import gc
import itertools
import threading
import traceback
import tracemalloc
import weakref

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from learner.data import DataLoaderBuilder, PerProcess, stack
from learner.data import source as source_module
from learner.data.batch_arrays import batch_arrays
from learner.data.sharding import ProcessShard
from learner.data.source import source_of
from learner.distributed.process_records import ProcessRecords
from learner.errors import LearnerError
from learner.steps.buffers import BatchBuffer
from learner.strategies import SingleDevice, Strategy
from learner.training.feed import group as feed_module
from learner.training.feed import place as place_module
from learner.training.feed.dispatches import Feeder
from learner.training.feed.group import DispatchGrouping, bytes_of, steps_for
from learner.training.feed.prefetch import Prefetcher
from tests.support.codes import raises_code
from tests.support.process_groups import errors_of_all, groups

WAIT = 30  # seconds after which a test fails instead of hanging


class Host(Strategy):
    """A strategy that places nothing, so that thousands of dispatches can be checked quickly."""

    description = "the host"
    resident = True

    def __init__(self):
        device = jax.devices()[0]
        super().__init__([device], jax.sharding.SingleDeviceSharding(device))

    def shardings(self, state):
        return None

    def place(self, tree, shardings=None):
        return jax.tree.map(np.asarray, tree)

    def put(self, tree, axis=0, replicated=False, one_off=False):
        return self.place(tree)

    def divides(self, rows):
        return True

    def compile(self, program, arguments=(), results="same", donate=(), shardings=None):
        return program


def plan_of(accumulate=1, buffer=4, loop=True, limit=None, most=None):
    return DispatchGrouping(accumulate, buffer, loop, limit or (lambda step: buffer), most)


def feeder_of(data, plan, strategy=None, warn=None, split="train"):
    source = source_of(data, split)
    first = batch_arrays(source.peek(1), split)
    return Feeder(source, strategy or Host(), plan, first, warn or pytest.fail)


def taken(feeder, epoch=1, batch=0, step=0, last=1, most=None):
    """Return the dispatches of a feeder, and close it."""
    dispatches = feeder.open(epoch, batch, step, last)
    try:
        return list(itertools.islice(dispatches, most))
    finally:
        dispatches.close()


class Device:
    """Reads dispatches in NumPy as the programs do: the groups of micro-batches of each step."""

    def __init__(self, accumulate, field="x"):
        self.accumulate, self.field, self.cursor = accumulate, field, None

    def steps(self, dispatch):
        if dispatch.kind == "parts":
            micro = [self._one(feed, is_tail, dispatch, i) for i, (feed, is_tail) in enumerate(dispatch.feed)]
            return [micro]
        full = [self._one(dispatch.feed, False, dispatch, i) for i in range(dispatch.count)]
        if dispatch.kind == "tail":
            return [[*full, self._one(dispatch.feed, True, dispatch, dispatch.count)]]
        assert dispatch.kind == "loop" or dispatch.count == 1
        return [full[i : i + self.accumulate] for i in range(0, len(full), self.accumulate)]

    def _one(self, feed, is_tail, dispatch, index):
        if index == 0 and dispatch.start is not None:
            self.cursor = dispatch.start
        index, self.cursor = self.cursor, self.cursor + 1
        if isinstance(feed, BatchBuffer):
            return (feed.last if is_tail else jax.tree.map(lambda x: x[index], feed.batches))[self.field].tolist()
        rows = np.asarray(feed.data[self.field])
        whole = len(rows) // feed.size * feed.size
        micro = rows[whole:] if is_tail else rows[index * feed.size : (index + 1) * feed.size]
        assert len(micro) > 0
        return micro.tolist()


def read(dispatches, accumulate, field="x"):
    """Return the steps of dispatches by epoch, and check each dispatch."""
    device, epochs = Device(accumulate, field), {}
    for dispatch in dispatches:
        steps = device.steps(dispatch)
        assert (len(steps), sum(map(len, steps))) == (dispatch.steps, dispatch.batches)
        assert sum(len(micro) for step in steps for micro in step) == dispatch.rows
        epochs.setdefault(dispatch.epoch, []).extend(steps)
    return epochs


def expected_steps(order, size, accumulate):
    """Return the grouping by definition: batches of `size` in order, in groups of `accumulate`."""
    batches = [list(order[i : i + size]) for i in range(0, len(order), size)]
    return [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]


shapes = st.tuples(st.integers(1, 30), st.integers(1, 7), st.integers(1, 4))  # rows, batch size, accumulation
limits = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def cuts(limits):
    """Return a limit that changes at every call, like one that depends on the clock."""
    wild = itertools.cycle(limits)
    return lambda step: next(wild)


# -- any data, any cuts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "streaming"])
@settings(max_examples=60, deadline=None)
@given(
    shape=shapes,
    buffer=st.integers(1, 6),
    limits=limits,
    loop=st.booleans(),
    most=st.none() | st.integers(1, 6),
    data=st.data(),
)
def test_every_row_is_dispatched_once_in_order_from_any_position(resident, shape, buffer, limits, loop, most, data):
    rows, size, accumulate = shape
    loader = DataLoaderBuilder().batch_size(size).shuffle(seed=rows).build({"x": np.arange(rows)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_module, "RESIDENT_BYTES", 2**20 if resident else 0)
        feeder = feeder_of(loader, plan_of(accumulate, buffer, loop, cuts(limits), most))
        assert feeder.resident == resident
    epochs = {epoch: expected_steps(loader.order(epoch).tolist(), size, accumulate) for epoch in (1, 2, 3)}

    dispatches = taken(feeder, last=3)
    assert read(dispatches, accumulate) == epochs
    assert all(d.steps <= (min(buffer, max(limits), most or buffer) if loop else 1) for d in dispatches)
    assert all((d.kind == "loop") <= loop for d in dispatches)
    ends = [i for i, d in enumerate(dispatches) if d.ends_epoch]
    assert [dispatches[i].epoch for i in ends] == [1, 2, 3]
    assert all(a.epoch != b.epoch for i in ends[:-1] for a, b in [(dispatches[i], dispatches[i + 1])])

    epoch = data.draw(st.integers(1, 3), label="epoch")
    done = data.draw(st.integers(0, len(epochs[epoch]) - 1), label="steps of it that were made")
    tail = read(taken(feeder, epoch, done * accumulate, step=done, last=3), accumulate)
    assert tail == {epoch: epochs[epoch][done:]} | {e: epochs[e] for e in range(epoch + 1, 4)}


@settings(max_examples=40, deadline=None)
@given(shape=shapes, buffer=st.integers(2, 6))
def test_streams_and_resident_data_have_equal_dispatches(shape, buffer):
    """Where both loop, the kinds of programs and their counts are equal, not only the groups."""
    rows, size, accumulate = shape
    batches = lambda: [{"x": np.arange(i, min(i + size, rows))} for i in range(0, rows, size)]  # noqa: E731
    loader = DataLoaderBuilder().batch_size(size).build({"x": np.arange(rows)})
    dispatches = []
    for data in (loader, batches()):
        feeder = feeder_of(data, plan_of(accumulate, buffer))
        dispatches.append([(d.kind, d.count, d.steps, d.batches, d.ends_epoch) for d in taken(feeder, last=2)])
    assert dispatches[0] == dispatches[1]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=14),
    accumulate=st.integers(1, 4),
    limits=limits,
    loop=st.booleans(),
)
@example(lengths=[(2, 2)] * 5 + [(1, 2)] + [(2, 2)] * 2, accumulate=3, limits=[9], loop=True)  # ragged in the middle
@example(lengths=[(2, 2), (2, 3), (2, 2), (2, 2)], accumulate=2, limits=[9], loop=True)  # bucketed lengths
def test_streams_of_mixed_shapes_keep_order_and_groups(lengths, accumulate, limits, loop):
    numbers = itertools.count()
    batches = [{"x": np.array([[next(numbers)] * width for _ in range(rows)])} for rows, width in lengths]
    feeder = feeder_of(batches, plan_of(accumulate, 4, loop, cuts(limits)), warn=lambda text: None)
    dispatches = taken(feeder)
    listed = [batch["x"].tolist() for batch in batches]
    assert read(dispatches, accumulate)[1] == [listed[i : i + accumulate] for i in range(0, len(listed), accumulate)]
    assert [d.ends_epoch for d in dispatches] == [False] * (len(dispatches) - 1) + [True]


# -- kinds of programs -------------------------------------------------------------------------------------------------


def rows_in_batches(*sizes, width=2):
    return [{"x": np.zeros((size, width), np.float32)} for size in sizes]


def kinds(dispatches):
    return [(d.kind, d.count, d.steps) for d in dispatches]


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "streaming"])
@pytest.mark.parametrize(
    ("rows", "accumulate", "loop", "expected"),
    [
        (12, 1, True, [("loop", 3, 3)]),
        (14, 1, True, [("loop", 3, 3), ("tail", 0, 1)]),
        (14, 2, True, [("loop", 2, 1), ("tail", 1, 1)]),
        (18, 2, True, [("loop", 4, 2), ("tail", 0, 1)]),
        (20, 2, True, [("loop", 5, 3)]),  # an incomplete last group of full batches belongs to the loop
        (3, 2, True, [("loop", 1, 1)]),  # the only batch is the regular one
    ],
)
def test_full_batches_loop_and_a_ragged_batch_ends_its_group(resident, rows, accumulate, loop, expected, monkeypatch):
    monkeypatch.setattr(source_module, "RESIDENT_BYTES", 2**20 if resident else 0)
    data = DataLoaderBuilder().batch_size(4).build({"x": np.arange(rows)})
    dispatches = taken(feeder_of(data, plan_of(accumulate, 8, loop)))
    assert kinds(dispatches) == expected


@pytest.mark.parametrize(
    ("resident", "accumulate", "expected"),
    [
        (True, 1, [("single", 1, 1)] * 3 + [("tail", 0, 1)]),
        (False, 1, [("tail", 0, 1)] * 4),
        (True, 2, [("parts", 2, 1), ("parts", 1, 1)]),
        (False, 2, [("parts", 2, 1), ("parts", 2, 1)]),
    ],
)
def test_without_a_loop_every_step_is_a_dispatch(resident, accumulate, expected, monkeypatch):
    monkeypatch.setattr(source_module, "RESIDENT_BYTES", 2**20 if resident else 0)
    data = DataLoaderBuilder().batch_size(4).build({"x": np.arange(14)})
    assert kinds(taken(feeder_of(data, plan_of(accumulate, 8, loop=False)))) == expected


def test_mixed_groups_become_parts_and_uniform_groups_loop():
    short, long = {"x": np.zeros((4, 5))}, {"x": np.zeros((4, 7))}
    batches = [short, short, short, long, long, long, long, long, short]
    dispatches = taken(feeder_of(batches, plan_of(2, 8)))
    assert kinds(dispatches) == [("loop", 2, 1), ("parts", 2, 1), ("loop", 4, 2), ("loop", 1, 1)]
    assert [feed.last["x"].shape for feed, is_tail in dispatches[1].feed if is_tail] == [(4, 5), (4, 7)]


def test_a_larger_batch_is_regular_for_its_shape():
    assert kinds(taken(feeder_of(rows_in_batches(2, 4, 4, 2), plan_of()))) == [
        ("loop", 1, 1),
        ("loop", 2, 2),
        ("loop", 1, 1),
    ]


def test_buffers_have_one_shape():
    """Another shape would compile another program."""
    dispatches = taken(feeder_of(rows_in_batches(*[4] * 7), plan_of(2, 5, limit=cuts([1, 2, 3]))))
    assert {d.feed.batches["x"].shape for d in dispatches} == {(10, 4, 2)}


def test_a_buffer_has_room_for_two_steps_at_least():
    dispatches = taken(feeder_of(rows_in_batches(4, 4), plan_of(buffer=1)))
    assert kinds(dispatches) == [("loop", 1, 1)] * 2
    assert dispatches[0].feed.batches["x"].shape == (2, 4, 2)


def test_buffers_of_larger_batches_stay_within_their_bytes(monkeypatch):
    monkeypatch.setattr(feed_module, "BUFFER_BYTES", 8 * rows_in_batches(4)[0]["x"].nbytes)
    batches = rows_in_batches(*[4] * 9) + rows_in_batches(*[4] * 9, width=4)
    dispatches = taken(feeder_of(batches, plan_of(buffer=8)))
    assert [(d.steps, d.feed.batches["x"].shape) for d in dispatches] == [
        (8, (8, 4, 2)),
        (1, (8, 4, 2)),
        (4, (4, 4, 4)),
        (4, (4, 4, 4)),
        (1, (4, 4, 4)),
    ]


def test_a_used_buffer_is_never_written_again():
    """A CPU device uses a NumPy array without a copy, so the next dispatch must not overwrite it."""
    batches = [{"x": np.full((4, 2), i, np.float32)} for i in range(6)]
    first, second, third = taken(feeder_of(batches, plan_of(buffer=2), SingleDevice()))
    assert [np.asarray(d.feed.batches["x"])[:, 0, 0].tolist() for d in (first, second, third)] == [
        [0, 1],
        [2, 3],
        [4, 5],
    ]


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "streaming"])
def test_64_bit_numbers_become_32_bit_numbers(resident, monkeypatch):
    monkeypatch.setattr(source_module, "RESIDENT_BYTES", 2**20 if resident else 0)
    arrays = {"x": np.linspace(0, 1, 14), "y": np.arange(14), "z": np.arange(14, dtype=np.uint8)}
    feeder = feeder_of(DataLoaderBuilder().batch_size(4).build(arrays), plan_of(), SingleDevice())
    for feed in (feeder.example(), *(d.feed for d in taken(feeder))):
        arrays = feed.data if resident else feed.batches if feed.last is None else feed.last
        assert {name: str(x.dtype) for name, x in arrays.items()} == {"x": "float32", "y": "int32", "z": "uint8"}


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "streaming"])
def test_feeds_are_committed_to_the_device_of_the_strategy(resident, monkeypatch):
    monkeypatch.setattr(source_module, "RESIDENT_BYTES", 2**20 if resident else 0)
    device = jax.devices()[3]
    loader = DataLoaderBuilder().batch_size(4).build({"x": np.arange(14)})
    feeder = feeder_of(loader, plan_of(), SingleDevice(device))
    placed = jax.tree.leaves([feeder.example(), *(d.feed for d in taken(feeder))])
    assert all(x.committed and x.devices() == {device} for x in placed)


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "streaming"])
def test_the_example_has_the_shapes_of_every_looped_feed(resident, monkeypatch):
    monkeypatch.setattr(source_module, "RESIDENT_BYTES", 2**20 if resident else 0)
    feeder = feeder_of(DataLoaderBuilder().batch_size(4).build({"x": np.arange(26)}), plan_of(2, 2))
    like = lambda feed: jax.tree.map(lambda x: (x.shape, x.dtype), feed)  # noqa: E731
    looped = [d.feed for d in taken(feeder, last=2) if d.kind == "loop"]
    assert len(looped) == 4
    assert all(like(feed) == like(feeder.example()) for feed in looped)


@pytest.mark.parametrize(("buffer", "accumulate", "room"), [(1, 1, 2), (1, 3, 6), (2, 1, 2), (5, 2, 10)])
def test_feeds_have_room_for_two_steps_or_more(buffer, accumulate, room):
    """With room for one step, XLA rounds logged values differently."""
    for data in (DataLoaderBuilder().batch_size(4).build({"x": np.arange(30)}), rows_in_batches(*[4] * 7)):
        feeder = feeder_of(data, plan_of(accumulate, buffer))
        feeds = [feeder.example(), *(d.feed for d in taken(feeder) if d.kind == "loop")]
        assert {feed.room for feed in feeds} == {room}


def test_a_buffer_is_filled_once_and_dispatched_in_parts():
    """A buffer per step would be placed and passed between threads for each step."""
    dispatches = taken(feeder_of(rows_in_batches(*[4] * 9), plan_of(2, 3, most=2)))
    assert kinds(dispatches) == [("loop", 4, 2), ("loop", 2, 1), ("loop", 3, 2)]
    assert [d.start for d in dispatches] == [0, None, 0]
    assert [d.ends_epoch for d in dispatches] == [False, False, True]
    assert dispatches[0].feed is dispatches[1].feed


def test_the_limit_receives_the_number_of_steps():
    for data in (rows_in_batches(*[4] * 6), DataLoaderBuilder().batch_size(4).build({"x": np.arange(24)})):
        feeder = feeder_of(data, plan_of(buffer=8, limit=lambda step: 3 - step % 3))
        assert [d.steps for d in taken(feeder, step=1, last=2)] == [2, 3, 1, 2, 3, 1]


@pytest.mark.parametrize(
    ("size", "steps"),
    [(1, 32), (2 * 2**20, 32), (16 * 2**20, 4), (32 * 2**20, 2), (33 * 2**20, 1), (2**40, 1), (0, 32)],
)
def test_the_default_buffer_fits_into_64_mib(size, steps):
    assert steps_for(size) == steps


def test_bytes_of_a_batch():
    assert bytes_of({"x": np.zeros((4, 3), np.float32), "y": np.zeros(4, np.int8)}) == 52


# -- shapes that change ------------------------------------------------------------------------------------------------


def test_more_than_eight_shapes_are_one_warning():
    warnings = []
    batches = [{"x": np.zeros((2, width))} for width in range(1, 13)]
    feeder = feeder_of(batches, plan_of(), warn=warnings.append)
    taken(feeder, last=2)
    (warning,) = warnings
    assert "more than 8 batch shapes" in warning
    assert "float64[2, 9]" in warning


def test_eight_shapes_are_no_warning():
    taken(feeder_of([{"x": np.zeros((2, width))} for width in range(1, 9)], plan_of(), warn=pytest.fail))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (
            {"x": np.zeros((4, 2), np.int32), "y": np.zeros(4)},
            r"changed their dtypes.*x: float32\[4, 2\].*x: int32\[4, 2\].*: 'x' was float32 and is int32$",
        ),
        (
            {"x": np.zeros((4, 2), np.float32)},
            r"changed their structure.*y: float64\[4\] to x: float32\[4, 2\]: 'y' is missing$",
        ),
        (
            {"x": np.zeros((4, 2), np.float32), "z": np.zeros(4)},
            r"changed their structure.*z: float64\[4\]: 'y' is missing, 'z' is new",
        ),
        ([np.zeros((4, 2), np.float32), np.zeros(4)], r"changed their structure.* to 0: float32\[4, 2\], 1: float64"),
    ],
    ids=["dtype", "missing", "renamed", "list"],
)
def test_a_changed_dtype_or_structure_is_an_error(second, message):
    first = {"x": np.zeros((4, 2), np.float32), "y": np.zeros(4)}
    with pytest.raises(LearnerError, match="the train batches " + message):
        taken(feeder_of([first, first, second], plan_of()))


# -- malformed batches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "code", "values"),
    [
        (None, "batch-empty-structure", ("train", "None")),
        ({}, "batch-empty-structure", ("{}", "np.zeros(1)")),
        ({"x": np.zeros((4, 2)), "y": np.zeros(3)}, "batch-axes-differ", ("'x'", "[4, 2]", "'y'", "[3]", "x[None]")),
        ({"x": np.zeros((4, 2)), "y": 3.0}, "batch-axes-differ", ("'x'", "[4, 2]", "'y'", "[]")),
        (5, "batch-axes-differ", ("[]",)),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0)}, "batch-without-rows", ("train", "0 rows")),
        (
            {"x": np.zeros(2), "name": np.array(["a", "b"])},
            "batch-dtype",
            ("train", "'name'", "<U1"),
        ),
        ({"x": np.array([None, {}], dtype=object)}, "batch-dtype", ("train", "'x'", "object")),
        ({"t": np.zeros(2, "datetime64[s]")}, "batch-dtype", ("train", "'t'", "datetime64[s]")),
        ({"r": np.zeros(2, [("a", int)])}, "batch-dtype", ("train", "'r'", "[('a', '<i8')]")),
        ({"x": np.zeros(2), "k": jax.random.split(jax.random.key(0))}, "batch-random-keys", ("k", "key_data")),
        ({"s": ["a", "b"]}, "batch-dtype", ("'s' of a train batch is a list of texts", "leave the field out")),
        ([np.zeros((1, 2)), ("a.png",)], "batch-dtype", ("'1' of a train batch is a list of texts", "collate_fn")),
    ],
    ids=["None", "{}", "axes", "0-d", "int", "no rows", "text", "object", "dates", "records", "keys", "list", "tuple"],
)
def test_a_malformed_batch_is_an_error_that_names_the_field(batch, code, values):
    with raises_code(code, *values):
        batch_arrays(batch, "train")


@dataclasses.dataclass
class Rows:
    x: np.ndarray


def test_a_dataclass_must_be_a_pytree():
    rows = Rows(np.zeros((4, 2)))
    for batch, text in ((rows, "a train batch holds a Rows"), ({"a": rows}, "'a' of a train batch holds a Rows")):
        with raises_code("batch-dataclass", text, "jax.tree_util.register_dataclass", "dict"):
            batch_arrays(batch, "train")
    with raises_code("batch-dataclass", "a train batch"):
        batch_arrays(stack([rows, rows]), "train")
    registered = jax.tree_util.register_dataclass(dataclasses.make_dataclass("Registered", ["x"]))
    assert batch_arrays(registered(rows.x), "train").x.shape == (4, 2)


def test_arrays_whose_values_would_change_are_refused():
    with raises_code("data-masked-values", "'x' has", "(2 of 5)"):
        batch_arrays({"x": np.ma.masked_less(np.arange(5), 2)}, "train")
    with raises_code("batch-byte-order", "'x'", ">f4", "x.astype('float32')", split="valid"):
        batch_arrays({"x": np.zeros(2, ">f4")}, "valid")


@pytest.mark.parametrize(
    "dtype", [np.bool_, np.int8, np.float16, np.float64, np.complex64, jax.numpy.bfloat16, jax.numpy.float8_e4m3fn]
)
def test_numbers_of_every_dtype_are_accepted(dtype):
    batch = batch_arrays({"x": np.zeros(3, dtype), "y": jax.numpy.zeros(3, jax.numpy.int32)}, "train")
    assert batch["x"].dtype == dtype
    assert isinstance(batch["y"], np.ndarray)


def test_a_malformed_later_batch_names_its_split():
    with raises_code("batch-without-rows", split="valid"):
        taken(feeder_of([*rows_in_batches(4), {"x": np.zeros((0, 2), np.float32)}], plan_of(), split="valid"))


# -- exhausted and failing loaders -------------------------------------------------------------------------------------


def test_a_loader_that_is_empty_in_a_later_epoch_is_an_error():
    epochs = iter([rows_in_batches(4), rows_in_batches(4), []])
    feeder = feeder_of(lambda: next(epochs), plan_of())
    dispatches = feeder.open(1, 0, 0, 3)
    assert [next(dispatches).epoch for _ in range(2)] == [1, 2]
    with raises_code("data-without-batches", "train", epoch=3):
        next(dispatches)


def test_an_exhausted_generator_is_an_error_in_epoch_2():
    dispatches = feeder_of((b for b in rows_in_batches(4, 4)), plan_of()).open(1, 0, 0, 2)
    assert next(dispatches).ends_epoch
    with raises_code("data-exhausted", "2"):
        next(dispatches)


def test_a_loader_that_became_shorter_than_the_position_is_an_error():
    with raises_code("resume-data-shorter", "at or before that one", start=2, epoch=1):
        taken(feeder_of(rows_in_batches(4, 4), plan_of(), split="train"), batch=2)


def failing_loader():
    yield from rows_in_batches(4, 4, 4)
    raise OSError("the cable was pulled")


def test_an_error_of_a_loader_is_raised_after_earlier_batches_with_its_traceback():
    dispatches = feeder_of(failing_loader, plan_of(buffer=2)).open(1, 0, 0, 1)
    assert next(dispatches).steps == 2
    with pytest.raises(OSError, match="the cable was pulled") as info:
        next(dispatches)
    assert "failing_loader" in [frame.name for frame in traceback.extract_tb(info.tb)]
    with pytest.raises(OSError, match="the cable was pulled"):  # the error is permanent
        next(dispatches)
    dispatches.close()


# -- the prefetching thread --------------------------------------------------------------------------------------------


def data_threads():
    return [thread for thread in threading.enumerate() if thread.name == "learner-data"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(data_threads())
    yield
    left = set(data_threads()) - before
    for thread in left:
        thread.join(WAIT)
    assert not {thread for thread in left if thread.is_alive()}


def test_the_prefetcher_keeps_the_order_and_stays_exhausted():
    ahead = Prefetcher(iter([[number] * (number % 4) for number in range(100)]))
    assert list(ahead) == [number for number in range(100) for _ in range(number % 4)]
    assert next(ahead, "end") == "end"
    assert next(ahead, "end") == "end"
    ahead.close()


def test_the_prefetcher_reads_in_another_thread():
    names = Prefetcher([threading.current_thread().name] for _ in range(2))
    assert set(names) == {"learner-data"}
    names.close()


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_prefetcher_reads_at_most_its_depth(depth):
    """`depth` lists are ready or in preparation."""
    given, reached, too_far = [0], threading.Event(), []

    def endless():
        for number in itertools.count():
            if number > given[0] + depth - 1:
                too_far.append((number, given[0]))
            if number == given[0] + depth - 1:
                reached.set()
            yield [number]

    ahead = Prefetcher(endless(), depth)
    for expected in range(20):
        assert reached.wait(WAIT)
        reached.clear()
        given[0] += 1  # before taking an item, as the thread may be faster than this one
        assert next(ahead) == expected
    ahead.close()
    assert not too_far


def test_the_host_holds_the_large_micro_batches_of_two_steps(monkeypatch):
    """One step is read while another one runs, whose micro-batches are released one by one."""
    monkeypatch.setattr("learner.training.feed.dispatches.BUFFER_BYTES", 1)
    accumulate, batch = 4, {"x": np.zeros((2**18, 1), np.float32)}  # 1 MiB, of which each micro-batch is a copy
    given, reached, reads = [0], threading.Event(), itertools.count(1)

    def loader():
        for number in reads:
            # One micro-batch more is read, to know the end of an epoch.
            if number == accumulate * (given[0] + 1) + 1:
                reached.set()
            yield batch

    dispatches = feeder_of(loader, plan_of(accumulate, loop=False)).open(1, 0, 0, 1)
    tracemalloc.start()
    try:
        for _ in range(5):
            given[0] += 1
            dispatch = next(dispatches)
            assert reached.wait(WAIT)
            reached.clear()
            assert tracemalloc.get_traced_memory()[1] < (2 * accumulate + 2.5) * 2**20
            collections.deque(dispatch.feed, maxlen=0)
            assert tracemalloc.get_traced_memory()[0] < (accumulate + 2.5) * 2**20
    finally:
        tracemalloc.stop()
        dispatches.close()


def test_closing_ends_the_thread_in_the_middle_of_an_endless_iterator_and_closes_it():
    closed = threading.Event()

    def endless():
        try:
            yield from ([number] for number in itertools.count())
        finally:
            closed.set()

    ahead = Prefetcher(endless())
    assert next(ahead) == 0
    ahead.close()
    assert closed.is_set()
    assert not ahead._thread.is_alive()


def test_an_error_of_the_data_keeps_nothing_alive():
    """Without a collection of cycles: the next run may need the memory of the device."""

    class Rows(list):
        pass

    def failing(refs):
        for number in range(3):
            rows = Rows([number])
            refs.append(weakref.ref(rows))
            yield rows
        raise ValueError("a damaged row")

    refs = []
    gc.disable()
    try:
        ahead = Prefetcher(failing(refs), depth=4)
        try:
            list(ahead)
        except ValueError:
            ahead.close()
        del ahead
        assert [ref() for ref in refs] == [None] * 3
    finally:
        gc.enable()


def test_closing_before_the_first_item_and_twice():
    ahead = Prefetcher([number] for number in itertools.count())
    ahead.close()
    ahead.close()
    assert not ahead._thread.is_alive()


def test_closing_a_stream_closes_the_users_generator():
    closed = threading.Event()

    def loader():
        try:
            while True:
                yield rows_in_batches(4)[0]
        finally:
            closed.set()

    taken(feeder_of(loader, plan_of()), last=None, most=3)
    assert closed.wait(WAIT)


def test_closing_waits_for_one_batch_rather_than_a_whole_buffer():
    """With a batch that takes seconds, an ended run would wait for all batches of a buffer."""
    reads, reached, released = [], threading.Event(), threading.Event()

    def loader():
        for number in range(64):
            reads.append(number)
            if number == 2:
                reached.set()
                assert released.wait(WAIT)
            yield rows_in_batches(4)[0]

    dispatches = feeder_of(loader, plan_of(buffer=32)).open(1, 0, 0, 1)
    assert reached.wait(WAIT)
    closing = threading.Thread(target=dispatches.close)
    closing.start()
    assert dispatches._closed.wait(WAIT)
    released.set()
    closing.join(WAIT)
    assert reads == [0, 1, 2]


def test_after_the_end_of_one_stream_another_can_be_opened():
    feeder = feeder_of(rows_in_batches(4, 4), plan_of())
    assert [len(taken(feeder)) for _ in range(3)] == [1, 1, 1]


class Tensor:
    """An array of another library, which gives its memory to NumPy, as PyTorch's do."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __array__(self, dtype=None, copy=None):
        return self.array


class Special(np.ndarray):
    pass


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", [np.asarray, Tensor, lambda array: array.view(Special)], ids=["array", "other", "own"])
def test_a_loader_may_reuse_its_array(accumulate, kind):
    def batches():
        array = np.zeros((2, 1), np.float32)
        for number in range(5):
            array[:] = number
            yield {"x": kind(array)}

    feeder = feeder_of(batches, plan_of(accumulate=accumulate))
    steps = read(taken(feeder), accumulate)[1]
    assert np.ravel([micro for step in steps for micro in step]).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_unshuffled_rows_are_not_copied_and_shuffled_rows_once_per_epoch():
    """Data without shuffling is on the device once."""
    loader = DataLoaderBuilder().batch_size(4)
    still = feeder_of(loader.build({"x": np.arange(14)}), plan_of(buffer=1), SingleDevice())
    mixed = feeder_of(loader.shuffle(seed=0).build({"x": np.arange(14)}), plan_of(buffer=1), SingleDevice())
    same = {id(d.feed.data["x"]) for d in taken(still, last=3)}
    assert len(same) == 1
    dispatches = taken(mixed, last=2)
    assert len({id(d.feed.data["x"]) for d in dispatches}) == 2
    for dispatch in dispatches:
        rows = np.asarray(dispatch.feed.data["x"]).tolist()
        assert rows != sorted(rows) == list(range(14))


# -- states of the data ------------------------------------------------------------------------------------------------


class Numbered:
    """An iterable whose iterators have the number of batches as their state."""

    def __init__(self, *sizes):
        self.sizes = sizes

    def __iter__(self):
        return NumberedIterator(self.sizes)


class NumberedIterator:
    def __init__(self, sizes):
        self.sizes, self.number = sizes, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.number == len(self.sizes):
            raise StopIteration
        self.number += 1
        return {"x": np.full(self.sizes[self.number - 1], self.number, np.int32)}

    def get_state(self):
        return self.number

    def set_state(self, state):
        self.number = state


@settings(max_examples=60, deadline=None)
@given(
    full=st.integers(1, 14),
    ragged=st.booleans(),
    accumulate=st.integers(1, 4),
    buffer=st.integers(1, 6),
    limits=limits,
    loop=st.booleans(),
    most=st.none() | st.integers(1, 6),
    data=st.data(),
)
def test_a_dispatch_has_the_state_of_the_data_after_its_last_batch(
    full, ragged, accumulate, buffer, limits, loop, most, data
):
    """The state does not depend on prefetching or on how buffers are split."""
    sizes = [4] * full + [3] * ragged

    def feeder():
        source = source_of(Numbered(*sizes), "train")
        first = batch_arrays(source.peek(1), "train")
        source.keep_state()
        return Feeder(source, Host(), plan_of(accumulate, buffer, loop, cuts(limits), most), first, pytest.fail)

    dispatches = taken(feeder(), last=2)
    ends = [sum(d.batches for d in dispatches[: i + 1]) for i in range(len(dispatches))]
    assert [d.data_state for d in dispatches] == [(end - 1) % len(sizes) + 1 for end in ends]
    assert all(len(d.states) == d.steps for d in dispatches)

    stop = data.draw(st.integers(0, len(ends) - 2), label="the last dispatch before the stop")
    epoch, batch = divmod(ends[stop], len(sizes))
    dispatches = feeder().open(epoch + 1, batch, 0, 2, state=dispatches[stop].data_state)
    tail = read(dispatches, accumulate)
    dispatches.close()
    given = [step[0][0] for steps in tail.values() for step in steps]
    first_of_steps = [1 + i for i in range(0, len(sizes), accumulate)]
    assert given == (first_of_steps * 2)[epoch * len(first_of_steps) + -(-batch // accumulate) :]


def test_each_part_of_a_buffer_has_the_state_after_it():
    source = source_of(Numbered(4, 4, 4, 4, 4, 4, 4), "train")
    first = batch_arrays(source.peek(1), "train")
    source.keep_state()
    dispatches = taken(Feeder(source, Host(), plan_of(2, 4, most=1), first, pytest.fail))
    assert [(d.start, d.data_state) for d in dispatches] == [(0, 2), (None, 4), (None, 6), (None, 7)]


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "streaming"])
def test_loaders_of_the_library_need_no_state(resident, monkeypatch):
    monkeypatch.setattr(source_module, "RESIDENT_BYTES", 2**20 if resident else 0)
    feeder = feeder_of(DataLoaderBuilder().batch_size(4).build({"x": np.arange(14)}), plan_of())
    assert [d.data_state for d in taken(feeder)] == [None] * 2


def test_skipped_batches_are_not_placed():
    placed, warnings = [], []

    class Counting(Host):
        def put(self, tree, axis=0, replicated=False, one_off=False):
            placed.append(tree["x"])
            return tree

    def generator():
        yield from ({"x": np.full((4, 1), number, np.int32)} for number in range(9))

    feeder = feeder_of(generator, plan_of(2, 2), Counting(), warnings.append)
    steps = read(taken(feeder, batch=6, step=3), 2)[1]
    assert [[micro[0] for micro in step] for step in steps] == [[[6], [7]], [[8]]]
    assert [np.unique(buffer[:count]).tolist() for buffer, count in zip(placed, (3,), strict=True)] == [[6, 7, 8]]
    assert len(warnings) == 1
    assert "6 batches of epoch 1 are read again and dropped" in warnings[0]


def test_a_state_without_further_batches_is_an_error():
    with raises_code("resume-data-shorter", start=2, epoch=1):
        list(feeder_of(Numbered(4, 4), plan_of()).open(1, 2, 0, 1, state=2))


# -- numbers beyond 32 bits --------------------------------------------------------------------------------------------

TOO_LARGE = 4294967196  # -100 as an int32
WRAPPED = [
    (np.int64, TOO_LARGE, "int32", "-100"),
    (np.int64, -(2**31) - 1, "int32", "2147483647"),
    (np.uint64, 2**32, "uint32", "0"),
]


def labelled(dtype, value, rows=6):
    return {"x": np.arange(rows, dtype=np.float32), "label": np.array([0] * (rows - 1) + [value], dtype)}


@pytest.mark.parametrize(("dtype", "value", "narrow", "wrapped"), WRAPPED)
@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "on the device"])
def test_integers_that_would_wrap_are_refused(dtype, value, narrow, wrapped, streams):
    arrays = labelled(dtype, value)
    data = DataLoaderBuilder().batch_size(2).build(arrays)
    if streams:
        data = list(data)
    with raises_code("batch-integer-too-large", "'label'", f"{value} ({np.dtype(dtype)})", f"{wrapped} in {narrow}"):
        taken(feeder_of(data, plan_of()))


def measured(value, rows=6):
    return {"x": np.arange(rows, dtype=np.float32), "t": np.array([0.0] * (rows - 1) + [value])}


@pytest.mark.parametrize("value", [1e300, -3.5e38])
@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "on the device"])
def test_floats_that_would_become_infinite_are_refused(value, streams):
    data = DataLoaderBuilder().batch_size(2).build(measured(value))
    with raises_code("batch-float-too-large", "'t'", f"{value} (float64)", "infinite in float32"):
        taken(feeder_of(list(data) if streams else data, plan_of()))


def test_the_first_batch_is_checked_before_it_is_converted():
    feeder = feeder_of([measured(1e300)], plan_of())
    feeder.example()  # a conversion would warn
    feeder.example_alone()
    with raises_code("batch-float-too-large"):
        taken(feeder)


@pytest.mark.parametrize(
    "value", [np.inf, -np.inf, np.nan, 3.4028235e38, float(np.finfo(np.float32).max) * (1 + 2**-26)]
)
def test_floats_are_accepted_if_only_the_data_is_infinite(value):
    dispatches = taken(feeder_of([measured(value)], plan_of(loop=False)))
    np.testing.assert_array_equal(dispatches[0].feed.last["t"][-1], np.float32(value))


def test_integers_that_fit_are_accepted_with_any_dtype():
    for dtype, value in ((np.int64, 2**31 - 1), (np.int64, -(2**31)), (np.uint64, 2**32 - 1), (np.uint32, 2**32 - 1)):
        arrays = labelled(dtype, value)
        dispatches = taken(feeder_of([arrays], plan_of(loop=False)))
        assert dispatches[0].feed.last["label"][-1] == value


def test_with_x64_all_numbers_fit():
    with jax.enable_x64(True):  # thread-local, and passed on to the prefetching thread
        dispatches = taken(feeder_of([labelled(np.int64, TOO_LARGE)], plan_of(loop=False)))
    assert dispatches[0].feed.last["label"][-1] == TOO_LARGE
    with jax.enable_x64(True):
        dispatches = taken(feeder_of([measured(1e300)], plan_of(loop=False)))
    assert dispatches[0].feed.last["t"][-1] == 1e300


def test_later_batches_and_tensors_are_checked():
    class Tensor:
        def __init__(self, array):
            self.array = array

        def __array__(self, dtype=None, copy=None):
            return self.array

    good, wrong = labelled(np.int64, 1), labelled(np.int64, TOO_LARGE)
    narrow = {name: x.astype(np.int32) if x.dtype == np.int64 else x for name, x in good.items()}
    for batches in ([good, wrong], [jax.tree.map(Tensor, good), jax.tree.map(Tensor, wrong)], [narrow, wrong]):
        feeder = feeder_of(batches, plan_of(loop=False))
        with raises_code("batch-integer-too-large", "4294967196"):
            taken(feeder)


def test_resident_arrays_are_checked_once(monkeypatch):
    seen = []
    for module in (feed_module, place_module):
        monkeypatch.setattr(module, "refuse_wrapped", lambda batch, split: seen.append(split))
    taken(feeder_of(DataLoaderBuilder().batch_size(2).build(labelled(np.int64, 1)), plan_of()), last=3)
    assert seen == ["train"]


class Claims:
    """Data whose `len` differs from the number of batches."""

    def __init__(self, claimed, *lengths):
        self.claimed, self.lengths, self.epochs = claimed, lengths, 0

    def __len__(self):
        return self.claimed

    def __iter__(self):
        self.epochs += 1
        return iter(rows_in_batches(*[4] * self.lengths[self.epochs - 1]))


@pytest.mark.parametrize(("lengths", "epoch", "count"), [((3, 2, 3), 2, 2), ((4, 4, 4), 1, 4), ((3, 3, 3), None, None)])
def test_a_wrong_length_is_warned_about_once(lengths, epoch, count):
    texts = []
    taken(feeder_of(Claims(3, *lengths), plan_of(), warn=texts.append), last=3)
    claims = [text for text in texts if "claims 3 batches" in text]
    assert [f"epoch {epoch} had {count}:" in text for text in claims] == [True] * (epoch is not None)


def test_a_limit_is_not_a_wrong_length():
    source = source_of(lambda: rows_in_batches(4, 4, 4), "valid")
    source.limit(10)
    first = batch_arrays(source.peek(1), "valid")
    assert taken(Feeder(source, Host(), plan_of(), first, pytest.fail))


def test_nonfinite_rows_are_found_in_each_process():
    """Shared data has common row numbers; with data per process, a process knows only its own rows."""
    half = ProcessShard(0, 2, 2)
    good, bad = np.ones((8, 1), np.float32), np.float32([[1], [np.inf], [1], [np.nan], [1], [1], [1], [1]])

    def found(data, share=half):
        source = source_of(data, "train", batch_size=4, share=share)
        first = batch_arrays(source.peek(1), "train")
        return Feeder(source, Host(), plan_of(), first, pytest.fail).bad_rows()

    assert found({"x": bad}) == found({"x": bad}, None) == "x (row 1, 3)"
    assert found({"x": good}) == ""
    assert found(PerProcess({"x": bad})) == "x (row 1, 3) of process 0"
    assert found(PerProcess({"x": good})) is None
    assert found([{"x": bad}]) is None


# -- several processes -------------------------------------------------------------------------------------------------


def test_shapes_are_compared_of_all_data_but_arrays_in_memory():
    x = np.zeros((8, 2), np.float32)
    loader = DataLoaderBuilder().batch_size(4)
    lists = DataLoaderBuilder(stack).batch_size(4).build([{"x": row} for row in x])
    data = {"arrays": loader.build({"x": x}), "own": PerProcess(loader.build({"x": x})), "items": lists}
    data["batches"] = [{"x": x}]
    uniform = {name: source_of(each, "train", share=ProcessShard(0, 2, 2)).is_uniform for name, each in data.items()}
    assert uniform == {"arrays": True, "own": False, "items": False, "batches": False}


def errors_of_own_data(*rows_of_each, widths=(3,) * 9, **sizes):
    """Return the error, or None, of each of several processes that dispatch two passes over batches of their own, and
    the number of batches. `widths`: the last axis of each batch but the first in each process.
    """
    members, _ = groups(len(rows_of_each))
    dispatched = [0] * len(rows_of_each)

    def run(index):
        share = ProcessShard(index, len(rows_of_each), len(rows_of_each))
        batches = [{"x": np.zeros((rows, widths[index] if i else 3))} for i, rows in enumerate(rows_of_each[index])]
        source = source_of(PerProcess(batches), "train", share=share)
        feeder = Feeder(source, Host(), plan_of(**sizes), source.peek(1), lambda text: None)
        feeder.compare_reads(members[index], ProcessRecords(members[index]))
        with contextlib.closing(feeder.open(1, 0, 0, 2)) as dispatches:
            for dispatch in dispatches:
                dispatched[index] += dispatch.batches

    return errors_of_all(len(rows_of_each), run), dispatched


@pytest.mark.parametrize("sizes", [{}, {"accumulate": 2}, {"loop": False}, {"accumulate": 2, "loop": False}], ids=str)
def test_processes_whose_own_batches_have_other_rows_end_before_the_last_dispatch(sizes):
    errors, dispatched = errors_of_own_data([4, 4, 2, 4, 3], [4, 4, 2, 4, 1], **sizes)
    assert {error.code for error in errors} == {"process-rows-differ"}
    text = "batch 5 in pass 1 of the train data has 3 rows in process 0, 1 row in process 1"
    assert all(text in str(error) for error in errors)
    assert max(dispatched) < 5


@pytest.mark.parametrize("sizes", [{}, {"accumulate": 2}, {"loop": False}, {"accumulate": 2, "loop": False}], ids=str)
def test_processes_whose_own_batches_have_other_widths_end_before_the_last_dispatch(sizes):
    errors, dispatched = errors_of_own_data([4] * 5, [4] * 5, widths=(3, 7), **sizes)
    assert {error.code for error in errors} == {"process-shapes-differ"}
    text = "batch 2 in pass 1 of the train data has x [4, 3] in process 0, x [4, 7] in process 1"
    assert all(text in str(error) for error in errors)
    assert max(dispatched) < 5


@pytest.mark.parametrize("sizes", [{}, {"accumulate": 2}, {"loop": False}, {"accumulate": 2, "loop": False}], ids=str)
def test_processes_whose_own_batches_have_equal_shapes_pass(sizes):
    assert errors_of_own_data([4, 4, 2, 4, 3], [4, 4, 2, 4, 3], **sizes) == ([None, None], [10, 10])
