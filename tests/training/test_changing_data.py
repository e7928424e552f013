"""Tests of hooks that change the data at the end of an epoch, also across interruptions."""

import os
import warnings

import numpy as np
import optax
import pytest

from learner import Interrupter, LearnerWarning
from learner.data import DataLoaderBuilder
from learner.loggers import MemoryLogger
from learner.metrics import FieldMean
from tests.support.codes import raises_code
from tests.support.runs import X, line, line_predictions, quiet
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("compiled_once")

EPOCHS = 5


class Items:
    """A dataset of rows with the target `value`."""

    value = 0.0

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return {"x": X[index], "t": np.full(1, self.value, np.float32)}


class Rows(Items):
    """The dataset with a state."""

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Pool(Rows):
    """The rows as an iterable of batches. It records the value at the start of each epoch."""

    def __init__(self):
        self.read = []

    def __iter__(self):
        self.read.append(self.value)
        for begin in range(0, 16, 4):
            items = [self[row] for row in range(begin, begin + 4)]
            yield {name: np.stack([item[name] for item in items]) for name in ("x", "t")}


KINDS = pytest.mark.parametrize("kind", [Pool, Rows])


def data_of(rows):
    """Return what `fit` reads."""
    return rows if isinstance(rows, Pool) else DataLoaderBuilder().batch_size(4).build(rows)


def step(model, batch):
    predictions = line_predictions(model, batch["x"])
    return {"loss": ((predictions - batch["t"]) ** 2).mean(), "target": batch["t"].mean(), "predictions": predictions}


def counting_builder(directory, rows, **options):
    def count(info, model):
        rows.value += 1.0

    builder = quiet(directory, **options).metric_train(FieldMean("target")).num_epochs(EPOCHS)
    return builder.on_epoch_end(count)


def build(builder):
    return builder.build(line(), optax.sgd, 0.05, train_step=step, valid_step=step)


@pytest.mark.full
@pytest.mark.parametrize("steps", some([None, 1, 3], (None, 1)))
@KINDS
def test_an_epoch_reads_the_data_that_earlier_hooks_changed(tmp_path, steps, kind):
    rows = kind()
    builder = counting_builder(tmp_path, rows)
    if steps is not None:
        builder.steps_per_dispatch(steps)
    assert build(builder).fit(data_of(rows)).history["train/target"] == [float(epoch) for epoch in range(EPOCHS)]


@pytest.mark.full
@KINDS
@pytest.mark.parametrize("at_epoch", some([1, 3], (3,)))
def test_a_run_stopped_after_its_hooks_resumes_with_changed_data(tmp_path, at_epoch, kind):
    interrupter, rows = Interrupter(), kind()

    def stop(info, model):
        if info.epoch == at_epoch:
            interrupter.stop("enough")

    builder = counting_builder(tmp_path / "run", rows, saves=True).on_epoch_end(stop).interrupter(interrupter)
    build(builder).fit(data_of(rows))
    again = kind()
    history = build(counting_builder(tmp_path / "run", again, saves=True).resume()).fit(data_of(again)).history
    assert history["train/target"] == [float(epoch) for epoch in range(EPOCHS)]


def test_a_dataset_has_its_state_inside_an_epoch(tmp_path):
    """Step 10 is the second of four in epoch 3, whose rows have the target 2."""
    build(counting_builder(tmp_path / "run", rows := Rows(), saves=True).num_steps(10)).fit(data_of(rows))
    again = Rows()
    result = build(counting_builder(tmp_path / "run", again, saves=True).resume()).fit(data_of(again))
    assert result.history["train/target"] == [float(epoch) for epoch in range(EPOCHS)]


@pytest.mark.full
def test_worker_processes_read_the_changed_dataset(tmp_path):
    loader = DataLoaderBuilder().batch_size(4).num_workers(1).build(rows := Rows())
    history = build(counting_builder(tmp_path / "run", rows).num_epochs(3)).fit(loader).history
    assert history["train/target"] == [0.0, 1.0, 2.0]


def test_a_dataset_must_take_its_state_back(tmp_path):
    build(counting_builder(tmp_path / "run", rows := Rows(), saves=True).num_epochs(2)).fit(data_of(rows))
    again = Rows()
    again.load_state_dict = lambda state: state["another"]
    with raises_code("resume-data-state-refused"):
        build(counting_builder(tmp_path / "run", again, saves=True).resume()).fit(data_of(again))


def test_a_change_that_no_checkpoint_contains_is_warned_about_once(tmp_path):
    with pytest.warns(LearnerWarning, match="state_dict") as caught:
        build(counting_builder(tmp_path / "run", items := Items(), saves=True)).fit(data_of(items))
    assert len(caught) == 1
    build(counting_builder(tmp_path / "unsaved", items := Items())).fit(data_of(items))
    listed = [{"x": X[:4], "t": np.zeros((4, 1), np.float32)}]
    change = lambda info, model: listed[0]["t"].fill(info.epoch)  # noqa: E731
    builder = quiet(tmp_path / "list", saves=True).metric_train(FieldMean("target")).num_epochs(2).on_epoch_end(change)
    with pytest.warns(LearnerWarning, match="state_dict"):
        result = build(builder).fit(listed)
    assert result.history["train/target"] == [0.0, 1.0]


