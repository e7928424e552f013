"""Tests of mixtures of streams: the next row, ends of epochs, and positions."""

import importlib.util
import itertools
import json

import grain
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import Interrupter
from learner.data import DataLoaderBuilder, PackedStream, mix, stack, stream
from learner.data.sharding import ProcessShard
from learner.data.source import source_of
from tests.data.test_hugging_face import Stream
from tests.support.codes import raises_code
from tests.support.runs import T, X, build_line, model_bits, quiet


def item(value):
    return {"x": np.int32(value)}


class Rows:
    """An iterable without a state."""

    def __init__(self, first, count):
        self.first, self.count = first, count

    def __iter__(self):
        return map(item, range(self.first, self.first + self.count))


def generator():
    yield from Rows(100, 30)


def sources():
    return {"a": Rows(0, 12), "b": generator, "c": [item(value) for value in range(200, 207)]}


def mixture(**options):
    defaults = {"weights": {"a": 0.3, "b": 0.5, "c": 0.2}, "seed": 3, "source_field": "source"}
    return mix(**({"sources": sources()} | defaults | options)).batch(4)


def open_with_state(data, **options):
    source = source_of(data, "train", **options)
    source.peek(1)
    source.keep_state()
    return source


def with_states(source, epoch, start=0, state=None, warn=pytest.fail):
    batches = source.open(epoch, start, json.loads(json.dumps(state)), warn)
    return [(batch["x"].tolist(), batches.where()) for batch in batches]


def values(data):
    return [int(row["x"]) for row in data]


# -- which rows --------------------------------------------------------------------------------------------------------


def test_shares_and_order_of_sources():
    endless = {"a": lambda: map(item, range(10**9)), "b": lambda: map(item, range(-(10**9), 0))}
    rows = values(mix(endless, weights=[3, 1], size=2**16))
    of_a = [row for row in rows if row >= 0]
    assert of_a == list(range(3 * 2**14))  # shares are exact over a block of 2**16 draws
    assert [row for row in rows if row < 0] == list(range(-(10**9), -(10**9) + 2**14))
    assert 0.7 < np.mean(np.asarray(rows[:1000]) >= 0) < 0.8
    assert values(mix(endless, weights=[3, 1], size=9)) == rows[:9]
    assert values(mix(endless, weights=[3, 1], size=9, seed=1)) != rows[:9]


def test_a_stream_may_reuse_its_arrays():
    def reused():
        array = np.zeros(2, np.float32)
        for number in range(4):
            array[:] = number
            yield {"x": array, "pair": (array[:1], [array])}

    first, second = stream(reused).batch(2)
    assert first["x"].tolist() == [[0, 0], [1, 1]]
    assert second["pair"][0].tolist() == [[2], [3]]
    assert np.shape(second["pair"][1]) == (2, 1, 2)
    assert np.ravel(second["pair"][1]).tolist() == [2, 2, 3, 3]


def test_epoch_stops_with_the_first_exhausted_source():
    rows = values(mix({"a": Rows(0, 3), "b": Rows(10, 100)}))
    assert [row for row in rows if row < 10] == [0, 1, 2]
    assert [row for row in rows if row >= 10] == list(range(10, 10 + len(rows) - 3))


def test_exhausted_sources_are_dropped():
    rows = values(mix({"a": Rows(0, 3), "b": Rows(10, 9)}, exhausted="drop"))
    assert sorted(rows) == [0, 1, 2, *range(10, 19)]
    assert [row for row in rows if row >= 10] == list(range(10, 19))


def test_exhausted_sources_repeat():
    rows = values(mix({"a": Rows(0, 3), "b": Rows(10, 9)}, exhausted="repeat", size=30, weights=[2, 1]))
    of_a = [row for row in rows if row < 10]
    assert of_a == [number % 3 for number in range(len(of_a))]
    assert (len(rows), len(of_a) > 12) == (30, True)


def test_dataset_in_a_stream_mixture_is_shuffled():
    rows = values(mix({"a": [item(value) for value in range(5)], "b": generator}, [1, 0], exhausted="repeat", size=15))
    assert [sorted(rows[start : start + 5]) for start in (0, 5, 10)] == [list(range(5))] * 3
    assert rows[:5] != rows[5:10]


