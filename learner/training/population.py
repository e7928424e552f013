"""The members of a population: their values, names and options."""

import copy
import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.config.distributions import Distribution
from learner.errors import LearnerError, Problem, near, one_error
from learner.models.base import ModelAdapter
from learner.optimizers.configs import OptimizerConfig
from learner.runs.population import member_index
from learner.schedules.plateau import ReduceOnPlateau
from learner.steps.optimizer import init_optimizer, no_loss, update_params
from learner.steps.population import Start
from learner.training.options import Options
from learner.util.jax_internals import distributed_state
from learner.util.number_checks import is_finite, is_int, is_number
from learner.util.text import count, first_line, name_of

MOST_SEED = 2**32
SEED, LR = "seed", "lr"
OTHERS = (
    "Members of a population differ in seed, lr and numbers of the optimizer; anything else (layers, batch size) "
    "changes the program and needs a separate run for each value"
)
OTHER_NAMES = {"n": "size", "members": "size", "num_members": "size", "learning_rate": LR}
"""Usual names of other libraries."""
REMEDIES = {
    "size": "size is the number of drawn members, lr=loguniform(1e-5, 1e-2); seed=range(4) makes four members",
    LR: "lr has the learning rates of the members, lr=[1e-4, 1e-3]",
}

COPY = "make what it holds in on_event, when it gets RunStarted"


@dataclasses.dataclass(frozen=True)
class Member:
    """A member of a population.

    Attributes:
      index: its position in the population.
      values: its values by name: `seed`, `lr`, keyword arguments of the optimizer.
      seed: the seed of its random keys and its initialisation.
      name: the name of its directory.
      config: fields of `Options` for the config of the equivalent separate run, if there is one.
    """

    index: int
    values: Mapping[str, float]
    name: str
    seed: int = 0
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def all_values(self) -> dict[str, float]:
        """The values and the seed, which may be the builder's."""
        return {**self.values, SEED: self.seed}

    @property
    def hyperparameters(self) -> dict[str, float]:
        """The keyword arguments of the optimizer."""
        return {name: value for name, value in self.values.items() if name not in (SEED, LR)}

    def optimizer(self, optimizer: Any) -> Any:
        """Return the optimizer of a separate run with the same settings."""
        return functools.partial(optimizer, **self.hyperparameters) if self.hyperparameters else optimizer

    def start(self, lr: float) -> Start:
        """Return the initial values of its state. `lr`: the builder's; the member's own value replaces it."""
        return Start(float(self.values.get(LR, lr)), self.seed, self.hyperparameters)

    def options(self, options: Options) -> Options:
        """Return the options of a separate run with the same settings, in the directory of the member."""
        return dataclasses.replace(
            options,
            directory=options.directory / self.name,
            shown=f"{options.shown}/{self.name}",
            seed=self.seed,
            population=None,
            renderer=None,
            # Copies, as a logger holds the data of one run.
            loggers=copy.deepcopy(options.loggers),
            **self.config,
        )


@dataclasses.dataclass(frozen=True)
class Population:
    """The members of a population, in order.

    Attributes:
      members: see above.
      data_order: `shared` by all members, or each its `own`.
      waves: the number of groups that train one after another; True: as few as fit into memory.
      wave: the number of this group, from 1, and the number of groups; None for a whole population.
    """

    members: tuple[Member, ...]
    data_order: str = "shared"
    waves: bool | int = False
    wave: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.members)

    @property
    def has_rates(self) -> bool:
        """True if each member has its own learning rate."""
        return all(LR in member.values for member in self.members)

    def with_seed(self, seed: int) -> "Population":
        """Return the population with the builder's seed for members without their own."""
        members = tuple(m if SEED in m.values else dataclasses.replace(m, seed=seed) for m in self.members)
        return dataclasses.replace(self, members=members)

    def in_waves(self, sizes: Sequence[int]) -> list["Population"]:
        """Return populations of the given numbers of consecutive members."""
        ends = list(itertools.accumulate(sizes))
        waves = []
        for number, (size, end) in enumerate(zip(sizes, ends, strict=True), 1):
            # The index is the position within the wave, which selects the member's arrays.
            members = tuple(dataclasses.replace(m, index=i) for i, m in enumerate(self.members[end - size : end]))
            waves.append(Population(members, self.data_order, wave=(number, len(sizes))))
        return waves

    def starts(self, lr: float) -> list[Start]:
        """Return the initial values of the members' states. `lr`: the builder's."""
        return [member.start(lr) for member in self.members]

    def to_json(self) -> list[dict[str, Any]]:
        """Return the members as JSON, for checkpoints and `population.json`."""
        own = {"data_order": self.data_order} if self.data_order == "own" else {}
        return [{"directory": member.name, **member.all_values, **own} for member in self.members]


