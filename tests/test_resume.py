"""Going on with a run: to the bit, with everything written once."""

import json
import shutil

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from runs import (
    ROWS,
    STEPS,
    LastRow,
    Net,
    batches,
    build_line,
    build_net,
    checkpoint_bits,
    journal_of,
    line,
    line_step,
    logs_of,
    model_bits,
    noisy_step,
    numbers_of,
    progress_of,
    quiet,
    saved_steps,
    scripted,
    shuffled,
    streamed,
    tamper,
    tree_of,
    valid_data,
)

from learner import Interrupter, LearnerError, MetricEarlyStopping, ReduceOnPlateau
from learner.checkpoint import CheckpointStore
from learner.history import read_history
from learner.metrics import LearningRate

pytestmark = pytest.mark.usefixtures("compiled_once")


class CrashError(Exception):
    """What a hook raises in place of a power cut."""


def stopping_at(builder, step):
    """Ends the run after a step, as somebody else's code would."""
    interrupter = Interrupter()
    return builder.interrupter(interrupter).every(steps=step, fn=lambda info, model: interrupter.stop("for the night"))


def crashing_at(builder, step):
    def crash(info, model):
        if info.step == step:
            raise CrashError

    return builder.every(steps=1, fn=crash)


def all_of(directory, result):
    """Everything that has to be the same with and without an interruption."""
    last = saved_steps(directory)[-1]
    return {
        "model": model_bits(result.model),
        "history": result.history.to_json(),
        "journal's history": read_history(directory).to_json(),
        "why it ended": result.stopped_by,
        "logs": logs_of(directory),
        "journal": numbers_of(directory),
        "summary": (directory / "summary.json").read_text(),
        "checkpoints": saved_steps(directory),
        "state": checkpoint_bits(directory, last),
        "progress": progress_of(directory, last),
    }


class NetRun:
    """Shuffling, dropout, running statistics, a schedule, and early stopping with some of its patience used."""

    every = 5 * STEPS

    def build(self, directory, epochs=5):
        builder = quiet(directory).num_epochs(epochs).with_file_checkpointer(keep_last=2, keep_best=1)
        builder.valid_every(steps=4).early_stopping(MetricEarlyStopping("valid/Accuracy", patience=20))
        return builder

    def fit(self, builder):
        return build_net(builder).fit(shuffled(rows=ROWS), valid_data(9))


class PlateauRun:
    """Two optimizer steps an epoch (of four and of two micro-batches, the last one ragged), data that streams in
    another order each epoch, noise, and decisions inside epochs: the rate falls at each third validation, and the
    eighth ends the run.
    """

    def build(self, directory, epochs=9):
        builder = quiet(directory).num_epochs(epochs).grads_accumulation(4).valid_every(steps=1).metrics(LastRow())
        builder.metric_train(LearningRate()).with_file_checkpointer(keep_last=2, keep_best=1)
        return builder.early_stopping(MetricEarlyStopping("valid/Loss", mode="max", patience=7))

    def fit(self, builder):
        plateau = ReduceOnPlateau(0.04, "valid/Loss", factor=0.5, patience=2, mode="max")
        optimizer = lambda lr: optax.sgd(lr, momentum=0.9)  # noqa: E731
        learner = builder.build(line(), optimizer, plateau, train_step=noisy_step, valid_step=line_step)
        return learner.fit(streamed(rows=ROWS), valid_data(9))


class SavingRun(NetRun):
    """The same, saved after each step."""

    def build(self, directory, epochs=5):
        return super().build(directory, epochs).with_file_checkpointer(keep_last=2, keep_best=1, every_steps=1)


NET, PLATEAU, SAVING = NetRun(), PlateauRun(), SavingRun()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, compiled_once):
    """What each kind of run leaves that is not interrupted."""
    found = {}

    def of(kind):
        if kind not in found:
            directory = tmp_path_factory.mktemp("whole") / "run"
            found[kind] = all_of(directory, kind.fit(kind.build(directory)))
        return found[kind]

    return of


def same(found, expected):
    """Part by part, so that a failure says which."""
    assert found.keys() == expected.keys()
    for part, value in expected.items():
        assert found[part] == value, part


def some(steps, chosen):
    """All of them in the whole matrix, a few otherwise."""
    return [step if step in chosen else pytest.param(step, marks=pytest.mark.full) for step in steps]


