"""Addresses of object stores, where paths are expected."""

import os
import re

from learner.errors import LearnerError
from learner.util.optional import refuse_missing

OF_ORBAX = "gs"
SPECIAL = "*?[#"  # gcsfs treats the first three as patterns, even when deleting; Orbax ends an address at the last
MIRROR = "let the run write to a directory here, and learner.loggers.RunMirror copy it there"


def is_address(place: str | os.PathLike[str]) -> bool:
    """Return True for addresses such as `s3://bucket/run`, False for a path.

    Raises:
      LearnerError: the argument is neither a text nor a path, or it is an address in a `pathlib.Path`, which would be
        treated as a directory `s3:`.

    >>> is_address("s3://bucket/run"), is_address("runs/digits")
    (True, False)
    """
    if not isinstance(place, str | os.PathLike):
        raise LearnerError(
            f"{place!r} is not a path; it needs a text, such as 'runs/digits', or a pathlib.Path", code="path-type"
        )
    text = os.fspath(place)
    if not isinstance(place, str) and re.match(r"[A-Za-z][\w+.-]+:/(?!/)", text):
        raise LearnerError(
            f"{text} is an address that lost a slash, as pathlib.Path removes it: give the address as a str",
            code="address-path",
            place=text,
        )
    return "://" in text


def refuse_address(place: str | os.PathLike[str]) -> None:
    """Raise `LearnerError` for an address of a store.

    >>> refuse_address("runs/digits")
    """
    if is_address(place):
        raise LearnerError(
            f"the directory of a run cannot be {os.fspath(place)}, which is an address: {MIRROR}",
            code="directory-address",
            place=place,
        )


def refuse_store(place: str | os.PathLike[str]) -> None:
    """Raise `LearnerError` for an address of a store that Orbax does not write to.

    >>> refuse_store("s3://bucket/run")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    learner.errors.LearnerError: Orbax cannot store checkpoints at s3://bucket/run, only in directories and ...
    """
    if not is_address(place):
        return
    if os.fspath(place).partition("://")[0] != OF_ORBAX:
        raise LearnerError(
            f"Orbax cannot store checkpoints at {os.fspath(place)}, only in directories and at {OF_ORBAX}://...: "
            f"{MIRROR}",
            code="checkpoint-address",
            place=place,
        )
    if special := [character for character in os.fspath(place) if character in SPECIAL]:
        raise LearnerError(
            f"the address {os.fspath(place)} has {special[0]!r}, which means something else in addresses of stores: "
            "give one without it",
            code="checkpoint-address-special",
            place=place,
        )
    refuse_missing("gcsfs", "stores", f"{OF_ORBAX}://")
