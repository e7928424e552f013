import pytest

from learner.builder import LearnerBuilder
from learner.cli.help import fit_help, key_help
from learner.cli.options import methods
from learner.cli.schedules import SCHEDULES
from learner.cli.schema import PARTS
from learner.errors import LearnerError
from learner.optimizers.configs import OPTIMIZERS


def test_the_help_lists_all_keys_and_all_of_optaxs_classes_with_their_parameters():
    text = fit_help()
    lines = text.splitlines()
    for key in (*PARTS, "overwrite", *methods(LearnerBuilder)):
        assert sum(line.startswith(f"  {key} ") for line in lines) == 1, key
    for name in (*OPTIMIZERS, *SCHEDULES, "ReduceOnPlateau"):
        assert sum(line.startswith(f"  {name}(") for line in lines) == 1, name
    assert "  SGD(momentum=null, nesterov=false, accumulator_dtype=null, clip_norm=null)" in lines
    assert max(map(len, lines)) <= 120


def test_the_help_fits_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, fit_help().splitlines())) <= 80


def test_what_a_key_can_be():
    assert "  MetricEarlyStopping(monitor=valid/Loss, mode=null, patience=5" in key_help("early_stopping", "", {})
    text = key_help("optimizer", "AdamW", {})
    assert text.startswith("AdamW, as init_args or as --optimizer.NAME=VALUE\n")
    assert "--weight_decay WEIGHT_DECAY" in text
    assert "(type: float, default: 0.0001)" in text


def test_the_class_that_the_config_names(importable):
    said = {"model": {"class_path": "mymodule.linear", "init_args": {}}, "train_step": "mymodule.step"}
    assert "(required, type: int)" in key_help("model", "", said)
    assert "--scale SCALE" in key_help("train_step", "", said)
    assert "--count COUNT" in key_help("train.dataset", "mymodule.rows", {})


@pytest.mark.parametrize(
    ("key", "path", "message"),
    [
        ("modle", "", "there is no option 'modle': did you mean 'model'"),
        ("model", "", "--model.help needs a class or a function: --model.help CLASS"),
        ("optimizer", "AdmW", "there is no 'AdmW': did you mean 'AdamW'"),
        ("model", "math.pi", "math.pi is a float, which takes no arguments"),
        ("model", "math.pie", "math has no 'pie'"),
    ],
)
def test_what_there_is_no_help_for(key, path, message):
    with pytest.raises(LearnerError, match=message):
        key_help(key, path, {})
