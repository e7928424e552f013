"""Tests of the sharding report: arrays and programs by hand, and compared with the arrays of a run."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import RegressionOutput
from learner.data import DataLoaderBuilder
from learner.strategies import Replicated, Sharded, SingleDevice, fsdp
from tests.support.codes import raises_code
from tests.support.runs import build_line, model_bits, quiet, tree_of
from tests.support.spread import KINDS

pytestmark = pytest.mark.usefixtures("compiled_once")

FIXED = 4 + 8 + 2 * 4  # arguments that are not outputs: the factor of the rate, the root key; a cursor and a count


def learner_for(directory, kind="mlp", strategy=None, accumulate=1, optimizer=optax.adam):
    builder = quiet(directory).grads_accumulation(accumulate).strategy(strategy or SingleDevice())
    return builder.build(KINDS[kind].make(0.0), optimizer, 0.1)


def data_for(kind="mlp", batch=24):
    return DataLoaderBuilder().batch_size(batch).build(KINDS[kind].data(120, 1))


@pytest.mark.full
def test_arrays_of_an_mlp(tmp_path):
    report = learner_for(tmp_path / "run", "mlp", Sharded(rules=fsdp(1))).sharding_report(data_for())
    rows = {(x.part, x.path): (x.shape, x.dtype, x.spec, x.bytes, x.per_device, x.parameter) for x in report.arrays}
    expected = {
        "hidden.bias": ((16,), "float32", ("data",), 64, 8),
        "hidden.kernel": ((6, 16), "float32", (None, "data"), 384, 48),
        "out.bias": ((4,), "float32", (), 16, 16),  # 4 is not divisible by 8
        "out.kernel": ((16, 4), "float32", ("data",), 256, 32),
    }
    assert {path: row[:-1] for (part, path), row in rows.items() if part == "parameters"} == expected
    moments = {path: row for (part, path), row in rows.items() if part == "optimizer"}
    count = moments.pop("0.count")
    assert count == ((), "int32", (), 4, 4, None)
    assert {row[-1] for row in moments.values()} == set(expected)
    assert {path: row[:-1] for path, row in moments.items()} == {
        f"0.{moment}.{path}": row for moment in ("mu", "nu") for path, row in expected.items()
    }
    assert rows["other", "rng"][3:5] == (8, 8)
    assert [report.per_device(part) for part in ("parameters", "optimizer", "model state")] == [104, 212, 0]
    assert [report.on_one_device(part) for part in ("parameters", "optimizer")] == [720, 1444]
    assert report.per_device() == 104 + 212 + report.per_device("other")
    assert report.devices == 8


@pytest.mark.full
def test_memory_of_a_program(tmp_path):
    """The inputs are the state, the rows of 32 steps (each device has 3 rows of 7 numbers of 4 bytes) and the metrics.
    The outputs alias the state and the metrics.
    """
    batches = [KINDS["mlp"].data(24, 1)] * 2
    report = learner_for(tmp_path / "run", "mlp", Sharded(rules=fsdp(1))).sharding_report(batches)
    (program,) = report.programs
    metrics = program.aliased - (report.per_device() - 12)
    assert program.name == "loop"
    assert 0 < metrics <= 32
    assert program.arguments == report.per_device() - 12 + metrics + FIXED + 32 * 3 * 7 * 4
    assert program.outputs > program.aliased
    assert program.peak == program.arguments + program.outputs - program.aliased + program.temporaries


STRATEGIES = {
    "one": lambda kind: SingleDevice(3),
    "replicated": lambda kind: Replicated(8),
    "sharded": lambda kind: Sharded(devices=2),
    "fsdp": lambda kind: Sharded(rules=fsdp(1)),
    "model": lambda kind: Sharded({"data": 2, "model": 2}, [KINDS[kind].rules, fsdp(1)], devices=4),
}
CASES = [  # each strategy, each kind with and without accumulation, and all kinds if the model is split
    *zip(list(STRATEGIES)[:-1], itertools.cycle(KINDS), itertools.cycle((1, 2))),
    *(("model", kind, accumulate) for kind in KINDS for accumulate in (1, 2)),
]
SOME = {("model", "mlp", 1)}
NAMES = {("cnn", 1): ["step"], ("cnn", 2): ["micro-batch", "update"]}  # a convolution is slow in a loop on a CPU


def cases():
    return [pytest.param(*case, marks=() if case in SOME else pytest.mark.full) for case in CASES]


@pytest.mark.full
@pytest.mark.parametrize(("strategy", "kind", "accumulate"), cases())
def test_bytes_equal_those_of_placed_arrays(tmp_path, strategy, kind, accumulate):
    chosen = STRATEGIES[strategy](kind)
    learner = learner_for(tmp_path / "run", kind, chosen, accumulate)
    report = learner.sharding_report(data_for(kind))
    state = learner.init()
    placed = jax.tree.map(_numbers, chosen.place(state, chosen.shardings(state)))
    shards = jax.tree.map(lambda x: x.addressable_shards[0].data.nbytes, placed)
    parts = {"parameters": shards.params, "model state": shards.model_state, "optimizer": shards.opt_state}
    for part, sizes in parts.items():
        assert report.per_device(part) == sum(jax.tree.leaves(sizes)), part
    assert report.per_device() == sum(jax.tree.leaves(shards))
    assert report.on_one_device() == sum(x.nbytes for x in jax.tree.leaves(placed))
    assert [program.name for program in report.programs] == NAMES.get((kind, accumulate), ["loop"])
    whole = report.programs[-1]  # its outputs alias the whole state
    assert 0 <= whole.aliased - (report.per_device() - 12) <= 200
    assert not (tmp_path / "run").exists()


def _numbers(x):
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


@pytest.mark.full
def test_state_is_not_allocated(tmp_path):
    """A state that fits no device is reported: 4 TB, 500 GB on each device."""

    def huge(lr):
        state = optax.GradientTransformation(
            lambda params: {"memory": jnp.zeros((2**20, 2**20))}, lambda grads, state, params=None: (grads, state)
        )
        return optax.chain(state, optax.sgd(lr))

    learner = learner_for(tmp_path / "run", strategy=Sharded(), optimizer=huge)
    report = learner.sharding_report(data_for())
    assert report.on_one_device("optimizer") == 2**42
    assert "4.4 TB" in str(report)


@pytest.mark.full
def test_optimizer_state_belongs_to_parameters(tmp_path):
    """The longest matching path decides: `block.w` is not the outer `w`. Arrays of other shapes belong to their
    parameter too.
    """
    model = {"w": jnp.zeros((256, 128)), "block": {"w": jnp.zeros((3,))}}

    def step(model, batch):
        predictions = batch["x"] @ model["block"]["w"] + model["w"].sum()
        return RegressionOutput.from_predictions(predictions, batch["x"][:, 0])

    learner = quiet(tmp_path / "run").build(model, optax.adafactor, 0.1, train_step=step)
    report = learner.sharding_report([{"x": np.zeros((2, 3), np.float32)}])
    rows = {x.path: x.parameter for x in report.arrays if x.part == "optimizer"}
    assert rows["0.v_row.w"] == "w"
    assert rows["0.v.block.w"] == "block.w"
    assert rows["0.count"] is None
    own = [x.shape for x in report.arrays if x.part == "optimizer" and x.parameter == "w"]
    assert (128,) in own
    assert (256,) in own


@pytest.mark.full
def test_model_of_one_array(tmp_path):
    def step(model, batch):
        return RegressionOutput.from_predictions(batch["x"] @ model, batch["x"][:, 0])

    learner = quiet(tmp_path / "run").build(jnp.zeros((3,)), optax.adam, 0.1, train_step=step)
    report = learner.sharding_report([{"x": np.zeros((2, 3), np.float32)}])
    assert [x.parameter for x in report.arrays if x.part == "optimizer"] == [None, "", ""]
    assert str(report).splitlines()[3].split() == ["array", "[3]", "float32", "-", "12", "bytes", "24", "bytes"]


@pytest.mark.full
def test_tables_of_a_report(tmp_path):
    rules = [{r"hidden\.kernel": (None, ("data", "model"))}, fsdp(1)]
    strategy = Sharded({"data": 4, "model": 2}, rules)
    report = learner_for(tmp_path / "run", "mlp", strategy).sharding_report(data_for())
    lines = str(report).splitlines()
    assert lines[:13] == [
        "sharded over 8 devices (cpu): {'data': 4, 'model': 2}, rows over 'data', the model over 'data' and 'model'",
        "",
        "parameters       shape    dtype              spec  bytes per device  its optimizer state",
        "hidden.bias       [16]  float32              data          16 bytes             32 bytes",
        "hidden.kernel  [6, 16]  float32  -, (data, model)          48 bytes             96 bytes",
        "out.bias           [4]  float32              data           4 bytes              8 bytes",
        "out.kernel     [16, 4]  float32              data          64 bytes            128 bytes",
        "",
        "bytes       per device  over 8 devices  if on one device",
        "parameters   132 bytes          1.1 kB         720 bytes",
        "optimizer    268 bytes          2.1 kB            1.4 kB",
        "other         32 bytes       256 bytes          32 bytes",
        "total        432 bytes          3.5 kB            2.2 kB",
    ]
    assert lines[14].split("  ")[0] == "program, per device"
    assert lines[15].split()[0] == "loop"
    assert len(lines) == 16
    assert "hidden.kernel  [6, 16]  float32" in report._repr_html_()


@pytest.mark.full
def test_a_report_warns_that_nothing_is_split(tmp_path):
    """The hidden layer has 6 * 16 numbers, and 5 divides neither; 3 divides 6."""
    for devices, warned in ((5, True), (3, False)):
        strategy = Sharded(rules=fsdp(1), devices=devices)
        report = learner_for(tmp_path / "run", "mlp", strategy).sharding_report(data_for(batch=30))
        last = str(report).splitlines()[-1]
        assert last.startswith("warning: fsdp splits no array") == bool(report.warnings) == warned


@pytest.mark.full
def test_model_state_has_a_table(tmp_path):
    text = str(learner_for(tmp_path / "run", "cnn").sharding_report(data_for("cnn")))
    assert "\nnorm.mean      [8]  float32     -          32 bytes\n" in text
    assert "over 1 device " in text


@pytest.mark.full
def test_report_does_not_change_a_later_run(tmp_path):
    data, left = data_for(), []
    for name in ("one", "two"):
        learner = learner_for(tmp_path / name, strategy=Replicated(2))
        if name == "two":
            learner.sharding_report(data)
        left.append(model_bits(learner.fit(data).model))
    assert left[0] == left[1]


@pytest.mark.full
def test_report_does_not_change_an_existing_run(tmp_path):
    data = [{"x": np.ones((4, 3), np.float32), "t": np.ones((4, 1), np.float32)}] * 2
    build_line(quiet(tmp_path / "run", saves=True)).fit(data)
    before = tree_of(tmp_path / "run")
    report = build_line(quiet(tmp_path / "run")).sharding_report(data)
    assert report.per_device("parameters") == 16
    assert tree_of(tmp_path / "run") == before


@pytest.mark.full
def test_invalid_rule_is_refused(tmp_path):
    learner = learner_for(tmp_path / "run", strategy=Sharded(rules={"hiden": "data"}))
    with raises_code("strategy-rule-unused", pattern="hiden"):
        learner.sharding_report(data_for())
