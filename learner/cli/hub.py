"""`learner push` and `learner pull`: the model of a run on the Hugging Face Hub."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from learner.cli.parsing import Parser
from learner.errors import LearnerError
from learner.util.distribution import install_hint

PUSH = f"""\
Pushes the best model of the run in DIR to the Hugging Face Hub: weights, config, and a card with the metrics. The token
is that of hf auth login, or of HF_TOKEN. It trusts config.yaml: the code that it names is imported and run.
It needs: {install_hint("hub")}"""

PULL = f"""\
Copies a model from the Hugging Face Hub to the new directory DIR. In Python load_model("DIR/model.safetensors", model)
loads it; learner evaluate DIR --trust and learner predict do if it has a config.
It needs: {install_hint("hub")}"""


def push(words: Sequence[str]) -> int:
    """`learner push DIR USER/MODEL`."""
    parser = Parser("push", PUSH, "DIR USER/MODEL [--KEY=VALUE ...]", keys=True)
    parser.add_run()
    parser.add_argument("repository", metavar="USER/MODEL", help="the repository, created if it does not exist")
    parser.add_argument("--checkpoint", help="the latest checkpoint, or that of an epoch (default: best)")
    parser.add_argument("--export", metavar="OUT", help="push what learner export-model wrote into OUT, too")
    parser.add_argument("--revision", help="the branch, created if it does not exist (default: main)")
    parser.add_argument("--private", action="store_true", help="make a repository that is not public")
    about = "metadata of the card, such as '{license: mit, datasets: [mnist], pipeline_tag: image-classification}'"
    parser.add_argument("--card", metavar="MAPPING", help=about)
    line = parser.read(words)
    from learner.cli.configs.overrides import value_of
    from learner.cli.export import load_run, location
    from learner.records.hub import push_model
    from learner.runs.run_reader import RunReader
    from learner.training.result import numbers_at

    card = None if line.card is None else value_of(line.card)
    if card is not None and not isinstance(card, dict):
        raise LearnerError(f"--card is {line.card!r}; it needs a mapping, such as '{{license: mit}}'", code="hub-card")
    _hide_progress_in_pipes()
    _, loaded = load_run(line, "after fit, result.push(repository)", "best")
    address = push_model(
        line.repository,
        loaded.model,
        metrics=numbers_at(RunReader(line.directory).history, loaded.step),
        config=loaded.config,
        export=line.export,
        private=True if line.private else None,
        revision=line.revision,
        card=card,
    )
    print(f"{address}\nthe model of {location(loaded)}")
    return 0


def pull(words: Sequence[str]) -> int:
    """`learner pull USER/MODEL DIR`."""
    parser = Parser("pull", PULL)
    parser.add_argument("repository", metavar="USER/MODEL")
    parser.add_argument(
        "directory",
        metavar="DIR",
        nargs="?",
        type=Path,
        help="the directory to create (default: the name of the model)",
    )
    parser.add_argument("--revision", help="a branch, a tag or a commit (default: main)")
    line = parser.read(words)
    from learner.records import hub

    _hide_progress_in_pipes()
    directory = line.directory or Path(line.repository.rpartition("/")[2])
    path = hub.pull_model(line.repository, directory, revision=line.revision)
    print(path)
    if (path / hub.CONFIG).exists():
        command = f"learner evaluate {shlex.quote(str(path))} --trust"
        print(f"next:\n  {command}   # runs the code that {path / hub.CONFIG} names")
    return 0


def _hide_progress_in_pipes() -> None:
    if sys.stderr is None or not sys.stderr.isatty():
        from learner.util.optional import import_optional

        import_optional("huggingface_hub.utils", "hub", "the Hugging Face Hub").disable_progress_bars()
