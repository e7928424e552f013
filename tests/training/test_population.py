"""Tests of populations: each member equals a separate run with its settings, in its own directory."""

import contextlib
import json
import shutil
import threading

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import (
    ClassificationOutput,
    LearnerBuilder,
    LearnerWarning,
    Linen,
    MetricEarlyStopping,
    NonFiniteError,
    ReduceOnPlateau,
    RegressionOutput,
    load_checkpoint,
    loguniform,
    uniform,
)
from learner.checkpoint import CheckpointStore
from learner.data import DataLoaderBuilder
from learner.loggers import Csv, JsonLines, MetricLogger
from learner.metrics import Accuracy, LearningRate, MeanMetric
from learner.metrics.monitor import Monitor
from learner.optimizers.configs import AdamW
from learner.renderers import PlainRenderer
from learner.runs.find import find_runs
from learner.runs.history import read_history
from learner.runs.layout import read_summary
from learner.runs.spread import Spread
from learner.strategies import Sharded
from learner.training.checked_inputs import read_checked
from learner.training.checks import population_checks
from learner.training.population import population_of
from learner.training.population_result import PopulationResult, PopulationSummary
from learner.training.selection import Exploit
from learner.training.setup import assembly
from learner.training.setup.dispatch_plan import planned
from learner.util.jax_internals import distributed_state
from tests.support.codes import raises_code
from tests.support.runs import (
    STEPS,
    LastRow,
    arrays,
    checkpoint_bits,
    class_step,
    journal_of,
    line,
    logs_of,
    model_bits,
    numbers_of,
    progress_of,
    quiet,
    saved_steps,
    shuffled,
    streamed,
    tree_of,
)
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("compiled_once")
VALID = arrays(10)
VALID_BATCHES = [VALID]


class Norm(nnx.Module):
    """The layer before the normalization has no bias, whose gradient is rounding noise, which Adam amplifies."""

    def __init__(self, width: int = 4, *, rngs: nnx.Rngs):
        self.hidden, self.norm = nnx.Linear(3, width, use_bias=False, rngs=rngs), nnx.BatchNorm(width, rngs=rngs)
        self.drop, self.out = nnx.Dropout(0.3, rngs=rngs), nnx.Linear(width, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(self.drop(nnx.relu(self.norm(self.hidden(x)))))


def make_convolution(rngs):
    """Return a dict, which is traced faster than an nnx model; on a CPU, a convolution is dispatched step by step."""
    normal = jax.nn.initializers.lecun_normal()
    return {"kernel": normal(rngs.params(), (2, 1, 4)), "out": normal(rngs.params(), (12, 3)), "b": jnp.zeros(3)}


def convolution_step(model, batch):
    x = jax.lax.conv_general_dilated(
        batch["x"][..., None], model["kernel"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )
    logits = jax.nn.relu(x).reshape(len(x), -1) @ model["out"] + model["b"][None]
    return ClassificationOutput.from_logits(logits, batch["y"])


def make_drawn(rngs):
    """Return a linear model with random weights and with counts of positive inputs, which are not trained."""
    return {"w": jax.random.normal(rngs.params(), (3, 3)), "b": jnp.zeros(3), "seen": jnp.zeros(3, jnp.int32)}


def drawn_step(model, batch, rng):
    """Classify inputs shifted by the counts, with dropout; return the output and the model with the new counts."""
    kept = jax.random.bernoulli(rng, 0.7, batch["x"].shape)
    output = drawn_valid_step(model, {**batch, "x": jnp.where(kept, batch["x"], 0.0)})
    return output, {**model, "seen": model["seen"] + (batch["x"] > 0).sum(0, dtype=jnp.int32)}


def drawn_valid_step(model, batch):
    x = batch["x"] - 0.01 * model["seen"].astype(jnp.float32)[None]
    return ClassificationOutput.from_logits(x @ model["w"] + model["b"][None], batch["y"])


class LinenNorm(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(nn.Dense(4, use_bias=False)(x))
        return nn.Dense(3)(nn.Dropout(0.3, deterministic=not train)(nn.relu(x)))


class EquinoxNet(eqx.Module):
    hidden: eqx.nn.Linear
    drop: eqx.nn.Dropout
    out: eqx.nn.Linear

    def __init__(self, rngs):
        self.hidden, self.out = eqx.nn.Linear(3, 4, key=rngs.params()), eqx.nn.Linear(4, 3, key=rngs.params())
        self.drop = eqx.nn.Dropout(0.3)

    def __call__(self, x, key):
        return self.out(self.drop(jax.nn.relu(self.hidden(x)), key=key))


def nnx_step(model, batch):
    return ClassificationOutput.from_logits(model(batch["x"]), batch["y"])


def linen_step(model, batch):
    return ClassificationOutput.from_logits(model(batch["x"], train=model.train), batch["y"])


def equinox_step(model, batch, rng):
    keys = jax.random.split(rng, batch["x"].shape[0])
    return ClassificationOutput.from_logits(jax.vmap(model)(batch["x"], keys), batch["y"])


def make_linen(rngs):
    module = LinenNorm()
    return Linen(module, module.init(rngs.params(), jnp.ones((1, 3)), train=False))


def momentum(lr, momentum=0.9):
    return optax.sgd(lr, momentum=momentum)


SCHEDULE = optax.cosine_decay_schedule(2e-2, 18)
CASES = {
    "dict, accumulation": (make_drawn, drawn_step, momentum, 1e-2, {"lr": [0.02, 0.01]}, 2),
    "nnx, AdamW, accumulation": (Norm, nnx_step, optax.adamw, 1e-2, {"weight_decay": [0.1, 0.3]}, 2),
    "convolution, step by step": (make_convolution, convolution_step, momentum, 1e-2, {"momentum": [0.5, 0.9]}, 1),
    "linen, schedule": (make_linen, linen_step, optax.adam, SCHEDULE, {"lr": [0.5, 1.0]}, 1),
    "Equinox, momentum": (EquinoxNet, equinox_step, momentum, 1e-2, {"lr": [0.05, 0.01], "momentum": 0.8}, 1),
    "convolution, accumulation": (make_convolution, convolution_step, momentum, 1e-2, {"lr": [0.05, 0.01]}, 2),
}
QUICK = "dict, accumulation"


def configured(directory, accumulate=1):
    return quiet(directory).metrics(Accuracy(), LastRow()).num_epochs(2).grads_accumulation(accumulate)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == QUICK else pytest.mark.full) for n in CASES])
