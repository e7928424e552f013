"""Tests of the program, without a terminal."""

import asyncio
import re
from unittest import mock

import pytest

from learner.reports.live.app import WatchApp
from learner.reports.live.keys import KEYS
from learner.reports.live.view import PlotView
from tests.support.written import write_run

SIZES = [(80, 24), (200, 50)]
BRAILLE = re.compile("[\u2801-\u28ff]")


def text_of(app):
    """Return the text on the screen."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


def play(watched, steps, size=(80, 24), view=None):
    """Run the program, and `steps(app, pilot)` in it. Return its exit code."""

    async def played():
        app = WatchApp(watched, view or PlotView(), every=3600)
        async with app.run_test(size=size) as pilot:
            await wait_until_drawn(app, pilot)
            await steps(app, pilot)
        return app.return_value

    return asyncio.run(played())


async def wait_until_drawn(app, pilot):
    """Return the screen once it stops changing and the footer is drawn, which takes longer on a busy machine."""
    before = ""
    for _ in range(100):
        await pilot.pause(0.01)
        shown = text_of(app)
        if shown == before and shown.splitlines()[-1].strip():
            break
        before = shown
    return shown


async def press(app, pilot, *keys):
    await pilot.press(*keys)
    return await wait_until_drawn(app, pilot)


@pytest.mark.full
@pytest.mark.parametrize("size", SIZES)
def test_screen_of_two_runs(runs, watch, size):
    async def steps(app, pilot):
        shown = text_of(app)
        assert shown.splitlines()[0].startswith("a running")
        assert "axis: step  each step  2 runs" in shown
        assert "Loss  ━━ a train  ━━ a valid  ━━ b train  ━━ b valid" in shown
        assert len(BRAILLE.findall(shown)) > 50
        assert re.search(r"valid/Loss +0.7 +0.7 +0.6 +2", shown)
        assert "q Quit n Next x Axis e Each l Log s Smooth + Zoom v Panel w Save k Stop ? Keys" in shown
        wide = size[0] == 200
        assert ("> a" in shown) == wide
        assert ("08:00:00 INFO  start" in shown) == wide
        assert ("last line" in shown) == wide
        assert ("Accuracy  ━━" in shown) == wide  # a second plot
        assert all(len(line.rstrip()) <= size[0] for line in shown.splitlines())

    play(watch("runs"), steps, size)


@pytest.mark.full
def test_footer_of_a_narrow_terminal(runs, watch):
    """No key is cut, and the key that lists all keys is shown, also after the size changes."""

    async def steps(app, pilot):
        assert text_of(app).splitlines()[-1].rstrip() == "q Quit n Next x Axis e Each l Log s Smooth + Zoom ? Keys"
        await pilot.resize_terminal(40, 24)
        screen = await wait_until_drawn(app, pilot)
        assert screen.splitlines()[-1].rstrip() == "q Quit n Next x Axis e Each l Log ? Keys"
        await pilot.resize_terminal(80, 24)
        assert "+ Zoom v Panel w Save k Stop ? Keys" in await wait_until_drawn(app, pilot)

    play(watch("runs"), steps, (60, 24))


@pytest.mark.full
def test_every_key_has_an_effect(runs, watch):
    """The effect is visible in the second line, the plot or the panel."""
    effects = {
        "n": "Accuracy  ━━",
        "p": "Loss  ━━",
        "x": "axis: epoch  whole epochs",
        "e": "axis: epoch  each step",
        "l": "log scale",
        "s": "smooth 0.5",
        "plus": "zoom x2",
        "left": "(not at the end)",
        "right": "zoom x2  ",
        "minus": "smooth 0.5  2 runs",
        "down": "b running",
        "up": "a running",
        "o": "this run only",
        "v": "> a",
        "g": "Loss  ━━",
        "w": "asked a to save",
        "k": "press k again",
        "question_mark": "this list",
    }
    assert {key.split(",")[0] for key, *_ in KEYS} == {*effects, "q", "0"}

    async def steps(app, pilot):
        before = text_of(app)
        for key, words in effects.items():
            shown = await press(app, pilot, key)
            assert words in shown, key
            assert shown != before or key == "g", key
            before = shown
        assert "this list" not in await press(app, pilot, "escape")
        await press(app, pilot, "plus", "plus")
        assert app._view.zoom == 2
        await press(app, pilot, "0")
        assert app._view.zoom == 0
        await pilot.press("q")

    assert play(watch("runs"), steps) == 0


@pytest.mark.full
def test_number_of_plots(runs, watch):
    async def steps(app, pilot):
        assert "Accuracy  ━━" in text_of(app)
        assert "Accuracy  ━━" not in await press(app, pilot, "g")

    play(watch("runs"), steps, (200, 50))


@pytest.mark.full
def test_stop_needs_two_presses(runs, watch):
    now = [1100.0]

    async def steps(app, pilot):
        await press(app, pilot, "k", "n", "k")  # another key in between
        assert not (runs / "a" / "stop.ask").exists()
        now[0] += 60
        await press(app, pilot, "k")  # too late
        assert not (runs / "a" / "stop.ask").exists()
        await press(app, pilot, "down", "k", "up", "k")  # for another run
        assert not list(runs.glob("*/stop.ask"))
        shown = await press(app, pilot, "k")
        assert (runs / "a" / "stop.ask").exists()
        assert "stop: requested, pending" in shown
        (runs / "a" / "stop.ask").unlink()
        app.look()
        await wait_until_drawn(app, pilot)
        assert "requested, pending" not in text_of(app)

    play(watch("runs", now=now), steps)


@pytest.mark.full
def test_selected_run_stays_when_others_precede_it(runs, watch):
    now = [1100.0]

    async def steps(app, pilot):
        await press(app, pilot, "down")
        write_run(runs / "A")
        now[0] += 60
        app.look()
        assert [run.name for run in app._watched.runs] == ["A", "a", "b"]
        assert (await press(app, pilot, "x")).startswith("b running")

    play(watch("runs", now=now), steps)


@pytest.mark.full
def test_logarithmic_plot(tmp_path, watch):
    """A value that falls by the same factor in each epoch is a straight line: half-way along, it is half-way down."""
    marks = {}

    async def steps(app, pilot):
        for key in ("e", "l"):
            rows = [line[40:44] for line in (await press(app, pilot, key)).splitlines()[4:13]]
            marks[key] = [number for number, row in enumerate(rows) if BRAILLE.search(row)]

    play(watch(write_run(tmp_path / "a", {"valid/F": [0.1**n for n in range(9)]})), steps)
    assert marks["e"][0] >= 7
    assert 3 <= marks["l"][0] <= 5


@pytest.mark.full
def test_requests_to_an_ended_run_are_refused(tmp_path, watch):
    async def steps(app, pilot):
        assert "a is not running (ended): it cannot take requests" in await press(app, pilot, "w")

    play(watch(write_run(tmp_path / "a")), steps)
    assert not (tmp_path / "a" / "save.ask").exists()


@pytest.mark.full
@pytest.mark.parametrize("size", [SIZES[0], pytest.param(SIZES[1], marks=pytest.mark.full)])
def test_run_that_starts_later(tmp_path, watch, size):
    async def steps(app, pilot):
        shown = text_of(app)
        assert "no run yet" in shown
        assert "waiting: there is no directory" in shown
        assert "there is no run to ask" in await press(app, pilot, "w")
        write_run(tmp_path / "later")
        app.look()
        await wait_until_drawn(app, pilot)
        shown = await press(app, pilot, "x")
        assert shown.startswith("later ended")
        assert BRAILLE.search(shown)

    play(watch(tmp_path / "later"), steps, size)


@pytest.mark.full
def test_new_steps_are_shown(runs, watch):
    async def steps(app, pilot):
        place = runs / "a" / "train" / "epoch-4"
        place.mkdir()
        (place / "Loss.log").write_text("7.5,32\n" * 10)
        app.look()
        shown = await press(app, pilot, "x", "x", "x")
        assert "16 steps" in shown
        assert re.search(r"train/Loss +7.5 ", shown)

    play(watch("runs/a"), steps)


@pytest.mark.full
def test_resized_terminal(runs, watch):
    async def steps(app, pilot):
        await pilot.resize_terminal(200, 50)
        await wait_until_drawn(app, pilot)
        assert "last line" in text_of(app)
        await pilot.resize_terminal(20, 8)
        await wait_until_drawn(app, pilot)
        assert "a running" in text_of(app)

    play(watch("runs/a"), steps)


@pytest.mark.full
def test_names_are_neither_markup_nor_control_characters(tmp_path, watch):
    hostile = "[red]x[/]\x1b]0;owned\x07\x1b[2J"
    directory = write_run(tmp_path / "[bold]a", {f"valid/{hostile}": [1.0, 2.0], "[b]/[/b]": [1.0, 2.0]})
    (directory / "experiment.log").write_text(f"{hostile}\n[@click=app.quit]x[/]\n")

    async def steps(app, pilot):
        shown = text_of(app)
        assert "\x1b" not in shown
        assert "[red]x[/]?]0;owned??[2J" in shown
        assert "[bold]a ended" in shown
        assert "[@click=app.quit]x[/]" in shown

    play(watch(directory), steps, (200, 50))


def test_screen_without_colors(runs, watch, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")

    async def steps(app, pilot):
        shown = text_of(app)
        assert "Loss  ● train  x valid" in shown
        assert "●" in shown.split("valid", 1)[1]
        strips = app.screen._compositor.render_strips()
        colours = {
            segment.style.color.triplet
            for strip in strips
            for segment in strip.apply_filter(app._filters[0], app.ansi_theme and app.screen.background_colors[0])
            if segment.style and segment.style.color and segment.style.color.triplet
        }
        assert colours
        assert all(colour.red == colour.green == colour.blue for colour in colours)

    play(watch("runs/a"), steps)


@pytest.mark.full
def test_ctrl_c(runs, watch):
    async def steps(app, pilot):
        await pilot.press("ctrl+c")

    assert play(watch("runs/a"), steps) == 130


@pytest.mark.full
def test_large_files_are_read_between_keys(tmp_path, watch):
    directory = write_run(tmp_path / "a", {"train/Loss": [1.0]}, steps=400_000)
    place = directory / "train" / "epoch-1"
    place.mkdir(parents=True)
    (place / "Loss.log").write_text("0.1234567,32\n" * 400_000)
    watched = watch(directory)
    watched.runs[0]._series.clear()

    async def steps(app, pilot):
        series = watched.runs[0]._series["train/Loss"]
        assert BRAILLE.search(text_of(app))
        for _ in range(1000):
            if not series.is_sketched:
                break
            await pilot.pause(0.001)
        assert len(series.series()) > 2000

    with mock.patch.object(WatchApp, "_read_on", autospec=True, side_effect=WatchApp._read_on) as parts:
        play(watched, steps)
    assert len(parts.call_args_list) > 10
