"""Tests of resuming within an epoch with data of all kinds: to the bit, at the documented cost, or with an error."""

import functools
import json

import grain
import numpy as np
import optax
import pytest

from learner import Interrupter
from learner.data import DataLoaderBuilder, mix, stack, stream, view
from learner.events import Listener, Message
from tests.support.codes import raises_code
from tests.support.runs import ROWS as ALL
from tests.support.runs import (
    LastRow,
    batches,
    build_line,
    line,
    line_step,
    noisy_step,
    progress_of,
    quiet,
    saved_steps,
    tree_of,
)
from tests.support.runs import arrays as all_arrays
from tests.support.stopped import CrashError, all_of, crashing_at, same, stopping_at

pytestmark = pytest.mark.usefixtures("compiled_once")

ROWS, SIZE, GROUP, STEPS = ALL, 4, 2, 3  # 6 batches, the last one of 2 rows, in groups of 2: 3 steps an epoch
ARRAYS = all_arrays(ROWS)
ITEMS = [{name: x[i] for name, x in ARRAYS.items()} for i in range(ROWS)]


class Shuffling:
    """Shuffle and add noise with one generator that continues from epoch to epoch. `made` counts batches."""

    def __init__(self, seed=5, size=SIZE):
        self.generator, self.size, self.made = np.random.default_rng(seed), size, 0

    def __iter__(self):
        return ShufflingIterator(self)


class ShufflingIterator:
    def __init__(self, whole):
        self.whole, self.next = whole, 0
        self.order = whole.generator.permutation(ROWS).astype(np.uint8)

    def __iter__(self):
        return self

    def __next__(self):
        rows = self.order[self.next : self.next + self.whole.size]
        if not len(rows):
            raise StopIteration
        self.next += self.whole.size
        self.whole.made += 1
        noise = self.whole.generator.normal(size=(len(rows), 3)).astype(np.float32)
        return {name: x[rows] for name, x in ARRAYS.items()} | {"x": ARRAYS["x"][rows] + noise}

    def get_state(self):
        return {"rng": self.whole.generator.bit_generator.state, "order": self.order, "at": (self.next, b"rows")}

    def set_state(self, state):
        self.whole.generator.bit_generator.state = state["rng"]
        self.order, (self.next, _) = state["order"], state["at"]


class LyingIterator(ShufflingIterator):
    """An iterator whose state is one batch ahead."""

    def get_state(self):
        state = super().get_state()
        return {**state, "at": (self.next + self.whole.size, b"rows")}


class Lying(Shuffling):
    def __iter__(self):
        return LyingIterator(self)


class Drawing(Shuffling):
    """Iterators without a state, so that only the generator determines an order. It draws again at the end of an epoch,
    as PyTorch's samplers do.
    """

    def __iter__(self):
        yield from ShufflingIterator(self)
        self.generator.permutation(ROWS)


def drawing():
    """Return a function that shuffles when it is called, by a variable in its closure."""
    numbers = np.random.default_rng(5)

    def batches():
        order = numbers.permutation(ROWS)
        return [{name: x[order[i : i + SIZE]] for name, x in ARRAYS.items()} for i in range(0, ROWS, SIZE)].__iter__()

    return batches


def draw(numbers):
    for _ in range(0, ROWS, SIZE):
        rows = numbers.permutation(ROWS)[:SIZE]
        yield {name: x[rows] for name, x in ARRAYS.items()}


class Method:
    def __init__(self):
        self.numbers = np.random.default_rng(5)

    def batches(self):
        return draw(self.numbers)


class Forgetful(Drawing):
    """Data without a position and without a visible generator."""

    def __init__(self):
        self.hidden, self.size, self.made = [[np.random.default_rng(5)]], SIZE, 0

    @property
    def generator(self):
        return self.hidden[0][0]


class Generator:
    """A stand-in for `torch.Generator`."""

    def __init__(self, seed):
        self.manual_seed(seed)

    def manual_seed(self, seed):
        self.numbers = np.random.RandomState(seed)

    def get_state(self):
        return self.numbers.get_state()[1:3]

    def set_state(self, state):
        self.numbers.set_state(("MT19937", *state))


class RandomSampler:
    def __init__(self, generator):
        self.generator = generator

    def __iter__(self):
        yield from self.generator.numbers.permutation(ROWS)
        self.generator.numbers.permutation(ROWS)


