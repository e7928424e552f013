"""Tests of checkpoints outside their run: loaded models, custom loops, and the start of another run."""

import json
import os
import platform
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

from learner import Interrupter, LearnerBuilder, Linen, RegressionOutput, load_checkpoint
from learner.checkpoint import DamagedError, load
from learner.events import Listener, Message
from learner.models.adapters import adapter_of
from learner.optimizers import Ema
from learner.util.trees import named_leaves
from tests.support.codes import raises_code
from tests.support.runs import (
    STEPS,
    Net,
    batches,
    bits,
    build_line,
    build_net,
    checkpoint_bits,
    line,
    line_step,
    model_bits,
    progress_of,
    quiet,
    saved_steps,
    scripted,
    shuffled,
    tamper,
    tree_of,
    valid_data,
)
from tests.support.small_models import BATCH, CASES, LinenNet, assert_equal_arrays, copied, other_batch
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("compiled_once")

KINDS = {case.name: case for case in CASES}
SOME = [
    pytest.param(case, id=case.name, marks=[] if case.name == "equinox_state" else pytest.mark.full) for case in CASES
]


def damage(directory, step, name="state/_METADATA"):
    """Flip one bit of a file of a checkpoint."""
    path = directory / "checkpoint" / str(step) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def saving(directory, epochs=3, **options):
    builder = quiet(directory, **options).num_epochs(epochs)
    return builder.with_file_checkpointer(keep_last=epochs, keep_best=0)


def train(builder, case, epochs=2):
    learner = builder.num_epochs(epochs).build(case.make(), optax.adamw, 0.05, **case.steps)
    return learner.fit([other_batch(1), other_batch(2)])


@pytest.fixture(scope="module")
def trained(tmp_path_factory, compiled_once):
    """Return a run of each kind of model, and its result. Tests do not change them."""
    runs = {}

    def of(case):
        if case.name not in runs:
            directory = tmp_path_factory.mktemp(case.name) / "run"
            runs[case.name] = directory, train(saving(directory), case)
        return runs[case.name]

    return of


@pytest.fixture(scope="module")
def three(tmp_path_factory, compiled_once):
    """A run of three epochs whose second one is the best; its model does not change, its optimizer counts."""
    directory = tmp_path_factory.mktemp("three") / "run"
    build_line(saving(directory), 0.0, optax.adam).fit(batches(), scripted(0.5625, 0.25, 1.0))
    return directory


@pytest.fixture(scope="module")
def one(tmp_path_factory, compiled_once):
    """A run of one epoch of the linear model."""
    directory = tmp_path_factory.mktemp("one") / "run"
    build_line(saving(directory, 1), 0.1).fit(batches())
    return directory


@pytest.fixture
def three_copied(three, tmp_path):
    shutil.copytree(three, tmp_path / "three")
    return tmp_path / "three"


@pytest.fixture(scope="module")
def net(tmp_path_factory, compiled_once):
    """A trained net."""
    directory = tmp_path_factory.mktemp("net") / "run"
    build_net(saving(directory, 2)).fit(shuffled(), valid_data())
    return directory


# -- what comes back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SOME)
def test_loaded_model_equals_the_saved_one(trained, case):
    directory, result = trained(case)
    given = case.make()
    before = copied(case.arrays(given))
    loaded = load_checkpoint(directory, "latest", given)
    assert_equal_arrays(case.arrays(loaded.model), case.arrays(result.model))
    assert type(loaded.model) is type(given)
    assert case.in_eval(loaded.model)
    assert_equal_arrays(case.arrays(given), before)


@pytest.mark.parametrize("case", SOME)
def test_arrays_by_path_equal_orbax(trained, case):
    directory, _ = trained(case)
    loaded = load_checkpoint(directory, "latest")
    assert loaded.model is None
    assert loaded.optimizer_state is None
    saved = checkpoint_bits(directory, loaded.step)
    for item, part in (("model", "params"), ("model", "model_state"), ("optim", "opt_state")):
        arrays = getattr(loaded, part)
        assert all(isinstance(x, np.ndarray) for x in arrays.values())
        expected = {key: x for key, x in saved[item].items() if key.startswith(f"['{part}']")}
        assert bits({part: arrays}) == expected
    adapter = adapter_of(case.make())
    assert len(loaded.params) == len(jax.tree.leaves(adapter.params))
    assert len(loaded.model_state) == len(jax.tree.leaves(adapter.model_state))


