"""One small model of each library and kind with its properties, for tests that hold for all of them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from learner import Linen, RegressionOutput

ROWS = 8
_rng = np.random.default_rng(11)
BATCH = {
    "x": (_rng.normal(size=(ROWS, 3)) + 0.5).astype(np.float32),
    "y": _rng.normal(size=(ROWS, 2)).astype(np.float32),
}


def other_batch(seed: int, rows: int = ROWS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(rows, 3)).astype(np.float32),
        "y": rng.normal(size=(rows, 2)).astype(np.float32),
    }


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, its step function, and its expected properties.

    Attributes:
      make: returns a new model, always with the same values.
      step: a free step function, or None if the model has methods.
      arrays: returns every array of a model by name, read with the library's functions.
      in_eval: returns True if the model is in eval mode, or has no modes.
      statistics: names of running statistics in `arrays`.
      random: True if a train step uses random numbers.
      head: a part of the names of some, but not all, parameters.
    """

    name: str
    make: Callable[[], Any]
    step: Callable[..., Any] | None
    arrays: Callable[[Any], dict[str, np.ndarray]]
    in_eval: Callable[[Any], bool]
    statistics: tuple[str, ...]
    random: bool
    head: str

    def __str__(self) -> str:
        return self.name

    @property
    def steps(self) -> dict[str, Any]:
        """Return the arguments of `build`."""
        return {} if self.step is None else {"train_step": self.step, "valid_step": self.step}


# -- flax.nnx ----------------------------------------------------------------------------------------------------------


class Offset(nnx.Variable):
    """A kind of variable that no library defines."""


