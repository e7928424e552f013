"""Fingerprints of a run: what a checkpoint compares with when its run resumes, and processes before they train.

A fingerprint has three parts, as JSON: `data`, the facts of each split; `settings`, what the builder was given, in
words; and `programs`, hashes of the traced steps, optimizer and schedules, which see each constant in them. A
difference is reported in words where data or settings show it, and otherwise as a program that computes something
else.
"""

import dataclasses
import functools
import importlib.metadata
import zlib
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.inputs import Inputs
from learner.metrics.base import CollectingMetric, Metric
from learner.optimizers.description import describe_optimizer, optimizer_change
from learner.optimizers.lengths import OF_RUN, schedules_in, texts_in
from learner.options import Options
from learner.runs.flat import flat
from learner.steps.fingerprint import jaxpr_fingerprint
from learner.steps.optimizer import rate_at, update_params
from learner.steps.precision import FLOAT32
from learner.steps.state import TrainState
from learner.steps.step import Step

JSON = dict[str, Any]
PACKAGES = ("learner", "jax", "jaxlib", "flax", "optax")
FIRST_ROW = "first row"


def fingerprint_of(
    options: Options, step: Step, state: TrainState, inputs: Inputs, lr: float | None, strategy: str
) -> JSON:
    """Return the fingerprint of a run.

    Args:
      options: of the builder.
      step: the definition of its steps, with schedules of a known length.
      state: the shapes of its state.
      inputs: its data, with the traced steps.
      lr: the learning rate, where it is a number.
      strategy: where it runs, in words.
    """
    texts = texts_in(step.schedule, step.optimizer)
    settings = {
        "seed": options.seed,
        "learning rate": lr,
        "optimizer": None if step.optimizer is None else describe_optimizer(step.optimizer),
        "schedules": texts,
        "precision": options.precision_text,
        "strategy": strategy,
        "metrics": metrics_in_flight(options),
        "micro-batches per step": options.accumulate,
    }
    return {
        "data": {split: _facts(inputs, split) for split in ("train", *inputs.valid)},
        "settings": settings,
        "programs": _programs(step, state, inputs),
    }


def metrics_in_flight(options: Options) -> list[str]:
    """The names of the train metrics that have states or rows inside an epoch."""
    return [metric.name for metric in options.metrics_of("train") if isinstance(metric, Metric | CollectingMetric)]


def _facts(inputs: Inputs, split: str) -> JSON:
    """The facts of a split's data. The checksum of its first row sees another order and edited values."""
    facts = {**inputs.source(split).fingerprint(), "rows per batch": inputs.rows(split)}
    digest = 0
    for x in jax.tree.leaves(inputs.firsts[split]):
        digest = zlib.crc32(np.ascontiguousarray(x[0]).tobytes(), digest)
    return {**facts, FIRST_ROW: f"{digest:08x}"}


def _programs(step: Step, state: TrainState, inputs: Inputs) -> JSON:
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
    hashes = {split: jaxpr_fingerprint(program) for split, program in inputs.programs.items()}
    if step.optimizer is not None:
        hashes["optimizer"] = _hash_of_update(step, shapes)
    for place, schedule in schedules_in(step.schedule, step.optimizer):
        traced = jax.make_jaxpr(functools.partial(rate_at, schedule))(shapes.step, shapes.lr_scale)
        hashes[f"{OF_RUN} of {place}" if place else OF_RUN] = jaxpr_fingerprint(traced)
    batches = {split: inputs.batch_shapes(split) for split in inputs.programs}
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"hashes": hashes, "batches": batches, "versions": {**versions, "platform": jax.default_backend()}}


def _hash_of_update(step: Step, shapes: TrainState) -> str:
    """The update alone, whose loss as a function of the parameters is of no interest here."""
    optimizer = step.optimizer
    assert optimizer is not None

    def update(rate: Any, params: Any, opt_state: Any) -> Any:
        given = optimizer, rate, params, opt_state, params
        return update_params(*given, loss=jnp.float32(0), value_fn=lambda _: jnp.float32(0), step=jnp.int32(0))

    try:
        traced = jax.make_jaxpr(update)(shapes.lr_scale, shapes.params, shapes.opt_state)
    except Exception:  # it takes the gradients of each example
        return ""
    return jaxpr_fingerprint(traced)


# -- comparing ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Changes:
    """What differs between two fingerprints, in words.

    Attributes:
      train_data: of the train data, by which a position inside an epoch has another meaning.
      doubts: of the train data, where it cannot repeat itself or its values differ: a position may be another one.
      others: everything else that changes what the run computes from here on.
      logged: what changes last bits at most.
    """

    train_data: list[str]
    doubts: list[str]
    others: list[str]
    logged: list[str]


