"""Tests of logs: losses after a kill, cost per line, and format."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import learner
from learner import Interrupter, LearnerBuilder
from learner.cli.main import main
from learner.loggers import RunFiles
from learner.renderers import PlainRenderer
from learner.runs.history import read_history
from learner.util.text import short
from tests.support.runs import ROWS, STEPS, batches, build_line, journal_of, logs_of, numbers_of, quiet, shuffled

pytestmark = pytest.mark.usefixtures("compiled_once")

# -- a kill ------------------------------------------------------------------------------------------------------------

PASSES, EPOCHS = 67, 3  # 67 batches in an epoch: 402 steps, so that step 1000 is in the middle of the third
EACH, MOST = 0.003, 0.5  # seconds of the files' clock per step, and seconds that may be lost

PROGRAM = f"""
import os, signal, sys
from learner.loggers import RunFiles
from tests.support.runs import batches, build_line, quiet

now, init = [0.0], RunFiles.__init__
RunFiles.__init__ = lambda files, directory, clock, *rest: init(files, directory, lambda: now[0], *rest)

def tick(info, model):
    now[0] += {EACH}
    if info.step == 1000:
        os.kill(os.getpid(), signal.SIGKILL)

builder = quiet(sys.argv[1], saves=True).num_epochs({EPOCHS}).with_file_checkpointer().every(1, tick)
build_line(builder).fit(batches() * {PASSES})
"""


def lines_of(text):
    """Return the values of a metric file, whose lines must all be complete."""
    assert text.endswith("\n")
    lines = [line.split(",") for line in text.splitlines()]
    return [(float(value), weight if weight == "final" else float(weight)) for value, weight in lines]


@pytest.mark.full
def test_kill9_log_loss(tmp_path, capsys):
    """A process killed after 1000 steps loses at most the lines of half a second, and torn lines do no harm."""
    build = lambda name: quiet(tmp_path / name).num_epochs(EPOCHS).with_file_checkpointer()  # noqa: E731
    whole = build_line(build("whole")).fit(batches() * PASSES)
    environment = os.environ | {"PYTHONPATH": str(Path(learner.__file__).parents[1])}
    run = tmp_path / "run"
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(run)], env=environment, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL

    logs, expected = logs_of(run), {path: lines_of(text) for path, text in logs_of(tmp_path / "whole").items()}
    lines = {path: lines_of(text) for path, text in logs.items()}
    for epoch in (1, 2):
        assert lines[f"train/epoch-{epoch}/Loss.log"] == expected[f"train/epoch-{epoch}/Loss.log"]
    third = lines["train/epoch-3/Loss.log"]
    in_third = 1000 - 2 * PASSES * STEPS
    assert in_third - MOST / EACH - 1 <= len(third) <= in_third
    assert third == expected["train/epoch-3/Loss.log"][: len(third)]
    assert [line["event"] for line in journal_of(run)][:2] == ["start", "epoch"]

    for path, torn in {"journal.jsonl": b'{"event": "epo', "train/epoch-3/Loss.log": b"0.0"}.items():
        with open(run / path, "ab") as file:
            file.write(torn)
    history = read_history(run)
    assert history["train/Loss"] == whole.history["train/Loss"][:2]
    assert main(["summary", str(run)]) == 0
    head, titles, row, *_ = capsys.readouterr().out.splitlines()
    assert head == f"{run}: this run has not ended (died)"
    assert titles.split() == ["metric", "best", "epoch", "last"]
    assert (row.split()[0], row.split()[-1]) == ("train/Loss", short(history["train/Loss"][-1]))
    resumed = build_line(build("run").resume()).fit(batches() * PASSES)
    assert resumed.history == whole.history
    assert logs_of(run) == logs_of(tmp_path / "whole")
    assert numbers_of(run) == numbers_of(tmp_path / "whole")


# -- what a line costs -------------------------------------------------------------------------------------------------


def test_log_cost_linear(tmp_path, monkeypatch):
    """Write 100 000 rows of two metrics: each tenth costs the same number of bytes and system calls."""
    calls, write, open_ = [], os.write, os.open
    monkeypatch.setattr(os, "write", lambda to, content: calls.append(len(content)) or write(to, content))
    monkeypatch.setattr(os, "open", lambda path, *rest: calls.append(str(path)) or open_(path, *rest))
    now = [0.0]
    files, costs = RunFiles(tmp_path, lambda: now[0]), []
    rows, row = np.full(10, 0.5, np.float32), len("0.5,0.5\n")
    for dispatch in range(10_000):
        now[0] += 1 / 64
        files.steps("train", 1, {"Loss": rows, "Accuracy": rows}, rows)
        if (dispatch + 1) % 1000 == 0:
            files.flush()
            costs.append(calls.copy())
            calls.clear()
    files.close()
    assert [call for cost in costs for call in cost if isinstance(call, str)] == [
        f"{tmp_path}/train/epoch-1/{name}.log" for name in ("Loss", "Accuracy")
    ]
    written = [[call for call in cost if isinstance(call, int)] for cost in costs]
    assert [sum(part) for part in written] == [2 * 10_000 * row] * 10  # each row once
    in_half_a_second = 64 * MOST
    assert {len(part) for part in written} <= {2 * int(1000 / in_half_a_second + n) for n in (0, 1)}
    assert max(map(max, written)) <= (in_half_a_second + 1) * 10 * row
    assert (tmp_path / "train/epoch-1/Loss.log").stat().st_size == 100_000 * row


# -- what they look like -----------------------------------------------------------------------------------------------


@pytest.mark.full
def test_new_metric_midway(tmp_path):
    """A hook returns a new value from step 8: files, journal, history and summary contain it."""

    def hook(info, model):
        return {"old": info.step, **({"new": -info.step} if info.step >= 8 else {})}

    def build(name, stop=None):
        interrupter = Interrupter()
        builder = LearnerBuilder(tmp_path / name).num_epochs(3).with_file_checkpointer().every(2, hook)
        if stop is not None:
            builder.interrupter(interrupter).every(stop, lambda info, model: interrupter.stop("now"))
        return builder.renderer(PlainRenderer(out))

    out = io.StringIO()
    result = build_line(build("run")).fit(shuffled(rows=ROWS))
    assert result.history["custom/old"] == [float(step) for step in range(2, 19, 2)]
    assert [(p.step, p.value) for p in result.history.points("custom/new")] == [(s, -s) for s in range(8, 19, 2)]
    logs = logs_of(tmp_path / "run")
    assert logs["custom/epoch-1/old.log"] == "2.0,final@2\n4.0,final@4\n6.0,final@6\n"
    assert "custom/epoch-1/new.log" not in logs
    assert logs["custom/epoch-2/new.log"] == "-8.0,final@8\n-10.0,final@10\n-12.0,final@12\n"
    assert {len(line.split(",")) for text in logs.values() for line in text.splitlines()} == {2}
    assert read_history(tmp_path / "run") == result.history
    assert result.summary["metrics"]["custom/new"]["last"] == {"epoch": 3, "step": 18, "value": -18.0}
    assert "WARNING" not in (tmp_path / "run" / "experiment.log").read_text()
    shown = [line for line in out.getvalue().splitlines() if line.startswith("epoch ")]
    assert [("old" in line, "new" in line) for line in shown] == [(True, False), (True, True), (True, True)]
    for stop in (6, 10):  # before the first value, and after it
        build_line(build(f"stopped at {stop}", stop)).fit(shuffled(rows=ROWS))
        build_line(build(f"stopped at {stop}").resume()).fit(shuffled(rows=ROWS))
        assert logs_of(tmp_path / f"stopped at {stop}") == logs
        assert numbers_of(tmp_path / f"stopped at {stop}") == numbers_of(tmp_path / "run")


@pytest.mark.full
@pytest.mark.parametrize("ends", ["well", "badly"])
def test_not_a_tty(tmp_path, ends):
    """With standard output to a file: a line for each epoch, and the lines about the whole run."""

    def broken(info, model):
        if ends == "badly" and info.epoch == 20:
            raise RuntimeError("\x1b[31mred\r\n")

    builder = LearnerBuilder(tmp_path / "run").num_epochs(20).with_file_checkpointer(None).summary()
    with open(tmp_path / "out.txt", "w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        run = build_line(builder.on_epoch_end(broken))
        with pytest.raises(RuntimeError) if ends == "badly" else contextlib.nullcontext():
            run.fit(shuffled(rows=ROWS), batches(8))
    content = (tmp_path / "out.txt").read_bytes()
    assert not {b"\r", b"\b", b"\x1b"} & {content[i : i + 1] for i in range(len(content))}
    lines = content.decode().splitlines()
    assert lines[0].startswith("dict (pytree) ")
    start = next(i for i, line in enumerate(lines) if line.endswith("run: 20 epochs of 6 steps, 4 parameters"))
    assert lines[start - 1].startswith("compiled in ")
    lines = lines[start:]
    epochs = [line.split()[1] for line in lines if line.startswith("epoch ")]
    assert epochs == [f"{epoch}/20" for epoch in range(1, 21 - (ends == "badly"))]
    rest = lines[1 + len(epochs) :]
    if ends == "badly":
        assert rest == ["failed at epoch 20, step 120: RuntimeError('\\x1b[31mred\\r\\n')"]
    else:
        assert rest[0].startswith("ended at epoch 20, step 120, ")
        assert [line.split()[0] for line in rest[2:4]] == ["valid/Loss", "train/Loss"]
