"""Tests of checkpoints of hand-written loops: trees restore to the bit, damage is detected, a few are kept."""

import enum
import math
import shutil
from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import Checkpointer
from tests.support.codes import raises_code
from tests.support.runs import bits, build_line, quiet


class Mode(enum.IntEnum):
    SLOW, FAST = 1, 2


def state(fill):
    """Return every kind of state that a loop may have."""
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(fill))
    return {
        "model": model,
        "opt": optax.adam(1e-3).init({"w": jnp.full(3, fill, jnp.bfloat16), "empty": jnp.zeros((0, 2))}),
        "key": jax.random.key(fill),
        "count": fill,
        "best": fill / 3,
        "seen": fill > 1,
        "apply": jnp.tanh,
        "name": f"run {fill}",
        "host": np.arange(3) + fill,
    }


def arrays_of(tree):
    return [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array | np.ndarray)]


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "checkpoints"


def test_restore_returns_every_leaf(directory):
    saved = state(7)
    with Checkpointer(directory) as checkpointer:
        checkpointer.save(3, saved, info={"epoch": 2, "data": {"batch": 5}}, score=0.5)
    with Checkpointer(directory) as checkpointer:
        restored = checkpointer.restore(state(1))
    assert (restored.step, restored.info, restored.score) == (3, {"epoch": 2, "data": {"batch": 5}}, 0.5)
    assert bits(arrays_of(restored.state)) == bits(arrays_of(saved))
    assert isinstance(restored.state["model"], nnx.Linear)
    assert [restored.state[name] for name in ("count", "best", "seen")] == [7, 7 / 3, True]
    assert type(restored.state["seen"]) is bool
    assert restored.state["name"] == "run 1"  # not a number: the given value
    assert jax.random.key_data(restored.state["key"]).tolist() == jax.random.key_data(jax.random.key(7)).tolist()


def test_numpy_arrays_are_restored(directory):
    saved = {
        "counter": np.int64(5_000_000_000),
        "ids": np.array([5_000_000_000, -1]),
        "times": np.array([1.7e9 + 0.125, 1e300]),
        "half": np.array([0.5, 2.0], jnp.bfloat16),
        "none": np.zeros((0, 3)),
    }
    with Checkpointer(directory) as checkpointer:
        checkpointer.save(1, {"w": jnp.ones(2), **saved})
        new = checkpointer.restore({"w": jnp.zeros(2), **jax.tree.map(lambda x: x * 0, saved)}).state
    assert isinstance(new.pop("w"), jax.Array)
    kind = lambda x: (type(x), x.dtype, x.shape, x.tobytes())  # noqa: E731
    assert {name: kind(x) for name, x in new.items()} == {name: kind(x) for name, x in saved.items()}
    new["ids"][0] = 1  # as code writes to a replay buffer


def test_train_state_and_equinox_model_are_restored(directory, tmp_path):
    learner = build_line(quiet(tmp_path / "run"), optimizer=optax.adam)
    batch = {"x": np.ones((4, 3), np.float32), "t": np.ones((4, 1), np.float32)}
    trained, _ = learner.train_step(learner.init(), batch)
    net = eqx.nn.MLP(2, 1, 3, 1, key=jax.random.key(0))
    with Checkpointer(directory) as checkpointer:
        checkpointer.save(1, (trained, net))
        other = eqx.nn.MLP(2, 1, 3, 1, key=jax.random.key(1))
        back, model = checkpointer.restore((learner.init(), other)).state
    assert bits(back) == bits(trained)
    assert bool(eqx.tree_equal(model, net))


def test_retention(directory):
    with Checkpointer(directory, keep_last=1, keep_best=2, higher_is_better=True) as checkpointer:
        for step, score in enumerate([0.3, 0.9, float("nan"), 0.5, 0.1, None]):
            checkpointer.save(step, {"w": jnp.float32(step)}, score=score)
        assert checkpointer.steps == [1, 3, 5]
        like = {"w": jnp.float32(0)}
        assert [float(checkpointer.restore(like, s).state["w"]) for s in ("latest", "best", 3)] == [5, 1, 3]
        assert checkpointer.restore(like, "best").score == 0.9
        with raises_code("checkpoint-not-found", name="step 2", known="step 1, step 3, step 5"):
            checkpointer.restore(like, 2)
        with raises_code("checkpoint-step-exists", step=5):
            checkpointer.save(5, like)


