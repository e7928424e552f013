"""The checkpoints of a population, presented as those of a separate run of one member."""

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from learner.checkpoint.items import differences, flat, refuse_differences
from learner.checkpoint.manifest import DamagedError
from learner.checkpoint.store import CheckpointStore, Entry, Once
from learner.errors import LearnerError
from learner.runs.history import History
from learner.runs.population import member_index
from learner.util.addresses import is_address
from learner.util.number_checks import is_finite
from learner.util.user_warnings import warn

STATE_ITEMS = ("model", "optim", "scheduler")
LR = "lr"
NO_KEYWORDS = {"directory", "seed", LR, "data_order"}
"""Fields of a member in a checkpoint that are not keywords of its optimizer."""
RATES = "learning rate", "initial learning rate"
"""Settings of a fingerprint in which the rate of a member replaces the builder's. They are None with a schedule, of
which the rate of a member is a factor.
"""
ACTIVE, KEYWORDS = "active", "hyperparameters."
"""An entry of `extra` that only members have, and the prefix of other such entries."""
OF_ALL = ("members", "lanes", "plateaus")
"""Fields of the progress that hold a value for each member."""
OF_MEMBERS = ("halted", "stopped", "state_step", "keywords", "changed")
"""Fields of the progress that only members have."""
MORE = "more_are_copied"
"""A field of the progress of a checkpoint copied from a population's: newer ones are copied after it."""
MALFORMED = (LookupError, TypeError, ValueError, AttributeError)
"""Errors raised for a progress that no run has written."""


def names_of_members(progress: Mapping[str, Any]) -> list[str]:
    """Return the directory names of a population's members from a checkpoint's progress. Empty for a single run."""
    with contextlib.suppress(KeyError, TypeError):
        return [str(member["directory"]) for member in progress["fingerprint"]["settings"]["population"]]
    return []


def member_store(directory: Path, saved: Any, once: Once = lambda do: do()) -> "MemberStore | None":
    """Return the checkpoints of the population's member with this directory, or None if it is not a member's.

    Args:
      directory: the directory of the member's run.
      saved: the directory of the run's checkpoints. If it is elsewhere, the population's checkpoints are in its parent.
      once: see `CheckpointStore`.
    """
    if (index := member_index(directory)) is not None:
        store = MemberStore(directory.parent / "checkpoint", index, once)
        if store.steps:
            return store
    # Only what may be a member's: above the checkpoints of another run may lie anything.
    return store_beside(str(saved), once) if str(saved).rpartition("/")[2] == directory.name else None


def copies_follow(directory: Path, store: CheckpointStore) -> bool:
    """Return True if a member's run was killed while it copied the checkpoints of its population into this store.

    Args:
      directory: the directory of the run, which may not be a member's.
      store: the checkpoints of the run.
    """
    # Reading the checkpoint reports its damage.
    with contextlib.suppress(DamagedError):
        is_member = member_index(directory) is not None or store.place.root.name == directory.name
        return is_member and bool(store.progress(store.steps[-1], verified=False).get(MORE))
    return False


def store_beside(place: str, once: Once = lambda do: do()) -> "MemberStore | None":
    """Return the checkpoints of the member of a population with the name of a place, in whose parent they lie, or None.
    Where they are not in the population's own directory, that is how a member is named.
    """
    parent, _, name = place.rpartition("/")
    if not parent:
        return None
    where = parent if is_address(parent) else Path(parent)
    store = CheckpointStore(where)
    # These files may belong to another program, and need not be readable.
    with contextlib.suppress(LearnerError, OSError), contextlib.closing(store):
        names = names_of_members(store.progress(store.steps[-1])) if store.steps else []
        if name in names:
            return MemberStore(where, names.index(name), once)
    return None


