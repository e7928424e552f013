"""Tests of WandB in offline mode; its files are read back."""

import math

import numpy as np
import pytest
from PIL import Image

from learner.events import Message, RunFailed
from learner.loggers import WandB
from tests.support.codes import raises_code
from tests.support.logged import ended, played, split, started, steps
from tests.support.runs import batches, build_line, quiet

OPTIONS = {"mode": "offline", "every_steps": 1}


@pytest.fixture(autouse=True)
def _working_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def play(logger, *events):
    """Play events to a logger, and end wandb's process, which writes the rest of its file then."""
    import wandb

    played(logger, *events)
    wandb.teardown()


@pytest.mark.parametrize("mode", ["off", "", 1, "disabled"])
def test_unknown_modes_are_refused(mode):
    with raises_code("logger-wandb-mode-unknown"):
        WandB(mode=mode)


@pytest.mark.full
def test_contents_of_a_run(tmp_path):
    from tests.support.wandbfile import read

    config = {"lr": 0.1, "sizes": [1, 2], "model": {"class_path": "Net", "init_args": {"width": 8}}}
    facts = {"config": config, "environment": {"jax": "0.10"}, "commit": "abc"}
    valid = split("valid", 3, {"Loss": 0.25, "Matrix": "1 0\n0 1"})
    play(WandB(**OPTIONS), started(tmp_path / "run", **facts), steps(1, 4.0, math.nan, 2.0), valid, ended(3))
    stored = read(tmp_path / "run")
    shown = [{k: v for k, v in row.items() if not k.startswith("_")} for row in stored["rows"]]
    assert [row["_step"] for row in stored["rows"]] == [1, 2, 3]
    assert math.isnan(float(shown[1].pop("step/train/Loss")))
    assert shown[0] == {"step/train/Loss": 4.0, "step/train/Top-5 Accuracy": 5.0, "epoch": 1, "step": 1}
    assert shown[2]["valid/Loss"] == 0.25
    keys = ("lr", "sizes", "model", "model.width", "commit", "environment")
    assert {key: stored["config"][key] for key in keys} == {
        "lr": 0.1,
        "sizes": [1, 2],
        "model": "Net",
        "model.width": 8,
        "commit": "abc",
        "environment": {"jax": "0.10"},
    }
    assert stored["summary"]["valid/Matrix"] == "1 0\n0 1"
    assert (stored["summary"]["stopped_by"], stored["summary"]["best/valid/Loss"]) == ("num_epochs", 0.25)
    assert stored["exits"] == [0]


@pytest.mark.full
def test_pictures_texts_and_messages(tmp_path, monkeypatch):
    """Pictures are stored unchanged, even if all values are small; HTML is escaped; Pillow's limit does not apply."""
    from tests.support.wandbfile import files, read

    rng = np.random.default_rng(0)
    drawn = {"Matrix": rng.integers(0, 256, (4, 6, 3), np.uint8), "Dark": rng.integers(0, 2, (4, 6), np.uint8)}
    pictures = {name: lambda picture=picture: picture for name, picture in drawn.items()}
    values = {"Loss": 0.25, "Matrix": "1 <b>0</b>\n0 1", "Dark": "0"}
    valid = split("valid", 3, values, pictures=pictures)
    messages = [Message(1.0, 30, "slow loader"), Message(2.0, 20, "saved")]
    with monkeypatch.context() as patched:
        patched.setattr(Image, "MAX_IMAGE_PIXELS", 1)  # a limit for untrusted files
        play(WandB(**OPTIONS), started(tmp_path / "run"), *messages, valid, ended(3))
    stored = read(tmp_path / "run")
    (row,) = stored["rows"]
    for name, picture in drawn.items():
        picture_info = {key: row[f"picture/valid/{name}/{key}"] for key in ("_type", "width", "height", "path")}
        assert (picture_info["_type"], picture_info["width"], picture_info["height"]) == ("image-file", 6, 4)
        with Image.open(files(tmp_path / "run") / picture_info["path"]) as image:
            np.testing.assert_array_equal(np.asarray(image), picture)
    text = (files(tmp_path / "run") / row["text/valid/Matrix/path"]).read_text()
    assert text == "<pre>1 &lt;b&gt;0&lt;/b&gt;\n0 1</pre>"
    assert stored["summary"]["valid/Matrix"] == values["Matrix"]
    assert stored["logs"] == ["WARNING  slow loader\n", "INFO  saved\n"]


@pytest.mark.full
def test_resumed_run_keeps_its_id_and_stores_nothing_twice(tmp_path):
    """A run that failed in step 4 resumes at step 2, with a new validation in step 3."""
    from tests.support.wandbfile import read

    first = [started(tmp_path / "run"), steps(1, 1.0, 2.0), steps(3, 3.0, 4.0), RunFailed(1.0, 1, 4, "no")]
    play(WandB(**OPTIONS), *first)
    again = {"pictures": {"Matrix": lambda: np.zeros((2, 2), np.uint8)}}
    valid = split("valid", 3, {"Loss": 0.5, "Matrix": "0"}, **again)
    play(WandB(**OPTIONS), started(tmp_path / "run", 2), steps(3, 3.0), valid, valid, steps(4, 4.0, 5.0), ended(5))
    stored = read(tmp_path / "run")
    assert len(set(stored["ids"])) == 1
    assert stored["exits"] == [1, 0]
    rows = stored["rows"]
    assert [(row["step"], row["step/train/Loss"]) for row in rows if "step/train/Loss" in row] == [
        (step, float(step)) for step in (1, 2, 3, 4, 5)
    ]
    assert [(row["step"], row["valid/Loss"]) for row in rows if "valid/Loss" in row] == [(3, 0.5)]
    assert sum("picture/valid/Matrix/path" in row for row in rows) == 1
    assert [row["_step"] for row in rows] == sorted({row["_step"] for row in rows}), "wandb takes them all"
    play(WandB(**OPTIONS), started(tmp_path / "other"), ended(1))
    assert read(tmp_path / "other")["ids"] != stored["ids"][:1]


@pytest.mark.full
@pytest.mark.parametrize(("choice", "steps_kept"), [("best", 1), ("all", 2)])
def test_checkpoints_are_artifacts(choice, steps_kept, tmp_path):
    import wandb

    from tests.support.wandbfile import read

    builder = quiet(tmp_path / "run").metric_loggers(WandB(**OPTIONS, log_model=choice)).num_epochs(3)
    result = build_line(builder.with_file_checkpointer(keep_last=2, keep_best=1)).fit(batches(), batches())
    wandb.teardown()
    checkpoints = result.summary["checkpoints"]
    kept = [c for c in checkpoints if c["best"] or choice == "all"]
    artifacts = read(tmp_path / "run")["artifacts"]
    assert [(kind, aliases) for kind, aliases, _ in artifacts] == [("model", {f"step-{c['step']}"}) for c in kept]
    assert len(artifacts) == steps_kept
    for checkpoint, (_, _, names) in zip(kept, artifacts, strict=True):
        directory = tmp_path / "run" / "checkpoint" / str(checkpoint["step"])
        assert names == sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_unknown_choice_of_checkpoints_is_refused():
    with raises_code("logger-log-model", name="WandB", value="newest"):
        WandB(log_model="newest")