# In the first epoch, and inside of a later one after a validation. `test_more_epochs` goes on at the end of one.
@pytest.mark.parametrize("step", some(range(1, 30), {2, 15}))
def test_a_run_that_was_interrupted_ends_like_one_that_was_not(tmp_path, whole, step):
    directory = tmp_path / "run"
    stopped = NET.fit(stopping_at(NET.build(directory), step))
    assert stopped.stopped_by == "interrupter: for the night"
    assert stopped.summary["steps"] == step
    assert saved_steps(directory)[-1] == step
    result = NET.fit(NET.build(directory).resume())
    assert result.summary["steps"] == 5 * STEPS
    same(all_of(directory, result), whole(NET))


def test_when_a_checkpoint_is_made_changes_nothing(whole):
    for part in ("model", "history", "why it ended", "logs", "journal", "state"):
        assert whole(SAVING)[part] == whole(NET)[part], part


@pytest.mark.parametrize("step", some(range(1, 31), {1, 4, 15}))
def test_a_crash_inside_an_epoch_loses_one_step(tmp_path, whole, step):
    """The hook raises before the step is saved, the logs have it already."""
    directory = tmp_path / "run"
    with pytest.raises(CrashError):
        SAVING.fit(crashing_at(SAVING.build(directory), step))
    assert saved_steps(directory)[-1:] == [step - 1][: step - 1]
    same(all_of(directory, SAVING.fit(SAVING.build(directory).resume())), whole(SAVING))


def test_the_plateau_run_decides_as_it_says(whole):
    history = whole(PLATEAU)["history"]
    assert [round(rate, 6) for _, _, rate in history["train/Learning Rate"]] == [0.04, 0.04, 0.02, 0.01]
    assert len(history["valid/Loss"]) == 8
    assert whole(PLATEAU)["why it ended"].startswith("early stopping: valid/Loss")


@pytest.mark.parametrize("step", some(range(1, 8), {1, 4}))
def test_a_run_with_decisions_goes_on_with_its_patience(tmp_path, whole, step):
    directory = tmp_path / "run"
    PLATEAU.fit(stopping_at(PLATEAU.build(directory), step))
    same(all_of(directory, PLATEAU.fit(PLATEAU.build(directory).resume())), whole(PLATEAU))


def test_interrupted_again_and_again(tmp_path, whole):
    directory = tmp_path / "run"
    for step in (1, 5):
        PLATEAU.fit(stopping_at(PLATEAU.build(directory).resume(), step))
    same(all_of(directory, PLATEAU.fit(PLATEAU.build(directory).resume())), whole(PLATEAU))


def test_a_crash_after_the_last_checkpoint(tmp_path, whole):
    """The logs are ahead of the checkpoint then: what is written again is written once."""
    directory = tmp_path / "run"
    with pytest.raises(CrashError):
        PLATEAU.fit(crashing_at(PLATEAU.build(directory), 5))
    assert saved_steps(directory) == [2, 4]
    assert "train/epoch-3/Loss.log" in logs_of(directory)
    same(all_of(directory, PLATEAU.fit(PLATEAU.build(directory).resume())), whole(PLATEAU))
    events = [entry["event"] for entry in journal_of(directory)]
    assert [event for event in events if event in ("start", "error", "stop")] == ["start", "error", "start", "stop"]


@pytest.mark.parametrize("torn", some([False, True], {True}))
def test_a_crash_before_the_first_checkpoint(tmp_path, whole, torn):
    directory = tmp_path / "run"
    with pytest.raises(CrashError):
        PLATEAU.fit(crashing_at(PLATEAU.build(directory), 1))
    assert saved_steps(directory) == []
    if torn:
        (directory / "checkpoint" / "2.partial.orbax-checkpoint-tmp" / "model").mkdir(parents=True)
        with (directory / "journal.jsonl").open("a") as journal:
            journal.write('{"event": "epo')
    same(all_of(directory, PLATEAU.fit(PLATEAU.build(directory).resume())), whole(PLATEAU))
    assert "starts afresh" in (directory / "experiment.log").read_text()


def test_resume_where_nothing_is(tmp_path, whole):
    directory = tmp_path / "run"
    same(all_of(directory, PLATEAU.fit(PLATEAU.build(directory).resume())), whole(PLATEAU))


@pytest.mark.parametrize("part", some(["root_key", "early_stopping", "plateau", "position"], {"root_key", "plateau"}))
def test_a_checkpoint_without_a_part_of_the_run_would_be_noticed(tmp_path, whole, part):
    """The comparison of the tests above fails when something is lost on purpose."""
    directory = tmp_path / "run"
    PLATEAU.fit(stopping_at(PLATEAU.build(directory), 3))
    progress = progress_of(directory, 3)
    progress[part] = {
        "root_key": [0, 77],
        "early_stopping": [],
        "plateau": None,
        "position": {**progress["position"], "batch": 0},
    }[part]
    tamper(directory, 3, progress)
    found, expected = all_of(directory, PLATEAU.fit(PLATEAU.build(directory).resume())), whole(PLATEAU)
    assert found["history"] != expected["history"]