def test_each_member_equals_a_separate_run(name, tmp_path):
    """With 22 rows in batches of 4, the last batch is ragged and the last group of two is incomplete."""
    make, step, optimizer, lr, values, accumulate = CASES[name]
    builder = configured(tmp_path / "all", accumulate).population(seed=[3, 8], **values, zipped=True)
    steps = {"train_step": step, "valid_step": drawn_valid_step if step is drawn_step else step}
    built = builder.build(make, optimizer, lr, **steps)
    valid = 8 if name == QUICK else 10
    result = built.fit(shuffled(rows=22), shuffled(rows=valid))
    assert isinstance(result, PopulationResult)
    assert len(result) == 2
    for member in result:
        given = dict(member.values)
        seed, own = given.pop("seed"), given.pop("lr", None)
        rate = lr if own is None else (lambda step, own=own: own * lr(step)) if callable(lr) else own
        alone = configured(tmp_path / f"alone{member.index}", accumulate).seed(seed)
        one = alone.build(make, lambda lr, given=given: optimizer(lr, **given), rate, **steps).fit(
            shuffled(rows=22), shuffled(rows=valid)
        )
        for key in one.history:
            np.testing.assert_allclose(member.history[key], one.history[key], rtol=2e-5, atol=1e-6, err_msg=key)
        leaves, expected = (jax.tree.leaves(arrays_of(x.model)) for x in (member, one))
        assert len(leaves) == len(expected) > 2
        for a, b in zip(leaves, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
        assert read_history(member.directory).to_json() == member.history.to_json()
        assert [*steps_in(member.directory)] == [*steps_in(tmp_path / f"alone{member.index}")]


def arrays_of(model):
    """Return all arrays, including the random streams of nnx, which depend on the seed."""
    if isinstance(model, nnx.Module):
        state = nnx.to_pure_dict(nnx.state(model))
        return jax.tree.map(
            lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, state
        )
    return model.variables if isinstance(model, Linen) else eqx.filter(model, eqx.is_array)


def steps_in(directory):
    """Yield the path and the number of lines of every metric file."""
    for path in sorted(directory.glob("*/epoch-*/*.log")):
        yield path.relative_to(directory), len(path.read_text().splitlines())


def descent(lr, epochs, momentum=0.0, loader=None):
    """Train a line with zero weights by gradient descent in float64.

    Args:
      lr: the learning rate, or a function of the step from 0 and of the validation losses up to it.
      epochs: the number of epochs, of 6 steps each.
      momentum: the decay of the sum of gradients.
      loader: the batches; default: those of `shuffled()`.

    Returns:
      The training losses, the validation losses and the weights of each epoch.
    """
    params, sums = [np.zeros((3, 3)), np.zeros(3)], [0.0, 0.0]
    loader, step, train, valid, weights = loader or shuffled(), 0, [], [], []
    for _ in range(epochs):
        losses, sizes = [], []
        for batch in loader:
            loss, grads = cross_entropy(*params, batch)
            losses.append(loss)
            sizes.append(len(batch["y"]))
            rate = lr(step, valid) if callable(lr) else lr
            sums = [momentum * v + g for v, g in zip(sums, grads, strict=True)]
            params = [p - rate * v for p, v in zip(params, sums, strict=True)]
            step += 1
        train.append(np.average(losses, weights=sizes))
        valid.append(cross_entropy(*params, arrays())[0])
        weights.append(params[0])
    return train, valid, weights


def cross_entropy(w, b, batch):
    """Return the mean loss over the rows of a batch, and its gradients."""
    x, y = batch["x"].astype(np.float64), batch["y"]
    probabilities = np.exp(x @ w + b)
    probabilities /= probabilities.sum(1, keepdims=True)
    errors = (probabilities - np.eye(3)[y]) / len(y)
    return -np.log(probabilities[np.arange(len(y)), y]).mean(), (x.T @ errors, errors.sum(0))


def check_member(member, expected, epochs):
    """Compare the losses and the weights of a member with those of `descent`, over the member's epochs."""
    train, valid, weights = expected
    np.testing.assert_allclose(member.history["train/Loss"], train[:epochs], rtol=1e-5)
    np.testing.assert_allclose(member.history["valid/Loss"], valid[:epochs], rtol=1e-5)
    np.testing.assert_allclose(member.model["w"], weights[epochs - 1], rtol=1e-4, atol=1e-6)


def square_step(model, batch):
    return RegressionOutput.from_predictions(batch["x"] @ model["w"], batch["y"])


def lines(directory, **values):
    """Return a builder with a population of lines, which `descent` trains in NumPy, and a function that builds it."""
    builder = quiet(directory).metrics(Accuracy()).population(**values)
    return builder, lambda builder: builder.build(
        line(3, 3), optax.sgd, 0.1, train_step=class_step, valid_step=class_step
    )


@pytest.fixture(scope="module")
def four(tmp_path_factory, compiled_once):
    """Train four members with two learning rates and two momentum decays."""
    directory = tmp_path_factory.mktemp("four") / "run"
    builder, build = lines(directory, lr=[0.0, 0.1], momentum=[0.0, 0.5])
    return directory, build(builder.num_epochs(2)).fit(shuffled(), shuffled())


def test_member_directories_are_runs(four):
    directory, result = four
    names = ["000-lr=0.0-momentum=0.0", "001-lr=0.0-momentum=0.5", "002-lr=0.1-momentum=0.0", "003-lr=0.1-momentum=0.5"]
    assert [member.name for member in result] == names
    assert [run.directory.name for run in find_runs([directory])] == names  # not the run with the means
    for name, run in zip(names, find_runs([directory]), strict=True):
        files = {path.name for path in (directory / name).iterdir()}
        assert files >= {"journal.jsonl", "summary.json", "model.json", "train", "valid"}
        assert "run.lock" not in files
        start = json.loads((directory / name / "journal.jsonl").read_text().splitlines()[0])
        assert start["config"]["lr"] == float(name[7:10])
        assert start["config"]["optimizer"]["init_args"]["momentum"] == float(name[-3:])
        assert run.status.word == "ended"
    assert json.loads((directory / "model.json").read_text()) == json.loads(
        (directory / names[0] / "model.json").read_text()
    )
    assert json.loads((directory / "population.json").read_text())["members"][3] == {
        "directory": names[3],
        "lr": 0.1,
        "momentum": 0.5,
        "seed": 0,
    }


def test_rates_and_keywords_are_applied(four):
    """With the rate 0, the logits of the three classes stay equal, and the loss is log 3."""
    _, result = four
    for member in (result[0], result[1]):
        np.testing.assert_allclose(member.history["valid/Loss"], np.log(3), rtol=1e-6)
    check_member(result[2], descent(0.1, 2), 2)
    check_member(result[3], descent(0.1, 2, momentum=0.5), 2)


def test_members_with_rates_need_none_of_the_learner(tmp_path):
    step = lambda model, batch: {"loss": model["w"] * batch["x"].mean()}  # noqa: E731
    build = lambda builder: builder.build({"w": jnp.float32(0)}, optax.sgd, train_step=step)  # noqa: E731
    result = build(quiet(tmp_path).population(lr=[0.25, 0.5])).fit([{"x": np.ones(2, np.float32)}])
    assert [float(member.model["w"]) for member in result] == [-0.25, -0.5]
    with raises_code("learning-rate-value"):
        build(quiet(tmp_path / "seeds").population(seed=[0, 1]))


def test_a_rate_that_members_replace_is_no_change(tmp_path):
    step = lambda model, batch: {"loss": model["w"] * batch["x"].mean()}  # noqa: E731
    data = [{"x": np.ones(2, np.float32)}]
    builder = quiet(tmp_path, saves=True).population(lr=[0.25, 0.5])
    builder.build({"w": jnp.float32(0)}, optax.sgd, 1e-3, train_step=step).fit(data)
    builder.num_epochs(2).resume().build({"w": jnp.float32(0)}, optax.sgd, train_step=step).fit(data)
    assert "learning rate: " not in (tmp_path / "experiment.log").read_text()


def test_the_history_of_the_run_has_the_means(four):
    directory, result = four
    for key in ("train/Loss", "valid/Accuracy"):
        means = np.mean([member.history[key] for member in result], 0)
        np.testing.assert_allclose(result.history[key], means, rtol=1e-6)
    assert read_history(directory).to_json() == result.history.to_json()
    assert result.stopped_by == "num_epochs"


def test_statistics(four):
    _, result = four
    best = result.best("valid/Loss")
    assert best.name == min(result, key=lambda member: min(member.history["valid/Loss"])).name
    assert best.model["w"].shape == (3, 3)
    summary = result.summary("valid/Loss", over="momentum")
    assert [row.values for row in summary] == [{"lr": 0.0, "seed": 0}, {"lr": 0.1, "seed": 0}]
    pair = [min(member.history["valid/Loss"]) for member in (result[2], result[3])]
    assert summary[1].mean == pytest.approx(np.mean(pair))
    assert summary[1].std == pytest.approx(np.std(pair, ddof=1))
    # The 97.5 % quantile of Student's t distribution with one degree of freedom is 12.706.
    assert summary[1].high - summary[1].mean == pytest.approx(12.7062 * np.std(pair, ddof=1) / np.sqrt(2), rel=1e-4)
    assert best.best("valid/Loss").value == min(best.history["valid/Loss"])
    with raises_code("population-metric-unknown", key="valid/Los"):
        best.best("valid/Los")
    table = result.table().splitlines()
    assert len(table) == 5
    assert table[0].split()[:4] == ["member", "lr", "momentum", "seed"]
    assert "95 % interval" not in repr(summary)  # intervals need three members
    with raises_code("population-metric-unknown", key="valid/Acc"):
        result.best("valid/Acc")
    with raises_code("population-summary-over", over="sed"):
        result.summary("valid/Loss", over="sed")
    with raises_code("population-one-model"):
        _ = result.model


def test_a_table_has_intervals_with_three_or_more_members():
    rows = [Spread.of({"lr": 0.1}, [0.5, 0.75, 1.0]), Spread.of({"lr": 0.2}, [0.5, 0.75])]
    assert repr(PopulationSummary("valid/Loss", "seed", rows)).splitlines() == [
        "lr   members  valid/Loss     std   95 % interval",
        "0.1        3        0.75    0.25  0.129 to 1.371",
        "0.2        2       0.625  0.1768",
    ]
    lost = PopulationSummary("valid/Loss", "seed", [Spread.of({"lr": 0.1}, [0.5, float("nan")])])
    assert repr(lost).splitlines()[1].split() == ["0.1", "1", "of", "2", "0.5"]
    assert repr(PopulationSummary("valid/Loss", "seed", rows[1:])).splitlines() == [
        "lr   members  valid/Loss     std",
        "0.2        2       0.625  0.1768",
    ]


@pytest.mark.full
def test_a_member_evaluates_and_predicts(four):
    _, result = four
    assert result[2].evaluate(shuffled())["Loss"] == pytest.approx(result[2].history["valid/Loss"][-1], rel=1e-5)
    with pytest.warns(UserWarning, match="is shuffled"):
        rows = sum(len(output.logits) for output in result[2].predict(shuffled()))
    assert rows == 24


@pytest.mark.full
def test_all_members_share_one_program(tmp_path):
    """The training loop is compiled once for any number of members."""
    builder, build = lines(tmp_path / "run", lr=[0.1, 0.2, 0.3])
    result = build(builder).fit(shuffled())
    one = quiet(tmp_path / "one").metrics(Accuracy())
    one.build(line(3, 3), optax.sgd, 0.1, train_step=class_step).fit(shuffled())
    compiled = [compilations_of(tmp_path / name) for name in ("run", "one")]
    assert len(result) == 3
    assert compiled[0] <= compiled[1] + 4  # programs that create and copy the state of all members


def compilations_of(directory):
    line = next(line for line in (directory / "experiment.log").read_text().splitlines() if "programs compiled" in line)
    return int(line.split(" programs compiled")[0].split()[-1])


@pytest.mark.full
@pytest.mark.parametrize("seeds", [pytest.param([5], marks=pytest.mark.full), [4, 5, 6]])
def test_on_a_cpu_a_member_has_the_bits_of_a_separate_run(seeds, tmp_path):
    rates = [1e-2 * 0.5**seed for seed in seeds]
    builder = configured(tmp_path / "all").population(seed=seeds, lr=rates, zipped=True)
    result = builder.build(Norm, optax.adamw, 1e-2, train_step=nnx_step).fit(shuffled())
    alone, lr = configured(tmp_path / "alone").seed(5), 1e-2 * 0.5**5
    one = alone.build(Norm, optax.adamw, lr, train_step=nnx_step).fit(shuffled())
    member = result[seeds.index(5)]
    assert member.history == one.history
    assert model_bits(member.model) == model_bits(one.model)


@pytest.mark.full
def test_on_a_cpu_the_state_of_the_members_is_updated_in_place(tmp_path):
    """Each member's new state replaces its old one, and members share the temporary memory of a step."""
    make = lambda rngs: nnx.Linear(3, 4096, rngs=rngs)  # noqa: E731
    builder = quiet(tmp_path / "run").population(seed=range(16))
    definition = builder.build(make, optax.sgd, 0.1, train_step=nnx_step).definition
    plan = planned(definition, read_checked(definition, [arrays(24)], None))
    (program,) = plan.runner.compiled(plan.feed(), plan.feeder.loop).values()
    memory, state = program.memory_analysis(), 16 * 4 * 4096 * 4
    assert memory.alias_size_in_bytes >= state
    assert memory.temp_size_in_bytes < state


# -- resuming ----------------------------------------------------------------------------------------------------------


def seeds(directory, steps):
    builder = quiet(directory).metrics(Accuracy(), LastRow()).num_steps(steps).population(seed=[1, 2], lr=[0.01, 0.1])
    return builder.with_file_checkpointer()


def fit_seeds(builder):
    return build_drawn(builder).fit(shuffled())


def build_drawn(builder, lr=1e-2):
    return builder.build(make_drawn, momentum, lr, train_step=drawn_step, valid_step=drawn_valid_step)


@pytest.fixture(scope="module")
def nine(tmp_path_factory, compiled_once):
    """Train a population for one and a half epochs; tests must not write into its directory."""
    directory = tmp_path_factory.mktemp("nine") / "run"
    return directory, fit_seeds(seeds(directory, 9))


@pytest.fixture
def copied(nine, tmp_path):
    """Return a copy of that run, which a test may change."""
    shutil.copytree(nine[0], tmp_path / "run")
    return tmp_path / "run"


def bits_of(directory, result):
    last = saved_steps(directory)[-1]
    own = {name: (logs_of(directory / name), numbers_of(directory / name)) for name in [m.name for m in result]}
    summaries = {name: (directory / name / "summary.json").read_text() for name in own}
    models = [model_bits(member.model) for member in result]
    histories = [member.history.to_json() for member in result]
    return own, summaries, models, histories, checkpoint_bits(directory, last), logs_of(directory)


@pytest.mark.full
def test_resumes_to_the_bit_in_the_middle_of_an_epoch(tmp_path, copied):
    """`test_exploit_resumes_to_the_bit` is the quick test of the same property."""
    resumed = bits_of(copied, fit_seeds(seeds(copied, 15).resume()))
    expected = bits_of(tmp_path / "whole", fit_seeds(seeds(tmp_path / "whole", 15)))
    for part, other in zip(resumed, expected, strict=True):
        assert part == other


@pytest.mark.full
def test_a_new_run_in_the_directory_of_a_member_is_refused(nine):
    member = nine[1][1].directory
    before = tree_of(member)
    with raises_code("directory-of-member", directory=str(member)):
        alone(member, 3, 2, 0.01, overwrite=True)
    assert tree_of(member) == before


def alone(directory, steps, seed, lr, overwrite=False):
    """Return the learner of a separate run with the settings of a member of `seeds`, or one that resumes a member."""
    builder = quiet(directory, overwrite=overwrite).metrics(Accuracy(), LastRow()).num_steps(steps).seed(seed)
    builder = builder.with_file_checkpointer() if overwrite else builder.with_file_checkpointer().resume()
    return build_drawn(builder, lr)


@pytest.mark.full
@pytest.mark.parametrize(
    "steps", [pytest.param(6, marks=pytest.mark.full, id="between epochs"), pytest.param(9, id="in an epoch")]
)
def test_a_member_resumes_as_a_separate_run(tmp_path, steps, copied):
    """It ends like a separate run, with the values, logs and checkpoints of its time in the population."""
    name = "002-lr=0.1-seed=1"
    run = copied if steps == 9 else fit_seeds(seeds(tmp_path / "six", steps))[2].directory.parent
    member = run / name
    resumed = alone(member, 15, 1, 0.1).fit(shuffled())
    whole = alone(tmp_path / "whole", 15, 1, 0.1).fit(shuffled())
    assert resumed.history.keys() == whole.history.keys()
    for key in set(whole.history) - {"train/Last Row"}:
        np.testing.assert_allclose(resumed.history[key], whole.history[key], rtol=2e-5, atol=1e-6, err_msg=key)
    assert resumed.history["train/Last Row"] == whole.history["train/Last Row"]
    assert logs_of(member).keys() == logs_of(tmp_path / "whole").keys()
    assert saved_steps(member) == saved_steps(tmp_path / "whole")
    events = [entry["event"] for entry in journal_of(member)]
    assert events.count("start") == 2
    assert "although" not in (member / "experiment.log").read_text()
    for a, b in zip(*map(jax.tree.leaves, (resumed.model, whole.model)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    # The other members have not moved, and the population cannot resume with this one.
    assert load_checkpoint(member, "latest").step == 15
    with raises_code("population-member-resumed", member=name):
        fit_seeds(seeds(run, 15).resume())


@pytest.mark.full
def test_an_ended_population_is_not_trained_again(nine, copied):
    again = fit_seeds(seeds(copied, 9).resume())
    assert [m.history for m in again] == [m.history for m in nine[1]]
    assert [model_bits(m.model) for m in again] == [model_bits(m.model) for m in nine[1]]


@pytest.mark.full
def test_a_member_is_loaded_from_its_directory(tmp_path, nine):
    directory, result = nine
    for member in (result[1], result[3]):
        loaded = load_checkpoint(member.directory, "latest", make_drawn(nnx.Rngs(0)))
        assert model_bits(loaded.model) == model_bits(member.model)
        assert loaded.history["train/Loss"] == member.history["train/Loss"][:1]  # the complete epoch
        assert loaded.lr_scale == pytest.approx(member.values["lr"])
    begun = quiet(tmp_path / "tuned").num_steps(1).initial_from(result[1].directory, "latest")
    tuned = begun.build(make_drawn(nnx.Rngs(0)), optax.sgd, 0.0, train_step=drawn_step).fit(shuffled())
    np.testing.assert_array_equal(tuned.model["w"], result[1].model["w"])
    with raises_code("checkpoint-of-population", "000-lr=0.01-seed=1"):
        load_checkpoint(directory, "latest", make_drawn(nnx.Rngs(0)))


@pytest.mark.full
def test_members_are_loaded_from_another_checkpoint_directory(tmp_path):
    """The checkpoints contain the names of the members."""
    builder, build = lines(tmp_path / "run", lr=[0.1, 0.2])
    result = build(builder.with_file_checkpointer(directory=str(tmp_path / "saved"))).fit(shuffled())
    with raises_code("checkpoint-missing", f"{tmp_path}/saved/001-lr=0.2"):
        load_checkpoint(result[1].directory, "latest", line(3, 3))
    with raises_code("checkpoint-of-population", "000-lr=0.1"):
        load_checkpoint(tmp_path / "saved", "latest", line(3, 3))
    loaded = load_checkpoint(tmp_path / "saved" / "001-lr=0.2", "latest", line(3, 3))
    assert model_bits(loaded.model) == model_bits(result[1].model) != model_bits(result[0].model)


@pytest.mark.full
def test_the_overview_of_a_population(tmp_path, capsys):
    """The summary shows the arrays of one member: the 3 x 3 line has 12 parameters."""
    builder, build = lines(tmp_path / "run", lr=[0.1, 0.2])
    build(builder.summary().renderer(PlainRenderer())).fit(shuffled())
    shown = capsys.readouterr().out
    assert "12 parameters" in shown
    assert "a population of 2 members" in shown
    assert "best train/Loss" in shown
    assert "print(result.table())" in shown
    assert "learner.evaluate" not in shown


@pytest.mark.full
def test_another_population_does_not_resume(tmp_path):
    builder, build = lines(tmp_path / "run", lr=[0.1, 0.2])
    build(builder.num_steps(2).with_file_checkpointer()).fit(shuffled())
    other, build = lines(tmp_path / "run", lr=[0.1, 0.3])
    with raises_code("resume-population-differs", "001-lr=0.2", "001-lr=0.3"):
        build(other.num_steps(4).resume()).fit(shuffled())
    other, build = lines(tmp_path / "run", lr=[0.1])
    with raises_code("resume-population-differs", "2 members", "1"):
        build(other.num_steps(4).resume()).fit(shuffled())


@pytest.mark.full
def test_overwriting_removes_the_previous_members(tmp_path):
    for lr in ([0.1, 0.2], [0.3]):
        builder, build = lines(tmp_path / "run", lr=lr)
        build(builder.num_steps(2)).fit(shuffled())
        with raises_code("directory-holds-run"):
            build(builder.num_steps(2)).fit(shuffled())
        if len(lr) == 2:
            (tmp_path / "run" / "000-lr=0.1" / "mine.txt").write_text("kept")
        assert (tmp_path / "run" / f"000-lr={lr[0]}" / "journal.jsonl").exists()
        quiet_overwriting = LearnerBuilder(tmp_path / "run", overwrite=True).renderer(None)
        build(quiet_overwriting.population(lr=[0.7]).num_steps(1)).fit(shuffled())
        left = sorted(path.name for path in (tmp_path / "run").iterdir() if path.is_dir() and "lr" in path.name)
        assert left == ["000-lr=0.1", "000-lr=0.7"]
        assert [path.name for path in (tmp_path / "run" / "000-lr=0.1").iterdir()] == ["mine.txt"]
        break


# -- values ------------------------------------------------------------------------------------------------------------


def rows_of(population):
    return [dict(member.values) for member in population.members]


def test_products_pairs_and_draws():
    product = population_of({"lr": [0.1, 0.2], "seed": range(2)})
    assert rows_of(product) == [{"lr": a, "seed": b} for a in (0.1, 0.2) for b in (0, 1)]
    zipped = population_of({"lr": np.array([0.1, 0.2]), "b1": 0.5, "seed": (x for x in [7, 8])}, zipped=True)
    assert rows_of(zipped) == [{"lr": 0.1, "b1": 0.5, "seed": 7}, {"lr": 0.2, "b1": 0.5, "seed": 8}]
    drawn = {"lr": loguniform(1e-5, 1e-2), "weight_decay": uniform(0, 0.1), "seed": 0}
    first, again = (rows_of(population_of(drawn, size=64)) for _ in range(2))
    assert first == again
    rates = np.array([row["lr"] for row in first])
    assert ((rates >= 1e-5) & (rates <= 1e-2)).all()
    assert 20 < (rates < 10**-3.5).sum() < 44  # half of the orders of magnitude
    decays = np.array([row["weight_decay"] for row in first])
    assert 0.03 < decays.mean() < 0.07
    alone = rows_of(population_of({"lr": drawn["lr"], "seed": 0}, size=64))
    assert [row["lr"] for row in alone] == [row["lr"] for row in first]
    assert rows_of(population_of({**drawn, "seed": 1}, size=64))[0] != first[0]


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({}, "population-empty"),
        ({"lr": []}, "population-empty"),
        ({"lr": ["fast"]}, "population-value"),
        ({"lr": [-0.1]}, "population-value"),
        ({"lr": [float("nan")]}, "population-value"),
        ({"seed": [0.5]}, "population-value"),
        ({"seed": [True]}, "population-value"),
        ({"seed": uniform(0, 1), "size": 2}, "population-value"),
        ({"lr": [0.1, 0.1]}, "population-twice"),
        ({"lr": [0.1, 0.2], "seed": [1, 2, 3], "zipped": True}, "population-lengths"),
        ({"lr": uniform(0, 1), "seed": [1, 2], "size": 3}, "population-lengths"),
        ({"lr": uniform(0, 1)}, "population-size"),
        ({"lr": [0.1, 0.2], "size": 3}, "population-size"),
        ({"lr": [0.1], "size": 0}, "population-size"),
        ({"lr": 0.1, "seed": np.int64(4)}, "population-of-one"),
    ],
)
def test_invalid_values_are_refused(values, code, tmp_path):
    with raises_code(code):
        quiet(tmp_path / "run").population(**values)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("make", [lambda: uniform(1, 0), lambda: uniform(0, "1"), lambda: loguniform(0, 1)])
def test_invalid_ranges_are_refused(make):
    with raises_code("population-range"):
        make()


def test_all_problems_are_reported_together(tmp_path):
    """The keyword, the model and the hook are wrong; nothing is written."""
    builder = quiet(tmp_path / "run").population(seed=[1, 2], weight_decoy=[0.1])
    builder.on_epoch_end(lambda info, model: None)
    with raises_code("population-key-unknown", "weight_decay", "weight_decoy") as raised:
        builder.build(line(3, 3), optax.adamw, 0.1, train_step=class_step)
    assert {"population-model-not-a-function", "population-unsupported"} <= set(raised.value.codes)
    assert not (tmp_path / "run").exists()


def test_a_misspelled_setting_of_a_config_of_an_optimizer(tmp_path):
    builder = quiet(tmp_path / "run").population(weight_decy=[0.1, 0.2])
    with raises_code("population-key-unknown", "did you mean 'weight_decay'?", name="weight_decy"):
        builder.build(line(3, 3), AdamW(), 0.1, train_step=class_step)


@pytest.mark.parametrize(("name", "meant"), [("n", "size"), ("seeds", "seed"), ("learning_rate", "lr")])
def test_a_misspelled_argument(tmp_path, name, meant):
    builder = quiet(tmp_path / "run").population(**{name: [1, 2]})
    with raises_code("population-key-unknown", f"did you mean {meant!r}", name=name):
        builder.build(line(3, 3), optax.adamw, 0.1, train_step=class_step)


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        ({"n": 4}, "seed=range(4) makes four"),
        ({"lr": uniform(0, 1), "members": 4}, "size is the number of drawn members"),
        ({"learning_rate": 0.1}, "lr=[1e-4, 1e-3]"),
    ],
)
def test_a_usual_name_of_other_libraries(tmp_path, values, remedy):
    with raises_code("population-key-other", remedy):
        quiet(tmp_path / "run").population(**values)


