"""Checkpoints on disk, through Orbax: each is one atomic directory, keyed by the optimizer step.

A checkpoint has the items `model`, `optim` and `scheduler`, each readable on its own, and `progress`: everything else
that a run is, as JSON. `in_flight` is there when it was made inside an epoch: the metrics' states in flight and the
rows collected so far.
"""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from learner.checkpoint.items import flat, refuse_differences
from learner.checkpoint.options import KeepPolicy, Retention
from learner.errors import LearnerError

ITEMS = ("model", "optim", "scheduler", "progress", "in_flight")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A complete checkpoint.

    Attributes:
      step: the optimizer step.
      epoch: the epoch that it is the end of, or `None` when it was made inside of one.
      score: the monitored metric's value, or `None`.
    """

    step: int
    epoch: int | None
    score: float | None


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, directory: Any, retention: Retention | None = None):
        """`retention` says what is kept; without one the store only reads."""
        self._place, self._retention = directory, retention
        self._table: dict[int, tuple[int | None, float | None]] = {}
        self._at_stop: set[int] = set()
        self._higher_is_better = retention is not None and retention.higher_is_better

    @functools.cached_property
    def _ocp(self) -> Any:
        """Orbax, which takes a second to import: a run has made its first steps before it needs it."""
        import orbax.checkpoint

        return orbax.checkpoint

    @functools.cached_property
    def _path(self) -> Any:
        from etils import epath

        return epath.Path(self._place)

    @functools.cached_property
    def _manager(self) -> Any:
        ocp, retention = self._ocp, self._retention
        options = ocp.CheckpointManagerOptions(
            preservation_policy=None if retention is None else KeepPolicy(retention, self._table, self._at_stop),
            enable_async_checkpointing=False,
            cleanup_tmp_directories=retention is not None,
            create=retention is not None,
            read_only=retention is None,
            save_interval_steps=0 if retention is None else 1,
        )
        with _quiet():
            arrays = {name: ocp.StandardCheckpointHandler() for name in ITEMS if name != "progress"}
            handlers = {**arrays, "progress": ocp.JsonCheckpointHandler()}
            manager = ocp.CheckpointManager(self._path, options=options, item_handlers=handlers)
        for step in manager.all_steps():
            progress = self._progress(manager, step)
            self._note(step, progress)
            if retention is None:
                self._higher_is_better = bool(progress.get("higher_is_better"))
        return manager

    def _note(self, step: int, progress: Mapping[str, Any]) -> None:
        """What decides whether a checkpoint stays."""
        self._table[step] = progress.get("ends_epoch"), progress.get("score")
        if progress.get("at_stop"):
            self._at_stop.add(step)

    @property
    def entries(self) -> list[Entry]:
        """The complete checkpoints, oldest first."""
        if not self._path.exists():
            return []
        steps = sorted(self._manager.all_steps())
        return [Entry(step, *self._table.get(step, (None, None))) for step in steps]

    def path(self, step: int) -> Any:
        """Where a checkpoint lies."""
        return self._path / str(step)

    def save(self, step: int, items: Mapping[str, Any], progress: Mapping[str, Any]) -> None:
        """Writes a checkpoint, and removes those that need not stay once it is complete. Waits until then."""
        args = self._ocp.args
        parts = {name: args.StandardSave(item) for name, item in items.items()}
        self._note(step, progress)
        with _quiet():
            written = self._manager.save(step, args=args.Composite(progress=args.JsonSave(dict(progress)), **parts))
        if not written:
            raise RuntimeError(
                f"Orbax wrote no checkpoint for step {step}; {self._path} has {sorted(self._manager.all_steps())}"
            )

    def progress(self, step: int) -> dict[str, Any]:
        """The JSON item of a checkpoint."""
        return self._progress(self._manager, step)

    def _progress(self, manager: Any, step: int) -> dict[str, Any]:
        args = self._ocp.args
        with _quiet():
            return dict(manager.restore(step, args=args.Composite(progress=args.JsonRestore()))["progress"])

    def restore(self, step: int, items: Mapping[str, Any]) -> dict[str, Any]:
        """The named items with the shapes, dtypes and shardings of the arrays given in `items`.

        Raises:
          LearnerError: an array of the checkpoint differs from the one given; it lists them all.
        """
        args = self._ocp.args
        with _quiet():
            saved = self._manager.item_metadata(step)
            trees = {name: saved[name].tree for name in items}
            refuse_differences(flat(trees), flat(items), f"the checkpoint {self.path(step)}")
            parts = {name: args.StandardRestore(_abstract(item)) for name, item in items.items()}
            return dict(self._manager.restore(step, args=args.Composite(**parts)))

    def metrics(self, step: int) -> dict[str, Any] | None:
        """The item `in_flight`, or `None`."""
        if not (self.path(step) / "in_flight").exists():
            return None
        with _quiet():
            saved = self._manager.item_metadata(step)["in_flight"].tree
            args = self._ocp.args.Composite(in_flight=self._ocp.args.StandardRestore(_abstract(saved)))
            return dict(self._manager.restore(step, args=args)["in_flight"])

    def find(self, epoch: int | str | None = None, step: int | None = None) -> Entry:
        """A checkpoint by the epoch that it ends, by its step, or the `"latest"` or `"best"`."""
        entries = self.entries
        if not entries:
            raise LearnerError(f"there is no checkpoint in {self._path}")
        if epoch == "latest":
            return entries[-1]
        if epoch == "best":
            return self.best() or entries[-1]
        wanted = [e for e in entries if (e.step == step if epoch is None else e.epoch == epoch)]
        if not wanted:
            asked = f"step {step}" if epoch is None else f"the end of epoch {epoch}"
            have = ", ".join(f"step {e.step}" + (f" (epoch {e.epoch})" if e.epoch else "") for e in entries)
            raise LearnerError(f"there is no checkpoint of {asked} in {self._path}; there are: {have}")
        return wanted[-1]

    def best(self) -> Entry | None:
        """The best by the monitored metric; the earlier one of equals; `None` when none has a value."""
        sign = -1.0 if self._higher_is_better else 1.0
        scored = [e for e in self.entries if e.score is not None and e.score == e.score]
        return min(scored, key=lambda e: (sign * e.score, e.step)) if scored else None  # type: ignore[operator]

    def remove_all(self) -> None:
        """Removes every checkpoint."""
        with _quiet():
            for step in self._manager.all_steps():
                self._manager.delete(step)
        self._table.clear()
        self._at_stop.clear()

    def set_aside(self, after: int, directory: Any) -> list[int]:
        """Moves the checkpoints of later steps to another directory: Orbax refuses to write below its newest."""
        newer = [e.step for e in self.entries if e.step > after]
        target = type(self._path)(directory)
        for step in newer:
            target.mkdir(parents=True, exist_ok=True)
            self.path(step).rename(target / str(step))
            self._table.pop(step, None)
            self._at_stop.discard(step)
        if newer:
            with _quiet():
                self._manager.reload()
        return newer

    def close(self) -> None:
        """Gives Orbax's threads back."""
        if "_manager" in vars(self):
            with _quiet():
                self._manager.close()


def _abstract(item: Any) -> Any:
    def abstract(x: Any) -> jax.ShapeDtypeStruct:
        sharding = x.sharding if isinstance(getattr(x, "sharding", None), jax.sharding.Sharding) else None
        sharding = sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(abstract, item)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Orbax reports each file that it reads or writes through absl; a run says itself what matters."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