def test_epoch_with_a_size_continues_the_last_one():
    data = mixture(size=8, weights={"a": 0, "b": 1, "c": 0})
    source = source_of(data, "train")
    assert [batch["x"].tolist() for batch in source.open(1, warn=pytest.fail)] == [
        [100, 101, 102, 103],
        [104, 105, 106, 107],
    ]
    assert [batch["x"].tolist() for batch in source.open(2, warn=pytest.fail)] == [
        [108, 109, 110, 111],
        [112, 113, 114, 115],
    ]
    data.warn = list  # ignores the warning that the second iterator reads rows again
    one, two = iter(data), iter(data)
    assert next(one)["x"].tolist() == next(two)["x"].tolist() == [116, 117, 118, 119]


@pytest.mark.parametrize("size", [4, 8])
def test_epoch_may_take_the_last_rows_of_a_source(size):
    """The next epoch then begins the source again, as after any other end."""
    last, make = 8 // size, lambda: open_with_state(stream(Rows(0, 8), size=size).batch(4))
    source = make()
    read = [with_states(source, epoch) for epoch in range(1, 2 * last + 1)]
    assert [len(batches) for batches in read] == [size // 4] * len(read)
    assert [rows for batches in read for rows, _ in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2
    assert with_states(make(), last + 1, 0, read[last - 1][-1][1], list) == read[last]


# -- positions ---------------------------------------------------------------------------------------------------------

MODES = {
    "stop": {},
    "drop": {"exhausted": "drop"},
    "repeat": {"exhausted": "repeat", "size": 26},
    "size": {"size": 22},
}


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_every_state_leads_to_the_same_rows(mode):
    warned = []
    whole = open_with_state(mixture(**MODES[mode]))
    epochs = [with_states(whole, epoch) for epoch in (1, 2, 3)]
    for epoch, batches in enumerate(epochs, 1):
        for done in range(epoch == 1, len(batches)):
            state = batches[done - 1][1] if done else epochs[epoch - 2][-1][1]
            resumed = open_with_state(mixture(**MODES[mode]))
            assert with_states(resumed, epoch, done, state, warned.append) == batches[done:]
            if epoch < 3:
                assert with_states(resumed, epoch + 1) == epochs[epoch]
    assert {text.partition(")")[0] for text in warned} == {"the 'a' data (Rows", "the 'b' data (generator"}
    assert all("items of epoch" in text for text in warned)


class Turns:
    """Rows whose position, and number of passes, are a state of the iterable itself."""

    def __init__(self, count, first=0):
        self.count, self.first, self.next, self.turn = count, first, 0, 0

    def __iter__(self):
        while self.next < self.count:
            self.next += 1
            yield item(self.first + 100 * self.turn + self.next - 1)
        self.next, self.turn = 0, self.turn + 1

    def state_dict(self):
        return {"next": self.next, "turn": self.turn}

    def load_state_dict(self, state):
        self.next, self.turn = state["next"], state["turn"]


def of_turns(**options):
    return mix({"a": Turns(14), "b": Turns(9, 5000)}, weights={"a": 0.7, "b": 0.3}, **options).batch(4)


class Sequences(Turns):
    def __iter__(self):
        return ({"x": np.full(2, row["x"])} for row in super().__iter__())


TURNS = {
    "stream": lambda: stream(Turns(14)).batch(4),
    "stream, exactly in batches": lambda: stream(Turns(8)).batch(4),
    "size of the source": lambda: stream(Turns(8), size=8).batch(4),
    "size of half the source": lambda: stream(Turns(8), size=4).batch(4),
    "drop, size of the sources": lambda: of_turns(size=23, exhausted="drop"),
    "stop": of_turns,
    "drop": lambda: of_turns(exhausted="drop"),
    "stop, with a size": lambda: of_turns(size=10),
    "drop, with a size": lambda: of_turns(size=10, exhausted="drop"),
    "repeat": lambda: of_turns(size=10, exhausted="repeat"),
    "packed": lambda: stream(PackedStream(Sequences(14), length=5)).batch(2),
    "packed, cut": lambda: stream(PackedStream(Sequences(14), length=5, split=True)).batch(2),
}


@pytest.mark.parametrize("make", TURNS.values(), ids=TURNS)
def test_source_with_its_own_state_loses_no_rows(make):
    """Neither the batch that is read ahead nor the rows after the end of an epoch, in the run or after resuming."""
    whole = open_with_state(make())
    epochs = [with_states(whole, epoch) for epoch in (1, 2, 3, 4)]
    for epoch, batches in enumerate(epochs, 1):
        for done in range(epoch == 1, len(batches) + 1):
            state = batches[done - 1][1] if done else epochs[epoch - 2][-1][1]
            resumed = open_with_state(make())
            assert with_states(resumed, epoch, done, state) == batches[done:]
            for later in range(epoch + 1, 5):
                assert with_states(resumed, later) == epochs[later - 1]


@pytest.mark.parametrize("make", TURNS.values(), ids=TURNS)
def test_validation_after_resuming_begins_with_the_first_row(make):
    """It has no state, and opens a later epoch than that of the batch that was read ahead."""
    source = source_of(make(), "valid")
    source.peek(1)
    read = [batch["x"].tolist() for batch in source.open(3)]
    assert read == [batch["x"].tolist() for batch in make()]


def test_passes_of_a_source_with_its_own_state():
    whole = open_with_state(TURNS["stream"]())
    assert [[batch for batch, _ in with_states(whole, epoch)] for epoch in (1, 2)] == [
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13]],
        [[100, 101, 102, 103], [104, 105, 106, 107], [108, 109, 110, 111], [112, 113]],
    ]


