"""Tests of the renderer of plain lines."""

import io
import re

import pytest

from learner.events import EpochEnded, Message, RunEnded, RunFailed, SplitEnded
from learner.renderers import PlainRenderer

EPOCH = "valid Loss 0.625  Accuracy 0.875 | train Loss {}  Accuracy 0.75  1.5 s"


@pytest.fixture
def out():
    return io.StringIO()


@pytest.fixture
def renderer(out, clock):
    return PlainRenderer(out, clock)


def lines_of(out):
    """Return the printed lines, which are printable ASCII."""
    text = out.getvalue()
    assert not re.search(r"[^\n\x20-\x7e]", text)
    return text.splitlines()


def test_a_short_run_has_a_line_for_each_epoch(renderer, out, play):
    play.run(renderer)
    assert lines_of(out) == [
        "runs/a: 3 epochs of 45 steps, 10,378 parameters",
        "epoch 1/3  " + EPOCH.format("0.5"),
        "epoch 2/3  " + EPOCH.format("0.25"),
        "epoch 3/3  " + EPOCH.format("0.1667"),
        "ended at epoch 3, step 135, 4.6 s: num_epochs",
    ]


def test_number_of_lines_is_bounded(renderer, out, play, clock):
    """There is at most a line for each epoch and each interval, and two for the whole run."""
    began = clock.now
    play.run(renderer, epochs=1000, seconds=0.4)
    seconds = clock.now - began
    assert 1000 + 2 <= len(lines_of(out)) <= 1000 + seconds / 10 + 2


def test_long_epochs_report_progress(renderer, out, play):
    play.start(renderer, num_epochs=2, steps_per_epoch=100)
    for done in range(5, 45, 5):
        play.dispatch(renderer, 1, done, 5, total=100, seconds=2.5, loss=1 / done)
    assert lines_of(out)[1:] == [
        # 2 steps/s; 180 of 200 steps are left after 10 s, 160 after 20 s
        "epoch 1/2  step 20/100  train Loss 0.05  2 steps/s  1 min 30 s left",
        "epoch 1/2  step 40/100  train Loss 0.025  2 steps/s  1 min 20 s left",
    ]


def test_validation_inside_an_epoch_is_part_of_the_next_line(renderer, out, play):
    play.start(renderer, num_epochs=1, steps_per_epoch=100)
    play.dispatch(renderer, 1, 5, 5, total=100, seconds=3)
    play.validate(renderer, 1, 5, Loss=0.75, Accuracy=0.5)
    play.dispatch(renderer, 1, 10, 5, total=100, seconds=3)
    assert len(lines_of(out)) == 1
    play.dispatch(renderer, 1, 15, 5, total=100, seconds=6)
    play.dispatch(renderer, 1, 20, 5, total=100, seconds=12)
    first, second = lines_of(out)[1:]
    assert "valid Loss 0.75  Accuracy 0.5 | train Loss 0.5" in first
    assert "valid" not in second


def test_validation_inside_a_short_epoch_is_part_of_its_line(renderer, out, play):
    play.start(renderer)
    play.validate(renderer, 1, 30, Loss=0.75)
    renderer.on_event(EpochEnded(0.0, 1, 45, {"train/Loss": 0.5}, 1.0))
    play.validate(renderer, 2, 60, Loss=0.7)
    renderer.on_event(EpochEnded(0.0, 2, 90, {"train/Loss": 0.5, "valid/Loss": 0.625}, 1.0))
    renderer.on_event(EpochEnded(0.0, 3, 135, {"train/Loss": 0.5}, 1.0))
    assert lines_of(out)[1:] == [
        "epoch 1/3  valid Loss 0.75 | train Loss 0.5  1.0 s",
        "epoch 2/3  valid Loss 0.625 | train Loss 0.5  1.0 s",
        "epoch 3/3  train Loss 0.5  1.0 s",
    ]


def test_validation_before_the_first_step_has_a_line(renderer, out):
    renderer.on_event(SplitEnded(0.0, "valid", 1, 0, {"Loss": 2.5}, 0.1, at_step=0))
    renderer.on_event(EpochEnded(0.0, 1, 45, {"train/Loss": 0.5}, 1.2))
    assert out.getvalue() == "step 0  valid Loss 2.5\nepoch 1  train Loss 0.5  1.2 s\n"