@pytest.mark.full
def test_streams_in_the_state_of_earlier_versions_are_ignored(tmp_path):
    """Earlier versions saved the random streams of nnx modules in a dict, under the paths of this dict of arrays."""
    kernel, stream = jnp.full((3, 2), 0.25), {"key": {"value": jnp.uint32([1, 2])}, "count": {"value": jnp.uint32(3)}}
    earlier = {
        "head": {"bias": {"value": jnp.zeros(2)}, "kernel": {"value": kernel}},
        "drop": {"rngs": stream},
    }

    def earlier_step(model, batch):
        weights = jax.tree.leaves(model["head"])
        return RegressionOutput.from_predictions(batch["x"] @ weights[1] + weights[0][None], batch["y"])

    def step(model, batch):
        return RegressionOutput.from_predictions(model["drop"](model["head"](batch["x"])), batch["y"])

    def fit(model, fn, builder):
        learner = builder.build(model, optax.sgd, 0.0, train_step=fn, valid_step=fn)
        return learner.fit([BATCH], [BATCH]).model

    fit(earlier, earlier_step, saving(tmp_path / "run", 1))
    modules = {"head": nnx.Linear(3, 2, rngs=nnx.Rngs(0)), "drop": nnx.Dropout(0.5, rngs=nnx.Rngs(1))}
    of_file = load_checkpoint(tmp_path / "run", "latest", modules).model
    started = fit(modules, step, quiet(tmp_path / "started").num_epochs(1).initial_from(tmp_path / "run"))
    resumed = fit(modules, step, saving(tmp_path / "run", 2).resume())
    for model in (of_file, started, resumed):
        np.testing.assert_array_equal(model["head"].kernel[...], kernel)
    assert "drop.rngs.key.value" not in load_checkpoint(tmp_path / "run", 2).model_state


def test_selection_of_the_checkpoint(three):
    def facts(which=None, **named):
        loaded = load_checkpoint(three, **({} if which is None else {"which": which}), **named)
        assert loaded.opt_state["0.count"] == loaded.step
        assert loaded.path == str(three / "checkpoint" / str(loaded.step))
        return loaded.epoch, loaded.step, loaded.score

    assert facts() == facts("best") == facts(2) == facts(step=2 * STEPS) == (2, 2 * STEPS, 0.25)
    assert facts("latest") == facts(3) == (3, 3 * STEPS, 1.0)
    assert facts(1) == facts("latest", step=STEPS) == (1, STEPS, 0.5625)


def test_loaded_properties(three):
    loaded = load_checkpoint(three, 2)
    assert loaded.monitor == "valid/Loss"
    assert loaded.history["valid/Loss"] == [0.5625, 0.25]  # not yet the third epoch's
    assert loaded.config is None
    assert loaded.lr_scale == 0.0
    assert "array" not in repr(loaded)


@pytest.mark.full
def test_inside_an_epoch(tmp_path):
    stop = Interrupter()
    builder = quiet(tmp_path / "run", saves=True).interrupter(stop).every(2, lambda info, model: stop.stop("enough"))
    build_line(builder).fit(batches())
    loaded = load_checkpoint(tmp_path / "run", "latest")
    assert (loaded.epoch, loaded.step, loaded.score) == (None, 2, None)


@pytest.mark.full
def test_names_that_are_not_file_names(tmp_path):
    def step(model, batch):
        return line_step({"w": model["a/b"], "b": model["100%"]}, batch)

    make = lambda: {"a/b": jnp.zeros((3, 1)), "100%": jnp.zeros((1,))}  # noqa: E731
    learner = saving(tmp_path / "run", 1).build(make(), optax.sgd, 0.1, train_step=step)
    result = learner.fit(batches())
    loaded = load_checkpoint(tmp_path / "run", "latest", make())
    assert bits(loaded.params) == bits(result.model) == bits(loaded.model)
    again = quiet(tmp_path / "new").initial_from(tmp_path / "run").build(make(), optax.sgd, 0.1, train_step=step)
    assert bits(again.init().params) == bits(result.model)


@pytest.mark.full
def test_model_may_be_a_function(net):
    model = load_checkpoint(net, "latest", Net).model
    assert model_bits(model) == model_bits(load_checkpoint(net, "latest", Net()).model)


@pytest.mark.full
def test_partly_trained_model(net, tmp_path):
    """Its other parameters were carried; a parameter's place in the state is not a difference."""
    directory = tmp_path / "run"
    learner = saving(directory, 1).build(Net(), optax.sgd, 0.1, trainable=lambda path, x: path.startswith("out"))
    result = learner.fit(batches())
    loaded = load_checkpoint(directory, "latest", Net(seed=8))
    assert set(loaded.params) == {"out.kernel", "out.bias"}
    streams = nnx.Not(nnx.RngState)
    assert bits(nnx.as_pure(nnx.state(loaded.model, streams))) == bits(nnx.as_pure(nnx.state(result.model, streams)))


