"""`learner evaluate` and `learner predict`: metrics and outputs of a run's checkpoint."""

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from learner.checkpoint.store import Entry
from learner.cli.configs.config import RunConfig
from learner.cli.configs.overrides import apply_overrides
from learner.cli.configs.saved_configs import refuse_other_directory, saved_config
from learner.cli.input_rows import read_rows
from learner.cli.parsing import PROCESSES, Parser, check_output
from learner.cli.predictions import SUFFIXES, joined, write_outputs
from learner.cli.processes import connected, process_options
from learner.cli.trust import require_trust
from learner.errors import LearnerError
from learner.learner import Learner
from learner.records import hub
from learner.renderers import lines
from learner.renderers.summary_text import place_of
from learner.training.evaluation import Evaluator
from learner.training.files.directory import holds_run
from learner.training.follow import follow
from learner.training.passes import MetricValues
from learner.util.json_values import encode
from learner.util.optional import import_optional
from learner.util.text import aligned, join_names, printable

EVALUATE = """\
Prints the metrics of the newest checkpoint of the run in DIR on its validation data. With --split=test --data=PATH, it
evaluates the best checkpoint and writes the values into the run, where compare and report show them."""
PREDICT = """\
Writes the outputs of the predict step of the newest checkpoint in DIR to a file, row by row: arrays (.npz), or a table
(.csv, .jsonl or .parquet). Without a predict step, they are those of the valid step."""
FURTHER = f"""\
keys of the config:
  --checkpoint=best       use the best checkpoint instead, or that of an epoch
  --valid.KEY=VALUE       use other data

options of the process:
{PROCESSES}
It trusts config.yaml: the code that it names is imported and run."""


def evaluate(words: Sequence[str]) -> int:
    """`learner evaluate DIR [--KEY=VALUE ...]`."""
    parser = Parser("evaluate", EVALUATE, "DIR [--KEY=VALUE ...]", FURTHER, keys=True)
    parser.add_run()
    parser.add_processes()
    parser.add_argument("--data", metavar="PATH", help="use the data in a file or directory, as learner predict does")
    about = "write the values of --data into the run as this split, by default those of the best checkpoint"
    parser.add_argument("--split", metavar="NAME", help=about)
    about = "evaluate each checkpoint of a run as it appears, once each, until the run is over (split: eval)"
    parser.add_argument("--follow", action="store_true", help=about)
    about = "print an object with the checkpoint's epoch and step, and the values by key; tables are arrays"
    parser.add_argument("--json", action="store_true", help=about)
    line = parser.read(words)
    directory = line.directory
    refuse_other_directory(line.overrides, directory)
    require_trust(directory, line.trust)
    with connected(process_options(line)):
        split = line.split or ("eval" if line.follow else None)
        default = "latest" if split is None else "best"
        call = ".evaluate(valid)" if split is None else f".evaluate(valid, split={split!r})"
        content = saved_config(directory, "is evaluated", call=_in_python(line, default) + call)
        names_data = line.data is not None or any(key.partition(".")[0] == "valid" for key, _ in line.overrides)
        if line.split is not None and not line.follow and not names_data:
            raise LearnerError(
                f"--split={line.split} writes values of other data into the run, and without it they would be those of "
                "its validation data: give the data, --data=PATH or --valid.dataset=...",
                code="cli-split-without-data",
                split=line.split,
            )
        content = apply_overrides(content, line.overrides)
        config = _checkpoint_config(content, directory, default)
        learner = config.learner(with_data=False, weights=_pulled(directory))
        if line.data is None:
            data = _own_data(config, directory)
        else:
            data, _ = read_rows(line.data, directory, content, needs_targets=True)
        if split is not None:
            return _evaluate_into(learner, data, split, line.follow, line.json)
        splits = {f"valid-{name}": each for name, each in data.items()} if isinstance(data, dict) else {"valid": data}
        values = {f"{name}/": learner.evaluate(each) for name, each in splits.items()}
        entry = learner.loaded_checkpoint
        place = {} if entry is None else {"epoch": entry.epoch, "step": entry.step}
        _print(_checkpoint_line(entry), place, values, line.json)
    return 0


def _evaluate_into(learner: Learner[Any], data: Any, split: str, follows: bool, as_json: bool) -> int:
    """Evaluate checkpoints, print the values, and write them to the run as a split. Return 1 if some of them could not
    be written.
    """
    evaluator, code = Evaluator(learner.definition), 0
    chosen = (evaluator.evaluate_checkpoint(data, split, **evaluator.choice()) for _ in range(1))
    for evaluation in follow(learner.definition, data, split) if follows else chosen:
        prefix = f"{split}-" if isinstance(data, dict) else f"{split}/"
        place = {"epoch": evaluation.epoch, "step": evaluation.step}
        _print([evaluation.checkpoint], place, {prefix: evaluation.values}, as_json)
        code = code if evaluation.is_recorded else 1
    return code