# -- finished runs -----------------------------------------------------------------------------------------------------

FINISHED = {
    "num_epochs": lambda b: b.num_epochs(2),
    "num_steps inside of an epoch": lambda b: b.num_steps(8),
    "early stopping": lambda b: b.num_epochs(9).early_stopping(MetricEarlyStopping("valid/Loss", "max", patience=1)),
}


@pytest.mark.parametrize("how", FINISHED)
def test_a_finished_run_returns_at_once(tmp_path, how):
    make = lambda: FINISHED[how](quiet(tmp_path / "run").with_file_checkpointer())  # noqa: E731
    first = build_line(make()).fit(shuffled(), valid_data())
    before = tree_of(tmp_path)
    learner = build_line(make().resume())
    again = learner.fit(shuffled(), valid_data())
    assert tree_of(tmp_path) == before
    assert model_bits(again.model) == model_bits(first.model)
    assert again.history == first.history
    assert (again.stopped_by, again.summary) == (first.stopped_by, first.summary)
    assert model_bits(again.best_model) == model_bits(first.best_model)
    assert learner.evaluate(valid_data()) == {"Loss": first.history["valid/Loss"][-1]}
    with pytest.raises(LearnerError, match="fitted already"):
        learner.fit(shuffled())


def test_more_epochs(tmp_path, whole):
    directory = tmp_path / "run"
    NET.fit(NET.build(directory, epochs=2))
    same(all_of(directory, NET.fit(NET.build(directory).resume())), whole(NET))


def test_more_epochs_than_saves(tmp_path):
    """The last checkpoint of the short run was made only because it ended: it does not outlive the longer one."""
    make = lambda name, n: quiet(tmp_path / name).num_epochs(n).with_file_checkpointer(every_epochs=2)  # noqa: E731
    build_line(make("run", 3)).fit(shuffled())
    assert saved_steps(tmp_path / "run") == [12, 18]
    build_line(make("run", 4).resume()).fit(shuffled())
    build_line(make("whole", 4)).fit(shuffled())
    assert saved_steps(tmp_path / "run") == saved_steps(tmp_path / "whole") == [12, 24]


def test_more_steps(tmp_path):
    make = lambda name, n: quiet(tmp_path / name).num_steps(n).metrics(LastRow()).with_file_checkpointer()  # noqa: E731
    build_line(make("run", 8)).fit(shuffled())
    result = build_line(make("run", 15).resume()).fit(shuffled())
    same(all_of(tmp_path / "run", result), all_of(tmp_path / "whole", build_line(make("whole", 15)).fit(shuffled())))


# -- going back --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def five(tmp_path_factory, compiled_once):
    """A run of five epochs with all its checkpoints; the first is the best, as the highest loss is."""
    directory = tmp_path_factory.mktemp("five") / "run"
    result = fit_five(quiet(directory))
    return directory, all_of(directory, result), tree_of(directory)


def fit_five(builder):
    return build_line(builder.num_epochs(5).with_file_checkpointer(keep_last=5, mode="max")).fit(
        shuffled(), valid_data()
    )


@pytest.fixture
def copy(five, tmp_path):
    shutil.copytree(five[0], tmp_path / "run")
    return tmp_path / "run"


def test_from_an_older_epoch(copy, five):
    _, expected, files = five
    result = fit_five(quiet(copy).checkpoint(epoch=2))
    same(all_of(copy, result), expected)
    aside = {path: content for path, (content, _) in tree_of(copy / "superseded" / "1").items()}
    moved = {path for path in files if path.startswith(tuple(f"checkpoint/{6 * n}/" for n in (3, 4, 5)))}
    logs = {path for path in files if path.split("/")[1:2] in (["epoch-3"], ["epoch-4"], ["epoch-5"])}
    assert set(aside) == moved | logs | {"journal.jsonl"}
    assert all(aside[path] == files[path][0] for path in moved | logs)
    assert [json.loads(text)["epoch"] for text in aside["journal.jsonl"].splitlines()] == [3, 4, 5]
    starts = [entry["step"] for entry in journal_of(copy) if entry["event"] == "start"]
    assert starts == [0, 12]


def test_from_older_epochs_twice(copy, five):
    fit_five(quiet(copy).checkpoint(epoch=4))
    result = fit_five(quiet(copy).checkpoint(epoch=1))
    same(all_of(copy, result), five[1])
    assert sorted(path.name for path in (copy / "superseded").iterdir()) == ["1", "2"]
    assert saved_in(copy / "superseded" / "1") == [30]
    assert saved_in(copy / "superseded" / "2") == [12, 18, 24, 30]