@pytest.mark.parametrize("name", TURNS)
def test_overview_moves_no_source(tmp_path, name):
    def first_row(model, batch):
        return {"loss": (model["w"] * batch["x"].ravel()[0].astype(jnp.float32)).sum()}

    data = TURNS[name]()
    builder = quiet(tmp_path / "run").num_epochs(1)
    learner = builder.build({"w": jnp.zeros(1)}, optax.sgd, 0.1, train_step=first_row)
    learner.overview(data, compiled=False)
    assert [batch["x"].tolist() for batch in data] == [batch["x"].tolist() for batch in TURNS[name]()]


needs_datasets = pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="datasets is not installed")


def hugging_face():
    import datasets

    return datasets.Dataset.from_dict({"x": np.arange(30)}).to_iterable_dataset(num_shards=3)


class StreamOfRows(Stream):
    def __iter__(self):
        for batch in super().__iter__():
            yield {"x": batch["x"][0]}


StreamOfRows.__module__ = Stream.__module__
POSITIONED = {
    "the protocol of Hugging Face": StreamOfRows,
    "Grain": lambda: grain.MapDataset.range(30).map(lambda x: {"x": np.int64(x)}).to_iter_dataset(),
    "Hugging Face": hugging_face,
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=needs_datasets if kind == "Hugging Face" else ()) for kind in POSITIONED]
)
def test_stateful_source_is_restored(kind):
    def make():
        return mix({"a": POSITIONED[kind](), "b": [{"x": -1}, {"x": -2}]}, exhausted="repeat", size=18).batch(4)

    first = with_states(open_with_state(make()), 1)
    for done in range(1, len(first)):
        rows = [row for row, _ in with_states(open_with_state(make()), 1, done, first[done - 1][1])]
        assert rows == [row for row, _ in first[done:]]  # warnings would fail


def test_processes_read_parts_of_the_same_batches():
    whole = [batch["x"] for batch in source_of(mixture(size=20, exhausted="repeat"), "train").open(1)]
    parts = []
    for index in (0, 1):
        share = ProcessShard(index, 2, 4)
        source = source_of(mixture(size=20, exhausted="repeat"), "train", share=share)
        parts.append([batch["x"] for batch in source.open(1)])
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


# -- in a run ----------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_run_logs_the_rows_of_each_source(tmp_path):
    x = np.ones((40, 3), np.float32)
    rows = lambda: ({"x": row, "t": row[:1]} for row in x)  # noqa: E731
    data = mix({"a": rows, "b": lambda: rows()}, weights=[1, 3], size=2**4, exhausted="repeat")
    build_line(quiet(tmp_path / "run").with_batch_size(4).num_epochs(2)).fit(data, [{"x": x[:4], "t": x[:4, :1]}])
    log = (tmp_path / "run" / "experiment.log").read_text()
    counts = data.describe_state(iter_state(data, 16))
    assert f"train: epoch 1, step 4: {counts}" in log
    assert "train: epoch 2, step 8: 32 rows of the mixture: a " in log


