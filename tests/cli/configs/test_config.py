"""Tests of configs of runs."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from flax import nnx

from learner import ClassificationOutput, LossScale, Policy
from learner.cli.configs.config import RunConfig
from learner.config.safe_yaml import parse_yaml
from learner.errors import LearnerError
from learner.metrics import Info
from learner.optimizers import Clipped, Ema, Group, Groups
from learner.optimizers.configs import AdamW
from learner.schedules import Cosine
from tests.support.codes import named_case, raises_code


def saved_content(config):
    return yaml.safe_load(config.text())


def test_saved_text_is_complete_and_round_trips(importable, line_config):
    config = RunConfig(line_config | {"metrics": ["LearningRate"], "early_stopping": "MetricEarlyStopping"})
    changes = saved_content(config)
    assert list(changes) == [*line_config, "metrics", "early_stopping", "seed", "grads_accumulation"]
    assert changes["model"] == {"class_path": "mymodule.linear", "init_args": {"size": 3}}
    assert changes["optimizer"]["class_path"] == "SGD"
    assert changes["optimizer"]["init_args"].keys() == {"momentum", "nesterov", "accumulator_dtype", "clip_norm"}
    assert changes["train"]["dataset"]["init_args"] == {"count": 12, "size": 3}
    assert changes["with_file_checkpointer"]["keep_best"] == 1
    assert changes["early_stopping"]["init_args"]["patience"] == 5
    assert RunConfig(changes).text() == config.text()


def test_saved_text_has_no_options_of_one_start(importable, line_config):
    config = RunConfig(line_config | {"overwrite": True, "resume": True, "checkpoint": 3})
    assert config.text() == RunConfig(line_config).text()
    assert config.resumes
    assert not {"overwrite", "resume", "checkpoint"} & set(config.unset())


def test_unset_options(importable, line_config):
    unset = RunConfig(line_config | {"valid": None}).unset()
    assert {"update", "trainable", "metrics", "num_steps"} <= set(unset)
    assert not {"model", "num_epochs", "directory", "seed"} & set(unset)


def test_num_steps_leaves_the_epochs_unset(importable, line_config):
    del line_config["num_epochs"]
    assert saved_content(RunConfig(line_config))["num_epochs"] == 1
    assert "num_epochs" not in saved_content(RunConfig(line_config | {"num_steps": 4}))


def test_null_leaves_an_option_unset_unless_it_has_a_meaning(importable, line_config):
    changes = saved_content(
        RunConfig(line_config | {"early_stopping": None, "num_steps": None, "renderer": None, "seed": None})
    )
    assert changes["renderer"] is None
    assert "early_stopping" not in changes
    assert "num_steps" not in changes
    assert (
        saved_content(RunConfig(line_config | {"with_file_checkpointer": None}))["with_file_checkpointer"]["keep_last"]
        is None
    )


def test_mistakes_are_reported_together(importable, line_config):
    wrong = line_config | {
        "num_epoch": 3,
        "num_epochs": 0,
        "optimizer": "SDG",
        "lr": {"class_path": "CosineDecaySchedule", "init_args": {"init_value": 0.1, "decay_steps": 0}},
        "metrics": ["Acuracy"],
        "grads_accumulation": "many",
        "train": {"dataset": "mymodule.rows", "batch_size": 0},
        "valid": {"dataset": "mymodule.nothing"},
        "early_stopping": {"class_path": "MetricEarlyStopping", "init_args": {"patience": 0}},
        "overwrite": "maybe",
        "directory": None,
    }
    with pytest.raises(LearnerError) as error:
        RunConfig(wrong).learner()
    for message in (
        "this config cannot be used, 11 problems",
        "there is no option 'num_epoch': did you mean 'num_epochs'",
        "directory is missing",
        "overwrite is 'maybe': it needs true or false",
        "optimizer: there is no 'SDG': did you mean 'SGD'",
        "there is no 'Acuracy': did you mean 'Accuracy'",
        "grads_accumulation is 'many': it needs a whole number",
        "valid.dataset is 'mymodule.nothing'",
        "num_epochs is 0",
        "patience of MetricEarlyStopping is 0",
        "requires positive decay_steps",
        "train.batch_size: batch_size is 0",
    ):
        assert message in str(error.value)


def test_mistakes_inside_lists_and_objects_have_the_order_of_the_file(importable, line_config):
    wrong = {
        "seed": "one",
        "valid": {
            "a": {"dataset": {"class_path": "csv", "init_args": {"path": "a.csv"}}, "batch_size": 4},
            "b": {"dataset": {"class_path": "numpy_arrays", "init_args": {"path": "b.npz"}}},
        },
        "metrics": [
            "Acuracy",
            {"class_path": "Precision", "init_args": {"classes": 3, "average": "mean"}},
            {"class_path": "TopKAccuracy", "init_args": {"k": "many"}},
        ],
        "metric_loggers": {"onyl": ["Csv"], "only": "Csv"},
        "freeze": [{"class_path": "nowhere.one"}, {"class_path": "nowhere.two"}],
        "optimizer": {
            "class_path": "Groups",
            "init_args": {"optimizer": "Adamm", "groups": [{"match": "a", "lr": "nowhere.rate", "optimizer": "Sdg"}]},
        },
        "every": [{"fn": "nowhere.hook", "steps": "x"}, {"fn": "nowhere.other", "steps": 3}],
        "strategy": {"class_path": "Sharded", "rules": "fsdp", "axes": 3},
        "train": {"shufle": True, "dataset": {"class_path": "csv", "init_args": {"path": "c.csv"}}, "batch_size": "x"},
    }
    config = {key: value for key, value in line_config.items() if key not in wrong}
    with raises_code("config-unusable") as raised:
        RunConfig(wrong | config | {"num_epoch": 3}).learner()
    starts = [
        "seed is 'one'",
        "valid.a.dataset: csv: there is no file a.csv",
        "valid.b.dataset: numpy_arrays: there is no file b.npz",
        "metrics.0: there is no 'Acuracy'",
        "metrics.2.init_args.k is 'many'",
        "metrics: average of Precision is 'mean'",  # an error of Precision, which is created last
        "metric_loggers has no argument 'onyl'",
        "metric_loggers.only is a str; it needs a list",
        "freeze.0 is 'nowhere.one'",
        "freeze.1 is 'nowhere.two'",
        "optimizer.init_args.optimizer: there is no 'Adamm'",
        "optimizer.init_args.groups.0.lr is 'nowhere.rate'",
        "optimizer.init_args.groups.0.optimizer: there is no 'Sdg'",
        "every.0.fn is 'nowhere.hook'",
        "every.0.steps is 'x'",
        "every.1.fn is 'nowhere.other'",
        "strategy has 'rules' beside class_path",
        "strategy has 'axes' beside class_path",
        "train has no 'shufle'",
        "train.dataset: csv: there is no file c.csv",
        "train.batch_size is 'x'",
        "there is no option 'num_epoch'",
    ]
    assert len(raised.value.problems) == len(starts), "\n".join(raised.value.problems)
    for problem, start in zip(raised.value.problems, starts, strict=True):
        assert problem.startswith(start)


def test_missing_variables_are_reported_once_beside_other_mistakes(importable, line_config, monkeypatch):
    monkeypatch.delenv("NO_HOOK", raising=False)
    hook = {"class_path": "Webhook", "init_args": {"url": "${env:NO_HOOK}"}}
    with raises_code("config-unusable", "2 problems", "num_epochs is 'many'", "${env:NO_HOOK} needs") as raised:
        RunConfig(line_config | {"metric_loggers": [hook, hook], "num_epochs": "many"}).learner()
    assert raised.value.codes == ("config-arguments-mismatch", "logger-environment-missing")


def test_single_mistake_has_a_message_and_code(importable, line_config):
    for key, value, code, message in (
        ("metrics", ["Acuracy"], "config-name-unknown", "metrics.0: there is no 'Acuracy': did you mean 'Accuracy' "),
        (
            "metrics",
            "Accuracy,R2",
            "config-name-unknown",
            "metrics.0: there is no 'Accuracy,R2': a list is [Accuracy,R2]",
        ),
        ("metrics", {"Accuracy": {}}, "config-recipe-type", "metrics.0 is {'Accuracy': {}}; it needs a name"),
        ("num_epochs", "many", "config-arguments-mismatch", "num_epochs is 'many': it needs a whole number"),
        ("freeze", [{"class_path": "nowhere.x"}], "config-module-missing", "freeze.0 is 'nowhere.x', but there is no"),
    ):
        with named_case(key), raises_code(code) as raised:
            RunConfig(line_config | {key: value}).learner()
        assert str(raised.value).startswith(message)


def test_patterns_and_directories_are_not_missing_files(importable, line_config):
    """Another mistake does not make the loader of such data an error."""
    (importable / "arrays.npz").mkdir()
    for reader, path in (("TarShards", "part-*.tar"), ("numpy_arrays", "arrays.npz"), ("mymodule.stored", "none.npz")):
        train = {"dataset": {"class_path": reader, "init_args": {"path": path}}}
        with named_case(path), raises_code("config-arguments-mismatch"):
            RunConfig(line_config | {"train": train, "num_epochs": "many"}).learner()


def test_values_that_are_not_directories_are_refused(importable, line_config):
    for directory in (["a"], {"a": 1}, True):
        with named_case(directory), raises_code("config-directory-type", repr(directory)):
            RunConfig(line_config | {"directory": directory}).text()
    assert RunConfig(line_config | {"directory": 2024}).directory == "2024"


def test_values_that_are_not_rates_are_refused(importable, line_config):
    for lr, code in (
        ("fast", "config-name-unknown"),
        ([1], "config-lr-type"),
        (True, "config-lr-type"),
        (float("nan"), "config-lr-type"),
        ({"rate": 1}, "config-recipe-type"),
    ):
        with named_case(lr), raises_code(code, "lr"):
            RunConfig(line_config | {"lr": lr}).text()


@pytest.mark.parametrize("key", ["directory", "model", "optimizer", "lr", "train"])
def test_missing_keys_are_refused(importable, line_config, key):
    del line_config[key]
    with raises_code("config-key-missing", f"--{key}"):
        RunConfig(line_config).text()


class Recorder:
    """Record the arguments of a builder and of `build`."""

    def __init__(self, directory, overwrite=False):
        self.given = {"directory": directory, "overwrite": overwrite}

    def seed(self, n: int):
        self.given["seed"] = n

    def num_epochs(self, n: int): ...

    def grads_accumulation(self, n: int): ...

    def _config_text(self, config_text, config_kept, config_private):
        self.given["text"] = config_text
        return self

    def build(self, **parts):
        return self.given | parts


def builder_arguments(config, **changes):
    config = {key: value for key, value in config.items() if key != "with_file_checkpointer"}
    return RunConfig(config | changes, Recorder).learner()


def test_arguments_of_the_builder(importable, line_config):
    given = builder_arguments(line_config, seed=3, overwrite=True, trainable="flax.nnx.Param", valid_step=None)
    assert given["directory"] == "run"
    assert given["overwrite"] is True
    assert given["seed"] == 3
    assert given["lr"] == 0.1
    assert given["trainable"] is nnx.Param
    assert repr(given["optimizer"]).startswith("SGD(")
    assert given["train"].batch_size == 4
    assert given["valid"].batch_size == 12
    assert given["train_step"].__name__ == "step"
    assert "valid_step" not in given
    assert given["model"]()["w"].shape == (3,)
    header, text = given["text"].split("directory:", 1)
    assert all(line.startswith("# ") for line in header.splitlines())
    assert "overwrite" not in text


def test_functions_with_some_arguments(importable, line_config):
    given = builder_arguments(
        line_config,
        optimizer={"class_path": "mymodule.momentum", "init_args": {"decay": 0.5}},
        lr="mymodule.halved",
        train_step={"class_path": "mymodule.step", "init_args": {"scale": 2}},
    )
    assert given["optimizer"].keywords == {"decay": 0.5}
    assert given["lr"](1) == 0.05
    assert given["train_step"].keywords == {"scale": 2.0}
    given = builder_arguments(
        line_config,
        lr={
            "class_path": "optax.linear_schedule",
            "init_args": {"init_value": 1, "end_value": 0, "transition_steps": 4},
        },
    )
    assert float(given["lr"](1)) == 0.75


def test_class_makes_the_model(importable, line_config):
    (importable / "nets.py").write_text(
        "from flax import nnx\n"
        "class Net(nnx.Module):\n"
        "    def __init__(self, size: int, *, rngs: nnx.Rngs):\n"
        "        self.layer = nnx.Linear(size, 1, rngs=rngs)\n"
    )
    model = {"class_path": "nets.Net", "init_args": {"size": 3}}
    make = {seed: builder_arguments(line_config, model=model, seed=seed)["model"] for seed in (0, 1)}
    kernels = [jax.device_get(make[seed]().layer.kernel[...]) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(kernels[0], kernels[1])
    assert (kernels[0] != kernels[2]).any()


def test_config_without_data(importable, line_config):
    given = RunConfig({k: v for k, v in line_config.items() if k != "with_file_checkpointer"}, Recorder).learner(
        with_data=False
    )
    assert not {"train", "valid"} & set(given)


def test_update_needs_no_optimizer(importable, line_config):
    del line_config["optimizer"]
    (importable / "updates.py").write_text("def update(state, batch, lr, rng): ...\n")
    given = builder_arguments(line_config, update="updates.update")
    assert given["optimizer"] is None
    assert given["update"].__name__ == "update"


def test_home_directory_is_expanded(importable, line_config, monkeypatch):
    monkeypatch.setenv("HOME", "/home/user")
    assert RunConfig(line_config | {"directory": "~/runs"}).directory == "/home/user/runs"


FLOAT16 = {"class_path": "Policy", "init_args": {"compute": "float16", "loss_scale": {"start": 8.0, "every": 3}}}
NESTED = {"class_path": "Policy", "init_args": {"compute": "float16", "loss_scale": {"class_path": "LossScale"}}}


@pytest.mark.parametrize(
    ("changes", "policy", "matmul"),
    [
        ("bfloat16", Policy(compute="bfloat16"), None),
        ({"policy": "float16", "matmul": "high"}, Policy(compute="float16"), "high"),
        (
            {"matmul": "highest", "policy": FLOAT16},
            Policy("float32", "float16", "float32", LossScale(8.0, 3)),
            "highest",
        ),
        (FLOAT16, Policy("float32", "float16", "float32", LossScale(8.0, 3)), None),
        (NESTED, Policy(compute="float16", loss_scale=LossScale()), None),
        ({"class_path": "learner.Policy", "init_args": {"output": "bfloat16"}}, Policy(output="bfloat16"), None),
    ],
)
def test_precision(importable, line_config, changes, policy, matmul):
    config = RunConfig(line_config | {"precision": changes})
    options = config.learner().definition.options
    assert (options.precision, options.matmul) == (policy, matmul)
    assert RunConfig(saved_content(config)).text() == config.text()


def test_nested_optimizers(importable, line_config):
    """Groups, clipping and averages have short names, each inside another."""
    grouped = {
        "class_path": "Groups",
        "init_args": {
            "optimizer": {"class_path": "AdamW", "init_args": {"weight_decay_on": "kernels"}},
            "groups": [
                {
                    "match": "^w",
                    "lr": {"class_path": "Cosine", "init_args": {"first": 0.1, "over": 9}},
                    "weight_decay": 0.0,
                }
            ],
        },
    }
    clipped = {"class_path": "Clipped", "init_args": {"optimizer": grouped, "tensor_norm": 1.0}}
    changes = {"class_path": "Ema", "init_args": {"optimizer": clipped, "decay": 0.99}}
    config = RunConfig(line_config | {"optimizer": changes})
    learner = config.learner()
    rest = AdamW(weight_decay_on="kernels")
    groups = Groups(rest, [Group("^w", lr=Cosine(0.1, over=9), weight_decay=0.0)])
    assert learner.definition.step.optimizer == Ema(Clipped(groups, tensor_norm=1.0), decay=0.99)
    assert RunConfig(saved_content(config)).text() == config.text()


def test_freezing(importable, line_config):
    for changes in ("hidden", ["hidden", "norm"]):
        with raises_code("params-pattern-unmatched", "freeze: 'hidden'", "'w'"):
            RunConfig(line_config | {"freeze": changes}).learner()


def test_remat(importable, line_config):
    options = RunConfig(line_config | {"remat": "dots_saveable"}).learner().definition.options
    assert options.remat is jax.checkpoint_policies.dots_saveable
    assert RunConfig(line_config | {"remat": None}).learner().definition.options.remat is None


@pytest.mark.parametrize(
    ("changes", "code", "shown"),
    [
        ({"precision": "bfloat61"}, "precision-policy-unknown", ["'bfloat61'", "'float32'"]),
        ({"precision": "Polcy"}, "precision-policy-unknown", ["'Polcy'"]),
        (
            {"precision": {"policy": "bfloat16", "mat": "high"}},
            "config-arguments-mismatch",
            ["'mat'", "'matmul'"],
        ),
        (
            {"precision": {"class_path": "Policy", "init_args": {"computes": 1}}},
            "config-arguments-mismatch",
            ["'compute'"],
        ),
        (
            {"precision": {"class_path": "Policy", "init_args": {"compute": "int8"}}},
            "precision-dtype-unknown",
            ["'int8'"],
        ),
        ({"precision": 16}, "config-arguments-mismatch", ["is 16"]),
        ({"remat": "dots"}, "step-remat-unknown", ["'dots'"]),
    ],
)
def test_invalid_precision_is_refused(importable, line_config, changes, code, shown):
    with raises_code(code, *shown):
        RunConfig(line_config | changes).learner()


def test_class_of_learners(importable, line_config):
    """A class of the user's module is given by its import path."""
    subclass = "\n\nclass Own(Learner):\n    pass\n"
    (importable / "mymodule.py").write_text(
        "from learner import Learner\n" + (importable / "mymodule.py").read_text() + subclass
    )
    config = RunConfig(line_config | {"learner_class": "mymodule.Own"})
    assert saved_content(config)["learner_class"] == "mymodule.Own"
    assert type(config.learner()).__name__ == "Own"
    with raises_code("config-arguments-mismatch", "learner_class"):
        RunConfig(line_config | {"learner_class": "mymodule.step"}).learner()


