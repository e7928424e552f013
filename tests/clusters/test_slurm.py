"""Check that SLURM with two virtual nodes on this machine runs, stops and continues a job as documented."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.support.clusters import (
    ROOT,
    SETTINGS,
    STEPS,
    check_same_run,
    epochs_of,
    fit_by_hand,
    skip_without,
    wait_for,
    write_config,
)
from tests.support.runs import journal_of, saved_steps

pytestmark = pytest.mark.cluster
skip_without("sbatch", "slurmctld", "slurmd", "munged")
SLURM, JOB = ROOT / "tests" / "clusters" / "slurm.sh", ROOT / "examples" / "clusters" / "learner.sbatch"
ARRAY = JOB.with_name("sweep.sbatch")
EPOCHS, ENDLESS = 60, 100_000


class Cluster:
    def __init__(self, place):
        self.place = place
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, **SETTINGS, "PATH": path, "SLURM_CONF": f"{place}/slurm.conf"}

    def run(self, *command):
        words = [str(word) for word in command]
        ended = subprocess.run(
            words, env=self.environment, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert ended.returncode == 0, f"{words}\n{ended.stdout}"
        return ended.stdout

    def script(self, action, *words):
        """Run slurm.sh. Its output goes to a file: daemons would keep a pipe open."""
        with tempfile.TemporaryFile("w+") as output:
            subprocess.run(
                [SLURM, action, *words, self.place], env=self.environment, stdout=output, stderr=output, check=True
            )

    def submit(self, directory, epochs, *options, sbatch=(), job=JOB):
        """Submit a job of the examples and return its number."""
        output = f"--output={directory.parent}/%j.out"
        fit = [write_config(directory.parent), f"--directory={directory}", f"--num_epochs={epochs}", *options]
        return int(self.run("sbatch", "--parsable", "--time=10", output, *sbatch, job, *fit))

    def facts(self, job):
        """Return the properties of a job from `scontrol`, by name."""
        return dict(re.findall(r"(\w+)=(\S+)", self.run("scontrol", "show", "job", job)))

    def wait(self, job, *states, restarts=0):
        def arrived():
            facts = self.facts(job)
            return facts if facts["JobState"] in states and int(facts["Restarts"]) == restarts else None

        return wait_for(arrived, explain=lambda: f"{self.facts(job)}")

    def restart_now(self, job):
        """Start a requeued job, which SLURM would hold back for two minutes. Its nodes reject a job whose credential is
        of the second in which they revoked the previous one, so wait for that.
        """
        self.wait(job, "PENDING", restarts=1)
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now+4")


@pytest.fixture(scope="module")
def cluster():
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(f"{directory}/slurm")
        Path(directory).chmod(0o755)
        cluster.script("up")
        try:
            yield cluster
        finally:
            cluster.script("down")


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    return fit_by_hand(tmp_path_factory.mktemp("by-hand"), EPOCHS)


def output_of(directory, job):
    return (directory / f"{job}.out").read_text()


def test_srun_trains_one_run_in_two_processes(cluster, by_hand, tmp_path):
    job = cluster.submit(tmp_path / "run", EPOCHS)
    facts = cluster.wait(job, "COMPLETED", "FAILED")
    assert facts["ExitCode"] == "0:0", output_of(tmp_path, job)
    assert facts["NodeList"] == "n[1-2]"
    assert (tmp_path / "run" / "experiment-1.log").exists()
    assert "sharded over 2 devices" in (tmp_path / "run" / "experiment.log").read_text()
    assert journal_of(tmp_path / "run")[-1]["step"] == EPOCHS * STEPS
    check_same_run(by_hand, tmp_path / "run")


def test_a_signal_requeues_the_job_which_continues_to_the_same_bits(cluster, by_hand, tmp_path):
    run = tmp_path / "run"
    job = cluster.submit(run, EPOCHS)
    wait_for(lambda: epochs_of(run) >= 1)
    cluster.run("scancel", "--signal=TERM", job)
    cluster.restart_now(job)
    stop = journal_of(run)[-1]
    assert stop["stopped_by"] == "sigterm"
    assert STEPS <= stop["step"] < EPOCHS * STEPS
    assert saved_steps(run)[-1] == stop["step"]
    assert output_of(tmp_path, job).count("Exited with exit code 143") == 2
    facts = cluster.wait(job, "COMPLETED", "FAILED", restarts=1)
    assert facts["ExitCode"] == "0:0", output_of(tmp_path, job)
    assert [line["resumed"] for line in journal_of(run) if line["event"] == "start"] == [False, True]
    check_same_run(by_hand, run)


def test_the_signal_before_the_time_limit_requeues_the_job(cluster, tmp_path):
    """SLURM sends it up to a minute early, so that the job ran for 30 to 90 seconds."""
    run = tmp_path / "run"
    job = cluster.submit(run, ENDLESS, sbatch=["--time=2", "--signal=TERM@30"])
    facts = cluster.wait(job, "PENDING", restarts=1)
    cluster.run("scancel", job)
    assert facts["ExitCode"] == "143:0"
    stop = journal_of(run)[-1]
    assert stop["stopped_by"] == "sigterm"
    assert saved_steps(run)[-1] == stop["step"] > 0


def test_a_job_array_trains_the_members_of_a_sweep(cluster, tmp_path):
    """One of its three tasks gets SIGTERM, and is requeued alone."""
    directory, values = tmp_path / "sweep", "--lr=0.01,0.02,0.03"
    job = cluster.submit(directory, EPOCHS, values, sbatch=["--array=0-2"], job=ARRAY)
    wait_for(lambda: epochs_of(directory / "001-lr=0.02") >= 1)
    cluster.run("scancel", "--signal=TERM", f"{job}_1")
    cluster.restart_now(f"{job}_1")
    for task, restarts in enumerate((0, 1, 0)):
        facts = cluster.wait(f"{job}_{task}", "COMPLETED", "FAILED", restarts=restarts)
        assert facts["ExitCode"] == "0:0", facts
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}
    fit = [tmp_path / "config.yaml", f"--directory={directory}", f"--num_epochs={EPOCHS}", values]
    table = cluster.run("learner", "sweep", *fit)
    assert table.count(", kept\n") == 3
    assert "best configuration: lr=" in table
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()} == before
    for member, resumed in zip(sorted(directory.glob("00*")), ([False], [False, True], [False]), strict=True):
        assert [line["resumed"] for line in journal_of(member) if line["event"] == "start"] == resumed
        assert journal_of(member)[-1]["step"] == EPOCHS * STEPS


LIMITED = """\
import json, sys, time
import learner, optax
from learner.data import digits
from learner.examples.models import MLP

