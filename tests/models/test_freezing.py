"""Tests of frozen parameters: no gradients, no optimizer state, unchanged bits."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

from learner import ClassificationOutput, LearnerBuilder, Linen, load_checkpoint
from learner.errors import LearnerError
from learner.models.adapters import adapter_of
from learner.models.freezing import trained_of
from learner.util.trees import named_leaves
from tests.support.codes import raises_code
from tests.support.runs import Net, batches, bits, build_line, line, line_step, quiet, shuffled, valid_data


@pytest.mark.full
def test_frozen_parameters_keep_their_bits_and_have_no_state(tmp_path):
    model = Net()
    learner = quiet(tmp_path / "run").num_epochs(2).freeze("^hidden", "norm").build(model, optax.adam, 0.01)
    paths = set(named_leaves(learner.init().opt_state))
    assert {path for path in paths if "kernel" in path} == {"0.mu.out.kernel", "0.nu.out.kernel"}
    result = learner.fit(shuffled(), valid_data())
    before, after = (named_leaves(nnx.as_pure(nnx.state(m, nnx.Param))) for m in (model, result.model))
    same = {path for path in before if np.array_equal(before[path], after[path])}
    assert same == {"hidden.kernel", "hidden.bias", "norm.scale", "norm.bias"}
    # The statistics of BatchNorm are not parameters: they are updated.
    assert not np.array_equal(model.norm.mean[...], result.model.norm.mean[...])
    log = (tmp_path / "run" / "experiment.log").read_text()
    assert "frozen: 24 parameters in 4 arrays" in log
    assert "15 parameters in 2 arrays" in log


@pytest.mark.full
def test_no_gradient_of_frozen_parameters_is_computed(tmp_path):
    backward = []

    @functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
    def watched(x, name):
        return x

    watched.defvjp(lambda x, name: (x, None), lambda name, _, g: (backward.append(name) or g,))

    def step(model, batch):
        logits = batch["x"] @ watched(model["w"], "w") @ watched(model["v"], "v")
        return ClassificationOutput.from_logits(logits, batch["y"])

    model = {"w": jnp.ones((3, 2)), "v": jnp.ones((2, 3))}
    quiet(tmp_path / "run").freeze("w").build(model, optax.sgd, 0.1, train_step=step).fit(batches())
    assert set(backward) == {"v"}


class Within:
    """A predicate of the paths that begin with a text."""

    def __init__(self, *names):
        self.names = names

    def __call__(self, path, array):
        return path.startswith(self.names) and array.ndim > 0


def test_a_predicate_may_be_an_object():
    plain = {name: {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)} for name in ("body", "head", "tail")}
    linear = lambda: nnx.Linear(2, 2, rngs=nnx.Rngs(0))  # noqa: E731
    for model in (plain, nnx.Dict(body=linear(), head=linear(), tail=linear())):
        trained = Within("body", "head")
        assert {*named_leaves(adapter_of(model, trained).params)} == {
            "body.kernel",
            "body.bias",
            "head.kernel",
            "head.bias",
        }
        assert {*named_leaves(adapter_of(model, trained_of(trained, ["^body"])).params)} == {"head.kernel", "head.bias"}


class Head(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(3, name="head")(linen.Dense(4, name="body")(x))


@pytest.mark.full
def test_linen_and_a_filter_of_nnx(tmp_path):
    module = Head()
    variables = module.init(jax.random.key(0), jnp.ones((1, 3)))
    step = lambda model, batch: ClassificationOutput.from_logits(model(batch["x"]), batch["y"])  # noqa: E731
    builder = quiet(tmp_path / "linen").freeze("^body")
    result = builder.build(Linen(module, variables), optax.sgd, 0.1, train_step=step).fit(batches())
    before, after = variables["params"], result.model.variables["params"]
    assert bits(before["body"]) == bits(after["body"])
    assert bits(before["head"]) != bits(after["head"])

    learner = quiet(tmp_path / "nnx").freeze("bias").build(Net(), optax.sgd, 0.1, trainable=nnx.PathContains("out"))
    assert list(named_leaves(learner.init().params)) == ["out.kernel"]
    learner = (
        quiet(tmp_path / "both")
        .freeze("bias")
        .build(Net(), optax.sgd, 0.1, trainable=lambda path, x: path.startswith("hidden"))
    )
    assert list(named_leaves(learner.init().params)) == ["hidden.kernel"]


@pytest.mark.parametrize(
    ("match", "message"),
    [
        ("hiden", "freeze: 'hiden' matches no parameter: did you mean"),
        (
            ".",
            r"nothing is left to train: freeze \('.'\) matches all parameters .*, hidden.bias, .*out.kernel: ",
        ),
        (re.compile("."), r"nothing is left to train: freeze \('.'\) matches all"),
        (re.compile("hiden"), "freeze: 'hiden' matches no parameter: did you mean"),
    ],
)
def test_patterns_that_match_nothing_or_everything(tmp_path, match, message):
    with pytest.raises(LearnerError, match=message):
        quiet(tmp_path / "run").freeze(match).build(Net(), optax.sgd, 0.1)


def test_freezing_everything_trainable(tmp_path):
    with pytest.raises(LearnerError, match=r"freeze \('\^out'\) matches all that trainable= selects"):
        quiet(tmp_path / "run").freeze("^out").build(Net(), optax.sgd, 0.1, trainable=nnx.PathContains("out"))


def test_compiled_expressions(tmp_path):
    learner = quiet(tmp_path / "run").freeze(re.compile("^HIDDEN|norm", re.I)).build(Net(), optax.sgd, 0.1)
    assert list(named_leaves(learner.init().params)) == ["out.bias", "out.kernel"]
    with raises_code("params-match-type"):
        LearnerBuilder("runs/a").freeze(re.compile(b"hidden"))


class Tied(nnx.Module):
    """The head is the embedding, and has its own bias."""

    def __init__(self):
        self.body = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
        self.head = nnx.Linear(3, 3, rngs=nnx.Rngs(1))
        self.head.kernel = self.body.kernel

    def train_step(self, batch):
        return ClassificationOutput.from_logits(self.head(self.body(batch["x"])), batch["y"])


@pytest.mark.parametrize("match", ["head.kernel", "^head", lambda path, x: path == "head.kernel"])
def test_shared_parameter_matches_by_its_first_path(tmp_path, match):
    with pytest.raises(LearnerError, match=r"holds twice: head\.kernel is body\.kernel\. Parameters are known by"):
        quiet(tmp_path / "run").freeze(match).build(Tied(), optax.sgd, 0.1)


@pytest.mark.parametrize("match", [("body.kernel",), ("kernel",), ("head.kernel", "body.kernel")])
def test_a_parameter_in_two_places_is_frozen_by_its_first_path(tmp_path, match):
    learner = quiet(tmp_path / "run").freeze(*match).build(Tied(), optax.sgd, 0.1)
    assert list(named_leaves(learner.init().params)) == ["body.bias", "head.bias"]


def test_a_module_in_two_places(tmp_path):
    module = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
    model = nnx.Dict(a=module, b=module)
    step = lambda model, batch: ClassificationOutput.from_logits(model.b(model.a(batch["x"])), batch["y"])  # noqa: E731
    with pytest.raises(LearnerError, match=r"holds twice: b\.bias is a\.bias, b\.kernel is a\.kernel"):
        quiet(tmp_path / "run").freeze("^b").build(model, optax.sgd, 0.1, train_step=step)


def test_statistics_are_no_parameters(tmp_path):
    with raises_code("params-pattern-unmatched", "freeze", "'norm.mean'"):
        quiet(tmp_path / "run").freeze("norm.mean").build(Net(), optax.sgd, 0.1)
    with pytest.raises(LearnerError, match="freeze: 'n' matches no parameter"):
        quiet(tmp_path / "run").freeze("n").build({"w": jnp.ones(2), "n": jnp.array(3)}, optax.sgd, 0.1)


@pytest.mark.full
def test_integers_of_a_model_are_not_called_frozen(tmp_path):
    model = {**line(), "n": jnp.array(1)}
    build = quiet(tmp_path / "run").build
    build(model, optax.sgd, 0.05, train_step=line_step).fit(batches())
    assert "frozen" not in (tmp_path / "run" / "experiment.log").read_text()


def test_predicates_see_arrays_and_calls_add_up(tmp_path):
    flat = lambda path, x: isinstance(x, jax.Array) and x.ndim == 1  # noqa: E731
    learner = quiet(tmp_path / "run").freeze(flat).freeze("^out").build(Net(), optax.sgd, 0.1)
    assert list(named_leaves(learner.init().params)) == ["hidden.kernel"]


def test_custom_updates_cannot_be_frozen(tmp_path):
    update = lambda model, batch, lr, rng: (model, None)  # noqa: E731
    with pytest.raises(LearnerError, match="update= sets the parameters itself, so freeze has no effect"):
        quiet(tmp_path / "run").freeze("w").build({"w": jnp.ones(2)}, None, 0.1, update=update)


@pytest.mark.full
def test_the_optimizers_state_of_a_frozen_run_is_read(tmp_path):
    builder = quiet(tmp_path / "run", saves=True).freeze("^b")
    build_line(builder, optimizer=optax.adam).fit(batches())
    loaded = load_checkpoint(tmp_path / "run", "latest", line(), optimizer=optax.adam, freeze="^b")
    assert list(named_leaves(loaded.optimizer_state)) == ["0.count", "0.mu.w", "0.nu.w"]
    with raises_code("checkpoint-model-differs"):
        load_checkpoint(tmp_path / "run", "latest", line(), optimizer=optax.adam)


def test_wrong_patterns():
    with raises_code("params-pattern-malformed"):
        LearnerBuilder("runs/a").freeze("(")
    with raises_code("params-predicate-signature", "<lambda>"):
        LearnerBuilder("runs/a").freeze(lambda path: True)


@pytest.mark.full
def test_frozen_run_is_resumed(tmp_path):
    make = lambda name, n: quiet(tmp_path / name, saves=True).num_epochs(n).freeze("b")  # noqa: E731
    build_line(make("run", 1)).fit(batches())
    resumed = build_line(make("run", 2).resume()).fit(batches())
    whole = build_line(make("whole", 2)).fit(batches())
    assert bits(resumed.model) == bits(whole.model)
    assert bits(resumed.model["b"]) == bits(line()["b"])