LOGGERS = [
    "JsonLines",
    {"class_path": "TensorBoard", "init_args": {"every_steps": 5}},
    {"class_path": "Csv", "init_args": {"every_steps": None, "every_epochs": 2}},
    {"class_path": "Webhook", "init_args": {"url": "https://example.org/hook", "on": ["end", "failure"]}},
    {"class_path": "MLflow", "init_args": {"tracking_uri": "http://127.0.0.1:5000"}},
]


def test_loggers_have_short_names(importable, line_config, monkeypatch):
    monkeypatch.setattr("learner.loggers.mlflow.refuse_missing", lambda *names: None)  # with and without MLflow
    config = RunConfig(line_config | {"metric_loggers": LOGGERS})
    changes = saved_content(config)["metric_loggers"]
    assert [logger["class_path"] for logger in changes] == ["JsonLines", "TensorBoard", "Csv", "Webhook", "MLflow"]
    assert changes[0]["init_args"] == {"path": None, "every_steps": 10, "every_epochs": 1}
    assert changes[3]["init_args"]["on"] == ["end", "failure"]
    assert RunConfig(saved_content(config)).text() == config.text()
    loggers = config.learner(with_data=False).definition.options.loggers
    assert [type(logger).__name__ for logger in loggers] == [logger["class_path"] for logger in changes]
    assert [(logger.every_steps, logger.every_epochs) for logger in loggers[:3]] == [(10, 1), (5, 1), (None, 2)]