def test_size_without_drawn_values(tmp_path):
    with raises_code("population-size", "make 1 member: ", "seed=range(4) makes as many"):
        quiet(tmp_path / "run").population(seed=4, size=4)


def test_a_list_of_one_value_makes_one_member(tmp_path):
    builder = quiet(tmp_path / "run").population(seed=[4])
    learner = builder.build(lambda rngs: {"w": jnp.zeros((3, 3))}, optax.sgd, 0.1, train_step=class_step)
    assert [member.seed for member in learner.definition.options.population.members] == [4]


def test_arguments_have_keywords(tmp_path):
    """`population(4)` would be one member with the seed 4."""
    with pytest.raises(TypeError, match="positional"):
        quiet(tmp_path / "run").population(4)


def test_keywords_that_change_the_program_are_refused(tmp_path):
    builder = quiet(tmp_path / "run").population(nesterov=[0, 1])
    with raises_code("population-key-unknown", name="nesterov"):
        builder.build(line(3, 3), optax.sgd, 0.1, train_step=class_step)

    def powers(lr, power=2):
        return optax.scale_by_learning_rate(lr * sum(1 for _ in range(power)))

    builder = quiet(tmp_path / "run").population(power=[1, 2])
    with raises_code("population-key-not-numeric", name="power"):
        builder.build(line(3, 3), powers, 0.1, train_step=class_step)


