"""Several processes train one run: the numbers of one process, one directory, one checkpoint, one end."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import ROOT, start
from runs import journal_of, saved_steps

from learner import load_checkpoint

PROGRAM = ROOT / "tests" / "support" / "trained.py"
ABORTED = -6


def words(options):
    """JSON, as what fills in the port leaves it alone."""
    return json.dumps(options).replace("{", "{{").replace("}", "}}")


def trained(directory, count, kind="mlp", devices=1, expect=0, timeout=240, **options):
    """What each process printed last, after a run of several."""
    given = ["localhost:{port}", "{count}", "{index}", directory, kind, words(options)]
    ended = start([PROGRAM, *given], count, devices, timeout=timeout)
    codes = [process.code for process in ended]
    wanted = [expect] * count if isinstance(expect, int) else list(expect)
    assert codes == wanted, "\n".join(f"{each.code}\n{each.out[-800:]}\n{each.err[-3000:]}" for each in ended)
    return [said(process) for process in ended]


def said(process):
    lines = [line for line in process.out.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {}


def alone(directory, kind="mlp", devices=1, **options):
    environment = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, PROGRAM, "none", "0", "0", directory, kind, json.dumps(options)]
    subprocess.run(command, env={**os.environ, **environment}, check=True, capture_output=True, timeout=120)
    return left(directory)


def left(directory, index=0):
    with np.load(Path(directory, f"left-{index}.npz")) as arrays:
        return dict(arrays)


def close(a, b, rtol=1e-4, atol=2e-5):
    """Adam divides by what may be rounding noise."""
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(b[name], a[name], rtol=rtol, atol=atol, err_msg=name)


def metric_logs(directory):
    return {
        str(path.relative_to(directory)): path.read_text().split()
        for path in sorted(Path(directory).glob("*/epoch-*/*"))
    }


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    directory = tmp_path_factory.mktemp("one") / "run"
    return directory, alone(directory, accumulate=4, epochs=3)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two epochs of two processes with two devices each, and what they left."""
    directory = tmp_path_factory.mktemp("two") / "run"
    told = trained(directory, 2, devices=2, accumulate=4, epochs=2)
    return directory, told


def test_two_processes_leave_one_run_with_the_numbers_of_one(one, two):
    directory, told = two
    assert told == [{"stopped_by": "num_epochs", "steps": 4}] * 2
    np.testing.assert_equal(left(directory, 0), left(directory, 1))
    expected = metric_logs(one[0])
    found = metric_logs(directory)
    assert found.keys() == {name for name in expected if "epoch-3" not in name}
    for name, lines in found.items():
        numbers, wanted = ([line.split(",") for line in text] for text in (lines, expected[name]))
        assert [line[1:] for line in numbers] == [line[1:] for line in wanted]
        np.testing.assert_allclose(
            [float(line[0]) for line in numbers], [float(line[0]) for line in wanted], rtol=1e-4, atol=2e-5
        )


BEST = {"keep_last": 1, "keep_best": 1, "every_epochs": 100, "monitor": "valid/Loss", "mode": "max"}


@pytest.mark.full
def test_processes_keep_the_best_epoch_together(tmp_path):
    """The loss falls, so that an early epoch is the best where more is better."""
    trained(tmp_path / "run", 2, accumulate=4, epochs=4, save=BEST)
    best = 1 + int(np.argmax(load_checkpoint(tmp_path / "run", "latest").history["valid/Loss"]))
    assert best < 4
    assert saved_steps(tmp_path / "run") == [2 * best, 8]
    assert load_checkpoint(tmp_path / "run").epoch == best


@pytest.mark.full
def test_a_process_that_fails_saves_no_best_without_the_others(tmp_path):
    directory = tmp_path / "run"
    options = {"epochs": 4, "accumulate": 4, "save": BEST, "at": {"process": 1, "step": 6, "what": "raise"}}
    ended = start([PROGRAM, "localhost:{port}", "{count}", "{index}", directory, "mlp", words(options)], 2, timeout=100)
    assert all(process.code not in (0, None) for process in ended)
    assert saved_steps(directory) == []