def _print(head: Sequence[str], place: dict[str, Any], values: Mapping[str, MetricValues], as_json: bool) -> None:
    """Print values by key: a line for each number, and texts with their line breaks below; or an object on one line.

    Args:
      head: the checkpoint, in words.
      place: the epoch and step of the checkpoint.
      values: the values, by the prefix of their keys.
      as_json: print an object, with arrays rather than their texts.
    """
    if jax.process_index() != 0:
        return
    by_key = {prefix + name: value for prefix, each in values.items() for name, value in each.items()}
    if as_json:
        for prefix, each in values.items():
            by_key |= {prefix + name: jax.tree.map(_plain, arrays) for name, arrays in each.arrays.items()}
        print(json.dumps(encode({**place, **by_key}), allow_nan=False), flush=True)
        return
    rows = [[printable(key), f"{value:.6g}"] for key, value in by_key.items() if not isinstance(value, str)]
    texts = {key: (value, None) for key, value in by_key.items() if isinstance(value, str)}
    print("\n".join([*head, *aligned(rows), *lines.texts(texts)]), flush=True)


def _plain(array: Any) -> Any:
    return np.asarray(array).tolist()


def predict(words: Sequence[str]) -> int:
    """`learner predict DIR [DATA] -o FILE`."""
    parser = Parser("predict", PREDICT, "DIR [DATA] -o FILE [--KEY=VALUE ...]", FURTHER, keys=True)
    parser.add_run()
    about = (
        "an .npz file with the arrays of a batch, for all rows; a file or directory like those of the run's own data, "
        "such as .csv or a folder of images; or a YAML file with the content of `valid` in a config (default: the "
        "validation data of the run)"
    )
    parser.add_argument("data", metavar="DATA", nargs="?", help=about)
    parser.add_processes()
    about = (
        "an .npz file with one array for each field of the output that has a row for each row of DATA; or a .csv, "
        ".jsonl or .parquet file with one line for each row"
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help=about)
    line = parser.read(words)
    directory, output = line.directory, line.output
    check_output(output, f"the name of a file ({', '.join(SUFFIXES)})", SUFFIXES)
    if output.suffix.lower() == ".parquet":
        import_optional("pyarrow", "parquet", "Parquet")  # known before all rows are predicted
    refuse_other_directory(line.overrides, directory)
    require_trust(directory, line.trust)
    with connected(process_options(line)):
        content = saved_config(directory, "predicts", call=f"{_in_python(line, 'latest')}.predict(data)")
        content = apply_overrides(content, line.overrides)
        config = _checkpoint_config(content, directory)
        learner = config.learner(with_data=False, weights=_pulled(directory))
        learner.definition.refuse_population("predict")
        evaluator = Evaluator(learner.definition)
        if line.data is None:
            data, lacking = _own_data(config, directory), list[str]()
        else:
            data, lacking = read_rows(line.data, directory, content, needs_targets=False)
        if isinstance(data, dict):
            raise LearnerError(
                f"the run has several validation sets ({', '.join(data)}): describe one of them in a YAML file, DATA, "
                "as `valid` in a config does",
                code="cli-predict-several",
                names=list(data),
            )
        is_first = jax.process_index() == 0
        if lacking and is_first:
            print(printable(f"{line.data} has no {join_names(lacking, 8)}"), flush=True)
        arrays, others = joined(evaluator.predictions(data))
        if is_first:  # each process has all rows
            write_outputs(output, arrays, evaluator.labels)
            table = [[str(output), ""], *([name, str(list(array.shape))] for name, array in arrays.items())]
            left_out = f"left out, as they have no row for each row: {join_names(others, 8)}"
            print("\n".join([*_checkpoint_line(evaluator.entry), *aligned(table), *([left_out] if others else [])]))
    return 0


def _own_data(config: RunConfig, directory: str) -> Any:
    """Return the validation data of a run, or a dict of several."""
    data = config.data("valid")
    if data is None:
        raise LearnerError(
            f"{directory} has no validation data: give a file (DATA of predict, --data of evaluate), or "
            "--valid.dataset=...",
            code="cli-validation-data-missing",
            directory=directory,
        )
    return data


def _in_python(line: Namespace, default: str) -> str:
    """Return the Python code that makes the learner of a checkpoint."""
    choice = [(key, text) for key, text in line.overrides if key.partition(".")[0] == "checkpoint"]
    which = apply_overrides({}, choice).get("checkpoint", default)
    given = ", ".join(f"{key}={value!r}" for key, value in which.items()) if isinstance(which, dict) else repr(which)
    return f"LearnerBuilder({line.directory!r}).checkpoint({given}).build(model, valid_step=step)"


def _checkpoint_config(content: dict[str, Any], directory: str, default: str = "latest") -> RunConfig:
    """Return the config of a run, for reading a checkpoint (by default the newest), or of a pulled model."""
    observers = {"renderer": None, "metric_loggers": None}
    if _pulled(directory):  # its weights replace the initial weights, including those of another run
        return RunConfig({**content, "directory": directory, "initial_from": None, **observers})
    if not holds_run(Path(directory)):
        raise LearnerError(
            f"{directory} holds no run: it has neither a journal nor checkpoints",
            code="run-not-a-run",
            directory=directory,
        )
    checkpoint = {"checkpoint": default} if content.get("checkpoint") is None else {}
    return RunConfig({**content, **checkpoint, "directory": directory, **observers})


def _pulled(directory: str) -> Path | None:
    """Return the weights file of a model that `learner pull` copied, or None for a run."""
    return Path(directory, hub.MODEL) if Path(directory, hub.SOURCE).exists() else None


def _checkpoint_line(entry: Entry | None) -> list[str]:
    """Return a line about the loaded checkpoint."""
    if entry is None:
        return []
    return [f"checkpoint: step {entry.step}, {place_of(entry.epoch, entry.step)}"]