class SequentialSampler:
    pass


class TorchShuffled:
    """A stand-in for PyTorch's `DataLoader(shuffle=True, generator=generator)`, which draws a seed for its workers
    first.
    """

    def __init__(self):
        self.generator = Generator(5)
        self.sampler = RandomSampler(self.generator)

    def __iter__(self):
        self.generator.numbers.random()
        return self.batches()

    def batches(self):
        rows, sampler = [], iter(self.sampler)
        for row in sampler:
            rows.append(row)
            if len(rows) == SIZE:
                yield {name: x[rows] for name, x in ARRAYS.items()}
                rows = []
        yield {name: x[rows] for name, x in ARRAYS.items()}


class DistributedSampler:
    """A sampler whose order is a function of the epoch, which `set_epoch` sets."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch


class TorchTold:
    """A stand-in for PyTorch's `DataLoader` with such a sampler."""

    def __init__(self):
        self.sampler = DistributedSampler()

    def __iter__(self):
        order = np.random.default_rng([5, self.sampler.epoch]).permutation(ROWS)
        for first in range(0, ROWS, SIZE):
            yield {name: x[order[first : first + SIZE]] for name, x in ARRAYS.items()}


class TorchLike:
    """A stand-in for PyTorch's `DataLoader` with a fixed order: it has a length, and iterators without a state."""

    def __init__(self, seed=5):
        self.order, self.made, self.sampler = np.random.default_rng(seed).permutation(ROWS), 0, SequentialSampler()

    def __len__(self):
        return -(-ROWS // SIZE)

    def __iter__(self):
        for first in range(0, ROWS, SIZE):
            self.made += 1
            yield {name: x[self.order[first : first + SIZE]] for name, x in ARRAYS.items()}


class Noise(grain.transforms.RandomMap):
    def random_map(self, element, rng):
        return {**element, "x": element["x"] + rng.normal(size=3).astype(np.float32)}


def grain_map():
    return grain.MapDataset.source(ITEMS).seed(3).shuffle().random_map(Noise()).batch(SIZE)


def grain_iter():
    few = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)
    items = grain.MapDataset.source(ITEMS).seed(3).shuffle().to_iter_dataset(few)
    return items.random_map(Noise()).batch(SIZE)


def grain_loader():
    sampler = grain.samplers.IndexSampler(ROWS, grain.sharding.NoSharding(), shuffle=True, num_epochs=1, seed=1)
    return grain.DataLoader(
        data_source=ITEMS, sampler=sampler, operations=[Noise(), grain.transforms.Batch(SIZE)], worker_count=0
    )


def jittered(item, rng):
    return {**item, "x": item["x"] + rng.normal(size=3).astype(np.float32)}


def augmented():
    return DataLoaderBuilder().batch_size(SIZE).shuffle(1).build(view(ITEMS).augment(jittered))


def mixture():
    """Return items of three sources, of which one repeats in each epoch, augmented before and after mixing."""
    sources = {"a": view(ITEMS[:3]).augment(jittered), "b": view(ITEMS[3:13]), "c": ITEMS[13:]}
    mixed = mix(sources, weights={"a": 2, "b": 1, "c": 3}, size=ROWS, seed=4)
    return DataLoaderBuilder().batch_size(SIZE).shuffle(1).build(mixed.augment(jittered))


def resident_mixture(batcher=None, weights=(2, 1)):
    """Return resident arrays of 14 rows, of which an epoch repeats some."""
    sources = [{name: x[:5] for name, x in ARRAYS.items()}, {name: x[5:14] for name, x in ARRAYS.items()}]
    return DataLoaderBuilder(batcher).batch_size(SIZE).shuffle(1).build(mix(sources, weights, size=ROWS, seed=4))


def mixture_of_streams():
    """Return a mixture whose second epoch starts where the first one ended, in the middle of both sources."""
    streams = {"a": lambda: iter(ITEMS), "b": view(ITEMS[:9])}
    return mix(streams, weights=[1, 2], size=ROWS, exhausted="repeat").batch(SIZE)


