"""Small runs that several test files train, and readers of a run's files that do not use the code under test.

The linear models of all tests are here, as plain dicts; `small_models` has one model of each library.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from learner import ClassificationOutput, LearnerBuilder, RegressionOutput
from learner.checkpoint.manifest import read_manifest, write_manifest
from learner.data import DataLoaderBuilder
from learner.metrics import Accuracy, CollectingMetric, LearningRate

ROWS, EVEN, BATCH, STEPS = 22, 24, 4, 6  # 6 batches; with ROWS rows the last one has 2 rows, with EVEN rows 4
_rng = np.random.default_rng(7)
X = _rng.normal(size=(EVEN, 3)).astype(np.float32)
T = (X @ np.float32([[1.0], [-2.0], [0.5]]) + np.float32(0.3)).astype(np.float32)
Y = _rng.integers(0, 3, EVEN).astype(np.int32)


def line(inputs=3, outputs=1, *, bias=True, value=0.0):
    """Return the smallest model, the parameters of a linear map, with all weights of one value."""
    model = {"w": jnp.full((inputs, outputs), value, jnp.float32)}
    return {**model, "b": jnp.zeros((outputs,))} if bias else model


def line_predictions(model, x):
    """Return `x @ w + b` for rows, and for sequences of rows; for `x @ w` without a bias."""
    predictions = x @ model["w"]
    return predictions + jnp.expand_dims(model["b"], range(predictions.ndim - 1)) if "b" in model else predictions


def line_step(model, batch):
    """Return the regression output for the targets `t`."""
    return RegressionOutput.from_predictions(line_predictions(model, batch["x"]), batch["t"])


def regression_step(model, batch):
    """Return the regression output for the targets `y`."""
    return RegressionOutput.from_predictions(line_predictions(model, batch["x"]), batch["y"])


def class_step(model, batch):
    """Return the classification output: the line's outputs are logits of the labels `y`."""
    return ClassificationOutput.from_logits(line_predictions(model, batch["x"]), batch["y"])


def noisy_step(model, batch, rng):
    """Return the regression output for inputs of which a random part is dropped."""
    kept = jax.random.bernoulli(rng, 0.8, batch["x"].shape).astype(jnp.float32)
    return line_step(model, {**batch, "x": batch["x"] * kept})


