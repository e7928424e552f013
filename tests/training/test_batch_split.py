"""Tests of splitting batches into parts: equal results, and the number of parts that fits into memory."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.errors import JaxRuntimeError

from learner import ClassificationOutput, LearnerBuilder, RegressionOutput
from learner.data import DataLoaderBuilder
from learner.metrics import Accuracy, CollectingMetric
from learner.strategies import Replicated, Sharded, SingleDevice
from learner.training import batch_split
from learner.training.checked_inputs import read_checked
from learner.training.files.run_directory import SINGLE_PROCESS
from learner.training.preflight import preflight
from learner.training.programs.executor import Runner
from learner.training.programs.program_memory import memory_of
from learner.training.setup.dispatch_plan import planned
from tests.support import spread
from tests.support.codes import raises_code
from tests.support.spread import labelled

ROWS = 64


class Wide(nnx.Module):
    """An MLP with 16, 2048 and 4 units: the activations of a batch are much larger than the parameters."""

    def __init__(self, rngs):
        self.up, self.drop = nnx.Linear(16, 2048, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(2048, 4, rngs=rngs)

    def train_step(self, batch):
        return ClassificationOutput.from_logits(self.out(self.drop(nnx.relu(self.up(batch["x"])))), batch["y"])

    valid_step = train_step


def build(directory, *accumulation, epochs=1, resume=False):
    builder = LearnerBuilder(directory).renderer(None).metrics(Accuracy()).num_epochs(epochs)
    if accumulation:
        builder.grads_accumulation(*accumulation)
    if resume:
        builder.resume()
    return builder.build(Wide(nnx.Rngs(0)), optax.sgd, 0.1, train=loader())


def loader():
    return DataLoaderBuilder().batch_size(ROWS).shuffle(0).build(labelled((16,), 3 * ROWS + 10, 0))


def peak_of(split):
    """Return the peak memory of a device in bytes, including the copy for a save."""
    report = build("unused", 1, split).sharding_report(loader())
    return max(program.peak for program in report.programs) + max(program.arguments for program in report.programs)


@pytest.fixture(scope="module")
def peaks():
    return {split: peak_of(split) for split in (1, 2, 4)}


@pytest.fixture
def memory(monkeypatch):
    return lambda limit: monkeypatch.setattr(batch_split, "machine_memory", lambda: limit)


def test_devices_share_the_memory_of_their_machine(memory, monkeypatch):
    memory(3000)
    monkeypatch.setattr(batch_split.platform, "node", lambda: "a")
    devices = [SimpleNamespace(process_index=index, memory_stats=lambda: None) for index in (1, 1, 0, 2, 2, 2)]
    for machines, free in ((["a", "b", "b"], 3000), (["a", "a", "b"], 1000), (["a", "a", "a"], 500)):
        processes = SimpleNamespace(all_gather_json=lambda value, what, machines=machines: machines)
        plan = SimpleNamespace(strategy=SimpleNamespace(devices=devices), processes=processes)
        assert batch_split.free_memory(plan) == free


def split_of(directory):
    start = json.loads((directory / "journal.jsonl").read_text().splitlines()[0])
    return start["config"].get("grads_accumulation.split")


# -- the same steps ----------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "strategy", "split", "accumulate"),
    [
        ("mlp", SingleDevice, 5, 1),  # parts of 5, 5, 5, 5 and 4 rows; parts of 1 row in the last batch
        pytest.param("transformer", SingleDevice, 4, 2, marks=pytest.mark.full),
        pytest.param("transformer", Sharded, 3, 1, marks=pytest.mark.full),
        pytest.param("mlp", Replicated, 3, 2, marks=pytest.mark.full),
    ],
)
def test_split_batches_give_the_results_of_whole_batches(tmp_path, kind, strategy, split, accumulate):
    whole, parts = (
        spread.train(tmp_path / str(n), kind, strategy(), grads_accumulation={"n": accumulate, "split": n})
        for n in (1, split)
    )
    spread.same_numbers(whole, parts)
    assert f"each in {split} parts" in parts.log


class Rows(CollectingMetric):
    """A metric that keeps the rows of the last epoch."""

    name, splits = "Rows", ("train",)

    def collect(self, output):
        return output.predictions

    def compute(self, rows):
        self.rows = rows
        return 0.0


@pytest.mark.full
@pytest.mark.parametrize("strategy", [SingleDevice, Replicated])
def test_collected_rows_are_in_the_order_of_the_batch(tmp_path, strategy):
    def step(model, batch):
        return RegressionOutput.from_predictions(batch["x"] * model["w"], batch["x"])

    x, metric = np.arange(40, dtype=np.float32), Rows()  # 5 rows per device: parts of 2, 2 and 1 rows
    builder = LearnerBuilder(tmp_path / "run").renderer(None).metric_train(metric).grads_accumulation(split=3)
    learner = builder.strategy(strategy()).build({"w": jnp.float32(1)}, optax.sgd, 0.1, train_step=step)
    learner.fit([{"x": x}])
    np.testing.assert_array_equal(metric.rows, x)


@pytest.mark.full
def test_a_batch_with_fewer_rows_than_parts(tmp_path):
    whole, parts = (
        spread.train(tmp_path / str(n), "mlp", rows=26, grads_accumulation={"split": n}) for n in (1, 24)
    )  # the last batch has 2 rows
    spread.same_numbers(whole, parts)


# -- the number of parts -----------------------------------------------------------------------------------------------


@pytest.mark.full
def test_auto_selects_the_fewest_parts_that_fit(tmp_path, peaks, memory):
    assert peaks[1] > peaks[2] > peaks[4]
    for limit, split in ((peaks[1], 1), (peaks[1] - 1, 2)):  # test_resuming_keeps_the_split covers 4
        memory(limit)
        build(tmp_path / str(split), "auto").fit(loader())
        assert split_of(tmp_path / str(split)) == split


@pytest.mark.full
def test_auto_splits_when_the_compiler_runs_out_of_memory(tmp_path, monkeypatch):
    def refuse(runner, feed, loop):
        if runner._step.split == 1:
            raise JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.")
        return memory_of(runner, feed, loop)

    monkeypatch.setattr(batch_split, "memory_of", refuse)
    build(tmp_path / "run", "auto").fit(loader())
    assert split_of(tmp_path / "run") == 2


@pytest.mark.full
def test_processes_agree_on_the_split(tmp_path, monkeypatch):
    """A whole batch does not fit in another process."""
    answers = iter([[True, False], [True, True]])
    definition, batches = build(tmp_path / "run", "auto").definition, loader()
    plan = preflight(definition, batches, None, SINGLE_PROCESS)
    monkeypatch.setattr(batch_split, "free_memory", lambda plan: 2**40)
    monkeypatch.setattr(type(plan.processes), "all_gather_json", lambda self, value, what="": next(answers))
    batch_split.resolve_split(plan, None)
    assert definition.options.split == 2
    assert not list(answers)


@pytest.mark.full
def test_no_fitting_split_is_an_error(tmp_path, memory):
    memory(1000)
    data = DataLoaderBuilder().batch_size(3).build(labelled((16,), 6, 0))
    with raises_code("step-no-room", "with 3 parts of a batch of 3 rows", rows=3, room=1000):
        build(tmp_path / "run", "auto").fit(data)
    assert not (tmp_path / "run/journal.jsonl").exists()


@pytest.mark.full
def test_resuming_keeps_the_split(tmp_path, peaks, memory):
    memory(peaks[2] - 1)
    straight = build(tmp_path / "straight", "auto", epochs=2).fit(loader())
    build(tmp_path / "run", "auto").fit(loader())
    memory(peaks[1])
    resumed = build(tmp_path / "run", "auto", epochs=2, resume=True).fit(loader())
    for a, b in zip(*(jax.tree.leaves(nnx.state(r.model, nnx.Param)) for r in (straight, resumed)), strict=True):
        np.testing.assert_array_equal(a, b)
    log = (tmp_path / "run/experiment.log").read_text()
    assert log.count("each in 4 parts") == 2
    assert "parts per micro-batch" not in log  # the change that resuming would report


@pytest.mark.full
@pytest.mark.parametrize(("before", "parts"), [((1, 2), 2), pytest.param((), 1, marks=pytest.mark.full)])
def test_resuming_logs_a_different_split(tmp_path, before, parts):
    build(tmp_path / "run", *before).fit(loader())
    build(tmp_path / "run", 1, 4, epochs=2, resume=True).fit(loader())
    assert f"parts per micro-batch: {parts} -> 4" in (tmp_path / "run/experiment.log").read_text()


def test_a_trial_step_detects_missing_memory(tmp_path, monkeypatch):
    definition = build(tmp_path / "run").definition
    plan = planned(definition, read_checked(definition, loader(), None))
    assert batch_split.runs(definition, plan)

    def full(self, accumulator, dispatch):
        raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4096 bytes.")

    monkeypatch.setattr(Runner, "train", full)
    assert not batch_split.runs(definition, plan)


# -- wrong input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("auto", 2), "builder-split-twice"),
        (("most",), "builder-number-value"),
        ((1, 0), "builder-number-value"),
        ((1, "most"), "builder-number-value"),
    ],
)
def test_invalid_splits_are_refused(tmp_path, arguments, code):
    with raises_code(code):
        LearnerBuilder(tmp_path / "run").grads_accumulation(*arguments)


def test_optimizers_that_need_the_whole_batch_are_refused(tmp_path):
    builder = LearnerBuilder(tmp_path / "run").grads_accumulation("auto")
    with raises_code("optimizer-needs-whole-batch"):
        builder.build(Wide(nnx.Rngs(0)), lambda lr: optax.lbfgs(lr), 1.0)
