"""Tests of processes that must not train: imports of the main script, and forks; and of scripts that start workers."""

import errno
import multiprocessing
import multiprocessing.synchronize
import shutil
import subprocess
import sys

import numpy as np
import psutil
import pytest

from learner import LearnerError
from learner.data import DataLoaderBuilder, workers
from learner.data.source import source_of
from tests.support.codes import raises_code

# The dataset exceeds the 64 KB of a pipe's buffer, so that a parent that does not read would deadlock.
SCRIPT = """
import sys
import numpy as np
from learner.data import DataLoaderBuilder, Dataset

class Squares(Dataset):
    table = np.arange(50_000, dtype=np.float32) ** 2
    def __init__(self):
        self.own = self.table.copy()
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return {"x": self.own[index]}

def main():
    loader = DataLoaderBuilder().batch_size(2).num_workers(1).build(Squares())
    print([batch["x"].tolist() for batch in loader])
"""
UNGUARDED = SCRIPT + "\nmain()\n"
GUARDED = SCRIPT + '\nif __name__ == "__main__":\n    main()\n'
NEVER_IMPORTED = 'import sys\nif __name__ == "__mp_main__":\n    sys.exit(0)\n' + GUARDED
EXPECTED_OUTPUT = "[[0.0, 1.0], [4.0, 9.0]]\n"


def run(*command, stdin=None):
    return subprocess.run([sys.executable, *command], input=stdin, capture_output=True, text=True, timeout=120)


def write_script(directory, text):
    path = directory / "script.py"
    path.write_text(text)
    return str(path)


def error_of(result):
    """Return the last line of the only traceback of a process."""
    assert result.returncode == 1
    assert result.stderr.count("Traceback (most recent call last)") == 1, result.stderr
    return result.stderr.splitlines()[-1]


@pytest.mark.full
def test_script_without_a_guard_ends_with_one_error(tmp_path):
    path = write_script(tmp_path, UNGUARDED)
    error = error_of(run(path))
    assert error.startswith(f"learner.errors.LearnerError: num_workers starts processes that import {path}, which")
    assert 'put the code that trains below `if __name__ == "__main__":`, or read with num_workers(0)' in error


@pytest.mark.full
def test_script_that_cannot_be_imported_ends_with_one_error(tmp_path):
    assert "ended with exit code 0" in error_of(run(write_script(tmp_path, NEVER_IMPORTED)))


NO_FILE = "came through standard input: save it in a file and put the code that trains below"


def test_workers_cannot_import_standard_input(monkeypatch):
    data = {"init_main_from_path": "/somewhere/<stdin>"}
    monkeypatch.setattr(workers.spawn, "get_preparation_data", lambda _: data)
    with pytest.raises(LearnerError, match=NO_FILE):
        workers.check_main_script()


@pytest.mark.full
def test_script_from_standard_input_ends_with_one_error():
    assert NO_FILE in error_of(run("-", stdin=GUARDED))


@pytest.mark.full
def test_guarded_scripts_and_commands_use_workers(tmp_path):
    for command in ([write_script(tmp_path, GUARDED)], ["-c", UNGUARDED]):
        result = run(*command)
        assert (result.stdout, result.stderr, result.returncode) == (EXPECTED_OUTPUT, "", 0)


@pytest.mark.full
def test_fit_without_a_guard_ends_with_one_error(tmp_path):
    script = f"""
import optax
from flax import nnx
from learner import LearnerBuilder, RegressionOutput
from learner.data import DataLoaderBuilder, view
def step(model, batch):
    return RegressionOutput.from_predictions(model(batch["x"]), batch["x"])
data = view([{{"x": [1.0]}}] * 4)
builder = LearnerBuilder({str(tmp_path / "run")!r}).num_epochs(1).renderer(None)
learner = builder.build(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), optax.sgd, 0.1, train_step=step, valid_step=step)
learner.evaluate(DataLoaderBuilder().batch_size(2).build(data))  # must not run in a worker
learner.fit(DataLoaderBuilder().batch_size(2).num_workers(1).build(data))
"""
    assert "num_workers starts processes" in error_of(run(write_script(tmp_path, script)))


