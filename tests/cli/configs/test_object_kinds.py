"""Tests of nested optimizers and schedules in configs, by their short names."""

import numpy as np
import optax
import pytest
import yaml
from optax import contrib

from learner.cli.configs.config import RunConfig
from learner.cli.configs.object_kinds import kind_of
from learner.errors import LearnerError
from learner.optimizers import Clipped, Ema, Group, Groups
from learner.optimizers.configs import SGD, Adam, AdamW, ScheduleFree
from learner.schedules import Cosine, ReduceOnPlateau
from tests.support.codes import named_case, raises_code


def spec(name, **init_args):
    return {"class_path": name, "init_args": init_args}


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (spec("Clipped", optimizer="AdamW", norm=1.0), Clipped(AdamW(), norm=1.0)),
        (
            spec("Ema", optimizer=spec("Groups", optimizer="AdamW", groups=[{"match": "w", "optimizer": "SGD"}])),
            Ema(Groups(AdamW(), [Group("w", optimizer=SGD())])),
        ),
        (
            spec("Groups", optimizer="Adam", groups=[{"match": "w", "lr": spec("Cosine", first=0.1, over=9)}]),
            Groups(Adam(), [Group("w", lr=Cosine(0.1, over=9))]),
        ),
        (spec("ScheduleFree", base_optimizer="SGD"), ScheduleFree(base_optimizer=SGD())),
    ],
)
def test_names_inside_optimizers(importable, line_config, optimizer, expected):
    config = RunConfig(line_config | {"optimizer": optimizer})
    assert config.learner().definition.step.optimizer == expected
    assert RunConfig(yaml.safe_load(config.text())).text() == config.text()


def test_user_functions_by_import_path(importable, line_config):
    groups = [
        {"match": "^w", "lr": "mymodule.halved", "optimizer": spec("mymodule.momentum", decay=0.9)},
    ]
    config = RunConfig(line_config | {"optimizer": spec("Groups", optimizer="optax.adamw", groups=groups)})
    optimizer = config.learner().definition.step.optimizer
    assert optimizer.optimizer is optax.adamw
    assert float(optimizer.groups[0].lr(1)) == pytest.approx(0.05)
    assert optimizer.groups[0].optimizer.keywords == {"decay": 0.9}
    assert RunConfig(yaml.safe_load(config.text())).text() == config.text()


@pytest.mark.full
def test_predicates_by_import_path(importable, line_config):
    (importable / "choices.py").write_text(
        "def large(path, array, least=1):\n    return array.size >= least\n\n"
        "class Named:\n    def __init__(self, wanted: str):\n        self.wanted = wanted\n\n"
        "    def __call__(self, path, array):\n        return path == self.wanted\n"
    )
    groups = [{"match": spec("choices.large", least=3), "lr": 0.5}]
    config = RunConfig(line_config | {"optimizer": spec("Groups", optimizer="SGD", groups=groups)})
    labels = config.learner().definition.step.optimizer.labels({"w": np.zeros(3), "b": np.zeros(1)})
    assert labels == {"w": "0", "b": "rest"}
    assert RunConfig(yaml.safe_load(config.text())).text() == config.text()
    for match, named in (({"class_path": "choices.large"}, "large"), (spec("choices.Named", wanted="w"), "Named")):
        config = RunConfig(line_config | {"freeze": [match]})
        with raises_code("model-nothing-to-train", f"freeze ({named})"):
            config.learner()
        assert RunConfig(yaml.safe_load(config.text())).text() == config.text()
    with raises_code("params-match-empty", "Named", "w"):
        RunConfig(line_config | {"freeze": [spec("choices.Named", wanted="v")]}).learner()


def test_group_by_its_class(importable, line_config):
    groups = [spec("Group", match="w", optimizer="Adam"), {"match": "b", "lr": 2.0}]
    config = RunConfig(line_config | {"optimizer": spec("Groups", optimizer="SGD", groups=groups)})
    optimizer = config._recipes["optimizer"].make()
    assert optimizer.groups == (Group("w", optimizer=Adam()), Group("b", lr=2.0))
    assert RunConfig(yaml.safe_load(config.text())).text() == config.text()