def test_a_step_before_the_newest_is_refused_until_the_loop_rewinds(directory):
    """Retention would remove the new checkpoint with its own save."""
    like = {"w": jnp.float32(0)}
    with Checkpointer(directory, keep_last=2) as checkpointer:
        for step in (10, 20):
            checkpointer.save(step, {"w": jnp.float32(step)})
        with raises_code("checkpoint-step-behind", step=15, newest=20):
            checkpointer.save(15, like)
        checkpointer.rewind(10)
        checkpointer.save(15, {"w": jnp.float32(15)})
        assert checkpointer.steps == [10, 15]
        checkpointer.rewind(0)
        checkpointer.save(1, {"w": jnp.float32(1)})
    with Checkpointer(directory) as checkpointer:
        assert checkpointer.steps == [1]
        assert float(checkpointer.restore(like).state["w"]) == 1


def test_a_directory_that_was_removed_is_made_again(tmp_path):
    with Checkpointer(tmp_path / "saved", keep_last=9) as checkpointer:
        checkpointer.save(1, {"w": jnp.float32(1)})
        shutil.rmtree(tmp_path / "saved")
        checkpointer.save(2, {"w": jnp.float32(2)})
        assert float(checkpointer.restore({"w": jnp.float32(0)}).state["w"]) == 2


