"""The parsers and the help of commands, which work without JAX."""

import argparse
import importlib.metadata
import importlib.resources
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

from learner.cli.parsing import PROCESSES, Parser, entries, fit_to_terminal
from learner.diagnostics.check_result import QUESTIONS
from learner.errors import LearnerError, near
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

STORED = importlib.resources.files("learner.cli") / "topics.json"  # also in a zip archive
"""The help of these topics, which only code that imports JAX can compute. `python docs/topics.py` writes it."""

RESUME = f"""\
keys of the config:
  --checkpoint=3              go back to the end of epoch 3; newer checkpoints move to superseded/
for a run that changed:
  --resume.allow=metrics      if the metrics changed, restart those of the current epoch
  --resume.allow=optimizer    if the optimizer changed, give it a new state
  --resume.allow=logs         if parts of the logs are missing, continue the logs without them

--help=keys lists all keys, and --help=TOPIC what they take: see learner fit --help.

options of the process:
{PROCESSES}
It trusts config.yaml: the code that it names is imported and run.
"""


DEVICES = """\
Lists the devices that JAX finds, and the devices that a run uses by default and with `devices: all`. Memory is shown
for devices that report it. JAX_PLATFORMS=cpu in the environment selects a platform, and JAX_NUM_CPU_DEVICES=8 simulates
eight devices."""

SWEEP = """\
Trains a run for each combination of values, one after another in one process. Any key of the config may have several
values: a list with commas, a range, or a distribution.

  learner sweep run.yaml --lr=1e-4,3e-4,1e-3 --seed=0..7
  learner sweep run.yaml --lr=loguniform:1e-5:1e-2 --optimizer.weight_decay=uniform:0:0.1 --size=32

Each member is an ordinary run in a directory of its own. The same command again keeps the members that have ended,
resumes those that were interrupted, and starts the others, also in several processes at once. At the end it prints the
mean over seeds of each configuration, and the command that trains the best one by itself. The exit code is 1 if all
members failed, or one by an error other than a loss that is not finite or a lack of memory."""

SWEEP_KEYS = """\
keys of the config:
  --directory=DIR         of the sweep (default: that of the config, and -sweep)
  --KEY=VALUE             one value: that of all members
  --KEY=A,B,C             a list; a text with commas is quoted: '"a, b"'
  --KEY=0..7              whole numbers, both ends included
  --KEY=loguniform:LOW:HIGH, --KEY=uniform:LOW:HIGH
                          numbers that are drawn, --size of them
  --KEY=randint:LOW:HIGH  whole numbers that are drawn, both ends included

A section `sweep` of the config has the same keys and options, which the command line overrides; other commands ignore
it. learner compare DIR shows all members. It trusts CONFIG: the code that it names is imported and run."""

DOCTOR = """\
Checks the run that a config describes before it trains: single steps on one device, which take a few minutes at most.
Prints a verdict for each question as soon as it is known. Nothing is written."""

DOCTOR_TRUSTED = """\
The exit code is 1 if an answer is `failed`, and otherwise 0. It trusts CONFIG: the code that it names is imported and
run."""

PLATFORMS = ("cpu", "gpu", "tpu")


def fit_usage() -> str:
    """Return the first page of the help of `learner fit`."""
    topics = "\n".join(entries({f"--help={topic}": about for topic, (_, about) in TOPICS.items()}))
    configs = ", ".join(sorted(f"configs/{path.name}" for path in BUNDLED.glob("*.yaml")))
    return fit_to_terminal(f"""\
usage: learner fit CONFIG... [--KEY=VALUE ...]

Trains the run that configs describe; later ones and options override, also in
mappings, lists and arguments: --num_epochs=3 --model.hidden=64 --optimizer=SGD

  --print_config          print the config in full, with defaults
  --print_sharding        print the placement of each array and the memory
  --watch                 the live view beside the run, as of learner watch
  --KEY.help [CLASS]      the choices for KEY, or the arguments of CLASS
  -h, --help [TOPIC]      this page, or one of the topics:
{topics}
configs that come with learner, used if the file does not exist:
  {configs}""")


def fit_parser() -> Parser:
    """Return the parser of `learner fit`, whose help is `fit_usage`."""
    parser = Parser("fit", "", "CONFIG [--KEY=VALUE ...]", keys=True)
    parser.add_argument("config", nargs="?")
    parser.add_argument("further", nargs="*")
    parser.add_argument("--print_config", action="store_true")
    parser.add_argument("--print_sharding", action="store_true")
    parser.add_argument("--watch", action="store_true")
    parser.add_processes()
    return parser


