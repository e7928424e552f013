"""Tests of optimizers as fields of a `learner.Config`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import Config, LearnerError
from learner.optimizers import SGD, AdamW, OptimizerConfig, ScheduleFree
from tests.support.codes import raises_code


class Training(Config):
    optimizer: OptimizerConfig = AdamW(weight_decay=1e-4)
    second: SGD | None = None
    lr: float = 1e-3


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
@pytest.mark.parametrize(
    "config",
    [
        Training(),
        Training(optimizer=SGD(momentum=0.9, clip_norm=1.0)),
        Training(optimizer=ScheduleFree(base_optimizer=AdamW(b1=0.5)), second=SGD(nesterov=True)),
        Training(optimizer=AdamW(weight_decay_on="kernels")),
    ],
)
def test_saved_config_is_restored(tmp_path, config, suffix):
    config.save(tmp_path / f"config{suffix}")
    assert Training.load(tmp_path / f"config{suffix}") == config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("optimizer: SGD", SGD()),
        ("optimizer: {class_path: AdamW, init_args: {weight_decay: 0.1}}", AdamW(weight_decay=0.1)),
        ("optimizer: {class_path: learner.optimizers.SGD}", SGD()),
    ],
)
def test_a_file_names_the_optimizer(tmp_path, text, expected):
    (tmp_path / "config.yaml").write_text(text)
    assert Training.load(tmp_path / "config.yaml").optimizer == expected


def test_a_field_of_one_optimizer_takes_its_parameters():
    assert Training.from_dict({"second": {"momentum": 0.5}}).second == SGD(momentum=0.5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"optimizer": "AdamV"}, "Training.optimizer names the optimizer 'AdamV': did you mean 'Adam"),
        ({"optimizer": 3}, "Training.optimizer is 3: it needs the name of an optimizer"),
        ({"optimizer": optax.adamw}, "it needs the name of an optimizer"),
        ({"optimizer": {"class_path": "os.system", "init_args": {}}}, "names the optimizer 'system'"),
        ({"optimizer": {"class_path": "SGD", "momentum": 1}}, "'momentum' beside class_path"),
        ({"optimizer": {"class_path": "SGD", "init_args": {"momentum": "x"}}}, "optimizer.momentum is 'x': it needs"),
        ({"optimizer": {"class_path": "SGD", "init_args": {"clip_norm": -1.0}}}, "clip_norm of SGD is -1.0"),
        ({"optimizer": {"class_path": "ScheduleFree"}}, "Training.optimizer needs 'base_optimizer'"),
        ({"second": {"class_path": "AdamW"}}, "names the optimizer 'AdamW'"),
    ],
)
def test_wrong_optimizer_is_named_with_its_key(content, message):
    with pytest.raises(LearnerError) as caught:
        Training.from_dict(content)
    assert message in str(caught.value)


@pytest.mark.parametrize("norm", [0.0, float("nan"), "1", [1.0]])
def test_wrong_clip_norm_is_refused(norm):
    with raises_code("optimizer-clip-norm-value", repr(norm)):
        SGD(clip_norm=norm)


def test_update_equals_optax():
    params, grads = {"w": jnp.float32([1.0, 2.0])}, {"w": jnp.float32([0.1, -0.2])}
    ours, theirs = Training().optimizer(1e-3), optax.adamw(1e-3, weight_decay=1e-4)
    with jax.numpy_dtype_promotion("standard"):
        updates = [optimizer.update(grads, optimizer.init(params), params)[0]["w"] for optimizer in (ours, theirs)]
    np.testing.assert_array_equal(*updates)


def test_settings_besides_the_rate_may_change():
    optimizer = SGD(momentum=0.9)
    params, grads = {"w": np.ones(2, np.float32)}, {"w": np.ones(2, np.float32)}

    def second_update(transformation):
        _, state = transformation.update(grads, transformation.init(params), params)
        return transformation.update(grads, state, params)[0]["w"].tolist()

    assert second_update(optimizer(0.1, momentum=0.5)) == second_update(optax.sgd(0.1, momentum=0.5))
    assert second_update(optimizer(0.1)) == second_update(optax.sgd(0.1, momentum=0.9))