def test_long_validation_reports_progress(renderer, out, play):
    play.start(renderer)
    play.dispatch(renderer, 1, 45, 45, seconds=1)
    play.dispatch(renderer, 1, 20, 20, 600, "valid", seconds=11)
    assert lines_of(out)[1] == "epoch 1/3  valid 20/600  train Loss 0.5"


@pytest.mark.parametrize(
    ("run", "start", "inside"),
    [
        ({"num_epochs": None, "num_steps": 500, "steps_per_epoch": 45}, "500 steps", "epoch 2  step 75/500"),
        ({"num_epochs": None, "num_steps": 500, "steps_per_epoch": None}, "500 steps", "epoch 2  step 75/500"),
        ({"num_epochs": 3, "steps_per_epoch": None}, "3 epochs", "epoch 2/3  step 30 "),
        ({"num_epochs": 1, "steps_per_epoch": 1}, "1 epoch of 1 step", "epoch 2/1  step 30 "),
        ({"num_epochs": None, "steps_per_epoch": None}, "no fixed length", "epoch 2  step 30 "),
    ],
)
def test_runs_of_known_and_unknown_length(renderer, out, play, run, start, inside):
    play.start(renderer, **run)
    play.dispatch(renderer, 2, 30, 15, total=None, step=75, seconds=60)
    first, second = lines_of(out)
    assert first == f"runs/a: {start}, 10,378 parameters"
    assert second.startswith(inside)


def test_resumed_run_names_its_step(renderer, out, play):
    play.start(renderer, epoch=2, step=45, resumed=True)
    assert lines_of(out) == ["runs/a: 3 epochs of 45 steps, 10,378 parameters, resumes after step 45"]


def test_summary_is_last(renderer, out, play, summary, summary_text):
    play.run(renderer, epochs=2, show_summary=True, summary=summary)
    assert lines_of(out)[-11:] == ["ended at epoch 2, step 90, 4.6 s: num_epochs", *summary_text]


def test_selected_metrics_start_with_the_monitor(out, clock, play):
    renderer = PlainRenderer(out, clock, metrics=["Accuracy", "train/Loss"])
    play.start(renderer, monitor="train/Loss")
    play.epoch(renderer, 1)
    assert lines_of(out)[1:] == ["epoch 1/3  train Loss 0.5 | valid Accuracy 0.875 | train Accuracy 0.75  1.5 s"]


def test_a_single_selected_metric_needs_no_list(out, clock, play):
    renderer = PlainRenderer(out, clock, metrics="valid/Accuracy")
    play.start(renderer)
    play.epoch(renderer, 1)
    assert lines_of(out)[1:] == ["epoch 1/3  valid Accuracy 0.875  1.5 s"]


def test_none_selects_all_metrics(renderer, out, clock, play):
    play.start(renderer)
    play.epoch(renderer, 1)
    lines = lines_of(out)
    out.truncate(out.seek(0))
    selected = PlainRenderer(out, clock, metrics=None)
    play.start(selected)
    play.epoch(selected, 1)
    assert lines_of(out) == lines


def test_unknown_selected_metric_is_reported(renderer, out, clock, play):
    play.start(PlainRenderer(out, clock, metrics=["Los", "Loss"]))
    assert len(lines_of(out)) == 2
    assert "Los:" in lines_of(out)[1]