def saved_fingerprint(progress: Mapping[str, Any]) -> JSON:
    """The fingerprint in a checkpoint's progress. Those of version 0.1.0 have less, under other names."""
    if "fingerprint" in progress:
        saved: JSON = progress["fingerprint"]
        return saved
    grouping, made_with = progress.get("grouping") or {}, dict(progress.get("made_with") or {})
    groups = made_with.get("schedules")
    schedules = {**(groups if isinstance(groups, dict) else {}), OF_RUN: made_with.get("schedule")}
    settings = {
        "seed": made_with.get("seed"),
        "learning rate": made_with.get("lr"),
        "schedules": {place: text for place, text in schedules.items() if text is not None},
        "precision": made_with.get("precision", FLOAT32.description),
        "metrics": made_with.get("metrics"),
        "micro-batches per step": grouping.get("micro-batches per step"),
    }
    settings |= {"strategy": made_with["strategy"]} if "strategy" in made_with else {}
    train = {"rows per batch": grouping.get("rows per batch"), "batches": grouping.get("batches per epoch")}
    return {"data": {"train": train}, "settings": settings, "programs": {}}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Changes:
    """Return the differences between the fingerprint of a checkpoint and that of the run now. Facts that one of them
    does not have are not compared.
    """
    had, have = before["data"], now["data"]
    train, doubts = _data_changes(had.get("train"), have["train"], "train data")
    accumulation = "micro-batches per step"
    settings = {key: (before["settings"].get(key), value) for key, value in now["settings"].items()}
    others, logged = [], []
    for split in have:
        if split != "train" and split in had:
            others += [text for texts in _data_changes(had[split], have[split], f"{split} data") for text in texts]
    if settings[accumulation][0] not in (None, settings[accumulation][1]):
        train.append("{}: {} -> {}".format(accumulation, *settings[accumulation]))
    if settings["seed"][0] != settings["seed"][1]:
        others.append("seed: {} -> {}, and the random keys stay those of the run".format(*settings["seed"]))
    others += _optimizer_changes(settings["optimizer"])
    others += _rate_changes(settings, before)
    if settings["precision"][0] not in (None, settings["precision"][1]):
        others.append("precision: {} -> {}".format(*settings["precision"]))
    others += _program_changes(before, now, train, others)
    if settings["strategy"][0] not in (None, settings["strategy"][1]):
        logged.append("strategy: {} -> {}".format(*settings["strategy"]))
    return Changes(train, doubts, others, logged)


def _data_changes(before: Any, now: Mapping[str, Any], what: str) -> tuple[list[str], list[str]]:
    """The differences that are sure, and those that only raise a doubt."""
    if not isinstance(before, dict):
        return [], []
    flat_before, flat_now = flat(before), flat(now)
    ignored = {"dataset"} if before.get("rows") != now.get("rows") else set()  # it counts rows, too
    if "function" in (before.get("kind"), now.get("kind")) or "iterator" in (before.get("kind"), now.get("kind")):
        ignored.add("class")  # the name of a function says nothing
    differing = [
        key
        for key, value in flat_now.items()
        if key != FIRST_ROW
        and key not in ignored
        and (flat_before.get(key) is not None or (value is not None and key in flat_before))
        and flat_before[key] != value
    ]
    sure = [f"{what}: {key} {flat_before[key]} -> {flat_now[key]}" for key in differing]
    if sure or before.get(FIRST_ROW) in (None, now[FIRST_ROW]):
        return sure, []
    text = f"{what}: its first row is another one"
    repeats = now.get("kind") == "loader" or now.get("class") in ("list", "tuple")
    return ([text], []) if repeats else ([], [f"{text} (an iterable without a seed gives another order each time)"])


def _optimizer_changes(pair: tuple[Any, Any]) -> list[str]:
    before, now = pair
    if not isinstance(before, dict) or not isinstance(now, dict):
        return []
    change = optimizer_change(before, now)
    return [] if change is None else [f"optimizer: {change}"]


def _rate_changes(settings: Mapping[str, tuple[Any, Any]], before: Mapping[str, Any]) -> list[str]:
    texts, had = [], settings["schedules"][0] or {}
    for place, schedule in settings["schedules"][1].items():
        if had.get(place) not in (None, schedule):
            texts.append(f"{place}: {had[place]} -> {schedule}")
    lr, new = settings["learning rate"]
    if lr != new and "learning rate" in before["settings"]:
        texts.append("learning rate: {} -> {}".format(*("a schedule" if x is None else x for x in (lr, new))))
    return texts


def _program_changes(
    before: Mapping[str, Any], now: Mapping[str, Any], data: Collection[str], explained: Collection[str]
) -> list[str]:
    """The programs that differ where nothing in words explains it. Other versions trace other programs."""
    had, have = before["programs"], now["programs"]
    if had.get("versions") != have["versions"]:
        return []
    texts = []
    shapes = {split: had["batches"].get(split) == shape for split, shape in have["batches"].items()}
    for name, value in have["hashes"].items():
        if had["hashes"].get(name) in (None, value):
            continue
        if name not in shapes:
            if not any(text.startswith(name) for text in explained):
                texts.append(f"{name}: it computes something else than when the run was saved")
        elif shapes[name] and not any(text.startswith("precision") for text in explained):
            step = "train step" if name == "train" else "valid step"
            texts.append(f"{step}: it computes something else than when the run was saved")
    return list(dict.fromkeys(texts))
