"""Weights & Biases, offline: its own files, read back."""

import math

import numpy as np
import pytest
from PIL import Image

from learner.events import Message, RunFailed
from learner.loggers import WandB
from tests.support.codes import raises_code
from tests.support.logged import ended, played, split, started, steps
from tests.support.runs import batches, build_line, quiet

EACH = {"mode": "offline", "every_steps": 1}


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def play(logger, *events):
    """Its process writes the rest of the file when it ends."""
    import wandb

    played(logger, *events)
    wandb.teardown()


@pytest.mark.parametrize("mode", ["off", "", 1, "disabled"])
def test_modes_that_there_are_not(mode):
    with raises_code("logger-wandb-mode-unknown"):
        WandB(mode=mode)


@pytest.mark.full
def test_what_is_stored_of_a_run(tmp_path):
    from tests.support.wandbfile import read

    config = {"lr": 0.1, "sizes": [1, 2], "model": {"class_path": "Net", "init_args": {"width": 8}}}
    facts = {"config": config, "environment": {"jax": "0.10"}, "commit": "abc"}
    valid = split("valid", 3, {"Loss": 0.25, "Matrix": "1 0\n0 1"})
    play(WandB(**EACH), started(tmp_path / "run", **facts), steps(1, 4.0, math.nan, 2.0), valid, ended(3))
    found = read(tmp_path / "run")
    shown = [{k: v for k, v in row.items() if not k.startswith("_")} for row in found["rows"]]
    assert [row["_step"] for row in found["rows"]] == [1, 2, 3]
    assert math.isnan(float(shown[1].pop("step/train/Loss")))
    assert shown[0] == {"step/train/Loss": 4.0, "step/train/Top-5 Accuracy": 5.0, "epoch": 1, "step": 1}
    assert shown[2]["valid/Loss"] == 0.25
    keys = ("lr", "sizes", "model", "model.width", "commit", "environment")
    assert {key: found["config"][key] for key in keys} == {
        "lr": 0.1,
        "sizes": [1, 2],
        "model": "Net",
        "model.width": 8,
        "commit": "abc",
        "environment": {"jax": "0.10"},
    }
    assert found["summary"]["valid/Matrix"] == "1 0\n0 1"
    assert (found["summary"]["stopped_by"], found["summary"]["best/valid/Loss"]) == ("num_epochs", 0.25)
    assert found["exits"] == [0]


@pytest.mark.full
def test_pictures_texts_and_messages(tmp_path, monkeypatch):
    """To the bit, also where all values are small; what looks like HTML is text. Pillow's bound is none of ours."""
    from tests.support.wandbfile import files, read

    rng = np.random.default_rng(0)
    drawn = {"Matrix": rng.integers(0, 256, (4, 6, 3), np.uint8), "Dark": rng.integers(0, 2, (4, 6), np.uint8)}
    pictures = {name: lambda picture=picture: picture for name, picture in drawn.items()}
    values = {"Loss": 0.25, "Matrix": "1 <b>0</b>\n0 1", "Dark": "0"}
    valid = split("valid", 3, values, pictures=pictures)
    messages = [Message(1.0, 30, "slow loader"), Message(2.0, 20, "saved")]
    with monkeypatch.context() as patched:
        patched.setattr(Image, "MAX_IMAGE_PIXELS", 1)  # it is about what is read from strangers
        play(WandB(**EACH), started(tmp_path / "run"), *messages, valid, ended(3))
    found = read(tmp_path / "run")
    (row,) = found["rows"]
    for name, picture in drawn.items():
        said = {key: row[f"picture/valid/{name}/{key}"] for key in ("_type", "width", "height", "path")}
        assert (said["_type"], said["width"], said["height"]) == ("image-file", 6, 4)
        with Image.open(files(tmp_path / "run") / said["path"]) as image:
            np.testing.assert_array_equal(np.asarray(image), picture)
    text = (files(tmp_path / "run") / row["text/valid/Matrix/path"]).read_text()
    assert text == "<pre>1 &lt;b&gt;0&lt;/b&gt;\n0 1</pre>"
    assert found["summary"]["valid/Matrix"] == values["Matrix"]
    assert found["logs"] == ["WARNING  slow loader\n", "INFO  saved\n"]


@pytest.mark.full
def test_a_run_goes_on_with_its_id_and_nothing_is_there_twice(tmp_path):
    """It failed in step 4; it goes on at step 2, and the validation of step 3 is new."""
    from tests.support.wandbfile import read

    first = [started(tmp_path / "run"), steps(1, 1.0, 2.0), steps(3, 3.0, 4.0), RunFailed(1.0, 1, 4, "no")]
    play(WandB(**EACH), *first)
    again = {"pictures": {"Matrix": lambda: np.zeros((2, 2), np.uint8)}}
    valid = split("valid", 3, {"Loss": 0.5, "Matrix": "0"}, **again)
    play(WandB(**EACH), started(tmp_path / "run", 2), steps(3, 3.0), valid, valid, steps(4, 4.0, 5.0), ended(5))
    found = read(tmp_path / "run")
    assert len(set(found["ids"])) == 1
    assert found["exits"] == [1, 0]
    rows = found["rows"]
    assert [(row["step"], row["step/train/Loss"]) for row in rows if "step/train/Loss" in row] == [
        (step, float(step)) for step in (1, 2, 3, 4, 5)
    ]
    assert [(row["step"], row["valid/Loss"]) for row in rows if "valid/Loss" in row] == [(3, 0.5)]
    assert sum("picture/valid/Matrix/path" in row for row in rows) == 1
    assert [row["_step"] for row in rows] == sorted({row["_step"] for row in rows}), "wandb takes them all"
    play(WandB(**EACH), started(tmp_path / "other"), ended(1))
    assert read(tmp_path / "other")["ids"] != found["ids"][:1]


@pytest.mark.full
@pytest.mark.parametrize(("choice", "steps_kept"), [("best", 1), ("all", 2)])
def test_checkpoints_are_artifacts(choice, steps_kept, tmp_path):
    import wandb

    from tests.support.wandbfile import read

    builder = quiet(tmp_path / "run").metric_loggers(WandB(**EACH, log_model=choice)).num_epochs(3)
    result = build_line(builder.with_file_checkpointer(keep_last=2, keep_best=1)).fit(batches(), batches())
    wandb.teardown()
    checkpoints = result.summary["checkpoints"]
    kept = [c for c in checkpoints if c["best"] or choice == "all"]
    artifacts = read(tmp_path / "run")["artifacts"]
    assert [(kind, aliases) for kind, aliases, _ in artifacts] == [("model", {f"step-{c['step']}"}) for c in kept]
    assert len(artifacts) == steps_kept
    for checkpoint, (_, _, names) in zip(kept, artifacts, strict=True):
        place = tmp_path / "run" / "checkpoint" / str(checkpoint["step"])
        assert names == sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


def test_checkpoints_that_cannot_be_kept():
    with raises_code("logger-log-model", name="WandB", value="newest"):
        WandB(log_model="newest")
