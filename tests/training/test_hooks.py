"""Tests of the return values of hooks: sample files, events for loggers, numbers and errors."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image as Picture

from learner import Histogram, Image, LearnerError, parameter_histograms
from learner.events import SamplesLogged
from learner.loggers import Csv, JsonLines, MemoryLogger, TensorBoard
from learner.metrics import CollectingMetric, HostMetric
from learner.runs import RunReader
from tests.support.codes import raises_code
from tests.support.runs import batches, build_line, journal_of, logs_of, quiet
from tests.support.tfevents import values

pytestmark = pytest.mark.usefixtures("compiled_once")

PIXELS = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)


def hook(info, model):
    return {"picture": Image(PIXELS), "motto": f"at {info.step}\n", "w": Histogram([0, 0, 1.0], bins=2), "n": 2}


def test_samples_are_files_listed_in_the_journal(tmp_path):
    memory = MemoryLogger()
    build_line(quiet(tmp_path).every(2, hook).metric_loggers(memory)).fit(batches())
    folder = tmp_path / "samples/step-2"
    assert sorted(path.name for path in folder.iterdir()) == ["motto.txt", "picture.png", "w.json"]
    assert (np.asarray(Picture.open(folder / "picture.png")) == PIXELS).all()
    assert (folder / "motto.txt").read_text() == "at 2\n"
    histogram = {"counts": [2, 1], "edges": [0.0, 0.5, 1.0], "nonfinite": 0}
    assert json.loads((folder / "w.json").read_text()) == histogram
    lines = [entry for entry in journal_of(tmp_path) if entry["event"] == "samples"]
    assert lines[0]["files"] == {
        "picture": "samples/step-2/picture.png",
        "motto": "samples/step-2/motto.txt",
        "w": "samples/step-2/w.json",
    }
    assert [event.step for event in memory.of(SamplesLogged)] == [entry["step"] for entry in lines]
    assert memory.history["custom/n"][0] == 2
    assert not [key for key in memory.history if key != "custom/n" and key.startswith("custom")]


def test_samples_with_similar_names_have_their_own_files(tmp_path):
    """Some file systems ignore case, and spaces become underscores."""
    texts = {"a b": "1", "a_b": "2", "A b": "3", "a_b-2": "4"}
    build_line(quiet(tmp_path).num_epochs(1).every(2, lambda info, model: texts)).fit(batches())
    samples = [sample for sample in RunReader(tmp_path).samples if sample.step == 2]
    assert {sample.name: sample.read().decode() for sample in samples} == texts
    assert len({sample.path.name.casefold() for sample in samples}) == 4


@pytest.mark.full
def test_samples_are_kept_on_resume_and_removed_on_overwrite(tmp_path):
    def builder():
        return quiet(tmp_path).on_epoch_end(hook).with_file_checkpointer(keep_last=3)

    build_line(builder().num_epochs(3)).fit(batches())
    build_line(builder().num_epochs(3).checkpoint(epoch=1)).fit(batches())
    steps = [sample.step for sample in RunReader(tmp_path).samples if sample.name == "motto"]
    assert len(steps) == len(set(steps)) == 3
    build_line(quiet(tmp_path, overwrite=True)).fit(batches())
    assert not (tmp_path / "samples").exists()


def test_tensorboard_receives_samples(tmp_path):
    build_line(quiet(tmp_path).on_epoch_end(hook).metric_loggers(TensorBoard())).fit(batches())
    samples = {tag: value for tag, _, value in values(tmp_path / "tensorboard") if "/sample/" in tag}
    assert samples.keys() == {"custom/sample/picture", "custom/sample/motto/text_summary", "custom/sample/w"}
    histo = samples["custom/sample/w"].histo
    assert (list(histo.bucket), list(histo.bucket_limit)) == ([2, 1], [0.5, 1])
    assert (histo.min, histo.max, histo.num, histo.sum) == (0, 1, 3, 2 * 0.25 + 0.75)
    assert samples["custom/sample/picture"].image.width == 2


def test_histograms_of_parameters(tmp_path):
    memory = MemoryLogger()
    build_line(quiet(tmp_path).on_epoch_end(parameter_histograms).metric_loggers(memory)).fit(batches())
    (event,) = memory.of(SamplesLogged)
    assert {name: int(value.counts.sum()) for name, value in event.values.items()} == {"w": 3, "b": 1}


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: Image([[0.0, 1.5]]), "sample-image-values"),
        (lambda: Image([[0.0, np.nan]]), "sample-image-values"),
        (lambda: Image(np.zeros((2, 2, 4), np.uint8)), "logger-picture-shape"),
        (lambda: Histogram([]), "sample-histogram-empty"),
        (lambda: Histogram([1.0], bins=0), "sample-histogram-empty"),
    ],
)
def test_invalid_samples_are_refused(make, code):
    with raises_code(code):
        make()


def test_a_refused_image_names_its_range():
    """Samples of generative models often lie between -1 and 1."""
    with raises_code("sample-image-values", "-1 to 0.5", lowest=-1.0, highest=0.5):
        Image([[-1.0, 0.5]])


def test_values_of_an_image_are_clipped_after_rounding():
    values = np.float32([[-1e-7, 1 + 1e-7], [-0.0009, 1.0009]])
    assert Image(values).pixels.tolist() == [[0, 255], [0, 255]]
    for value, shown in ((-0.0011, "-0.0011 to 0"), (1.0011, "0 to 1.0011")):
        with raises_code("sample-image-values", shown):
            Image([[0.0, value]])


def test_a_refused_image_names_nan():
    with raises_code("sample-image-values", "has NaN"):
        Image([[0.0, np.nan, 2.0]])


def test_histograms_of_complex_numbers_count_both_parts():
    histogram = Histogram(np.complex64([0 + 3j, 1 + 1j]), bins=3)  # the parts 0, 3, 1 and 1
    assert (histogram.counts.tolist(), histogram.edges.tolist()) == ([1, 2, 1], [0.0, 1.0, 2.0, 3.0])


def test_histograms_of_extreme_float64():
    """NumPy refuses bins between adjacent numbers, and ranges whose width overflows."""
    assert Histogram([1.0, np.nextafter(1.0, 2.0)]).counts.sum() == 2
    assert Histogram([1e308, -1e308, 2.0]).nonfinite == 2


def test_sample_names_with_path_separators_are_refused(tmp_path):
    with pytest.raises(LearnerError, match="path separator"):
        build_line(quiet(tmp_path).on_epoch_end(lambda info, model: {"a/b": "text"})).fit(batches())


NUMBERS = {
    "count": 123456789,
    "exact": 2**53,
    "large": 1e300,
    "third": 1 / 3,
    "power": 2.0**-23 + 2.0**-60,
    "int64": np.int64(16777217),
    "float64": np.float64(0.1),
    "int32": jnp.int32(16777217),
}


class Share(CollectingMetric):
    name = "Share"
    fields = ("targets",)

    def collect(self, output):
        return output.targets

    def compute(self, rows):
        return len(rows) / 72


class Third(HostMetric):
    name = "Third"

    def update(self, steps, seconds):
        return 1 / 3

    def compute(self):
        return 16777217

    def reset(self):
        pass


@pytest.mark.full
def test_host_numbers_keep_float64_precision_also_after_resuming(tmp_path):
    expected = {name: float(number) for name, number in NUMBERS.items()}
    memory = MemoryLogger()

    def train(directory, epochs, *loggers):
        builder = quiet(directory, saves=True).resume().num_epochs(epochs).metrics(Share()).metric_train(Third())
        builder.on_epoch_end(lambda info, model: NUMBERS).every(3, lambda info, model: {"device": jnp.float32(0.1)})
        return build_line(builder.metric_loggers(*loggers)).fit(batches(), batches()).history

    history = train(tmp_path / "whole", 2, memory, JsonLines(), Csv(), TensorBoard())
    assert {name: history[f"custom/{name}"] for name in expected} == {name: [x] * 2 for name, x in expected.items()}
    assert (history["train/Share"], history["train/Third"]) == ([1 / 3] * 2, [16777217] * 2)
    assert set(history["custom/device"]) == {0.1}
    assert memory.history == history
    assert set(memory.steps["train/Third"]) == {1 / 3}
    lines = map(json.loads, (tmp_path / "whole/metrics.jsonl").read_text().splitlines())
    assert [{name: line[name] for name in expected} for line in lines if "count" in line] == [expected] * 2

    train(tmp_path / "parts", 1)
    assert train(tmp_path / "parts", 2) == history
    assert logs_of(tmp_path / "parts") == logs_of(tmp_path / "whole")
    for run in map(RunReader, (tmp_path / "whole", tmp_path / "parts")):
        assert run.history == history
        assert set(run.steps("train/Third").mean) == {1 / 3}
    assert history.to_pandas()["custom/exact"].dropna().tolist() == [2.0**53] * 2


def test_an_image_is_a_copy():
    """Loggers may write it after the hook has drawn the next one into the same array."""
    canvas = np.zeros((2, 2), np.uint8)
    image = Image(canvas)
    canvas[:] = 9
    assert not image.pixels.any()