# -- where they lie ----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_checkpoints_in_another_directory(tmp_path):
    builder = quiet(tmp_path / "run").num_epochs(2).with_file_checkpointer(directory=str(tmp_path / "far"))
    result = build_line(builder).fit(batches())
    for place in (tmp_path / "far", str(tmp_path / "far")):
        assert bits(load_checkpoint(place, "latest", line()).model) == bits(result.model)
    with raises_code("checkpoint-missing", directory=str(tmp_path / "run"), elsewhere=str(tmp_path / "far")):
        load_checkpoint(tmp_path / "run")


def test_the_directory_of_the_checkpoints_itself_and_a_relative_path(three, monkeypatch):
    monkeypatch.chdir(three.parent)
    for place in ("run", "run/checkpoint", three / "checkpoint"):
        assert load_checkpoint(place, 1).step == STEPS


def test_missing_checkpoints(three, tmp_path):
    with raises_code("checkpoint-directory-missing", directory=str(tmp_path / "nowhere")):
        load_checkpoint(tmp_path / "nowhere")
    with raises_code("checkpoint-missing", directory=str(tmp_path), elsewhere=None):
        load_checkpoint(tmp_path)
    with raises_code("checkpoint-directory-is-one"):
        load_checkpoint(three / "checkpoint" / "12")
    known = "step 6 (epoch 1), step 12 (epoch 2), step 18 (epoch 3)"
    with raises_code("checkpoint-not-found", name="the end of epoch 7", known=known):
        load_checkpoint(three, np.int64(7))
    with raises_code("checkpoint-not-found", name="step 7"):
        load_checkpoint(three, step=7)
    with raises_code("params-match-type", "5"):
        load_checkpoint(three, "latest", line(), freeze=5)


def test_a_model_in_place_of_which(tmp_path):
    with raises_code("checkpoint-which-unknown", "model=") as raised:
        load_checkpoint(tmp_path, {"w": jnp.zeros((100, 3))})
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    ("arguments", "named", "code", "fields"),
    [
        (("",), {}, "checkpoint-directory-type", {"directory": ""}),
        ((None,), {}, "checkpoint-directory-type", {"directory": None}),
        (("a", "newest"), {}, "checkpoint-which-unknown", {"which": "newest"}),
        (("a", 0), {}, "checkpoint-which-unknown", {"which": 0}),
        (("a", True), {}, "checkpoint-which-unknown", {"which": True}),
        (("a",), {"step": -1}, "checkpoint-step-value", {"value": -1}),
        (("a",), {"optimizer": optax.sgd}, "checkpoint-model-missing", {}),
    ],
)
def test_wrong_names_of_a_checkpoint(arguments, named, code, fields):
    with raises_code(code, **fields):
        load_checkpoint(*arguments, **named)


# -- what does not fit, and what is damaged ----------------------------------------------------------------------------


def test_another_model_is_one_error_that_lists_all(three):
    other = {"w": jnp.zeros((3, 2)), "b": jnp.zeros((1,), jnp.bfloat16), "c": jnp.zeros(2)}
    with raises_code("checkpoint-model-differs", count=8) as error:
        load_checkpoint(three, "latest", other, optimizer=optax.sgd)
    for text in (
        f"{three}/checkpoint/18",
        "params/w: saved float32[3, 1], now float32[3, 2]",
        "params/b: saved float32[1], now bfloat16[1]",
        "params/c: saved nothing, now float32[2]",
        "opt_state/0.count: saved int32[], now nothing",
        "Give model=, optimizer=, trainable= and freeze= as they were for that run",
    ):
        assert text in str(error.value)


def test_invalid_optimizer(three):
    with raises_code("optimizer-type"):
        load_checkpoint(three, "latest", line(), optimizer=optax.adam(0.1))


@pytest.mark.parametrize(("which", "step"), [("latest", 18), ("best", 12), (1, 6)])
def test_requested_checkpoint_is_damaged(three_copied, which, step):
    damage(three_copied, step)
    others = ", ".join(f"step={s} (epoch {s // STEPS})" for s in (6, 12, 18) if s != step)
    with raises_code("checkpoint-damaged", step=step, others=f"there are also {others}") as error:
        load_checkpoint(three_copied, which)
    assert isinstance(error.value, DamagedError)
    assert "state/_METADATA" in str(error.value)
    for other in {6, 12, 18} - {step}:
        assert load_checkpoint(three_copied, step=other).step == other


def test_checkpoint_with_a_damaged_manifest(three_copied):
    damage(three_copied, 12, "manifest.json")
    for which, doubt in (("best", "may be the requested one (best)"), (2, "the requested one (epoch 2)")):
        with raises_code("checkpoint-damaged", step=12) as error:
            load_checkpoint(three_copied, which)
        assert doubt in str(error.value)
    assert load_checkpoint(three_copied, "latest").step == 18
    assert load_checkpoint(three_copied, 1).step == 6
    damage(three_copied, 18, "manifest.json")
    with raises_code("checkpoint-damaged", step=18, others="there are also step=6 (epoch 1)"):
        load_checkpoint(three_copied, "latest")


