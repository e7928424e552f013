"""Fingerprints of runs. A resuming run compares its fingerprint with the checkpoint's; processes compare theirs.

A fingerprint has three parts, as JSON: `data`, the facts of each split; `settings`, texts of the builder's options; and
`programs`, hashes of the traced steps, optimizer and schedules, including their constants. A difference is described
if data or settings show it; otherwise it is reported as a program that computes something else.
"""

import contextlib
import dataclasses
import functools
import zlib
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.metrics.base import CollectingMetric, Metric, MetricBase
from learner.optimizers.base import OptimizerFactory
from learner.optimizers.description import describe_optimizer, optimizer_change
from learner.optimizers.schedule_resolution import OF_RUN, describe_schedules, schedules_in
from learner.runs.flat_config import flat
from learner.schedules.decays import Constant
from learner.steps.optimizer import init_optimizer, injected_hyperparameters, lr_at, no_loss, update_params
from learner.steps.precision import FLOAT32
from learner.steps.program_fingerprint import jaxpr_fingerprint
from learner.steps.step import HYPERPARAMETERS, StepFunctions
from learner.steps.train_state import TrainState
from learner.training.definition import TrainingDefinition
from learner.training.feed.inputs import Inputs
from learner.training.options import BACKWARD_ONLY, LOSS_SCALE, Options
from learner.util.distribution import versions
from learner.util.jaxprs import dependent_outputs
from learner.util.text import printable
from learner.util.trees import named_leaves

JSON = dict[str, Any]
PACKAGES = ("learner", "jax", "jaxlib", "flax", "optax")
FIRST_ROW, CONTENTS = "first row", "contents"  # checksums
LISTS = ("list", "tuple")
SIZES = ("rows", "batches", "rows per batch")
LONGEST = 500  # characters of a text
MOST_LABELS = 1000  # texts of a field that are stored by name
MICRO_BATCHES = "micro-batches per step"
"""The option that changes the meaning of a position inside an epoch."""
PARTS = "parts per micro-batch"
WITH_OWN_COMPARISON = frozenset(
    (
        "learning rate",
        "optimizer",
        "schedules",
        "plateau",
        "initial learning rate",
        "precision",
        "strategy",
        "metrics",
        "metric settings",
        "population",
    )
)
"""Settings with a separate comparison. All others are options, and any difference is reported."""
NOTES = {"seed": ", and the random keys stay those of the run"}
AFTER_STEP = "after_step"
INJECTED = "injected"
OTHER_PROGRAM = "it computes something else than when the run was saved"


def fingerprint_of(definition: TrainingDefinition, inputs: Inputs) -> JSON:
    """Return the fingerprint of a run whose schedules are resolved. `inputs`: its data, with the traced steps."""
    options, step, plateau = definition.options, definition.step, definition.optimizer.plateau
    number = None if step.schedule is not None else definition.optimizer.lr
    settings = {
        **options.recorded("resume"),
        "learning rate": number if plateau is None else None,
        "optimizer": None if step.optimizer is None else describe_optimizer(step.optimizer),
        "schedules": describe_schedules(step.schedule, step.optimizer),
        "plateau": None if plateau is None else plateau.settings,
        "initial learning rate": None if plateau is None else number,
        "precision": options.precision_text,
        "strategy": definition.strategy.description,
        "metrics": metrics_in_flight(options),
        "metric settings": metric_settings(options),
        "population": None if options.population is None else options.population.to_json(),
        **_selections(options),
    }
    return {
        "data": {split: _facts(inputs, split) for split in ("train", *inputs.valid)},
        "settings": settings,
        "programs": _programs(step, definition.shapes(), inputs),
    }


def _selections(options: Options) -> dict[str, str]:
    """Return texts about the selections among the members of a population, by the builder's methods."""
    if options.population is None:
        return {}
    selections = {"halving": options.halving, "exploit": options.exploit}
    return {name: "none" if selection is None else selection.settings for name, selection in selections.items()}


def metrics_in_flight(options: Options) -> list[str]:
    """Return the names of the train metrics that have states or rows inside an epoch."""
    return [metric.name for metric in options.metrics_of("train") if isinstance(metric, Metric | CollectingMetric)]