class Holding(MetricLogger):
    def __init__(self):
        self.lock = threading.Lock()

    def log(self, split, name, value, epoch, step):
        pass


@pytest.mark.parametrize("make", [lambda: JsonLines("all.jsonl"), lambda: Csv("all.csv"), Holding])
def test_loggers_that_cannot_be_copied_for_members_are_refused(make, tmp_path):
    """Members would overwrite each other's values in one file, and a lock cannot be copied."""
    builder, build = lines(tmp_path / "run", lr=[0.1, 0.2])
    with raises_code("population-unsupported", type(make()).__name__):
        build(builder.metric_loggers(make()))
    assert not (tmp_path / "run").exists()


def test_methods_for_single_runs_are_refused(tmp_path):
    builder, build = lines(tmp_path / "run", lr=[0.1, 0.2])
    learner = build(builder)
    for call in (learner.init, lambda: learner.evaluate(VALID), lambda: learner.find_lr(VALID), learner.overview):
        with raises_code("population-method"):
            call()


def test_steps_with_host_effects_are_refused(tmp_path):
    def step(model, batch):
        jax.debug.print("{}", model["w"].sum())
        return class_step(model, batch)

    learner = quiet(tmp_path / "run").population(lr=[0.1, 0.2]).build(line(3, 3), optax.sgd, 0.1, train_step=step)
    with raises_code("population-step-effects", split="train"):
        learner.fit(shuffled())
    assert not (tmp_path / "run").exists()


class OnHost(MeanMetric):
    name = "On Host"
    higher_is_better = True
    fields = ("logits",)

    def update(self, state, output, info):
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        value = jax.pure_callback(lambda x: np.float32(x[0, 0]), shape, output.logits)
        return state.add(value, jnp.float32(1))


def test_a_metric_that_cannot_be_mapped_is_refused(tmp_path):
    builder = quiet(tmp_path / "run").metrics(Accuracy()).metric_valid(OnHost()).population(lr=[0.1, 0.2])
    learner = builder.build(line(3, 3), optax.sgd, 0.1, train_step=class_step, valid_step=class_step)
    with raises_code("population-metric-not-mappable", name="On Host"):
        learner.fit(shuffled(), shuffled())
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_frozen_parameters_do_not_change(tmp_path):
    builder = quiet(tmp_path / "run").population(seed=[1, 2]).freeze("w")
    result = build_drawn(builder).fit(shuffled())
    for member in result:
        start = make_drawn(nnx.Rngs(member.values["seed"]))
        np.testing.assert_allclose(member.model["w"], start["w"], rtol=1e-6)
        assert not np.allclose(member.model["b"], 0.0, atol=1e-3)


def test_a_nonfinite_member_ends_alone(tmp_path):
    """A rate of 1e38 makes the second loss infinite or NaN; the other members continue."""
    builder, build = lines(tmp_path / "run", lr=[0.1, 1e38, 0.2])
    result = build(builder.num_epochs(2)).fit(shuffled(), shuffled())
    check_member(result[0], descent(0.1, 2), 2)
    check_member(result[2], descent(0.2, 2), 2)
    assert result.stopped_by == result[0].stopped_by == "num_epochs"
    assert result[1].stopped_by.startswith("on_nonfinite: the ")
    assert not result[1].history
    end = json.loads((result[1].directory / "journal.jsonl").read_text().splitlines()[-1])
    assert (end["event"], end["stopped_by"]) == ("stop", result[1].stopped_by)
    assert end["step"] < 6
    assert np.isfinite(result.history["valid/Loss"]).all()
    assert result.best("valid/Loss").index in (0, 2)


@pytest.mark.full
def test_a_member_that_diverges_is_ranked_last_and_missing_in_the_summary(tmp_path):
    """The parameters of the higher rate, whose loss is the lower one until then, are NaN after the ninth step."""

    def exploding(lr):
        late = optax.scale_by_schedule(lambda step: jnp.where((lr > 0.05) & (step > 7), jnp.nan, 1.0))
        return optax.chain(optax.sgd(lr), late)

    builder = quiet(tmp_path / "run").num_epochs(3).population(lr=[0.01, 0.1]).with_file_checkpointer()
    built = builder.build(line(3, 3), exploding, 0.1, train_step=class_step, valid_step=class_step)
    result = built.fit(shuffled(), shuffled())
    kept, diverged = (member.best("valid/Loss").value for member in result)
    assert diverged < kept
    assert result.best("valid/Loss").index == 0
    assert [(row.count, row.is_complete) for row in result.summary("valid/Loss")] == [(1, True), (0, False)]


@pytest.mark.full
def test_a_population_ends_where_its_last_member_does(tmp_path):
    """Rows of zeros change nothing. Then, with w = 0 at first, a rate of r makes the loss about r ** 2 in the second
    step, and r ** 4 in the third. Both members end in one dispatch, the later one in the first lane.
    """
    batches = [{"x": row, "y": row[:, :1]} for row in np.float32([[[0, 0, 0]]] * 24 + [[[1, 2, 3]]] * 8)]
    builder = quiet(tmp_path / "run").steps_per_dispatch(8).on_nonfinite("stop")
    builder.population(lr=[1e12, 1e30])
    learner = builder.build({"w": jnp.zeros((3, 1))}, optax.sgd, 0.1, train_step=square_step)
    result = learner.fit(batches)
    assert [member.summary["steps"] for member in result] == [27, 26]
    assert result.stopped_by == "on_nonfinite: the loss of step 27 is not finite"