learner.init_distributed()
builder = learner.LearnerBuilder(sys.argv[1]).num_epochs(100_000).renderer(None).with_batch_size(32)
builder.with_file_checkpointer(keep_best=0, every_epochs=100_000).with_time_limit()
result = builder.build(lambda rngs: MLP([64, 8, 10], rngs=rngs), optax.sgd, 0.1).fit(digits("train"))
print(json.dumps([result.stopped_by, result.summary["steps"]]), flush=True)
"""


def test_a_run_ends_before_the_time_limit_of_its_job(cluster, tmp_path):
    """A minute less a twentieth: the job ends by itself after 57 seconds."""
    run, program = tmp_path / "run", tmp_path / "limited.py"
    program.write_text(LIMITED)
    srun = f"--wrap=srun {sys.executable} {program} {run}"
    output = f"--output={tmp_path}/%j.out"
    job = int(cluster.run("sbatch", "--parsable", "--time=1", "--nodes=2", "--ntasks=2", output, srun))
    facts = cluster.wait(job, "COMPLETED", "FAILED", "TIMEOUT")
    assert facts["JobState"] == "COMPLETED", output_of(tmp_path, job)
    assert "00:00:50" < facts["RunTime"] < "00:01:10"
    steps = saved_steps(run)[-1]
    assert output_of(tmp_path, job).count(f'["time limit", {steps}]') == 2


def variables_of(process):
    try:
        return process.environ()
    except psutil.Error:  # it has ended meanwhile
        return {}


def kill_node(cluster, job, index):
    """Kill the daemon of a node, and a job's process and its daemon, as a power failure does."""
    names = {"SLURM_JOB_ID": str(job), "SLURM_PROCID": str(index)}
    (task,) = [
        process
        for process in psutil.process_iter()
        if names.items() <= variables_of(process).items() and process.parent().name().startswith("slurmstepd")
    ]
    daemon = psutil.Process(int(Path(cluster.place, f"n{index + 1}.pid").read_text()))
    for process in (daemon, task.parent(), task):
        process.kill()


def test_a_lost_node_ends_the_other_process_and_requeues_the_job(cluster, tmp_path):
    """The heartbeat is shorter than the time after which SLURM itself misses the node."""
    run = tmp_path / "run"
    job = cluster.submit(run, ENDLESS, "--heartbeat=10")
    wait_for(lambda: epochs_of(run) >= 12)
    kill_node(cluster, job, 1)
    try:
        ended = re.compile(r"task 0: (Exited with exit code 2|Aborted)|died|heartbeat", re.IGNORECASE)
        wait_for(lambda: ended.search(output_of(tmp_path, job)), 40, lambda: output_of(tmp_path, job))
        assert saved_steps(run)
        cluster.wait(job, "PENDING", restarts=1)
    finally:
        cluster.run("scancel", job)
        cluster.script("node", "n2")
