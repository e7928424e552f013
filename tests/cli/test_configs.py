"""Tests of the configs of the project, shortened if they take more than a few seconds."""

import json

import numpy as np
import pytest
import yaml

from learner.cli.configs.config import RunConfig
from learner.cli.configs.overrides import read_yaml

pytestmark = pytest.mark.usefixtures("compiled_once")

SHORTER = {
    "digits": [],
    "digits_cnn": ["--num_epochs=3"],
    "regression": ["--num_epochs=12"],
    "charlm": [
        "--num_steps=12",
        "--valid_every=5",
        "--model.width=32",
        "--model.layers=1",
        "--train.dataset.length=32",
        "--train.dataset.max_rows=256",
        "--valid.dataset.length=32",
        "--valid.dataset.max_rows=128",
        "--lr=3e-2",
    ],
}

ENDS = {
    "digits": ("valid/Accuracy", "best", 0.97, 1.0),
    "digits_cnn": ("valid/Accuracy", "last", 0.9, 1.0),
    "regression": ("valid/Loss", "best", 0.0, 0.62),
    "charlm": ("valid/Loss", "last", 0.0, 3.6),  # a uniform guess has ln(128) = 4.85
}


def test_all_configs_are_tested(at_root):
    assert {path.stem for path in (at_root / "configs").glob("*.yaml")} == set(SHORTER)


@pytest.mark.full  # `tests/examples/test_examples.py` trains one by default
@pytest.mark.parametrize("name", SHORTER)
def test_config_trains(name, at_root, learner, tmp_path, recwarn):
    directory = tmp_path / name
    code, out, err = learner("fit", f"configs/{name}.yaml", f"--directory={directory}", *SHORTER[name])
    assert (code, err) == (0, "")
    assert not recwarn.list
    assert out.isprintable() or set(out) <= {*map(chr, range(32, 127)), "\n"}
    summary = json.loads((directory / "summary.json").read_text())
    key, which, least, most = ENDS[name]
    assert least <= summary["metrics"][key][which]["value"] <= most
    saved = yaml.safe_load((directory / "config.yaml").read_text())
    assert RunConfig(saved).text() == yaml.safe_dump(saved, sort_keys=False, default_flow_style=None, width=100)


@pytest.mark.parametrize("name", SHORTER)
def test_comments_match_the_data(name, at_root):
    content = read_yaml(f"configs/{name}.yaml")
    config = RunConfig(content)
    assert content["directory"] == f"runs/{name}"
    if isinstance(content["lr"], dict) and "decay_steps" in content["lr"]["init_args"]:
        steps = content["num_epochs"] * len(config.data("train"))
        assert content["lr"]["init_args"]["decay_steps"] == pytest.approx(
            steps, rel=0.1
        )  # the length of the text depends on Python's version


@pytest.mark.full
def test_seed_determines_the_parameters(at_root, monkeypatch):
    monkeypatch.syspath_prepend(str(at_root))
    content = read_yaml("configs/digits.yaml")
    kernels = [RunConfig({**content, "seed": seed})._model()().layers[0].kernel[...] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(kernels[0], kernels[1])
    assert (kernels[0] != kernels[2]).any()
