"""Runs of two processes under cluster launchers, and the equivalent run started by hand."""

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from learner import load_checkpoint
from tests.support.processes import ROOT, start
from tests.support.runs import journal_of

SETTINGS = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": str(ROOT)}
CONFIG = """\
model: {class_path: learner.examples.models.MLP, init_args: {features: [64, 8, 10], dropout: 0.2}}
optimizer: Adam
lr: 0.01
train: {dataset: {class_path: learner.data.digits, init_args: {split: train}}, batch_size: 32, shuffle: true}
valid: {dataset: {class_path: learner.data.digits, init_args: {split: valid}}, batch_size: 256}
metrics: [Accuracy]
with_file_checkpointer: {keep_last: 2, keep_best: 0, every_epochs: 10}
"""
STEPS = -(-1437 // 32)  # an epoch: 1437 rows in batches of 32


def skip_without(*commands):
    """Skip a module's tests if a command is missing or the user is not root."""
    missing = [command for command in commands if shutil.which(command) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"not on this machine: {', '.join(missing) or 'root'}", allow_module_level=True)


def write_config(directory):
    path = Path(directory) / "config.yaml"
    path.write_text(CONFIG)
    return path


def fit_by_hand(directory, epochs):
    """Train the config in two processes connected by hand, and return the run's directory."""
    run = directory / "by-hand"
    options = [f"--directory={run}", f"--num_epochs={epochs}"]
    process = ["--coordinator", "localhost:{port}", "--num_processes", "{count}", "--process_id", "{index}"]
    for ended in start(["-m", "learner", "fit", write_config(directory), *options, *process], 2):
        assert ended.code == 0, ended.err
    return run


def check_same_run(expected, found):
    """Check that two runs have ended with the same bits, values and steps."""
    a, b = (load_checkpoint(directory, "latest") for directory in (expected, found))
    assert a.step == b.step
    assert a.history == b.history
    for arrays, others in ((a.params, b.params), (a.opt_state, b.opt_state)):
        assert arrays.keys() == others.keys()
        assert arrays
        for name in arrays:
            np.testing.assert_array_equal(arrays[name], others[name], err_msg=name)
    starts = [[line for line in journal_of(run) if line["event"] == "start"] for run in (expected, found)]
    assert [lines[0]["resumed"] for lines in starts] == [False, False]


def epochs_of(directory):
    """Return how many epochs a run's journal has, 0 if there is no journal yet."""
    path = Path(directory) / "journal.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return sum(json.loads(line)["event"] == "epoch" for line in lines if line.endswith("}"))


def wait_for(happened, seconds=120, explain=str):
    """Call a function until its result is true, and return that result."""
    end = time.monotonic() + seconds
    while not (result := happened()):
        assert time.monotonic() < end, explain()
        time.sleep(0.2)
    return result