@pytest.mark.full
def test_a_member_that_ended_does_not_resume(tmp_path):
    ended = []
    for steps in (8, 12):
        builder, build = lines(tmp_path / "run", lr=[0.1, 1e38])
        result = build(builder.num_steps(steps).with_file_checkpointer().resume()).fit(shuffled())
        ended.append((result[1].history, result[1].stopped_by, logs_of(result[1].directory)))
    assert ended[0] == ended[1]
    assert ended[0][1].startswith("on_nonfinite")
    losses, _, weights = descent(0.1, 2)
    np.testing.assert_allclose(result[0].history["train/Loss"], losses, rtol=1e-5)
    np.testing.assert_allclose(result[0].model["w"], weights[1], rtol=1e-4, atol=1e-6)


def stopped_early(directory, epochs, **values):
    """Return a population whose first member, with the rate 0, never improves and ends after the third epoch."""
    builder, build = lines(directory, lr=[0.0, 0.1], **values)
    builder.early_stopping(MetricEarlyStopping("valid/Loss", patience=2)).num_epochs(epochs)
    return builder.with_file_checkpointer(keep_last=9), build


@pytest.mark.full
def test_early_stopping_of_a_member(tmp_path):
    builder, build = stopped_early(tmp_path / "run", 6)
    result = build(builder).fit(shuffled(), shuffled())
    assert [len(m.history["valid/Loss"]) for m in result] == [3, 6]
    assert result[0].stopped_by.startswith("early stopping: valid/Loss has not improved")
    assert result[0].summary["epochs"] == 3
    assert result[1].stopped_by == result.stopped_by == "num_epochs"
    check_member(result[1], descent(0.1, 6), 6)
    assert {path.name for path in (result[0].directory / "train").iterdir()} == {"epoch-1", "epoch-2", "epoch-3"}
    events = [entry["event"] for entry in journal_of(result[0].directory)]
    assert events == ["start", "epoch", "epoch", "epoch", "stop"]


@pytest.mark.parametrize("every", some([1, 100], [100]))
def test_the_best_epoch_of_the_best_member_is_kept(tmp_path, every):
    """Members that have ended count with the values of their last states. A mean over those that still train would be
    best when only the best one trains.
    """
    builder, build = lines(tmp_path / "run", lr=[1.0, 2.0, 0.0])
    builder.early_stopping(MetricEarlyStopping("valid/Loss", patience=2)).num_epochs(8)
    builder.with_file_checkpointer(keep_last=1, keep_best=1, every_epochs=every)
    members = build(builder).fit(shuffled(), shuffled())
    losses = [member.history["valid/Loss"] for member in members]
    assert [len(values) for values in losses] == [6, 3, 3]
    assert [int(np.argmin(values)) for values in losses] == [3, 0, 0]
    assert saved_steps(tmp_path / "run") == [4 * STEPS, 6 * STEPS]
    with contextlib.closing(CheckpointStore(tmp_path / "run" / "checkpoint")) as store:
        assert store.best().score == min(losses[0]) == load_checkpoint(members[0].directory).score
    with pytest.warns(LearnerWarning, match=r"its best valid/Loss, 1\.03\d+, at step 6 .*: step 24, with 1\.23\d+"):
        assert load_checkpoint(members[1].directory, "best").score == losses[1][-1]
    assert load_checkpoint(members[2].directory, "best").score == losses[2][0]  # which did not change
    best = [[entry["epoch"] for entry in m.summary["checkpoints"] if entry["best"]] for m in members]
    assert best == [[4], [3], [3]]


@pytest.mark.full
def test_the_state_of_a_member_that_ended_does_not_change(tmp_path):
    """A high rate first lowers the loss and then raises it; the state is from the epoch that ended the member."""
    builder, build = lines(tmp_path / "run", lr=[0.1, 30.0])
    builder.early_stopping(MetricEarlyStopping("valid/Loss", patience=1)).num_epochs(5)
    result = build(builder.with_file_checkpointer(keep_last=9)).fit(shuffled(), shuffled())
    ended = len(result[1].history["valid/Loss"])
    assert 1 < ended < 5
    kept = load_checkpoint(result[1].directory, ended, line(3, 3))
    last = load_checkpoint(result[1].directory, "latest", line(3, 3))
    assert model_bits(kept.model) == model_bits(last.model) == model_bits(result[1].model)
    first = [load_checkpoint(result[0].directory, which, line(3, 3)).model for which in (ended, "latest")]
    assert model_bits(first[0]) != model_bits(first[1])


@pytest.mark.full
def test_a_population_resumes_with_a_member_that_has_ended(tmp_path):
    for epochs in (4, 6):
        builder, build = stopped_early(tmp_path / "run", epochs)
        result = build(builder.resume()).fit(shuffled(), shuffled())
    builder, build = stopped_early(tmp_path / "whole", 6)
    whole = build(builder).fit(shuffled(), shuffled())
    assert [m.history for m in result] == [m.history for m in whole]
    assert [m.stopped_by for m in result] == [m.stopped_by for m in whole]
    assert [model_bits(m.model) for m in result] == [model_bits(m.model) for m in whole]
    builder, build = lines(tmp_path / "run", lr=[0.0, 0.1])
    with raises_code("resume-population-differs"):
        build(builder.num_epochs(8).resume()).fit(shuffled(), shuffled())


@pytest.mark.full
def test_a_population_ends_with_its_last_member(tmp_path):
    builder, build = lines(tmp_path / "run", lr=0.0, momentum=[0.1, 0.2])
    builder.early_stopping(MetricEarlyStopping("valid/Loss", patience=2)).num_epochs(9)
    result = build(builder).fit(shuffled(), shuffled())
    assert result.stopped_by == "early stopping: all 2 members have ended"
    assert [len(m.history["valid/Loss"]) for m in result] == [3, 3]
    for killed in (False, True):
        if killed:  # killed before the summary was written
            (tmp_path / "run" / "summary.json").unlink()
        again, build = lines(tmp_path / "run", lr=0.0, momentum=[0.1, 0.2])
        again.early_stopping(MetricEarlyStopping("valid/Loss", patience=2)).num_epochs(9).resume()
        ended = build(again).fit(shuffled(), shuffled())
        assert (ended.stopped_by, ended[1].history) == (result.stopped_by, result[1].history)


@pytest.mark.full
def test_a_nonfinite_member_does_not_affect_members_that_ended(tmp_path):
    """The loss with the rate 0 does not improve in the second validation, after 24 steps. The other rate is NaN from
    step 26 on, so the loss of step 27 is not finite.
    """
    builder = quiet(tmp_path / "run").metrics(Accuracy()).population(lr=[0.0, 1.0]).num_steps(29)
    builder.early_stopping(MetricEarlyStopping("valid/Loss", patience=1)).valid_every(epochs=2)
    schedule = lambda step: jnp.where(step < 25, 0.01, jnp.nan)  # noqa: E731
    built = builder.build(line(3, 3), optax.sgd, schedule, train_step=class_step, valid_step=class_step)
    result = built.fit(shuffled(), shuffled())
    assert result[0].stopped_by.startswith("early stopping")
    assert result[1].stopped_by == "on_nonfinite: the loss of step 27 is not finite"
    assert result.stopped_by == "early stopping: all 2 members have ended"
    assert read_summary(tmp_path / "run" / "000-lr=0.0")["steps"] == 24


@pytest.mark.full
def test_the_table_shows_seeds_in_full(tmp_path):
    builder, build = lines(tmp_path / "run", seed=[4294967295])
    assert "4294967295" in build(builder.num_steps(1)).fit(shuffled()).table()


RATES = [0.1, 0.0, 0.4, 0.01]


@pytest.mark.full
def test_halving_ends_the_worst_members(tmp_path):
    """Each member trains independently up to the epoch in which its loss is among the worst."""
    builder, build = lines(tmp_path / "run", lr=RATES)
    builder.halving("train/Loss", every_epochs=1, keep=0.5).num_epochs(3).with_file_checkpointer()
    result = build(builder).fit(shuffled(), shuffled())
    expected = [descent(rate, 3) for rate in RATES]
    losses = [train for train, _, _ in expected]
    first = sorted(range(4), key=lambda i: losses[i][0])
    second = sorted(first[:2], key=lambda i: losses[i][1])
    epochs = {first[2]: 1, first[3]: 1, second[1]: 2, second[0]: 3}
    places = {first[2]: "3 of 4", first[3]: "4 of 4", second[1]: "2 of 2"}
    for index, member in enumerate(result):
        why = f"halving: place {places[index]} by train/Loss" if index in places else "num_epochs"
        assert member.stopped_by.startswith(why)
        assert member.summary["epochs"] == epochs[index]
        check_member(member, expected[index], epochs[index])
        loaded = load_checkpoint(member.directory, "latest", line(3, 3))
        assert model_bits(loaded.model) == model_bits(member.model)
        logs = member.directory.glob("train/epoch-*/Loss.log")
        counts = {path.parent.name: len(path.read_text().splitlines()) for path in logs}
        assert counts == {f"epoch-{n + 1}": 6 + 1 for n in range(epochs[index])}  # a line for each step and the mean
    assert [entry["event"] for entry in journal_of(result[first[3]].directory)] == ["start", "epoch", "stop"]
    # The run has the means of the members that trained.
    means = [np.mean([x[0] for x in losses]), np.mean([losses[i][1] for i in first[:2]]), losses[second[0]][2]]
    np.testing.assert_allclose(result.history["train/Loss"], means, rtol=1e-5)
    assert "ranks no members" not in (tmp_path / "run" / "experiment.log").read_text()