def test_reading_data_in_a_hook_does_not_change_it(tmp_path):
    class Lazy(Items):
        def __init__(self):
            self.file, self.cache, self.known = None, {}, [None] * 16

        def __getitem__(self, index):
            self.file, self.known[index], self.attribute = "open", "read", index
            return self.cache.setdefault(index, super().__getitem__(index))

    items = Lazy()
    items[0]
    builder = (
        quiet(tmp_path / "run", saves=True).num_epochs(2).on_epoch_end(lambda info, model: {"x": items[7]["t"][0]})
    )
    items.attribute = 7
    build(builder).fit(DataLoaderBuilder().batch_size(4).prefetch(0).build(items))


class Environment(Items):
    """A dataset whose methods have the names of a state's."""

    def get_state(self, episode):
        raise AssertionError

    def set_state(self, position, velocity):
        raise AssertionError


def test_methods_with_other_arguments_are_no_state(tmp_path):
    build(quiet(tmp_path / "run", saves=True).num_epochs(1)).fit(data_of(Environment()))


def test_a_state_that_cannot_be_stored_matters_to_checkpoints_only(tmp_path):
    class Opaque(Rows):
        def state_dict(self):
            return {"value": object()}

    build(quiet(tmp_path / "run").num_epochs(1)).fit(data_of(Opaque()))
    with raises_code("data-state-not-storable"):
        build(quiet(tmp_path / "saved", saves=True).num_epochs(1)).fit(data_of(Opaque()))


OTHERS = [(Pool, Rows), (Rows, Pool), (Pool, Environment), (Rows, type("Other", (Rows,), {}))]


@pytest.mark.full
@pytest.mark.parametrize(("first", "second"), OTHERS, ids=lambda kind: kind.__name__)
def test_a_run_may_resume_with_data_of_another_kind(tmp_path, first, second):
    build(counting_builder(tmp_path / "run", rows := first(), saves=True).num_epochs(2)).fit(data_of(rows))
    resumed = quiet(tmp_path / "run", saves=True).metric_train(FieldMean("target")).num_epochs(3).resume()
    resumed.on_epoch_end(lambda info, model: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LearnerWarning)  # about the change
        result = build(resumed).fit(data_of(second()))
    assert result.history["train/target"] == [0.0, 1.0, 0.0]


def test_a_validation_of_the_same_dataset_reads_it_as_restored(tmp_path):
    def fit(epochs):
        rows = Rows()
        builder = counting_builder(tmp_path / "run", rows, saves=True).metric_valid(FieldMean("target"))
        return build(builder.num_epochs(epochs).resume()).fit(data_of(rows), data_of(rows)).history["valid/target"]

    fit(2)
    assert fit(3) == [0.0, 1.0, 2.0]


def test_a_change_inside_an_epoch_is_saved_at_its_end(tmp_path):
    def fit(name, rows, epochs):
        def change(info, model):
            rows.value += 1.0

        builder = quiet(tmp_path / name, saves=True).metric_train(FieldMean("target")).num_epochs(epochs).resume()
        builder.every(4, change).on_epoch_end(lambda info, model: None)
        return build(builder).fit(data_of(rows)).history["train/target"]

    plain = fit("plain", Rows(), 3)
    fit("run", Rows(), 2)
    assert fit("run", Rows(), 3)[-1] == plain[-1] == 2.0


def test_a_change_of_arrays_in_memory_is_warned_about(tmp_path):
    memory = np.zeros(64 * 2, np.uint8)
    start = -memory.ctypes.data % 64  # a CPU device aliases aligned arrays
    aligned = memory[start : start + 64].view(np.float32).reshape(16, 1)
    arrays = {"x": X[:16], "t": aligned}
    builder = quiet(tmp_path / "run").metric_train(FieldMean("target")).with_batch_size(4).num_epochs(3)
    with pytest.warns(LearnerWarning, match="no effect"):
        result = build(builder.on_epoch_end(lambda info, model: arrays["t"].fill(7.0))).fit(arrays)
    assert result.history["train/target"] == [0.0, 0.0, 0.0]