def population_of(values: Mapping[str, Any], *, zipped: bool = False, size: int | None = None) -> Population:
    """Return the population with these values: the product of lists or, if `zipped` or drawn, one value of each name
    per member.

    Args:
      values: lists of numbers, numbers, or distributions by name.
      zipped: True if the lists have one value for each member.
      size: the number of members; required if values are drawn.

    Raises:
      LearnerError: one error that lists all problems of the values.

    >>> [member.name for member in population_of({"lr": [0.1, 0.2], "seed": 0}).members]
    ['000-lr=0.1-seed=0', '001-lr=0.2-seed=0']
    """
    problems: list[str] = []
    lists = {name: _numbers(name, value, problems) for name, value in values.items()}
    distributions = {name: value for name, value in values.items() if isinstance(value, Distribution)}
    if not values:
        problems.append(
            Problem(
                "population needs the values in which its members differ: seed=range(8), lr=[1e-4, 1e-3]",
                code="population-empty",
            )
        )
    elif size is None and not problems and (other := next((x for x in OTHER_NAMES if is_number(values.get(x))), None)):
        remedy = REMEDIES[OTHER_NAMES[other]]
        problems.append(
            Problem(f"{other} is no argument of population: {remedy}", code="population-key-other", name=other)
        )
    elif size is None and not problems and not any(isinstance(x, Distribution) or _is_list(x) for x in values.values()):
        numbers = ", ".join(f"{name}={value!r}" for name, value in values.items())
        problems.append(
            Problem(
                f"nothing varies: {numbers} applies to all members; list the values of the members, seed=range(8) or "
                "lr=[1e-4, 1e-3], or draw them, lr=loguniform(1e-5, 1e-2) with size=32. One member: lr=[1e-3]",
                code="population-of-one",
                numbers=numbers,
            )
        )
    if size is not None and (not is_int(size) or size < 1):
        problems.append(Problem(f"size is {size!r}; it needs a whole number, 1 or more", code="population-size"))
        size = None
    if distributions and size is None and not problems:
        names = ", ".join(distributions)
        problems.append(
            Problem(
                f"{names} is drawn for each member: give their number, size=32", code="population-size", names=names
            )
        )
    if problems:
        raise one_error(problems, "there is no such population", code="population-invalid")
    if distributions:
        draw_seed = int(lists[SEED][0]) if len(lists.get(SEED, ())) == 1 else 0
        rows = _draw_rows(values, lists, distributions, size or 1, draw_seed)
    elif zipped:
        rows = _zipped(lists)
    else:
        rows = [dict(zip(lists, row, strict=True)) for row in itertools.product(*lists.values())]
    if size is not None and len(rows) != size:
        raise LearnerError(
            f"size is {size}, and the values make {count(len(rows), 'member')}: size is the number of drawn members, "
            f"lr=loguniform(1e-5, 1e-2); without it, seed=range({size}) makes as many",
            code="population-size",
            size=size,
        )
    return _named(rows)


def _numbers(name: str, value: Any, problems: list[str]) -> list[float]:
    """Return the values of a name as a list, and append their problems."""
    if isinstance(value, Distribution):
        if name == SEED:
            problems.append(Problem("seeds are not drawn: give a list, seed=range(8)", code="population-value"))
        return []
    numbers = [
        x.item() if isinstance(x, np.generic | jax.Array) and x.ndim == 0 else x
        for x in (value if _is_list(value) else [value])
    ]
    if not numbers:
        problems.append(Problem(f"{name} is an empty list; it needs numbers", code="population-empty", name=name))
    for x in numbers:
        if name == SEED:
            good = isinstance(x, int) and not isinstance(x, bool) and 0 <= x < MOST_SEED
            needs = "a whole number from 0 to 2**32 - 1"
        else:
            good = is_finite(x) and (name != LR or x >= 0)
            needs = "a finite number, 0 or more" if name == LR else "a finite number"
        if not good:
            problems.append(
                Problem(f"{name} has the value {x!r}; it needs {needs}. {OTHERS}", code="population-value", name=name)
            )
    return numbers


def _is_list(value: Any) -> bool:
    is_iterable = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    return is_iterable and getattr(value, "ndim", 1) > 0


