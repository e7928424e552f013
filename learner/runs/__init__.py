"""Inspection of runs from their files. Nothing that the files name is imported, and nothing is changed.

    run = RunReader("runs/digits")
    run.status, run.history["valid/Loss"], run.config["lr.init_value"]
    run.steps("train/Loss", most=1000).mean

A directory may belong to another user, and its run may be training or damaged.
"""

from typing import TYPE_CHECKING

from learner.util.discovery import import_lazily

if TYPE_CHECKING:
    from learner.runs.comparison import Comparison as Comparison
    from learner.runs.comparison import compare as compare
    from learner.runs.comparison_means import ComparisonMeans as ComparisonMeans
    from learner.runs.comparison_means import compare_means as compare_means
    from learner.runs.find import each_run as each_run
    from learner.runs.find import find_runs as find_runs
    from learner.runs.run_reader import RunReader as RunReader
    from learner.runs.run_reader import Status as Status
    from learner.runs.thinning import Series as Series

if not TYPE_CHECKING:
    __getattr__, __dir__ = import_lazily(__name__)