def test_the_first_process_alone_writes_and_the_others_have_a_log(two):
    directory, _ = two
    events = [line["event"] for line in journal_of(directory)]
    assert sorted(events) == ["end", "epoch", "epoch", "save", "save", "start"]
    assert saved_steps(directory) == [2, 4]
    log = (directory / "experiment.log").read_text()
    assert "sharded over 4 devices (cpu): {'data': 4}, rows over 'data'" in log
    other = (directory / "experiment-1.log").read_text()
    assert "ended by num_epochs" in other
    assert not (directory / "experiment-0.log").exists()
    logged = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in logged if line["event"] == "step"] == [1, 2, 3, 4]
    assert [line["environment"]["processes"] for line in logged if line["event"] == "start"] == [2]


@pytest.mark.full
def test_more_and_fewer_processes_go_on_from_its_checkpoint(one, two, tmp_path):
    """Three processes, which also split the model, make the third epoch of what two have begun."""
    directory = two[0]
    told = trained(directory, 3, accumulate=4, epochs=3, resume=True, rules="fsdp")
    assert [each["steps"] for each in told] == [6] * 3
    close(one[1], left(directory, 2))
    assert saved_steps(directory) == [2, 4, 6]
    assert "processes: 2 -> 3" in (directory / "experiment.log").read_text()


@pytest.mark.full
def test_each_process_makes_its_parts_of_a_model(one, tmp_path):
    trained(tmp_path / "run", 2, devices=2, accumulate=4, epochs=3, rules="fsdp")
    close(one[1], left(tmp_path / "run", 1))
    assert "made it on one device" not in (tmp_path / "run" / "experiment.log").read_text()


STOPS = [
    pytest.param(
        {"at": {"process": 1, "step": 3, "what": "SIGTERM"}}, 143, "sigterm", id="sigterm", marks=pytest.mark.full
    ),
    pytest.param(
        {"at": {"process": 1, "step": 3, "what": "interrupt"}},
        0,
        "interrupter: enough",
        id="interrupter",
        marks=pytest.mark.full,
    ),
    pytest.param(
        {"profile": [2, 5], "epochs": 500, "at": {"process": 1, "step": 20, "what": "SIGTERM"}},
        143,
        "sigterm",
        id="profiled",
        marks=pytest.mark.full,
    ),
    pytest.param({"early": 1, "epochs": 9}, 0, "early stopping: ", id="early stopping", marks=pytest.mark.full),
    pytest.param({"limits": [1e9, 1e-3]}, 0, "time limit", id="time limit", marks=pytest.mark.full),
    pytest.param({"bad": 30, "nonfinite": "stop"}, 0, "on_nonfinite: ", id="not finite", marks=pytest.mark.full),
]


@pytest.mark.parametrize(("options", "code", "reason"), STOPS)
def test_all_leave_at_the_same_step_whoever_has_the_reason(tmp_path, options, code, reason):
    directory = tmp_path / "run"
    trained(directory, 2, expect=code, **{"epochs": 3, **options})
    steps = []
    for name in ("experiment.log", "experiment-1.log"):
        (line,) = [line for line in (directory / name).read_text().splitlines() if "ended by" in line]
        assert f"ended by {reason}" in line
        steps.append(int(re.search(r" at epoch \d+, step (\d+),", line)[1]))
    assert steps[0] == steps[1] < options.get("epochs", 3) * 6
    if "bad" not in options:
        assert saved_steps(directory)[-1] == steps[0]


@pytest.mark.full
def test_sigterm_one_of_n_processes(tmp_path):
    """Stopped by SIGTERM to one of two inside an epoch, and gone on with by one: as if nothing had happened."""
    expected = alone(tmp_path / "one")
    directory = tmp_path / "run"
    trained(directory, 2, expect=143, at={"process": 1, "step": 2, "what": "SIGTERM"})
    close(expected, alone(directory, resume=True))


