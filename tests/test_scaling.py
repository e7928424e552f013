"""Compare the formulas of docs/scaling.md with XLA's numbers for compiled programs."""

import dataclasses
import functools
import importlib
import math
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from learner import LearnerBuilder, SequenceOutput
from learner.steps.buffers import BatchBuffer
from learner.strategies import Replicated, Sharded, SingleDevice, fsdp
from learner.training.setup.dispatch_plan import make_runner

pytestmark = pytest.mark.usefixtures("compiled_once")

ROOT = Path(__file__).parents[1]
RULES = {
    r"attention\.(query|key|value)\.kernel": (None, "model"),
    r"attention\.(query|key|value)\.bias": "model",
    r"attention\.out\.kernel": "model",
    r"up\.kernel": (None, "model"),
    r"up\.bias": "model",
    r"down\.kernel": "model",
}
SMALL = 300  # bytes: losses, norms, metrics, counters


@pytest.fixture
def projection(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.projection")


@dataclasses.dataclass(frozen=True)
class Compiled:
    """XLA's numbers for a step.

    Attributes:
      arguments, temporaries: bytes on a device.
      sent: bytes that each device sends, by the kind of collective, in a ring.
      shapes: of the arrays of each kind of collective.
    """

    arguments: int
    temporaries: int
    sent: dict[str, float]
    shapes: dict[str, list[tuple[int, ...]]]


@functools.cache
def on_one_device(projection, size, rows):
    return compiled(projection, SingleDevice(), size, rows)


def compiled(projection, strategy, size, rows):
    """Compile a step of Adam on the transformer of the benchmarks, with a batch of `rows` rows."""
    transformer = importlib.import_module("benchmarks.workloads").Transformer
    model = transformer(nnx.Rngs(0), size.width, size.blocks, size.length, size.kinds)
    assert sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param))) == size.parameters
    builder = LearnerBuilder("unused").strategy(strategy)
    learner = builder.build(model, optax.adam, 1e-3, train_step=step)
    batch = {name: np.zeros((1, rows, size.length), np.int32) for name in ("x", "y")}
    with jax.numpy_dtype_promotion("standard"):
        runner = make_runner(learner.definition.step, learner.definition.init_placed(), strategy)
        feed = BatchBuffer(strategy.put(batch, 1), None, (False, True))
        program = runner.compiled(feed, loop=False)["step"]
    memory = program.memory_analysis()
    return Compiled(memory.argument_size_in_bytes, memory.temp_size_in_bytes, *collectives(program.as_text()))


def step(model, batch):
    return SequenceOutput.from_logits(model(batch["x"]), batch["y"])


def collectives(text):
    """Return the bytes that each device sends, by the kind of collective, and the shapes of the arrays."""
    sent, shapes = {}, {}
    pattern = r" = (\S+|\(.*?\)) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)\((.*)"
    for result, kind, rest in re.findall(pattern, text):
        n = group_size(rest)
        times = {"all-reduce": 2 * (n - 1) / n, "all-gather": (n - 1) / n}.get(kind, 1)
        for bits, axes in re.findall(r"[a-z]+(\d+)\[([\d,]*)\]", result):
            shape = tuple(int(axis) for axis in axes.split(",") if axis)
            sent[kind] = sent.get(kind, 0) + math.prod(shape) * int(bits) // 8 * times
            shapes.setdefault(kind, []).append(shape)
    return sent, shapes


def group_size(text):
    """Return the number of participating devices, for each notation of XLA."""
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
        return len(listed[1].split(","))
    if strided := re.search(r"replica_groups=\[\d+,(\d+)\]", text):
        return int(strided[1])
    axes = re.search(r"replica_groups=mesh\[([^]]*)\][^{]*\{([^}]*)\}", text)
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", axes[1]))
    return math.prod(int(sizes[name]) for name in re.findall(r"'(\w+)'", axes[2]))


@pytest.mark.parametrize(
    "text",
    ["{{0,1,2,3},{4,5,6,7}}, x", "[2,4]<=[8]", "mesh['a'=2,'b'=4] {'b'}, x", "mesh['a'=2,'b'=2,'c'=2] {'a','c'}, x"],
)
def test_groups_of_four_are_read(text):
    assert group_size(f"%x), channel_id=1, replica_groups={text}") == 4


