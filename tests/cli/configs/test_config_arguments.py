"""Tests of config objects as arguments in config files."""

import json

import numpy as np
import pytest
import yaml

from learner.cli.configs.config_arguments import config_kinds
from learner.cli.configs.recipes import Seeds, make_model, recipe
from learner.errors import LearnerError

MODULE = """
from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from learner import Config, RegressionOutput


class Scale(Config):
    factor: float = 1.0


class LineConfig(Config):
    size: int
    seed: int = 5
    kind: Literal["zeros", "random"] = "zeros"
    scale: Scale = Scale()

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f"size is {self.size}: it needs 1 or more")

    def init(self, key):
        return line(self, key=key)


class Sloped(LineConfig):
    slope: float = 1.0


def line(config: LineConfig, bias: float = 0.0, *, key):
    w = jax.random.normal(key, (config.size,)) if config.kind == "random" else jnp.zeros(config.size)
    return {"w": config.scale.factor * w, "bias": jnp.float32(bias)}


def may(config: LineConfig | None = None, lines: list[LineConfig] = []):
    return config, lines


@dataclasses.dataclass
class Plain:
    width: int = 3


def plain(part: Plain = Plain(), size: int = 1):
    return part, size
"""


@pytest.fixture(autouse=True)
def lines(importable):
    (importable / "lines.py").write_text(MODULE)
    with (importable / "mymodule.py").open("a") as file:
        file.write("\n\ndef line_step(model, batch):\n    return step({'w': model['w']}, batch)\n")


def spec(name, **init_args):
    return {"class_path": f"lines.{name}", "init_args": init_args}


def make(name, **init_args):
    return make_model(recipe(spec(name, **init_args), "model", model=True), Seeds(0))


def problems_of(name, **init_args):
    with pytest.raises(LearnerError) as caught:
        recipe(spec(name, **init_args), "model", model=True)
    return list(caught.value.problems or [str(caught.value)])


def test_config_as_the_model_equals_a_model_of_the_config():
    fields = {"size": 3, "kind": "random", "scale": {"factor": 2}}
    one, other = make("LineConfig", **fields), make("line", config=fields)
    assert np.ptp(one["w"]) > 0
    for name in ("w", "bias"):
        np.testing.assert_array_equal(one[name], other[name])


def test_saved_config_is_complete_and_keeps_its_seed():
    full = {"size": 3, "seed": 5, "kind": "zeros", "scale": {"factor": 1.0}}
    assert recipe(spec("LineConfig", size=3), "model", model=True).config() == spec("LineConfig", **full)
    assert recipe(spec("line", config={"size": 3}), "model", model=True).config() == spec("line", config=full, bias=0.0)
    assert recipe(spec("may"), "model").config() == spec("may", config=None, lines=[])


def test_configs_in_lists_and_files_and_of_derived_classes(importable):
    (importable / "line.json").write_text(json.dumps({"size": 4}))
    config, others = recipe(
        spec("may", config="line.json", lines=[{"size": 1}, spec("Sloped", size=2, slope=3)]), "model"
    ).make()
    assert (config.size, [type(line).__name__ for line in others]) == (4, ["LineConfig", "Sloped"])
    assert (others[1].size, others[1].slope) == (2, 3.0)
    saved = recipe(recipe(spec("may", lines=[spec("Sloped", size=2)]), "model").config(), "model")
    assert saved.make()[1][0].slope == 1.0


def test_mistakes_are_reported_with_their_places():
    assert problems_of("line", config={"sise": 3, "kind": "zero", "scale": {"factor": "x"}}, bais=1) == [
        "model.init_args: lines.line has no argument 'bais': did you mean 'bias'?",
        "model.init_args.config has no 'sise': did you mean 'size'?",
        "model.init_args.config needs 'size'",
        "model.init_args.config.kind is 'zero': did you mean 'zeros'?",
        "model.init_args.config.scale.factor is 'x': it needs a number",
    ]
    assert problems_of("LineConfig", sise=3, scale=2) == [
        "model.init_args: lines.LineConfig has no argument 'sise': did you mean 'size'?",
        "model.init_args: lines.LineConfig needs 'size'",
        "model.init_args.scale is 2: it needs Scale, a mapping of factor",
    ]
    assert problems_of("LineConfig", size=0) == ["model.init_args: size is 0: it needs 1 or more"]
    assert problems_of("line", config={"size": 0}) == ["model.init_args.config: size is 0: it needs 1 or more"]
    assert problems_of("line", bias="x") == [
        "model.init_args: lines.line needs 'config'",
        "model.init_args.bias is 'x': it needs a number",
    ]
    assert problems_of("may", config="none.yaml") == ["model.init_args.config: there is no LineConfig file none.yaml"]
    (problem,) = problems_of("may", config=spec("Slopd", size=1))
    assert problem.startswith(
        "model.init_args.config.class_path is 'lines.Slopd', but lines has no 'Slopd': did you mean"
    )


def test_only_parameters_of_config_types_are_configs():
    import lines

    assert config_kinds(lines.line) == {"config": lines.LineConfig}
    assert list(config_kinds(lines.may)) == ["config", "lines"]
    assert list(config_kinds(lines.LineConfig)) == ["size", "seed", "kind", "scale"]
    assert config_kinds(lines.plain) == {}


def test_default_dataclass_is_in_the_full_config():
    assert recipe(spec("plain"), "model").config() == spec("plain", part={"width": 3}, size=1)


@pytest.mark.full
def test_run_of_a_model_config(importable, learner, line_config):
    line_config |= {"model": spec("LineConfig", size=3), "train_step": "mymodule.line_step"}
    line_config["valid_step"] = "mymodule.line_step"
    (importable / "run.yaml").write_text(yaml.safe_dump(line_config))
    words = ["--model.scale.factor=2", "--model.kind=random"]
    code, out, err = learner("fit", "run.yaml", *words)
    assert (code, err) == (0, "")
    saved = yaml.safe_load((importable / "run" / "config.yaml").read_text())["model"]["init_args"]
    assert saved == {"size": 3, "seed": 5, "kind": "random", "scale": {"factor": 2.0}}
    code, out, _ = learner("evaluate", "run")
    assert code == 0
    assert "valid/Loss" in out


def test_configs_that_make_no_model_are_refused(importable, learner, line_config):
    line_config["model"] = spec("Scale")
    (importable / "run.yaml").write_text(yaml.safe_dump(line_config))
    code, _, err = learner("fit", "run.yaml", "--lr=fast")
    assert code == 2
    assert "model is lines.Scale, a config without a method init(rngs) that makes the model" in err
    assert "lr: 'fast' is neither" in err