def test_nested_optimizer_on_the_command_line(learner, workplace, line_config):
    (workplace / "line.yaml").write_text(yaml.safe_dump(line_config))
    words = ["--optimizer=Clipped", "--optimizer.norm=1.0", "--optimizer.optimizer=AdamW"]
    code, out, _ = learner("fit", "line.yaml", "--print_config", *words, "--optimizer.optimizer.weight_decay=0.5")
    assert code == 0
    inner = yaml.safe_load(out)["optimizer"]["init_args"]["optimizer"]
    assert (inner["class_path"], inner["init_args"]["weight_decay"]) == ("AdamW", 0.5)


SCHEDULE = "a learning-rate schedule, which belongs under lr, of the run or of a group: it needs an optimizer, such as"
OPTIMIZER = "an optimizer, which belongs under optimizer: it needs a number or a schedule, such as Cosine"


@pytest.mark.full
def test_schedules_and_optimizers_in_place_of_each_other(importable, line_config):
    cases = [
        ({"optimizer": "Cosine"}, f"optimizer is Cosine, {SCHEDULE}"),
        ({"optimizer": spec("Cosine", first=0.1)}, f"optimizer is Cosine, {SCHEDULE}"),
        ({"optimizer": "learner.schedules.Cosine"}, f"optimizer is learner.schedules.Cosine, {SCHEDULE}"),
        ({"optimizer": "CosineDecaySchedule"}, f"optimizer is CosineDecaySchedule, {SCHEDULE}"),
        ({"optimizer": "optax.linear_schedule"}, f"optimizer is optax.linear_schedule, {SCHEDULE}"),
        ({"lr": "AdamW"}, f"lr is AdamW, {OPTIMIZER}"),
        ({"lr": spec("AdamW", b1=0.8)}, f"lr is AdamW, {OPTIMIZER}"),
        ({"lr": "Groups"}, f"lr is Groups, {OPTIMIZER}"),
        ({"lr": "optax.adamw"}, f"lr is optax.adamw, {OPTIMIZER}"),
        (
            {"lr": spec("Sequence", parts=["AdamW", 0.1], milestones=[5])},
            f"lr.init_args.parts.0 is AdamW, {OPTIMIZER}",
        ),
        (
            {"optimizer": spec("Clipped", norm=1.0, optimizer="Linear")},
            f"optimizer.init_args.optimizer is Linear, {SCHEDULE}",
        ),
        (
            {"optimizer": spec("Groups", optimizer="SGD", groups=[{"match": "w", "lr": "SGD"}])},
            f"optimizer.init_args.groups.0.lr is SGD, {OPTIMIZER}",
        ),
        (
            {"optimizer": spec("Groups", optimizer="SGD", groups=[{"match": "w", "optimizer": "SDG"}])},
            "optimizer.init_args.groups.0.optimizer: there is no 'SDG': did you mean 'SGD'",
        ),
        (
            {"optimizer": spec("Groups", optimizer="SGD", groups=[{"match": "w", "lr": "Cosine"}])},
            "optimizer.init_args.groups.0.lr.init_args: Cosine needs 'first'",
        ),
        (
            {
                "optimizer": spec(
                    "Groups", optimizer="SGD", groups=[{"match": "w", "lr": spec("ReduceOnPlateau", lr=0.1)}]
                )
            },
            "lr of a group is ReduceOnPlateau, which follows the run as a whole",
        ),
        ({"optimizer": spec("SGD", clip_norm=-1.0)}, "clip_norm of SGD is -1.0; it needs a positive number"),
        ({"optimizer": "adamw"}, "optimizer: there is no 'adamw': did you mean 'AdamW'?"),
        ({"optimizer": spec("Groups", optimizer="SGD", groups="w")}, "groups of Groups is 'w'; it needs a list of"),
        (
            {"lr": spec("MultiStep", first=0.1, milestones=5)},
            "milestones is 5: it needs a list of numbers",
        ),
        ({"weight_decay": 0.1}, "no option 'weight_decay': it is an argument of the optimizer, as in --optimizer=Adam"),
        ({"schedule": "Cosine"}, "there is no option 'schedule': the learning rate, a number or a schedule, is lr"),
        (
            {"schedule": "AdamW"},
            "there is no option 'schedule': the learning rate, a number or a schedule, is lr; AdamW is an optimizer",
        ),
        (
            {"learning_rate": 0.1},
            "no option 'learning_rate': the learning rate, a number or a schedule, is lr",
        ),
        ({"lerning_rate": 0.1}, "no option 'lerning_rate': the learning rate, a number or a schedule, is lr"),
        ({"weight_decy": 0.1}, "no option 'weight_decy': it is an argument of the optimizer, as in --optimizer=AdamW"),
        ({"ema": 0.99}, "no option 'ema': an optimizer averages the parameters, as in --optimizer=Ema"),
        ({"dataset": "digits"}, "no option 'dataset': it is a key of train and of valid, as in --train.dataset=..."),
        ({"batch_size": 32}, "no option 'batch_size': it is a key of train and of valid, as in --train.batch_size=..."),
        ({"metric": "Accuracy"}, "no option 'metric': did you mean 'metrics'"),
        ({"cores": 1}, "no option 'cores': learner fit --help=keys lists all keys"),
        ({"gpus": 1}, "no option 'gpus': the number of devices is given as devices"),
        ({"trainer": {"max_epochs": 3}}, "no option 'trainer': options of the training are keys themselves"),
        ({"traine": {}}, "no option 'traine': did you mean 'train'"),
        ({"callback": []}, "no option 'callback': callbacks are keys themselves: early_stopping"),
        ({"config": "c.yaml"}, "no option 'config': the config is an argument without a name"),
        (
            {"optimizer": {"class_path": "AdamW", "init_args": {"lr": 0.1}}},
            "AdamW has no argument 'lr': the learning rate is the key lr",
        ),
        ({"directory": "gs://bucket/run"}, "directory"),
        ({"lr": "fast"}, "lr: 'fast' is neither a number nor a schedule: choose from 'Constant'"),
        ({"lr": "1e-2"}, "lr is the text '1e-2'; write a number without quotes"),
        ({"lr": "0.1x"}, "lr: '0.1x' is neither a number nor a schedule: choose from 'Constant'"),
        ({"lr": "my.schedule"}, "lr is 'my.schedule', but there is no module 'my'"),
        ({"lr": "optax.constant_schedule"}, "lr.init_args: optax.constant_schedule needs 'value'"),
        ({"optimizer": 3}, "optimizer is 3; it needs a name, an import path, or a mapping of class_path and init_args"),
        ({"model": 3}, "model is 3; it needs an import path, or a mapping of class_path and init_args"),
        ({"early_stopping": 3}, "early_stopping is 3: it needs MetricEarlyStopping, as a mapping of its arguments"),
        (
            {"with_file_checkpointer": True},
            "with_file_checkpointer is True: it needs a whole number or Recorder or null",
        ),
        ({"learner_class": "Mine"}, "learner_class is 'Mine': it needs an import path such as 'package.module.Name'"),
        ({"learner_class": "math.sqrt"}, "learner_class is 'math.sqrt': it needs type[Learner[Any]]"),
        ({"resume": "ture"}, "resume is 'ture': it needs true or false, or {allow: ...}"),
    ]
    for changed, message in cases:
        with named_case((changed, message)):
            with pytest.raises(LearnerError) as error:
                RunConfig(line_config | changed).learner()
            assert message in str(error.value)
            assert "problems" not in str(error.value)


def test_kinds_of_objects():
    assert kind_of(Cosine) == kind_of(Cosine(0.1)) == kind_of(ReduceOnPlateau) == kind_of(optax.sgdr_schedule) == "lr"
    assert kind_of(AdamW) == kind_of(Clipped(optax.sgd, norm=1.0)) == kind_of(contrib.muon) == "optimizer"
    assert [kind_of(value) for value in (optax.global_norm, test_kinds_of_objects, 3, None, dict)] == [None] * 5


def test_schedule_of_a_group_may_follow_the_run(importable, line_config):
    groups = [{"match": "w", "lr": spec("Cosine", first=0.1)}]
    config = RunConfig(line_config | {"optimizer": spec("Groups", optimizer="SGD", groups=groups)})
    learner = config.learner()
    learner.init()
    assert repr(learner.definition.step.optimizer.groups[0].lr) == "Cosine(first=0.1) in 6 steps"