def check(measured, cost, rows, size):
    """Compare state and communication exactly, but for the batch and a few numbers; temporaries within a tenth."""
    batch = 2 * rows * size.length * 4
    assert 0 <= measured.arguments - cost.state - batch <= SMALL
    assert 0 <= sum(measured.sent.values()) - cost.sent <= SMALL
    assert 0.9 * (cost.least - cost.state) <= measured.temporaries <= 1.1 * (cost.most - cost.state)


@pytest.fixture
def size(projection):
    return projection.Transformer(width=128, blocks=2, length=32, kinds=64, heads=4)


@pytest.mark.full
def test_one_device(projection, size):
    rows = 16
    measured = on_one_device(projection, size, rows)
    check(measured, projection.single(size.model(0), rows), rows, size)
    assert measured.sent == {}


@pytest.mark.full
@pytest.mark.parametrize(("make", "n"), [(Replicated, 2), (Sharded, 4), (Replicated, 8)])
def test_replicas(projection, size, make, n):
    measured = compiled(projection, make(devices=jax.devices()[:n]), size, 16 * n)
    check(measured, projection.replicated(size.model(0), 16 * n, n), 16, size)


@pytest.mark.parametrize("n", [2, 8])
@pytest.mark.full
def test_fsdp_sends_parameters_and_gradients_and_no_activations(projection, size, n):
    measured = compiled(projection, Sharded(rules=fsdp(1), devices=jax.devices()[:n]), size, 8 * n)
    check(measured, projection.fsdp(size.model(size.parameters), 8 * n, n), 8, size)
    assert measured.sent.keys() == {"all-gather", "all-reduce"}
    gathered = sum(math.prod(shape) for shape in measured.shapes["all-gather"])
    assert gathered == size.parameters, "each parameter once, and nothing else"


@pytest.mark.full
@pytest.mark.parametrize(("n", "m"), [(2, 2), (8, 4)])
def test_tensor_parallelism(projection, size, n, m):
    strategy = Sharded({"data": n // m, "model": m}, RULES, devices=jax.devices()[:n])
    measured = compiled(projection, strategy, size, 8 * n)
    check(measured, projection.tensor(size.model(size.kernels), 8 * n, n, m), 8 * m, size)


@pytest.mark.full
@pytest.mark.parametrize("change", [{}, {"width": 256, "kinds": 512}, {"length": 128, "blocks": 3}], ids=str)
def test_activations_of_a_row(projection, size, change):
    """Measure the memory that one more row adds."""
    other = dataclasses.replace(size, **change)
    few, many = (on_one_device(projection, other, rows).temporaries for rows in (16, 32))
    assert (many - few) / 16 == pytest.approx(other.model(0).row, rel=0.1)


def test_the_large_model(projection):
    large = projection.LARGE
    assert large.parameters == pytest.approx(1e9, rel=0.02)
    lines = projection.table()
    assert len([line for line in lines if line.startswith("| ")]) == 1 + 1 + 3 * 4
    # By hand: 16 (12 * 2048² + 13 * 2048) + 102 048 * 2048 + 2 * 2048 + 2048 * 50 000 + 50 000 numbers of 4 bytes.
    assert "| 8 | Replicated, Sharded | 4.06 GB | 8.12 GB | 4.06 GB | 0.00 GB | " in "\n".join(lines)
    document = (ROOT / "docs" / "scaling.md").read_text()
    assert "\n".join(lines) in document, "python -m benchmarks.projection prints another table than docs/scaling.md has"


@pytest.mark.full
def test_named_xla_flags_exist():
    document = (ROOT / "docs" / "scaling.md").read_text()
    flags = sorted(set(re.findall(r"`--(xla_gpu_\w+=\w+)`", document)))
    assert len(flags) > 4
    names = " ".join(f"--{flag}" for flag in flags)
    command = [sys.executable, "-c", "import jax; jax.numpy.zeros(1)"]
    run = subprocess.run(command, env={"XLA_FLAGS": names, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", ["learner.sbatch", "jobset.yaml"])
def test_page_shows_the_example_files(name):
    content = (ROOT / "examples" / "clusters" / name).read_text()
    assert f"\n{content}```\n" in (ROOT / "docs" / "scaling.md").read_text()