def test_claimed_sizes_beyond_memory(three, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: 5)
    with raises_code("checkpoint-too-large", needed=76, room=25):
        load_checkpoint(three)


@pytest.mark.parametrize("version", [None, "1", [1], {}, True, 1.0])
def test_invalid_format_version(three_copied, version):
    tamper(three_copied, 18, {**progress_of(three_copied, 18), "format": version})
    with raises_code("checkpoint-damaged", step=18) as error:
        load_checkpoint(three_copied, "latest")
    assert "the format" in str(error.value)


def test_invalid_items(three_copied):
    """With matching checksums."""
    progress = json.loads((three_copied / "checkpoint/18/progress/metadata").read_text())
    (three_copied / "checkpoint/18/state/_METADATA").write_text("[]")
    tamper(three_copied, 18, progress)
    with raises_code("checkpoint-damaged", step=18):
        load_checkpoint(three_copied, "latest")


# -- a loop of one's own -----------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_loop_by_hand_continues_as_resume_does(tmp_path):
    directory = tmp_path / "run"
    build_line(saving(directory), 0.05, optax.adam).fit(batches())
    loaded = load_checkpoint(directory, 2, line(), optimizer=optax.adam)

    optimizer, stacked = optax.adam(loaded.lr_scale), jax.tree.map(lambda *x: np.stack(x), *batches())

    @jax.jit
    def train(params, opt_state, stacked, count):  # a loop as the run's own; op by op, last bits differ
        def body(i, carry):
            params, opt_state = carry
            batch = jax.tree.map(lambda x: x[i], stacked)
            grads = jax.grad(lambda p: line_step(p, batch).loss)(params)
            with jax.numpy_dtype_promotion("standard"):
                updates, opt_state = optimizer.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state

        return jax.lax.fori_loop(0, count, body, (params, opt_state))

    params, opt_state = train(loaded.model, loaded.optimizer_state, stacked, jnp.int32(STEPS))
    end = load_checkpoint(directory, 3, line(), optimizer=optax.adam)
    assert int(opt_state[0].count) == int(end.optimizer_state[0].count) == 3 * STEPS
    if platform.machine() == "x86_64" and jax.default_backend() == "cpu":
        assert bits(params) == bits(end.model)
        assert bits(opt_state) == bits(end.optimizer_state)
    np.testing.assert_array_max_ulp(np.asarray(params["w"]), np.asarray(end.model["w"]), maxulp=10)


@pytest.mark.parametrize("case", SOME)
def test_the_optimizers_state_has_its_own_structure(trained, case):
    directory, _ = trained(case)
    state = load_checkpoint(directory, "latest", case.make(), optimizer=optax.adamw).optimizer_state
    fresh = optax.adamw(0.05).init(adapter_of(case.make()).params)
    assert jax.tree.structure(state) == jax.tree.structure(fresh)
    assert int(state[0].count) == 4


# -- the start of another run ------------------------------------------------------------------------------------------


class Messages(Listener):
    def __init__(self):
        self.found = []

    def on_event(self, event):
        if isinstance(event, Message):
            self.found.append((event.level, event.text))


class Wider(Net):
    """The net with a head for five classes."""

    def __init__(self, seed=1):
        super().__init__(seed)
        self.out = nnx.Linear(4, 5, rngs=nnx.Rngs(seed))


def log_of(directory):
    return (directory / "experiment.log").read_text()


@pytest.mark.parametrize("case", SOME)
def test_a_run_begins_with_the_model_of_another(trained, tmp_path, case):
    directory, _ = trained(case)
    builder = quiet(tmp_path / "new").seed(5).initial_from(directory, "latest")
    state = builder.build(case.make(), optax.adamw, 0.1, **case.steps).init()
    fresh = quiet(tmp_path / "new").seed(5).build(case.make(), optax.adamw, 0.1, **case.steps).init()
    loaded = load_checkpoint(directory, "latest")
    assert bits(named_leaves(state.params)) == bits(loaded.params)
    assert bits(named_leaves(state.model_state)) == bits(loaded.model_state)
    assert jax.tree.structure(state) == jax.tree.structure(fresh)
    for part in ("step", "opt_state", "lr_scale", "rng", "extra"):
        assert bits(getattr(state, part)) == bits(getattr(fresh, part))
    assert bits(state.params) != bits(fresh.params)