def devices_parser() -> Parser:
    """Return the parser of `learner devices`."""
    parser = Parser("devices", DEVICES)
    about = f"list the devices of another platform than JAX's default: {', '.join(PLATFORMS)}"
    parser.add_argument("--platform", metavar="PLATFORM", help=about)
    return parser


def doctor_parser() -> Parser:
    """Return the parser of `learner doctor`."""
    width = max(len(question.name) for question in QUESTIONS)
    questions = [f"  {q.name:<{width}}  {q.about} ({q.cost})" for q in QUESTIONS]
    further = "\n".join(["questions:", *questions, "", DOCTOR_TRUSTED])
    parser = Parser("doctor", DOCTOR, "CONFIG [--only=NAME,...] [--KEY=VALUE ...]", further, keys=True)
    parser.add_config()
    parser.add_argument("--only", metavar="NAME,...", help="ask these questions only")
    parser.add_argument("--skip", metavar="NAME,...", help="leave these questions out")
    parser.add_argument("--steps", metavar="N", help="steps to learn one batch in (default: 100)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def resume_parser() -> Parser:
    """Return the parser of `learner resume`."""
    about = "Resumes the run in DIR from its newest checkpoint, with its config.yaml; --num_epochs=20 makes it longer."
    parser = Parser("resume", about, "DIR [--KEY=VALUE ...]", RESUME, keys=True)
    parser.add_run()
    parser.add_argument("--watch", action="store_true", help="show the live view beside the run")
    parser.add_processes()
    return parser


def sweep_parser() -> Parser:
    """Return the parser of `learner sweep`."""
    parser = Parser("sweep", SWEEP, "CONFIG... [--KEY=VALUES ...]", SWEEP_KEYS, keys=True)
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="a config; later ones override earlier ones")
    parser.add_argument("further", metavar="CONFIG", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--size", metavar="N", help="the number of draws; lists multiply it")
    parser.add_argument("--sweep_seed", metavar="N", help="the seed of the draws (default: 0)")
    parser.add_argument("--zipped", action="store_true", help="pair the values rather than take their product")
    about = (
        "train members in one program that differ in seed, lr and numbers of the optimizer, on a CPU spread over the "
        "cores: never, auto (where it is possible), or always; --together alone is always (default: never)"
    )
    parser.add_argument("--together", metavar="HOW", nargs="?", const="always", help=about)
    about = (
        "like --together, but in N groups, one group after another; --waves alone: in as few as have room in the "
        "memory of the device"
    )
    parser.add_argument("--waves", metavar="N", nargs="?", const="true", help=about)
    about = "the metric that decides which one is best (default: the monitor of the runs)"
    parser.add_argument("--metric", metavar="KEY", help=about)
    about = "train this one alone, from 0 (a task of a job array), and print no table"
    parser.add_argument("--member", metavar="I", help=about)
    parser.add_argument("--json", action="store_true", help="print the results as an object")
    return parser


PARSERS = {
    "fit": fit_parser,
    "resume": resume_parser,
    "sweep": sweep_parser,
    "devices": devices_parser,
    "doctor": doctor_parser,
}
"""The commands whose help is printed without importing JAX, because the import takes a second."""


def requested_help(words: Sequence[str]) -> str | None:
    """Return the topic of a request for help, empty for the first page, or None if help is not requested.

    >>> requested_help(["a.yaml", "--help"]), requested_help(["--help", "metrics"]), requested_help(["--help=metrics"])
    ('', 'metrics', 'metrics')
    """
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        name, _, topic = word.partition("=")
        if name in ("-h", "--help"):
            is_topic = not following.startswith("-") and not Path(following).suffix
            return topic or (following if is_topic else "")
    return None


def stored_topic(topic: str) -> str | None:
    """Return the help of `--help=TOPIC` without importing JAX, or None if the installed version of optax is not the one
    whose optimizers are stored; `learner.cli.help` then computes it.

    Raises:
      LearnerError: the topic is unknown.
    """
    if topic not in TOPICS:
        raise LearnerError(f"there is no topic {topic!r}: {near(topic, list(TOPICS))}", code="cli-help-topic-unknown")
    if topic == "processes":
        text = f"options of the process, which are not saved with the config:\n{PROCESSES.rstrip()}"
        return fit_to_terminal(text)
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    if stored["optax"] != importlib.metadata.version("optax"):
        return None
    return fit_to_terminal("\n".join(stored["topics"][topic]))