def test_line_on_a_terminal_has_the_metrics_that_fit_and_a_hint(clock, play, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out, file = Terminal(), io.StringIO()
    monkeypatch.setenv("COLUMNS", "80")
    names = ["Loss", *(f"Metric {number}" for number in range(24))]
    values = {f"{split}/{name}": 0.123456 for split in ("train", "valid") for name in names}
    for stream in (out, file):
        renderer = PlainRenderer(stream, clock)
        play.start(renderer)
        for epoch, logged in ((1, values), (2, dict.fromkeys(values, 1.0)), (3, values)):
            renderer.on_event(EpochEnded(0.0, epoch, 45 * epoch, logged, 1.5))
    rest = "valid Loss 0.1235  Metric 0 0.1235 | train Loss 0.1235  1.5 s"  # with another metric, 83 characters
    hint = "and 47 more: --renderer.metrics=[NAME, ...] selects"
    assert lines_of(out)[1:] == [
        hint,
        f"epoch 1/3  {rest}",
        f"epoch 2/3  {rest.replace('0.1235', '1')}",
        f"epoch 3/3  {rest}",
    ]
    assert max(map(len, lines_of(out))) <= 80
    assert lines_of(file)[1].count("Metric") == 48


def test_line_of_an_epoch_has_no_texts(renderer, out):
    renderer.on_event(EpochEnded(0.0, 1, 45, {"valid/Loss": 0.5, "valid/Confusion": "1 0\n0 1"}, 1.0))
    assert lines_of(out) == ["epoch 1  valid Loss 0.5  1.0 s"]


def test_texts_have_lines_once_when_the_run_ends(renderer, out, play, summary, summary_text):
    play.start(renderer)
    renderer.on_event(EpochEnded(0.0, 1, 45, {"valid/Loss": 0.5, "train/Confusion": "1 0\n0 1"}, 1.0))
    play.validate(renderer, 2, 60, Confusion="3 0\n0 3")
    renderer.on_event(EpochEnded(0.0, 2, 90, {"valid/Loss": 0.5, "train/Confusion": "2 0\n0 2"}, 1.0))
    play.end(renderer, summary=summary, show_summary=True)
    assert lines_of(out)[3:] == [
        "  valid Confusion of epoch 2:",
        "    3 0",
        "    0 3",
        "  train Confusion of epoch 2:",
        "    2 0",
        "    0 2",
        "ended at epoch 3, step 135, 4.6 s: num_epochs",
        *[line for line in summary_text if line != "1 text metric not shown"],
    ]


def test_messages_and_errors_have_lines(renderer, out):
    renderer.on_event(Message(0.0, 20, "one device of 8\nis used"))
    renderer.on_event(Message(0.0, 30, "slow loader"))
    renderer.on_event(RunFailed(0.0, 3, 120, "ValueError: no\n  loss"))
    renderer.on_event(RunFailed(0.0, 3, 120, "NonFiniteError('the loss of step 120 is not finite')"))
    assert lines_of(out) == [
        "one device of 8",
        "is used",
        "warning: slow loader",
        "failed at epoch 3, step 120: ValueError: no loss",
        "failed at epoch 3, step 120: NonFiniteError",
    ]


def test_stopped_run_from_python_has_a_hint_to_resume(renderer, out):
    checkpoints = [{"path": "checkpoint/45"}]
    for summary in ({"checkpoints": checkpoints}, {"checkpoints": checkpoints, "artifacts": ["config.yaml"]}, {}):
        renderer.on_event(RunEnded(0.0, 3, 120, "ctrl-c", summary, 4.0, False))
    stopped = "stopped at epoch 3, step 120, 4.0 s: ctrl-c"
    assert lines_of(out) == [f"{stopped}; builder.resume() resumes it", stopped, stopped]


def test_control_characters_are_replaced(renderer, out, play):
    evil = "a\x1b[31m\r\b\x07\x9b"
    play.start(renderer)
    renderer.on_event(Message(0.0, 30, evil))
    renderer.on_event(RunFailed(0.0, 1, 1, evil))
    renderer.on_event(EpochEnded(0.0, 1, 45, {f"train/{evil}": 1.0, "train/Text": evil}, 0.1))
    assert len(lines_of(out)) >= 4
    assert "a?[31m" in out.getvalue()


def test_characters_that_the_encoding_lacks_are_replaced():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", newline="\n")
    PlainRenderer(stream).on_event(EpochEnded(0.0, 1, 45, {"train/Präzision": 0.5}, 0.1))
    assert raw.getvalue() == b"epoch 1  train Pr?zision 0.5  100 ms\n".replace(b"100 ms", b"0.1 s")


def test_every_line_is_flushed(clock, play):
    class Stream(io.StringIO):
        flushed = ""

        def flush(self):
            self.flushed = self.getvalue()

    stream = Stream()
    renderer = PlainRenderer(stream, clock)
    play.start(renderer)
    assert stream.flushed == stream.getvalue() != ""


def test_standard_output_is_looked_up_when_written(capsys, play, clock):
    renderer = PlainRenderer(clock=clock)
    play.start(renderer)
    assert capsys.readouterr().out.startswith("runs/a: ")


def test_a_run_does_not_show_validations_of_the_run_before(renderer, out, play):
    play.start(renderer)
    play.validate(renderer, 1, 30, Loss=0.75)
    play.start(renderer)
    renderer.on_event(EpochEnded(0.0, 1, 45, {"train/Loss": 0.5}, 1.0))
    assert lines_of(out)[-1] == "epoch 1/3  train Loss 0.5  1.0 s"