class Net(nnx.Module):
    """A model with parameters, running statistics and a random stream."""

    def __init__(self, seed=0, width=4):
        rngs = nnx.Rngs(seed)
        self.hidden = nnx.Linear(3, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.drop = nnx.Dropout(0.3, rngs=rngs)
        self.out = nnx.Linear(width, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(self.drop(nnx.relu(self.norm(self.hidden(x)))))

    def train_step(self, batch):
        return ClassificationOutput.from_logits(self(batch["x"]), batch["y"])

    valid_step = train_step


class LastRow(CollectingMetric):
    """Return the sum of row numbers times targets, which changes with the order of rows, and with a lost or repeated
    row.
    """

    name = "Last Row"
    higher_is_better = True
    fields = ("targets",)

    def collect(self, output):
        return {"targets": output.targets.astype(jnp.float32)}

    def compute(self, rows):
        targets = rows["targets"].astype(np.float64).reshape(len(rows["targets"]), -1)[:, 0]
        return float(np.dot(np.arange(1, len(targets) + 1), targets))


def build_net(builder, model=None):
    """Build the net with metrics, a schedule and AdamW. Its programs are identical in all tests."""
    builder.metrics(Accuracy(), LastRow()).metric_train(LearningRate())
    schedule = optax.cosine_decay_schedule(2e-2, 5 * STEPS)
    return builder.build(Net() if model is None else model, optax.adamw, schedule)


def arrays(rows=EVEN):
    return {"x": X[:rows], "t": T[:rows], "y": Y[:rows]}


def batches(size=BATCH, rows=EVEN):
    """Return one epoch as a list, in the order of the rows."""
    return [{k: v[i : min(i + size, rows)] for k, v in arrays(rows).items()} for i in range(0, rows, size)]


def shuffled(seed=3, rows=EVEN):
    """Return resident data with a different order in each epoch."""
    return DataLoaderBuilder().batch_size(BATCH).shuffle(seed).build(arrays(rows))


def streamed(seed=3, rows=EVEN):
    """Return the batches of `shuffled`, collated item by item from a dataset."""
    items = [{k: v[i] for k, v in arrays().items()} for i in range(rows)]
    return DataLoaderBuilder().batch_size(BATCH).shuffle(seed).build(items)


def valid_data(size=10):
    return DataLoaderBuilder().batch_size(size).build({k: v[:20] for k, v in arrays().items()})


def scripted(*losses):
    """Return validation data for which an untrained line has the given losses, one per validation."""
    script = iter(losses)

    def make():
        t = np.full((4, 1), next(script) ** 0.5, np.float32)
        return iter([{"x": X[:4], "t": t, "y": Y[:4]}])

    return make


def quiet(directory, *, saves=False, **options):
    """Return a builder without output on the screen, and without checkpoints unless `saves`."""
    builder = LearnerBuilder(directory, **options).renderer(None)
    return builder if saves else builder.with_file_checkpointer(None)


def build_line(builder, lr=0.05, optimizer=optax.sgd, **options):
    return builder.build(line(), optimizer, lr, train_step=line_step, valid_step=line_step, **options)


# -- what is left ------------------------------------------------------------------------------------------------------


def tree_of(directory):
    """Return the bytes and modification time of every file below a directory."""
    files = [p for p in Path(directory).rglob("*") if p.is_file()]
    return {p.relative_to(directory).as_posix(): (p.read_bytes(), p.stat().st_mtime_ns) for p in files}


def logs_of(directory):
    """Return the text of every metric file, by path."""
    paths = Path(directory).glob("*/epoch-*/*.log")
    return {p.relative_to(directory).as_posix(): p.read_text() for p in paths}


def journal_of(directory):
    return [json.loads(line) for line in (Path(directory) / "journal.jsonl").read_text().splitlines()]


def numbers_of(directory):
    """Return the journal's lines with values, without the time."""
    lines = [line for line in journal_of(directory) if line["event"] in ("epoch", "validation")]
    return [{k: v for k, v in line.items() if k not in ("time", "elapsed")} for line in lines]


def numbers_in(text):
    """Return the steps' values and weights in a metric file, and the fields of its last line."""
    *steps, last = [line.split(",") for line in text.splitlines()]
    return np.float64([value for value, _ in steps]), np.float64([weight for _, weight in steps]), last


def saved_steps(directory):
    return sorted(int(p.name) for p in Path(directory).glob("checkpoint/*") if p.name.isdigit())


def bits(tree):
    """Return a tree as bytes, to be compared with ==. Random keys are converted to integers."""
    named = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        leaf = jax.random.key_data(leaf) if jnp.issubdtype(jnp.asarray(leaf).dtype, jax.dtypes.prng_key) else leaf
        array = np.asarray(leaf)
        named[jax.tree_util.keystr(path)] = str(array.dtype), array.shape, array.tobytes()
    return named


def checkpoint_bits(directory, step):
    """Return the items of a checkpoint as bytes, read with Orbax."""
    import orbax.checkpoint as ocp

    place = Path(directory).absolute() / "checkpoint" / str(step)
    with ocp.StandardCheckpointer() as reader:
        state = reader.restore(place / "state")
        return {part: bits(state[part]) for part in ("model", "optim", "scheduler")}


def progress_of(directory, step):
    place = Path(directory) / "checkpoint" / str(step) / "progress"
    return json.loads((place / "metadata").read_text())


def tamper(directory, step, progress):
    """Replace a checkpoint's `progress`, and update the checksums."""
    place = Path(directory) / "checkpoint" / str(step)
    (place / "progress" / "metadata").write_text(json.dumps(progress))
    manifest = read_manifest(place)
    facts = {name: value for name, value in manifest.items() if name != "files"}
    (place / "manifest.json").unlink()
    write_manifest(place, facts)


def model_bits(model):
    """Return the arrays of a model of any library as bytes."""
    return bits(nnx.as_pure(nnx.state(model))) if isinstance(model, nnx.Module) else bits(model)
