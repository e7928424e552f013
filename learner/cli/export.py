"""`learner export`: writes the model of a run's checkpoint, or the run's numbers, to a file."""

import dataclasses
import shlex
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from learner.checkpoint.load import LoadedCheckpoint, load_checkpoint
from learner.cli.configs.config import RunConfig
from learner.cli.configs.importing import import_path
from learner.cli.configs.overrides import apply_overrides, value_of
from learner.cli.configs.saved_configs import refuse_other_directory, saved_config
from learner.cli.parsing import Parser, check_output
from learner.cli.trust import require_trust
from learner.data.source import source_of
from learner.errors import LearnerError, near
from learner.records import inference
from learner.records.model_files import recorder_for, save_model
from learner.reports.event_files import KIND as TENSORBOARD
from learner.reports.event_files import write_events
from learner.reports.tables import write_table
from learner.runs.run_reader import RunReader
from learner.training.result import numbers_at
from learner.util.table_files import KINDS
from learner.util.text import count, printable, size
from learner.util.trees import named_leaves

USAGE = """\
DIR -o FILE [--KEY=VALUE ...]
       learner export DIR --format=csv|jsonl|parquet [-o FILE]
       learner export DIR --format=tensorboard [-o DIR]"""

EXPORT = "Writes the model of the newest checkpoint of the run in DIR to a file, for load_model and for other programs."

EXPORT_MODEL = """\
Writes the best model of the run in DIR for inference into the directory OUT: a program of jax.export for CPU, GPU and
TPU, the weights as safetensors, and a model card. It runs with JAX and safetensors alone. With --format=onnx it writes
one ONNX file with program and weights. It trusts config.yaml: the code that it names is imported and run."""

INPUTS = "the field of a batch that the model is called with; with a comma (a,b or a,) a dict of these fields"

NUMBERS = """\
It trusts config.yaml: the code that it names is imported and run.

With --format it writes the numbers instead: every metric at every step and at the end of every split, as one table with
the columns split, metric, level, epoch, step, value and text. The default file is DIR/numbers.csv, with the name of the
format as its suffix. For TensorBoard it writes an event file into a directory (default: DIR/numbers.tensorboard), with
texts, hyper-parameters and pictures of confusion matrices. No code that the run names is imported then."""

FORMATS = (*KINDS, TENSORBOARD)


def export(words: Sequence[str]) -> int:
    """`learner export DIR -o FILE [--KEY=VALUE ...]`."""
    parser = Parser("export", EXPORT, USAGE, NUMBERS, keys=True)
    parser.add_run()
    about = "its suffix .mpk, .json or .safetensors selects the format, and .gz compresses it"
    parser.add_argument("-o", "--output", metavar="FILE", help=about)
    parser.add_argument("--precision", help="half or double precision (default: full)")
    parser.add_argument("--checkpoint", help="the best checkpoint, or that of an epoch (default: latest)")
    parser.add_argument("--format", help=", ".join(FORMATS))
    line = parser.read(words)
    if line.format is not None:
        return _numbers(line)
    if line.output is None:
        parser.error("the following arguments are required: -o/--output")
    output = Path(line.output)
    recorder = dataclasses.replace(recorder_for(output), precision=line.precision or "full")
    check_output(output, "the name of a file")
    _, loaded = load_run(line, "save_model(path, model) writes it", "latest")
    save_model(output, loaded.model, recorder)
    print(f"{output}: {size(output.stat().st_size)}, the model of {location(loaded)} in {recorder.precision} precision")
    return 0


def load_run(line: Namespace, call: str, which: str) -> tuple[RunConfig, LoadedCheckpoint]:
    """Return the config of a run and its checkpoint with the model. `call`: the equivalent in Python, for a hint."""
    directory = line.directory
    refuse_other_directory(line.overrides, directory)
    require_trust(directory, line.trust)
    which = value_of(line.checkpoint or which)
    python = f"load_checkpoint({directory!r}, {which!r}, model).model  # {call}"
    content = saved_config(directory, "is read", call=python, same="model")
    content = apply_overrides(content, line.overrides)
    config = RunConfig({**content, "directory": directory})
    model, trainable = config.model()
    return config, load_checkpoint(_checkpoint_directory(content, directory), which, model, trainable=trainable)


def location(loaded: LoadedCheckpoint) -> str:
    """Return the position of a checkpoint in its run, as text."""
    return f"step {loaded.step}" + (f" (epoch {loaded.epoch})" if loaded.epoch else "")


