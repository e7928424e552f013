"""`learner evaluate` and `learner predict`: metrics and outputs of a run's checkpoint."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from learner.cli.config import RunConfig
from learner.cli.overrides import apply_overrides, read_yaml
from learner.cli.parsing import PROCESSES, Parser, check_output
from learner.cli.processes import connected, process_options
from learner.cli.saved_configs import saved_config
from learner.cli.sources import source
from learner.cli.trust import require_trust
from learner.errors import LearnerError
from learner.training.directory import holds_run
from learner.util.text import aligned, short

EVALUATE = "Prints the metrics of the newest checkpoint of the run in DIR on its validation data."
PREDICT = "Writes the outputs of the valid step of the newest checkpoint in DIR, row by row, to an .npz file."
KEYS = """\
keys of the config:
  --checkpoint=best       use the best checkpoint instead, or that of an epoch
"""
OTHER_DATA = f"""\
  --valid.KEY=VALUE       use other data

options of the process:
{PROCESSES}"""
TRUSTED = "\nIt trusts config.yaml: the code that it names is imported and run."

BATCH_SIZE = 256


def evaluate(words: Sequence[str]) -> int:
    """`learner evaluate DIR [--KEY=VALUE ...]`."""
    parser = Parser("evaluate", EVALUATE, "DIR [--KEY=VALUE ...]", KEYS + OTHER_DATA + TRUSTED, keys=True)
    parser.add_run()
    parser.add_processes()
    line = parser.read(words)
    directory = line.directory
    require_trust(directory, line.trust)
    with connected(process_options(line)):
        content = saved_config(directory, "is evaluated", call=".evaluate(valid)")
        config = _checkpoint_config(apply_overrides(content, line.overrides), directory)
        learner = config.learner(with_data=False)
        data = config.data("valid")
        if data is None:
            raise LearnerError(
                f"{directory} has no validation data; say on what to evaluate: --valid.dataset=...",
                code="cli-validation-data-missing",
                directory=directory,
            )
        splits = {f"valid-{name}": each for name, each in data.items()} if isinstance(data, dict) else {"valid": data}
        rows = [
            [f"{split}/{key}", _text(v)] for split, each in splits.items() for key, v in learner.evaluate(each).items()
        ]
        if jax.process_index() == 0:
            print("\n".join(aligned(rows)))
    return 0


def predict(words: Sequence[str]) -> int:
    """`learner predict DIR DATA -o FILE`."""
    parser = Parser("predict", PREDICT, "DIR DATA -o FILE [--KEY=VALUE ...]", KEYS + TRUSTED, keys=True)
    parser.add_run()
    about = (
        "an .npz file with the arrays of a batch, for all rows; or a YAML file with the content of `valid` in a config"
    )
    parser.add_argument("data", metavar="DATA", help=about)
    about = "the .npz file: one array for each field of the output that has a row for each row of DATA"
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help=about)
    line = parser.read(words)
    directory, output = line.directory, line.output
    check_output(output, "the name of an .npz file", [".npz"])
    require_trust(directory, line.trust)
    content = saved_config(directory, "predicts", call=".predict(data)")
    config = _checkpoint_config(apply_overrides(content, line.overrides), directory)
    rows: list[int] = []
    arrays = joined(config.learner(with_data=False).predict(_counted(_loader(line.data), rows)), rows)
    np.savez(output, allow_pickle=False, **arrays)
    print("\n".join(aligned([[str(output), ""], *([name, str(list(array.shape))] for name, array in arrays.items())])))
    return 0


def joined(outputs: Iterable[Any], rows: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the leaves of all outputs that have a row for each row of the data, by their paths.

    Args:
      outputs: of the batches, in order: pytrees of one structure.
      rows: how many rows each batch has; read when the outputs are at their end.

    Raises:
      LearnerError: there is no such leaf.

    >>> parts = [{"loss": np.float32(rows), "logits": np.zeros((rows, 3))} for rows in (2, 1)]
    >>> {name: array.shape for name, array in joined(parts, [2, 1]).items()}
    {'logits': (3, 3)}
    """
    found: dict[str, list[np.ndarray]] = {}
    for output in outputs:
        for path, leaf in jax.tree_util.tree_flatten_with_path(output)[0]:
            found.setdefault(jax.tree_util.keystr(path, simple=True, separator="."), []).append(np.asarray(leaf))
    by_row = {name: parts for name, parts in found.items() if [p.shape[:1] for p in parts] == [(n,) for n in rows]}
    if not by_row:
        raise LearnerError(
            f"the output of the valid step ({', '.join(found)}) has no field with a row for each row of data",
            code="cli-output-without-rows",
        )
    return {name: np.concatenate(parts) for name, parts in by_row.items()}


def _checkpoint_config(content: dict[str, Any], directory: str) -> RunConfig:
    """Return the config of a run for inspecting a checkpoint, by default the newest."""
    if not holds_run(Path(directory)):
        raise LearnerError(
            f"{directory} holds no run: it has neither a journal nor checkpoints",
            code="run-not-a-run",
            directory=directory,
        )
    checkpoint = {"checkpoint": "latest"} if content.get("checkpoint") is None else {}
    return RunConfig({**content, **checkpoint, "directory": directory, "renderer": None, "metric_loggers": None})


def _text(value: float | str) -> str:
    return short(value) if isinstance(value, str) else f"{value:.6g}"


def _loader(path: str) -> Any:
    """Return the rows to predict, in order: an iterable of batches, or a function that returns one."""
    from learner.data.dataset import Dataset
    from learner.data.loader import DataLoaderBuilder
    from learner.data.npz import read_npz

    data = read_npz(path) if path.endswith(".npz") else source(read_yaml(path), "DATA", seed=0).make()
    return DataLoaderBuilder().batch_size(BATCH_SIZE).build(data) if isinstance(data, Mapping | Dataset) else data


def _counted(data: Any, rows: list[int]) -> Callable[[], Iterator[Any]]:
    """Return a function that returns the batches and records the number of rows in each."""

    def batches() -> Iterator[Any]:
        rows.clear()
        for batch in data() if callable(data) else data:
            rows.append(len(jax.tree.leaves(batch)[0]))
            yield batch

    return batches
