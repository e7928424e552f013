"""Tests of the overview of a run: values by hand, and compared with the run."""

import io
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import LearnerBuilder, RegressionOutput
from learner.data import DataLoaderBuilder
from learner.events import Listener, Message, Overview, RunStarted
from learner.loggers import MemoryLogger
from learner.renderers import PlainRenderer
from learner.strategies import Replicated, Sharded, SingleDevice, fsdp
from learner.training.programs.compilation import CompileTimes
from learner.util import executables
from tests.support.codes import raises_code
from tests.support.runs import BATCH, EVEN, batches, build_line, journal_of, quiet, shuffled, valid_data
from tests.support.spread import KINDS

pytestmark = pytest.mark.usefixtures("compiled_once")

LINE = {"w": (3, 1), "b": (1,)}


def test_overview_of_a_line(tmp_path):
    """The model has four numbers of 4 bytes. A step has two matrix products: forward, and for the gradient of w."""
    overview = build_line(quiet(tmp_path / "run").num_epochs(3)).overview(shuffled())
    assert {x.path: x.shape for x in overview.arrays} == LINE
    assert (overview.model, overview.optimizer) == ("dict (pytree)", "sgd")
    assert (overview.strategy, overview.devices) == ("one device: cpu (cpu:0)", 1)
    assert (overview.rows, overview.spread, overview.accumulate) == (BATCH, 1, 1)
    assert (overview.batches, overview.steps_per_epoch, overview.num_epochs, overview.steps) == (6, 6, 3, 18)
    products = 2 * 2 * BATCH * 3
    assert products < overview.flops < 4 * products
    assert overview.flops_exact
    rows = 4 * (3 + 1 + 1)  # x, t and y
    assert overview.memory == {
        "parameters": 16,
        "gradients": 16,
        "data": 2 * EVEN * rows,
    }  # with its shuffled copy
    assert overview.peak is not None
    assert 0 < overview.temporaries < overview.peak
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_overview_of_several_devices(tmp_path):
    """A device holds an eighth of each array that divides, and three rows of each batch. The buffer has 32 steps of two
    batches.
    """
    builder = quiet(tmp_path / "run").strategy(Sharded(rules=fsdp(1))).grads_accumulation(2).num_steps(7)
    learner = builder.build(KINDS["mlp"].make(0.0), optax.adam, 0.1)
    overview = learner.overview(DataLoaderBuilder().batch_size(24).build(KINDS["mlp"].data(120, 1)), compiled=False)
    assert overview.peak is None
    assert (overview.rows, overview.spread, overview.accumulate) == (24, 8, 2)
    assert (overview.batches, overview.steps_per_epoch, overview.num_epochs, overview.steps) == (5, 3, None, 7)
    memory = overview.memory
    assert (memory["parameters"], memory["gradients"], memory["optimizer"]) == (104, 104, 212)
    assert memory["batches"] == 4 * (32 * 2 * 3 * 4 * 7)
    one = quiet(tmp_path / "one").grads_accumulation(2).build(KINDS["mlp"].make(0.0), optax.adam, 0.1)
    assert one.overview([KINDS["mlp"].data(24, 1)], compiled=False).flops == overview.flops


@pytest.mark.parametrize("strategy", [Replicated(8), Sharded()], ids=["replicated", "sharded"])
def test_batches_that_do_not_divide_are_replicated(tmp_path, strategy):
    builder = quiet(tmp_path / "run").strategy(strategy)
    overview = build_line(builder).overview(shuffled(), compiled=False)
    assert (overview.rows, overview.spread, overview.devices) == (BATCH, 1, 8)


def test_data_of_unknown_length(tmp_path):
    learner = build_line(quiet(tmp_path / "run").num_epochs(3))
    overview = learner.overview(lambda: iter(batches()), compiled=False)
    assert (overview.batches, overview.steps_per_epoch, overview.steps) == (None, None, None)
    assert overview.memory["batches"] == 4 * (32 * 4 * BATCH * 5)  # four buffers of 32 batches


def test_custom_update(tmp_path):
    """Its optimizer and gradients are unknown."""

    def update(model, batch, lr, rng):
        error = batch["x"] @ model["w"] - batch["t"]
        model = {"w": model["w"] - lr * batch["x"].T @ error}
        return model, RegressionOutput.from_predictions(batch["x"] @ model["w"], batch["t"])

    learner = quiet(tmp_path / "run").build({"w": jnp.zeros((3, 1))}, None, 0.1, update=update)
    overview = learner.overview(batches(), compiled=False)
    assert overview.optimizer is None
    assert "gradients" not in overview.memory
    assert overview.flops > 3 * 2 * BATCH * 3


def test_invalid_data_is_refused(tmp_path):
    with raises_code("batch-missing-key", name="train_step", key="x"):
        build_line(quiet(tmp_path / "run")).overview([{"z": np.zeros((4, 3), np.float32)}])


# -- before a run ------------------------------------------------------------------------------------------------------

