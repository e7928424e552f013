"""Reports, as files and in a browser."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from PIL import Image

from learner.reports.html_report import report, write_report
from learner.runs import find_runs
from learner.util.distribution import install_hint
from tests.support.codes import raises_code
from tests.support.pages import Page
from tests.support.written import write_run, write_steps

MATRICES = ["label  cat  dog\ncat      9    1\ndog      5    5", "label  cat  dog\ncat     10    0\ndog      1    9"]
SECONDS = {"compile": 4.0, "data": 1.0, "train": 30.0, "valid": 7.0, "save": 2.0, "other": 2.0}
ARRAYS = [{"path": f"layer{n}/kernel", "shape": [4, 4], "dtype": "float32", "kind": "params"} for n in range(13)]
HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>'


@pytest.fixture
def runs(tmp_path):
    """Two runs that differ in their seed, with texts and logs."""
    for seed in (0, 1):
        values = {"train/Loss": [2.0, 1.0 + seed], "valid/Loss": [3.0, 1.5], "valid/Text": ["9 1", "10 0"]}
        values["valid/Confusion Matrix"] = MATRICES
        run = write_run(tmp_path / f"run-{seed}", values, config=f"seed: {seed}\nlr: 0.1\n", steps=40)
        for epoch in (1, 2):
            write_steps(run, "Loss", epoch, [3 - epoch + seed + 0.01 * step for step in range(40)])
        log = "2026-01-01 00:00:00 INFO  versions: ...\n2026-01-01 00:00:01 WARNING disk almost full\n"
        (run / "experiment.log").write_text(log)
        (run / "model.json").write_text(json.dumps({"arrays": ARRAYS}))
        with (run / "journal.jsonl").open("a") as file:
            file.write(
                json.dumps({"event": "end", "time": 1046.0, "stopped_by": "num_epochs", "seconds": SECONDS}) + "\n"
            )
    return find_runs([tmp_path])


def test_what_stands_in_it(runs):
    page = Page(report(runs))
    text = "\n".join(page.texts)
    for said in ("run-0", "ended: num_epochs", "valid/Loss", "1.5 (2)", "what differs", "10 0", "disk almost full"):
        assert said in text
    for said in ("Confusion matrices", "train 65.2 %", "Parameters", "layer12/kernel"):
        assert said in text
    assert page.texts.count("Parameters") == 1
    assert len([attrs for attrs in page.all("figure") if attrs.get("class") == "chart"]) == 1
    data = json.loads(page.data)
    assert data["runs"] == ["run-0", "run-1"]
    assert data["seeds"] == [[0, 1]]
    assert data["metrics"][0]["curves"][0]["y"][0] == 2.0


def test_the_environment(tmp_path):
    run = write_run(tmp_path / "a")
    lines = (run / "journal.jsonl").read_text().splitlines()
    start = {**json.loads(lines[0]), "environment": {"jax": "0.10.2"}, "commit": "<b>"}
    (run / "journal.jsonl").write_text("\n".join([json.dumps(start), *lines[1:]]) + "\n")
    page = Page(report(find_runs([run])))
    assert {"jax", "0.10.2", "commit", "<b>"} <= set(page.texts)


def test_one_run(runs):
    text = "\n".join(Page(report(runs[:1], "the title")).texts)
    assert "the title" in text
    assert "what differs" not in text


def test_who_does_not_see_it_is_told(runs):
    """What is drawn says what it is, and what scrolls can be reached by the keyboard and has a name."""
    page = Page(report(runs))
    drawn = [attrs for _, attrs in page.tags if attrs.get("role") in ("img", "region")]
    assert len(drawn) > 10
    assert all(attrs["aria-label"] for attrs in drawn)
    scrolled = [attrs for _, attrs in page.tags if attrs.get("class") == "scroll"]
    assert all(attrs["tabindex"] == "0" for attrs in [*scrolled, *page.all("pre")])
    assert {attrs["scope"] for attrs in page.all("th")} == {"row", "col"}


def test_long_texts_are_cut(tmp_path, monkeypatch):
    monkeypatch.setattr("learner.reports.html_report.LONGEST_TEXT", 3)
    page = Page(report(find_runs([write_run(tmp_path / "a", {"valid/T": ["abcdef"], "valid/U": ["xyz"]})])))
    assert {"abc", "3 further characters.", "xyz"} <= set(page.texts)
    assert sum("further character" in text for text in page.texts) == 1


def test_nothing_comes_from_elsewhere(runs):
    """No tag names another file, and the browser is told to refuse requests."""
    page = Page(report(runs))
    places = [attrs.get(name) for _, attrs in page.tags for name in ("src", "href", "action") if name in attrs]
    assert places == ["data:,"]
    (policy,) = [attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv")]
    assert "default-src 'none'" in policy
    assert "http" not in policy


def test_hostile_runs(tmp_path):
    """Names, values and logs of somebody else are texts."""
    harmless = Page(report([find_runs([write_run(tmp_path / "a", {"valid/L": [1.0], "valid/T": ["t"]})])[0]]))
    values = {f"valid/{HOSTILE.replace('/', '|')}": [1.0], "valid/T": [HOSTILE]}
    run = write_run(tmp_path / "<b>b", values, config=f"'{HOSTILE}': '{HOSTILE}'\n", ending=HOSTILE)
    (run / "experiment.log").write_text(f"x WARNING {HOSTILE}\n")
    (run / "model.json").write_text(json.dumps({"arrays": [{**ARRAYS[0], "path": HOSTILE, "dtype": HOSTILE}]}))
    with (run / "journal.jsonl").open("a") as file:
        file.write(json.dumps({"event": "end", "time": 2000.0, "seconds": {"train": 1, HOSTILE: 1}}) + "\n")
    content = report(find_runs([run]), HOSTILE)
    page = Page(content)
    for tag in ("script", "img", "b"):
        assert page.count(tag) == harmless.count(tag)
    assert HOSTILE in "\n".join(page.texts)
    assert json.loads(page.data)["metrics"][0]["name"].startswith("<script>")


def test_no_epoch_yet(tmp_path):
    write_run(tmp_path / "a", {}, ending=None)
    content = report(find_runs([tmp_path]))
    assert "No epoch has ended yet." in content
    assert "died" in content


def test_a_place_that_cannot_be_written(runs, tmp_path):
    with raises_code("report-not-written"):
        write_report(tmp_path / "nowhere" / "report.html", runs)


def test_without_plotly(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.delitem(sys.modules, "plotly.offline", raising=False)
    with raises_code("package-missing", install_hint("reports")):
        report(runs)


# -- in a browser ------------------------------------------------------------------------------------------------------

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
  --disable-component-update --disable-sync --virtual-time-budget=8000 --window-size=1200,1600"""
