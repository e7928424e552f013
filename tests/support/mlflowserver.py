"""A real MLflow server on this machine, with an SQLite store."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

SECONDS = 120


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


@contextlib.contextmanager
def server(directory):
    """Yield the address of a running server."""
    port = free_port()
    store = f"sqlite:///{directory}/mlflow.db"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store]
    command += ["--artifacts-destination", f"{directory}/artifacts", "--host", "127.0.0.1", "--port", str(port)]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "no_proxy": "127.0.0.1"}
    with open(f"{directory}/server.log", "w") as log:
        process = subprocess.Popen(
            [*command, "--workers", "1"], cwd=directory, env=os.environ | quiet, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(process, url, f"{directory}/server.log")
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the server has child processes
        process.wait()


def _wait(process, url, log):
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    with open(log) as file:
        raise AssertionError(f"the server did not start: {file.read()[-2000:]}")
