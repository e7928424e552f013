"""The parsers and the help of commands that need no JAX to read their words."""

import ast
import itertools
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from learner.cli.parsing import PROCESSES, Parser
from learner.examples import CONFIGS as BUNDLED

TOPICS = {
    "keys": ("", "every key of a config, with its default"),
    "processes": ("", "the options for several processes"),
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


DEVICES = """\
Lists the devices that JAX finds, and the devices that a run uses by default and with `devices: all`. Memory is shown
for devices that report it. JAX_PLATFORMS=cpu in the environment selects a platform, and JAX_NUM_CPU_DEVICES=8 simulates
eight devices."""

PLATFORMS = ("cpu", "gpu", "tpu")


def fit_usage() -> str:
    """Return the first page of the help of `learner fit`."""
    configs = sorted(f"configs/{path.name}" for path in BUNDLED.glob("*.yaml"))
    return f"""\
usage: learner fit CONFIG [--KEY=VALUE ...]

Trains the run that a config describes. Options override its keys, also inside
mappings, lists and arguments: --num_epochs=3 --model.hidden=64 --optimizer=SGD

  --print_config          print the config in full, with defaults
  --print_sharding        print the placement of each array and the memory
  --KEY.help [CLASS]      the choices for KEY, or the arguments of CLASS
  -h, --help [TOPIC]      this page, or one of the topics:
{entries({f"--help={topic}": about for topic, (_, about) in TOPICS.items()})}

configs that come with learner, used if the file does not exist:
{paragraph(", ".join(configs))}"""


def fit_parser() -> Parser:
    """Return the parser of `learner fit`, whose help is `fit_usage`."""
    parser = Parser("fit", "", "CONFIG [--KEY=VALUE ...]", keys=True)
    parser.add_argument("config", nargs="?")
    parser.add_argument("--print_config", action="store_true")
    parser.add_argument("--print_sharding", action="store_true")
    parser.add_processes()
    return parser


def devices_parser() -> Parser:
    """Return the parser of `learner devices`."""
    parser = Parser("devices", DEVICES)
    about = f"list the devices of another platform than JAX's default: {', '.join(PLATFORMS)}"
    parser.add_argument("--platform", metavar="PLATFORM", help=about)
    return parser


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