def saved_in(directory):
    return sorted(int(path.name) for path in (directory / "checkpoint").iterdir())


@pytest.mark.parametrize(("asked", "start"), [({"step": 24}, 24), ({"epoch": "best"}, 6)])
def test_from_a_step_or_from_the_best(copy, five, asked, start):
    result = fit_five(quiet(copy).checkpoint(**asked))
    same(all_of(copy, result), five[1])
    assert journal_of(copy)[-1]["event"] == "end"
    assert [entry["step"] for entry in journal_of(copy) if entry["event"] == "start"] == [0, start]


def test_from_the_latest_of_a_finished_run(copy, five):
    result = fit_five(quiet(copy).checkpoint(epoch="latest"))
    same(all_of(copy, result), five[1])
    assert tree_of(copy).keys() == five[2].keys()


def test_going_back_and_stopping_there_leaves_a_run_to_resume(copy, five):
    fit_five(stopping_at(quiet(copy).checkpoint(epoch=2), 15))
    assert saved_steps(copy) == [6, 12, 15]
    same(all_of(copy, fit_five(quiet(copy).resume())), five[1])


def test_going_back_without_saving(copy, five):
    """The newer checkpoints belong to a history that is gone: they may not stay beside the new one."""
    builder = quiet(copy).checkpoint(epoch=2).num_epochs(3).with_file_checkpointer(None)
    build_line(builder).fit(shuffled(), valid_data())
    assert saved_steps(copy) == [6, 12]
    same(all_of(copy, fit_five(quiet(copy).resume())), five[1])


@pytest.mark.parametrize(
    ("asked", "missing"), [({"epoch": 9}, "the end of epoch 9"), ({"step": 7}, "step 7")], ids=["epoch", "step"]
)
def test_a_checkpoint_that_is_not_there(copy, five, asked, missing):
    with pytest.raises(LearnerError) as error:
        fit_five(quiet(copy).checkpoint(**asked))
    assert missing in str(error.value)
    assert "step 6 (epoch 1), step 12 (epoch 2)" in str(error.value)
    assert {path: content for path, (content, _) in tree_of(copy).items()} == {p: c for p, (c, _) in five[2].items()}


@pytest.mark.parametrize("asked", [{"epoch": 1}, {"epoch": "best"}, {"step": 6}])
def test_a_checkpoint_of_a_run_that_is_not_there(tmp_path, asked):
    with pytest.raises(LearnerError, match=r"there is no (run|checkpoint)"):
        build_line(quiet(tmp_path / "run").checkpoint(**asked)).fit(batches())
    assert list(tmp_path.iterdir()) == []


# -- something else than before ----------------------------------------------------------------------------------------


def test_another_width(tmp_path):
    build_net(quiet(tmp_path / "run", saves=True)).fit(shuffled(rows=ROWS), valid_data(9))
    before = tree_of(tmp_path)
    with pytest.raises(LearnerError) as error:
        build_net(quiet(tmp_path / "run", saves=True).num_epochs(2).resume(), Net(width=6)).fit(
            shuffled(), valid_data()
        )
    message = str(error.value)
    assert str(tmp_path / "run") in message
    for name, saved, now in (
        ("params/hidden.kernel", "[3, 4]", "[3, 6]"),
        ("params/hidden.bias", "[4]", "[6]"),
        ("params/out.kernel", "[4, 3]", "[6, 3]"),
        ("model_state/norm.mean", "[4]", "[6]"),
        ("opt_state/0.mu.hidden.kernel", "[3, 4]", "[3, 6]"),
    ):
        assert f"{name}: saved float32{saved}, now float32{now}" in message
    assert "out.bias" not in message
    assert tree_of(tmp_path) == before


def test_another_optimizer(tmp_path):
    build_line(quiet(tmp_path / "run", saves=True).num_epochs(1)).fit(batches())
    before = tree_of(tmp_path)
    with pytest.raises(LearnerError, match="another model or optimizer") as error:
        build_line(quiet(tmp_path / "run", saves=True).num_epochs(2).resume(), optimizer=optax.adam).fit(batches())
    assert "opt_state/0.mu.w: saved nothing, now float32[3, 1]" in str(error.value)
    assert "params" not in str(error.value)
    assert tree_of(tmp_path) == before


