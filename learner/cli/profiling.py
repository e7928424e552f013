"""`learner profile`: a profile of training steps."""

from collections.abc import Sequence

from learner.cli.config import RunConfig
from learner.cli.overrides import apply_overrides, read_yaml, split, value_of
from learner.errors import LearnerError

PROFILE = """\
usage: learner profile CONFIG [--steps=[FIRST,LAST]] [-o DIR] [--KEY=VALUE ...]

Trains for some steps and prints where their time goes: computing on the device, or waiting for data, for the host, or
for metrics and files. It names the bottleneck. Nothing is validated, saved, or sent to loggers. The trace that it
writes can be opened in TensorBoard and in ui.perfetto.dev.

  --steps=[20,120]        the steps 21 to 120; default: about a second of steps after the first 20
  -o, --output DIR        where the trace and profile.json go (default: profile)
  --batch_size=256        keys of the config, as for learner fit

It trusts CONFIG: the code that it names is imported and run. To profile a complete run, use learner fit CONFIG
--profile=[20,120].
"""

OWN = ("steps", "output")


def profile(words: Sequence[str]) -> int:
    """`learner profile CONFIG [--steps=[FIRST,LAST]] [-o DIR] [--KEY=VALUE ...]`."""
    line = split(words)
    if "help" in line.switches:
        print(PROFILE, end="")
        return 0
    own = {key: value if key == "output" else value_of(value) for key, value in line.overrides if key in OWN}
    line.overrides = [(key, value) for key, value in line.overrides if key not in OWN]
    if len(line.positional) != 1:
        raise LearnerError("learner profile needs a config file: learner profile CONFIG", code="cli-config-missing")
    config = RunConfig(apply_overrides(read_yaml(line.positional[0]), line), beside=OWN)
    steps = own.get("steps", (20, None))
    print(config.learner().profile(steps=steps, directory=own.get("output", "profile")))
    return 0