class Walking:
    """Items in an order that turns from pass to pass, with a state of the iterable rather than of its iterators."""

    def __init__(self):
        self.state = {"next": 0, "turn": 0}

    def __iter__(self):
        while self.state["next"] < ROWS:
            self.state["next"] += 1
            yield ITEMS[(5 * self.state["turn"] + self.state["next"]) % ROWS]
        self.state = {"next": 0, "turn": self.state["turn"] + 1}

    def state_dict(self):
        return dict(self.state)

    def load_state_dict(self, state):
        self.state = dict(state)


KINDS = {
    "augmented": augmented,
    "mixture": mixture,
    "mixture of arrays": resident_mixture,
    "mixture of streams": mixture_of_streams,
    "stream with a state": lambda: stream(Walking()).batch(SIZE),
    "own": Shuffling,
    "function": lambda: Shuffling().__iter__,
    "Grain's MapDataset": grain_map,
    "Grain's IterDataset": grain_iter,
    "Grain's DataLoader": grain_loader,
    "PyTorch's": TorchLike,
    "generator function": lambda: TorchLike().__iter__,
    "random generator": Drawing,
    "function's random generator": drawing,
    "function's argument": lambda: functools.partial(draw, np.random.default_rng(5)),
    "method's random generator": lambda: Method().batches,
    "PyTorch's random generator": TorchShuffled,
    "PyTorch's set_epoch": TorchTold,
}
STATELESS = ("PyTorch's", "generator function", "PyTorch's set_epoch")
LOADERS = ("augmented", "mixture", "mixture of arrays")
OF_FUNCTIONS = ("function's random generator", "function's argument", "method's random generator")
SKIPS = (*STATELESS, *OF_FUNCTIONS, "random generator", "PyTorch's random generator")


def build(directory):
    return quiet(directory).num_epochs(3).grads_accumulation(GROUP).metrics(LastRow()).with_file_checkpointer()


def fit(builder, data):
    optimizer = lambda lr: optax.sgd(lr, momentum=0.9)  # noqa: E731
    return builder.build(line(), optimizer, 0.05, train_step=noisy_step, valid_step=line_step).fit(data)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, compiled_once):
    """Return the results of uninterrupted runs over each kind of data."""
    results = {}

    def of(kind):
        if kind not in results:
            directory = tmp_path_factory.mktemp("whole") / "run"
            results[kind] = all_of(directory, fit(build(directory), KINDS[kind]()))
        return results[kind]

    return of


def warnings_of(directory):
    return [line for line in (directory / "experiment.log").read_text().splitlines() if "WARNING" in line]


def some(kinds, chosen):
    """Return each kind with a step of the first epoch and one of the others; by default a few of them."""
    pairs = {(kind, step) for n, kind in enumerate(kinds) for step in (1 + n % STEPS, 1 + STEPS + n % (2 * STEPS - 1))}
    pairs = sorted(pairs | chosen)
    return [pair if pair in chosen else pytest.param(*pair, marks=pytest.mark.full) for pair in pairs]


# Within the second epoch. By default a loader of this package; the test of other data resumes a foreign one with a
# state, and the test after a crash resumes a mixture of arrays.
CHOSEN = {("function's argument", 3), ("mixture of streams", 5), ("stream with a state", 3)}


@pytest.mark.parametrize(("kind", "step"), some(KINDS, CHOSEN))
def test_resume_iterable_source(tmp_path, whole, kind, step):
    directory = tmp_path / "run"
    stopped = fit(stopping_at(build(directory), step), KINDS[kind]())
    assert (stopped.summary["steps"], saved_steps(directory)[-1]) == (step, step)
    state = progress_of(directory, step)["data"]
    assert (state is None or state.keys() == {"first batch"}) == (kind in (*STATELESS, *LOADERS))
    same(all_of(directory, fit(build(directory).resume(), KINDS[kind]())), whole(kind))
    inside = step % STEPS * GROUP
    warned = warnings_of(directory)
    assert len(warned) == (kind == "mixture of streams" or (kind in SKIPS and inside > 0))
    if kind == "mixture of streams":  # the rows of its function; those of its dataset are covered otherwise
        assert "the 'a' data (list_iterator)" in warned[0]
        return
    assert all(f"{inside} batches of epoch {1 + step // STEPS} are read again and dropped" in text for text in warned)