class MemberStore(CheckpointStore):
    """A read-only store of one member's checkpoints. Arrays are the member's, without the axis of members, and the
    progress is that of a separate run with the member's settings.

    Args:
      directory: the directory of the population's checkpoints.
      index: the index of the member in the population.
      once: see `CheckpointStore`.
    """

    def __init__(self, directory: Any, index: int, once: Once = lambda do: do()):
        super().__init__(directory, once=once)
        self._index = index

    def _facts(self) -> dict[int, dict[str, Any]]:
        """Return the facts of each checkpoint, with the member's own value of the monitored metric."""
        table = super()._facts()
        for step, facts in table.items():
            # The progress is not verified here; reading the checkpoint reports its problems.
            with contextlib.suppress(LearnerError, *MALFORMED):
                progress = super().progress(step, verified=False)
                facts["score"] = _score(progress, progress["members"][self._index], step)
        return table

    def find(self, epoch: int | str | None = None, step: int | None = None) -> Entry:
        """See `CheckpointStore`. Warn if the member was better at a step of which the population has kept no
        checkpoint.
        """
        entry = super().find(epoch, step)
        if epoch == "best" and (text := self._missed(entry)):
            warn(text)
        return entry

    def _missed(self, chosen: Entry) -> str:
        """Return a warning if the member was better than in the chosen checkpoint, or an empty text."""
        with contextlib.suppress(LearnerError, *MALFORMED):  # reading the checkpoint reports its problems
            progress = super().progress(self.steps[-1], verified=False)
            key, history = progress["monitor"], History.from_json(progress["members"][self._index]["history"])
            best = history.best(key, progress["higher_is_better"])
            is_of_monitor = self._table[chosen.step]["monitor"] in (None, key)
            if best is not None and is_of_monitor and chosen.score != best.value:
                value = "without a value" if chosen.score is None else f"with {chosen.score:.6g}"
                return (
                    f"this member had its best {key}, {best.value:.6g}, at step {best.step} (epoch {best.epoch}), and "
                    f"no checkpoint of that is kept: step {chosen.step}, {value}, is the best that is. A population "
                    "keeps the best checkpoint of its best member; a larger keep_last keeps more"
                )
        return ""

    def progress(self, step: int, verified: bool = True) -> dict[str, Any]:
        """See `CheckpointStore`. `state_step` is the last step that the member has trained, `keywords` are the keyword
        arguments of its optimizer, and `changed` has the numbers that `exploit` has set.
        """
        progress = super().progress(step, verified)
        try:
            member = progress["members"][self._index]
            settings = progress["fingerprint"]["settings"]
            values = settings["population"][self._index]
            own_step, rate, keywords = self._numbers(step)
            first = values.get(LR, settings["learning rate"])
            if settings["learning rate"] is None:
                # With a schedule, the rate of a member is a factor. That of a plateau is in the state of the plateau.
                first = 1.0 if settings.get("initial learning rate") is None else rate
            changed = {name: x for name, x in keywords.items() if x != np.float32(values.get(name, x))}
            changed |= {LR: rate} if rate and not first else {}  # no factor makes it of 0
            return {
                **{name: value for name, value in progress.items() if name not in OF_ALL},
                **member,
                **_decisions(progress, self._index),
                "state_step": own_step,
                "position": {**progress["position"], "lr_factor": _ratio(rate, first)},
                "fingerprint": _fingerprint(progress["fingerprint"], values),
                "root_key": progress["root_key"][self._index],
                "score": _score(progress, member, step),
                "keywords": keywords,
                "changed": changed,
            }
        except LearnerError:
            raise
        except MALFORMED as error:
            raise DamagedError(
                f"the checkpoint {self.path(step)} is damaged, or has no member {self._index}: {error!r}",
                code="checkpoint-damaged",
                step=step,
            ) from None

    def _numbers(self, step: int) -> tuple[int, float, dict[str, float]]:
        """Return the step, the rate and the keywords of the optimizer in the state of the member."""
        shapes = super().shapes(step, ["scheduler", "optim"])
        extra = {name: x for name, x in (shapes["optim"].get("extra") or {}).items() if name.startswith(KEYWORDS)}
        items = {"scheduler": shapes["scheduler"], **({"optim": {"extra": extra}} if extra else {})}
        own = jax.tree.map(lambda x: x[self._index].item(), super().read(step, items))
        keywords = {name.removeprefix(KEYWORDS): own["optim"]["extra"][name] for name in extra}
        return own["scheduler"]["step"]["value"], own["scheduler"]["lr_scale"]["value"], keywords

    def shapes(self, step: int, names: Iterable[str]) -> dict[str, Any]:
        """See `CheckpointStore`."""
        shapes, members = super().shapes(step, names), len(super().progress(step).get("members", ()))
        if any(x.shape[:1] != (members,) for x in jax.tree.leaves(shapes)):
            raise DamagedError(
                f"the checkpoint {self.path(step)} lacks the arrays of its {members} members",
                code="checkpoint-damaged",
                step=step,
            )
        return {
            name: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), _without_flags(name, item))
            for name, item in shapes.items()
        }

    def read(self, step: int, shapes: Mapping[str, Any]) -> dict[str, Any]:
        """See `CheckpointStore`. The arrays of all members are read, as Orbax uses only the structure of `shapes`."""
        return {
            name: jax.tree.map(lambda x: np.asarray(x[self._index]), item)
            for name, item in super().read(step, shapes).items()
        }

    def differences(self, step: int, items: Mapping[str, Any]) -> list[str]:
        """See `CheckpointStore`."""
        return differences(flat(self.shapes(step, items)), flat(items))

    def restore(self, step: int, items: Mapping[str, Any]) -> dict[str, Any]:
        """See `CheckpointStore`."""
        refuse_differences(flat(self.shapes(step, items)), flat(items), f"the checkpoint {self.path(step)}")
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), dict(items))
        arrays = self.read(step, shapes)
        return {name: jax.tree.map(_placed, arrays[name], items[name]) for name in items}

    def metrics(self, step: int) -> dict[str, Any] | None:
        """See `CheckpointStore`. Raises `LookupError` for a member without a lane, which has ended."""
        metrics = super().metrics(step)
        if metrics is None:
            return None
        progress = super().progress(step)
        lane = list(progress.get("lanes") or range(len(progress["members"]))).index(self._index)
        states = {name: x[lane] for name, x in metrics["states"].items()}
        return {"states": states, "rows": (metrics.get("rows") or {}).get(str(self._index)) or {}}

    def recover(self) -> None:
        """Do nothing: the population recovers its checkpoints."""

    def set_aside(self, after: int, directory: Any) -> list[int]:
        """Do nothing: later checkpoints stay those of the population."""
        return []

    def copy(self, step: int, store: CheckpointStore, *, more: bool) -> None:
        """Write a checkpoint into the store of the member's own run.

        Args:
          step: of the checkpoint.
          store: where to write.
          more: newer ones are copied after it; see `copies_follow`.
        """
        items = self.read(step, self.shapes(step, STATE_ITEMS))
        if (metrics := self.metrics(step)) is not None:
            items["in_flight"] = metrics
        progress = {name: x for name, x in self.progress(step).items() if name not in OF_MEMBERS}
        store.save(step, items, {**progress, MORE: more})