@pytest.mark.parametrize("name", some(["nnx", "linen", "equinox", "dict"], {"linen"}))
@pytest.mark.full
def test_fine_tuning_of_the_head_alone(trained, tmp_path, name):
    """Parameters that were trained are carried now; all of them still exist."""
    case = KINDS[name]
    directory, before = trained(case)
    builder = quiet(tmp_path / "new").initial_from(directory, "latest")
    head = lambda path, x: case.head in path  # noqa: E731
    learner = builder.build(case.make(), optax.sgd, 0.0, trainable=head, **case.steps)
    result = learner.fit([other_batch(3)])
    names = [name for name in case.arrays(result.model) if name not in case.statistics]
    expected = case.arrays(before.model)
    assert_equal_arrays({n: case.arrays(result.model)[n] for n in names}, {n: expected[n] for n in names})


@pytest.mark.full
def test_training_starts_from_the_loaded_parameters(net, tmp_path):
    """The first step of the new run is one of the pure function on the other's parameters."""
    messages = Messages()
    builder = quiet(tmp_path / "new").num_steps(1).initial_from(net, "latest").metric_loggers(messages)
    learner = builder.build(Net(seed=8), optax.sgd, 0.1)
    state, _ = jax.jit(learner.train_step)(learner.init(), batches()[0])
    result = learner.fit(batches())
    expected = bits(state.params)
    assert bits(nnx.as_pure(nnx.state(result.model, nnx.Param))) == expected
    took = f"took 8 of 8 arrays from the checkpoint {net}/checkpoint/12"
    assert messages.found == [(20, took)]
    assert took in log_of(tmp_path / "new")
    assert "not restored" not in log_of(tmp_path / "new")


@pytest.mark.full
def test_initial_model_before_the_first_step(net, tmp_path):
    data = valid_data()
    new = quiet(tmp_path / "new").initial_from(net).build(Net(seed=8), optax.sgd, 0.1)
    assert new.evaluate(data)["Loss"] == load_checkpoint(net, "best").score


@pytest.mark.full
def test_strict_requires_all_arrays(net, one, tmp_path):
    builder = quiet(tmp_path / "new").initial_from(net)
    with raises_code("checkpoint-model-differs", count=2) as error:
        builder.build(Wider(), optax.sgd, 0.1)
    for text in (
        "params/out.kernel: saved float32[4, 3], now float32[4, 5]",
        "params/out.bias: saved float32[3], now float32[5]",
        "initial_from(directory, partial=True) takes what has the same path and shape",
    ):
        assert text in str(error.value)
    assert list(tmp_path.iterdir()) == []
    with raises_code("checkpoint-model-differs", count=1) as error:
        build_part(quiet(tmp_path / "new").initial_from(one))
    assert "; 1 array differs:" in str(error.value)
    assert "params/b: saved float32[1], now nothing" in str(error.value)


def build_part(builder):
    return builder.build({"w": jnp.zeros((3, 1))}, optax.sgd, 0.1, train_step=lambda m, b: None)


@pytest.mark.full
def test_a_head_of_another_width(net, tmp_path):
    messages = Messages()
    builder = quiet(tmp_path / "new").initial_from(net, "latest", partial=True).metric_loggers(messages)
    learner = builder.build(Wider(), optax.sgd, 0.1)
    state, given = learner.init(), adapter_of(Wider()).params
    loaded = load_checkpoint(net, "latest")
    assert bits(state.params["out"]) == bits(given["out"])
    for layer, name in (("hidden", "kernel"), ("hidden", "bias"), ("norm", "scale"), ("norm", "bias")):
        assert bits(state.params[layer][name]) == bits(loaded.params[f"{layer}.{name}"])
    assert bits(state.model_state["norm"]["mean"]) == bits(loaded.model_state["norm.mean"])
    learner.fit(batches())
    line = f"took 6 of 8 arrays from the checkpoint {net}/checkpoint/12"
    assert messages.found == [(20, line)]
    for text in (
        line,
        "  not restored: params/out.bias: float32[3] there, float32[5] here",
        "  not restored: params/out.kernel: float32[4, 3] there, float32[4, 5] here",
    ):
        assert f"{text}\n" in log_of(tmp_path / "new")


@pytest.mark.full
@pytest.mark.parametrize("freeze", ["v", "w"])
def test_frozen_parameters_that_stay_random_are_a_warning_if_arrays_are_unused(freeze, one, tmp_path):
    model = {"v": jnp.ones((3, 1)), "w": jnp.ones((3, 1))}
    step = lambda model, batch: line_step({"w": model["w"] + model["v"], "b": jnp.zeros(1)}, batch)  # noqa: E731
    messages = Messages()
    builder = quiet(tmp_path / "new").initial_from(one, partial=True).freeze(freeze).metric_loggers(messages)
    builder.build(model, optax.sgd, 0.1, train_step=step).fit(batches())
    warnings = [text for level, text in messages.found if level > 20]
    assert [("initialised (v)" in text, "b unused" in text, "rename=" in text) for text in warnings] == (
        [(True, True, True)] if freeze == "v" else []
    )


