"""Tests of models that are larger than a device: no array is complete on any device at any time."""

import functools
import importlib
import re
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import Interrupter, RegressionOutput, load_checkpoint
from learner.checkpoint import CheckpointStore
from learner.strategies import Replicated, Sharded, SingleDevice, fsdp
from learner.training.checkpoints.resume import read_checkpoint
from learner.training.programs.executor import Runner
from learner.util.trees import named_leaves
from tests.support.codes import raises_code
from tests.support.runs import checkpoint_bits, model_bits, progress_of, quiet, saved_steps, tamper
from tests.support.small_models import BATCH, CASES
from tests.support.spread import KINDS, leaves_of, train
from tests.support.stopped import all_of, same, some

pytestmark = pytest.mark.usefixtures("compiled_once")

SMALL = 16_000  # bytes: biases, metrics, a batch


class Wide(nnx.Module):
    """A model with 4 MB of parameters in few arrays."""

    def __init__(self, outputs=512, seed=0):
        rngs = nnx.Rngs(seed)
        self.hidden = nnx.Linear(512, 1024, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(1024, outputs, rngs=rngs)

    def train_step(self, batch):
        return RegressionOutput.from_predictions(self.out(self.drop(nnx.relu(self.hidden(batch["x"])))), batch["y"])


PARAMETERS = 4 * (512 * 1024 + 1024 + 1024 * 512 + 512)
STATE = 3 * PARAMETERS  # with Adam's two moments


def data(outputs=512):
    x = np.random.default_rng(0).normal(size=(8, 512)).astype(np.float32)
    return [{"x": x, "y": x[:, :outputs]}] * 3


def build(directory, strategy, model=Wide, **options):
    builder = quiet(directory, saves=True).strategy(strategy)
    for name, arguments in options.items():
        getattr(builder, name)(*arguments)
    return builder.build(model, optax.adam, 1e-3)


def bytes_on(arrays):
    """Return the bytes of these arrays by device. An array shares its memory with the views of its parts."""
    sizes = {}
    for x in arrays:
        for shard in x.addressable_shards:
            sizes[shard.device, shard.data.unsafe_buffer_pointer()] = shard.data.nbytes
    return {device: sum(size for (other, _), size in sizes.items() if other == device) for device in jax.devices()}


class Since:
    """Arrays that live now and did not at the last start."""

    def __init__(self):
        self.begin()

    def begin(self):
        self._before = {id(x): x for x in jax.live_arrays()}

    def __call__(self):
        return [x for x in jax.live_arrays() if id(x) not in self._before]


@pytest.fixture
def made_since():
    return Since()


def is_eighth(held, whole):
    """Return True if `size` is a device's part of `total` split bytes."""
    return whole / 8 <= held <= whole / 8 + SMALL


def all_have_an_eighth(arrays, whole):
    return all(is_eighth(held, whole) for held in bytes_on(arrays).values())


# -- beginning ---------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_model_from_a_function_is_created_in_parts(tmp_path, made_since):
    learner = build(tmp_path / "run", Sharded(rules=fsdp()))
    state = learner.definition.init_placed()
    assert all_have_an_eighth(made_since(), STATE)
    program, given = learner.definition.step.init_program(1e-3, 0, learner.definition.strategy)
    memory = program.lower(*given).compile().memory_analysis()
    assert memory.argument_size_in_bytes < SMALL
    assert is_eighth(memory.output_size_in_bytes, STATE)
    # random bits and arrays computed from them, for all parameters at once, none of them complete
    assert memory.temp_size_in_bytes < PARAMETERS / 2
    whole = leaves_of(nnx.as_pure(nnx.state(Wide(), nnx.Param)))
    for name, x in leaves_of(state.params).items():
        np.testing.assert_array_equal(x, whole[name])


@pytest.mark.full
def test_given_model_is_split_with_its_state(tmp_path, made_since):
    learner = build(tmp_path / "run", Sharded(rules=fsdp()), Wide())
    made_since.begin()
    state = learner.definition.init_placed()
    assert all_have_an_eighth(made_since(), STATE)
    assert all_have_an_eighth(jax.tree.leaves(state), STATE)


@pytest.mark.full
def test_nonfinite_numbers_are_detected_in_parts(tmp_path):
    def broken():
        model = Wide()
        model.out.kernel[...] = model.out.kernel[...].at[3, 5].set(jnp.nan)
        return model

    learner = build(tmp_path / "run", Sharded(rules=fsdp()), broken)
    with raises_code("model-parameters-nonfinite") as error:
        learner.fit(data())
    assert str(error.value).endswith("out.kernel")
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]
    assert not (tmp_path / "run" / "journal.jsonl").exists()


