"""Check that runs stopped anywhere resume to the bit, and write everything once."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import learner
from learner import Interrupter, MetricEarlyStopping, ReduceOnPlateau
from learner.checkpoint import CheckpointStore
from learner.metrics import LearningRate
from learner.renderers.plain import PlainRenderer
from tests.support.codes import raises_code
from tests.support.everything import END, GROUP, STEPS, Augmented, EveryRun, GrainRun, LightRun
from tests.support.killed import KilledRun
from tests.support.runs import ROWS as NET_ROWS
from tests.support.runs import STEPS as NET_STEPS
from tests.support.runs import (
    LastRow,
    batches,
    build_line,
    build_net,
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
from tests.support.stopped import CrashError, all_of, crashing_at, same, some, stopping_at

NOTHING_DUE = {"due": "", "left": [], "lr_factor": 1.0}

pytestmark = pytest.mark.usefixtures("compiled_once")
NAN = float("nan")


class NetRun:
    """A run with resident data, many steps in one loop, and early stopping with partly used patience."""

    def build(self, directory, epochs=5):
        builder = quiet(directory).num_epochs(epochs).with_file_checkpointer(keep_last=2, keep_best=1)
        return builder.valid_every(steps=4).early_stopping(MetricEarlyStopping("valid/Accuracy", patience=20))

    def fit(self, builder):
        return build_net(builder).fit(shuffled(rows=NET_ROWS), valid_data(9))


class PlateauRun:
    """A run with two optimizer steps per epoch (of four and of two micro-batches, the last one ragged), noise, and
    decisions within epochs: the rate decreases at each third validation, and the eighth ends the run.
    """

    def build(self, directory, epochs=9):
        builder = quiet(directory).num_epochs(epochs).grads_accumulation(4).valid_every(steps=1).metrics(LastRow())
        builder.metric_train(LearningRate()).with_file_checkpointer(keep_last=2, keep_best=1)
        return builder.early_stopping(MetricEarlyStopping("valid/Loss", mode="max", patience=7))

    def fit(self, builder):
        plateau = ReduceOnPlateau(0.04, "valid/Loss", factor=0.5, patience=2, mode="max")
        optimizer = lambda lr: optax.sgd(lr, momentum=0.9)  # noqa: E731
        learner = builder.build(line(), optimizer, plateau, train_step=noisy_step, valid_step=line_step)
        return learner.fit(streamed(rows=NET_ROWS), valid_data(9))


class SavingRun(EveryRun):
    """The run with every kind of state, saved after each step."""

    def build(self, directory, epochs=4):
        return super().build(directory, epochs, every_steps=1)


KINDS = {
    "every": EveryRun(),
    "light": LightRun(),
    "grain": GrainRun(),
    "net": NetRun(),
    "plateau": PlateauRun(),
    "saving": SavingRun(),
    "killed": KilledRun(),
}
EVERY, LIGHT, PLATEAU, SAVING, KILLED = (KINDS[name] for name in ("every", "light", "plateau", "saving", "killed"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, compiled_once):
    """Return the results of each kind of run without interruption."""
    results = {}

    def of(kind):
        if kind not in results:
            directory = tmp_path_factory.mktemp("whole") / "run"
            results[kind] = all_of(directory, kind.fit(kind.build(directory)))
        return results[kind]

    return of


def stopped_and_resumed(directory, kind, *steps):
    """Return the result of a run that was stopped after each of the steps."""
    for step in steps:
        stopped = kind.fit(stopping_at(kind.build(directory).resume(), step))
        assert (stopped.stopped_by, stopped.summary["steps"]) == ("interrupter: for the night", step)
        assert saved_steps(directory)[-1] == step
    return kind.fit(kind.build(directory).resume())


# -- anywhere ----------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_runs_have_the_described_properties(whole):
    """The control: without these properties, the comparisons below would prove little."""
    history = whole(EVERY)["history"]
    rows = [[int(row) for row in text.split()] for *_, text in history["train/Rows Seen"]]
    assert [sorted(seen) for seen in rows] == [list(range(21))] * 3
    assert rows[0] != rows[1] != rows[2]
    assert [value for *_, value in history["train/Steps Seen"]] == [STEPS, 2 * STEPS, END]
    assert [step for _, step, _ in history["valid/Loss"]] == [2, 3, 4, 6, 8, 9]
    assert "has not improved on" in whole(EVERY)["why it ended"]


@pytest.mark.full
def test_run_with_a_plateau_has_the_described_properties(whole):
    rates = [round(rate, 6) for _, _, rate in whole(PLATEAU)["history"]["train/Learning Rate"]]
    assert rates == [0.04, 0.04, 0.02, 0.01]
    assert len(whole(PLATEAU)["history"]["valid/Loss"]) == 8


EVERYWHERE = [("light", 5), *(("every", step) for step in range(1, END))]
EVERYWHERE += [("net", step) for step in (1, 4, NET_STEPS - 1, NET_STEPS, NET_STEPS + 1, 5 * NET_STEPS - 1)]
EVERYWHERE += [("plateau", step) for step in (2, 3, 6, 7)]
FEW = {("light", 5)}


@pytest.mark.parametrize(("kind", "step"), some(EVERYWHERE, FEW))
def test_resume_every_step(tmp_path, whole, kind, step):
    same(all_of(tmp_path / "run", stopped_and_resumed(tmp_path / "run", KINDS[kind], step)), whole(KINDS[kind]))


@pytest.mark.parametrize(("kind", "step"), some([("grain", step) for step in (2, STEPS, STEPS + 2)], ()))
def test_resume_dropout_shuffle_augment(tmp_path, whole, kind, step):
    """Grain draws by position; `test_resume_every_step` covers a loader with one continuing generator.
    `test_resume_iterable_source` has a smaller run over Grain's data.
    """
    same(all_of(tmp_path / "run", stopped_and_resumed(tmp_path / "run", KINDS[kind], step)), whole(KINDS[kind]))


@pytest.mark.full
def test_saving_steps_do_not_change_results(whole):
    for part in ("model", "history", "why it ended", "logs", "journal", "state"):
        assert whole(SAVING)[part] == whole(EVERY)[part], part


@pytest.mark.full
@pytest.mark.parametrize("step", [1, 2, STEPS, STEPS + 1, END])
def test_a_crash_inside_an_epoch_loses_one_step(tmp_path, whole, step):
    """The hook raises before the step is saved: the logs have it already."""
    directory = tmp_path / "run"
    with pytest.raises(CrashError):
        SAVING.fit(crashing_at(SAVING.build(directory), step))
    assert saved_steps(directory)[-1:] == [step - 1][: step - 1]
    same(all_of(directory, SAVING.fit(SAVING.build(directory).resume())), whole(SAVING))


class Broken:
    """Data that raise at one batch of one pass, both counted from 1."""

    def __init__(self, at_pass, at_batch):
        self.at, self.passes = (at_pass, at_batch), 0

    def fault(self, batch):
        self.passes += batch == 1
        if (self.passes, batch) == self.at:
            raise CrashError

    def validation(self):
        for number, batch in enumerate(valid_data(10), 1):
            self.fault(number)
            yield batch


@pytest.mark.full
@pytest.mark.parametrize("step", [1, 2, STEPS + 1, END])
def test_resume_inside_accumulation_window(tmp_path, whole, step):
    """The loader fails at the second micro-batch of a step. A run is saved between steps only: it resumes from the
    previous one, with the first micro-batch of the group, and keeps no part of a gradient.
    """
    directory = tmp_path / "run"
    epoch, group = divmod(step - 1, STEPS)
    broken = Broken(epoch + 1, group * GROUP + 2)
    with pytest.raises(CrashError):
        SAVING.fit(SAVING.build(directory), data=Augmented(broken.fault))
    assert saved_steps(directory)[-1:] == [step - 1][: step - 1]
    if step > 1 and group:
        position = progress_of(directory, step - 1)["position"]
        assert position == {
            "epoch": epoch + 1,
            "batch": group * GROUP,
            "step": step - 1,
            "in_epoch": group,
            **NOTHING_DUE,
        }
    same(all_of(directory, SAVING.fit(SAVING.build(directory).resume())), whole(SAVING))


@pytest.mark.parametrize(("number", "step"), some([(1, 2), (2, 3), (3, 4), (6, 9)], ()))
def test_resume_inside_validation(tmp_path, whole, number, step):
    """The second batch of the validation after a step fails: the step is repeated, and the whole validation."""
    directory = tmp_path / "run"
    broken = Broken(number, 2)
    with pytest.raises(CrashError):
        SAVING.fit(SAVING.build(directory), valid=broken.validation)
    assert saved_steps(directory)[-1] == step - 1
    (decisions,) = progress_of(directory, step - 1)["early_stopping"]
    assert (decisions["seen"], decisions["without"]) == (number - 1, max(0, number - 2))
    same(all_of(directory, SAVING.fit(SAVING.build(directory).resume())), whole(SAVING))


@pytest.mark.full
def test_stopping_again_before_an_interrupted_validation_begins(tmp_path):
    """The checkpoint saved then has the logs up to the validation, which has not started in this process."""

    def fit(directory, at=None, before=False):
        interrupter, data, given = Interrupter(), list(batches()), []

        def valid():
            for batch in data:
                given.append(batch)
                if len(given) == at:
                    interrupter.stop("now")
                yield batch

        if before:
            interrupter.stop("now")
        builder = quiet(directory, saves=True).num_epochs(3).resume().interrupter(interrupter)
        return build_line(builder).fit(data, valid)

    expected = all_of(tmp_path / "whole", fit(tmp_path / "whole"))
    directory, count = tmp_path / "run", len(list(batches()))
    for how in ({"at": count + 2}, {"before": True}, {"before": True}):
        stopped = fit(directory, **how)
        assert (stopped.stopped_by, stopped.summary["steps"]) == ("interrupter: now", 2 * count)
    same(all_of(directory, fit(directory)), expected)


def kill(directory, step, call):
    """Start a process that kills itself within a save, and return its exit code."""
    environment = os.environ | {
        "PYTHONPATH": str(Path(learner.__file__).parents[1]),
        "JAX_NUM_CPU_DEVICES": str(jax.device_count()),
        "JAX_COMPILATION_CACHE_DIR": jax.config.values["jax_compilation_cache_dir"],
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    script = Path(__file__).parents[1] / "support" / "killed.py"
    return subprocess.run([sys.executable, script, directory, str(step), call], env=environment, timeout=120).returncode


CALLS = (  # of a save, in order; `now` is its step, `then` that of the previous checkpoint
    "open {now}.saving",
    "os.fsync {now}.saving",
    "os.mkdir {now}.partial",
    "os.mkdir {now}.partial/state",
    "open {now}.partial/state/_METADATA",
    "open {now}.partial/_CHECKPOINT_METADATA",
    "os.mkdir {now}.partial/progress",
    "open {now}.partial/progress/metadata",
    "os.fsync {now}.partial/_CHECKPOINT_METADATA",
    "os.fsync {now}.partial/state/manifest.ocdbt",
    "os.fsync {now}.partial/state/_METADATA",
    "open {now}.partial/manifest.json",
    "os.fsync {now}.partial/manifest.json",
    "os.rename {now}.partial",
    "os.fsync .",
    "os.remove {now}.saving",
    "os.rename {then}",
    "shutil.rmtree {then}.removed/state",
    "os.remove {then}.removed/manifest.json",
    "os.rmdir {then}.removed",
    "return .",
)
# from this call on, the next process completes the checkpoint
WRITTEN = CALLS.index("os.fsync {now}.partial/manifest.json")
COMPLETE = CALLS.index("os.rename {now}.partial") + 1  # from this call on, the checkpoint is complete
MARKED = CALLS.index("os.remove {now}.saving")  # up to this call, the checkpoint is marked as being saved
REMOVING = CALLS.index("os.rename {then}") + 1, CALLS.index("return .")


@pytest.mark.parametrize(
    ("step", "point"),
    some(
        [
            *((5, n) for n in range(len(CALLS))),
            *((1, n) for n in (0, 2, 11, 13, 15)),
            *((KILLED.end, n) for n in range(WRITTEN, len(CALLS))),  # nothing is left to train or to save afterwards
        ],
        (),
    ),
)
def test_kill9_during_save(tmp_path, whole, step, point):
    """Kill between two system calls. Complete checkpoints load, incomplete ones are ignored, and another process
    resumes to identical bits.
    """
    directory, call = tmp_path / "run", CALLS[point].format(now=step, then=step - 1)
    assert kill(directory, step, call) == -signal.SIGKILL
    expected = [step] if point >= COMPLETE else [step - 1]
    if COMPLETE <= point < REMOVING[0]:
        expected = [step - 1, step]
    before = tree_of(directory)
    reader = CheckpointStore(directory / "checkpoint")
    assert (reader.steps, reader.damaged) == ([n for n in expected if n], {})
    for saved in reader.steps:
        reader.verify(saved)
    reader.close()
    assert tree_of(directory) == before
    unfinished = {p.name for p in (directory / "checkpoint").iterdir()} - {str(n) for n in reader.steps}
    assert bool(unfinished) == (0 < point <= MARKED or REMOVING[0] <= point < REMOVING[1])
    result = KILLED.fit(KILLED.build(directory).resume())
    assert [p.name for p in (directory / "checkpoint").iterdir()] == [str(KILLED.end)]
    same(all_of(directory, result), whole(KILLED))
    starts = [entry["step"] for entry in journal_of(directory) if entry["event"] == "start"]
    assert starts == [0, step if point >= WRITTEN else step - 1]


# -- what would be lost ------------------------------------------------------------------------------------------------


def without_in_flight(place):
    """Write the arrays of a checkpoint anew, without the metrics in flight."""
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer() as checkpointer:
        state = checkpointer.restore(place / "state")
        del state["in_flight"]
        checkpointer.save(place / "state", state, force=True)


LOST = {
    "the random key": lambda progress, place: progress.update(root_key=[0, 77]),
    "the position": lambda progress, place: progress["position"].update(batch=0, in_epoch=0),
    "the state of the data": lambda progress, place: progress["data"].update(next=2),
    "metrics in flight": lambda progress, place: without_in_flight(place),
    "metrics on the host": lambda progress, place: progress.update(host_metrics={}),
    "early stopping": lambda progress, place: progress.update(early_stopping=[]),
    "the history": lambda progress, place: progress.update(history={}),
}


@pytest.mark.parametrize("part", some(LOST, ()))
def test_resume_negative_control(tmp_path, whole, part):
    """The comparisons of the tests above fail when state is lost on purpose."""
    directory = tmp_path / "run"
    EVERY.fit(stopping_at(EVERY.build(directory), 4))
    progress = progress_of(directory, 4)
    LOST[part](progress, directory / "checkpoint" / "4")
    tamper(directory, 4, progress)
    resumed, expected = all_of(directory, EVERY.fit(EVERY.build(directory).resume())), whole(EVERY)
    assert resumed["history"] != expected["history"]


@pytest.mark.full
def test_resume_negative_control_of_the_plateau(tmp_path, whole):
    directory = tmp_path / "run"
    PLATEAU.fit(stopping_at(PLATEAU.build(directory), 3))
    tamper(directory, 3, progress_of(directory, 3) | {"plateau": None})
    resumed = all_of(directory, PLATEAU.fit(PLATEAU.build(directory).resume()))
    assert resumed["history"] != whole(PLATEAU)["history"]


# -- again, and on -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "steps"), some([("plateau", (1, 5)), ("every", (2, 4, 7))], {("plateau", (1, 5))}))
@pytest.mark.full
def test_resume_twice_and_more_epochs(tmp_path, whole, kind, steps):
    """First as a run of two epochs; the schedule is that of the whole run."""
    directory, run = tmp_path / "run", KINDS[kind]
    for step in steps:
        run.fit(stopping_at(run.build(directory, epochs=3 if step > steps[0] else 2).resume(), step))
        assert saved_steps(directory)[-1] == step
    short = run.fit(run.build(directory, epochs=3).resume())
    assert short.stopped_by == ("num_epochs" if kind == "plateau" else whole(run)["why it ended"])
    if kind == "every":
        same(all_of(directory, short), whole(run))
    same(all_of(directory, run.fit(run.build(directory).resume())), whole(run))
    assert [entry["step"] for entry in journal_of(directory) if entry["event"] == "start"][:3] == [0, *steps[:2]]


@pytest.mark.full
def test_a_run_whose_checkpoints_are_lost_keeps_its_logs(tmp_path):
    def fit(**options):
        builder = quiet(tmp_path / "run", saves=True, **options).num_epochs(2)
        return build_line(builder if options else builder.resume()).fit(batches())

    fit()
    shutil.move(tmp_path / "run/checkpoint", tmp_path / "lost")
    before = tree_of(tmp_path / "run")
    with raises_code("resume-checkpoints-lost", "overwrite=True", str(tmp_path / "run/checkpoint"), step=12):
        fit()
    assert {name: value for name, value in tree_of(tmp_path / "run").items() if "lock" not in name} == before
    shutil.move(tmp_path / "lost", tmp_path / "run/checkpoint")
    assert fit().stopped_by == "num_epochs"
    shutil.rmtree(tmp_path / "run/checkpoint")
    assert fit(overwrite=True).summary["steps"] == 12


@pytest.mark.full
def test_resume_without_a_run(tmp_path, whole):
    directory = tmp_path / "run"
    same(all_of(directory, PLATEAU.fit(PLATEAU.build(directory).resume())), whole(PLATEAU))


@pytest.mark.parametrize("torn", some([False, True], {True}))
def test_a_crash_before_the_first_checkpoint(tmp_path, whole, torn):
    directory = tmp_path / "run"
    with pytest.raises(CrashError):
        LIGHT.fit(crashing_at(LIGHT.build(directory), 1))
    assert saved_steps(directory) == []
    if torn:
        (directory / "checkpoint" / "2.partial.orbax-checkpoint-tmp" / "model").mkdir(parents=True)
        with (directory / "journal.jsonl").open("a") as journal:
            journal.write('{"event": "epo')
    same(all_of(directory, LIGHT.fit(LIGHT.build(directory).resume())), whole(LIGHT))
    assert "starts over" in (directory / "experiment.log").read_text()


FINISHED = {
    "num_epochs": lambda b: b.num_epochs(2),
    "num_steps inside of an epoch": lambda b: b.num_steps(8),
    "early stopping": lambda b: b.num_epochs(9).early_stopping(MetricEarlyStopping("valid/Loss", "max", patience=1)),
}


@pytest.mark.parametrize("how", some(FINISHED, {"num_steps inside of an epoch"}))
def test_resume_finished_run(tmp_path, how, capsys):
    """It returns at once, writes nothing and shows one line, unless it is silent."""
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
    with raises_code("learner-already-fitted"):
        learner.fit(shuffled())
    assert capsys.readouterr().out == ""
    build_line(make().resume().renderer(PlainRenderer())).fit(shuffled(), valid_data())
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{tmp_path / 'run'} has nothing left to do: ")


@pytest.mark.full
def test_finished_run_warns_of_changes(tmp_path):
    def fit(lr, scale=1.0):
        def train(model, batch):
            return line_step(jax.tree.map(lambda x: scale * x, model), batch)

        builder = quiet(tmp_path, saves=True).num_epochs(1).resume()
        return builder.build(line(), optax.sgd, lr, train_step=train, valid_step=train).fit(batches())

    first = fit(0.05)
    for lr, scale, word in ((0.5, 1.0, "learning rate"), (0.05, 2.0, "train step")):
        with pytest.warns(UserWarning, match=f"nothing left to train.*{word}"):
            assert fit(lr, scale).history == first.history


# -- rates and decisions -----------------------------------------------------------------------------------------------


def rates_in(directory):
    """Return the logged rate of each step."""
    logs = sorted((directory / "train").glob("epoch-*/Learning_Rate.log"))
    return [line.split(",")[0] for log in logs for line in log.read_text().splitlines() if not line.endswith("final")]


@pytest.mark.parametrize("step", some([3, 4, 5, 6, 8], {4}))
def test_resume_lr_off_by_one(tmp_path, step):
    """Steps 1 to 4 have the first rate, 5 to 8 the second, the others the third: also when the run is stopped before,
    on or after a milestone. Step 6 is no milestone but the end of an epoch.
    """
    schedule = optax.piecewise_constant_schedule(0.125, {4: 0.5, 8: 0.5})
    directory, rates = tmp_path / "run", ["0.125"] * 4 + ["0.0625"] * 4 + ["0.03125"] * 4
    make = lambda: quiet(directory).num_epochs(2).metric_train(LearningRate()).with_file_checkpointer()  # noqa: E731
    build_line(stopping_at(make(), step), schedule).fit(shuffled())
    assert rates_in(directory) == rates[:step]
    resumed = build_line(make().resume(), schedule).fit(shuffled())
    assert rates_in(directory) == rates
    w, b = np.zeros((3, 1), np.float32), np.zeros(1, np.float32)
    for epoch in (1, 2):
        loader = shuffled()
        for number, batch in enumerate(loader.epoch(epoch)):
            residual = batch["x"] @ w + b - batch["t"]
            rate = float(rates[(epoch - 1) * NET_STEPS + number])
            w, b = w - rate * 2 * batch["x"].T @ residual / len(residual), b - rate * 2 * residual.mean(0)
    np.testing.assert_allclose(resumed.model["w"], w, rtol=1e-5)
    np.testing.assert_allclose(resumed.model["b"], b, rtol=1e-5)


@pytest.mark.full  # by default, `test_resume_every_step` covers partly used patience
@pytest.mark.parametrize("cut", [1, 3, 5])
def test_resume_early_stopping(tmp_path, cut):
    """The best loss is that of epoch 2; four worse ones in a row end the run with epoch 6, wherever it was stopped,
    including before the validation of that epoch.
    """
    losses, seen = [4.0, 1.0, 9.0, 4.0, 1.0, 16.0, 25.0], []
    without = [0, 0, 1, 2, 3, 4]

    def make():
        stopping = MetricEarlyStopping("valid/Loss", patience=4)
        return quiet(tmp_path / "run").num_epochs(7).early_stopping(stopping).with_file_checkpointer(keep_last=9)

    build_line(stopping_at(make(), cut), 0.0).fit(batches()[:1], scripted(*losses))
    result = build_line(make().resume(), 0.0).fit(batches()[:1], scripted(*losses[cut - 1 :]))
    assert result.stopped_by == "early stopping: valid/Loss has not improved on 1 for 4 validations"
    assert result.summary["epochs"] == 6
    for step in saved_steps(tmp_path / "run"):
        seen += progress_of(tmp_path / "run", step)["early_stopping"]
    assert [state["without"] for state in seen] == without
    assert [state["seen"] for state in seen] == [1, 2, 3, 4, 5, 6]
    assert [state["best"] for state in seen] == [4.0, 1.0, 1.0, 1.0, 1.0, 1.0]


# -- what stays on the disk --------------------------------------------------------------------------------------------


@pytest.fixture
def after_each_save(monkeypatch):
    """Return the steps on disk after each save."""
    kept, save = [], CheckpointStore.save

    def saving(self, step, items, progress):
        save(self, step, items, progress)
        kept.append(sorted(int(p.name) for p in self.place.root.iterdir() if p.name.isdigit()))

    monkeypatch.setattr(CheckpointStore, "save", saving)
    return kept


def test_permanent_checkpoints_stay_if_the_option_changes(tmp_path, after_each_save):
    for epochs, options in ((4, {"keep_every": 2}), (5, {}), (7, {"keep_every": 3})):
        builder = quiet(tmp_path / "run").num_epochs(epochs).resume()
        builder.with_file_checkpointer(keep_last=1, keep_best=0, **options)
        build_line(builder, 0.0).fit(batches()[:1])
    assert after_each_save == [[1], [2], [2, 3], [2, 4], [2, 4, 5], [2, 4, 6], [2, 4, 6, 7]]


@pytest.mark.full  # by default, `test_best.py` covers retention over two epochs each, and `test_store.py` that of saves
@pytest.mark.parametrize("cut", [None, 3])
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
        pytest.param(
            {"keep_last": 1, "keep_best": 1, "keep_every": 2},
            [NAN, 4.0, 1.0, 1.0, 9.0, NAN],
            [[1], [2], [2, 3], [2, 3, 4], [2, 3, 4, 5], [2, 3, 4, 6]],
            id="all three",
        ),
    ],
)
def test_retention_exact(tmp_path, after_each_save, options, losses, kept, cut):
    """One step per epoch; the losses are scripted, as the rate is 0."""
    epochs = [len(losses)] if cut is None else [cut, len(losses)]
    done = 0
    for number in epochs:
        builder = quiet(tmp_path / "run").num_epochs(number).with_file_checkpointer(**options).resume()
        result = build_line(builder, 0.0).fit(batches()[:1], scripted(*losses[done:number]))
        done = number
    assert after_each_save == kept
    assert [entry["step"] for entry in result.summary["checkpoints"]] == kept[-1]
    np.testing.assert_allclose(result.history["valid/Loss"], losses, rtol=1e-6)


@pytest.mark.full
def test_resume_best_topk(tmp_path, after_each_save):
    """Checkpoints that were among the best before a crash stay next to worse ones; foreign files are not removed."""
    others = [tmp_path / "run" / "checkpoint" / "notes", tmp_path / "run" / "2", tmp_path / "checkpoint" / "1"]

    def make(crash):
        builder = quiet(tmp_path / "run").num_epochs(6).with_file_checkpointer(keep_last=1, keep_best=2)
        return crashing_at(builder, crash).resume()

    with pytest.raises(CrashError):
        build_line(make(4), 0.0).fit(batches()[:1], scripted(9.0, 0.25, 1.0, 0.0625))
    for place in others:
        place.mkdir(parents=True)
        (place / "model").write_text("somebody else's")
    result = build_line(make(99), 0.0).fit(batches()[:1], scripted(16.0, 4.0, 0.5))
    assert after_each_save == [[1], [1, 2], [2, 3], [2, 3, 4], [2, 3, 5], [2, 6]]
    assert [(entry["step"], entry["best"]) for entry in result.summary["checkpoints"]] == [(2, True), (6, False)]
    assert [(place / "model").read_text() for place in others] == ["somebody else's"] * 3


# -- logs --------------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("torn", some([False, True], {True}))
def test_resume_logger_steps(tmp_path, whole, torn):
    """The logs are ahead of the checkpoint: rewritten values appear once."""
    directory = tmp_path / "run"
    with pytest.raises(CrashError):
        PLATEAU.fit(crashing_at(PLATEAU.build(directory), 5))
    assert saved_steps(directory) == [2, 4]
    assert len(logs_of(directory)["train/epoch-3/Loss.log"].splitlines()) == 1
    if torn:
        for log in ("train/epoch-3/Loss.log", "valid/epoch-3/Loss.log"):
            with (directory / log).open("a") as file:
                file.write("0.12")
    same(all_of(directory, PLATEAU.fit(PLATEAU.build(directory).resume())), whole(PLATEAU))
    for epoch in range(1, 5):
        ends = [line.split(",")[1] for line in logs_of(directory)[f"train/epoch-{epoch}/Loss.log"].splitlines()]
        assert ends == ["16", "6", "final"]
        ends = [line.split(",")[1] for line in logs_of(directory)[f"valid/epoch-{epoch}/Loss.log"].splitlines()]
        assert ends == ["9", "9", "2", f"final@{2 * epoch - 1}", "9", "9", "2", "final"]
    events_logged = [(line["event"], line["step"]) for line in numbers_of(directory)]
    assert events_logged == [("validation" if step % 2 else "epoch", step) for step in range(1, 9)]
    events = [entry["event"] for entry in journal_of(directory)]
    assert [event for event in events if event in ("start", "error", "stop")] == ["start", "error", "start", "stop"]


# -- something else than before ----------------------------------------------------------------------------------------


def momentum(lr):
    return optax.sgd(lr, momentum=0.9)


def first_column(model, batch):
    return line_step({"w": model["w"][:, :1], "b": model["b"][:1].astype(jnp.float32)}, batch)


SHAPES = (("w", "[3, 1]"), ("b", "[1]"))
CHANGED = {
    "width": (
        {"model": {"w": jnp.zeros((3, 2)), "b": jnp.zeros((2,))}},
        [
            f"{part}{name}: saved float32{saved}, now float32{now}"
            for part in ("params/", "opt_state/0.trace.")
            for name, saved, now in (("w", "[3, 1]", "[3, 2]"), ("b", "[1]", "[2]"))
        ],
    ),
    "dtype": (
        {"model": {"w": jnp.zeros((3, 1)), "b": jnp.zeros((1,), jnp.bfloat16)}},
        [f"{name}: saved float32[1], now bfloat16[1]" for name in ("params/b", "opt_state/0.trace.b")],
    ),
    "a layer more": (
        {"model": line() | {"scale": jnp.zeros((2,))}},
        [f"{part}scale: saved nothing, now float32[2]" for part in ("params/", "opt_state/0.trace.")],
    ),
    "optimizer": (
        {"optimizer": optax.adam},
        [
            *(f"opt_state/0.trace.{name}: saved float32{shape}, now nothing" for name, shape in SHAPES),
            "opt_state/0.count: saved nothing, now int32[]",
            *(
                f"opt_state/0.{part}.{name}: saved nothing, now float32{s}"
                for part in ("mu", "nu")
                for name, s in SHAPES
            ),
        ],
    ),
    "batch size": ({"data": batches(3)}, ["batches 6 -> 8", "rows per batch 4 -> 3"]),
    "less data": ({"data": batches()[:5]}, ["rows 24 -> 20", "batches 6 -> 5"]),
    "accumulation": ({"accumulate": 3}, ["micro-batches per step: 2 -> 3"]),
}


def fit_first_column(builder, model=None, optimizer=momentum, data=None, accumulate=2):
    builder.num_epochs(3).grads_accumulation(accumulate).with_file_checkpointer()
    learner = builder.build(model or line(), optimizer, 0.1, train_step=first_column)
    return learner.fit(data or batches())


@pytest.fixture(scope="module")
def stopped_at_2(tmp_path_factory, compiled_once):
    """Return a run that stopped within its first epoch."""
    directory = tmp_path_factory.mktemp("stopped") / "run"
    fit_first_column(stopping_at(quiet(directory), 2))
    return directory


@pytest.mark.parametrize("what", some(CHANGED, {"batch size"}))
def test_resume_config_changed(tmp_path, stopped_at_2, what):
    """One error lists all differences, with both values; nothing is written."""
    shutil.copytree(stopped_at_2, tmp_path / "run")
    before = tree_of(tmp_path)
    changes, differences = CHANGED[what]
    with raises_code("resume-differs") as error:
        fit_first_column(quiet(tmp_path / "run").resume(), **changes)
    message = str(error.value)
    for difference in differences:
        assert difference in message
    assert message.count(" now ") + message.count(" -> ") == len(differences)
    assert "step 2 lies inside epoch 1" in message or f"{tmp_path / 'run'}/checkpoint/2 was saved by another" in message
    assert tree_of(tmp_path) == before
    assert fit_first_column(quiet(tmp_path / "run").resume()).summary["steps"] == 9


@pytest.mark.full
def test_other_batches_from_the_end_of_an_epoch(tmp_path):
    """There, the position has a meaning whatever the batches are."""
    build_line(quiet(tmp_path / "run").with_file_checkpointer().num_epochs(1)).fit(batches())
    builder = quiet(tmp_path / "run").with_file_checkpointer().num_epochs(2).resume()
    assert build_line(builder).fit(batches(3)).summary["steps"] == 6 + 8