def test_another_dtype(tmp_path):
    build_line(quiet(tmp_path / "run", saves=True).num_epochs(1)).fit(batches())
    model = {"w": jnp.zeros((3, 1)), "b": jnp.zeros((1,), jnp.bfloat16)}
    builder = quiet(tmp_path / "run", saves=True).num_epochs(2).resume()
    step = lambda model, batch: line_step({**model, "b": model["b"].astype(jnp.float32)}, batch)  # noqa: E731
    learner = builder.build(model, optax.sgd, 0.1, train_step=step)
    with pytest.raises(LearnerError, match=r"params/b: saved float32\[1\], now bfloat16\[1\]"):
        learner.fit(batches())


def test_data_that_cannot_be_repeated(tmp_path):
    make = lambda n: quiet(tmp_path / "run").num_steps(n).with_file_checkpointer()  # noqa: E731
    build_line(make(4)).fit(iter(batches()))
    before = tree_of(tmp_path)
    with pytest.raises(LearnerError, match=r"cannot be repeated.*pass a loader"):
        build_line(make(6).resume()).fit(iter(batches()))
    assert tree_of(tmp_path) == before


@pytest.mark.parametrize(
    ("data", "accumulate", "changed"),
    [
        (lambda: batches(3), 2, "rows per batch were 4 and are 3, batches per epoch were 6 and are 8"),
        (lambda: batches()[:5], 2, "batches per epoch were 6 and are 5"),
        (lambda: batches(), 3, "micro-batches per step were 2 and are 3"),
    ],
)
def test_other_batches_inside_an_epoch(tmp_path, data, accumulate, changed):
    """The position counts batches: it would lie at other rows."""
    first = quiet(tmp_path / "run").with_file_checkpointer().num_epochs(3).grads_accumulation(2)
    build_line(stopping_at(first, 2)).fit(batches())
    before = tree_of(tmp_path)
    made = quiet(tmp_path / "run").with_file_checkpointer().num_epochs(3).resume()
    with pytest.raises(LearnerError, match=f"step 2 lies inside epoch 1.*: {changed}\\. Go on with"):
        build_line(made.grads_accumulation(accumulate)).fit(data())
    assert tree_of(tmp_path) == before


def test_other_batches_from_the_end_of_an_epoch(tmp_path):
    build_line(quiet(tmp_path / "run").with_file_checkpointer().num_epochs(1)).fit(batches())
    made = quiet(tmp_path / "run").with_file_checkpointer().num_epochs(2).resume()
    result = build_line(made).fit(batches(3))
    assert result.summary["steps"] == 6 + 8


# -- what stays on the disk --------------------------------------------------------------------------------------------


@pytest.fixture
def after_each_save(monkeypatch):
    """The steps on disk after each save."""
    found, save = [], CheckpointStore.save

    def saving(self, step, items, progress):
        save(self, step, items, progress)
        found.append(sorted(int(p.name) for p in self._path.iterdir()))

    monkeypatch.setattr(CheckpointStore, "save", saving)
    return found


NAN = float("nan")


@pytest.mark.parametrize("cut", some([None, 2, 3, 4], {None, 4}))
@pytest.mark.parametrize(
    ("options", "losses", "kept"),
    [
        pytest.param(
            {"keep_last": 1, "keep_best": 1},
            [4.0, 1.0, 9.0, NAN, 1.0, 0.25],
            [[1], [2], [2, 3], [2, 4], [2, 5], [6]],
            id="last and best",
        ),
        pytest.param(
            {"keep_last": 2, "keep_best": 0, "keep_every": 3},
            [1.0, 4.0, 9.0, 16.0, 25.0, 36.0],
            [[1], [1, 2], [2, 3], [3, 4], [3, 4, 5], [3, 5, 6]],
            id="every third",
        ),
        pytest.param(
            {"keep_last": 1, "keep_best": 2, "mode": "max"},
            [4.0, NAN, 4.0, 1.0, 4.0, 9.0],
            [[1], [1, 2], [1, 3], [1, 3, 4], [1, 3, 5], [1, 6]],
            id="the two highest",
        ),
    ],
)
def test_what_is_kept(tmp_path, after_each_save, options, losses, kept, cut):
    """One step an epoch; the losses are scripted, as the rate is 0."""
    epochs = [len(losses)] if cut is None else [cut, len(losses)]
    done = 0
    for number in epochs:
        builder = quiet(tmp_path / "run").num_epochs(number).with_file_checkpointer(**options).resume()
        result = build_line(builder, 0.0).fit(batches()[:1], scripted(*losses[done:number]))
        done = number
    assert after_each_save == kept
    assert [entry["step"] for entry in result.summary["checkpoints"]] == kept[-1]
    np.testing.assert_allclose(result.history["valid/Loss"], losses, rtol=1e-6)
