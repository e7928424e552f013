"""Check the Kubernetes manifests against its schemas, and train one run with their commands, as pods would."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

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
skip_without()
CLUSTERS = ROOT / "examples" / "clusters"
EPOCHS, VERSION = 60, "1.37"  # of Kubernetes
HOSTS, NAMES = Path("/etc/hosts"), "127.0.0.1 train-0.train train-hosts-0-0.train # learner-kubernetes\n"


def job_in(name):
    """Return the spec of the Job in a manifest, and the manifest's parts."""
    parts = [*yaml.safe_load_all((CLUSTERS / name).read_text())]
    if parts[-1]["kind"] == "Job":
        return parts[-1]["spec"], parts
    (replicated,) = parts[-1]["spec"]["replicatedJobs"]
    return replicated["template"]["spec"], parts


def container_of(job):
    (container,) = job["template"]["spec"]["containers"]
    return container


# -- schemas -----------------------------------------------------------------------------------------------------------


def test_the_indexed_job_fits_the_schemas_of_kubernetes():
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    _, parts = job_in("indexed_job.yaml")
    for part in parts:
        schemas.validate(part, VERSION, strict=True)
    with pytest.raises(schemas.ValidationError):
        schemas.validate(
            {**parts[-1], "spec": {**parts[-1]["spec"], "completion_mode": "Indexed"}}, VERSION, strict=True
        )


def test_the_jobset_fits_the_schemas_of_jobset_and_of_kubernetes():
    """Models generated from JobSet's schema drop unknown fields."""
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="kubeflow-trainer-api is not installed")
    job, (jobset,) = job_in("jobset.yaml")
    assert models.JobsetV1alpha2JobSet.from_dict(jobset).to_dict() == jobset
    plain = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train-hosts-0"}, "spec": job}
    schemas.validate(plain, VERSION, strict=True)
    jobset["spec"]["failurePolicy"]["maxRestart"] = 3
    assert models.JobsetV1alpha2JobSet.from_dict(jobset).to_dict() != jobset


@pytest.mark.parametrize("name", ["jobset.yaml", "indexed_job.yaml"])
def test_the_numbers_and_names_of_a_manifest_agree(name):
    job, parts = job_in(name)
    count = f"--num_processes={job['completions']}"
    assert job["parallelism"] == job["completions"]
    assert count in container_of(job)["args"]
    if parts[-1]["kind"] == "JobSet":
        host = f"{parts[-1]['metadata']['name']}-{parts[-1]['spec']['replicatedJobs'][0]['name']}-0-0"
        domain = parts[-1]["metadata"]["name"]
    else:
        host, domain = f"{parts[-1]['metadata']['name']}-0", job["template"]["spec"]["subdomain"]
        assert parts[0]["metadata"]["name"] == domain
        assert parts[0]["spec"]["selector"] == {"batch.kubernetes.io/job-name": parts[-1]["metadata"]["name"]}
    assert f"--coordinator={host}.{domain}:1234" in container_of(job)["args"]


# -- pods --------------------------------------------------------------------------------------------------------------


class Pods:
    """The containers of an indexed Job as processes of this machine, which are replaced when they fail."""

    def __init__(self, manifest, place, *options):
        self.place, self.options = place, options
        self.job, _ = job_in(manifest)
        self.codes = [[] for _ in range(self.job["completions"])]
        self.running = [self._start(index) for index in range(self.job["completions"])]

    def _start(self, index):
        container = container_of(self.job)
        (mount,) = container["volumeMounts"]
        words = [*container["command"], *container["args"], *self.options]
        words = [word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in words]
        words = [word.replace(f"={mount['mountPath']}/", f"={self.place}/") for word in words]
        # As kubelet sets them. There is no token of a service account: most clusters mount none for such pods.
        variables = {
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
            "KUBERNETES_SERVICE_PORT": "443",
            "JOB_COMPLETION_INDEX": str(index),
            "HOSTNAME": f"train-{index}",
        }
        with (self.place / f"pod-{index}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *words], env={**os.environ, **SETTINGS, **variables}, cwd=self.place,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def log(self, index):
        return (self.place / f"pod-{index}.log").read_text()

    def have_succeeded(self):
        """Replace the failed pods, and return True once all have ended with 0."""
        for index, pod in enumerate(self.running):
            if pod.poll() is not None and len(self.codes[index]) < 20 and 0 not in self.codes[index]:
                self.codes[index].append(pod.returncode)
                if pod.returncode:
                    self.running[index] = self._start(index)
        return all(codes and codes[-1] == 0 for codes in self.codes)

    def wait(self):
        wait_for(self.have_succeeded, 150, lambda: "\n".join([f"{self.codes}", *map(self.log, range(len(self.codes)))]))


@contextlib.contextmanager
def pods(manifest, place, *options):
    write_config(place)
    before = HOSTS.read_text()
    HOSTS.write_text(before + NAMES)  # as the service does for the names of pods
    started = Pods(manifest, place, *options)
    try:
        yield started
    finally:
        for pod in started.running:
            pod.kill()
            pod.wait()
        HOSTS.write_text(before)


@pytest.mark.parametrize("manifest", ["jobset.yaml", "indexed_job.yaml"])
def test_the_pods_of_a_manifest_train_one_run(manifest, tmp_path):
    with pods(manifest, tmp_path, "--num_epochs=2") as started:
        started.wait()
    count = started.job["completions"]
    assert started.codes == [[0]] * count
    run = tmp_path / "train"
    assert journal_of(run)[-1]["step"] == 2 * STEPS
    assert f"sharded over {count} devices" in (run / "experiment.log").read_text()
    assert (run / f"experiment-{count - 1}.log").exists()
    assert "Kubernetes environment detected" not in started.log(0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_pod_that_is_replaced_resumes_with_the_others_to_the_same_bits(number, tmp_path):
    run = tmp_path / "train"
    with pods("indexed_job.yaml", tmp_path, f"--num_epochs={EPOCHS}", "--heartbeat=10") as started:
        wait_for(lambda: epochs_of(run) >= 12, explain=lambda: started.log(0))
        started.running[1].send_signal(number)
        started.wait()
    codes = {code for codes in started.codes for code in codes}
    assert codes == {0, 143} if number == signal.SIGTERM else -number in codes
    assert max(map(len, started.codes)) < started.job["backoffLimit"]
    starts = [line["resumed"] for line in journal_of(run) if line["event"] == "start"]
    assert starts == [False, True]
    assert saved_steps(run)[-1] == EPOCHS * STEPS
    check_same_run(fit_by_hand(tmp_path, EPOCHS), run)
