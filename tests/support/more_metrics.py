"""Metrics of sequences, images and segments, and their values from plain Python, SciPy or scikit-learn."""

import collections
import dataclasses
import math
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from scipy import ndimage
from sklearn import metrics as sklearn_metrics

from learner.metrics import (
    BLEU,
    MSSSIM,
    PSNR,
    SSIM,
    Adapted,
    Aggregate,
    BitsPerCharacter,
    By,
    CharacterErrorRate,
    DeviceMemory,
    Dice,
    DicePerClass,
    ExactMatch,
    FlopsPerSecond,
    GPUUse,
    Head,
    HostCPU,
    HostMemory,
    Info,
    IoU,
    IoUPerClass,
    ModelFlopsUtilization,
    OnText,
    ParameterNorm,
    RougeL,
    RowsPerSecond,
    Subset,
    TokenAccuracy,
    TokensPerSecond,
    UpdateRatio,
    WordErrorRate,
)

ROWS, LENGTH, TOKENS, SIDE, CLASSES, END = 21, 6, 4, 12, 3, 3


@dataclasses.dataclass(frozen=True)
class Case:
    """A metric of one kind of data, and a function that computes its value independently from the unmasked rows."""

    metric: Any
    kind: str
    expected: Callable[..., float]
    exact: bool = False

    def __str__(self) -> str:
        return self.metric.name


def ended(row):
    """Return a sequence up to its end token."""
    return row[: row.index(END)] if END in row else row


def edits(one, other):
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, row = row, [i]
        for j, b in enumerate(other, 1):
            row.append(min(last[j] + 1, row[-1] + 1, last[j - 1] + (a != b)))
    return row[-1]


def common(one, other):
    table = collections.defaultdict(int)
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            table[i, j] = table[i - 1, j - 1] + 1 if a == b else max(table[i - 1, j], table[i, j - 1])
    return table[len(one) - 1, len(other) - 1]


def error_rate(pairs):
    return sum(edits(p, t) for p, t in pairs) / sum(len(t) for _, t in pairs)


def rouge(pairs):
    return float(np.mean([2 * common(p, t) / max(len(p) + len(t), 1) for p, t in pairs]))


def bleu(pairs, order=2):
    logs = []
    for n in range(1, order + 1):
        pieces = lambda row: collections.Counter(tuple(row[i : i + n]) for i in range(len(row) - n + 1))  # noqa: B023, E731
        matches = sum((pieces(p) & pieces(t)).total() for p, t in pairs)
        logs.append(math.log(matches / sum(pieces(p).total() for p, _ in pairs)))
    lengths = [sum(len(pair[side]) for pair in pairs) for side in (0, 1)]
    return math.exp(sum(logs) / order + min(0, 1 - lengths[1] / lengths[0]))


def ends(of):
    return lambda pairs: of([(ended(p), ended(t)) for p, t in pairs])


def psnr(p, t):
    return np.mean(10 * np.log10(1 / np.square(p - t).mean((1, 2))))


def parts(a, b, width):
    """Return the luminance and contrast terms of SSIM, in float64."""
    edge = width // 2
    blurred = lambda x: ndimage.gaussian_filter(x, 1.5, radius=edge)[edge:-edge, edge:-edge]  # noqa: E731
    ma, mb = blurred(a), blurred(b)
    va, vb, both = blurred(a * a) - ma**2, blurred(b * b) - mb**2, blurred(a * b) - ma * mb
    return (2 * ma * mb + 1e-4) / (ma**2 + mb**2 + 1e-4), (2 * both + 9e-4) / (va + vb + 9e-4)


def ssim(p, t):
    return np.mean([math.prod(parts(a, b, 11)).mean() for a, b in zip(p, t, strict=True)])