def test_damaged_checkpoint_is_skipped_or_named(directory):
    like = {"w": jnp.zeros(1000)}
    with Checkpointer(directory) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"w": jnp.full(1000, step, jnp.float32)})
    largest = max((directory / "2" / "state").rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
    largest.write_bytes(largest.read_bytes()[:-1])
    with Checkpointer(directory) as checkpointer:
        with pytest.warns(UserWarning, match=r"2 is damaged.*; it is skipped"):
            assert checkpointer.restore(like).step == 1
        with raises_code("checkpoint-damaged", step=2):
            checkpointer.restore(like, 2)
    (directory / "1" / "manifest.json").write_text("{")
    with (
        Checkpointer(directory) as checkpointer,
        pytest.warns(UserWarning, match="it is skipped"),
        raises_code("checkpoint-missing", "no intact checkpoint"),
    ):
        checkpointer.restore(like)


@pytest.mark.parametrize("step", [4, 5])
def test_saves_after_a_damaged_checkpoint_replace_it(directory, step):
    """The loop repeats the steps from the checkpoint before it."""
    like = {"w": jnp.zeros(1000)}
    with Checkpointer(directory, keep_last=2) as checkpointer:
        for number in (3, 5):
            checkpointer.save(number, like)
    (directory / "5" / "manifest.json").write_text("{")
    with Checkpointer(directory, keep_last=2) as checkpointer:
        with pytest.warns(UserWarning, match="is damaged"):
            assert checkpointer.restore(like).step == 3
        checkpointer.save(step, {"w": jnp.ones(1000)})
        assert checkpointer.steps == [3, step]
        assert checkpointer.restore(like).step == step


def test_another_tree_is_one_error(directory):
    with Checkpointer(directory) as checkpointer:
        checkpointer.save(1, {"w": jnp.zeros(2), "b": jnp.zeros(1), "n": 3})
        with raises_code("checkpoint-model-differs", count=2) as error:
            checkpointer.restore({"w": jnp.zeros(3), "c": jnp.zeros(1), "b": jnp.zeros(1), "n": 0})
        assert "state/c: saved nothing, now float32[1]" in str(error.value)
        assert "state/w: saved float32[2], now float32[3]" in str(error.value)
        with raises_code("checkpoint-numbers-differ", names="m, n"):
            checkpointer.restore({"w": jnp.zeros(2), "b": jnp.zeros(1), "m": 0})


def test_swapped_and_wrong_arguments_of_restore(directory):
    tree = {"w": np.zeros(2, np.float32), "n": 1}
    with Checkpointer(directory) as checkpointer:
        checkpointer.save(3, tree)
        for step in (tree, tree["w"], "last", None, 2.5, True, jnp.float32(3.5), [np.ones(2), np.ones(3)], np.ones(1)):
            with raises_code("checkpoint-restore-step", "restore(like, step)"):
                checkpointer.restore(tree, step)
        for like in (3, "best", None):
            with raises_code("checkpoint-restore-like", "restore(like, step)"):
                checkpointer.restore(like)
        assert checkpointer.restore(tree, jnp.int32(3)).step == checkpointer.restore(tree, "best").step == 3


def test_unsaveable_leaves(directory):
    with Checkpointer(directory) as checkpointer:
        for step in (-1, 1.5, True):
            with raises_code("checkpoint-step-value", value=step):
                checkpointer.save(step, {"w": jnp.zeros(1)})
        with raises_code("checkpoint-state-empty"):
            checkpointer.save(1, {"n": 3})
        with raises_code("checkpoint-path-twice"):
            checkpointer.save(1, {"a.b": jnp.zeros(1), "a": {"b": jnp.zeros(1)}})
        for other in (np.array(["cat"]), np.zeros(2, ">f8"), np.zeros(1, "i4,f4"), np.zeros(1, np.longdouble)):
            with raises_code("checkpoint-array-dtype", f"other ({other.dtype})"):
                checkpointer.save(1, {"w": jnp.zeros(1), "other": other})
        with pytest.raises(TypeError):
            checkpointer.save(1, {"w": jnp.zeros(1)}, info={"f": jnp.tanh})
        assert checkpointer.steps == []
        with raises_code("checkpoint-missing"):
            checkpointer.restore({"w": jnp.zeros(1)})
    with raises_code("checkpoint-option-number", name="keep_last"):
        Checkpointer(directory, keep_last=0)
    assert not [path for path in directory.glob("*") if path.name != "superseded"]


def test_checkpoint_of_a_run_names_load_checkpoint(tmp_path):
    batch = {"x": np.ones((4, 3), np.float32), "t": np.ones((4, 1), np.float32)}
    build_line(quiet(tmp_path / "run", saves=True)).fit([batch])
    with Checkpointer(tmp_path / "run" / "checkpoint") as checkpointer, raises_code("checkpoint-of-run"):
        checkpointer.restore({"w": jnp.zeros((3, 1))})


def test_python_numbers_keep_all_digits_and_their_types(tmp_path):
    big = -(2**60 + 1)
    with Checkpointer(tmp_path, keep_last=1, keep_best=1, higher_is_better=True) as checkpointer:
        for step, score in ((1, 0.9), (2, 0.1), (3, 0.2)):
            checkpointer.save(step, {"w": np.zeros(1), "a": big, "b": False, "c": 2}, score=score)
        assert checkpointer.steps == [1, 3]
        state = checkpointer.restore({"w": np.zeros(1), "a": 0, "b": True, "c": 0.0}).state
        assert (state["a"], state["b"], type(state["c"])) == (big, False, float)
        with raises_code("checkpoint-numbers-differ"):
            checkpointer.restore({"w": np.zeros(1), "a": 0, "b": True}, step=3)


def test_numbers_are_restored_as_saved(tmp_path):
    """A number of another type than the given one is not cut to that type, and other kinds come from the given tree."""
    saved = {
        "w": np.zeros(1),
        "half": 1.5,
        "nan": math.nan,
        "complex": 1 - 2j,
        "mode": Mode.FAST,
        "part": Fraction(1, 3),
    }
    given = {"w": np.zeros(1), "half": 0, "nan": 0, "complex": 0j, "mode": Mode.SLOW, "part": Fraction(0)}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, saved)
        state = checkpointer.restore(given).state
    assert (state["half"], str(state["nan"]), state["complex"]) == (1.5, "nan", 1 - 2j)
    assert (state["mode"], state["part"]) == (Mode.SLOW, 0)