class Everything(nnx.Module):
    """A model with layers in a list, a shared parameter, statistics, dropout, and attributes of many types."""

    def __init__(self, seed: int = 0):
        rngs = nnx.Rngs(seed, dropout=seed + 1)
        self.layers = nnx.List([nnx.Linear(3, 3, rngs=rngs) for _ in range(2)])
        self.layers[1].kernel = self.layers[0].kernel  # one parameter at two paths
        self.norm = nnx.BatchNorm(3, momentum=0.9, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(3, 2, rngs=rngs)
        self.seen = Offset(jnp.zeros((), jnp.int32))
        self.shift = jnp.float32([0.0, 0.5])
        self.table = np.arange(3)
        self.width, self.label, self.activation = 3, "everything", nnx.tanh

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = self.activation(layer(x))
        return self.head(self.drop(self.norm(x))) + self.shift[None]

    def train_step(self, batch: Any) -> RegressionOutput:
        self.seen[...] += 1
        return RegressionOutput.from_predictions(self(batch["x"]), batch["y"])

    def valid_step(self, batch: Any) -> RegressionOutput:
        return RegressionOutput.from_predictions(self(batch["x"]), batch["y"])


class Member(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.hidden, self.drop = nnx.Linear(3, 4, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.head(self.drop(nnx.relu(self.hidden(x))))


class Ensemble(nnx.Module):
    """Three members in one model, each with its own parameters and random stream."""

    def __init__(self, seed: int = 0):
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=0, out_axes=0)
        def make(rngs: nnx.Rngs) -> Member:
            return Member(rngs)

        self.members = make(nnx.Rngs(seed))

    def __call__(self, x: Any) -> Any:
        return nnx.vmap(lambda member, x: member(x), in_axes=(0, None))(self.members, x)

    def train_step(self, batch: Any) -> RegressionOutput:
        return RegressionOutput.from_predictions(self(batch["x"]).mean(0), batch["y"])

    valid_step = train_step


def nnx_arrays(model: nnx.Module) -> dict[str, np.ndarray]:
    """Return the arrays of a model without random streams, which are not part of a run's state."""
    streams = nnx.RngState
    return {
        ".".join(map(str, path)): np.array(leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf)
        for path, leaf in nnx.to_flat_state(nnx.state(model))
        if not isinstance(leaf, streams)
    }


# -- flax.linen --------------------------------------------------------------------------------------------------------


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        x = nn.tanh(nn.Dense(3, name="hidden")(x))
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9, name="norm")(x)
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.Dense(2, name="head")(x)


def make_linen() -> Linen:
    module = LinenNet()
    return Linen(module, module.init(jax.random.key(0), jnp.ones((1, 3)), train=False))


def linen_step(model: Linen, batch: Any) -> RegressionOutput:
    return RegressionOutput.from_predictions(model(batch["x"], train=model.train), batch["y"])


def tree_arrays(tree: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(p): np.asarray(x) for p, x in leaves if isinstance(x, jax.Array | np.ndarray)}


# -- Equinox -----------------------------------------------------------------------------------------------------------


class EquinoxNet(eqx.Module):
    hidden: eqx.nn.Linear
    drop: eqx.nn.Dropout
    head: eqx.nn.Linear
    activation: Callable[[Any], Any]
    offset: Any
    name: str = eqx.field(static=True)

    def __init__(self, seed: int = 0):
        one, two = jax.random.split(jax.random.key(seed))
        self.hidden, self.head = eqx.nn.Linear(3, 3, key=one), eqx.nn.Linear(3, 2, key=two)
        self.drop = eqx.nn.Dropout(0.5)
        self.activation = jnp.tanh  # a leaf that is not an array
        self.offset = jnp.arange(2)  # an array that is not differentiable
        self.name = "net"

    def __call__(self, x: Any, key: Any) -> Any:
        return self.head(self.drop(self.activation(self.hidden(x)), key=key)) + self.offset.astype(jnp.float32)

    def train_step(self, batch: Any, rng: Any) -> RegressionOutput:
        keys = jax.random.split(rng, batch["x"].shape[0])
        return RegressionOutput.from_predictions(jax.vmap(self)(batch["x"], keys), batch["y"])

    valid_step = train_step


class EquinoxNormed(eqx.Module):
    hidden: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    head: eqx.nn.Linear

    def __init__(self, seed: int = 0):
        one, two = jax.random.split(jax.random.key(seed))
        self.hidden, self.head = eqx.nn.Linear(3, 3, key=one), eqx.nn.Linear(3, 2, key=two)
        self.norm = eqx.nn.BatchNorm(3, axis_name="rows", mode="ema", momentum=0.9)

    def __call__(self, x: Any, state: Any) -> Any:
        x, state = self.norm(jnp.tanh(self.hidden(x)), state)
        return self.head(x), state


def make_normed() -> Any:
    return eqx.nn.make_with_state(EquinoxNormed)()


def normed_step(model: Any, batch: Any) -> Any:
    net, state = model
    over_rows = jax.vmap(net, axis_name="rows", in_axes=(0, None), out_axes=(0, None))
    predicted, state = over_rows(batch["x"], state)
    return RegressionOutput.from_predictions(predicted, batch["y"]), (net, state)


def equinox_in_eval(model: Any) -> bool:
    flags = [x for x in jax.tree.leaves(model) if isinstance(x, bool)]
    return len(flags) == 1 and all(flags)


# -- plain pytrees -----------------------------------------------------------------------------------------------------


def make_dict() -> dict[str, Any]:
    return {
        "hidden": {"w": jnp.full((3, 3), 0.1), "b": np.zeros(3, np.float32)},
        "head": {"w": jnp.ones((3, 2)) * 0.2},
        "seen": jnp.int32(0),
        "keep": 0.8,
    }


def dict_step(model: Any, batch: Any, rng: Any) -> Any:
    x = jnp.tanh(batch["x"] @ model["hidden"]["w"] + model["hidden"]["b"][None])
    x = jnp.where(jax.random.bernoulli(rng, model["keep"], x.shape), x, 0)
    output = RegressionOutput.from_predictions(x @ model["head"]["w"], batch["y"])
    return output, {**model, "seen": model["seen"] + 1}


def make_list() -> list[Any]:
    return [jnp.full((3, 2), 0.3), jnp.zeros(2), jnp.tanh, "affine", 2]


def list_step(model: Any, batch: Any) -> RegressionOutput:
    kernel, bias, activation, _, power = model
    return RegressionOutput.from_predictions(activation(batch["x"] @ kernel + bias[None]) ** power, batch["y"])


class Layers(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.hidden, self.norm = nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
        self.norm.bias = self.hidden.bias  # one parameter at two paths
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.drop(self.norm(jnp.tanh(self.hidden(x))))


def make_nnx_dict() -> dict[str, Any]:
    return {"body": Layers(nnx.Rngs(0)), "head": nnx.Linear(4, 2, rngs=nnx.Rngs(1)), "seen": jnp.int32(0)}


def nnx_dict_step(model: Any, batch: Any) -> Any:
    output = RegressionOutput.from_predictions(model["head"](model["body"](batch["x"])), batch["y"])
    return output, {**model, "seen": model["seen"] + 1}


def nnx_dict_arrays(model: dict[str, Any]) -> dict[str, np.ndarray]:
    modules = {name: nnx_arrays(model[name]) for name in ("body", "head")}
    arrays = {f"{name}.{path}": x for name, arrays in modules.items() for path, x in arrays.items()}
    return {**arrays, "seen": np.asarray(model["seen"])}


CASES = [
    Case(
        "nnx",
        Everything,
        None,
        nnx_arrays,
        lambda m: bool(m.drop.deterministic and m.norm.use_running_average),
        ("norm.mean", "norm.var", "seen"),
        random=True,
        head="head",
    ),
    Case(
        "nnx_vmapped",
        Ensemble,
        None,
        nnx_arrays,
        lambda m: bool(m.members.drop.deterministic),
        (),
        random=True,
        head="head",
    ),
    Case(
        "linen",
        make_linen,
        linen_step,
        lambda m: tree_arrays(m.variables),
        lambda m: not m.train,
        ("['batch_stats']['norm']['mean']", "['batch_stats']['norm']['var']"),
        random=True,
        head="head",
    ),
    Case("equinox", EquinoxNet, None, tree_arrays, equinox_in_eval, (), random=True, head="head"),
    Case(
        "equinox_state",
        make_normed,
        normed_step,
        tree_arrays,
        equinox_in_eval,
        tuple(name for name in tree_arrays(make_normed()) if name.startswith("[1]")),
        random=False,
        head="head",
    ),
    Case("dict", make_dict, dict_step, tree_arrays, lambda m: True, ("['seen']",), random=True, head="head"),
    Case("list", make_list, list_step, tree_arrays, lambda m: True, (), random=False, head="1"),
    Case(
        "nnx_dict",
        make_nnx_dict,
        nnx_dict_step,
        nnx_dict_arrays,
        lambda m: bool(m["body"].drop.deterministic and m["body"].norm.use_running_average),
        ("body.norm.mean", "body.norm.var", "seen"),
        random=True,
        head="head",
    ),
]


def copied(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.array(x) for name, x in arrays.items()}


def assert_equal_arrays(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(got) == list(expected)
    for name, x in expected.items():
        assert got[name].dtype == x.dtype, name
        np.testing.assert_array_equal(got[name], x, err_msg=name)