@pytest.mark.full
@pytest.mark.parametrize("kind", [pytest.param("mixture", marks=pytest.mark.full), "mixture of arrays"])
def test_resume_mixture_after_crash(tmp_path, whole, kind):
    """In the middle of the second epoch, with logs that are ahead of the newest checkpoint."""
    directory = tmp_path / "run"
    saving = lambda: build(directory).with_file_checkpointer(every_steps=2)  # noqa: E731
    with pytest.raises(CrashError):
        fit(crashing_at(saving(), 5), KINDS[kind]())
    assert saved_steps(directory)[-1] == 4
    resumed, expected = all_of(directory, fit(saving().resume(), KINDS[kind]())), whole(kind)
    for part in ("model", "history", "logs", "state"):
        assert resumed[part] == expected[part], part


@pytest.mark.full
def test_resume_mixture_of_other_weights(tmp_path):
    """Positions within the epoch then have another meaning."""
    fit(stopping_at(build(tmp_path / "run"), 5), resident_mixture())
    with raises_code("resume-differs", "weights=[0.571428571, 0.428571429]"):
        fit(build(tmp_path / "run").resume(), resident_mixture(weights=(2, 1.5)))


@pytest.mark.full
def test_mixture_on_device_trains_like_streamed_mixture(tmp_path, whole):
    directory = tmp_path / "run"
    trained = all_of(directory, fit(build(directory), resident_mixture(stack)))
    for part in ("model", "history", "state"):
        assert trained[part] == whole("mixture of arrays")[part], part


@pytest.mark.full
def test_stopped_again_and_again(tmp_path, whole):
    """Once before anything was trained: the position is still the restored one."""
    directory, stopped = tmp_path / "run", Interrupter()
    fit(stopping_at(build(directory), 4), Shuffling())
    stopped.stop("at once")
    assert fit(build(directory).resume().interrupter(stopped), Shuffling()).summary["steps"] == 4
    fit(stopping_at(build(directory).resume(), 5), Shuffling())
    same(all_of(directory, fit(build(directory).resume(), Shuffling())), whole("own"))


@pytest.mark.full
@pytest.mark.parametrize(
    "kind",
    [
        "own",
        "mixture of arrays",
        pytest.param("mixture", marks=pytest.mark.full),
        pytest.param("random generator", marks=pytest.mark.full),
        pytest.param("PyTorch's random generator", marks=pytest.mark.full),
        pytest.param("PyTorch's set_epoch", marks=pytest.mark.full),
    ],
)
def test_epochs_differ_in_order(whole, kind):
    """Otherwise the comparisons above would prove nothing about state that continues between epochs."""
    assert len({value for *_, value in whole(kind)["history"]["train/Last Row"]}) == 3


@pytest.mark.full
def test_unsaved_order_warns_once(tmp_path):
    fit(stopping_at(build(tmp_path / "run"), STEPS), Forgetful())
    fit(build(tmp_path / "run").resume(), Forgetful())
    (text,) = warnings_of(tmp_path / "run")
    assert "the train data (Forgetful) may have another order in epoch 2 than without the interruption" in text


class Counting:
    """Data whose order depends on the number of reads."""

    reads = 0

    def __iter__(self):
        self.reads += 1
        yield from ShufflingIterator(Shuffling(self.reads))


class InPlace(Shuffling):
    """Data whose visible generator shuffles rows that are already shuffled."""

    def __init__(self):
        super().__init__()
        self.order = np.arange(ROWS)

    def __iter__(self):
        self.generator.shuffle(self.order)
        for first in range(0, ROWS, SIZE):
            yield {name: x[self.order[first : first + SIZE]] for name, x in ARRAYS.items()}


OTHER = "with another batch than before the interruption"


@pytest.mark.full
def test_data_that_counts_its_reads_resumes_within_the_first_epoch(tmp_path):
    expected = all_of(tmp_path / "whole", fit(build(tmp_path / "whole"), Counting()))
    fit(stopping_at(build(tmp_path / "run"), 2), Counting())
    same(all_of(tmp_path / "run", fit(build(tmp_path / "run").resume(), Counting())), expected)
    (text,) = warnings_of(tmp_path / "run")
    assert "4 batches of epoch 1 are read again" in text


