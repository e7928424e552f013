"""Tests on any accelerator: `pytest -m accelerator`. Other tests run on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import RegressionOutput
from learner.errors import OutOfMemoryError
from learner.strategies import SingleDevice
from learner.training.programs.oom import OomContext
from tests.support.runs import (
    Net,
    build_line,
    build_net,
    checkpoint_bits,
    model_bits,
    quiet,
    saved_steps,
    shuffled,
    valid_data,
)
from tests.support.spread import Cnn, Mlp, labelled
from tests.support.stopped import all_of, same

pytestmark = pytest.mark.accelerator


@pytest.fixture(autouse=True)
def device():
    accelerator = jax.devices()[0]
    if accelerator.platform == "cpu":
        pytest.skip("JAX finds no accelerator here, or was not asked for one: pytest -m accelerator")
    return accelerator


@pytest.fixture
def cpu():
    try:
        return jax.devices("cpu")[0]
    except RuntimeError:
        pytest.skip("JAX_PLATFORMS leaves out the CPU, which the numbers are compared with")


def test_numbers_equal_those_of_the_cpu(tmp_path, device, cpu):
    """Train with SGD: Adam makes a full step from a gradient of rounding noise, such as a bias's before BatchNorm."""
    left = []
    with jax.default_matmul_precision("highest"):
        for name, where in (("here", device), ("cpu", cpu)):
            builder = quiet(tmp_path / name).num_epochs(3).strategy(SingleDevice(where))
            left.append(builder.build(Net(), optax.sgd, 0.05).fit(shuffled(), valid_data()))
    for key, values in left[1].history.items():
        np.testing.assert_allclose(left[0].history[key], values, rtol=1e-3, atol=1e-5, err_msg=key)
    trained = [jax.tree.leaves(nnx.state(result.model, nnx.Param)) for result in left]
    for one, other in zip(*trained, strict=True):
        assert one.devices() == {device}
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_steps_with_a_convolution_run_in_a_loop(tmp_path):
    build = quiet(tmp_path / "run").num_epochs(2).build(Cnn(0.0), optax.sgd, 0.1)
    result = build.fit([labelled((5, 5, 1), 16, seed) for seed in range(4)])
    assert result.history["train/Loss"][-1] < result.history["train/Loss"][0]
    lines = (tmp_path / "run" / "experiment.log").read_text().splitlines()
    (line,) = [line for line in lines if "dispatch of train: " in line]
    assert "in one loop" in line
    assert "convolution" not in line


class Watched(Mlp):
    """A model that records the dtype of its computations."""

    dtypes = set()

    def train_step(self, batch):
        output = super().train_step(batch)
        self.dtypes.add(output.logits.dtype)
        return output


def test_computing_in_bfloat16(tmp_path):
    data = [labelled((6,), 32, seed) for seed in range(8)]
    builder = quiet(tmp_path / "run").num_epochs(20).precision("bfloat16")
    result = builder.build(Watched(0.0), optax.adam, 0.01).fit(data)
    assert jnp.dtype("bfloat16") in Watched.dtypes
    losses = result.history["train/Loss"]
    assert losses[-1] < 0.7 * losses[0]
    assert {x.dtype for x in jax.tree.leaves(nnx.state(result.model, nnx.Param))} == {jnp.dtype("float32")}


def test_memory_is_reported(device):
    before = device.memory_stats()
    array = jax.device_put(np.ones(2**24, np.float32), device).block_until_ready()
    after = device.memory_stats()
    assert after["bytes_limit"] > after["bytes_in_use"] >= before["bytes_in_use"] + array.nbytes


def test_exhausted_device_memory_is_reported(device):
    too_many = device.memory_stats()["bytes_limit"] // 4 + 2**20
    with pytest.raises(OutOfMemoryError, match=r"out of memory in training\. The device says: "), OomContext("train"):
        jax.jit(lambda: jnp.ones(too_many, jnp.float32))().block_until_ready()


def test_run_resumes_to_the_bit(tmp_path):
    make = lambda name, n: quiet(tmp_path / name, saves=True).num_epochs(n)  # noqa: E731
    build_net(make("run", 2)).fit(shuffled(), valid_data())
    result = build_net(make("run", 4).resume()).fit(shuffled(), valid_data())
    whole = build_net(make("whole", 4)).fit(shuffled(), valid_data())
    same(all_of(tmp_path / "run", result), all_of(tmp_path / "whole", whole))


@pytest.mark.parametrize("dispatch", [1, 4])
def test_bits_do_not_depend_on_the_dispatch(tmp_path, dispatch):
    left = []
    for count in (32, dispatch):
        builder = quiet(tmp_path / str(count)).num_epochs(3).steps_per_dispatch(count)
        left.append(build_net(builder).fit(shuffled(), valid_data()))
    assert model_bits(left[0].model) == model_bits(left[1].model)
    assert left[0].history.to_json() == left[1].history.to_json()


def test_another_process_resumes_to_the_bit(tmp_path):
    """Use the flag that docs/scaling.md names, also where an earlier run without it cached its choice of kernels."""
    place = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

    def fit(name, epochs, flags="--xla_gpu_deterministic_ops=true"):
        config = Path(__file__).parent.parent / "configs/digits_cnn.yaml"
        words = [config, f"--directory={tmp_path / name}", f"--num_epochs={epochs}", "--resume=true"]
        subprocess.run(
            [sys.executable, "-m", "learner", "fit", *map(str, words)],
            env=os.environ | place | {"XLA_FLAGS": flags},
            check=True,
        )

    fit("other", 1, flags="")
    fit("run", 1)
    fit("run", 2)
    fit("whole", 2)
    last = saved_steps(tmp_path / "whole")[-1]
    assert checkpoint_bits(tmp_path / "run", last) == checkpoint_bits(tmp_path / "whole", last)


def test_a_batch_that_does_not_fit_is_split(tmp_path, device):
    layers, width = 24, 1024
    rows = device.memory_stats()["bytes_limit"] // (4 * width * layers)  # rows whose activations fill the memory

    def step(model, batch):
        x = batch["x"] @ model["first"]
        for weights in model["layers"]:
            x = jnp.tanh(x @ weights)
        return RegressionOutput.from_predictions(x.mean(axis=1), batch["y"])

    keys = jax.random.split(jax.random.key(0), layers)
    hidden = [jax.random.normal(key, (width, width), jnp.float32) / width**0.5 for key in keys]
    model = {"first": jnp.ones((1, width), jnp.float32), "layers": hidden}
    data = [{"x": np.ones((rows, 1), np.float32), "y": np.zeros(rows, np.float32)}]
    learner = (
        quiet(tmp_path / "run").num_epochs(2).grads_accumulation("auto").build(model, optax.sgd, 0.1, train_step=step)
    )
    losses = learner.fit(data).history["train/Loss"]
    assert losses[1] < losses[0]
    log = (tmp_path / "run/experiment.log").read_text()
    assert any(f"each in {parts} parts" in log for parts in (2, 4, 8))


def test_linear_fit_equals_least_squares(tmp_path):
    """The expected values are those of `numpy.linalg.lstsq`."""
    with jax.default_matmul_precision("highest"):
        result = build_line(quiet(tmp_path / "run").num_epochs(200), lr=0.1).fit(shuffled())
    np.testing.assert_allclose(np.asarray(result.model["w"])[:, 0], [1, -2, 0.5], atol=1e-2)