class Noisy(Items):
    """The dataset with targets from a generator of its own."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index):
        return {"x": X[index], "t": self.rng.normal(size=1).astype(np.float32)}


@pytest.mark.parametrize("saves", [True, False])
def test_items_that_differ_at_each_reading_are_warned_about(tmp_path, saves):
    """A resumed run would read other items; a run without checkpoints cannot be resumed."""
    builder = quiet(tmp_path / "run", saves=saves).with_batch_size(4).num_epochs(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build(builder).fit(Noisy())
    assert ["Noisy" in str(each.message) for each in caught if "augment" in str(each.message)] == [True] * saves


class OpensItsFile(Items):
    """A dataset that can be sent to worker processes until an item is read."""

    file = None

    def __getitem__(self, index):
        self.file = self.file or open(os.devnull, "rb")  # noqa: SIM115
        return super().__getitem__(index)


@pytest.mark.full
def test_a_dataset_is_not_read_before_it_is_sent_to_workers(tmp_path):
    data = OpensItsFile()
    loader = DataLoaderBuilder().batch_size(4).num_workers(1).build(data)
    build(quiet(tmp_path / "run", saves=True).num_epochs(1)).fit(loader)
    loader.close()
    assert data.file is None


@pytest.mark.full
@KINDS
def test_a_run_stopped_before_its_hooks_repeats_them_with_restored_data(tmp_path, kind):
    """The run stops in the validation at the end of an epoch; resuming repeats the validation and the hooks."""
    interrupter, rows = Interrupter(), kind()

    def valid():
        if rows.value == 2.0:
            interrupter.stop("enough")
        for _ in range(2):
            yield {"x": X[:4], "t": np.zeros((4, 1), np.float32)}

    builder = counting_builder(tmp_path / "run", rows, saves=True).interrupter(interrupter)
    result = build(builder).fit(data_of(rows), valid)
    assert rows.value == 2.0, "the hooks must not run before the stop"
    assert len(result.history["train/target"]) == 3
    again = kind()
    resumed = counting_builder(tmp_path / "run", again, saves=True).resume()
    history = build(resumed).fit(data_of(again), lambda: iter([next(valid())])).history
    assert history["train/target"] == [float(epoch) for epoch in range(EPOCHS)]


class Cursor(Rows):
    """Batches from a cursor on. At the end of an epoch, the cursor returns to the start and the order changes."""

    def __init__(self):
        self.order, self.next = list(range(16)), 0

    def __iter__(self):
        while self.next < 16:
            rows, self.next = self.order[self.next : self.next + 4], self.next + 4
            x = np.stack([self[row]["x"] for row in rows])
            yield {"x": x, "t": np.full((4, 1), rows[0] + 100 * self.value, np.float32)}
        self.order, self.next = self.order[4:] + self.order[:4], 0

    def state_dict(self):
        return {"order": self.order, "next": self.next, "value": self.value}

    def load_state_dict(self, state):
        self.order, self.next, self.value = list(state["order"]), state["next"], state["value"]


class Loader(Cursor):
    """A `Cursor` that stays at the end until the next iterator starts. After loading, the position is kept."""

    def __iter__(self):
        if self.next >= 16 and not self.resumes:
            self.order, self.next = self.order[4:] + self.order[:4], 0
        self.resumes = False
        while self.next < 16:
            rows, self.next = self.order[self.next : self.next + 4], self.next + 4
            x = np.stack([self[row]["x"] for row in rows])
            yield {"x": x, "t": np.full((4, 1), rows[0] + 100 * self.value, np.float32)}

    resumes = False

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.resumes = True


class Endless(Cursor):
    """A `Cursor` over an endless sequence, of which each epoch reads four batches: its end begins the next epoch."""

    def __iter__(self):
        end = 16 * (self.next // 16 + 1)
        while self.next < end:
            first, self.next = self.next % 16, self.next + 4
            x = np.stack([self[row]["x"] for row in range(first, first + 4)])
            yield {"x": x, "t": np.full((4, 1), first + 100 * self.value, np.float32)}


class Refusing(Cursor):
    """A `Cursor` that refuses to load a state."""

    def load_state_dict(self, state):
        raise ValueError("another pool")


@pytest.mark.full
@pytest.mark.parametrize("kind", [Cursor, Loader, Endless])
@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("stop", some([2, 4, 6, 8], (6,)))
def test_resuming_data_with_its_own_position_loses_no_batch(tmp_path, kind, changes, stop):
    """Epochs have 4 steps; the run stops within an epoch, or at its end after the hooks."""

    data, whole = kind(), []
    for _ in range(3):
        whole += [float(batch["t"][0, 0]) for batch in data]
        data.value += changes
    assert len(set(whole)) == 12 if changes else sorted(set(whole)) == [0, 4, 8, 12]
    assert targets(tmp_path / "run", kind(), changes, stop) + targets(tmp_path / "run", kind(), changes) == whole


def targets(directory, rows, changes, stop=None):
    """Return the target of each step in a run whose hook may change the data at the end of each epoch."""
    interrupter, memory = Interrupter(), MemoryLogger()

    def change(info, model):
        rows.value += changes

    builder = quiet(directory, saves=True).metric_train(FieldMean("target")).num_epochs(3).on_epoch_end(change)
    builder.every(1, lambda info, model: interrupter.stop("enough") if info.step == stop else None)
    build(builder.interrupter(interrupter).metric_loggers(memory).resume()).fit(rows)
    return memory.steps["train/target"]


@pytest.mark.full
def test_only_data_changed_by_hooks_must_load_its_state(tmp_path):
    """Without the state, the changes of hooks would be lost; unchanged data may differ on purpose."""
    for changes in (False, True):
        targets(tmp_path / f"{changes}", Cursor(), changes, stop=4)
    assert targets(tmp_path / "False", Refusing(), False)
    with raises_code("resume-data-state-refused", "another pool"):
        targets(tmp_path / "True", Refusing(), True)
