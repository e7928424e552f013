"""Tests of lengths given as epochs, as fractions of a run, or up to its end."""

import numpy as np
import pytest

from learner import LearnerError
from learner.schedules import (
    Cosine,
    CosineRestarts,
    Exponential,
    InverseSqrt,
    Linear,
    Mean,
    MultiStep,
    Noam,
    OneCycle,
    Polynomial,
    Product,
    RunLength,
    Sequence,
    Step,
    Sum,
    WarmupCosine,
    WarmupStableDecay,
)
from learner.schedules.base import LengthNeededError
from learner.schedules.resolve import rates, resolve
from tests.support.codes import raises_code
from tests.support.stopped import some

# Pairs of schedules with equal rates in a run of 120 steps with 24 steps per epoch.
EQUIVALENT = {
    "fraction": (Cosine(0.1, over=0.25, unit="fraction"), Cosine(0.1, over=30)),
    "fraction, to the nearest": (Linear(0.1, over=0.1293, unit="fraction"), Linear(0.1, over=16)),
    "epochs": (Linear(0.0, 0.1, over=2, unit="epochs"), Linear(0.0, 0.1, over=48)),
    "part of an epoch": (Linear(0.0, 0.1, over=0.5, unit="epochs"), Linear(0.0, 0.1, over=12)),
    "less than a step": (Linear(0.0, 0.1, over=0.001, unit="fraction"), Linear(0.0, 0.1, over=1)),
    "to the end": (Polynomial(0.1), Polynomial(0.1, over=120)),
    "step": (Step(0.1, 0.5, 1, "epochs"), Step(0.1, 0.5, 24)),
    "multi_step": (MultiStep(0.1, [0.5, 0.75], unit="fraction"), MultiStep(0.1, [60, 90])),
    "exponential": (Exponential(0.1, 0.01), Exponential(0.1, 0.01, 120)),
    "exponential by epochs": (Exponential(0.1, 0.9, 1, "epochs"), Exponential(0.1, 0.9, 24)),
    "restarts": (CosineRestarts(0.1, 3), CosineRestarts(0.1, 3, over=120)),
    "one_cycle": (OneCycle(0.1), OneCycle(0.1, over=120)),
    "warmup_stable_decay": (WarmupStableDecay(0.1, 0.1, 0.5, unit="fraction"), WarmupStableDecay(0.1, 12, 60, 120)),
    "warmup_cosine": (WarmupCosine(0.1, 0.1, unit="fraction"), WarmupCosine(0.1, 12, over=120)),
    "inverse_sqrt": (InverseSqrt(0.1, 1, "epochs"), InverseSqrt(0.1, 24)),
    "noam": (Noam(64, 0.1, "fraction"), Noam(64, 12)),
    "sequence": (
        Sequence([Linear(0.0, 0.1), Cosine(0.1), 0.01], [0.1, 0.9], "fraction"),
        Sequence([Linear(0.0, 0.1, over=12), Cosine(0.1, over=96), 0.01], [12, 108]),
    ),
    "fractions in a sequence are of the run": (
        Sequence([Linear(0.0, 0.1, over=0.2, unit="fraction"), Cosine(0.1)], [2], "epochs"),
        Sequence([Linear(0.0, 0.1, over=24), Cosine(0.1, over=72)], [48]),
    ),
    "sequence in a sequence": (
        Sequence([Sequence([0.2, Linear(0.1)], [6]), Sequence([0.2, Linear(0.1)], [6])], [0.5], "fraction"),
        Sequence([0.2, Linear(0.1, over=54), 0.2, Linear(0.1, over=54)], [6, 60, 66]),
    ),
    "product": (
        Product([Cosine(0.1), Linear(0.0, 1.0, over=0.5, unit="epochs")]),
        Product([Cosine(0.1, over=120), Linear(0.0, 1.0, over=12)]),
    ),
    "sum": (Sum([Cosine(0.1), 0.1]), Sum([Cosine(0.1, over=120), 0.1])),
    "mean": (Mean([Cosine(0.1), 0.1]), Mean([Cosine(0.1, over=120), 0.1])),
}


