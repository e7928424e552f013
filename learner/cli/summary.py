"""`learner summary`: from the files of a run alone."""

from collections.abc import Sequence
from pathlib import Path

from learner.directory import read_summary
from learner.errors import LearnerError
from learner.history import read_history
from learner.renderers import print_summary

SUMMARY = """\
usage: learner summary DIR

Prints the best and the last value of each metric of the run in DIR, and where its files are. For a run that has not
ended, the values so far.
"""


def summary(words: Sequence[str]) -> int:
    """`learner summary DIR`."""
    if "-h" in words or "--help" in words:
        print(SUMMARY, end="")
        return 0
    if len(words) != 1 or words[0].startswith("-"):
        raise LearnerError("learner summary needs the directory of one run: learner summary DIR")
    directory = Path(words[0])
    if not directory.is_dir():
        raise LearnerError(f"there is no directory {directory}")
    ended = read_summary(directory)
    if ended is not None:
        try:
            print_summary(ended, directory=directory)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise LearnerError(
                f"{directory / 'summary.json'} is damaged: {error!r}. Without it, the values come from the journal"
            ) from error
        return 0
    history = read_history(directory)
    print(f"{directory}: this run has not ended")
    print(history if history else "no epoch has ended yet")
    return 0
