"""Tests of signals to a run: the saved checkpoint, the raised error, and cleanup."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import jax
import pytest
import yaml

import learner
from learner.cli.main import main
from learner.util.executables import THREADS
from tests.support.phases import CONFIG
from tests.support.processes import ROOT
from tests.support.runs import (
    STEPS,
    batches,
    build_line,
    checkpoint_bits,
    journal_of,
    logs_of,
    numbers_of,
    quiet,
    saved_steps,
    shuffled,
)
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("compiled_once")

INT, TERM, USR1 = signal.SIGINT, signal.SIGTERM, signal.SIGUSR1
SECONDS = 60  # timeout of a process


def press(*numbers):
    for number in numbers:
        os.kill(os.getpid(), number)


def at_step(step, do):
    return lambda info, model: do() if info.step == step else None


def left_by(directory):
    """Return everything that a run wrote whose bits do not depend on when it was stopped."""
    steps = saved_steps(directory)
    return logs_of(directory), numbers_of(directory), steps, checkpoint_bits(directory, steps[-1])


@pytest.fixture(autouse=True)
def handlers():
    """Start each test with Python's own handlers, and restore them."""
    defaults = {INT: signal.default_int_handler, TERM: signal.SIG_DFL, USR1: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    yield defaults
    for number, previous in before.items():
        signal.signal(number, previous)


# -- SIGTERM to a real process -----------------------------------------------------------------------------------------


def started(phase, directory):
    """Start `learner fit` as a separate process that pauses in a phase."""
    (directory / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    environment = os.environ | {
        "PYTHONPATH": str(Path(learner.__file__).parents[1]),
        "PHASE": phase,
        "JAX_COMPILATION_CACHE_DIR": jax.config.values["jax_compilation_cache_dir"],
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    words = [sys.executable, "-m", "learner", "fit", "config.yaml"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(words, cwd=directory, env=environment, text=True, **pipes)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        Path("config.yaml").write_text(yaml.safe_dump(CONFIG))
        assert main(["fit", "config.yaml"]) == 0
    return left_by(directory / "run")


PHASES = {  # the completed steps at each phase, `None` before the run exists
    "import": None,
    "first_look": None,
    "compile": 1,
    "train": 5,
    "accumulate": 5,
    "data_wait": 4,  # at most: the loader runs ahead of the steps
    "validation": 6,
    "checkpoint": 5,
    "epoch_end": 6,
}


def wait_until_here(process):
    """Read the stages before the first step, and the line of the phase, which may follow one of them."""
    while not (line := process.stdout.readline()).endswith("here\n"):
        assert line, "the process has ended"


@pytest.mark.parametrize("phase", some(PHASES, ()))
def test_sigterm_in(tmp_path, monkeypatch, undisturbed, phase):
    """The command exits with 143 and a checkpoint of its position, and resumes to identical bits."""
    with started(phase, tmp_path) as process:
        wait_until_here(process)
        process.send_signal(TERM)
        if phase == "checkpoint":
            assert process.stdout.readline() == "signalled\n"  # training is at step 5, the save of step 3 is incomplete
            assert saved_steps(tmp_path / "run") == []
        if phase not in ("data_wait", "validation"):  # missing data are not waited for; everything else is
            process.stdin.close()
        assert process.wait(SECONDS) == 143
        output = process.stdout.read(), process.stderr.read()
    monkeypatch.chdir(tmp_path)
    if PHASES[phase] is None:
        assert re.fullmatch(r"( [0-9.]+ m?s\n)?", output[0])  # the end of a stage
        assert output[1] == "learner: interrupted\n"
        assert not Path("run").exists()
        assert main(["fit", "config.yaml"]) == 0
    else:
        assert output == ("", "learner: interrupted; resume with: learner resume run\n")
        last = journal_of("run")[-1]
        assert (last["event"], last["stopped_by"]) == ("stop", "sigterm")
        assert saved_steps("run")[-1] == last["step"]
        assert last["step"] in (range(PHASES[phase] + 1) if phase == "data_wait" else [PHASES[phase]])
        assert main(["resume", "run"]) == 0
    assert left_by("run") == undisturbed


# -- a second signal ---------------------------------------------------------------------------------------------------


def ends_at_once(directory, numbers, error):
    """Check that the run ends at once, without another checkpoint, and resumes from the previous one."""
    builder = quiet(directory).num_epochs(3).with_file_checkpointer(keep_last=9)
    run = build_line(builder.every(steps=1, fn=at_step(STEPS + 2, lambda: press(*numbers))))
    before = set(threading.enumerate())
    with pytest.raises(error) as ended:
        run.fit(shuffled())
    assert saved_steps(directory) == [STEPS]
    assert journal_of(directory)[-1]["event"] == "error"
    left = set(threading.enumerate()) - before
    for thread in left:
        if thread.name.startswith(THREADS):
            thread.join(SECONDS)  # XLA cannot be interrupted, and the run does not wait for it
    assert not [thread.name for thread in left if thread.name.startswith("learner") and thread.is_alive()]
    going_on = quiet(directory).num_epochs(3).with_file_checkpointer(keep_last=9).resume()
    assert build_line(going_on).fit(shuffled()).stopped_by == "num_epochs"
    assert saved_steps(directory) == [STEPS, 2 * STEPS, 3 * STEPS]
    return ended.value


def test_sigterm_twice(tmp_path, handlers):
    assert ends_at_once(tmp_path / "run", [TERM, TERM], SystemExit).code == 143
    assert {number: signal.getsignal(number) for number in handlers} == handlers


@pytest.mark.full
def test_sigterm_twice_while_nothing_moves(tmp_path):
    """A hook never returns: the second signal ends the run."""
    with started("train", tmp_path) as process:
        wait_until_here(process)
        process.send_signal(TERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
        process.send_signal(TERM)
        assert process.wait(SECONDS) == 143
        assert process.stderr.read() == "learner: interrupted; resume with: learner resume run\n"
    assert saved_steps(tmp_path / "run") == [3]
    assert journal_of(tmp_path / "run")[-1]["event"] == "error"


@pytest.mark.full
def test_sigterm_twice_while_the_disk_hangs(tmp_path, monkeypatch, undisturbed):
    """The first signal waits for the save; the second one does not."""
    with started("checkpoint", tmp_path) as process:
        wait_until_here(process)
        process.send_signal(TERM)
        assert process.stdout.readline() == "signalled\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
        process.send_signal(TERM)
        assert process.wait(SECONDS) == 143
    assert saved_steps(tmp_path / "run") == []
    monkeypatch.chdir(tmp_path)
    assert main(["resume", "run"]) == 0
    assert left_by("run") == undisturbed


@pytest.mark.full
def test_sigint_then_sigint(tmp_path, handlers):
    ends_at_once(tmp_path / "run", [INT, INT], KeyboardInterrupt)
    assert {number: signal.getsignal(number) for number in handlers} == handlers


# -- in a notebook, and among others' handlers -------------------------------------------------------------------------


def test_sigint_notebook(tmp_path, handlers):
    """The cell returns the result so far, which can be used; the next cell resumes."""

    def build(name):
        return quiet(tmp_path / name).num_epochs(4).with_file_checkpointer(keep_last=9)

    stopped = build_line(build("run").every(steps=1, fn=at_step(STEPS + 2, lambda: press(INT))))
    result = stopped.fit(shuffled(), batches(8))
    assert (result.stopped_by, result.summary["steps"]) == ("ctrl-c", STEPS + 2)
    assert len(result.history["valid/Loss"]) == 1
    assert saved_steps(tmp_path / "run") == [STEPS, STEPS + 2]
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    with pytest.raises(KeyboardInterrupt):
        press(INT)
    new = build_line(quiet(tmp_path / "new"))
    assert stopped.evaluate(batches(8))["Loss"] < new.evaluate(batches(8))["Loss"]  # it has learned something
    resumed = build_line(build("run").resume()).fit(shuffled(), batches(8))
    assert (resumed.stopped_by, resumed.summary["steps"]) == ("num_epochs", 4 * STEPS)
    assert len(resumed.history["valid/Loss"]) == 4


def test_handler_chaining_and_restore(tmp_path):
    """Other handlers also receive the signals, and are restored whatever happens to the run."""
    received = []
    mine = {number: lambda n, frame: received.append(n) for number in (INT, TERM, USR1)}
    for number, handler in mine.items():
        signal.signal(number, handler)

    def fit(name, do):
        builder = quiet(tmp_path / name).num_epochs(1).on_sigterm("return")
        return build_line(builder.every(steps=1, fn=at_step(2, do))).fit(shuffled())

    assert fit("saved", lambda: press(USR1)).stopped_by == "num_epochs"
    assert fit("interrupted", lambda: press(INT)).stopped_by == "ctrl-c"
    assert fit("terminated", lambda: press(TERM)).stopped_by == "sigterm"
    assert received == [USR1, INT, TERM]
    with pytest.raises(ZeroDivisionError):
        fit("failed", lambda: 1 / 0)
    inside, ends = [], []

    def elsewhere():
        look = lambda: inside.append({number: signal.getsignal(number) for number in mine})  # noqa: E731
        ends.append(fit("in another thread", look).stopped_by)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert ends == ["num_epochs"]
    assert inside == [mine]
    assert {number: signal.getsignal(number) for number in mine} == mine
    press(INT, TERM, USR1)
    assert received[3:] == [INT, TERM, USR1]


LONG_STEP = """
import sys
import jax, jax.numpy as jnp, numpy as np, optax
from learner import LearnerBuilder
from learner.renderers import PlainRenderer

def step(model, batch):
    layer = lambda h, _: (jnp.tanh(h @ model["w"]), None)
    return {"loss": jnp.mean(jax.lax.scan(layer, batch["x"], None, length=2000)[0] ** 2)}

builder = LearnerBuilder(sys.argv[1]).renderer(PlainRenderer()).with_batch_size(128).num_epochs(100)
data = {"x": np.ones((128, 256), np.float32)}
builder.build({"w": jnp.eye(256) / 2}, optax.adam, 1e-4, train_step=step).fit(data)
"""


@pytest.mark.full
def test_a_second_ctrl_c_in_a_script_ends_it_while_a_step_is_computed(tmp_path):
    """The reporter's thread is in C++, from where it must not return while Python finalizes: that aborts."""
    command = [sys.executable, "-u", "-c", LONG_STEP, str(tmp_path / "run")]
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        for words in ("epoch 1/", "again to end now"):
            assert any(words in line for line in process.stdout)
            process.send_signal(INT)
        _, error = process.communicate(timeout=SECONDS)
    assert (process.returncode, error.splitlines()[-1]) == (-INT, "KeyboardInterrupt")