@pytest.mark.full
def test_ended_members_have_ended_while_others_train(tmp_path):
    """The member with the rate 1 ends after the first epoch, the one with 1e38 within it. A resumed run does not change
    them.
    """
    seen = []

    class Validation:
        def __iter__(self):
            runs = find_runs([tmp_path / "run"]) if (tmp_path / "run").exists() else []
            seen.append([(run.status.word == "running", run.step, run.epochs) for run in runs])
            return iter(VALID_BATCHES)

    for epochs in (2, 4):  # the first validation reads the iterator that the checks have opened
        builder, build = lines(tmp_path / "run", lr=[1.0, 0.01, 1e38])
        builder.halving("train/Loss").num_epochs(epochs).with_file_checkpointer().resume()
        result = build(builder).fit(shuffled(), Validation())
        steps = [member.summary["steps"] for member in result]
        assert steps[:2] == [6, 6 * epochs]
        assert seen[-1] == [(False, 6, 1), (True, 6 * (epochs - 1), epochs - 1), (False, steps[2], 0)]
        assert [run.step for run in find_runs([tmp_path / "run"])] == steps
    for member in (result[0], result[2]):
        assert [entry["event"] for entry in journal_of(member.directory)].count("stop") == 2  # one line per run
    assert 0 < steps[2] < 6


@pytest.mark.full
@pytest.mark.parametrize("length", [{"num_steps": 6}, pytest.param({"num_epochs": 1}, marks=pytest.mark.full)], ids=str)
@pytest.mark.parametrize("method", ["halving", "exploit"])
def test_members_are_not_ranked_at_the_end_of_the_run(length, method, tmp_path):
    """An epoch has 6 steps. Each member keeps its own state and rate."""
    builder, build = lines(tmp_path / "run", lr=RATES)
    for option, argument in length.items():
        getattr(builder, option)(argument)
    result = build(getattr(builder, method)("train/Loss")).fit(shuffled(), shuffled())
    assert [member.stopped_by for member in result] == list(length) * 4
    for member, rate in zip(result, RATES, strict=True):
        check_member(member, descent(rate, 1), 1)
    assert all(entry["event"] != "exploit" for member in result for entry in journal_of(member.directory))


@pytest.mark.full
def test_a_failing_population_keeps_members_that_ended(tmp_path):
    """Two members end after the first epoch, and the second validation fails."""

    class Validation:
        def __iter__(self):
            if any(entry["event"] == "stop" for path in (tmp_path / "run").glob("0*") for entry in journal_of(path)):
                raise OSError("the disk is gone")
            return iter(VALID_BATCHES)

    builder, build = lines(tmp_path / "run", lr=RATES)
    with pytest.raises(OSError, match="the disk is gone"):
        build(builder.halving("train/Loss").num_epochs(3)).fit(shuffled(), Validation())
    ends = [journal_of(path)[-1]["event"] for path in sorted((tmp_path / "run").glob("0*"))]
    assert sorted(ends) == ["error", "error", "stop", "stop"]


@pytest.mark.full
def test_halving_with_ties_and_nonfinite_members(tmp_path):
    """The members with the rate 0 have equal losses, and the first one continues. The other members are not finite."""
    builder, build = lines(tmp_path / "run", lr=[1e38, 0.0], momentum=[0.1, 0.2])
    result = build(builder.halving("valid/Loss", every_epochs=2, keep=0.5).num_epochs(4)).fit(shuffled(), shuffled())
    assert [m.stopped_by.split(":")[0] for m in result] == ["on_nonfinite", "on_nonfinite", "num_epochs", "halving"]
    assert [len(m.history["valid/Loss"]) if m.history else 0 for m in result] == [0, 0, 4, 2]


@pytest.mark.full
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(9, id="within the 2nd epoch"),
        pytest.param(13, id="one step after it", marks=pytest.mark.full),
        pytest.param(15, id="within the 3rd", marks=pytest.mark.full),
    ],
)
def test_halving_resumes_to_the_bit(tmp_path, steps, whole_halving):
    """Inside an epoch, metrics have lanes only for the members that still train."""

    def fit(directory, steps):
        builder, build = lines(directory, lr=[0.01, 0.1], momentum=[0.0, 0.5])
        builder.metrics(LastRow()).num_steps(steps).halving("train/Loss", keep=0.5).with_file_checkpointer().resume()
        return bits_of(directory, build(builder).fit(shuffled()))

    if not whole_halving:
        whole_halving.append(fit(tmp_path / "whole", 20))
    fit(tmp_path / "run", steps)
    for part, other in zip(fit(tmp_path / "run", 20), whole_halving[0], strict=True):
        assert part == other


@pytest.fixture(scope="module")
def whole_halving():
    return []


@pytest.mark.parametrize(
    ("method", "arguments", "code"),
    [
        ("halving", {"every_epochs": 0}, "population-selection-epochs"),
        ("halving", {"every_epochs": 1.5}, "population-selection-epochs"),
        ("halving", {"keep": 1}, "population-selection-fraction"),
        ("halving", {"keep": 0.0}, "population-selection-fraction"),
        ("halving", {"keep": "half"}, "population-selection-fraction"),
        ("halving", {"keep": float("nan")}, "population-selection-fraction"),
        ("halving", {"mode": "least"}, "metric-mode-unknown"),
        ("exploit", {"part": 0.6}, "population-selection-fraction"),
        ("exploit", {"factors": ()}, "population-exploit-factors"),
        ("exploit", {"factors": (0.8, -1)}, "population-exploit-factors"),
        ("exploit", {"factors": "faster"}, "population-exploit-factors"),
        ("exploit", {"every_epochs": None}, "population-selection-epochs"),
    ],
)
def test_invalid_selections_are_refused(method, arguments, code, tmp_path):
    with raises_code(code):
        getattr(quiet(tmp_path / "run"), method)("valid/Loss", **arguments)


def test_conflicts_of_rates_with_plateaus_and_exploit_are_refused(tmp_path):
    plateau = ReduceOnPlateau(0.1, min_lr=0.01)
    for values, method in (({"lr": [0.1, 0.001]}, lambda b: b), ({"seed": [1]}, lambda b: b.exploit("valid/Loss"))):
        with raises_code("population-unsupported", "min_lr" if "lr" in values else "exploit"):
            method(quiet(tmp_path / "run").population(**values)).build(
                line(3, 3), optax.sgd, plateau, train_step=class_step, valid_step=class_step
            )


def test_selections_without_members_or_metric_are_refused(tmp_path):
    with raises_code("population-selection-alone", name="halving"):
        quiet(tmp_path / "run").halving("valid/Loss").build(line(3, 3), optax.sgd, 0.1, train_step=class_step)
    for method in ("halving", "exploit"):
        builder, build = lines(tmp_path / "run", lr=[0.1, 0.2])
        with raises_code("monitor-metric", name=method):
            build(getattr(builder, method)("valid/Lost")).fit(shuffled(), shuffled())
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_exploit_replaces_the_worst_member_by_the_best(tmp_path):
    """After the first epoch, the member with the highest loss takes the state of the best one and half of its rate."""
    builder, build = lines(tmp_path / "run", lr=[0.1, 0.02, 0.01, 0.05])
    builder.exploit("train/Loss", every_epochs=1, part=0.25, factors=(0.5,)).num_epochs(2).with_file_checkpointer()
    result = build(builder).fit(shuffled(), shuffled())
    first = {index: member.history["train/Loss"][0] for index, member in enumerate(result)}
    best, worst = min(first, key=first.get), max(first, key=first.get)
    rate = result[best].values["lr"]
    losses, _, weights = descent(lambda step, valid: rate if step < 6 else rate / 2, 2)
    np.testing.assert_allclose(result[worst].history["train/Loss"][1], losses[1], rtol=1e-5)
    np.testing.assert_allclose(result[worst].model["w"], weights[1], rtol=1e-4, atol=1e-6)
    (entry,) = [entry for entry in journal_of(result[worst].directory) if entry["event"] == "exploit"]
    assert (entry["source"], entry["epoch"], entry["step"]) == (result[best].name, 1, 6)
    np.testing.assert_allclose(entry["lr_scale"], rate / 2, rtol=1e-6)
    kept = [m for m in result if m.index != worst]
    assert all(entry["event"] != "exploit" for m in kept for entry in journal_of(m.directory))


@pytest.mark.parametrize("factors", [(0.5,), (0.8, 1.25), (0.8, 0.8, 1.25)], ids=str)
def test_exploit_gives_members_different_pairs(factors):
    """Two members with equal states and rates would train identically."""
    exploit = Exploit(Monitor("valid/Loss", "min"), 1, 0.5, factors)
    drawn = [exploit.replaced([5, 3, 7, 1, 0, 2, 4, 6], epoch) for epoch in range(50)]
    assert all(list(pairs) == [0, 2, 4, 6] and len(set(pairs.values())) == 4 for pairs in drawn)
    assert {pair for pairs in drawn for pair in pairs.values()} == {(s, f) for s in (5, 3, 7, 1) for f in factors}


@pytest.mark.full
def test_exploit_copies_the_numbers_of_the_optimizer(tmp_path):
    """After the first epoch, the member with the rate 1 takes the other's state and momentum, and half of its rate."""
    builder, build = lines(tmp_path / "run", lr=[1.0, 0.01], momentum=[0.25, 0.5], zipped=True)
    builder.exploit("train/Loss", part=0.5, factors=(0.5,)).num_epochs(2)
    worst, best = build(builder).fit(shuffled())
    (entry,) = [entry for entry in journal_of(worst.directory) if entry["event"] == "exploit"]
    assert (entry["source"], entry["momentum"]) == (best.name, 0.5)
    np.testing.assert_allclose(entry["lr_scale"], 0.005, rtol=1e-6)
    _, _, weights = descent(lambda step, valid: 0.01 if step < 6 else 0.005, 2, momentum=0.5)
    np.testing.assert_allclose(worst.model["w"], weights[1], rtol=1e-4, atol=1e-6)