def metric_settings(options: Options, base: type[MetricBase] = MetricBase) -> dict[str, dict[str, str]]:
    """Return the numeric and text attributes of all metrics of a class, as texts."""
    by_metric: dict[str, dict[str, str]] = {}
    for kind in ("train", "valid"):
        for metric in options.metrics_of(kind):
            if not isinstance(metric, base):
                continue
            settings = {name: repr(x) for name, x in vars(metric).items() if isinstance(x, bool | int | float | str)}
            by_metric[f"{kind}/{metric.name}"] = {name: text[:LONGEST] for name, text in sorted(settings.items())}
    return by_metric


def _facts(inputs: Inputs, split: str) -> JSON:
    """Return the facts of a split's data. The checksum of its first row detects another order."""
    facts = {**inputs.source(split).fingerprint(), "rows per batch": inputs.rows(split)}
    digest = 0
    for x in jax.tree.leaves(inputs.first_batches[split]):
        digest = zlib.crc32(np.ascontiguousarray(x[0]).tobytes(), digest)
    labels = {field: list(names) for field, names in inputs.labels.items() if len(names) <= MOST_LABELS}
    if labels and split == "train":
        facts["labels"] = labels
    return {**facts, FIRST_ROW: f"{digest:08x}"}


def _programs(step: StepFunctions, state: TrainState, inputs: Inputs) -> JSON:
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
    hashes = {split: jaxpr_fingerprint(program) for split, program in inputs.programs.items()}
    if step.optimizer is not None:
        optimizer = _without_schedules(step.optimizer)
        hashes["optimizer"] = _hash_of_update(optimizer, shapes)
        if names := injected_hyperparameters(shapes.opt_state):
            hashes[INJECTED] = _hash_of_injected(optimizer, shapes, names)
    if step.after_step:
        traced = jax.make_jaxpr(step.transform_model)(shapes.params, shapes.model_state, shapes)
        hashes[AFTER_STEP] = jaxpr_fingerprint(traced)
    for name, schedule in schedules_in(step.schedule, step.optimizer):
        traced = jax.make_jaxpr(functools.partial(lr_at, schedule))(shapes.step, shapes.lr_scale)
        hashes[f"{OF_RUN} of {name}" if name else OF_RUN] = jaxpr_fingerprint(traced)
    batches = {split: inputs.batch_shapes(split) for split in inputs.programs}
    installed = {**versions(*PACKAGES), "platform": jax.default_backend()}
    return {"hashes": hashes, "batches": batches, "versions": installed}


def _without_schedules(optimizer: Any) -> Any:
    """Return the optimizer with a constant in place of each schedule, as schedules are compared separately."""
    if isinstance(optimizer, OptimizerFactory):
        return optimizer.with_schedules(lambda name, schedule: Constant(0.0))
    return optimizer


def _hash_of_injected(optimizer: Any, shapes: TrainState, names: Collection[str]) -> str:
    """Return the hash of the constants that `optax.inject_hyperparams` stores in the optimizer's initial state.
    Schedules have a state of their own, and numbers that depend on the rate are computed anew in each step.
    """
    states = [name for name in named_leaves(shapes.opt_state) if "hyperparams_states." in name]
    prefixes = {name: name.replace("hyperparams.", "hyperparams_states.") + "." for name in names}
    constants = sorted(name for name in names if not any(state.startswith(prefixes[name]) for state in states))

    def traced(names: Collection[str]) -> Any:
        def injected(rate: Any, params: Any, keywords: Any) -> dict[str, Any]:
            given = functools.partial(optimizer, **keywords) if keywords else optimizer
            leaves = named_leaves(init_optimizer(given, None, params, rate))
            return {name: leaves[name] for name in names}

        return jax.make_jaxpr(injected)(shapes.lr_scale, shapes.params, shapes.extra.get(HYPERPARAMETERS, {}))

    jaxpr = traced(constants).jaxpr
    of_rate = dependent_outputs(jaxpr, [True, *[False] * (len(jaxpr.invars) - 1)])
    constants = [name for name, depends in zip(constants, of_rate, strict=True) if not depends]
    return jaxpr_fingerprint(traced(constants)) if constants else ""


def _hash_of_update(optimizer: Any, shapes: TrainState) -> str:
    """Return the hash of the update without the loss function."""

    def update(rate: Any, params: Any, opt_state: Any, grads: Any, keywords: Any) -> Any:
        given = functools.partial(optimizer, **keywords) if keywords else optimizer, rate, grads, opt_state, params
        return update_params(*given, loss=no_loss(params), value_fn=no_loss, step=jnp.int32(0))

    of_examples = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape), x.dtype), shapes.params)
    for grads in (shapes.params, of_examples):  # some optimizers take the gradients of each example
        # An update that cannot be traced here has no hash, and is compared only by its settings.
        with contextlib.suppress(Exception):
            state = shapes.params, shapes.opt_state
            keywords = shapes.extra.get(HYPERPARAMETERS, {})
            traced = jax.make_jaxpr(update)(shapes.lr_scale, *state, grads, keywords)
            return jaxpr_fingerprint(traced)
    return ""