@pytest.mark.full
def test_a_function_that_creates_it_unsplit_is_logged(tmp_path):
    model = Wide()
    build(tmp_path / "run", Sharded(rules=fsdp()), lambda: model).fit(data())
    text = (tmp_path / "run" / "experiment.log").read_text()
    assert (
        len(re.findall(r"made it on one device, whole, before it was split: it has 42004\d\d bytes of arr", text)) == 1
    )


@pytest.mark.full
def test_arrays_of_another_run_are_split_when_loaded(tmp_path, made_since):
    build(tmp_path / "one", SingleDevice(), seed=(1,)).fit(data())
    first = load_checkpoint(tmp_path / "one", "latest").params
    made_since.begin()
    other = functools.partial(Wide, 256, 7)
    learner = build(tmp_path / "two", Sharded(rules=fsdp()), other, initial_from=(tmp_path / "one", "latest", True))
    state = learner.definition.init_placed()
    half = 4 * (512 * 1024 + 1024 + 1024 * 256 + 256)
    assert all_have_an_eighth(made_since(), 3 * half)
    np.testing.assert_array_equal(state.params["hidden"]["kernel"], first["hidden.kernel"])
    np.testing.assert_array_equal(state.params["out"]["kernel"], other().out.kernel[...])


# -- going on ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def restored(monkeypatch, made_since):
    """Each restored item, the sizes of the parts of its arrays, and the bytes on each device at that time."""
    seen = []

    def restore(store, step, items):
        restored_items = original(store, step, items)
        held = bytes_on(made_since())
        parts = [(x.size, {shard.data.size for shard in x.addressable_shards}) for x in jax.tree.leaves(restored_items)]
        seen.append((sorted(restored_items), parts, held))
        return restored_items

    original = CheckpointStore.restore
    monkeypatch.setattr(CheckpointStore, "restore", restore)
    return seen


