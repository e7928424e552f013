"""Check that Ray Train runs the example in two workers, and restarts them after the loss of one."""

import os
import subprocess
import sys
from importlib.util import find_spec

import psutil
import pytest

from learner import load_checkpoint
from tests.support.clusters import ROOT, SETTINGS, epochs_of, wait_for
from tests.support.runs import journal_of

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(find_spec("ray") is None, reason="ray[train] is not installed")]
EPOCHS, STEPS = 40, 23  # an epoch: 1437 rows in batches of 64


def workers_of(driver):
    """Return the processes of the workers that Ray has started, oldest first."""
    workers = [
        process
        for process in psutil.Process(driver.pid).children(recursive=True)
        if process.name().startswith("ray::RayTrain") and "Worker" in " ".join(process.cmdline())
    ]
    return sorted(workers, key=lambda process: process.create_time())


def test_a_worker_that_dies_is_started_again_and_the_run_resumes(tmp_path):
    run = tmp_path / "run"
    # No dashboard, and no usage statistics.
    environment = {**os.environ, **SETTINGS, "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, ROOT / "examples" / "clusters" / "ray_train.py", tmp_path, str(EPOCHS)]
    with (tmp_path / "log").open("w+") as log:
        driver = subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            wait_for(lambda: epochs_of(run) >= 3, explain=(tmp_path / "log").read_text)
            workers_of(driver)[-1].kill()
            assert driver.wait(180) == 0, (tmp_path / "log").read_text()
        finally:
            for process in psutil.Process(driver.pid).children(recursive=True) if driver.poll() is None else ():
                process.kill()
            driver.kill()
            driver.wait()
    starts = [line["resumed"] for line in journal_of(run) if line["event"] == "start"]
    assert starts == [False, True]
    assert journal_of(run)[-1]["step"] == EPOCHS * STEPS
    assert "sharded over 2 devices" in (run / "experiment.log").read_text()
    (copy,) = [path.parent for path in (tmp_path / "ray").rglob("journal.jsonl")]
    assert str(copy) in (tmp_path / "log").read_text()  # the path of Ray's checkpoint
    assert load_checkpoint(copy, "latest").step == EPOCHS * STEPS