def iter_state(data, count):
    iterator = iter(data)
    for _ in range(count):
        next(iterator)
    return iterator.get_state()


def test_texts():
    text = "mix({'a': Rows 0.3, 'b': generator 0.5, 'c': list(7 items) 0.2}, seed=3, size=9, exhausted='drop')"
    assert repr(mixture(size=9, exhausted="drop")) == text
    assert mixture().describe_state({"sources": {"a": {"total": 1}, "b": {"total": 3}, "c": {"total": 0}}}) == (
        "4 rows of the mixture: a 1 (25.00 %), b 3 (75.00 %), c 0 (0.00 %)"
    )


def test_length_of_an_epoch():
    length = lambda data: (source_of(data, "train").batches, source_of(data, "train").endless)  # noqa: E731
    assert length(mixture(size=10, exhausted="repeat")) == (3, False)
    assert length(mix(sources(), size=10, exhausted="repeat").batch(4, drop_last=True)) == (2, False)
    assert length(mixture(exhausted="repeat")) == (None, True)
    assert length(mixture(size=10)) == length(mixture()) == (None, False)


def test_fingerprint_contains_the_weights():
    facts = open_with_state(mixture(size=9)).fingerprint()
    assert facts["dataset"] == repr(mixture(size=9))
    assert (facts["batch_size"], facts["fields"]) == (4, {"source": "int32 []", "x": "int32 []"})
    assert open_with_state(mixture(weights=[1, 1, 1])).fingerprint()["dataset"] != facts["dataset"]


def test_batches():
    data = mix({"a": Rows(0, 5)})
    assert [batch["x"].tolist() for batch in data.batch(2, drop_last=True)] == [[0, 1], [2, 3]]
    assert list(data.batch(3, lambda rows: stack(rows)["x"].sum())) == [3, 7]


@pytest.mark.parametrize("items", [generator, Rows(100, 30)])
def test_stream_in_batches_resumes(items):
    whole = with_states(open_with_state(stream(items), batch_size=4), epoch=1)
    assert [rows for rows, _ in whole] == [list(range(at, min(at + 4, 130))) for at in range(100, 130, 4)]
    resumed = open_with_state(stream(items).batch(4))
    warned = []
    assert with_states(resumed, epoch=1, start=3, state=whole[2][1], warn=warned.append) == whole[3:]
    assert "12 items of epoch 1 are read again" in warned[0]
    assert [rows for rows, _ in with_states(resumed, epoch=2)] == [rows for rows, _ in whole]  # from the first row
    assert stream(items).describe_state(iter_state(stream(items), 12)) == "12 items of the stream"


def test_stream_of_batches_has_epochs_of_steps(tmp_path):
    """3 epochs of 4 steps are one epoch of its first 12 batches, also if the run resumes inside the second epoch."""

    def steps():
        for number in itertools.count():
            rows = slice(0, 8 if number % 2 else 16)
            yield {"x": X[rows] + np.float32(number / 99), "t": T[rows]}

    def fit(data, name, epochs, stop_at=None):
        interrupter = Interrupter()
        builder = quiet(tmp_path / name).num_epochs(epochs).with_file_checkpointer().resume().interrupter(interrupter)
        builder.every(steps=1, fn=lambda info, model: interrupter.stop("now") if info.step == stop_at else None)
        return build_line(builder).fit(data)

    whole = fit(lambda: itertools.islice(steps(), 12), "whole", epochs=1)
    for stop_at in (6, None):
        result = fit(stream(steps, size=4, batched=True), "stream", epochs=3, stop_at=stop_at)
        assert result.summary["steps"] == (stop_at or 12)
    assert len(result.history["train/Loss"]) == 3
    assert model_bits(result.model) == model_bits(whole.model)


