"""Hooks that change the data at the end of an epoch: the next epoch has it, also after an interruption."""

import numpy as np
import optax
import pytest

from learner import Interrupter
from learner.data import DataLoaderBuilder
from learner.loggers import MemoryLogger
from learner.metrics import FieldMean
from tests.support.codes import raises_code
from tests.support.runs import X, line, line_predictions, quiet
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("compiled_once")

EPOCHS = 5


class Rows:
    """Rows whose target is `value`."""

    value = 0.0

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return {"x": X[index], "t": np.full(1, self.value, np.float32)}


class Pool(Rows):
    """Batches of them as an iterable with a state. It keeps what each epoch began with."""

    def __init__(self):
        self.read = []

    def __iter__(self):
        self.read.append(self.value)
        for begin in range(0, 16, 4):
            items = [self[row] for row in range(begin, begin + 4)]
            yield {name: np.stack([item[name] for item in items]) for name in ("x", "t")}

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def step(model, batch):
    predictions = line_predictions(model, batch["x"])
    return {"loss": ((predictions - batch["t"]) ** 2).mean(), "target": batch["t"].mean(), "predictions": predictions}


def builder(directory, rows, **options):
    def count(info, model):
        rows.value += 1.0

    made = quiet(directory, **options).metric_train(FieldMean("target")).num_epochs(EPOCHS)
    return made.on_epoch_end(count)


def built(made):
    return made.build(line(), optax.sgd, 0.05, train_step=step, valid_step=step)


@pytest.mark.parametrize("steps", [None, 1, 3])
@pytest.mark.parametrize("kind", ["iterable", "dataset"])
def test_an_epoch_has_what_the_hooks_before_it_have_left(tmp_path, steps, kind):
    rows = Pool() if kind == "iterable" else Rows()
    made = builder(tmp_path, rows)
    if steps is not None:
        made.steps_per_dispatch(steps)
    data = rows if kind == "iterable" else DataLoaderBuilder().batch_size(4).build(rows)
    assert built(made).fit(data).history["train/target"] == [float(epoch) for epoch in range(EPOCHS)]


@pytest.mark.parametrize("at_epoch", [1, 3])
def test_a_resumed_run_has_it_too(tmp_path, at_epoch):
    """A run that is stopped at the end of an epoch, after its hooks."""
    interrupter, rows = Interrupter(), Pool()

    def stop(info, model):
        if info.epoch == at_epoch:
            interrupter.stop("enough")

    made = builder(tmp_path / "run", rows, saves=True).on_epoch_end(stop).interrupter(interrupter)
    built(made).fit(rows)
    again = Pool()
    history = built(builder(tmp_path / "run", again, saves=True).resume()).fit(again).history
    assert history["train/target"] == [float(epoch) for epoch in range(EPOCHS)]


def test_a_run_that_was_stopped_before_the_hooks_calls_them_with_the_data_of_then(tmp_path):
    """It is stopped in the validation at the end of an epoch, which is repeated, as are the hooks."""
    interrupter, rows = Interrupter(), Pool()

    def valid():
        if rows.value == 2.0:
            interrupter.stop("enough")
        for _ in range(2):
            yield {"x": X[:4], "t": np.zeros((4, 1), np.float32)}

    made = builder(tmp_path / "run", rows, saves=True).interrupter(interrupter)
    result = built(made).fit(rows, valid)
    assert rows.value == 2.0, "the hooks were not called"
    assert len(result.history["train/target"]) == 3
    again = Pool()
    resumed = builder(tmp_path / "run", again, saves=True).resume()
    history = built(resumed).fit(again, lambda: iter([next(valid())])).history
    assert history["train/target"] == [float(epoch) for epoch in range(EPOCHS)]


class Cursor(Rows):
    """Batches of rows from a cursor on, which an epoch leaves at the start. The order of the rows changes with it."""

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
    """The same, whose cursor stays at the end: an iterator that begins there ends, and the next one begins anew."""

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


class Refusing(Cursor):
    """Takes no state back."""

    def load_state_dict(self, state):
        raise ValueError("another pool")


@pytest.mark.parametrize("kind", [Cursor, Loader])
@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("stop", some([2, 4, 6, 8], (2, 6)))
def test_no_batch_is_lost_where_the_data_itself_has_the_position(tmp_path, kind, changes, stop):
    """Epochs are of 4 steps: a run is stopped inside of one, or at its end, after its hooks."""

    whole = targets(tmp_path / "whole", kind(), changes)
    assert len(set(whole)) == 12 if changes else sorted(set(whole)) == [0, 4, 8, 12]
    assert targets(tmp_path / "run", kind(), changes, stop) + targets(tmp_path / "run", kind(), changes) == whole


def targets(directory, rows, changes, stop=None):
    """The target of each step, in epochs of 4, with a hook at their ends that changes the data or not."""
    interrupter, memory = Interrupter(), MemoryLogger()

    def change(info, model):
        rows.value += changes

    made = quiet(directory, saves=True).metric_train(FieldMean("target")).num_epochs(3).on_epoch_end(change)
    made.every(1, lambda info, model: interrupter.stop("enough") if info.step == stop else None)
    built(made.interrupter(interrupter).metric_loggers(memory).resume()).fit(rows)
    return memory.steps["train/target"]


def test_only_data_that_hooks_have_changed_must_take_its_state_back(tmp_path):
    """What a hook has changed would be lost without it; other data may differ on purpose, as in a run without hooks."""
    for changes in (False, True):
        targets(tmp_path / f"{changes}", Cursor(), changes, stop=4)
    assert targets(tmp_path / "False", Refusing(), False)
    with raises_code("resume-data-state-refused", "another pool"):
        targets(tmp_path / "True", Refusing(), True)