QUICK = {"fraction", "epochs", "to the end", "step", "one_cycle", "warmup_stable_decay", "sequence", "product"}
QUICK |= {"fractions in a sequence are of the run"}


@pytest.mark.full
@pytest.mark.parametrize("name", some(EQUIVALENT, QUICK))
def test_lengths_are_parts_of_the_run(name):
    schedule, in_steps = EQUIVALENT[name]
    assert schedule.needs_run_length
    assert not in_steps.needs_run_length
    resolved = schedule.resolved(num_steps=120, steps_per_epoch=24)
    (steps, resolved_rates), (_, expected) = rates(resolved, 120), rates(in_steps, 120)
    assert steps == list(range(120))
    assert resolved_rates == expected
    assert len(set(resolved_rates)) > 1


@pytest.mark.parametrize(
    "name", [name for name in EQUIVALENT if "epoch" not in name and name not in ("step", "inverse_sqrt")]
)
def test_unresolved_schedule_raises(name):
    with pytest.raises(LengthNeededError, match=r"does not know the length of the run.*resolved\(num_steps="):
        EQUIVALENT[name][0](0)


@pytest.mark.usefixtures("optimized")
def test_unreached_part_is_ignored():
    """A short trial of a long run may end within the warm-up."""
    warmed_up = Sequence([Linear(0.0, 0.1, over=100), Cosine(0.1)], [100])
    assert rates(warmed_up.resolved(num_steps=10), 10)[1] == rates(Linear(0.0, 0.1, over=100), 10)[1]


@pytest.mark.parametrize(
    ("schedule", "run", "message"),
    [
        (Cosine(0.1), RunLength(), "over is left out, which means to the end of the run, and the run's length is not"),
        (Linear(0.1, over=0.5, unit="fraction"), RunLength(None, 5), "over is 0.5 of the run, and the run's length"),
        (Step(0.1, 0.5, 3, "epochs"), RunLength(10), "every is 3 epochs, and it is not known how many steps an epoch"),
        (
            Sequence([0.1, MultiStep(0.1, [1], unit="epochs")], [1]),
            RunLength(10),
            r"Sequence\(parts=\[0.1, MultiStep\(.*: MultiStep\(.*milestones\[0\] is 1 epochs",
        ),
        (MultiStep(0.1, [0.5, 0.51], unit="fraction"), RunLength(10), "0.5 and 0.51 .fraction. are both step 5"),
        (WarmupCosine(0.1, 2, unit="epochs"), RunLength(20, 10), "warm-up of 20 steps leaves no step of its 20"),
        (WarmupCosine(0.1, 20), RunLength(20), "warm-up of 20 steps leaves no step of its 20"),
        (WarmupStableDecay(0.1, 10, 15), RunLength(20), "warm-up of 10 steps and a decay of 15 do not fit into its 20"),
        (CosineRestarts(0.1, 5), RunLength(4), "5 cycles do not fit into 4 steps"),
        (OneCycle(0.1), RunLength(3), r"3 steps are too short for one cycle.*\[0, 3\]"),
    ],
)
def test_lengths_that_do_not_fit_the_run(schedule, run, message):
    resolved, (problem,) = resolve(schedule, run)
    assert resolved is None
    with pytest.raises(LearnerError, match=message):
        raise LearnerError(problem)
    with pytest.raises(LearnerError, match=message):
        schedule.resolved(run.steps, run.epoch)


@pytest.mark.parametrize("name", ["num_steps", "steps_per_epoch"])
def test_a_run_has_a_whole_number_of_steps(name):
    with raises_code("schedule-length-value", name, "0", "1"):
        Cosine(0.1).resolved(**{name: 0})


def test_numbers_of_numpy_are_numbers():
    assert repr(MultiStep(np.int64(1), [np.int64(5), np.int32(9)])) == repr(MultiStep(1, [5, 9]))
    assert repr(CosineRestarts(np.float32(0.5), cycles=np.int64(3))) == repr(CosineRestarts(0.5, cycles=3))