def _score(progress: Mapping[str, Any], member: Mapping[str, Any], step: int) -> float | None:
    """Return the value of the monitored metric for the state of a member in the checkpoint of a step, or None. The
    state of a member that has ended is that of its last step.
    """
    history, key, stopped = History.from_json(member["history"]), progress["monitor"], member.get("stopped")
    step = step if stopped is None else min(step, stopped["step"])
    values = [point.value for point in history.points(key) if point.step == step] if key in history else []
    return float(values[-1]) if values and is_finite(values[-1]) else None


def _decisions(progress: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return the states of the member's early stopping and plateau."""
    members, stopping = len(progress["members"]), progress["early_stopping"]
    share = len(stopping) // members
    plateaus = progress.get("plateaus") or [None] * members
    return {"early_stopping": stopping[index * share : (index + 1) * share], "plateau": plateaus[index]}


def _fingerprint(fingerprint: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fingerprint of a run with the values of a member."""
    settings = {name: x for name, x in fingerprint["settings"].items() if name != "population"}
    settings |= {name: values.get(LR, settings[name]) for name in RATES if settings.get(name) is not None}
    if values.keys() - NO_KEYWORDS:
        settings["optimizer"] = None  # the text lacks the keywords that differ between members
    data = dict(fingerprint["data"])
    if values.get("data_order") == "own":  # the facts belong to the order of the builder's seed
        train = {name: fact for name, fact in data["train"].items() if name != "first row"}
        data["train"] = {**train, "seed": values["seed"]}
    programs = dict(fingerprint["programs"])
    if "hashes" in programs:  # a member's steps also take its flags, so their hashes differ from a single run's
        programs["hashes"] = {name: x for name, x in programs["hashes"].items() if name not in programs["batches"]}
    # Without the seed: random keys come from the checkpoint, and the order of the data is among its facts.
    settings = {name: x for name, x in settings.items() if name != "seed"}
    return {**fingerprint, "data": data, "settings": settings, "programs": programs}


def _ratio(rate: float, first: float) -> float:
    """Return the factor by which a float32 rate has changed."""
    return 1.0 if not first or rate == float(np.float32(first)) else rate / first


def _without_flags(name: str, item: Any) -> Any:
    """Return an item without the entries of `extra` that only members have. `name`: the name of the item."""
    if name != "optim":
        return item
    extra = {name: x for name, x in item["extra"].items() if name != ACTIVE and not name.startswith(KEYWORDS)}
    return {**item, "extra": extra}


def _placed(x: np.ndarray, like: Any) -> jax.Array:
    sharding = getattr(like, "sharding", None)
    placed: jax.Array = jax.device_put(x, sharding if isinstance(sharding, jax.sharding.Sharding) else None)
    return placed
