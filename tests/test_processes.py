"""Tests of runs of several processes: the numbers of one process, one directory, one checkpoint, one end."""

import itertools
import json
import re
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from learner import load_checkpoint
from tests.support.processes import ROOT, start
from tests.support.runs import journal_of, saved_steps
from tests.support.trained import train

pytestmark = pytest.mark.usefixtures("compiled_once")

PROGRAM = ROOT / "tests" / "support" / "trained.py"
ABORTED = -6


def processes(directory, count, devices=1, seconds=100, **options):
    """Return the results of a run's processes. They share compiled programs with earlier runs."""
    given = ["localhost:{port}", "{count}", "{index}", directory, "mlp", words(options)]
    cache = {
        "JAX_COMPILATION_CACHE_DIR": jax.config.values["jax_compilation_cache_dir"],
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return start([PROGRAM, *given], count, devices, timeout=seconds, **cache)


def words(options):
    """Return JSON that stays unchanged when the port is filled in."""
    return json.dumps(options).replace("{", "{{").replace("}", "}}")


def trained(directory, count, expect=0, **options):
    """Return the last line of each of several processes, as a dict."""
    ended = processes(directory, count, seconds=240, **options)
    codes = [process.code for process in ended]
    expected = [expect] * count
    assert codes == expected, "\n".join(
        f"{process.code}\n{process.out[-800:]}\n{process.err[-3000:]}" for process in ended
    )
    return [last_line(process) for process in ended]


def last_line(process):
    lines = [line for line in process.out.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {}


def alone(directory, **options):
    """Return the results of the run in one process, which is this one."""
    train("none", 0, 0, directory, "mlp", options)
    return left(directory)


def left(directory, index=0):
    with np.load(Path(directory, f"left-{index}.npz")) as arrays:
        return dict(arrays)


def close(a, b, rtol=1e-4, atol=2e-5):
    """Compare with a tolerance: Adam divides by what may be rounding noise."""
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(b[name], a[name], rtol=rtol, atol=atol, err_msg=name)


def metric_logs(directory):
    return {
        str(path.relative_to(directory)): path.read_text().split()
        for path in sorted(Path(directory).glob("*/epoch-*/*"))
    }


@pytest.fixture(scope="module")
def one(tmp_path_factory, compiled_once):
    directory = tmp_path_factory.mktemp("one") / "run"
    return directory, alone(directory, accumulate=4, epochs=3)


@pytest.fixture(scope="module")
def two(tmp_path_factory, compiled_once):
    """Return two epochs of two processes with two devices each, and their last lines."""
    directory = tmp_path_factory.mktemp("two") / "run"
    return directory, trained(directory, 2, devices=2, accumulate=4, epochs=2)


def test_two_processes_write_one_run_with_the_numbers_of_one(one, two):
    directory, ends = two
    assert ends == [{"stopped_by": "num_epochs", "steps": 4}] * 2
    np.testing.assert_equal(left(directory, 0), left(directory, 1))
    expected = metric_logs(one[0])
    logs = metric_logs(directory)
    assert logs.keys() == {name for name in expected if "epoch-3" not in name}
    for name, lines in logs.items():
        values, of_one = ([line.split(",") for line in text] for text in (lines, expected[name]))
        assert [line[1:] for line in values] == [line[1:] for line in of_one]
        np.testing.assert_allclose(
            [float(line[0]) for line in values], [float(line[0]) for line in of_one], rtol=1e-4, atol=2e-5
        )


BEST = {"keep_last": 1, "keep_best": 1, "every_epochs": 100, "monitor": "valid/Loss", "mode": "max"}


@pytest.mark.full
def test_processes_keep_the_best_epoch_together(tmp_path):
    """The loss decreases, so that with mode="max" an early epoch is the best."""
    trained(tmp_path / "run", 2, accumulate=4, epochs=4, save=BEST)
    best = 1 + int(np.argmax(load_checkpoint(tmp_path / "run", "latest").history["valid/Loss"]))
    assert best < 4
    assert saved_steps(tmp_path / "run") == [2 * best, 8]
    assert load_checkpoint(tmp_path / "run").epoch == best


@pytest.mark.full
def test_processes_decide_by_a_hooks_numbers_of_the_first(tmp_path):
    """Process 0 is best in epoch 2, and stops after epoch 4; process 1 alone would improve in every epoch."""
    scores = [[3.0, 1.0, 2.0, 2.0, 2.0, 2.0], [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]]
    save = {**BEST, "monitor": "custom/Score", "mode": "min"}
    ends = trained(tmp_path / "run", 2, accumulate=4, epochs=6, save=save, scores=scores)
    assert [end["steps"] for end in ends] == [8, 8]
    assert saved_steps(tmp_path / "run") == [4, 8]
    assert load_checkpoint(tmp_path / "run").epoch == 2


@pytest.mark.full
def test_processes_decide_by_metrics_on_the_host_of_the_first(tmp_path):
    """Process 0 is best in epoch 2, and stops after epoch 4; process 1 alone would improve in every epoch."""
    temperatures = [[3.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0], [6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]]
    save = {**BEST, "monitor": "train/Temperature", "mode": None}
    ends = trained(tmp_path / "run", 2, accumulate=4, epochs=6, save=save, temperatures=temperatures)
    assert [end["steps"] for end in ends] == [8, 8]
    assert saved_steps(tmp_path / "run") == [4, 8]
    assert load_checkpoint(tmp_path / "run").epoch == 2
    np.testing.assert_equal(left(tmp_path / "run", 0), left(tmp_path / "run", 1))
    np.testing.assert_allclose(left(tmp_path / "run")["history train/Learning Rate"], [0.2, 0.2, 0.2, 0.1])


@pytest.mark.full
def test_the_last_partial_epoch_has_the_metrics_of_the_first_process(tmp_path):
    save = {**BEST, "monitor": "train/Temperature", "mode": None}
    temperatures = [[1.0, 2.0], [1.0, 0.0]]  # epochs of two steps
    trained(tmp_path / "run", 2, accumulate=4, steps=3, save=save, temperatures=temperatures)
    for index in range(2):
        assert left(tmp_path / "run", index)["history train/Temperature"].tolist() == [1, 2]


@pytest.mark.full
def test_processes_that_read_other_best_checkpoints_end_together(tmp_path):
    save = {"every_epochs": 1, "keep_last": 9, "monitor": "train/Loss", "mode": "min"}
    for process in ended_soon(tmp_path / "run", "", "", epochs=3, save=save, stale=1):
        assert process.code == 2, f"{process.code}\n{process.out}\n{process.err[-3000:]}"
        assert "the step of the best checkpoint" in last_line(process)["error"]


def test_only_the_first_process_writes_but_for_logs(two):
    directory, _ = two
    events = [line["event"] for line in journal_of(directory)]
    assert sorted(events) == ["end", "epoch", "epoch", "save", "save", "start"]
    assert saved_steps(directory) == [2, 4]
    log = (directory / "experiment.log").read_text()
    assert "sharded over 4 devices (cpu): {'data': 4}, rows over 'data'" in log
    other = (directory / "experiment-1.log").read_text()
    assert ": num_epochs (" in other
    assert not (directory / "experiment-0.log").exists()
    logged = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in logged if line["event"] == "step"] == [1, 2, 3, 4]
    assert [line["environment.processes"] for line in logged if line["event"] == "start"] == [2]


@pytest.mark.full
def test_more_processes_resume_the_run(one, two, tmp_path):
    """Three processes, which also split the model, train the third epoch after two of two processes."""
    directory = two[0]
    ends = trained(directory, 3, accumulate=4, epochs=3, resume=True, rules="fsdp")
    assert [end["steps"] for end in ends] == [6] * 3
    close(one[1], left(directory, 2))
    assert saved_steps(directory) == [2, 4, 6]
    assert "processes: 2 -> 3" in (directory / "experiment.log").read_text()


@pytest.mark.full
def test_each_process_makes_its_parts_of_a_model(one, tmp_path):
    trained(tmp_path / "run", 2, devices=2, accumulate=4, epochs=3, rules="fsdp")
    close(one[1], left(tmp_path / "run", 1))
    assert "made it on one device" not in (tmp_path / "run" / "experiment.log").read_text()


@pytest.mark.full
def test_a_process_reads_checkpoints_alone(tmp_path):
    """The other one waits for its arrays meanwhile, as it does after `if index == 0: print(result.best_epoch)`."""
    directory = tmp_path / "run"
    first, second = trained(directory, 2, rules="fsdp", reads=0)
    arrays = left(directory, 1)
    epoch = 1 + int(np.argmin(arrays["history valid/Loss"]))
    assert (first["best"], first["loaded"]) == ([epoch, 6 * epoch], 12)
    np.testing.assert_allclose(first["weights"], arrays["['out']['kernel'].value"].sum(1), rtol=1e-5, atol=1e-6)
    assert "best" not in second


@pytest.mark.full
def test_histograms_have_all_values_of_sharded_arrays(one, tmp_path):
    directory = tmp_path / "run"
    trained(directory, 2, epochs=1, rules="fsdp", histograms=True)
    alone(tmp_path / "one", epochs=1, histograms=True)
    arrays, (step,) = left(directory), (directory / "samples").iterdir()
    for layer, part in itertools.product(("hidden", "out"), ("kernel", "bias")):
        name, array = f"{layer}.{part}", arrays[f"['{layer}']['{part}'].value"]
        histogram = json.loads((step / f"{name}.json").read_text())
        counts, edges = np.histogram(array.astype(np.float64), len(histogram["counts"]))
        assert histogram["counts"] == counts.tolist()
        np.testing.assert_allclose(histogram["edges"], edges)
        of_both, of_one = (
            json.loads((path / "samples" / step.name / f"{name}_gradient.json").read_text())
            for path in (directory, tmp_path / "one")
        )
        assert sum(of_both["counts"]) == array.size
        np.testing.assert_allclose(of_both["edges"], of_one["edges"], rtol=1e-3, atol=1e-4)


STOPS = {  # each is the reason of one process, or of all
    "sigterm, profiled": (
        {"profile": [2, 5], "epochs": 500, "at": {"process": 1, "step": 20, "what": "SIGTERM"}},
        143,
        "sigterm",
    ),
    "early stopping": ({"early": 1, "epochs": 9}, 0, "early stopping: "),
    "time limit": ({"limits": [1e9, 1e-3]}, 0, "time limit"),
    "not finite": ({"bad": 30, "nonfinite": "stop"}, 0, "on_nonfinite: "),
}


@pytest.mark.full
@pytest.mark.parametrize(("options", "code", "reason"), STOPS.values(), ids=STOPS)
def test_all_processes_stop_at_one_step_for_any_reason_of_one(tmp_path, options, code, reason):
    directory = tmp_path / "run"
    trained(directory, 2, expect=code, **{"epochs": 3, **options})
    steps = []
    for name in ("experiment.log", "experiment-1.log"):
        (line,) = [line for line in (directory / name).read_text().splitlines() if "(compile " in line]
        assert f" s: {reason}" in line
        steps.append(int(re.search(r" at epoch \d+, step (\d+),", line)[1]))
    assert steps[0] == steps[1] < options.get("epochs", 3) * 6
    if "bad" not in options:
        assert saved_steps(directory)[-1] == steps[0]


@pytest.mark.full
def test_sigterm_one_of_n_processes(tmp_path):
    """SIGTERM stops one of two processes within an epoch, and one process resumes: the numbers are unchanged."""
    expected = alone(tmp_path / "one")
    directory = tmp_path / "run"
    trained(directory, 2, expect=143, at={"process": 1, "step": 2, "what": "SIGTERM"})
    close(expected, alone(directory, resume=True))


@pytest.mark.full
def test_sigterm_while_a_logger_closes_ends_all(tmp_path):
    """The run has ended, and the script would continue without the signal."""
    ended = processes(tmp_path / "run", 2, epochs=1, at={"process": 0, "step": "close", "what": "SIGTERM"})
    assert [process.code for process in ended] == [143, 143]
    assert saved_steps(tmp_path / "run") == [6]


@pytest.mark.full
def test_failing_process_ends_the_others_with_its_error(tmp_path):
    """The others save no best epoch without the failed process."""
    directory = tmp_path / "run"
    ended = processes(directory, 3, epochs=500, save=BEST, at={"process": 1, "step": 20, "what": "raise"})
    assert all(process.code not in (0, None) for process in ended)
    assert "the hook of this process does not work" in ended[1].err
    for other in (ended[0], ended[2]):
        assert "process 1 failed: ValueError: the hook of this process does not work" in last_line(other)["error"]
    assert saved_steps(directory) == []


ENDS = {  # of a hook in one process: its exit code, and what the other process reports
    "exit": (3, "SystemExit: 3"),
    "interrupt": (-2, "KeyboardInterrupt"),
}


@pytest.mark.full
@pytest.mark.parametrize(("process", "what"), [(1, "exit"), (0, "exit"), (1, "interrupt")])
def test_a_hook_that_ends_its_process_ends_the_others(tmp_path, process, what):
    """Python calls `sys.excepthook` for one of these only. JAX would abort the process that ended."""
    code, text = ENDS[what]
    ended = ended_soon(tmp_path / "run", "", "", epochs=500, at={"process": process, "step": 20, "what": what})
    assert ended[process].code == code, ended[process].err[-3000:]
    other = ended[1 - process]
    assert other.code == 2, other.err[-3000:]
    assert f"process {process} failed: {text}" in last_line(other)["error"]
    assert "did not answer" not in other.err + ended[process].err


@pytest.mark.full
def test_killed_process_ends_the_others(tmp_path):
    directory = tmp_path / "run"
    first, second = processes(directory, 2, epochs=500, at={"process": 1, "step": 20, "what": "SIGKILL"}, heartbeat=10)
    assert second.code == -9
    assert first.code in (2, ABORTED)
    if first.code == 2:
        assert "one of them may have died" in last_line(first)["error"]
    else:
        assert "died" in first.err or "heartbeat" in first.err.lower()
    assert saved_steps(directory)


def ended_soon(directory, *causes, **options):
    """Return how two processes ended: within a minute, none with success, and each with a cause on its screen."""
    before = time.monotonic()
    ended = processes(directory, 2, **options)
    assert time.monotonic() - before < 60
    assert all(process.code not in (0, None) for process in ended)
    for process, cause in zip(ended, causes, strict=True):
        assert cause in process.out + process.err, f"{process.code}\n{process.out}\n{process.err[-3000:]}"
    return ended


def test_a_process_that_fails_before_fit_ends_the_others(tmp_path):
    cause = "ValueError: there is no such data on this machine"
    at = {"process": 1, "what": "raise early"}
    ended_soon(tmp_path / "run", f"process 1 failed: {cause}", cause, at=at)


@pytest.mark.full
def test_a_checkpoint_to_start_from_that_one_process_cannot_read_ends_the_others(one, tmp_path):
    missing = tmp_path / "nowhere"
    cause = f"there is no directory {missing} to load a checkpoint from"
    ended = ended_soon(tmp_path / "run", f"process 1 failed: {cause}", cause, initial=[str(one[0]), str(missing)])
    assert "damaged" not in ended[0].out + ended[0].err


@pytest.mark.full
def test_a_process_that_returns_before_fit_ends_the_others(tmp_path):
    """JAX blocks the process that returned until the other ends."""
    at = {"process": 1, "what": "exit early"}
    ended_soon(tmp_path / "run", "process 1 ended before the run did", "", at=at)


@pytest.mark.full
def test_a_metric_that_fails_in_one_process_ends_the_others(tmp_path):
    cause = "ValueError: this machine has no camera"
    ended_soon(tmp_path / "run", f"process 1 failed: {cause}", cause, bad_metric=1, epochs=50)


@pytest.mark.full
@pytest.mark.parametrize("lengths", [[5, 3], [3, 5]])
def test_shorter_data_of_one_process_ends_all(tmp_path, lengths):
    """The processes that read the data report it, or all at their next meeting. Both name the end of the data."""
    short = lengths.index(3)
    found = rf"process {short} ended after 3 batches of pass 1|ended after 5 .* that of process {short} has 3:"
    ended = rf"{found}|process {short} at 'the end of the train data after 3 "
    for process in ended_soon(tmp_path / "run", "", "", lengths=lengths):
        assert process.code == 2, f"{process.code}\n{process.out}\n{process.err[-3000:]}"
        assert re.search(ended, last_line(process)["error"])


@pytest.mark.full
def test_other_rows_in_a_batch_of_one_process_end_all(tmp_path):
    """The programs of both would run, with wrong means. No checkpoint has the result, and each names batch and rows."""
    save = {"every_steps": 1, "keep_last": 9}
    ended = ended_soon(tmp_path / "run", "", "", own=True, last_rows=[12, 10], accumulate=2, save=save)
    for process in ended:
        assert process.code == 2, f"{process.code}\n{process.out}\n{process.err[-3000:]}"
        assert re.search("batch 5 in pass 1 of the train data has 1[02] rows", last_line(process)["error"])
    assert max(saved_steps(tmp_path / "run"), default=0) < 3


UPDATES = {
    "learning rate of one": ([None, {"lr_scale": 0.1}], "none in process 0; lr_scale=0.1 in process 1"),
    "other models": ([{"model": 1.0}, {"model": 2.0}], "model=<checksum "),
}


@pytest.mark.full
@pytest.mark.parametrize(("updates", "text"), UPDATES.values(), ids=UPDATES)
def test_other_updates_of_a_hook_in_one_process_end_all(tmp_path, updates, text):
    """The replicas of the model would differ from here on. No checkpoint contains the updates."""
    save = {"every_steps": 1, "keep_last": 9}
    for process in ended_soon(tmp_path / "run", "", "", epochs=50, save=save, updates=updates):
        assert process.code == 2, f"{process.code}\n{process.out}\n{process.err[-3000:]}"
        error = last_line(process)["error"]
        assert "the hook update did not return the same updates in all processes after step 4: " in error
        assert text in error
    assert max(saved_steps(tmp_path / "run")) < 4


@pytest.mark.full
def test_a_hook_that_stops_one_process_ends_all(tmp_path):
    """The others would wait for its devices until the timeout. Process 1 finds it, or both at their next meeting."""
    updates = [{"stop": "enough"}, None]
    for process in ended_soon(tmp_path / "run", "", "", epochs=500, updates=updates, update_step=303):
        assert process.code == 2, f"{process.code}\n{process.out}\n{process.err[-3000:]}"
        cause = "process 0 ended its training after step 303|at 'the end of the training after step 303'"
        assert re.search(cause, last_line(process)["error"])


@pytest.mark.full
def test_equal_updates_of_all_processes_are_those_of_one(tmp_path):
    """The arrays of the model are replicated, or sharded over the processes."""
    updates = [{"lr_scale": 0.5, "model": 1.0}] * 2
    expected = alone(tmp_path / "one", updates=updates)
    trained(tmp_path / "run", 2, updates=updates)
    close(expected, left(tmp_path / "run"))
    trained(tmp_path / "sharded", 2, updates=updates, rules="fsdp")
    close(expected, left(tmp_path / "sharded"))


EVALUATIONS = {
    "shorter data": ({"lengths": [5, 3]}, "process 1 at 'the end of the valid data after 3 batches'"),
    "other rows": ({"own": True, "last_rows": [12, 10]}, "batch 5 in pass 1 of the valid data has 1"),
    "other values": ({"data_seeds": [1, 2]}, "data of one process) is "),
    "other values of batches": ({"lengths": [5, 5], "data_seeds": [1, 2]}, "data of one process) is "),
    "other values of a split model": ({"rules": "tensor", "data_seeds": [1, 2]}, "data of one process) is "),
    "own values of a split model": ({"rules": "tensor", "own": True}, "data of one process) is "),
    "another metric": ({"factors": [1.0, 2.0]}, "hash of the valid step with its metrics is "),
    "another batch": ({"batches": [24, 12]}, "the processes of the run differ in what they evaluate"),
    "returned": ({"at": {"process": 1, "what": "exit early"}}, "process 1 ended before the run did"),
}


@pytest.mark.full
@pytest.mark.parametrize(("options", "cause"), EVALUATIONS.values(), ids=EVALUATIONS)
def test_processes_with_different_evaluations_end(tmp_path, options, cause):
    """Without the check they would wait for each other's devices forever, or count the rows of one process only."""
    first, _ = ended_soon(tmp_path / "run", "", "", evaluate=True, **options)
    assert first.code == 2, f"{first.code}\n{first.out}\n{first.err[-3000:]}"
    assert cause in last_line(first)["error"]


@pytest.mark.full
@pytest.mark.parametrize("lengths", [[5, 3], [3, 5]])
def test_processes_with_different_predictions_end(tmp_path, lengths):
    short = lengths.index(3)
    for process in ended_soon(tmp_path / "run", "", "", predict=True, rules="fsdp", lengths=lengths):
        cause = rf"process {short} ended after 3 batches|process {short} at 'the end of the given data after 3 batches'"
        assert re.search(cause, process.out + process.err), f"{process.out}\n{process.err[-3000:]}"


@pytest.mark.full
def test_each_process_predicts_its_own_rows_unless_devices_share_them(tmp_path):
    """With tensor parallelism over the processes, their devices would mix the activations of different rows."""
    seeds = [1, 2]
    expected = [alone(tmp_path / f"one-{seed}", predict=True, lengths=[5], data_seeds=[seed]) for seed in seeds]
    trained(tmp_path / "own", 2, predict=True, rules="fsdp", lengths=[5, 5], data_seeds=seeds)
    trained(tmp_path / "same", 2, predict=True, rules="tensor", lengths=[5, 5])
    for index in range(2):
        close(expected[index], left(tmp_path / "own", index))
        close(expected[0], left(tmp_path / "same", index))
    options = {"predict": True, "rules": "tensor", "lengths": [5, 5], "data_seeds": seeds}
    for process in ended_soon(tmp_path / "mixed", "", "", **options):
        assert process.code == 2, f"{process.code}\n{process.out}\n{process.err[-3000:]}"
        assert "the processes predict different data" in last_line(process)["error"]
    assert not (tmp_path / "mixed").exists()


@pytest.mark.full
def test_models_that_differ_in_a_value_are_refused(tmp_path):
    """Only a constant within the programs differs."""
    differ = "programs.hashes.train is "
    ended_soon(tmp_path / "run", differ, differ, dropouts=[0.1, 0.3])
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_metrics_that_differ_in_a_value_are_refused(tmp_path):
    """Their values would be those of a mixture of two metrics."""
    differ = "hash of the train step with its metrics is "
    ended_soon(tmp_path / "run", differ, differ, factors=[1.0, 2.0])
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_data_that_differ_in_a_value_are_refused(tmp_path):
    """Each process reads all rows and keeps its own, so nothing else would detect the difference."""
    differ = "data.train.values"
    ended_soon(tmp_path / "run", differ, differ, lengths=[5, 5], data_seeds=[1, 2])
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_first_values_and_loaders_that_differ_are_refused(tmp_path):
    """Each process makes its own replica of a model and reads its own rows: nothing else would detect a difference."""
    ended = ended_soon(tmp_path / "run", "", "", shifts=[0.0, 1.0], data_seeds=[1, 2])
    for process in ended:
        assert "hash of the first values is " in last_line(process)["error"]
        assert "data.train." in last_line(process)["error"]
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_frozen_values_of_a_model_that_differ_are_refused(tmp_path):
    """For example pretrained weights that one process has not loaded."""
    differ = "hash of the first values is "
    ended_soon(tmp_path / "run", differ, differ, shifts=[0.0, 1.0], freeze="^out", object=True)


@pytest.mark.full
def test_a_directory_that_is_not_shared_is_refused_before_training(tmp_path):
    """Each process has a disk of its own. Without checkpoints, it needs no other."""
    disks = [str(tmp_path / "first"), str(tmp_path / "second")]
    for disk in disks:
        Path(disk).mkdir()
    for end in trained("run", 2, expect=2, disks=disks, timeout=40):
        assert "process 1 cannot find the run.lock that process 0 has written there" in end["error"]
    assert not Path(disks[0], "run", "journal.jsonl").exists()
    trained("run", 2, disks=disks, epochs=1, save=None)


@pytest.mark.full
def test_checkpoints_of_all_processes_and_of_one_are_kept_alike(tmp_path):
    """Three processes are stopped, one resumes, and three resume again: every save exists at the end."""
    directory, save = tmp_path / "run", {"every_steps": 4, "keep_last": 99}
    trained(directory, 3, expect=143, epochs=500, save=save, at={"process": 2, "step": 9, "what": "SIGTERM"})
    stopped = saved_steps(directory)[-1]
    epochs = stopped // 6 + 2
    alone(directory, epochs=epochs, resume=True, save=save)
    trained(directory, 3, epochs=epochs + 1, resume=True, save=save)
    due = {*range(4, 6 * epochs + 7, 4), 6 * epochs + 6}
    assert due <= {*saved_steps(directory)}


@pytest.mark.full
def test_metric_keys_differ_per_process(tmp_path):
    """Processes of different runs raise before anything is created."""
    directory = tmp_path / "run"
    for end in trained(directory, 2, expect=2, seeds=[0, 7], perplexity=1, betas=[0.9, 0.5]):
        assert "the processes of the run differ in what they train:" in end["error"]
        assert 'metrics.valid.2 is "Loss" in process 0; "Perplexity" in process 1' in end["error"]
        assert "options.seed is 0 in process 0; 7 in process 1" in end["error"]
        assert "programs.hashes.optimizer is" in end["error"]
    assert not directory.exists()


@pytest.mark.full
def test_data_per_process(tmp_path):
    """Each process has its part of every batch in memory: the numbers are those of the whole batches."""
    options = {"rows": 120, "batch": 24, "own": True}
    expected = alone(tmp_path / "one", **options)
    trained(tmp_path / "run", 2, **options)
    close(expected, left(tmp_path / "run", 1))


SHUFFLED = {"rows": 120, "batch": 24, "own": "shuffled"}


@pytest.mark.full
def test_two_processes_refuse_the_position_in_the_data_of_one(tmp_path):
    """Each would go to that position in its own part."""
    alone(tmp_path / "run", steps=2, **SHUFFLED)
    for end in trained(tmp_path / "run", 2, expect=2, resume=True, **SHUFFLED):
        assert "inside epoch 1, and one process had all of the data, whose position 2 processes, each" in end["error"]


@pytest.mark.full
def test_more_processes_with_their_own_data_resume_between_epochs(tmp_path):
    """The third process has no saved state, and has read a batch to check its shape."""
    directory = tmp_path / "run"
    trained(directory, 2, epochs=1, **SHUFFLED)
    assert [end["steps"] for end in trained(directory, 3, epochs=3, resume=True, **SHUFFLED)] == [15] * 3
    for name in ("experiment.log", "experiment-1.log", "experiment-2.log"):
        assert "the data of process 2 starts as in a new run" in (directory / name).read_text()


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
        ["evaluate", directory, "--follow"],
        ["evaluate", directory],
    ):
        first, second = start(["-m", "learner", *command, *process], 2)
        assert (first.code, second.code) == (0, 0), first.err + second.err
        assert second.err == ""
        assert second.out == ""
        assert "[Gloo]" not in first.out
    assert "valid/Accuracy" in first.out
    saved = (directory / "config.yaml").read_text()
    assert "coordinator" not in saved
    assert "process_id" not in saved
    assert saved_steps(directory)[-1] == 2 * -(-1437 // 256)


MODEL = """
import os
import signal

import jax
from learner.examples.models import MLP


def model(rngs):
    if jax.process_index() == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    return MLP([64, 8, 10], rngs=rngs)
"""


@pytest.mark.full
def test_a_command_that_is_interrupted_before_it_trains_ends_the_others(tmp_path):
    """JAX would hold the interrupted process until the others are lost, and then abort it."""
    config = tmp_path / "digits.yaml"
    (tmp_path / "interrupted.py").write_text(MODEL)
    config.write_text(re.sub("model: .*", "model: interrupted.model", CONFIG))
    process = ["--coordinator", "localhost:{port}", "--num_processes", "{count}", "--process_id", "{index}"]
    command = ["-m", "learner", "fit", config, f"--directory={tmp_path / 'run'}", *process]
    first, second = start(command, 2, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (first.code, second.code) == (2, 143), first.err + second.err
    assert "process 1 failed: interrupted by a signal" in first.err