def test_arrays_on_one_side_only(one, tmp_path):
    model = {"w": jnp.ones((3, 1)), "c": jnp.ones((1,))}
    step = lambda model, batch: line_step({"w": model["w"], "b": model["c"]}, batch)  # noqa: E731
    builder = quiet(tmp_path / "new").initial_from(one, partial=True)
    learner = builder.build(model, optax.sgd, 0.1, train_step=step)
    assert bits(learner.init().params["c"]) == bits(model["c"])
    learner.fit(batches())
    log = log_of(tmp_path / "new")
    assert f"took 1 of 2 arrays from the checkpoint {one}/checkpoint/6; 1 array of it unused\n" in log
    assert "  not restored: params/c: not in the checkpoint\n" in log
    assert "  unused: params/b\n" in log


@pytest.mark.parametrize("partial", [False, True])
def test_checkpoint_of_a_part(one, tmp_path, partial):
    model = {"body": line(), "c": jnp.ones((1,))}
    step = lambda model, batch: line_step(model["body"], batch)  # noqa: E731
    builder = quiet(tmp_path / "new").initial_from(one, partial=partial)
    with raises_code("checkpoint-of-part", part="body"):
        builder.build(model, optax.sgd, 0.1, train_step=step).init()
    with raises_code("checkpoint-of-part", part="body"):
        load_checkpoint(one, "latest", model)
    model["body"] = load_checkpoint(one, "latest", line()).model
    params = quiet(tmp_path / "new").build(model, optax.sgd, 0.1, train_step=step).init().params
    assert bits(params["body"]) == bits(load_checkpoint(one, "latest").params)


# -- under other paths -------------------------------------------------------------------------------------------------


class Around(nnx.Module):
    """A net within another model."""

    def __init__(self, seed=1, head=3):
        self.encoder = Net(seed)
        self.encoder.out = nnx.Linear(4, head, rngs=nnx.Rngs(seed))

    def train_step(self, batch):
        return self.encoder.train_step(batch)


def renamed(directory, source, *rules, **options):
    return quiet(directory).initial_from(source, "latest", rename=rules, **options)


@pytest.mark.full
def test_a_model_begins_as_the_part_of_another(net, tmp_path):
    """All arrays, including statistics, are loaded, and none of the new model's values remain."""
    learner = renamed(tmp_path / "new", net, ("^", "encoder.")).num_steps(1).build(Around(), optax.sgd, 0.1)
    state, loaded = learner.init(), load_checkpoint(net, "latest")
    for part in ("params", "model_state"):
        expected = {f"encoder.{name}": x for name, x in getattr(loaded, part).items()}
        assert bits(named_leaves(getattr(state, part))) == bits(expected)
    learner.fit(batches())
    assert "  renamed: params/hidden.kernel -> params/encoder.hidden.kernel\n" in log_of(tmp_path / "new")
    assert "  renamed: model_state/norm.mean -> model_state/encoder.norm.mean\n" in log_of(tmp_path / "new")


def test_a_part_of_a_checkpoint_begins_under_another_path(one, tmp_path):
    model = {"a": jnp.ones((3, 1)), "b": jnp.full((1,), 3.0)}
    step = lambda model, batch: line_step({"w": model["a"], "b": model["b"]}, batch)  # noqa: E731
    builder = renamed(tmp_path / "new", one, ("^b$", "c"), ("^w$", "b"), ("^b$", "a"), partial=True)
    with raises_code("checkpoint-rename-without-target", old="b", new="c"):
        builder.build(model, optax.sgd, 0.1, train_step=step)
    builder = renamed(tmp_path / "new", one, ("^w$", "a"), partial=True)
    params = builder.build(model, optax.sgd, 0.1, train_step=step).init().params
    saved = load_checkpoint(one, "latest").params
    assert bits(params) == bits({"a": saved["w"], "b": saved["b"]})


@pytest.mark.full
def test_collections_of_linen_keep_their_names(trained, tmp_path):
    directory, _ = trained(KINDS["linen"])
    module = LinenAround()
    model = Linen(module, module.init(jax.random.key(1), jnp.ones((1, 3)), train=False))
    builder = renamed(tmp_path / "new", directory, ("^", "encoder."))
    state = builder.build(model, optax.sgd, 0.1, **KINDS["linen"].steps).init()
    loaded = load_checkpoint(directory, "latest")
    assert bits(named_leaves(state.params)) == bits({f"encoder.{path}": x for path, x in loaded.params.items()})
    statistics = {path.replace("batch_stats.", "batch_stats.encoder."): x for path, x in loaded.model_state.items()}
    assert bits(named_leaves(state.model_state)) == bits(statistics)