def test_endless_stream_has_epochs_of_its_size():
    make = lambda: open_with_state(stream(lambda: map(item, itertools.count()), size=10).batch(4))  # noqa: E731
    data, warned = make(), []
    assert [rows for rows, _ in with_states(data, epoch=1)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    second = with_states(data, epoch=2)
    assert [rows for rows, _ in second] == [[10, 11, 12, 13], [14, 15, 16, 17], [18, 19]]
    assert with_states(make(), epoch=2, start=1, state=second[0][1], warn=warned.append) == second[1:]
    with raises_code("data-number-value"):
        stream(generator, size=0)


def test_wrong_streams():
    with raises_code("data-mixture-stream", "generator", "a function that returns one"):
        stream(generator())
    with raises_code("data-stream-indexed", "list", "DataLoaderBuilder()"):
        stream([item(1)])
    with raises_code("data-stream-indexed", "list", "stream(lambda: iter(items), size=..., batched=True)"):
        stream([{"x": X, "t": T}], size=4, batched=True)


# -- wrong input -------------------------------------------------------------------------------------------------------


class Shuffling(Rows):
    rng = None

    def __init__(self):
        super().__init__(0, 3)
        self.rng = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("change", "options", "code"),
    [
        ({"b": iter([])}, {}, "data-mixture-stream"),
        ({"b": DataLoaderBuilder().batch_size(2).build({"x": np.arange(4)})}, {}, "data-mixture-stream"),
        ({"b": Shuffling()}, {}, "data-mixture-stream-random"),
        ({}, {"exhausted": "cycle"}, "data-mixture-exhausted"),
        ({}, {"size": 0}, "data-number-value"),
        ({}, {"weights": [1]}, "data-mixture-weights-count"),
    ],
)
def test_wrong_input(change, options, code):
    with raises_code(code):
        mix(sources() | change, **options)


def test_exhausted_is_refused_for_datasets():
    with raises_code("data-mixture-exhausted"):
        mix([[1, 2]], exhausted="drop")


def test_same_stream_twice():
    rows = Rows(0, 3)
    with raises_code("data-mixture-source-twice"):
        mix({"a": rows, "b": rows})


@pytest.mark.parametrize(
    ("other", "code"),
    [
        (lambda: iter([{"x": np.float32(1)}]), "data-mixture-fields-differ"),
        (lambda: iter([{"x": np.int32(1), "source": 1}]), "data-mixture-source-field-taken"),
        (lambda: iter([]), "data-mixture-source-empty"),
    ],
)
def test_rows_with_other_fields(other, code):
    with raises_code(code):
        list(mix({"a": Rows(0, 9), "b": other}, source_field="source"))


def test_failing_source_is_named():
    def broken():
        yield item(1)
        raise OSError("the network is down")

    with pytest.raises(OSError, match="the network is down") as raised:
        list(mix({"good": Rows(0, 9), "bad": broken}))
    assert raised.value.__notes__ == ["while reading row 1 of the source 'bad' of a mixture"]


def test_stream_mixture_is_no_dataset():
    with raises_code("data-mixture-of-streams-loader"):
        DataLoaderBuilder().batch_size(4).build(mix(sources()))
    with raises_code("data-dataset-without-batches"):
        source_of(mix(sources()), "train")


def test_state_of_another_mixture():
    state = iter_state(mixture(), 1)
    with raises_code("data-mixture-state-differs"):
        iter(mix({"a": Rows(0, 3), "b": Rows(0, 3), "d": Rows(0, 3)})).set_state(state)


def test_malformed_state():
    with raises_code("data-mixture-state-malformed"):
        iter(mix({"a": Rows(0, 3), "b": Rows(0, 3)})).set_state({"next": 3})


@pytest.mark.parametrize("state", [{"next": 3}, [1], None])
def test_state_of_other_data_at_the_end_of_an_epoch(state):
    """Resuming there continues without it, as with any other data."""
    other = with_states(open_with_state(mix({"other": Rows(0, 3)}).batch(4)), 1)[-1][1]
    for data in (stream(Rows(0, 8)).batch(4), stream(PackedStream(Sequences(4), length=2)).batch(4)):
        warned = []
        resumed = open_with_state(data)
        assert len(with_states(resumed, 2, 0, other if state is None else state, warned.append)) > 0
        assert ["does not take back the state" in text for text in warned] == [True]


def test_inherited_methods_of_a_state_are_none(tmp_path):
    class Items(Rows):
        def state_dict(self):
            raise NotImplementedError

        load_state_dict = state_dict

    data = source_of(stream(Items(0, 6)).batch(4), "train")
    data.peek(1)
    data.keep_state()
    for epoch in (1, 2):
        assert [(batch["x"].tolist()) for batch in data.open(epoch, 0, None, pytest.fail)] == [[0, 1, 2, 3], [4, 5]]
