"""`learner profile`: a profile of training steps."""

from collections.abc import Sequence

from learner.cli.configs.config import RunConfig
from learner.cli.configs.overrides import apply_overrides, read_yaml, value_of
from learner.cli.parsing import Parser

PROFILE = """\
Trains for some steps and prints where their time goes: computing on the device, or waiting for data, for the host, or
for metrics and files. It names the bottleneck. Nothing is validated, saved, or sent to loggers. The trace that it
writes can be opened in TensorBoard and in ui.perfetto.dev."""

TRUSTED = """\
It trusts CONFIG: the code that it names is imported and run. To profile a complete run, use learner fit CONFIG
--profile=[20,120]."""


def profile(words: Sequence[str]) -> int:
    """`learner profile CONFIG [--steps=[FIRST,LAST]] [-o DIR] [--KEY=VALUE ...]`."""
    parser = Parser("profile", PROFILE, "CONFIG [--steps=[FIRST,LAST]] [-o DIR] [--KEY=VALUE ...]", TRUSTED, keys=True)
    parser.add_config()
    about = "[20,120]: the steps 21 to 120; default: about a second of steps after the first 20"
    parser.add_argument("--steps", metavar="[FIRST,LAST]", help=about)
    about = "where the trace and profile.json go (default: profile)"
    parser.add_argument("-o", "--output", metavar="DIR", default="profile", help=about)
    line = parser.read(words)
    config = RunConfig(apply_overrides(read_yaml(line.config), line.overrides), beside=("steps", "output"))
    steps = (20, None) if line.steps is None else value_of(line.steps)
    print(config.learner().profile(steps=steps, directory=line.output))
    return 0
