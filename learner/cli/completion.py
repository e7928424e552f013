"""`learner completion`: a script with which a shell completes commands, options and file names."""

import argparse
import contextlib
import inspect
import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

from learner.cli.parsing import PROCESSES, Parser
from learner.cli.usage import TOPICS
from learner.util.distribution import install_hint
from learner.util.optional import import_optional

COMPLETION = f"""\
Prints a script with which a shell completes commands, keys of configs, options, and files. To use it in every shell:

  learner completion bash >> ~/.bash_completion
  learner completion zsh > ~/.zfunc/_learner       (with ~/.zfunc in fpath, before compinit)

It needs: {install_hint("completion")}"""

SHELLS = ("bash", "zsh", "tcsh")
HELP, VERSION = "show more about a command", "show the version"
NAMED = {key for key, _ in TOPICS.values()} | {"valid.dataset"}
"""Options whose values have short names."""

BASH = """\
_learner() {  # bash makes each "=" a word, and shtab expects options and values side by side
  local words=() index=$COMP_CWORD i
  for i in "${!COMP_WORDS[@]}"; do
    if [[ "${COMP_WORDS[i]}" != "=" ]]; then
      words+=("${COMP_WORDS[i]}")
    elif [[ "$i" -eq "$COMP_CWORD" ]]; then
      words+=("")
    elif [[ "$i" -lt "$COMP_CWORD" ]]; then
      index=$((index - 1))
    fi
  done
  COMP_WORDS=("${words[@]}")
  COMP_CWORD=$index
  _shtab_learner
}
complete -o bashdefault -F _learner learner"""


def completion(words: Sequence[str]) -> int:
    """`learner completion SHELL`."""
    parser = Parser("completion", COMPLETION)
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or tcsh")
    line = parser.read(words)
    shtab = import_optional("shtab", "completion", "learner completion")
    print(shtab.complete(_commands(shtab.FILE), line.shell))
    if line.shell == "bash":
        print(BASH)
    return 0


def _commands(file: Any) -> argparse.ArgumentParser:
    """Return a parser that describes the words of all commands, and parses nothing."""
    from learner.cli.configs.schema import names_for
    from learner.cli.main import COMMANDS  # which imports this module, to run it

    parser = argparse.ArgumentParser("learner")
    commands = parser.add_subparsers()
    for name, (_, _, about) in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about)
        for option in sorted({*_options(name)}):
            command.add_argument(f"--{option}", choices=list(names_for(option)) if option in NAMED else None)
        command.add_argument("paths", nargs="*").complete = file  # type: ignore[attr-defined]
    commands.add_parser("help", help=HELP).add_argument("command", choices=list(COMMANDS))
    commands.add_parser("version", help=VERSION)
    return parser


def _options(command: str) -> Iterator[str]:
    """Yield the options in the help of a command, and the keys of a config."""
    from learner.cli.main import main

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main([command, "--help"])
    text = printed.getvalue() + (PROCESSES if command == "fit" else "")
    yield from (option for option in re.findall(r"--([a-z][a-z_]+)\b(?!=)", text) if option != "help")
    if "--KEY=" in text:
        yield from _keys()


def _keys() -> Iterator[str]:
    """Yield the keys of a config: also those of the data, and the arguments of keys that have several."""
    from learner.builder import LearnerBuilder
    from learner.cli.configs.builder_options import methods
    from learner.cli.configs.schema import CONTEXT
    from learner.cli.configs.sources import PARTS
    from learner.data.loader import DataLoaderBuilder

    options = {name: inspect.getfullargspec(method).args[1:] for name, method in methods(LearnerBuilder).items()}
    loading = [*PARTS, *methods(DataLoaderBuilder)]
    inner = {**options, "train": loading, "valid": loading}
    yield from (*CONTEXT, *options)
    yield from (f"{key}.{name}" for key, names in inner.items() if len(names) > 1 for name in names)