def test_users_process_that_imports_the_script_raises(monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with raises_code("worker-script-unguarded"):
        source_of([{"x": np.zeros(2)}], "train")


@pytest.mark.parametrize("name", ["learner-import-of-main", "grain-process-prefetch-ds 0"])
def test_worker_that_imports_the_script_exits(monkeypatch, name):
    codes = []
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    monkeypatch.setattr(multiprocessing.current_process(), "name", name)
    monkeypatch.setattr(workers.os, "_exit", lambda code: codes.append(code) or sys.exit())
    with pytest.raises(SystemExit):
        workers.check_process()
    assert codes == [workers.UNGUARDED]


@pytest.mark.parametrize(
    ("name", "path", "script"),
    [(None, None, None), ("package.__main__", None, None), ("package.train", None, "package.train")],
)
def test_main_script(monkeypatch, name, path, script):
    preparation = {"init_main_from_name": name, "init_main_from_path": path}
    data = {key: value for key, value in preparation.items() if value is not None}
    monkeypatch.setattr(workers.spawn, "get_preparation_data", lambda _: data)
    assert workers._main_script() == script


class TorchLike:
    def __init__(self, workers, method):
        self.num_workers = workers
        self.multiprocessing_context = method and multiprocessing.get_context(method)

    def __iter__(self):
        yield {"x": np.zeros(2)}


@pytest.mark.parametrize(
    ("workers_", "method", "warned"), [(2, "fork", 1), (2, "spawn", 0), (2, "forkserver", 0), (0, "fork", 0)]
)
def test_forked_workers_of_other_loaders_warn_once(workers_, method, warned):
    warnings = []
    source = source_of(TorchLike(workers_, method), "train")
    source.peek(1)
    for epoch in (1, 2):
        list(source.open(epoch, warn=warnings.append))
    assert len(warnings) == warned
    assert all("(TorchLike) forks its worker processes" in text for text in warnings)


@pytest.mark.parametrize("set_to", [None, "spawn"])
def test_default_start_method(monkeypatch, set_to):
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: set_to)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["fork", "spawn"])
    assert workers.forks_workers(TorchLike(2, None)) == (set_to is None)


FORKS = """
import os, warnings
import jax
warnings.simplefilter("ignore")
import learner
from learner.data.workers import check_process

def child():
    if os.fork() == 0:
        try:
            check_process()
        except learner.LearnerError as error:
            print(error, flush=True)
        os._exit(0)
    os.wait()

child()
print("JAX runs", len(jax.devices()), flush=True)
child()
check_process()
print("the parent trains")
"""


@pytest.mark.full
def test_fork_after_jax_ran_is_refused():
    result = run("-c", FORKS)
    before, refused, after = result.stdout.splitlines()
    assert before.startswith("JAX runs")
    assert refused.startswith("this process was forked from one in which JAX had started threads")
    assert 'multiprocessing.get_context("spawn") or "forkserver"' in refused
    assert after == "the parent trains"


@pytest.mark.full
def test_workers_end_with_a_killed_parent(tmp_path):
    reading = "    batches = iter(loader)\n    next(batches)\n    print('reads', flush=True)\n    sys.stdin.read()\n"
    script = SCRIPT.replace("    print([batch", f"{reading}    print([batch")
    path = write_script(tmp_path, script + '\nif __name__ == "__main__":\n    main()\n')
    with subprocess.Popen([sys.executable, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "reads\n"
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.kill()
        _, alive = psutil.wait_procs(children, timeout=20)
    for child in alive:
        child.kill()
    assert alive == []


@pytest.mark.full
def test_killed_worker_raises(tmp_path):
    script = SCRIPT.replace('return {"x"', 'return index == 3 and os.kill(os.getpid(), 9) or {"x"')
    script = script.replace("import sys", "import os, sys")
    result = run(write_script(tmp_path, script + '\nif __name__ == "__main__":\n    main()\n'))
    assert result.returncode == 1
    assert "learner.errors.LearnerError: a worker process of num_workers was killed" in result.stderr


@pytest.mark.parametrize("error", [OSError(errno.EROFS, "Read-only file system"), ImportError("no sem_open")])
def test_workers_without_semaphores_are_refused(monkeypatch, error):
    """As in a container without a writable /dev/shm."""

    def refuse(*arguments):
        raise error

    monkeypatch.setattr(multiprocessing.synchronize._multiprocessing, "SemLock", refuse)
    loader = DataLoaderBuilder().batch_size(2).num_workers(1).build([{"x": np.float32(1)}] * 4)
    with raises_code("worker-shared-memory-missing", "/dev/shm", "num_workers(0)", str(error)):
        next(iter(loader))


@pytest.mark.full
def test_workers_without_shared_memory_end_with_one_error(tmp_path):
    """The real fault, in a mount namespace of the test."""
    mount = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro none /dev/shm && exec "$@"', "-"]
    if shutil.which("unshare") is None or subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    script = write_script(tmp_path, GUARDED)
    result = subprocess.run([*mount, sys.executable, script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert "LearnerError: num_workers starts processes that need semaphores" in result.stderr.splitlines()[-1]
