"""Trace train steps of all models and optimizers. As a program, print the fingerprint of each."""

import dataclasses
import functools
import json
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from learner import Linen, RegressionOutput
from learner.metrics import MeanAbsoluteError
from learner.models.adapters import adapter_of
from learner.steps.finite import NonFinitePolicy
from learner.steps.measure import MetricCollection
from learner.steps.precision import policy_of
from learner.steps.program_fingerprint import jaxpr_fingerprint
from learner.steps.step import StepFunctions
from learner.steps.step_definition import StepDefinition, step_fn
from tests.support.small_models import BATCH, CASES


def warmup(peak=0.1, steps=10):
    return optax.warmup_cosine_decay_schedule(0.0, peak, steps, 100)


OPTIMIZERS = {
    "sgd": optax.sgd,
    "momentum": lambda rate: optax.sgd(rate, 0.9),
    "adam": optax.adam,
    "adam(b1=0.8)": lambda rate: optax.adam(rate, b1=0.8),
    "adamw": optax.adamw,
    "adamw(weight_decay=0.1)": lambda rate: optax.adamw(rate, weight_decay=0.1),
    "nadam": optax.nadam,
    "adamax": optax.adamax,
    "lion": optax.lion,
    "clipped": lambda rate: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate)),
    "clipped less": lambda rate: optax.chain(optax.clip_by_global_norm(2.0), optax.adam(rate)),
    "masked": lambda rate: optax.adamw(rate, mask=lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree)),
}
SCHEDULES = {
    "warmup": warmup(),
    "warmup to 0.2": warmup(0.2),
    "warmup of 20": warmup(steps=20),
    "piecewise": optax.piecewise_constant_schedule(0.1, {5: 0.5}),
    "piecewise at 6": optax.piecewise_constant_schedule(0.1, {6: 0.5}),
}


class DropoutNet(nn.Module):
    rate: float

    @nn.compact
    def __call__(self, x):
        return nn.Dropout(self.rate, deterministic=False)(nn.Dense(2)(x))


def linen_step(model, batch):
    return RegressionOutput.from_predictions(model(batch["x"]), batch["y"])


def l1_step(model, batch):
    output = linen_step(model, batch)
    return dataclasses.replace(output, loss=jnp.abs(output.predictions - output.targets).mean())


def halved_step(model, batch):
    output = linen_step(model, batch)
    return dataclasses.replace(output, loss=0.5 * output.loss)


def step_of(model, train, optimizer=optax.adam, schedule=None, metrics=(), **more):
    measure = MetricCollection.of(list(metrics))
    definition = StepDefinition(adapter_of(model), train, None, None, measure, MetricCollection.of([]), **more)
    return StepFunctions.of(definition, optimizer, schedule)


def dropout_step(rate=0.5, train=linen_step, **more):
    module = DropoutNet(rate)
    variables = module.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, jnp.ones((1, 3)))
    return step_of(Linen(module, variables), step_fn(None, "train_step", train), **more)


def fingerprint(step, batch=BATCH):
    state = jax.eval_shape(lambda: step.init(0.1, 0))
    return jaxpr_fingerprint(jax.make_jaxpr(lambda state, batch: step.unrolled_step(state, [batch]))(state, batch))


def of_model(case):
    model = case.make()
    return fingerprint(step_of(model, step_fn(model, "train_step", case.step)))


def of_dropout(*given, **more):
    return lambda: fingerprint(dropout_step(*given, **more))


PROGRAMS = {
    **{case.name: functools.partial(of_model, case) for case in CASES},
    **{name: of_dropout(optimizer=optimizer) for name, optimizer in OPTIMIZERS.items()},
    **{name: of_dropout(schedule=schedule) for name, schedule in SCHEDULES.items()},
    "dropout 0.4": of_dropout(0.4),
    "absolute errors": of_dropout(train=l1_step),
    "half the loss": of_dropout(train=halved_step),
    "products in bfloat16": of_dropout(matmul="bfloat16"),
    "products in float32": of_dropout(matmul="highest"),
    "bfloat16": of_dropout(policy=policy_of("bfloat16")),
    "with a metric": of_dropout(metrics=[MeanAbsoluteError()]),
    "skips": of_dropout(watch=NonFinitePolicy("skip")),
    "other rows": lambda: fingerprint(dropout_step(), jax.tree.map(lambda x: x[:4], BATCH)),
}


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    json.dump({name: PROGRAMS[name]() for name in sys.argv[1:] or PROGRAMS}, sys.stdout)