@pytest.mark.parametrize("value", [{"only": ["JsonLines"]}, {"only": [{"class_path": "Csv", "init_args": {}}]}])
def test_loggers_that_replace_the_metric_files(importable, line_config, value):
    config = RunConfig(line_config | {"metric_loggers": value})
    options = config.learner(with_data=False).definition.options
    assert (options.metric_files, [type(logger).__name__ for logger in options.loggers]) == (
        False,
        ["JsonLines" if "JsonLines" in value["only"] else "Csv"],
    )
    assert [each["init_args"]["every_steps"] for each in yaml.safe_load(config.text())["metric_loggers"]["only"]] == [
        10
    ]
    again = RunConfig(yaml.safe_load(config.text())).learner(with_data=False)
    assert (again.definition.options.metric_files, len(again.definition.options.loggers)) == (False, 1)


@pytest.mark.parametrize(
    ("value", "code", "shown"),
    [
        ({"olny": ["JsonLines"]}, "config-argument-unknown", ["metric_loggers", "'olny'", "'only'"]),
        ({"only": "JsonLines"}, "config-argument-not-list", ["metric_loggers.only"]),
        ({"only": ["JsonLine"]}, "config-name-unknown", ["metric_loggers.only.0", "'JsonLine'", "'JsonLines'"]),
    ],
)
def test_invalid_lists_of_loggers_are_refused(importable, line_config, value, code, shown):
    with raises_code(code, *shown):
        RunConfig(line_config | {"metric_loggers": value}).learner(with_data=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("TensorBord", "metric_loggers.0: there is no 'TensorBord': did you mean 'TensorBoard'?"),
        ({"class_path": "Csv", "init_args": {"every_step": 2}}, "every_step"),
        ({"class_path": "Csv", "init_args": {"every_steps": 0}}, "every_steps of Csv is 0"),
        ({"class_path": "Webhook", "init_args": {"url": "nowhere"}}, "the webhook has the address '...'"),
        ({"class_path": "Webhook"}, "url"),
    ],
    ids=["name", "argument", "number", "address", "missing"],
)
def test_invalid_loggers_are_refused(importable, line_config, changes, message):
    with pytest.raises(LearnerError) as error:
        RunConfig(line_config | {"metric_loggers": [changes]}).learner(with_data=False)
    assert message in str(error.value)