WATCH = """<script>
window.problems = [];
addEventListener("error", (event) => problems.push(event.message));
addEventListener("securitypolicyviolation", (event) => problems.push("request: " + event.blockedURI));
for (const level of ["error", "warn"]) console[level] = (...words) => problems.push(words.join(" "));
</script>"""
ACT = """<script>
const get = (id) => document.getElementById(id);
const lines = () => [...document.querySelectorAll(".scatterlayer .trace path.js-line")].length;
const seen = { first: lines() };
const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
const over = (back, front) => front.slice(0, 3).map((x, i) => x * (front[3] ?? 1) + back[i] * (1 - (front[3] ?? 1)));
const bright = (colour) => colour.slice(0, 3).map((x) => x / 255)
  .map((x) => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
  .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
function worst(choice) {  // the least contrast (WCAG 2) between a text and what lies behind it
  const page = channels(getComputedStyle(document.body).backgroundColor);
  return Math.min(...[...document.querySelectorAll(choice)].map((element) => {
    const style = getComputedStyle(element);
    const pair = [over(page, channels(style.backgroundColor)), channels(style.color)].map(bright).sort((a, b) => a - b);
    return (pair[1] + 0.05) / (pair[0] + 0.05);
  }));
}
const set = (id, change) => { change(get(id)); get(id).dispatchEvent(new Event("input", { bubbles: true })); };
set("each", (box) => { box.checked = false; });
seen.epochs = lines();
set("bands", (box) => { box.checked = true; });
seen.bands = lines();
set("bands", (box) => { box.checked = false; });
for (const axis of ["epoch", "time", "step"]) {
  set("axis", (choice) => { choice.value = axis; });
  seen[axis] = document.querySelector(".xtitle").textContent;
}
set("smoothing", (slider) => { slider.value = 0.5; });
seen.smoothing = get("smoothed").textContent;
const y = () => get("chart-0").layout.yaxis.type;
set("log", (box) => { box.checked = true; });
seen.log = y();
const chart = get("chart-0");
const press = (key) => chart.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
const range = () => chart.layout.xaxis.range.map((end) => Number(end.toFixed(6)));
Plotly.relayout(chart, { "xaxis.range": [0, 10] });
seen.keys = ["+", "ArrowRight", "ArrowLeft", "-"].map((key) => { press(key); return range(); });
set("smoothing", (slider) => { slider.value = 0.25; });
seen.kept = range();
set("axis", (choice) => { choice.value = "time"; });
seen.kept.push(chart.layout.xaxis.autorange);
seen.taken = [press("0"), press("a")];
seen.all = chart.layout.xaxis.autorange;
const theme = () => getComputedStyle(document.body).backgroundColor;
seen.themes = [theme()];
get("theme").click();
seen.themes.push(theme());
get("theme").click();
seen.contrasts = [];
for (const again of [1, 2]) {
  for (const choice of ["p", "th", "td", "td.hit", "td.right", "figcaption", ".hint", ".legend li", ".bar .train",
                        "summary", "pre"])
    seen.contrasts.push([choice, worst(choice)]);
  get("theme").click();
}
const shown = () => root().dataset.theme;
const root = () => document.documentElement;
root().dataset.theme = "dark";
dispatchEvent(new Event("beforeprint"));
seen.paper = [shown(), document.querySelector(".xtitle").style.fill];
dispatchEvent(new Event("afterprint"));
seen.paper.push(shown());
for (const details of document.querySelectorAll("details")) details.querySelector("summary").click();
seen.closed = document.querySelectorAll("details:not([open])").length;
seen.wide = root().scrollWidth > root().clientWidth;
document.title = JSON.stringify({ seen, problems });
</script>"""