# -- comparing ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Changes:
    """Texts about the differences between two fingerprints.

    Attributes:
      train_data: changes of the train data that invalidate a position inside an epoch.
      doubts: changes of the train data that may do so: it cannot repeat itself, or its values differ.
      others: all other changes that affect the run from here on.
      logged: changes that affect at most the last bits.
      versions: versions of packages that differ.
      uncompared: names of steps that differ, but may do so only because other versions traced them.
    """

    train_data: list[str]
    doubts: list[str]
    others: list[str]
    logged: list[str]
    versions: list[str]
    uncompared: list[str]


def saved_fingerprint(progress: Mapping[str, Any]) -> JSON:
    """Return the fingerprint in a checkpoint's progress. Version 0.1.0 saved fewer settings under other names."""
    if "fingerprint" in progress:
        saved: JSON = progress["fingerprint"]
        return saved
    grouping, saved_settings = mapping_at(progress, "grouping"), mapping_at(progress, "made_with")
    schedules = {**mapping_at(saved_settings, "schedules"), OF_RUN: saved_settings.get("schedule")}
    settings = {
        "seed": saved_settings.get("seed"),
        "learning rate": saved_settings.get("lr"),
        "schedules": {name: text for name, text in schedules.items() if text is not None},
        "precision": saved_settings.get("precision", FLOAT32.description),
        "metrics": saved_settings.get("metrics"),
        MICRO_BATCHES: grouping.get(MICRO_BATCHES),
    }
    settings |= {"strategy": saved_settings["strategy"]} if "strategy" in saved_settings else {}
    train = {"rows per batch": grouping.get("rows per batch"), "batches": grouping.get("batches per epoch")}
    return {"data": {"train": train}, "settings": settings, "programs": {}}


def mapping_at(content: Any, *names: str) -> dict[str, Any]:
    """Return an object inside of the JSON of a checkpoint, which is untrusted. It is empty if there is none.

    >>> mapping_at({"data": {"train": {"rows": 8}}}, "data", "train"), mapping_at({"data": 3}, "data", "train")
    ({'rows': 8}, {})
    """
    for name in names:
        content = content.get(name) if isinstance(content, dict) else None
    return content if isinstance(content, dict) else {}


