"""The first pages of `learner fit --help` and `learner resume --help`. They are printed without importing JAX."""

import ast
import itertools
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from learner.cli.parsing import PROCESSES, Parser
from learner.cli.schema import CONTEXT
from learner.examples import CONFIGS as BUNDLED

TOPICS = {
    "keys": ("", "every key of a config, with a description"),
    "optimizers": ("optimizer", "the optimizers, with their arguments"),
    "schedules": ("lr", "the schedules of the learning rate"),
    "metrics": ("metrics", "the metrics"),
    "datasets": ("train.dataset", "the datasets and sources of rows"),
    "loggers": ("metric_loggers", "the metric loggers"),
    "renderers": ("renderer", "the ways to show progress"),
    "strategies": ("strategy", "the strategies for several devices"),
    "recorders": ("with_file_checkpointer.record", "the file formats for models"),
}
"""Topics of the help of `learner fit`: the key whose choices each lists, if any, and a description."""

RESUME = f"""\
keys of the config for a run that changed:
  --resume.allow=metrics      if the metrics changed, restart those of the current epoch
  --resume.allow=optimizer    if the optimizer changed, give it a new state
  --resume.allow=logs         if parts of the logs are missing, continue the logs without them

options of the process:
{PROCESSES}
It trusts config.yaml: the code that it names is imported and run.
"""


def fit_usage() -> str:
    """Return the first page of the help of `learner fit`."""
    configs = sorted(f"configs/{path.name}" for path in BUNDLED.glob("*.yaml"))
    further = ", ".join(name for name in option_names() if name not in CONTEXT)
    return f"""\
usage: learner fit CONFIG [--KEY=VALUE ...]

Trains the run that a config file describes. Options override keys of the
config, including keys inside mappings, lists and arguments:

  --num_epochs=3 --model.hidden=64 --metrics.0=Accuracy --optimizer=SGD

options:
  --print_config          print the config in full, as the run would save it
  --print_sharding        print the placement of each array and the memory that
                          the compiled training needs, without training
  --KEY.help [CLASS]      show the choices for KEY, or the arguments of CLASS:
                          --optimizer.help AdamW
  -h, --help [TOPIC]      show this text, or one of the topics below

options of the process, which are not saved with the config:
{PROCESSES}
keys:
{entries(CONTEXT)}

further keys, one for each method of LearnerBuilder:
{paragraph(further)}

topics:
{entries({f"--help={topic}": about for topic, (_, about) in TOPICS.items()})}

configs that come with learner, used if the file does not exist:
{paragraph(", ".join(configs))}"""


def resume_parser() -> Parser:
    """Return the parser of `learner resume`."""
    about = "Resumes the run in DIR from its newest checkpoint, with its config.yaml; --num_epochs=20 makes it longer."
    parser = Parser("resume", about, "DIR [--KEY=VALUE ...]", RESUME, keys=True)
    parser.add_run()
    parser.add_processes()
    return parser


def requested_help(words: Sequence[str]) -> str | None:
    """Return the topic of a request for help, an empty one for the first page, or None if help is not requested.

    >>> requested_help(["a.yaml", "--help"]), requested_help(["--help", "metrics"]), requested_help(["--help=metrics"])
    ('', 'metrics', 'metrics')
    """
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        name, _, topic = word.partition("=")
        if name in ("-h", "--help"):
            is_topic = not following.startswith("-") and not Path(following).suffix
            return topic or (following if is_topic else "")
    return None


def option_names() -> list[str]:
    """Return the options: the public methods of `LearnerBuilder` except `build`, read from its source."""
    module = ast.parse((Path(__file__).parents[1] / "builder.py").read_text())
    (builder,) = (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "LearnerBuilder")
    names = [node.name for node in builder.body if isinstance(node, ast.FunctionDef)]
    return [name for name in names if not name.startswith("_") and name != "build"]


def entries(about: Mapping[str, str]) -> str:
    """Return lines with a name and a description each."""
    return "\n".join(paragraph(text, f"  {name:<24}", 26) for name, text in about.items())


def paragraph(text: str, start: str = "  ", indent: int = 2) -> str:
    """Return a text that fits the terminal."""
    width = min(shutil.get_terminal_size((120, 24)).columns, 120)
    return textwrap.fill(text, width, initial_indent=start, subsequent_indent=" " * indent, break_on_hyphens=False)
