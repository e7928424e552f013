"""Check that runs of earlier versions of the code resume to the bit.

The fixture `run-dyadic.tar.gz` is a run that was stopped within its second epoch, with the values of the uninterrupted
run. Its numbers are dyadic fractions of few bits (integer data, rates and masks), which float32 computes without
rounding, so the bits are equal on every machine. `python test_before.py` writes it anew; use the version of the code
that the fixture represents.
"""

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from learner import Interrupter, LearnerBuilder
from learner.data import DataLoaderBuilder
from tests.support.archives import unpack

FIXTURE = Path(__file__).parent / "fixtures" / "run-dyadic.tar.gz"
ROWS, BATCH, EPOCHS, STOP = 22, 4, 3, 9  # 6 steps in an epoch, the last of them with 2 rows
DATA = {"x": (np.arange(ROWS * 4).reshape(ROWS, 4) * 7 % 16 - 8).astype(np.float32)}


class Loss(NamedTuple):
    loss: Any
    weight: Any


def step(model, batch, rng=None):
    mask = jnp.ones(4) if rng is None else jax.random.bernoulli(rng, 0.5, (4,)).astype(jnp.float32)
    losses = ((model["w"] * mask)[None] * batch["x"]).sum(axis=1)
    return Loss(losses.mean(), jnp.float32(len(losses)))


def rate(count):
    return jnp.where(count < 8, 0.5, 0.25)


def build(directory, interrupter=None):
    builder = LearnerBuilder(directory).num_epochs(EPOCHS).seed(3).renderer(None)
    builder.with_file_checkpointer(every_steps=STOP, keep_last=9)
    if interrupter is not None:
        builder.interrupter(interrupter).every(steps=STOP, fn=lambda info, model: interrupter.stop("enough"))
    return builder


def fit(builder):
    model = {"w": jnp.zeros(4, jnp.float32)}
    learner = builder.build(model, lambda lr: optax.sgd(lr, momentum=1.0), rate, train_step=step, valid_step=step)
    train = DataLoaderBuilder().batch_size(BATCH).shuffle(5).build(DATA)
    return learner.fit(train, DataLoaderBuilder().batch_size(BATCH).build(DATA))


def values_of(result):
    history = {key: [float(v).hex() for v in result.history[key]] for key in sorted(result.history)}
    return {"w": [float(x).hex() for x in result.model["w"]], "history": history}


def test_a_run_that_stopped_inside_an_epoch(tmp_path):
    unpack(FIXTURE, tmp_path)
    expected = json.loads((tmp_path / "expected.json").read_text())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["steps"], summary["stopped_by"]) == (STOP, "interrupter: enough")
    resumed = fit(build(tmp_path / "run").resume())
    assert values_of(resumed) == expected


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        whole = values_of(fit(build(Path(folder) / "whole")))
        (Path(folder) / "expected.json").write_text(json.dumps(whole))
        interrupter = Interrupter()
        fit(build(Path(folder) / "run", interrupter))
        print(json.dumps(whole), file=sys.stderr)
        with tarfile.open(FIXTURE, "w:gz") as archive:
            for name in ("run", "expected.json"):
                archive.add(Path(folder) / name, name)