RANKINGS = {
    "never": (
        lambda b: b.valid_every(steps=4, epochs=0).halving("valid/Loss", every_epochs=3).num_epochs(4),
        24,
        False,
    ),
    "twice": (lambda b: b.valid_every(steps=4, epochs=0).halving("valid/Loss", every_epochs=2).num_epochs(4), 24, True),
    "last": (lambda b: b.exploit("valid/Loss", every_epochs=2).num_steps(12), 12, False),
    "before": (lambda b: b.exploit("train/Loss", every_epochs=2).num_steps(13), 13, True),
}


@pytest.mark.parametrize("name", RANKINGS)
def test_selections_that_never_rank_are_detected(name, tmp_path):
    """An epoch has 6 steps. With a validation every 4 steps, those after 12 and 24 steps end an epoch."""
    configure, steps, ranks = RANKINGS[name]
    builder, build = lines(tmp_path / "run", lr=[0.1, 0.2])
    options = build(configure(builder).num_steps(steps)).definition.options
    selection = options.halving or options.exploit
    assert selection.is_ever_due(options.valid_schedule(["valid"]), steps, 6) is ranks


@pytest.mark.full
def test_a_selection_that_never_ranks_is_warned_about(tmp_path):
    builder, build = lines(tmp_path / "run", lr=[0.1, 0.2])
    build(RANKINGS["last"][0](builder).num_steps(12)).fit(shuffled(), shuffled())
    assert (tmp_path / "run" / "experiment.log").read_text().count("exploit ranks no members") == 1


@pytest.mark.full
def test_exploit_resumes_to_the_bit(tmp_path):
    """The members keep their random keys and the copied rates. Draws do not depend on where the run starts."""

    def fit(directory, steps):
        return bits_of(directory, fit_seeds(seeds(directory, steps).exploit("train/Loss", part=0.5).resume()))

    fit(tmp_path / "run", 9)
    for part, other in zip(fit(tmp_path / "run", 20), fit(tmp_path / "whole", 20), strict=True):
        assert part == other


