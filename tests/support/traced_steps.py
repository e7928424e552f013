"""Traced train steps of all models, and with all optimizers: run as a program it prints the fingerprint of each."""

import dataclasses
import json
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from small_models import BATCH, CASES

from learner import Linen, RegressionOutput
from learner.metrics import MeanAbsoluteError
from learner.models.adapters import adapter_of
from learner.steps.definition import StepDefinition, step_fn
from learner.steps.fingerprint import jaxpr_fingerprint
from learner.steps.finite import NonFinitePolicy
from learner.steps.measure import MetricCollection
from learner.steps.precision import policy_of
from learner.steps.step import Step


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
    return Step.of(definition, optimizer, schedule)


def dropout_step(rate=0.5, train=linen_step, **more):
    module = DropoutNet(rate)
    variables = module.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, jnp.ones((1, 3)))
    return step_of(Linen(module, variables), step_fn(None, "train_step", train), **more)


def fingerprint(step, batch=BATCH):
    state = jax.eval_shape(lambda: step.init(0.1, 0))
    return jaxpr_fingerprint(jax.make_jaxpr(lambda state, batch: step.unrolled_step(state, [batch]))(state, batch))


def of_models():
    found = {}
    for case in CASES:
        model = case.make()
        found[case.name] = fingerprint(step_of(model, step_fn(model, "train_step", case.step)))
    return found


def of_settings():
    found = {name: fingerprint(dropout_step(optimizer=optimizer)) for name, optimizer in OPTIMIZERS.items()}
    found |= {name: fingerprint(dropout_step(schedule=schedule)) for name, schedule in SCHEDULES.items()}
    return found | {
        "dropout 0.4": fingerprint(dropout_step(0.4)),
        "absolute errors": fingerprint(dropout_step(train=l1_step)),
        "half the loss": fingerprint(dropout_step(train=halved_step)),
        "products in bfloat16": fingerprint(dropout_step(matmul="bfloat16")),
        "products in float32": fingerprint(dropout_step(matmul="highest")),
        "bfloat16": fingerprint(dropout_step(policy=policy_of("bfloat16"))),
        "with a metric": fingerprint(dropout_step(metrics=[MeanAbsoluteError()])),
        "skips": fingerprint(dropout_step(watch=NonFinitePolicy("skip"))),
        "other rows": fingerprint(dropout_step(), jax.tree.map(lambda x: x[:4], BATCH)),
    }


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    json.dump(of_models() | of_settings(), sys.stdout)