@pytest.mark.full
@pytest.mark.parametrize(
    "data", [Counting, *(pytest.param(data, marks=pytest.mark.full) for data in (InPlace, Forgetful))]
)
def test_other_batches_within_an_epoch_are_noticed(tmp_path, data):
    fit(stopping_at(build(tmp_path), 2 * STEPS + 1), data())
    fit(build(tmp_path).resume(), data())
    texts = warnings_of(tmp_path)
    assert [OTHER in text for text in texts] == [False, True]
    assert "begins epoch 3" in texts[1]


@pytest.mark.full
def test_equal_batches_within_an_epoch_do_not_warn(tmp_path):
    fit(stopping_at(build(tmp_path), STEPS + 1), Drawing())
    fit(build(tmp_path).resume(), Drawing())
    assert [OTHER in text for text in warnings_of(tmp_path)] == [False]


@pytest.mark.full
@pytest.mark.parametrize(("data", "step"), [(Lying, 4), (Forgetful, 4), (Forgetful, 3)])
def test_wrong_or_lost_data_state_is_detected(tmp_path, whole, data, step):
    directory = tmp_path / "run"
    fit(stopping_at(build(directory), step), data())
    resumed = all_of(directory, fit(build(directory).resume(), data()))
    assert resumed["model"] != whole("own")["model"]
    assert resumed["history"] != whole("own")["history"]


@pytest.mark.full
def test_wrong_data_state_has_no_effect_before_resuming(tmp_path, whole):
    trained = all_of(tmp_path / "run", fit(build(tmp_path / "run"), Lying()))
    assert trained["model"] == whole("own")["model"]


def test_augmented_items_differ_from_epoch_to_epoch():
    """Otherwise the comparisons above would prove nothing about augmentation."""
    epochs = [np.concatenate([batch["x"] for batch in augmented().epoch(epoch)]) for epoch in (1, 2)]
    assert not np.isin(epochs[0], epochs[1]).any()


# -- what it costs -----------------------------------------------------------------------------------------------------

MANY, READ, STOP = 60, [], 50  # batches, the rows that were read, the step after which the run stops


class Counted:
    """A sequence that records which rows are read."""

    def __len__(self):
        return MANY * SIZE

    def __getitem__(self, index):
        READ.append(index)
        return ITEMS[index % ROWS]

    def __repr__(self):
        return "the counted rows"


def counted_grain_loader():
    one = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)
    sampler = grain.samplers.IndexSampler(MANY * SIZE, grain.sharding.NoSharding(), num_epochs=1)
    return grain.DataLoader(
        data_source=Counted(), sampler=sampler, operations=[grain.transforms.Batch(SIZE)], read_options=one
    )


def counted_grain_dataset():
    few = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    return grain.MapDataset.source(Counted()).batch(SIZE).to_iter_dataset(few)


@pytest.mark.full
@pytest.mark.parametrize(
    ("make", "ahead", "compared"),
    [
        (lambda: DataLoaderBuilder().batch_size(SIZE).build(Counted()), 2, 6),  # three items are read twice
        pytest.param(counted_grain_dataset, 2, 0, marks=pytest.mark.full),
        pytest.param(counted_grain_loader, 1, 0, marks=pytest.mark.full),
    ],
    ids=["ours", "Grain's dataset", "Grain's loader"],
)
def test_trained_batches_are_not_read_again(tmp_path, make, ahead, compared):
    builder = lambda: quiet(tmp_path / "run").with_file_checkpointer()  # noqa: E731
    build_line(stopping_at(builder(), STOP)).fit(make())
    READ.clear()
    assert build_line(builder().resume()).fit(make()).summary["steps"] == MANY
    peeked = (1 + ahead) * SIZE + compared
    assert len(READ) <= (MANY - STOP) * SIZE + peeked + SIZE
    assert sorted(set(READ))[-(MANY - STOP) * SIZE :] == list(range(STOP * SIZE, MANY * SIZE))
    assert warnings_of(tmp_path / "run") == []


class Heard(Listener):
    def __init__(self):
        self.texts = []

    def on_event(self, event):
        if isinstance(event, Message):
            self.texts.append(event.text)


@pytest.mark.full
def test_skipped_batches_are_reported_once_to_every_listener(tmp_path):
    fit(stopping_at(build(tmp_path / "run"), 2), TorchLike())
    data, listener = TorchLike(), Heard()
    fit(build(tmp_path / "run").renderer(listener).resume(), data)
    assert data.made == 3 * len(data)  # each epoch is read from its start
    (text,) = listener.texts
    assert "(TorchLike) cannot be put back" in text
    assert "get_state and set_state" in text
    (line,) = warnings_of(tmp_path / "run")
    assert text in line