def saved_labels(progress: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the texts that the train split numbered, by field; empty for checkpoints of versions without them."""
    return {
        field: names
        for field, names in mapping_at(saved_fingerprint(progress), "data", "train", "labels").items()
        if isinstance(names, list) and all(isinstance(name, str) for name in names)
    }


def other_precision(progress: Mapping[str, Any], now: str) -> str | None:
    """Return the precision that a run trained in if it differs from `now`, the `precision_text` of its options."""
    saved = mapping_at(saved_fingerprint(progress), "settings").get("precision")
    before, after = (_of_forward_pass(text if isinstance(text, str) else now) for text in (saved, now))
    return None if before == after else _shown(before)


def _of_forward_pass(precision: str) -> str:
    """Return the part of a `precision_text` that affects the forward pass."""
    for part in BACKWARD_ONLY:
        precision = precision.partition(part)[0]
    return precision


def _scales_loss(precision: str) -> bool:
    """Return True if the state of a `precision_text` has a loss scale. The default one of float16 is not named."""
    return LOSS_SCALE in precision or precision.startswith("float16")


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Changes:
    """Return the differences between the fingerprints of a checkpoint and of the current run. Facts that one of them
    lacks are not compared.
    """
    had, have = {split: facts for split, facts in before["data"].items() if isinstance(facts, dict)}, now["data"]
    train, doubts = _data_changes(had.get("train"), have["train"], "train data")
    others = []
    for split in have:
        if split != "train":
            others += [text for texts in _data_changes(had.get(split), have[split], f"{split} data") for text in texts]
    others += [f"{split} data: {facts.get('class')} -> none" for split, facts in had.items() if split not in have]
    settings, programs = _Settings(before["settings"], now["settings"]), _Programs(before["programs"], now["programs"])
    train += settings.change(MICRO_BATCHES)
    for name in settings.now:
        if name not in WITH_OWN_COMPARISON and name != MICRO_BATCHES:
            others += [text + NOTES.get(name, "") for text in settings.change(name)]
    others += _optimizer_changes(settings, programs)
    others += _rate_changes(settings, programs)
    others += settings.change("plateau")
    others += settings.change("precision")
    others += _metric_changes(settings)
    others += [] if settings.explain_programs() else programs.changes_of_steps()
    logged = settings.change("strategy")
    return Changes(
        train_data=list(map(_shown, train)),
        doubts=list(map(_shown, doubts)),
        others=list(map(_shown, others)),
        logged=list(map(_shown, logged)),
        versions=list(map(_shown, programs.changes_of_versions())),
        uncompared=programs.uncompared_steps(),
    )


def _shown(text: str) -> str:
    """Return a text as one line of limited length, because checkpoints are untrusted."""
    return printable(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")


def _metric_changes(settings: "_Settings") -> list[str]:
    """Return the metrics with the same name and different settings."""
    had, have = mapping_at(settings.before, "metric settings"), settings.now["metric settings"]
    return [
        f"{key}: {', '.join(changed)}"
        for key, now in have.items()
        if isinstance(before := had.get(key), dict)
        and (changed := [f"{name} {before[name]} -> {x}" for name, x in now.items() if before.get(name, x) != x])
    ]


@dataclasses.dataclass(frozen=True)
class _Settings:
    """The settings of a checkpoint and of the run that resumes from it."""

    before: Mapping[str, Any]
    now: Mapping[str, Any]

    def change(self, name: str) -> list[str]:
        """Return a list with a text if the setting changed; it is empty otherwise, or if one fingerprint lacks it."""
        had, have = self.before.get(name), self.now[name]
        if name == PARTS and name in self.before:  # None: the builder did not set them
            had, have = had or 1, have or 1
        return [f"{name}: {had} -> {have}"] if had not in (None, have) else []

    def explain_programs(self) -> bool:
        """Return True if another precision changed the traced steps, so that one line about it is enough. Another loss
        scale does not change them: it is a number in the state.
        """
        had, have = self.before.get("precision"), self.now["precision"]
        if not isinstance(had, str):
            return False
        return _of_forward_pass(had) != _of_forward_pass(have) or _scales_loss(had) != _scales_loss(have)


@dataclasses.dataclass(frozen=True)
class _Programs:
    """The traced programs of a checkpoint and of the run that resumes from it. Different versions of packages trace
    differently, so programs that differ are comparable only within one version.
    """

    before: Mapping[str, Any]
    now: Mapping[str, Any]

    @property
    def hashes(self) -> Mapping[str, Any]:
        """The hashes of the checkpoint by name; empty if it has none."""
        return mapping_at(self.before, "hashes")

    @property
    def versions(self) -> Mapping[str, Any]:
        """The versions that traced the programs of the checkpoint; empty if it has none."""
        return mapping_at(self.before, "versions")

    def is_same(self, name: str) -> bool | None:
        """Return True if the programs of that name are the same, False if not, and None if they are incomparable."""
        had, have = self.hashes.get(name), self.now["hashes"].get(name)
        if not had or not have:
            return None
        if had != have and self.versions != self.now["versions"]:
            return None
        return bool(had == have)

    def changes_of_steps(self) -> list[str]:
        """Return the steps that compute something else from batches of equal shapes."""
        shapes, texts = mapping_at(self.before, "batches"), []
        for split, shape in self.now["batches"].items():
            if self.is_same(split) is False and shapes.get(split) == shape:
                texts.append(f"{_step_name(split)}: {OTHER_PROGRAM}")
        # Another version of `learner` may not have recorded it.
        is_recorded = bool(self.hashes) and self.versions.get("learner") == self.now["versions"]["learner"]
        if is_recorded and (AFTER_STEP in self.hashes) != (AFTER_STEP in self.now["hashes"]):
            texts.append(f"{AFTER_STEP}: it was added or removed")
        elif self.is_same(AFTER_STEP) is False:
            texts.append(f"{AFTER_STEP}: {OTHER_PROGRAM}")
        return list(dict.fromkeys(texts))

    def changes_of_versions(self) -> list[str]:
        """Return the versions that differ. A package that the checkpoint does not name is not compared."""
        now = self.now["versions"]
        return [
            f"{name}: {self.versions[name]} -> {now[name]}"
            for name in now
            if self.versions.get(name, now[name]) != now[name]
        ]

    def uncompared_steps(self) -> list[str]:
        """Return the names of the steps whose hashes differ and were made by other versions."""
        names = [name for name in (*self.now["batches"], AFTER_STEP) if name in self.now["hashes"]]
        uncompared = [name for name in names if self.hashes.get(name) and self.is_same(name) is None]
        return list(dict.fromkeys(map(_step_name, uncompared)))


def _step_name(name: str) -> str:
    return name if name == AFTER_STEP else f"{'train' if name == 'train' else 'valid'} step"


def _data_changes(before: Any, now: Mapping[str, Any], what: str) -> tuple[list[str], list[str]]:
    """Return the certain and the possible differences, each as at most one text."""
    if not isinstance(before, dict):
        return [], []
    had, have = flat(before), flat(now)
    differing = [key for key in have if key in had and had[key] != have[key] and key not in (FIRST_ROW, CONTENTS)]
    known = [key for key in differing if None not in (had[key], have[key])]
    # One process knows all rows, and one of several with data of each process does not.
    own = before.get("own") or now.get("own")
    unknown = [key for key in ("rows", "dataset") if own and key in differing and key not in known]
    differing = [key for key in differing if key not in unknown]
    same_class = had.get("class") == have["class"] or all(x.get("class") in LISTS for x in (before, now))
    other_kind = "kind" in known
    if other_kind:
        differing = [key for key in known if not key.startswith("fields")]
    elif not same_class:  # it may yield the same batches, with other facts
        differing = known = [key for key in known if key in SIZES]
    texts = [f"{had.get('class')} -> {have['class']}"] if other_kind else []
    unseen = {"kind", "class"} | ({"batch_size"} if "rows per batch" in known else set())
    unseen |= {"dataset"} if "rows" in known else set()  # it counts rows, too
    # Within a kind a missing fact is another fact, such as a seed that is no longer given.
    texts += [f"{key} {had[key]} -> {have[key]}" for key in differing if key not in unseen]
    if texts:
        return [f"{what}: {', '.join(texts)}"], []
    if not same_class and now.get("kind") == "iterable":
        return [], [f"{what}: {had.get('class')} -> {have['class']}"]  # which may give the same batches
    if unknown:
        return [], []  # the rows of process 0 are other ones
    if before.get(FIRST_ROW) not in (None, now[FIRST_ROW]):
        text = f"{what}: its first row differs"
    elif before.get(CONTENTS) not in (None, now.get(CONTENTS)):
        text = f"{what}: some of its rows differ"
    else:
        return [], []
    if now.get("in_memory") or now.get("class") in LISTS:
        return [text], []
    return [], [f"{text} (shuffled or augmented without a seed, or computed on another machine?)"]


def _optimizer_changes(settings: _Settings, programs: _Programs) -> list[str]:
    before, now = settings.before.get("optimizer"), settings.now["optimizer"]
    same = programs.is_same("optimizer")
    if not isinstance(before, dict) or now is None:
        return []
    change = optimizer_change(before, now)
    if programs.is_same(INJECTED) is False:  # the update reads these numbers from its state, which is restored
        return [f"optimizer: {change or OTHER_PROGRAM}; optax.inject_hyperparams keeps the numbers of the checkpoint"]
    if same:
        return []
    return [f"optimizer: {change}"] if change else [f"optimizer: {OTHER_PROGRAM}"] if same is False else []


def _rate_changes(settings: _Settings, programs: _Programs) -> list[str]:
    schedules, had, texts = settings.now["schedules"], mapping_at(settings.before, "schedules"), []
    for name, text in schedules.items():
        same = programs.is_same(name)
        if same or name not in had:
            continue
        if had[name] != text:
            texts.append(f"{name}: {had[name]} -> {text}")
        elif same is False:
            texts.append(f"{name}: {OTHER_PROGRAM}")
    of_plateau = "initial learning rate"  # older fingerprints lack it
    name = "learning rate" if None in (settings.before.get(of_plateau), settings.now[of_plateau]) else of_plateau
    rates = settings.before.get(name), settings.now[name]
    if None not in rates and all("lr" in member for member in settings.now["population"] or [{}]):
        return texts  # the rates of the members replace it
    if name in settings.before and rates[0] != rates[1]:
        lr, new = ("a schedule" if rate is None else rate for rate in rates)
        texts.append(f"{name}: {had.get(OF_RUN, lr)} -> {schedules.get(OF_RUN, new)}")
    return texts