STRATEGIES = {
    "one": lambda: SingleDevice(),
    "replicated": lambda: Replicated(8),
    "sharded": lambda: Sharded(rules=fsdp(1)),
}
CASES = [  # every pair of values is in one case
    ("one", "mlp", 2, "stream"),
    ("one", "cnn", 1, "resident"),
    ("replicated", "mlp", 1, "resident"),
    ("replicated", "cnn", 2, "stream"),
    ("sharded", "mlp", 2, "resident"),
    ("sharded", "cnn", 1, "stream"),
]


@pytest.mark.full
def test_overview_does_not_compile_training_again(tmp_path):
    """A run with an overview compiles as many programs as one without."""
    counts = []
    for name, shows in (("without", False), ("with", True)):
        jax.clear_caches()
        executables.clear()
        with CompileTimes() as times:
            build_line(quiet(tmp_path / name).summary(shows)).fit(shuffled())
        counts.append(times.count)
    assert counts[0] == counts[1]


@pytest.mark.full
@pytest.mark.parametrize(("strategy", "kind", "accumulate", "data"), CASES)
def test_overview_does_not_compile_training_again_on_any_strategy(tmp_path, strategy, kind, accumulate, data):
    counts = []
    for name, shows in (("without", False), ("with", True)):
        jax.clear_caches()
        executables.clear()
        rows = KINDS[kind].data(120, 1)
        train = DataLoaderBuilder().batch_size(24).build(rows)
        if data == "stream":
            train = [{key: x[i : i + 24] for key, x in rows.items()} for i in range(0, 120, 24)]
        builder = quiet(tmp_path / name).grads_accumulation(accumulate).strategy(STRATEGIES[strategy]()).summary(shows)
        learner = builder.build(KINDS[kind].make(0.0), optax.adam, 0.1)
        with CompileTimes() as times:
            learner.fit(train)
        counts.append(times.count)
    assert counts[0] == counts[1]


def output_of(directory, *listeners, **summary):
    """Return the lines that a run of two epochs prints, its events, and its log."""
    out, memory = io.StringIO(), MemoryLogger()
    builder = LearnerBuilder(directory).renderer(PlainRenderer(out)).metric_loggers(memory, *listeners).num_epochs(2)
    learner = build_line(builder.with_file_checkpointer(None).summary(**summary))
    assert learner.fit(shuffled(), valid_data()).stopped_by == "num_epochs"
    return out.getvalue().splitlines(), memory.events, (directory / "experiment.log").read_text()


class Reading(Listener):
    """Read the directory of a run while its programs are compiled."""

    def __init__(self, directory):
        self.directory = directory

    def on_event(self, event):
        if isinstance(event, Overview):
            self.events = [entry["event"] for entry in journal_of(self.directory)]
            self.files = {path.name for path in self.directory.iterdir()}


@pytest.mark.full
def test_run_prints_its_overview_before_it_starts(tmp_path):
    reading = Reading(tmp_path / "run")
    lines, events, log = output_of(tmp_path / "run", reading)
    assert reading.events[0] == "start"
    assert "model.json" in reading.files
    overview, compiling, compiled, started = events[:4]
    assert isinstance(overview, Overview)
    assert compiling.text == "compiling"
    assert isinstance(compiled, Message)
    assert isinstance(started, RunStarted)
    assert overview.peak is None
    assert re.fullmatch(
        r"compiled in \d+\.\d s; a dispatch needs [\d.]+ \w+ on each device, [\d.]+ \w+ of it while .*",
        compiled.text,
    )
    assert compiled.text in log
    assert lines[0].split()[:2] == ["dict", "(pytree)"]
    assert lines.index(compiled.text) < lines.index(f"{tmp_path / 'run'}: 2 epochs of 6 steps, 4 parameters")
    assert "length     6 batches = 6 steps an epoch; 2 epochs = 12 steps" in lines


@pytest.mark.full
def test_run_without_summary_prints_no_overview(tmp_path):
    lines, events, log = output_of(tmp_path / "run", show=False)
    assert isinstance(events[0], RunStarted)
    assert lines[0] == f"{tmp_path / 'run'}: 2 epochs of 6 steps, 4 parameters"
    assert "a dispatch needs" not in log


@pytest.mark.full
def test_depth_of_the_overview(tmp_path):
    """The next commands are those of a run from Python without checkpoints."""

    def step(model, batch):
        return RegressionOutput.from_predictions(batch["x"] @ model["a"]["b"]["w"], batch["t"])

    out = io.StringIO()
    builder = (
        LearnerBuilder(tmp_path / "run").renderer(PlainRenderer(out)).summary(depth=1).with_file_checkpointer(None)
    )
    model = {"a": {"b": {"w": jnp.zeros((3, 1)), "v": jnp.zeros(2)}}}
    builder.build(model, optax.sgd, 0.1, train_step=step).fit(batches())
    lines = out.getvalue().splitlines()
    assert lines[1].split() == ["a", "float32", "5", "20", "bytes", "100", "%", "2", "arrays"]
    assert lines[2].split()[0] == "total"
    assert lines[-2:] == ["next:", f"  learner report {tmp_path / 'run'}"]