@pytest.mark.full
def test_the_state_of_validation_data_is_not_read(tmp_path, monkeypatch):
    class Valid(Shuffling):
        def __iter__(self):
            return ValidIterator(self)

    class ValidIterator(ShufflingIterator):
        def get_state(self):
            raise AssertionError("asked for the state")

    build_line(build(tmp_path / "run")).fit(TorchLike(), Valid())


@pytest.mark.full
def test_state_of_data_is_not_read_without_saves(tmp_path, monkeypatch):
    monkeypatch.setattr(ShufflingIterator, "get_state", lambda self: pytest.fail("asked for the state"))
    fit(build(tmp_path / "run").with_file_checkpointer(None), Shuffling())


# -- what is refused ---------------------------------------------------------------------------------------------------


def endless():
    while True:
        yield from batches()


class Counter:
    """A one-shot iterator that can be restored."""

    def __init__(self):
        self.number = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.number += 1
        return batches()[self.number % 5]

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]


@pytest.mark.full
def test_a_generator_trains_and_refuses_to_resume(tmp_path):
    builder = lambda steps: quiet(tmp_path / "run").num_steps(steps).with_file_checkpointer()  # noqa: E731
    build_line(builder(7)).fit(endless())
    before = tree_of(tmp_path)
    with raises_code("resume-data-not-repeatable", start=7, epoch=1):
        build_line(builder(9).resume()).fit(endless())
    assert tree_of(tmp_path) == before


@pytest.mark.full
def test_a_one_shot_iterator_with_a_state_resumes(tmp_path):
    builder = lambda name, steps: quiet(tmp_path / name).num_steps(steps).metrics(LastRow()).with_file_checkpointer()  # noqa: E731
    build_line(builder("run", 7)).fit(Counter())
    assert progress_of(tmp_path / "run", 7)["data"] == {"number": 7}
    resumed = all_of(tmp_path / "run", build_line(builder("run", 16).resume()).fit(Counter()))
    same(resumed, all_of(tmp_path / "whole", build_line(builder("whole", 16)).fit(Counter())))


def test_a_state_that_cannot_be_stored_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(ShufflingIterator, "get_state", lambda self: {"rng": self.whole.generator})
    with raises_code("data-state-not-storable", split="train"):
        fit(build(tmp_path / "run"), Shuffling())
    assert not (tmp_path / "run").exists()


class Shorter(Shuffling):
    """Two batches without a length."""

    def __iter__(self):
        iterator = ShufflingIterator(self)
        iterator.set_state = lambda state: setattr(iterator, "next", ROWS)
        return iterator


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "now", "code"),
    [
        (Shuffling, Shorter, "resume-data-shorter"),
        pytest.param(
            lambda: lambda: iter(batches()),
            lambda: lambda: iter(batches()[:3]),
            "resume-data-shorter",
            marks=pytest.mark.full,
        ),
        pytest.param(Shuffling, grain_iter, "resume-data-state-refused", marks=pytest.mark.full),
    ],
    ids=["by a state", "by skipping", "another kind"],
)
def test_other_data_is_refused_and_the_run_can_still_resume(tmp_path, whole, before, now, code):
    directory = tmp_path / "run"
    fit(stopping_at(build(directory), 2), before())
    saved = json.dumps(progress_of(directory, 2))
    with raises_code(code):
        fit(build(directory).resume(), now())
    assert (saved_steps(directory), json.dumps(progress_of(directory, 2))) == ([2], saved)
    result = fit(build(directory).resume(), before())
    if before is Shuffling:
        same(all_of(directory, result), whole("own"))


@pytest.mark.full
def test_other_data_from_the_end_of_an_epoch_is_a_warning(tmp_path):
    directory = tmp_path / "run"
    fit(stopping_at(build(directory), STEPS), grain_iter())
    assert fit(build(directory).resume(), Shuffling()).summary["steps"] == 3 * STEPS
    (line,) = warnings_of(directory)
    assert "does not take back the state that it had at the end of epoch 1" in line
