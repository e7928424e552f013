"""Modules of `flax.linen` with their variables."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax

from learner.errors import LearnerError
from learner.models.base import COLLECTIONS_REMEDY, PARAMS, ModelAdapter, Trainable, select_leaves
from learner.models.pytrees import TreeAdapter
from learner.util.code_location import code_location
from learner.util.text import short
from learner.util.trees import named_leaves

Array = Any
PyTree = Any


@jax.tree_util.register_pytree_with_keys_class
class Linen:
    """A `flax.linen` module with its variables, callable inside a step.

    Pass it to `build` as the model. In a train step every collection but `params` is mutable and kept up to date.
    `train` is the mode of the step, for modules that need it as an argument:

        def train_step(model, batch):
            logits = model(batch["image"], train=model.train)

    Attributes:
      module: the `flax.linen.Module`.
      variables: its variables, `{"params": ..., "batch_stats": ...}`.
      rngs: the names of the random streams that the module draws from, such as `("dropout", "noise")`. In a step, also
        in validation and prediction, each call gets a new key for each of them; elsewhere, pass them to the call.
      train: True while a train step runs.

    >>> import flax.linen as nn
    >>> import jax.numpy as jnp
    >>> module = nn.Dense(2)
    >>> model = Linen(module, module.init(jax.random.key(0), jnp.ones((1, 3))))
    >>> model(jnp.ones((4, 3))).shape
    (4, 2)

    >>> class Noisy(nn.Module):
    ...     def __call__(self, x):
    ...         return x + jax.random.normal(self.make_rng("noise"), x.shape)
    >>> noisy = Linen(Noisy(), {"params": {}}, rngs=("noise",))
    >>> noisy(jnp.zeros((4, 3)), rngs={"noise": jax.random.key(0)}).shape
    (4, 3)
    """

    def __init__(self, module: Any, variables: Any, rngs: Sequence[str] = ("dropout",)):
        import flax.core

        names = [*variables] if isinstance(variables, Mapping) else None
        if names is None or "params" not in names:
            shown = short(repr(variables)) if names is None else f"variables with {sorted(names)}"
            raise LearnerError(
                f"Linen got {shown}; it needs what module.init(key, x) returns, with 'params'",
                code="model-linen-variables",
            )
        self.module = module
        self.variables: dict[str, Any] = dict(flax.core.unfreeze(variables))
        self.rngs = (rngs,) if isinstance(rngs, str) else tuple(rngs)
        self.train = False
        self._axis: str | None = None
        self._synced = False
        self._key: Array | None = None
        self._calls = 0

    def __call__(self, *args: Any, method: Any = None, rngs: Any = None, mutable: Any = False, **kwargs: Any) -> Any:
        """Call `module.apply` with the variables, with the step's random streams in a step, and with those in `rngs`.

        With `mutable`, such as `["losses"]` for values that the module sows there, return `(output, collections)`, like
        flax.
        """
        from flax.core.scope import in_filter, union_filters

        given = rngs if isinstance(rngs, Mapping) else {} if rngs is None else {"params": rngs}  # as flax reads a key
        streams: dict[str, Array] = {}
        if self._key is not None:
            key = jax.random.fold_in(self._key, self._calls)
            streams = {name: jax.random.fold_in(key, i) for i, name in enumerate(self.rngs)}
        self._calls += 1
        apply = partial(self.module.apply, self.variables, *args, rngs={**streams, **given}, method=method)
        with self._explaining_errors():
            if not self.train:
                return apply(mutable=mutable, **kwargs)
            carried = [name for name in self.variables if name != "params"]
            with _batch_norm_over(self._axis, self._met):
                out, changed = apply(mutable=union_filters(carried, mutable), **kwargs)
        self.variables = {**self.variables, **{name: changed[name] for name in carried if name in changed}}
        return out if mutable is False else (out, {name: x for name, x in changed.items() if in_filter(mutable, name)})

    @contextlib.contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        """Raise `LearnerError` with the remedy if the module draws from a missing random stream, or changes its
        statistics in eval mode.
        """
        from flax.errors import InvalidRngError, ModifyScopeVariableError

        try:
            yield
        except InvalidRngError as error:
            if found := re.search(r'needs PRNG for "(.+?)"', str(error)):
                raise self._missing_stream(found[1], error) from error
            raise
        except ModifyScopeVariableError as error:
            if self.train or not (found := re.search(r'because collection "(.+?)" is immutable', str(error))):
                raise
            raise LearnerError(
                f"{type(self.module).__name__} changes {found[1]!r} in eval mode ({code_location(error)}): give it the "
                "mode, such as model(x, train=model.train) where its __call__ has the argument train",
                code="model-linen-mode",
                name=found[1],
            ) from error

    def _missing_stream(self, name: str, error: Exception) -> LearnerError:
        named = tuple(dict.fromkeys((*self.rngs, name)))
        remedy = (
            f"outside of a step, pass it to the call: model(x, rngs={{{name!r}: jax.random.key(0)}})"
            if self._key is None
            else f"name it when creating the model, and each step receives it: Linen(module, variables, rngs={named})"
        )
        if name == "dropout" and self._key is None:
            remedy += (
                ". To evaluate, call it in eval mode, such as model(x, train=False), or, if the mode is a field, "
                "Linen(model.module.clone(deterministic=True), model.variables)(x)"
            )
        return LearnerError(
            f"{type(self.module).__name__} draws from the random stream {name!r} ({code_location(error)}), which "
            f"it did not get; {remedy}",
            code="model-linen-stream",
            name=name,
        )

    def _met(self) -> None:
        self._synced = True

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """Return the children and the rest, for JAX: functions may take and return a `Linen`."""
        names = ("variables", "_key")
        children = tuple((jax.tree_util.GetAttrKey(name.lstrip("_")), getattr(self, name)) for name in names)
        return children, (self.module, self.rngs, self.train)

    @classmethod
    def tree_unflatten(cls, fixed: Any, children: Any) -> "Linen":
        """Return the model with these children, for JAX."""
        box = object.__new__(cls)
        (box.variables, box._key), (box.module, box.rngs, box.train) = children, fixed
        box._axis, box._synced, box._calls = None, False, 0
        return box


@contextlib.contextmanager
def _batch_norm_over(axis: str | None, met: Callable[[], None]) -> Iterator[None]:
    """Make linen's BatchNorm layers without an axis use this one, inside the block. `met` is called for each layer."""
    if axis is None:
        yield
        return
    import flax.linen as nn

    def call(next_fun: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        if isinstance(module, nn.BatchNorm):
            met()
        if isinstance(module, nn.BatchNorm) and module.axis_name is None:
            object.__setattr__(module, "axis_name", axis)  # modules are frozen; this one is a copy for this call
        return next_fun(*args, **kwargs)

    with nn.intercept_methods(call):
        yield


class LinenAdapter(ModelAdapter):
    """`Linen(module, variables)`."""

    kind = "flax.linen"
    variables_remedy = COLLECTIONS_REMEDY

    def __init__(self, model: Linen, trainable: Trainable = None):
        self._module, self.rngs = model.module, model.rngs
        state = {name: v for name, v in model.variables.items() if name != "params"}
        self._all = TreeAdapter(model.variables["params"], trainable)
        self.params, self.annotations = self._all.params, self._all.annotations
        self.model_state = {"collections": state, "frozen": self._all.model_state}
        self.frozen = {"collections": jax.tree.map(lambda _: False, state), "frozen": self._all.frozen}
        collections = {name: jax.tree.map(lambda _, name=name: name, each) for name, each in state.items()}
        self.kinds = {"collections": collections, "frozen": dict.fromkeys(self._all.frozen, PARAMS)}
        self._all.params = self._all.model_state = None  # keep the arrays only once

    def merge(self, params: PyTree, model_state: PyTree, key: Array | None, *, train: bool) -> Linen:
        """See `ModelAdapter`."""
        rebuilt = self.rebuild(params, model_state)
        rebuilt.train, rebuilt._key = train, key
        return rebuilt

    def put(self, model: Linen, model_state: PyTree, streams: PyTree) -> Linen:
        """See `ModelAdapter`."""
        model.variables = {"params": model.variables["params"], **model_state["collections"]}
        return model

    def grads(self, grads: Any) -> PyTree:
        """See `ModelAdapter`."""
        return select_leaves(named_leaves(grads), self.params, self.model_state["frozen"], grads)

    def sync_batch_norm(self, model: Linen, axis: str) -> None:
        """See `ModelAdapter`."""
        model._axis = axis

    def is_synced(self, model: Linen) -> bool:
        """See `ModelAdapter`."""
        return model._synced

    def read_all(self, model: Linen) -> tuple[PyTree, PyTree]:
        """See `ModelAdapter`."""
        params, frozen = self._all.read_all(model.variables["params"])
        state = {name: v for name, v in model.variables.items() if name != "params"}
        return params, {"collections": state, "frozen": frozen}

    def rebuild(self, params: PyTree, model_state: PyTree) -> Linen:
        """See `ModelAdapter`."""
        params = self._all.combine(params, model_state["frozen"])
        return Linen(self._module, {"params": params, **model_state["collections"]}, self.rngs)
