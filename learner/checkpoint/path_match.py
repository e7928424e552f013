"""Matching the arrays of a checkpoint to those of a model, by path."""

import difflib
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.checkpoint.items import SHOWN, escaped, refuse_differences, to_items, unescaped
from learner.errors import LearnerError, near
from learner.records.fitting import Rename, origins_of, rename_paths
from learner.steps.train_state import TrainState
from learner.util.text import printable

Arrays = dict[str, Any]


class PathMatch:
    """The match of a checkpoint's arrays with a model's, by path.

    Args:
      saved: the item `model` of the checkpoint.
      blank: a state of the model.
      kind: the library of the model.
      rename: rules for the paths of the checkpoint; see `learner.records.load_model`.
      checkpoint: the name of the checkpoint, for messages about these rules.

    Attributes:
      matched: the paths of the arrays that fit.
      unmatched: the paths of the arrays that do not fit, with the reason for each.
      unused: the paths that only the checkpoint has.
      renamed: the path in the checkpoint by path in the model, for arrays that fit and whose paths differ.
    """

    def __init__(
        self, saved: Mapping[str, Arrays], blank: TrainState, kind: str, rename: Rename = (), checkpoint: str = ""
    ) -> None:
        self._saved, self._blank = saved, blank
        self._shapes = jax.eval_shape(to_items, blank)  # NumPy's 64-bit numbers become 32-bit ones
        self._saved_paths, self._model_paths = paths_in_model(saved, kind), paths_in_model(self._shapes["model"], kind)
        self._origins: dict[str, str] = {}
        if rename:
            self._rename(rename, checkpoint)
        self._fitting: list[str] = []
        self.unmatched: dict[str, str] = {}
        for name, location in self._model_paths.items():
            reason = self._mismatch(name)
            if reason is None:
                self._fitting.append(name)
            else:
                self.unmatched[_shown(location)] = reason
        self.matched = tuple(_shown(self._model_paths[name]) for name in self._fitting)
        self.unused = tuple(self._label(name) for name in self._saved_paths if name not in self._model_paths)
        self.renamed = {
            _shown(self._model_paths[name]): _shown(self._saved_paths[name])
            for name in self._fitting
            if self._is_renamed(name)
        }

    def _rename(self, rules: Rename, checkpoint: str) -> None:
        """Rename the paths of the checkpoint. Raise if a rule matches no path, or yields no path of the model."""
        split = {name: _split_collection(name) for name in self._saved_paths}
        paths = {name: unescaped(path) for name, (_, path) in split.items()}
        renamed, matched = rename_paths(paths, rules, checkpoint)
        names = {name: split[name][0] + escaped(path) for name, path in renamed.items()}
        self._origins = origins_of(names, checkpoint)
        for rule, of_rule in zip(rules, matched, strict=True):
            if not any(names[name] in self._model_paths for name in of_rule):
                old, new = unescaped(of_rule[0]), unescaped(names[of_rule[0]])
                known = list(map(unescaped, self._model_paths))
                hint = near(new, difflib.get_close_matches(new, known) or known[:SHOWN])
                raise LearnerError(
                    printable(f"the rule {rule!r} of rename makes {new!r} of {old!r}, and this model has none; {hint}"),
                    code="checkpoint-rename-without-target",
                    old=old,
                    new=new,
                )
        self._saved_paths = {names[name]: location for name, location in self._saved_paths.items()}

    def _is_renamed(self, name: str) -> bool:
        return self._origins.get(name, name) != name

    def _label(self, name: str) -> str:
        """Return the path of an array in the model, or else in the checkpoint; both if it is renamed."""
        if not self._is_renamed(name):
            return _shown(self._model_paths.get(name) or self._saved_paths[name])
        old = _shown(self._saved_paths[name])
        if name not in self._model_paths:
            return f"{old} (renamed to {unescaped(name)})"
        return f"{_shown(self._model_paths[name])} (renamed from {old})"

    def _mismatch(self, name: str) -> str | None:
        if name not in self._saved_paths:
            return "not in the checkpoint"
        saved, new = self._pair(name)
        floats = jnp.issubdtype(saved.dtype, jnp.floating) and jnp.issubdtype(new.dtype, jnp.floating)
        if saved.shape == new.shape and (saved.dtype == new.dtype or floats):
            return None
        origin = f" ({_shown(self._saved_paths[name])})" if self._is_renamed(name) else ""
        return f"{saved.dtype}{list(saved.shape)} there{origin}, {new.dtype}{list(new.shape)} here"

    def _pair(self, name: str) -> tuple[Any, Any]:
        part, path = self._saved_paths[name]
        model_part, model_path = self._model_paths[name]
        return self._saved[part][path], self._shapes["model"][model_part][model_path]

    def refuse_differences(self, checkpoint: str, advice: str, opt_state: Arrays | None = None) -> None:
        """Raise one error that lists all arrays that differ, including the optimizer's."""
        self._refuse_part(checkpoint)
        saved = {self._label(name): self._saved[part][path] for name, (part, path) in self._saved_paths.items()}
        needed = {
            self._label(name): self._shapes["model"][part][path] for name, (part, path) in self._model_paths.items()
        }
        saved |= {_shown(("opt_state", name)): x for name, x in (opt_state or {}).items()}
        needed |= {_shown(("opt_state", name)): x for name, x in self._shapes["optim"]["opt_state"].items()}
        refuse_differences(saved, needed, checkpoint, advice)

    def refuse_strangers(self, checkpoint: str) -> None:
        """Raise if no array fits."""
        if not self._fitting:
            self._refuse_part(checkpoint)
            unmatched = [f"{path}: {reason}" for path, reason in self.unmatched.items()]
            unused = [f"{path}: unused" for path in self.unused]
            shown = [*unmatched[:SHOWN], *unused[:SHOWN]]
            raise LearnerError(
                "\n  ".join([f"nothing in {checkpoint} fits this model, by path and shape:", *shown])
                + "\nrename= gives the checkpoint's arrays other paths",
                code="checkpoint-nothing-fits",
            )

    def _refuse_part(self, checkpoint: str) -> None:
        """Raise if the checkpoint has the paths of a part of the model."""
        first = next(iter(self._saved_paths), "")
        for name in self._model_paths:
            prefix = name.removesuffix(first)
            if prefix.endswith(".") and all(f"{prefix}{saved}" in self._model_paths for saved in self._saved_paths):
                part = unescaped(prefix[:-1])
                raise LearnerError(
                    f"{checkpoint} is of the part {part!r} of this model: initial_from(directory, partial=True, "
                    f"rename=[('^', '{part}.')]) starts a run with it, and load_checkpoint(directory, 'best', "
                    "part).model is that part",
                    code="checkpoint-of-part",
                    part=part,
                )

    def items(self) -> dict[str, Arrays]:
        """Return the item `model` for the state: the arrays of the checkpoint that fit, on the host and cast if
        necessary, and otherwise the model's own arrays.
        """
        items = to_items(self._blank)["model"]
        for name in self._fitting:
            part, path = self._model_paths[name]
            saved, new = self._pair(name)
            items[part][path] = np.asarray(saved).astype(new.dtype)
        return items


def paths_in_model(item: Mapping[str, Arrays], kind: str) -> dict[str, tuple[str, str]]:
    """Return the part and path of each array by its name in the model, as `trainable=` moves arrays between the parts.
    `kind`: the library of the model, such as `flax.linen`.
    """
    paths = {}
    for part in ("params", "model_state"):
        for path in item[part]:
            name = path
            if kind == "flax.linen" and part == "model_state":
                frozen = path.startswith("frozen.")
                name = path.removeprefix("frozen.") if frozen else f"{part}/{path}"
            paths[name] = part, path
    return paths


def _split_collection(name: str) -> tuple[str, str]:
    """Return the collection of Linen variables that a name begins with, if any, and the path inside it."""
    collection = re.match(r"model_state/collections\.[^.]+\.", name)
    return ("", name) if collection is None else (collection[0], name[collection.end() :])


def _shown(location: tuple[str, str]) -> str:
    return f"{location[0]}/{unescaped(location[1])}"