@pytest.mark.full
def test_restoring_creates_one_split_state(tmp_path, restored, made_since):
    options = {"with_file_checkpointer": (), "num_epochs": (1,)}
    build(tmp_path / "run", SingleDevice(), Wide(), **options).fit(data())
    made_since.begin()
    build(tmp_path / "run", Sharded(rules=fsdp()), resume=(), num_epochs=(2,)).fit(data())
    ((items, parts, held),) = restored
    assert items == ["model", "optim", "scheduler"]
    assert all(is_eighth(size, STATE) for size in held.values()), held
    split = [(size, shares) for size, shares in parts if size >= 1024]
    assert len(split) == 9  # three arrays, and two moments of each
    assert all(shares == {size // 8} for size, shares in split)


@pytest.mark.full
def test_a_new_optimizer_is_split_too(tmp_path, restored, made_since):
    """The state belongs to the restored parameters."""

    def keeping(lr):
        """Record the initial parameters."""
        inner = optax.adam(lr)
        return optax.GradientTransformation(
            lambda params: {"inner": inner.init(params), "first": jax.tree.map(jnp.copy, params)},
            lambda grads, state, params=None: (inner.update(grads, state["inner"])[0], state),
        )

    model = build(tmp_path / "run", SingleDevice(), Wide()).fit(data()).model
    builder = quiet(tmp_path / "run", saves=True).strategy(Sharded(rules=fsdp())).resume(allow="optimizer")
    learner = builder.num_epochs(2).build(Wide, keeping, 1e-3)
    made_since.begin()
    state = read_checkpoint(learner.definition).state.opt_state
    ((items, _, held),) = restored
    assert items == ["model", "scheduler"]
    assert all(is_eighth(size, PARAMETERS) for size in held.values()), held
    np.testing.assert_array_equal(state["first"]["hidden"]["kernel"], model.hidden.kernel[...])
    assert all_have_an_eighth(jax.tree.leaves(state), 3 * PARAMETERS)


@pytest.mark.parametrize("case", [case for case in CASES if case.name not in ("equinox", "list")], ids=str)
@pytest.mark.full
def test_models_of_every_library_begin_and_resume_in_parts(tmp_path, case):
    left = {}
    two = Sharded(rules=fsdp(1), devices=2)
    for name, strategy, model in (("one", SingleDevice(), case.make()), ("two", two, case.make)):
        for epochs in (1, 2):
            builder = quiet(tmp_path / name, saves=True).strategy(strategy).num_epochs(epochs).resume()
            learner = builder.build(model, optax.adam, 1e-2, **case.steps)
            left[name] = case.arrays(learner.fit([BATCH] * 2).model)
        params = jax.tree.leaves(learner._evaluator.runner.state.params)
        shares = [x.sharding.shard_shape(x.shape) == x.shape for x in params]
        assert all(shares) == (name == "one")
        assert learner.definition.step.adapter.note is None
    assert list(left["one"]) == list(left["two"])
    for name, x in left["one"].items():
        np.testing.assert_allclose(left["two"][name], x, rtol=1e-4, atol=1e-5, err_msg=name)


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_trained_states_and_programs_take_an_eighth(tmp_path):
    learner = build(tmp_path / "run", Sharded(rules=fsdp()))
    report = learner.sharding_report(data())
    learner.fit(data())
    leaves = learner._evaluator.runner.leaves
    assert all_have_an_eighth(leaves, STATE)
    (program,) = report.programs
    assert STATE <= 8 * program.arguments <= STATE + 4 * 2**20 + 8 * SMALL  # with the buffer of batches
    assert is_eighth(program.aliased, STATE)
    assert program.outputs - program.aliased < SMALL
    # Gathered parameters, their gradients, and buffers to send them: never the optimizer's state.
    assert program.temporaries < 3 * PARAMETERS + SMALL


EVERYWHERE = {
    "single": SingleDevice,
    "replicated": Replicated,
    "sharded": Sharded,
    "fsdp": lambda: Sharded(rules=fsdp()),
    "model": lambda: Sharded({"data": 4, "model": 2}, {r"kernel": (None, "model")}),
}


@pytest.mark.parametrize(
    ("name", "accumulate"),
    some([("fsdp", 1), ("single", 2), ("replicated", 1), ("sharded", 2), ("fsdp", 2), ("model", 2)], {("fsdp", 1)}),
)
def test_step_reuses_the_memory_of_the_state(tmp_path, monkeypatch, made_since, name, accumulate):
    seen = []

    def stepped(runner, tally, dispatch):
        old = {id(x): x for x in runner._state.moving}
        values = original(runner, tally, dispatch)
        jax.block_until_ready(runner.leaves)
        states = [x for x in made_since() if x.shape in shapes]  # without batches
        seen.append((len(old), sum(x.is_deleted() for x in old.values()), bytes_on(states)))
        return values

    original = Runner.train
    options = {"with_file_checkpointer": (None,), "steps_per_dispatch": (1,), "grads_accumulation": (accumulate,)}
    learner = build(tmp_path / "run", EVERYWHERE[name](), **options)
    monkeypatch.setattr(Runner, "train", stepped)
    shapes = {x.shape for x in jax.tree.leaves(learner.definition.step.adapter.params)}
    made_since.begin()
    learner.fit(data() * 2)
    state = bytes_on([x for x in learner._evaluator.runner.leaves if x.shape in shapes])
    assert seen == [(seen[0][0], seen[0][0], state)] * -(-6 // accumulate)
    program = next(reversed(learner.sharding_report(data()).programs))
    assert program.aliased >= state[jax.devices()[0]] - SMALL


# -- by rules ----------------------------------------------------------------------------------------------------------


def text(rows):
    characters = np.random.default_rng(5).integers(0, 128, (rows, 17)).astype(np.int32)
    return {"text": characters[:, :-1], "target": characters[:, 1:]}


@pytest.mark.full
def test_the_example_s_transformer_is_split_by_its_rules(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    rules = importlib.import_module("examples.charlm").TENSOR_PARALLEL
    make = functools.partial(
        importlib.import_module("learner.examples.models").CharTransformer, width=32, layers=2, heads=4, dropout=0.1
    )
    left = {}
    for name, strategy in {
        "one": SingleDevice(),
        "rules": Sharded({"data": 4, "model": 2}, rules),
        "both": Sharded({"data": 2, "model": 4}, [rules, fsdp(1)]),
    }.items():
        builder = quiet(tmp_path / name).strategy(strategy).num_epochs(2)
        learner = builder.build(lambda: make(rngs=nnx.Rngs(0)), optax.adam, 1e-2)
        left[name] = learner.fit([text(8)] * 2), named_leaves(learner._evaluator.runner.state.params)
    one, (result, parameters) = left["one"][0], left["rules"]
    np.testing.assert_allclose(result.history["train/Loss"], one.history["train/Loss"], rtol=2e-5)
    np.testing.assert_allclose(left["both"][0].history["train/Loss"], one.history["train/Loss"], rtol=2e-5)
    shapes = {path: x.addressable_shards[0].data.shape for path, x in parameters.items()}
    block = {
        "attention.join.kernel": (16, 32),
        "attention.project.kernel": (32, 48),
        "narrow.bias": (32,),
        "narrow.kernel": (64, 32),
        "norm_attention.scale": (32,),
        "norm_dense.scale": (32,),
        "widen.bias": (64,),
        "widen.kernel": (32, 64),
    }
    outside = {"embed.embedding": (128, 16), "head.bias": (128,), "head.kernel": (32, 64), "norm.scale": (32,)}
    assert shapes == {**{f"blocks.{i}.{path}": shape for i in range(2) for path, shape in block.items()}, **outside}
    both = {path: x.addressable_shards[0].data.shape for path, x in left["both"][1].items()}
    assert (both["blocks.0.widen.kernel"], both["norm.scale"]) == ((32, 32), (16,))


# -- from one topology to another --------------------------------------------------------------------------------------


def first(count):
    return jax.devices()[:count]


TOPOLOGIES = {
    "single": lambda kind: SingleDevice(),
    **{f"replicated-{n}": functools.partial(lambda n, kind: Replicated(n), n) for n in (2, 3, 8)},
    **{f"sharded-{n}": functools.partial(lambda n, kind: Sharded(devices=n), n) for n in (3, 8)},
    **{f"fsdp-{n}": functools.partial(lambda n, kind: Sharded(rules=fsdp(1), devices=n), n) for n in (2, 8)},
    "model": lambda kind: Sharded({"data": 2, "model": 2}, KINDS[kind].rules, devices=4),
}
CROSSINGS = [  # each topology once as the first and once as the second, alternating between the models
    (before, tuple(TOPOLOGIES)[(number + 4) % len(TOPOLOGIES)], *(("cnn", 6) if number % 2 else ("mlp", 8)))
    for number, before in enumerate(TOPOLOGIES)
]
CROSSED = ("fsdp-2", "single", "mlp", 6)


# Adam would make steps from the last bits of zero gradients, such as those of a bias before BatchNorm.
MOMENTUM = functools.partial(optax.sgd, momentum=0.5)


def run(directory, kind, strategy, stop=None, **more):
    """Train two epochs of six steps, one, or a part that a user's code ends."""
    if stop == 6:
        more["epochs"] = 1
    elif stop is not None:
        interrupter = Interrupter()
        more["interrupter"] = (interrupter,)
        more["every"] = (stop, lambda info, model: interrupter.stop("for the night"))
    return train(directory, kind, strategy, optimizer=MOMENTUM, **{"epochs": 2, **more})


@functools.cache
def uninterrupted(kind):
    return run(Path(tempfile.mkdtemp()) / "run", kind, None)


@pytest.mark.full
@pytest.mark.parametrize(("before", "after", "kind", "stop"), [CROSSED, *CROSSINGS])
def test_resume_other_device_count(tmp_path, before, after, kind, stop):
    whole, strategies = uninterrupted(kind), [TOPOLOGIES[name](kind) for name in (before, after)]
    run(tmp_path / "run", kind, strategies[0], stop)
    saved = progress_of(tmp_path / "run", stop)["position"]
    assert (saved["step"], saved["in_epoch"]) == {6: (6, 0), 8: (8, 2)}[stop]
    left = run(tmp_path / "run", kind, strategies[1], resume=())
    np.testing.assert_array_equal(left.weights, whole.weights[stop:])
    for name, values in left.steps.items():
        np.testing.assert_allclose(values, whole.steps[name][stop:], rtol=5e-5, atol=1e-5, err_msg=name)
    assert dict(left.result.history).keys() == dict(whole.result.history).keys()
    for name, values in left.result.history.items():
        assert len(values) == 2
        np.testing.assert_allclose(values, whole.result.history[name], rtol=5e-5, atol=1e-5, err_msg=name)
    for name, values in left.model.items():
        np.testing.assert_allclose(values, whole.model[name], rtol=5e-5, atol=1e-5, err_msg=name)
    text = f"strategy: {strategies[0].description} -> {strategies[1].description}"
    assert left.log.count(text) == 1


@pytest.mark.full  # by default, resuming to the bit is tested on one device
@pytest.mark.parametrize(
    ("name", "stop"), [("replicated-3", 8), ("sharded-8", 8), ("fsdp-2", 8), ("fsdp-2", 6), ("model", 8)]
)
def test_resumed_to_the_bit_on_the_same_devices(tmp_path, name, stop):
    strategy = functools.partial(TOPOLOGIES[name], "mlp")
    whole = run(tmp_path / "whole", "mlp", strategy(), dropout=0.3)
    run(tmp_path / "run", "mlp", strategy(), stop, dropout=0.3)
    left = run(tmp_path / "run", "mlp", strategy(), resume=(), dropout=0.3)
    same(all_of(tmp_path / "run", left.result), all_of(tmp_path / "whole", whole.result))
    assert "strategy: " not in left.log


@pytest.mark.full
def test_checkpoints_without_a_strategy_resume(tmp_path):
    before = TOPOLOGIES["fsdp-2"]("mlp")
    run(tmp_path / "run", "mlp", before, 8)
    progress = progress_of(tmp_path / "run", 8)
    assert progress["fingerprint"]["settings"].pop("strategy") == before.description
    tamper(tmp_path / "run", 8, progress)
    left = run(tmp_path / "run", "mlp", TOPOLOGIES["replicated-3"]("mlp"), resume=())
    assert left.result.stopped_by == "num_epochs"
    assert "strategy: " not in left.log


@pytest.mark.full
def test_checkpoints_of_split_models_may_be_elsewhere(tmp_path):
    make = lambda: Sharded(rules=fsdp(1))  # noqa: E731
    whole = run(tmp_path / "whole", "mlp", make())
    elsewhere = {"with_file_checkpointer": {"directory": str(tmp_path / "elsewhere")}}
    run(tmp_path / "run", "mlp", make(), 8, **elsewhere)
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} == {"6", "8"}
    left = run(tmp_path / "run", "mlp", make(), resume=(), **elsewhere)
    assert saved_steps(tmp_path / "run") == []
    assert model_bits(left.result.model) == model_bits(whole.result.model)
    assert left.result.history == whole.result.history
    (tmp_path / "checkpoint").symlink_to(tmp_path / "elsewhere")
    assert checkpoint_bits(tmp_path, 12) == checkpoint_bits(tmp_path / "whole", 12)
    assert model_bits(load_checkpoint(tmp_path / "elsewhere", "latest").params["hidden.kernel"]) == model_bits(
        left.result.model.hidden.kernel[...]
    )