def _draw_rows(
    values: Mapping[str, Any],
    lists: Mapping[str, Sequence[float]],
    distributions: Mapping[str, Distribution],
    size: int,
    seed: int,
) -> list[dict[str, float]]:
    """Return drawn members."""
    columns: dict[str, list[float]] = {}
    for name in values:
        if name in distributions:
            columns[name] = distributions[name].draws(name, seed, size)
        elif len(lists[name]) in (1, size):
            columns[name] = [*lists[name]] * (1 if len(lists[name]) == size else size)
        else:
            raise LearnerError(
                f"{name} has {len(lists[name])} values, and {size} members are drawn: give one, or one for each",
                code="population-lengths",
                name=name,
            )
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _zipped(lists: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    longest = max(map(len, lists.values()))
    if wrong := {name: len(x) for name, x in lists.items() if len(x) not in (1, longest)}:
        counts = ", ".join(f"{name} has {len(x)}" for name, x in lists.items())
        raise LearnerError(
            f"zipped=True pairs the values, and their numbers differ: {counts}",
            code="population-lengths",
            name=next(iter(wrong)),
        )
    full = {name: [*x] * (longest if len(x) == 1 else 1) for name, x in lists.items()}
    return [dict(zip(full, row, strict=True)) for row in zip(*full.values(), strict=True)]


def _named(rows: Sequence[Mapping[str, float]]) -> Population:
    seen: dict[tuple[tuple[str, float], ...], int] = {}
    members = []
    for index, row in enumerate(rows):
        values = dict(row)
        key = tuple(values.items())
        if key in seen:
            text = ", ".join(f"{name}={value:g}" for name, value in values.items())
            raise LearnerError(
                f"the members {seen[key]} and {index} are the same, {text}: give each value once, or other seeds",
                code="population-twice",
            )
        seen[key] = index
        words = [f"{index:03d}", *(f"{name}={_short(value)}" for name, value in values.items())]
        members.append(Member(index, values, "-".join(words), int(values.get(SEED, 0))))
    return Population(tuple(members))


def _short(value: float) -> str:
    """Return the shortest text of a number: `0.0001`, `3e-05`."""
    return str(value) if isinstance(value, int) else repr(float(value))


# -- unsupported features of a population ------------------------------------------------------------------------------


def optimizer_problems(population: Population, optimizer: Any, params: Any) -> Iterator[str]:
    """Yield the problems of the members' keyword arguments with an optimizer. Nothing is compiled."""
    for name, value in population.members[0].hyperparameters.items():
        known = keywords_of(optimizer)
        if known is not None and name not in known:
            hint = near(OTHER_NAMES.get(name, name), [SEED, LR, "size", *known])
            yield Problem(
                f"{name_of(optimizer)} does not take {name} ({hint}). {OTHERS}",
                code="population-key-unknown",
                name=name,
            )
        elif reason := _not_traceable(optimizer, population.members[0].hyperparameters, name, params):
            yield Problem(
                f"{name_of(optimizer)} cannot take {name}={value!r} as a traced number: {reason}. {OTHERS}",
                code="population-key-not-numeric",
                name=name,
            )


def keywords_of(optimizer: Any) -> list[str] | None:
    """Return the other keywords of a function of the learning rate that may be numbers; None if it accepts any keyword.

    >>> keywords_of(lambda lr, weight_decay=0.1: None), keywords_of(lambda lr, **others: None)
    (['weight_decay'], None)
    """
    if isinstance(optimizer, OptimizerConfig):
        return [name for name, value in vars(optimizer).items() if not isinstance(value, bool | str)]
    try:
        parameters = list(inspect.signature(optimizer).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters[1:] if p.kind is not p.POSITIONAL_ONLY and not isinstance(p.default, bool)]


def _not_traceable(optimizer: Any, values: Mapping[str, float], name: str, params: Any) -> str | None:
    """Return why a keyword of an optimizer cannot be traced, or None."""

    def once(params: Any, lr: Any, value: Any) -> Any:
        given = functools.partial(optimizer, **{**values, name: value})
        opt_state = init_optimizer(given, None, params, lr)
        return update_params(given, lr, params, opt_state, params, loss=no_loss(params), value_fn=no_loss)

    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    try:
        jax.eval_shape(once, params, scalar, scalar)
    except Exception as error:
        return first_line(error)
    return None


def _not_copyable(logger: Any) -> str | None:
    """Return why a logger cannot be copied, or None."""
    try:
        copy.deepcopy(logger)
    except Exception as error:
        return first_line(error)
    return None


def member_problem(options: Options) -> str | None:
    """Return why a new run may not begin in the directory, or None. In the directory of a population's member, it would
    replace the member's files.
    """
    if options.start is not None or member_index(options.directory) is None:
        return None
    return Problem(
        f"{options.directory} is a member of the population in {options.directory.parent}: resume() trains it by "
        "itself, and a run in another directory can begin with it: "
        f"initial_from({str(options.directory)!r}, 'latest')",
        code="directory-of-member",
        directory=options.directory,
    )


def option_problems(
    options: Options, model: Any, adapter: ModelAdapter, lr: Any, update: Callable[..., Any] | None
) -> list[str]:
    """Return the problems of options and arguments of `build` that are incompatible with the population."""
    population = options.population
    assert population is not None
    problems: list[str] = [
        Problem(f"a population {what}: {instead}", code="population-unsupported", what=what)
        for what, instead in (
            *_unsupported_devices(options, population),
            *_unsupported_rates(options, population, lr, update),
            *_unsupported_options(options),
        )
    ]
    if len({member.seed for member in population.members}) > 1 and not (adapter.seeded and adapter.fresh):
        problems.append(
            Problem(
                f"the members have different seeds, and the model ({type(model).__name__}) would be the same for all: "
                "give build a function of the random streams, lambda rngs: Model(rngs=rngs), which can be traced; "
                "other libraries take keys from rngs()",
                code="population-model-not-a-function",
            )
        )
    return problems


def _unsupported_devices(options: Options, population: Population) -> Iterator[tuple[str, str]]:
    """Yield what a population does not support on the devices of the run, with an alternative for each."""
    devices = options.devices
    shares = 1 if devices is None else devices.member_shares
    if population.data_order == "own" and devices is not None and (shares > 1 or not devices.resident):
        yield "on several devices has data_order='shared' only", "leave data_order or devices out"
    if devices is not None and devices.splits:
        yield "has no rules of Sharded", "leave them out; the axis member of the mesh spreads the members"
    elif distributed_state().num_processes > 1:
        yield "trains in one process", "start one process"
    if len(population) % shares:
        counts = [n for n in range(1, shares) if len(population) % n == 0]
        mapped = devices is not None and devices.members_are_mapped
        over, choose = ("devices", "devices(n)") if mapped else ("groups of devices", "an axis member of the mesh")
        yield f"of {len(population)} does not divide over {shares} {over}", f"choose {choose} of {counts}"
    elif population.waves > len(population) // shares:
        on = f" on {shares} devices" if shares > 1 else ""
        most = len(population) // shares
        yield f"of {len(population)}{on} does not divide into {population.waves} waves", f"choose at most {most}"


def _unsupported_rates(
    options: Options, population: Population, lr: Any, update: Callable[..., Any] | None
) -> Iterator[tuple[str, str]]:
    """Yield the unsupported learning rates and keyword arguments of the optimizer."""
    if isinstance(lr, ReduceOnPlateau) and options.exploit is not None:
        yield "with exploit has no ReduceOnPlateau", "both set the rate of a member; leave one of them out"
    elif isinstance(lr, ReduceOnPlateau) and _least_rate(population, lr) < float(lr.settings["min_lr"]):
        what = "rates" if lr.schedule is None else "factors of the rate"
        yield f"has {what} below min_lr of its ReduceOnPlateau", "which would raise them; lower it"
    if update is not None and any(member.hyperparameters for member in population.members):
        yield "with update= has no keywords of the optimizer", "seed and lr may differ"
    if population.waves and (options.halving is not None or options.exploit is not None):
        yield (
            "in waves has no halving and no exploit",
            "they compare members that train at the same time; leave waves out",
        )


def _least_rate(population: Population, lr: ReduceOnPlateau) -> float:
    return min(start.lr_scale for start in population.starts(lr.lr))


def _unsupported_options(options: Options) -> Iterator[tuple[str, str]]:
    """Yield the other unsupported options."""
    if options.has_hooks:
        yield "has no hooks (on_epoch_end, every)", "read the history of each member in the result"
    for logger in options.loggers:
        if logger.place is not None:
            yield (
                f"shares no place that {name_of(logger)} writes to",
                "leave its path or the logger out; each member writes into its own directory",
            )
        elif reason := _not_copyable(logger):
            yield f"copies its loggers for each member, and {name_of(logger)} cannot be copied ({reason})", COPY
    if options.restore_best:
        yield "has no restore_best", "the best epoch differs between members; leave it out"
    if options.learner_class is not None:
        yield "has no learner_class", "leave it out"
    if options.config_text is not None:
        yield "cannot be trained from a config", "build it in Python, or list the values in learner sweep --together"
    if options.profile is not None:
        yield "cannot be profiled", "profile a run of one member"
    if options.checkpoints is not None and options.checkpoints.record is not None:
        yield "writes no records beside its checkpoints", "save_model(result[i].model, path) does"
    if str(jax.config.values["jax_default_prng_impl"]) != "threefry2x32":
        yield (
            "needs the random keys of threefry2x32, whose numbers do not depend on the other members",
            "set jax_default_prng_impl to it",
        )