def export_model(words: Sequence[str]) -> int:
    """`learner export-model DIR OUT --inputs=FIELD`."""
    parser = Parser("export-model", EXPORT_MODEL, "DIR OUT --inputs=FIELD [--KEY=VALUE ...]", keys=True)
    parser.add_run()
    parser.add_argument("output", metavar="OUT", type=Path, help="the directory of the export")
    parser.add_argument("--inputs", metavar="FIELD", help=INPUTS)
    parser.add_argument("--function", metavar="PATH", help="(model, inputs) -> outputs, such as mine.predict")
    parser.add_argument("--checkpoint", help="the latest checkpoint, or that of an epoch (default: best)")
    parser.add_argument("--batch_size", metavar="N", help="the number of rows (default: any)")
    parser.add_argument("--platforms", metavar="LIST", help=f"default: {','.join(inference.PLATFORMS)}")
    parser.add_argument("--format", default="jax", help="jax or onnx (default: jax)")
    line = parser.read(words)
    config, loaded = load_run(line, "after fit, result.export(path, inputs)", "best")
    inputs = _inputs(config, line.inputs)
    output = inference.export_model(
        line.output,
        loaded.model,
        inputs,
        function=None if line.function is None else import_path(line.function, "function"),
        batch_size=None if line.batch_size is None else value_of(line.batch_size),
        platforms=inference.PLATFORMS if line.platforms is None else line.platforms.split(","),
        metrics=numbers_at(RunReader(line.directory).history, loaded.step),
        format=line.format,
    )
    total = sum(path.stat().st_size for path in output.iterdir())
    about = f"the model of {location(loaded)} for inference"
    print(f"{output}: {size(total)}, {about}; {output / inference.CARD} tells how to use it")
    rows = "rows" if line.batch_size is None else line.batch_size
    given = {path or "inputs": ", ".join(map(str, (rows, *x.shape[1:]))) for path, x in named_leaves(inputs).items()}
    shapes = [f"{path} [{shape}]" for path, shape in given.items()]
    print(f"it accepts {', '.join(shapes)}, as in the first batch of the data; only the number of rows may differ")
    return 0


def _inputs(config: RunConfig, fields: str | None) -> Any:
    """Return the inputs of the first batch of the validation data, or else of the training data. A text with a comma
    selects the fields of a dict.
    """
    data = config.data("valid")
    if isinstance(data, dict):
        data = next(iter(data.values()))
    batch = source_of(config.data("train") if data is None else data, "valid").peek(1)
    if fields is None and not isinstance(batch, dict):
        return batch
    known = list(batch) if isinstance(batch, dict) else []
    names = [name.strip() for name in (fields or "").split(",")]
    is_dict = len(names) > 1
    names = [name for name in names if name]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        problem, hint = f"is {fields!r}" if unknown else "is missing", near("".join(unknown[:1]), known)
        raise LearnerError(f"--inputs {problem}; it needs {INPUTS}: {hint}", code="cli-inputs-field")
    return {name: batch[name] for name in names} if is_dict else batch[names[0]]


def _numbers(line: Namespace) -> int:
    """Export the numbers of a run as a table."""
    model_only = [name for name in ("precision", "checkpoint") if getattr(line, name) is not None]
    for key in (*model_only, *(key for key, _ in line.overrides)):
        hint = near(key, ("output", "format"))
        raise LearnerError(f"there is no option --{key} of --format: {hint}", code="cli-option-unknown", key=key)
    run, kind = RunReader(line.directory), line.format
    if kind not in FORMATS:
        raise LearnerError(f"the format is {kind!r}: {near(kind, FORMATS)}", code="cli-format-unknown", kind=kind)
    output = Path(line.output or run.directory / f"numbers.{kind}")
    into_directory = kind == TENSORBOARD
    names_format = output.suffix.lower().removeprefix(".") in KINDS
    what = "a name" if into_directory else f"the name of a .{kind} file"
    check_output(output, what, [f".{kind}"] if names_format and not into_directory else [], directory=into_directory)
    if into_directory:
        records = write_events(output, run)
        written_bytes = sum(path.stat().st_size for path in output.rglob("*.exported"))
        command = f"tensorboard --logdir {shlex.quote(str(output))}"
        print(printable(f"{output}: {size(written_bytes)}, {count(records, 'record')}: {command}"))
        return 0
    written = write_table(output, run, kind)
    print(printable(f"{output}: {size(output.stat().st_size)}, {count(written, 'row')}"))
    return 0


def _checkpoint_directory(content: Mapping[str, Any], directory: str) -> str:
    """Return the directory of the run's checkpoints."""
    checkpointer = content.get("with_file_checkpointer")
    return (checkpointer.get("directory") if isinstance(checkpointer, Mapping) else None) or directory