OWN_METRICS = """
import learner.metrics
from learner.metrics import MetricBase


def difference(x1, x2):
    return x1 - x2


class Accuracy(learner.metrics.Accuracy):
    pass


class Titled(learner.metrics.Accuracy):
    def __init__(self, also: dict, parts: list[MetricBase]):
        super().__init__()
        self.also, self.parts = also, parts
"""


@pytest.fixture
def own_metrics(importable):
    (importable / "ownmetrics.py").write_text(OWN_METRICS)


SCORE = {"name": "Score", "function": "ownmetrics.difference"}
OF_NAMES = {**SCORE, "metrics": {"x1": "Accuracy", "x2": "Loss"}}
F1 = {"class_path": "FBeta", "init_args": {"classes": 2}}


@pytest.mark.parametrize(
    ("name", "arguments", "title"),
    [
        ("OnText", {"metric": "WordErrorRate", "decode": "builtins.repr"}, "Word Error Rate on Text"),
        ("Aggregate", OF_NAMES, "Score"),
        ("Aggregate", {**SCORE, "metrics": {"x1": "Accuracy", "x2": F1}}, "Score"),
        ("Head", {"metric": {"class_path": "Aggregate", "init_args": OF_NAMES}, "head": "genre"}, "Score of genre"),
    ],
)
def test_metrics_of_metrics_have_short_names(own_metrics, line_config, name, arguments, title):
    config = RunConfig(line_config | {"metric_valid": {"class_path": name, "init_args": arguments}})
    metrics = config.learner(with_data=False).definition.options.metrics_of("valid")
    assert title in [metric.name for metric in metrics]
    assert RunConfig(saved_content(config)).text() == config.text()