@pytest.mark.full
@pytest.mark.parametrize("count", [2, 3])
def test_one_that_fails_ends_the_others_with_its_error(tmp_path, count):
    directory = tmp_path / "run"
    options = {"epochs": 500, "at": {"process": 1, "step": 20, "what": "raise"}}
    given = ["localhost:{port}", "{count}", "{index}", directory, "mlp", words(options)]
    ended = start([PROGRAM, *given], count, timeout=100)
    assert all(process.code not in (0, None) for process in ended)
    assert "the hook of this process does not work" in ended[1].err
    assert "process 1 failed: ValueError: the hook of this process does not work" in said(ended[0])["error"]


@pytest.mark.full
def test_one_that_is_killed_ends_the_others(tmp_path):
    directory = tmp_path / "run"
    options = {"epochs": 500, "at": {"process": 1, "step": 20, "what": "SIGKILL"}, "heartbeat": 10}
    given = ["localhost:{port}", "{count}", "{index}", directory, "mlp", words(options)]
    first, second = start([PROGRAM, *given], 2, timeout=100)
    assert second.code == -9
    assert first.code in (2, ABORTED)
    if first.code == 2:
        assert "one of them may have died" in said(first)["error"]
    else:
        assert "died" in first.err or "heartbeat" in first.err.lower()
    assert saved_steps(directory)


@pytest.mark.full
def test_metric_keys_differ_per_process(tmp_path):
    """Processes that mean other runs are told so before anything is made."""
    directory = tmp_path / "run"
    told = trained(directory, 2, expect=2, seeds=[0, 7], perplexity=1, betas=[0.9, 0.5])
    for each in told:
        assert "the processes of the run differ in what they train:" in each["error"]
        assert 'metrics.valid.2 is "Loss" in process 0; "Perplexity" in process 1' in each["error"]
        assert "options.seed is 0 in process 0; 7 in process 1" in each["error"]
        assert "programs.hashes.optimizer is" in each["error"]
    assert not directory.exists()


@pytest.mark.full
def test_data_of_each_process_of_its_own(tmp_path):
    """Each has its part of every batch in memory: the numbers are those of the whole batches."""
    options = {"rows": 120, "batch": 24, "own": True}
    expected = alone(tmp_path / "one", **options)
    trained(tmp_path / "run", 2, **options)
    close(expected, left(tmp_path / "run", 1))


CONFIG = """\
model: {class_path: learner.examples.models.MLP, init_args: {features: [64, 8, 10]}}
optimizer: SGD
lr: 0.1
train: {dataset: {class_path: learner.data.digits, init_args: {split: train}}, batch_size: 256, shuffle: 0}
valid: {dataset: {class_path: learner.data.digits, init_args: {split: valid}}, batch_size: 256}
metrics: [Accuracy]
"""


@pytest.mark.full
def test_the_commands_of_several_processes(tmp_path):
    config, directory = tmp_path / "digits.yaml", tmp_path / "run"
    config.write_text(CONFIG)
    process = ["--coordinator", "localhost:{port}", "--num_processes", "{count}", "--process_id", "{index}"]
    for command in (
        ["fit", config, f"--directory={directory}"],
        ["resume", directory, "--num_epochs=2"],
        ["evaluate", directory],
    ):
        first, second = start(["-m", "learner", *command, *process], 2)
        assert (first.code, second.code) == (0, 0), first.err + second.err
        assert second.err == ""
        assert [line for line in second.out.splitlines() if not line.startswith("[Gloo]")] == []
    assert "valid/Accuracy" in first.out
    saved = (directory / "config.yaml").read_text()
    assert "coordinator" not in saved
    assert "process_id" not in saved
    assert saved_steps(directory)[-1] == 2 * -(-1437 // 256)