class LinenAround(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return LinenNet(name="encoder")(x, train)


@pytest.mark.full
def test_mismatch_of_renamed_arrays_has_both_names(net, tmp_path):
    with raises_code("checkpoint-model-differs", count=2) as error:
        renamed(tmp_path / "new", net, ("^", "encoder.")).build(Around(head=5), optax.sgd, 0.1)
    line = "params/encoder.out.bias (renamed from params/out.bias): saved float32[3], now float32[5]"
    assert line in str(error.value)
    builder = renamed(tmp_path / "new", net, ("^", "encoder."), partial=True).num_steps(1)
    builder.build(Around(head=5), optax.sgd, 0.1).fit(batches())
    line = "  not restored: params/encoder.out.bias: float32[3] there (params/out.bias), float32[5] here\n"
    assert line in log_of(tmp_path / "new")


@pytest.mark.parametrize(
    ("rules", "code", "message"),
    [
        ([("^hiden", "encoder.hidden")], "record-rename-malformed", "matches no path of the checkpoint"),
        ([("^", "encodr.")], "checkpoint-rename-without-target", "did you mean 'encoder."),
        ([("^", "encoder."), ("[.]hidden[.]", ".out.")], "record-rename-collides", "'hidden.bias' and 'out.bias'"),
    ],
)
def test_rules_without_effect(net, tmp_path, rules, code, message):
    for partial in (False, True):
        with raises_code(code, message):
            renamed(tmp_path / "new", net, *rules, partial=partial).build(Around(), optax.sgd, 0.1)
    assert list(tmp_path.iterdir()) == []


def test_the_state_of_an_optimizer_without_averages_stays_on_the_host(three, monkeypatch):
    placed, on_device = [], load._on_device
    monkeypatch.setattr(load, "_on_device", lambda arrays: placed.extend(arrays) or on_device(arrays))
    loaded = load_checkpoint(three, "latest", line())
    assert sorted(placed) == sorted(loaded.params)
    assert [name for name in loaded.opt_state if "mu" in name.split(".")]


@pytest.mark.full
def test_averages_under_other_paths_and_of_frozen_models(tmp_path):
    build_line(saving(tmp_path / "run", 1), 0.1, Ema(optax.sgd, decay=0.5)).fit(batches())
    averages = load_checkpoint(tmp_path / "run", "latest", line()).model
    assert bits(averages) != bits(load_checkpoint(tmp_path / "run", "latest").params)
    model = {"line": line()}
    step = lambda model, batch: line_step(model["line"], batch)  # noqa: E731
    builder = renamed(tmp_path / "new", tmp_path / "run", ("^", "line.")).freeze("w$")
    state = builder.build(model, optax.sgd, 0.1, train_step=step).init()
    arrays = named_leaves((state.params, state.model_state))
    expected = [averages[name] for name in ("b", "w")]
    assert bits(list(arrays.values())) == bits(expected)


def test_no_matching_array(net, tmp_path):
    with raises_code("checkpoint-nothing-fits") as error:
        build_line(quiet(tmp_path / "new").initial_from(net, partial=True))
    for text in ("params/w: not in the checkpoint", "params/out.kernel: unused"):
        assert text in str(error.value)


def test_floats_of_another_precision(one, tmp_path):
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), line())
    with raises_code("checkpoint-model-differs", count=2) as error:
        quiet(tmp_path / "new").initial_from(one).build(half, optax.sgd, 0.1, train_step=line_step)
    assert "params/w: saved float32[3, 1], now bfloat16[3, 1]" in str(error.value)
    builder = quiet(tmp_path / "new").initial_from(one, partial=True)
    params = builder.build(half, optax.sgd, 0.1, train_step=line_step).init().params
    saved = load_checkpoint(one, "latest").params
    assert bits(params) == bits({name: x.astype(jnp.bfloat16) for name, x in saved.items()})
    assert np.any(saved["w"] != 0)


@pytest.mark.full
def test_numbers_do_not_become_floats(tmp_path):
    source, saved = tmp_path / "line", {**line(), "n": jnp.int32([3])}
    saving(source, 1).build(saved, optax.sgd, 0.1, train_step=line_step).fit(batches())
    builder = quiet(tmp_path / "new").initial_from(source, partial=True)
    learner = builder.build({**line(), "n": jnp.float32([0.5])}, optax.sgd, 0.1, train_step=line_step)
    assert learner.init().params["n"] == 0.5


@pytest.mark.full
def test_nan_is_rejected(tmp_path):
    source = tmp_path / "line"
    builder = saving(source, 1).on_nonfinite("ignore")
    build_line(builder, lambda step: jnp.where(step < 1, jnp.float32(0), jnp.float32(jnp.nan))).fit(batches())
    with raises_code("model-initial-nonfinite") as error:
        build_line(quiet(tmp_path / "new").initial_from(source, "latest"))
    assert "b, w" in str(error.value)