SELECTIONS = {
    "exploit added": (
        lambda b: b,
        lambda b: b.exploit("valid/Loss"),
        "exploit: none -> valid/Loss (min), every_epochs=1, ",
    ),
    "other factors": (
        lambda b: b.exploit("valid/Loss", factors=(0.5, 2.0)),
        lambda b: b.exploit("valid/Loss", factors=[0.25, 2.0]),
        "part=0.25, factors=[0.5, 2] -> valid/Loss (min), every_epochs=1, part=0.25, factors=[0.25, 2]",
    ),
    "halving removed": (lambda b: b.halving("valid/Loss", 2), lambda b: b, "every_epochs=2, keep=0.5 -> none"),
    "nothing": (
        lambda b: b.exploit("valid/Loss", factors=(1, 2)),
        lambda b: b.exploit("valid/Loss", part=np.float64(0.25), factors=[1.0, 2.0]),
        None,
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("what", SELECTIONS)
def test_another_selection_is_one_warning(tmp_path, what):
    before, now, text = SELECTIONS[what]
    for epochs, configure in ((1, before), (2, now)):
        builder, build = lines(tmp_path / "run", lr=[0.1, 0.2])
        build(configure(builder).num_epochs(epochs).with_file_checkpointer().resume()).fit(shuffled(), shuffled())
    log = (tmp_path / "run" / "experiment.log").read_text().splitlines()
    changed = [line for line in log if "the run resumes although this changed" in line]
    assert [text in line for line in changed] == ([] if text is None else [True])


@pytest.mark.full
def test_each_member_has_its_own_plateau(tmp_path):
    """With a tiny rate, the loss improves at each validation; with the rate 1 it does not, and the rate falls."""

    def plateau(rate):
        return ReduceOnPlateau(rate, "valid/Loss", factor=0.5, patience=0)

    def fit(directory, epochs):
        builder, _ = lines(directory, lr=[0.001, 1.0])
        builder.num_epochs(epochs).with_file_checkpointer().resume()
        built = builder.build(line(3, 3), optax.sgd, plateau(0.1), train_step=class_step, valid_step=class_step)
        return built.fit(shuffled(), shuffled())

    fit(tmp_path / "run", 3)
    result = fit(tmp_path / "run", 6)
    for index, rate in enumerate([0.001, 1.0]):

        def falling(step, valid, rate=rate):
            return rate * 0.5 ** sum(min(valid[:n]) <= valid[n] for n in range(1, len(valid)))

        check_member(result[index], descent(falling, 6), 6)
    rates = [state["rate"] for state in progress_of(tmp_path / "run", 36)["plateaus"]]
    assert rates[0] == 0.001
    assert rates[1] < 0.5


@pytest.mark.full
def test_another_initial_rate_of_the_plateaus_of_members(tmp_path):
    """Each validation from the second on lowers the rate: to 0.025 before it resumes with a fifth of the first rate."""
    for epochs, rate in ((2, 0.05), (4, 0.01)):
        plateau = ReduceOnPlateau(rate, "valid/Loss", factor=0.5, patience=0, min_delta=1e6)
        builder = quiet(tmp_path).population(momentum=[0.0, 0.5]).metric_train(LearningRate())
        builder.num_epochs(epochs).with_file_checkpointer().resume()
        built = builder.build(line(3, 3), optax.sgd, plateau, train_step=class_step, valid_step=class_step)
        result = built.fit(shuffled(), shuffled())
    for member in result:
        np.testing.assert_allclose(member.history["train/Learning Rate"], [0.05, 0.05, 0.005, 0.0025], rtol=1e-6)
    assert "initial learning rate: 0.05 -> 0.01" in (tmp_path / "experiment.log").read_text()


@pytest.mark.full
def test_a_population_is_compacted_when_half_of_it_has_ended(tmp_path, monkeypatch):
    """The results equal those of programs with all members."""
    results = []
    for least in (1e11, 0.0):
        monkeypatch.setattr(assembly, "LEAST_FLOPS", least)
        builder, build = stopped_early(tmp_path / f"{least}", 6)
        results.append(build(builder).fit(shuffled(), shuffled()))
    frozen, compacted = results
    assert [m.stopped_by for m in compacted] == [m.stopped_by for m in frozen]
    for one, other in zip(compacted, frozen, strict=True):
        np.testing.assert_allclose(one.history["valid/Loss"], other.history["valid/Loss"], rtol=1e-6)
        np.testing.assert_allclose(one.model["w"], other.model["w"], rtol=1e-6)
    lanes = [progress_of(tmp_path / f"{least}", 36)["lanes"] for least in (1e11, 0.0)]
    assert lanes == [[0, 1], [1]]


OWN = {
    "nnx, accumulation": (Norm, nnx_step, optax.adamw, 1e-2, 2),
    "convolution, step by step": (make_convolution, convolution_step, momentum, 1e-2, 1),
    "convolution, accumulation": (make_convolution, convolution_step, momentum, 1e-2, 2),
}


@pytest.mark.full
def test_members_with_their_own_order_train_on_the_batches_of_their_seed(tmp_path):
    """The last of 6 batches has 2 rows. After an epoch, halving reassigns the lanes."""
    builder, _ = lines(tmp_path / "run", seed=[3, 8, 5], data_order="own")
    builder.halving("train/Loss", keep=0.6).num_epochs(2).with_batch_size(4)
    make = lambda rngs: line(3, 3)  # noqa: E731
    built = builder.build(make, optax.sgd, 0.1, train_step=class_step, valid_step=class_step)
    result = built.fit(arrays(22), shuffled())
    assert sorted(len(member.history["train/Loss"]) for member in result) == [1, 2, 2]
    for member in result:
        loader = DataLoaderBuilder().batch_size(4).shuffle(member.values["seed"]).build(arrays(22))
        check_member(member, descent(0.1, 2, loader=loader), len(member.history["train/Loss"]))


@pytest.mark.full
@pytest.mark.parametrize("name", OWN)
def test_members_with_their_own_order_equal_runs_with_their_seed(name, tmp_path):
    """With 22 rows in batches of 4, the last batch is ragged. After an epoch, halving reassigns the lanes."""
    make, step, optimizer, lr, accumulate = OWN[name]

    def configured(directory):
        return quiet(directory).metrics(LastRow()).num_epochs(3).grads_accumulation(accumulate).with_batch_size(4)

    steps = {"train_step": step, "valid_step": step}
    builder = configured(tmp_path / "all").population(seed=[3, 8, 5], data_order="own").halving("train/Loss", keep=0.6)
    result = builder.build(make, optimizer, lr, **steps).fit(arrays(22), shuffled(rows=10))
    assert sorted(len(member.history["train/Loss"]) for member in result) == [1, 3, 3]
    for member in result:
        one = configured(tmp_path / f"{member.index}").seed(member.values["seed"])
        alone = one.build(make, optimizer, lr, **steps).fit(arrays(22), shuffled(rows=10))
        for key in member.history:
            values = member.history[key]
            np.testing.assert_allclose(values, alone.history[key][: len(values)], rtol=2e-5, atol=1e-6, err_msg=key)


@pytest.mark.full
def test_own_orders_resume_to_the_bit(tmp_path):
    def fit(directory, steps):
        builder = seeds(directory, steps).with_batch_size(4)._set(population=None)
        builder.population(seed=[1, 2], data_order="own").resume()
        built = builder.build(Norm, optax.adamw, 1e-2, train_step=nnx_step, valid_step=nnx_step)
        return bits_of(directory, built.fit(arrays(24)))

    fit(tmp_path / "run", 9)
    for part, other in zip(fit(tmp_path / "run", 15), fit(tmp_path / "whole", 15), strict=True):
        assert part == other
    builder = quiet(tmp_path / "run").metrics(Accuracy(), LastRow()).num_steps(18).with_batch_size(4)
    builder.population(seed=[1, 2]).with_file_checkpointer().resume()
    with raises_code("resume-population-differs"):
        builder.build(Norm, optax.adamw, 1e-2, train_step=nnx_step, valid_step=nnx_step).fit(arrays(24))


def test_data_without_support_for_own_orders_is_refused(tmp_path):
    for data in (streamed(), [arrays(4)] * 3):
        builder, build = lines(tmp_path / "run", lr=[0.1, 0.2], data_order="own")
        with raises_code("population-data-order"):
            build(builder).fit(data)
    with raises_code("builder-choice-unknown"):
        lines(tmp_path / "run", lr=[0.1, 0.2], data_order="each")
    builder, build = lines(tmp_path / "run", lr=[0.1, 0.2], data_order="own")
    with raises_code("population-unsupported", "data_order"):
        build(builder.devices(2))
    assert not (tmp_path / "run").exists()


MESH = Sharded({"member": 2, "data": 2}, devices=4)
SPREAD = {
    "dict": (make_drawn, drawn_step, momentum, 1e-2, 1),
    "nnx, accumulation": (Norm, nnx_step, optax.adamw, 1e-2, 2),
    "convolution, step by step": (make_convolution, convolution_step, momentum, 1e-2, 1),
    "linen, schedule": (make_linen, linen_step, optax.adam, SCHEDULE, 1),
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "several", "rows"),
    [
        ("dict", [2], (24,)),
        *[pytest.param(name, [2, MESH], (21, 10), marks=pytest.mark.full, id=f"{name}, a mesh") for name in SPREAD],
    ],
)
def test_members_on_several_devices_equal_those_on_one(name, several, rows, tmp_path):
    """The cases include ragged batches and groups, metrics that collect rows, and dropout. A last batch of one row
    cannot be divided over the devices along `data`.
    """
    make, step, optimizer, lr, accumulate = SPREAD[name]
    results = {}
    for devices in (1, *several):
        directory = tmp_path / f"{len(results)}"
        builder = spread_over(configured(directory, accumulate).population(seed=[3, 8, 9, 1]), devices)
        built = builder.build(
            make, optimizer, lr, train_step=step, valid_step=drawn_valid_step if step is drawn_step else step
        )
        results[directory] = list(built.fit(*(shuffled(rows=count) for count in rows)))
    first, *others = results
    for one, spread in [pair for directory in others for pair in zip(results[first], results[directory], strict=True)]:
        for key in one.history:
            np.testing.assert_allclose(spread.history[key], one.history[key], rtol=2e-5, atol=1e-6, err_msg=key)
        for leaf, expected in zip(*(jax.tree.leaves(arrays_of(x.model)) for x in (spread, one)), strict=True):
            np.testing.assert_allclose(leaf, expected, rtol=2e-4, atol=1e-5)
        assert spread.evaluate(VALID_BATCHES) == pytest.approx(one.evaluate(VALID_BATCHES), rel=1e-5)
    assert all(logs_of(directory).keys() == logs_of(first).keys() for directory in others)


@pytest.mark.full
def test_a_mesh_of_members_and_rows(tmp_path):
    """The updates of SGD are proportional to the gradients, which equal those on one device, also for ragged batches
    and groups. Two epochs compile no more programs than one.
    """
    results, compiled = [], []
    for name, epochs, mesh in (("one", 1, None), ("warm", 1, MESH), ("once", 1, MESH), ("twice", 2, MESH)):
        builder, build = lines(tmp_path / name, lr=[0.1, 0.2, 0.3, 0.05])
        builder = builder.num_epochs(epochs).grads_accumulation(2).metrics(LastRow())
        results.append(build(builder if mesh is None else builder.strategy(mesh)).fit(shuffled(rows=21), shuffled()))
        compiled.append(compilations_of(tmp_path / name))
    for one, spread in zip(results[0], results[1], strict=True):
        np.testing.assert_allclose(spread.model["w"], one.model["w"], rtol=1e-5)
        for key in one.history:
            np.testing.assert_allclose(spread.history[key], one.history[key], rtol=1e-6)
    assert compiled[2] == compiled[3]
    log = (tmp_path / "warm" / "experiment.log").read_text()
    assert "{'member': 2, 'data': 2}, rows over 'data', members over 'member'" in log
    for builder, strategy in (
        (lines(tmp_path / "run", lr=[0.1, 0.2])[0], Sharded({"member": 2, "model": 4}, {"w": ("model",)})),
        (lines(tmp_path / "run", lr=[0.1, 0.2, 0.3])[0], MESH),
        (lines(tmp_path / "run", lr=[0.1, 0.2], data_order="own")[0], MESH),
    ):
        with raises_code("population-unsupported"):
            build(builder.strategy(strategy))
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_a_mesh_divides_the_work_of_members_and_rows(tmp_path):
    """Each device computes little more than a quarter of the operations of four members, and gathers no parameters."""

    def compiled(members, strategy):
        builder = spread_over(quiet(tmp_path / "run").population(seed=range(members)), strategy)
        make = lambda rngs: nnx.Linear(3, 512, rngs=rngs)  # noqa: E731
        definition = builder.build(make, optax.sgd, 0.1, train_step=nnx_step).definition
        plan = planned(definition, read_checked(definition, [arrays(24)], None))
        (program,) = plan.runner.compiled(plan.feed(), plan.feeder.loop).values()
        return program

    one, spread = compiled(1, 1), compiled(4, MESH)
    assert spread.cost_analysis()["flops"] < 4 * one.cost_analysis()["flops"] / 3
    assert "all-reduce" in spread.as_text()
    assert "all-gather" not in spread.as_text()


def spread_over(builder, devices):
    return builder.devices(devices) if isinstance(devices, int) else builder.strategy(devices)


def spread_halving(directory, steps, devices):
    builder = quiet(directory).metrics(Accuracy(), LastRow()).num_steps(steps).population(lr=[0.3, 0.1, 0.2, 0.001])
    spread_over(builder.halving("train/Loss", keep=0.2), devices).with_file_checkpointer().resume()
    result = builder.build(line(3, 3), optax.sgd, 0.1, train_step=class_step, valid_step=class_step).fit(shuffled())
    return result, progress_of(directory, steps)["lanes"]


@pytest.mark.full
def test_halving_on_several_devices_resumes_on_one(tmp_path):
    """One member continues on two devices beside one that has ended, which keeps its state."""
    result, lanes = spread_halving(tmp_path / "run", 9, devices=2)
    (best,) = [member for member in result if member.stopped_by == "num_steps"]
    assert len(lanes) == 2
    assert best.index in lanes
    others = [model_bits(member.model) for member in result if member.index != best.index]
    # Within an epoch, the metrics so far have other lanes.
    for steps, devices, count in ((15, 1, 1), (21, MESH, 2), (24, 1, 1), (25, 2, 2)):
        result, lanes = spread_halving(tmp_path / "run", steps, devices)
        assert len(lanes) == count
        assert [model_bits(m.model) for m in result if m.index != best.index] == others
    assert lanes == [0, best.index] == [0, 3]
    whole, _ = spread_halving(tmp_path / "whole", 25, devices=1)
    np.testing.assert_allclose(
        result[best.index].history["train/Loss"], whole[best.index].history["train/Loss"], rtol=1e-5
    )
    np.testing.assert_allclose(result[best.index].model["w"], whole[best.index].model["w"], rtol=1e-5)


@pytest.mark.full
def test_halving_keeps_programs_that_cannot_shrink(tmp_path):
    """Two of four members continue on two devices, and then one of them, beside the other, which keeps its state."""
    results = []
    for devices in (1, 2):
        builder, build = lines(tmp_path / f"{devices}", lr=[0.3, 0.1, 0.001, 0.02])
        builder.halving("train/Loss").devices(devices).num_epochs(4).with_file_checkpointer()
        results.append(build(builder).fit(shuffled(), shuffled()))
    one, spread = results
    assert progress_of(tmp_path / "1", 24)["lanes"] == [3]
    assert progress_of(tmp_path / "2", 24)["lanes"] == [2, 3]
    assert [m.summary["epochs"] for m in spread] == [m.summary["epochs"] for m in one] == [1, 1, 2, 4]
    for member, expected in zip(spread, one, strict=True):
        np.testing.assert_allclose(member.history["valid/Loss"], expected.history["valid/Loss"], rtol=1e-5)
        np.testing.assert_allclose(member.model["w"], expected.model["w"], rtol=1e-5)


@pytest.mark.full
def test_members_that_exceed_the_device_memory_are_refused(tmp_path, monkeypatch):
    """A member has 12 parameters and gradients, 96 bytes, and less than 64 bytes of counters and keys: three fit."""
    monkeypatch.setattr(population_checks, "memory_limit", lambda device: 500)
    builder, build = lines(tmp_path / "run", lr=[0.1, 0.2, 0.3, 0.4])
    with raises_code("population-memory", members=4, most=3):
        build(builder).fit(shuffled())
    assert not (tmp_path / "run").exists()
    builder, build = lines(tmp_path / "run", lr=[0.1, 0.2, 0.3, 0.4])
    assert len(build(builder.devices(2).num_steps(1)).fit(shuffled())) == 4


def test_members_that_do_not_divide_over_the_devices_are_refused(tmp_path):
    builder, build = lines(tmp_path / "run", lr=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    with raises_code("population-unsupported", "[1, 2, 3]"):
        build(builder.devices(4))


def test_a_population_of_several_processes_is_refused(tmp_path, monkeypatch):
    """Without a strategy, too: `fit` chooses the default strategy of several processes."""
    monkeypatch.setattr(distributed_state(), "num_processes", 2)
    builder, build = lines(tmp_path / "run", lr=[0.1, 0.2])
    with raises_code("population-unsupported", what="trains in one process"):
        build(builder)


@pytest.mark.full
def test_a_population_without_finite_members_fails(tmp_path):
    builder, build = lines(tmp_path / "run", lr=[1e38, 2e38])
    with pytest.raises(NonFiniteError):
        build(builder).fit(shuffled())