def metric_of(line_config, name, arguments):
    config = RunConfig(line_config | {"metric_valid": {"class_path": name, "init_args": arguments}})
    return config.learner(with_data=False).definition.options.metrics_of("valid")[0]


@pytest.mark.parametrize("accuracy", ["Accuracy", "ownmetrics.Accuracy"])
def test_aggregates_of_configs_are_computed(own_metrics, line_config, accuracy):
    """The scores of all four classes are equal, so that the first one is the prediction."""
    metric = metric_of(line_config, "Aggregate", {**SCORE, "metrics": {"x1": accuracy, "x2": {"class_path": "Loss"}}})
    output = ClassificationOutput.from_logits(jnp.zeros((2, 4)), jnp.array([0, 1]))
    state = metric.update(metric.init(), output, Info(jnp.int32(0), jnp.float32(2)))
    assert metric.compute(state) == pytest.approx(1 / 2 - math.log(4))


def test_wrong_names_in_aggregates_are_refused(own_metrics, line_config):
    with raises_code("config-name-unknown", "metrics.x1", "'Acuracy'", "'Accuracy'"):
        metric_of(line_config, "Aggregate", {**SCORE, "metrics": {"x1": "Acuracy", "x2": F1}})


def test_only_arguments_that_are_metrics_have_names_of_metrics(own_metrics, line_config):
    arguments = {"also": {"title": "Accuracy", "metric": F1}, "parts": ["Loss"]}
    metric = metric_of(line_config, "ownmetrics.Titled", arguments)
    assert metric.also["title"] == "Accuracy"
    assert [metric.also["metric"].name, *(part.name for part in metric.parts)] == ["F1", "Loss"]


def test_argument_named_on_is_a_text(importable, line_config):
    """YAML 1.1 reads it as `true`."""
    logger = "{class_path: Webhook, init_args: {url: 'http://127.0.0.1:9/', on: [end, failure]}}"
    loggers = parse_yaml(f"[{logger}]")
    text = RunConfig({**line_config, "metric_loggers": loggers}).text()
    assert yaml.safe_load(text)["metric_loggers"][0]["init_args"]["on"] == ["end", "failure"]
    assert RunConfig(parse_yaml(text)).text() == text


def test_arguments_of_the_renderer_need_no_class(importable, line_config):
    """They are arguments of the renderer that is chosen for the terminal."""
    saved = saved_content(RunConfig(line_config | {"renderer": {"metrics": ["Loss"]}}))
    assert saved["renderer"] == {
        "class_path": "learner.renderers.default_renderer",
        "init_args": {"metrics": ["Loss"]},
    }
