"""The schema of a checkpoint's `progress`, to refuse a checkpoint that no run can have written before it is used."""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from learner.errors import LearnerError
from learner.runs.history import History
from learner.runs.journal import LARGEST, is_value
from learner.runs.log_cutting import refuse_position
from learner.steps.finite import CODES
from learner.util.json_values import decode


def _count(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and 0 <= x < LARGEST


def _optional(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda x: x is None or check(x)


def _is(kind: Any) -> Callable[[Any], bool]:
    return lambda x: isinstance(x, kind)


def _position(x: Any) -> bool:
    fields = {"epoch", "batch", "step", "in_epoch", "due", "left"}
    return (
        isinstance(x, dict)
        and x.keys() - {"lr_factor"} == fields
        and _rate_value(x.get("lr_factor", 1.0))
        and all(_count(x[name]) for name in ("epoch", "batch", "step", "in_epoch"))
        and x["epoch"] >= 1
        and x["in_epoch"] <= min(x["step"], x["batch"])
        and x["due"] in ("", "validation", "epoch", "hooks")
        and isinstance(x["left"], list)
        and all(map(_is(str), x["left"]))
    )


def _fingerprint(x: Any) -> bool:
    """Return True for a fingerprint. Checkpoints of version 0.1.0 have `grouping` and `made_with` instead."""
    return isinstance(x, dict) and all(isinstance(x.get(part), dict) for part in ("data", "settings", "programs"))


def _key(x: Any) -> bool:
    # Keys of threefry2x32 have two words, and those of rbg four.
    return isinstance(x, list) and len(x) in (2, 4) and all(_count(word) and word < 2**32 for word in x)


def _keys(x: Any) -> bool:
    """Return True for the key of a run, or the keys of a population."""
    return _key(x) or (isinstance(x, list) and bool(x) and all(map(_key, x)) and len(set(map(len, x))) == 1)


def _halted(x: Any) -> bool:
    """Return True for the step that ended a member of a population."""
    is_step = _fields(epoch=_count, step=_count, kind=lambda kind: kind in CODES)
    return is_step(x) and len(x) == 3


def _stopped(x: Any) -> bool:
    """Return True for the end of a member of a population by early stopping or halving."""
    is_end = _fields(reason=_is(str), epoch=_count, step=_count, ends_epoch=_is(bool))
    return is_end(x) and len(x) == 4


def _lanes(x: Any, members: int) -> bool:
    """Return True for the lanes of a population: the members in its programs, in order."""
    if x is None:
        return True
    return isinstance(x, list) and bool(x) and all(map(_count, x)) and x == sorted(set(x)) and x[-1] < members


def _changes(x: Any) -> bool:
    """Return True for the changes of the epochs' length: pairs of epochs and steps, both increasing."""
    if not isinstance(x, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in x):
        return False
    counts = [[0, 0], *x]
    return all(_count(b) and b > a for before, after in pairwise(counts) for a, b in zip(before, after, strict=True))


def _number(x: Any) -> bool:
    """Return True for a number in JSON, or the name of a non-finite number."""
    return is_value(x) and not isinstance(decode(x), str | bool)


def _fields(**checks: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a check for an object with these fields, each with its own check."""
    return lambda x: isinstance(x, dict) and all(name in x and check(x[name]) for name, check in checks.items())


def _data(x: Any) -> bool:
    return not (isinstance(x, dict) and x.keys() == {"processes"}) or isinstance(x["processes"], list)


def _rate_value(x: Any) -> bool:
    return isinstance(x, float | int) and not isinstance(x, bool) and is_value(x) and 0 <= x < math.inf


STOPPING = _fields(monitor=_is(str), best=_optional(_number), without=_count, seen=_count)
REPORTED: dict[str, Callable[[Any], bool]] = {
    "history": _is(dict),
    "log": _is(dict),
    "epoch_values": lambda x: isinstance(x, dict) and all("/" in key and is_value(x[key]) for key in x),
    "host_metrics": lambda x: isinstance(x, dict) and all(map(_is(dict), x.values())),
}
"""The fields of a run's reporter, and in a population of each member's."""

PLATEAU = _fields(best=_optional(_number), rate=_rate_value, without=_count, resting=_count)


def _plateau(x: Any) -> bool:
    """Return True for the state of a plateau. Older ones lack its initial rate."""
    return PLATEAU(x) and _rate_value(x.get("initial", 0.0))


PROGRESS: dict[str, Callable[[Any], bool]] = {
    "position": _position,
    "monitor": _is(str),
    "higher_is_better": _is(bool),
    "score": _optional(_number),
    "root_key": _keys,
    **REPORTED,
    "early_stopping": lambda x: isinstance(x, list) and all(map(STOPPING, x)),
    "plateau": _optional(_plateau),
    "validated_step": _optional(_count),
    "ends_epoch": _optional(_count),
    "at_stop": _is(bool),
    "at_end": _is(bool),
    "config": _optional(_is(str)),
    "made_on": _is(dict),
}


OLD: dict[str, Callable[[Any], bool]] = {
    "grouping": lambda x: isinstance(x, dict) and all(map(_optional(_count), x.values())),
    "made_with": _is(dict),
}
"""Fields in place of the fingerprint in checkpoints of version 0.1.0."""


def refuse_malformed(progress: Mapping[str, Any], step: int, path: str) -> None:
    """Raise `LearnerError` if no run can have written this progress: the checkpoint may come from an attacker."""
    checks = PROGRESS | ({"fingerprint": _fingerprint} if "fingerprint" in progress else OLD)
    malformed = [name for name, check in checks.items() if name not in progress or not check(progress[name])]
    if not _data(progress.get("data")):
        malformed.append("data")
    members = progress.get("members", [])
    if not (
        isinstance(members, list)
        and all(map(_fields(**REPORTED, halted=_optional(_halted), stopped=_optional(_stopped)), members))
    ):
        malformed.append("members")
    if not _lanes(progress.get("lanes"), len(members)):
        malformed.append("lanes")
    plateaus = progress.get("plateaus", [])
    if not (isinstance(plateaus, list) and all(map(_plateau, plateaus)) and len(plateaus) in (0, len(members))):
        malformed.append("plateaus")
    ahead = progress.get("steps_ahead", 0)  # older checkpoints lack it
    if not isinstance(ahead, int) or isinstance(ahead, bool) or abs(ahead) >= LARGEST:
        malformed.append("steps_ahead")
    if not _changes(progress.get("epoch_changes", [])):  # older checkpoints lack them
        malformed.append("epoch_changes")
    if not malformed and progress["position"]["step"] != step:
        malformed = ["position"]
    if malformed:
        raise LearnerError(
            f"the checkpoint {path} cannot be resumed: invalid values in `progress`: {', '.join(malformed)}",
            code="resume-progress-malformed",
            path=path,
            fields=", ".join(malformed),
        )
    for part in (progress, *members):
        refuse_position(part["log"])
        History.from_json(part["history"])
