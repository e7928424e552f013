"""Tests of the check's questions about data, each with data that passes and data that fails."""

import numpy as np
import optax
import pytest

from learner.data import DataLoaderBuilder
from learner.diagnostics import data_questions
from learner.diagnostics.check_trial import open_trial
from learner.diagnostics.data_questions import pipeline
from tests.support.runs import arrays, batches, build_line, line, line_step, quiet, valid_data

pytestmark = pytest.mark.usefixtures("compiled_once")


def fresh(rows=20, seed=1):
    """Return rows that are not in the training data."""
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(rows, 3)).astype(np.float32),
        "t": rng.normal(size=(rows, 1)).astype(np.float32),
        "y": np.zeros(rows, np.int32),
    }


def loader(rows, size=10):
    return DataLoaderBuilder().batch_size(size).build(rows)


@pytest.fixture
def overlap(tmp_path):
    """Return a function that answers the question for training and validation data."""
    learner = build_line(quiet(tmp_path / "run"))
    return lambda train, valid: learner.check(train, valid, only=["overlap"])["overlap"]


def test_rows_in_both_splits_fail(overlap):
    answer = overlap(batches(), loader(fresh()))
    assert (answer.verdict, answer.number) == ("ok", 0)
    answer = overlap(batches(), valid_data())  # the first 20 training rows, in other batches
    assert (answer.verdict, answer.number) == ("failed", 20)
    assert "20 of 20 validation rows are in the training data" in answer.text


def test_labels_and_ids_do_not_hide_a_row(overlap):
    rows = {name: x[:20].copy() for name, x in arrays().items()}
    rows["y"] = (rows["y"] + 1) % 3
    assert overlap(batches(), loader(rows)).number == 20
    rows["t"] = rows["t"] + 1  # a field with an axis of one number
    assert overlap(batches(), loader(rows)).number == 0


def test_few_equal_rows_are_a_warning(overlap):
    rows = {name: np.concatenate([x, arrays(1)[name]]) for name, x in fresh(199).items()}
    answer = overlap(batches(), loader(rows))
    assert (answer.verdict, answer.number) == ("warning", 1)  # of 200: half a percent
    rows = {name: np.concatenate([x, arrays(1)[name]]) for name, x in fresh(19).items()}
    assert overlap(batches(), loader(rows)).verdict == "failed"


def test_rows_of_all_validation_splits_count(overlap):
    valid = {"one": loader(fresh()), "two": valid_data(), "three": loader({n: x[20:] for n, x in arrays().items()}, 4)}
    answer = overlap(batches(), valid)
    assert (answer.number, "24 of 44 validation rows" in answer.text) == (24, True)


def test_streams_are_read_up_to_a_number_of_rows(overlap, monkeypatch):
    monkeypatch.setattr(data_questions, "STREAMED", 8)
    last = {name: x[20:] for name, x in arrays().items()}
    answer = overlap(batches(), [last])  # these rows follow the first 8
    assert answer.number == 0
    assert "4 validation rows and 8 training rows, the first" in answer.text
    first = {name: x[4:8] for name, x in arrays().items()}
    assert overlap(batches(), [first]).number == 4
    assert overlap(loader(arrays()), [last]).number == 4  # arrays in memory are not a stream


def test_rows_of_single_numbers_are_compared_in_all_fields(tmp_path):
    """In a table of single numbers, values of a field may repeat, but rows may not."""

    def step(model, batch):
        return line_step(model, {"x": batch["a"][:, None], "t": batch["b"][:, None]})

    learner = quiet(tmp_path / "run").build(line(1), optax.sgd, 0.1, train_step=step, valid_step=step)
    a, b = np.arange(8, dtype=np.float32), np.ones(8, np.float32)
    check = lambda valid: learner.check([{"a": a, "b": b}], [valid], only=["overlap"])["overlap"]  # noqa: E731
    assert check({"a": a, "b": b + 1}).number == 0
    assert check({"a": a, "b": b}).number == 8


@pytest.mark.parametrize("name", ["mask", "x_mask"])
def test_rows_of_padding_are_left_out(overlap, name):
    """Packed sequences end with empty rows, which are equal in all data."""

    def padded(rows, kept):
        mask = np.arange(len(rows["t"]))[:, None] < [kept, kept - 1, 0]
        return {**rows, "x": np.where(mask[:, :1], rows["x"], 0), "t": np.where(mask[:, :1], rows["t"], 0), name: mask}

    train, valid = padded(fresh(20, seed=2), 15), padded(fresh(20), 12)
    answer = overlap(loader(train), loader(valid))
    assert (answer.verdict, answer.number, "None of 12 validation rows" in answer.text) == ("ok", 0, True)
    same = {field: np.concatenate([valid[field][:17], x[:3]]) for field, x in train.items()}
    answer = overlap(loader(train), loader(same))
    assert (answer.number, "3 of 15 validation rows" in answer.text) == (3, True)


def test_field_that_is_named_like_a_mask_is_compared(overlap):
    """A mask of padding as in PyTorch is true where nothing is kept, and belongs to no field."""
    names = "key_padding_mask", "attention_mask"
    rows = {**arrays(), **{name: np.zeros((len(arrays()["t"]), 2), bool) for name in names}}
    answer = overlap(loader(rows), loader({name: x[:20] for name, x in rows.items()}))
    assert answer.number == 20


def test_missing_validation_data_is_skipped(overlap):
    assert overlap(batches(), None).verdict == "skipped"


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self):
        return self.now


class Slow:
    """Batches that take some seconds each to read."""

    def __init__(self, clock, seconds, count=6):
        self.clock, self.seconds, self.count = clock, seconds, count

    def __iter__(self):
        for number in range(self.count):
            self.clock.now += self.seconds
            yield batches()[number % 5]
        self.clock.now += 100  # as ending workers does


@pytest.mark.parametrize(("reading", "stepping", "verdict"), [(0.25, 0.5, "ok"), (2.0, 0.5, "warning")])
def test_reading_is_compared_with_steps(tmp_path, reading, stepping, verdict):
    clock = Clock()
    learner = build_line(quiet(tmp_path / "run"))
    with open_trial(learner.definition, Slow(clock, reading), None, 1, clock) as trial:
        step = trial.train

        def slow_step(state, batch):
            clock.now += stepping
            return step(state, batch)

        trial.train = slow_step
        finding = pipeline(trial)
    assert (finding.verdict, finding.number) == (verdict, reading / stepping)


def test_texts_about_the_pipeline(tmp_path):
    learner = build_line(quiet(tmp_path / "run"))
    check = lambda data: learner.check(data, only=["pipeline"])["pipeline"].text  # noqa: E731
    assert "in memory" in check(loader(arrays()))
    assert "single batch" in check(batches()[:1])
    assert check(batches()).startswith(("The device does not wait", "The device waits"))