def similarity(a, b, weights, width=11):
    """Return MS-SSIM of one channel, in float64."""
    product = 1.0
    for scale, weight in enumerate(weights):
        if scale:
            a, b = (x.reshape(x.shape[0] // 2, 2, x.shape[1] // 2, 2).mean((1, 3)) for x in (a, b))
        luminance, contrast = parts(a, b, width)
        part = luminance * contrast if scale == len(weights) - 1 else contrast
        product *= max(part.mean(), 0) ** weight
    return product


def ms_ssim(p, t):
    return np.mean([similarity(a, b, (0.25, 0.75), 3) for a, b in zip(p, t, strict=True)])


def f1(p, t):
    return sklearn_metrics.f1_score(t, p, labels=range(CLASSES), average="macro")


def jaccard(p, t):
    return sklearn_metrics.jaccard_score(t, p, labels=range(CLASSES), average="macro")


def hits(p, t):
    return float(np.mean(p == t))


CASES = [
    Case(TokenAccuracy(), "tokens", hits, exact=True),
    Case(ExactMatch(eos_id=END), "sequences", ends(lambda pairs: np.mean([p == t for p, t in pairs])), exact=True),
    Case(WordErrorRate(eos_id=END), "sequences", ends(error_rate)),
    Case(CharacterErrorRate(), "sequences", error_rate),
    Case(RougeL(eos_id=END), "sequences", ends(rouge)),
    Case(Dice(CLASSES), "segments", f1),
    Case(IoU(CLASSES), "segments", jaccard),
    Case(PSNR(), "images", psnr),
    Case(SSIM(), "images", ssim),
    Case(MSSSIM(window=3, weights=(0.25, 0.75)), "images", ms_ssim),
]
COLLECTED = [
    Case(BLEU("none", order=2), "sequences", bleu),
    Case(BLEU("none", order=2, eos_id=END), "sequences", ends(bleu)),
]
KINDS = {"tokens": "sequences", "sequences": "sequences", "segments": "segments", "images": "images"}
ON_STEPS = [ParameterNorm(), UpdateRatio()]
SPEEDS = [FlopsPerSecond, ModelFlopsUtilization, RowsPerSecond, TokensPerSecond]
ON_HOST = [*SPEEDS, HostCPU, HostMemory, DeviceMemory, GPUUse]
MAKE = {
    Adapted: lambda: Adapted(nnx.metrics.Average("x"), x="loss"),
    Aggregate: lambda: Aggregate("Score", {"a": TokenAccuracy(), "b": ExactMatch()}, lambda a, b: a + b),
    By: lambda: By(TokenAccuracy(), "group", ["cats", "dogs"]),
    Dice: lambda: Dice(CLASSES),
    DicePerClass: lambda: DicePerClass(CLASSES),
    Head: lambda: Head(TokenAccuracy(), "text"),
    IoU: lambda: IoU(CLASSES),
    IoUPerClass: lambda: IoUPerClass(CLASSES),
    OnText: lambda: OnText(WordErrorRate(), str),
    Subset: lambda: Subset(TokenAccuracy(), "group", 1),
}
"""Those that cannot do without arguments."""
TYPES = {
    BitsPerCharacter,
    *(type(x) for x in [*(case.metric for case in (*CASES, *COLLECTED)), *ON_STEPS]),
    *ON_HOST,
    *MAKE,
}


def make_data(kind, masked):
    """Return the whole split. Masked values are NaN, or a token that no other value has."""
    rng = np.random.default_rng(5)
    if kind == "images":
        smooth = ndimage.gaussian_filter(rng.random((ROWS, SIDE, SIDE)), (0, 1, 1))
        targets = ((smooth - smooth.min()) / np.ptp(smooth)).astype(np.float32)
        predictions = (targets + 0.05 * rng.normal(size=targets.shape)).astype(np.float32)
    else:
        shape = (ROWS, LENGTH) if kind == "sequences" else (ROWS, 4, 4)
        targets = rng.integers(0, TOKENS if kind == "sequences" else CLASSES, shape).astype(np.int32)
        other = rng.integers(0, targets.max() + 1, shape).astype(np.int32)
        predictions = np.where(rng.random(shape) < 0.7, targets, other)
        predictions[0], predictions[1, 0], targets[1, 0] = targets[0], END % (targets.max() + 1), 0
    mask = rng.random(targets.shape[:1] if kind == "images" else targets.shape) < (0.7 if masked else 2)
    if masked:
        mask[3] = False
    predictions[~mask] = np.nan if kind == "images" else 99
    return {"predictions": predictions, "targets": targets} | ({"mask": mask.astype(np.int32)} if masked else {})


def make_output(data):
    return types.SimpleNamespace(**{"mask": None} | {k: jnp.asarray(v) for k, v in data.items()})


PROGRAMS = {}


def value_of(metric, *outputs):
    """Return the metric's value over outputs, updated one by one and then merged, with one program per metric and
    shape.
    """

    def compute(outputs):
        state = metric.init()
        for fields in outputs:
            update = metric.update(metric.init(), types.SimpleNamespace(**fields), Info(jnp.int32(0), jnp.float32(1)))
            state = metric.merge(state, update)
        return metric.compute(state)

    program = PROGRAMS.setdefault((type(metric), metric.name), jax.jit(compute))
    return program([dict(vars(output)) for output in outputs])


def kept(case, data):
    """Return the arguments of the independent computation."""
    p, t = data["predictions"], data["targets"]
    mask = (
        data["mask"].astype(bool)
        if "mask" in data
        else np.ones(t.shape[:1] if case.kind == "images" else t.shape, bool)
    )
    if case.kind == "sequences":
        pairs = [(a[m].tolist(), b[m].tolist()) for a, b, m in zip(p, t, mask, strict=True) if m.any()]
        return (pairs,)
    return (np.float64(p[mask]), np.float64(t[mask])) if case.kind == "images" else (p[mask], t[mask])