# -- when it is read ---------------------------------------------------------------------------------------------------


def test_missing_other_run(tmp_path):
    for builder in (quiet(tmp_path / "new"), quiet(tmp_path / "new").resume()):
        with raises_code("checkpoint-directory-missing", directory=str(tmp_path / "nowhere")):
            build_line(builder.initial_from(tmp_path / "nowhere")).fit(batches())
    assert list(tmp_path.iterdir()) == []


def test_damaged_checkpoint_is_rejected(three_copied, tmp_path):
    damage(three_copied, 12)
    with raises_code("checkpoint-damaged", step=12):
        build_line(quiet(tmp_path / "new").initial_from(three_copied))
    assert build_line(quiet(tmp_path / "new").initial_from(three_copied, step=6)).init().step == 0


@pytest.mark.full
def test_a_resumed_run_uses_its_own_checkpoint(net, tmp_path):
    def builder(epochs):
        return saving(tmp_path / "new", epochs).resume().initial_from(tmp_path / "other", "latest")

    shutil.copytree(net, tmp_path / "other")
    build_net(builder(1)).fit(shuffled())  # there is nothing to resume yet
    assert f"took 8 of 8 arrays from the checkpoint {tmp_path}/other/checkpoint/12" in log_of(tmp_path / "new")
    shutil.rmtree(tmp_path / "other")
    resumed = build_net(builder(2)).fit(shuffled())
    assert log_of(tmp_path / "new").count("took 8 of 8") == 1
    ignored = "initial_from is ignored: the run resumes from its own checkpoint"
    assert log_of(tmp_path / "new").count(ignored) == 1
    whole = build_net(saving(tmp_path / "whole", 2).initial_from(net, "latest")).fit(shuffled())
    assert model_bits(resumed.model) == model_bits(whole.model)


@pytest.mark.full
def test_a_run_that_ended_before_its_first_checkpoint_begins_there_again(one, tmp_path):
    source = one
    build_line(quiet(tmp_path / "new")).fit(batches())
    assert saved_steps(tmp_path / "new") == []
    result = build_line(saving(tmp_path / "new", 1).resume().initial_from(source), lr=0.0).fit(batches())
    assert bits(result.model) == bits(load_checkpoint(source, "latest").params)
    learner = build_line(saving(tmp_path / "new", 2).resume().initial_from(source), lr=0.0)
    learner.init()  # reads it; the run has its own checkpoint now
    learner.fit(batches())
    assert log_of(tmp_path / "new").count("took 2 of 2 arrays") == 1


def test_checkpoint_is_read_once(one, tmp_path):
    source = shutil.copytree(one, tmp_path / "line")
    learner = build_line(quiet(tmp_path / "new").initial_from(source), lr=0.0)
    expected = load_checkpoint(source, "latest").params
    shutil.rmtree(source)
    assert bits(learner.init().params) == bits(expected)
    assert bits(learner.fit(batches()).model) == bits(expected)


@pytest.mark.full
def test_loading_within_a_trace(one, tmp_path):
    learner = build_line(quiet(tmp_path / "new").resume().initial_from(one))
    states = jax.jit(jax.vmap(lambda _: learner.init()))(jnp.arange(2))
    expected = load_checkpoint(one, "latest").params
    assert bits(jax.tree.map(lambda x: x[1], states.params)) == bits(expected)
    assert bits(learner.init().params) == bits(expected)


@pytest.mark.full
def test_a_run_cannot_replace_the_one_it_begins_with(one, tmp_path, monkeypatch):
    source, far = shutil.copytree(one, tmp_path / "line"), tmp_path / "far"
    build_line(quiet(tmp_path / "run").with_file_checkpointer(directory=str(far))).fit(batches())
    before = tree_of(tmp_path)
    (tmp_path / "link").symlink_to(source)
    monkeypatch.chdir(tmp_path)
    builders = [
        LearnerBuilder(source, overwrite=True).initial_from(source),
        LearnerBuilder("line", overwrite=True).initial_from(source / "checkpoint"),
        LearnerBuilder(tmp_path / "link", overwrite=True).initial_from("line"),
        LearnerBuilder(tmp_path / "run", overwrite=True).with_file_checkpointer(directory=str(far)).initial_from(far),
    ]
    for builder in builders:
        with raises_code("model-initial-overwritten"):
            build_line(builder)
    (tmp_path / "link").unlink()
    assert tree_of(tmp_path) == before
    learner = build_line(quiet(tmp_path / "run", overwrite=True).initial_from(source), lr=0.0)
    assert bits(learner.fit(batches()).model) == bits(load_checkpoint(source, "latest").params)