def browse(page, tmp_path, *words):
    if BROWSER is None:
        pytest.skip("there is no browser here")
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    words = [BROWSER, *FLAGS.split(), profile, *words, page.as_uri()]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.full
def test_every_control(runs, tmp_path):
    content = report(runs)
    page = tmp_path / "report.html"
    page.write_text(content.replace("<title>", WATCH + "<title>", 1).replace("</body>", ACT + "</body>"))
    found = json.loads(re.search(r"<title>(.*?)</title>", browse(page, tmp_path, "--dump-dom")).group(1))
    assert found["problems"] == []
    seen = found["seen"]
    assert seen["first"] == 4  # two runs: train by step, valid by epoch
    assert seen["epochs"] == 4
    assert seen["bands"] == 2 + 4  # two means, and the edges of their bands
    assert (seen["step"], seen["epoch"], seen["time"]) == ("optimizer step", "epoch", "minutes of training")
    assert (seen["smoothing"], seen["log"]) == ("0.5", "log")
    assert seen["keys"] == [[1, 9], [1.8, 9.8], [1, 9], [0, 10]]
    assert seen["kept"] == [0, 10, True]
    assert (seen["taken"], seen["all"]) == ([False, True], True)  # other keys are the browser's
    assert len(set(seen["themes"])) == 2
    assert len(seen["contrasts"]) == 22
    assert [pair for pair in seen["contrasts"] if not pair[1] >= 4.5] == []
    assert seen["paper"] == ["light", "rgb(26, 26, 26)", "dark"]
    assert seen["closed"] == 0
    assert seen["wide"] is False


@pytest.mark.full
def test_no_epoch_yet_in_a_browser(tmp_path):
    act = "<script>dispatchEvent(new Event('beforeprint')); document.title = JSON.stringify(problems);</script>"
    content = report(find_runs([write_run(tmp_path / "a", {}, ending=None)]))
    page = tmp_path / "report.html"
    page.write_text(content.replace("<title>", WATCH + "<title>", 1).replace("</body>", act + "</body>"))
    assert "<title>[]</title>" in browse(page, tmp_path, "--dump-dom")


@pytest.mark.full
@pytest.mark.parametrize("width", [1200, 500])
def test_it_is_not_empty(runs, tmp_path, width):
    """The lines of both runs are drawn, in their colours."""
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    write_report(page, runs)
    browse(page, tmp_path, f"--window-size={width},1600", f"--screenshot={picture}")
    colours = {colour for _, colour in Image.open(picture).convert("RGB").getcolors(1 << 24)}
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= colours
    assert {(0xE6, 0x9F, 0x00), (0x2B, 0xB5, 0x8C)} <= colours  # of where the time went
