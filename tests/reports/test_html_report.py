"""Tests of HTML reports, as files and in a browser."""

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
    """Return two runs that differ in their seed, with texts and logs."""
    for seed in (0, 1):
        values = {"train/Loss": [2.0, 1.0 + seed], "valid/Loss": [3.0, 1.5], "valid/Text": ["9 1", "10 0"]}
        values["valid/Confusion Matrix"] = MATRICES
        run = write_run(tmp_path / f"run-{seed}", values, config=f"seed: {seed}\nlr: 0.1\n", steps=40, ending=None)
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


def data_of(page):
    return json.loads(page.data)


def test_report_of_two_runs(runs):
    """Each run has a row with the settings that differ, its best values, a checkbox and a distinct color."""
    page = Page(report(runs))
    text = "\n".join(page.texts)
    for content in ("Confusion matrices", "Parameters", "layer12/kernel", "10 0", "run-0: 1 warning"):
        assert content in text
    assert page.texts.count("Parameters") == 2  # the section, and the link to it
    assert page.rows[0][1:] == ["run", "seed", "valid/Loss", "status", "epochs", "steps", "time"]
    assert [row[1:] for row in page.rows[1:3]] == [
        ["run-0", "0", "1.5", "ended num_epochs", "2", "80", "46.0 s"],
        ["run-1", "1", "1.5", "ended num_epochs", "2", "80", "46.0 s"],
    ]
    data = data_of(page)
    assert [run["name"] for run in data["runs"]] == ["run-0", "run-1"]
    assert len({run["colour"] for run in data["runs"]}) == 2
    assert data["groups"] == {"all but the seed": ["all", "all"]}
    assert data["settings"] == [{"name": "seed", "at": [0, 1], "ticks": [[0, 1], ["0", "1"]]}]
    assert data["metrics"][0]["curves"][0]["y"][0] == 2.0
    assert [attrs["id"] for attrs in page.all("figure") if attrs.get("class") == "chart"] == [
        "chart-0",
        "scatter",
        "parallel",
    ]


def test_report_of_one_run(runs):
    """Every duration is the one that the run recorded, 47 s, not the 46 s between the lines of its journal."""
    directory = runs[0].directory
    lines = (directory / "journal.jsonl").read_text().splitlines()
    start = {**json.loads(lines[0]), "environment": {"host": "node-7", "device": "TPU v4"}, "commit": "a1b2c3"}
    end = {
        "event": "end",
        "time": 1046.0,
        "stopped_by": "num_epochs",
        "seconds": {"total": 47.0, **SECONDS, "other": 3.0},
    }
    (directory / "journal.jsonl").write_text("\n".join([json.dumps(start), *lines[1:-1], json.dumps(end)]) + "\n")
    page = Page(report(find_runs([directory]), "the title"))
    after = dict(zip(page.texts, page.texts[1:], strict=False))
    card = {
        name: after[name] for name in ("status", "best valid/Loss", "duration", "started", "commit", "host", "device")
    }
    assert card["status"] == "ended"
    assert (card["best valid/Loss"], card["duration"], card["started"]) == ("1.5", "47.0 s", "1970-01-01 00:16 UTC")
    assert (card["commit"], card["host"], card["device"]) == ("a1b2c3", "node-7", "TPU v4")
    assert {"the title", "train 63.8 %"} <= set(page.texts)  # 30 of 47 seconds
    assert ["valid/Loss", "1.5", "2", "1.5"] in page.rows
    assert "46.0 s" not in page.texts
    assert page.count("table") > 0
    assert not any(attrs.get("id") == "runs-table" for attrs in page.all("table"))


def test_navigation_links_to_each_section(runs):
    page = Page(report(runs))
    links = [attrs["href"] for attrs in page.all("a")]
    assert links == ["#top", *(f"#{attrs['id']}" for attrs in page.all("section"))]
    assert "#settings-and-results" in links


def test_environments_that_differ_have_a_table(tmp_path):
    """Equal entries are shown once."""
    for name, host in (("a", "x"), ("b", "<b>")):
        run = write_run(tmp_path / name)
        lines = (run / "journal.jsonl").read_text().splitlines()
        start = {**json.loads(lines[0]), "environment": {"jax": "0.10.2", "host": host}}
        (run / "journal.jsonl").write_text("\n".join([json.dumps(start), *lines[1:]]) + "\n")
    page = Page(report(find_runs([tmp_path])))
    assert [row for row in page.rows if row[0] in ("jax", "host")] == [["jax", "0.10.2"]]
    at = page.rows.index(["run", "host"])
    assert page.rows[at + 1 : at + 3] == [["a", "x"], ["b", "<b>"]]


def test_page_is_accessible(runs):
    """Graphics have labels; scrolled regions have labels too, and the keyboard reaches them."""
    page = Page(report(runs))
    graphics = [attrs for _, attrs in page.tags if attrs.get("role") in ("img", "region")]
    assert len(graphics) > 10
    assert all(attrs["aria-label"] for attrs in graphics)
    scrolled = [attrs for _, attrs in page.tags if attrs.get("class") == "scroll"]
    assert all(attrs["tabindex"] == "0" for attrs in [*scrolled, *page.all("pre")])
    assert {attrs["scope"] for attrs in page.all("th")} == {"row", "col"}
    assert all(attrs.get("aria-label") for attrs in page.all("input") if "data-run" in attrs)


def test_long_texts_are_truncated(tmp_path, monkeypatch):
    monkeypatch.setattr("learner.reports.html_report.LONGEST_TEXT", 3)
    page = Page(report(find_runs([write_run(tmp_path / "a", {"valid/T": ["abcdef"], "valid/U": ["xyz"]})])))
    assert {"abc", "3 further characters.", "xyz"} <= set(page.texts)
    assert sum("further character" in text for text in page.texts) == 1


def test_page_requests_nothing(runs):
    """No tag refers to another file, and a content security policy blocks requests."""
    page = Page(report(runs))
    places = [attrs.get(name) for _, attrs in page.tags for name in ("src", "href", "action") if name in attrs]
    assert [place for place in places if not place.startswith("#")] == ["data:,"]
    (policy,) = [attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv")]
    assert "default-src 'none'" in policy
    assert "http" not in policy


def test_hostile_names_and_values_are_escaped(tmp_path):
    """Names, values and logs of an untrusted run appear as text only."""
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


def test_report_of_a_run_without_epochs(tmp_path):
    write_run(tmp_path / "a", {}, ending=None)
    content = report(find_runs([tmp_path]))
    assert "No epoch has ended yet." in content
    assert "died" in content


def test_unwritable_place_is_an_error(runs, tmp_path):
    with raises_code("report-not-written"):
        write_report(tmp_path / "nowhere" / "report.html", runs)


def test_missing_plotly_is_an_error(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.delitem(sys.modules, "plotly.offline", raising=False)
    with raises_code("package-missing", install_hint("reports")):
        report(runs)


# -- in a browser ------------------------------------------------------------------------------------------------------

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
  --disable-component-update --disable-sync --virtual-time-budget=60000 --window-size=1200,1600"""
WATCH = """<script>
window.problems = [];
addEventListener("error", (event) => problems.push(event.message));
addEventListener("securitypolicyviolation", (event) => problems.push("request: " + event.blockedURI));
for (const level of ["error", "warn"]) console[level] = (...words) => problems.push(words.join(" "));
</script>"""
ACT = """<script>
const get = (id) => document.getElementById(id);
const root = document.documentElement;
const wait = (milliseconds = 300) => new Promise((resolve) => setTimeout(resolve, milliseconds));
// Time here is the browser's own, which runs ahead of its frames on a busy machine: each turn does some work, too.
const work = () => { for (let i = 0, x = 1; i < 1e7; i += 1) x = Math.sqrt(x + i); };
const until = async (holds) => { for (let turn = 0; turn < 200 && !holds(); turn += 1) await wait(100).then(work); };
const lines = (id = "chart-0") => get(id).querySelectorAll(".scatterlayer .trace path.js-line").length;
const set = async (element, change) => {
  change(element);
  element.dispatchEvent(new Event("input", { bubbles: true }));
  await wait();
};
const boxes = () => [...document.querySelectorAll("#runs-table tbody input")];
const texts = (choice) => [...document.querySelectorAll(choice)].map((element) => element.textContent);
const names = () => texts("#runs-table tbody tr:not([hidden]) th");
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
const report = (seen) => { document.title = JSON.stringify({ seen, problems }); };
</script>"""
SEVERAL = """<script>(async () => {
const seen = {};
await until(lines);
seen.drawn = [...document.querySelectorAll(".chart .main-svg")].length > 0;
seen.valid = lines();
await set(document.querySelector(".split input[value=train]"), (box) => { box.checked = true; });
seen.both = lines();
await set(get("group"), (choice) => { choice.value = "all but the seed"; });
seen.mean = lines();
const band = () => {
  const [low, high] = get("chart-0").data;
  return (high.y[0] - low.y[0]) / 2;
};
seen.bands = [band()];
await set(get("band"), (choice) => { choice.value = "range"; });
seen.bands.push(band());
seen.swatches = [...document.querySelectorAll("#runs-table i")].map((mark) => mark.style.background);
await set(get("group"), (choice) => { choice.value = ""; });
await set(boxes()[0], (box) => { box.checked = false; });
seen.one = lines();
await set(get("all"), (box) => { box.checked = true; });
seen.all = lines();
await set(get("filter"), (field) => { field.value = "RUN-1"; });
seen.filtered = [names(), lines(), get("shown").textContent];
await set(get("filter"), (field) => { field.value = ""; });
const seed = [...document.querySelectorAll("#runs-table thead th")].find((head) => head.textContent === "seed");
const order = [];
for (const again of [1, 2]) {
  seed.querySelector("button").click();
  order.push([seed.getAttribute("aria-sort"), names()]);
}
seen.order = order;
for (const id of ["scatter", "parallel"]) {
  get(id).scrollIntoView();
  await until(() => get(id).querySelector(".points path, path.js-line"));
}
seen.settings = [get("scatter").querySelectorAll(".points path").length, lines("parallel")];
seen.covered = [...get("parallel").querySelectorAll(".annotation .bg")].map((box) => getComputedStyle(box).fillOpacity);
get("chart-0").scrollIntoView();
await wait(500);
const chart = get("chart-0"), area = chart.querySelector(".nsewdrag").getBoundingClientRect();
const at = chart.data[0], axes = chart._fullLayout;
const place = { clientX: area.left + axes.xaxis.d2p(at.x[1]), clientY: area.top + axes.yaxis.d2p(at.y[1]) };
Plotly.Fx.hover(chart, { xpx: axes.xaxis.d2p(at.x[1]), ypx: axes.yaxis.d2p(at.y[1]), ...place,
  target: chart.querySelector(".nsewdrag") });
await wait();
const tip = get("tip"), box = tip.getBoundingClientRect();
seen.tip = tip.textContent;
seen.inside = box.width > 0 && box.left >= 0 && box.right <= innerWidth && box.top >= 0 && box.bottom <= innerHeight;
seen.near = texts("tr.near th");
seen.stops = [...document.querySelectorAll(".chart")].map((each) =>
  [each, ...each.querySelectorAll("*")].filter((part) => part.tabIndex >= 0).length);
seen.wide = root.scrollWidth > root.clientWidth;
seen.contrasts = [];
for (const again of [1, 2]) {
  for (const choice of ["p", "th", "td", "td.hit", "td.right", "nav a", ".chip", ".hint", ".search output", "summary"])
    seen.contrasts.push([choice, worst(choice)]);
  get("theme").click();
}
report(seen);
})();</script>"""
SINGLE = """<script>(async () => {
const seen = {};
await until(lines);
seen.first = lines();
seen.far = document.querySelectorAll(".chart .main-svg").length > 0;
for (const axis of ["epoch", "time", "step"]) {
  await set(get("axis"), (choice) => { choice.value = axis; });
  seen[axis] = document.querySelector(".xtitle").textContent;
}
await set(get("smoothing"), (slider) => { slider.value = 0; });
seen.raw = [get("smoothed").textContent, lines()];
const chart = get("chart-0");
await set(get("log"), (box) => { box.checked = true; });
seen.log = chart.layout.yaxis.type;
const press = (key) => chart.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
const range = () => chart.layout.xaxis.range.map((end) => Number(end.toFixed(6)));
Plotly.relayout(chart, { "xaxis.range": [0, 10] });
seen.keys = ["+", "ArrowRight", "ArrowLeft", "-"].map((key) => { press(key); return range(); });
await set(get("smoothing"), (slider) => { slider.value = 0.25; });
seen.kept = range();
await set(get("axis"), (choice) => { choice.value = "time"; });
seen.kept.push(chart.layout.xaxis.autorange);
seen.handled = [press("0"), press("a")];
seen.all = chart.layout.xaxis.autorange;
const theme = () => getComputedStyle(document.body).backgroundColor;
seen.themes = [theme()];
get("theme").click();
seen.themes.push(theme());
get("theme").click();
seen.contrasts = [];
for (const again of [1, 2]) {
  for (const choice of ["p", "th", "td", "dt", "dd", ".chip", ".legend li", ".bar .train", "pre"])
    seen.contrasts.push([choice, worst(choice)]);
  get("theme").click();
}
root.dataset.theme = "dark";
dispatchEvent(new Event("beforeprint"));
seen.paper = [root.dataset.theme, document.querySelector(".xtitle").style.fill];
dispatchEvent(new Event("afterprint"));
seen.paper.push(root.dataset.theme);
for (const details of document.querySelectorAll("details")) details.querySelector("summary").click();
seen.closed = document.querySelectorAll("details:not([open])").length;
seen.wide = root.scrollWidth > root.clientWidth;
report(seen);
})();</script>"""


def browse(page, tmp_path, *words):
    """Open the page in a headless browser, and return its standard output. Skip the test if there is none."""
    if BROWSER is None:
        pytest.skip("no browser is installed")
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    words = [BROWSER, *FLAGS.split(), profile, *words, page.as_uri()]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout


def run_script(content, act, tmp_path, *words):
    """Open the page with a script, and return its report. Errors, warnings and requests fail the test."""
    page = tmp_path / "report.html"
    page.write_text(content.replace("<title>", WATCH + "<title>", 1).replace("</body>", ACT + act + "</body>"))
    result = json.loads(re.search(r"<title>(.*?)</title>", browse(page, tmp_path, "--dump-dom", *words)).group(1))
    assert result["problems"] == []
    return result["seen"]


SIZES = [400, 800, 1600]


@pytest.mark.full
@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("theme", ["", "--force-dark-mode"])
def test_controls_of_two_runs(runs, tmp_path, width, theme):
    seen = run_script(report(runs), SEVERAL, tmp_path, f"--window-size={width},1000", *theme.split())
    assert seen["drawn"]
    assert (seen["valid"], seen["both"]) == (2, 4)  # a line for each run and split
    assert seen["mean"] == 2 + 2 * 2  # two means, and the edges of their bands
    # The train losses of the two runs are 1 apart: 12.706 is Student's t of one degree of freedom for 97.5 %.
    assert seen["bands"] == pytest.approx([12.706 / 2, 0.5], rel=1e-4)
    assert len(set(seen["swatches"])) == 1  # the legend has the color of the mean
    assert (seen["one"], seen["all"]) == (2, 4)
    assert seen["filtered"] == [["run-1"], 2, "1 of 2 shown"]
    assert seen["order"] == [["ascending", ["run-0", "run-1"]], ["descending", ["run-1", "run-0"]]]
    assert set(seen["covered"]) == {"1"}  # values of settings hide the lines behind them
    assert seen["settings"] == [2, 2]  # points of the scatter plot, lines of the parallel coordinates
    assert re.fullmatch(r"run-[01], (train|valid): .* at step \d+", seen["tip"])
    assert seen["inside"]
    assert seen["near"] == [seen["tip"][:5]]
    assert max(seen["stops"]) == 1
    assert seen["wide"] is False
    assert [pair for pair in seen["contrasts"] if not pair[1] >= 4.5] == []


@pytest.mark.full
def test_controls_of_one_run(runs, tmp_path):
    seen = run_script(report(runs[:1]), SINGLE, tmp_path)
    assert seen["first"] == 1 + 1 + 1  # training as it is and smoothed, and validation
    assert (seen["step"], seen["epoch"], seen["time"]) == ("optimizer step", "epoch", "minutes of training")
    assert (seen["raw"], seen["log"]) == (["0", 2], "log")
    assert seen["keys"] == [[1, 9], [1.8, 9.8], [1, 9], [0, 10]]
    assert seen["kept"] == [0, 10, True]
    assert (seen["handled"], seen["all"]) == ([False, True], True)  # the browser handles other keys
    assert len(set(seen["themes"])) == 2
    assert len(seen["contrasts"]) == 18
    assert [pair for pair in seen["contrasts"] if not pair[1] >= 4.5] == []
    assert seen["paper"] == ["light", "rgb(26, 26, 26)", "dark"]
    assert seen["closed"] == 0
    assert seen["wide"] is False


@pytest.mark.full
@pytest.mark.parametrize("count", [1, 10, 100])
@pytest.mark.parametrize("width", SIZES)
def test_report_of_many_runs(tmp_path, count, width):
    """At most 20 runs are shown at first, charts out of view are not drawn, and the page stays small."""
    for number in range(count):
        values = {f"valid/Metric {n}": [1.0 + number, 1.5, 1.0] for n in range(20)} | {"valid/Loss": [number + 1.0]}
        write_run(
            tmp_path / f"run-{number:03}", values, config=f"lr: {0.001 * (1 + number % 5)}\nseed: {number // 5}\n"
        )
    content = report(find_runs([tmp_path]))
    assert len(content) < 6e6
    act = """<script>(async () => { await until(lines); await wait(); report({
      lines: lines(), wide: root.scrollWidth > root.clientWidth,
      drawn: [...document.querySelectorAll(".chart")].filter((each) => each.querySelector(".main-svg")).length });
    })();</script>"""
    seen = run_script(content, act, tmp_path, f"--window-size={width},1000")
    assert seen["lines"] == min(count, 20)
    assert 1 <= seen["drawn"] < 20
    assert seen["wide"] is False


SMOOTHING = """<script>(async () => {
await until(lines);
await wait(1000);
const charts = [...document.querySelectorAll(".chart")];
const far = charts.filter((chart) => {
  const box = chart.getBoundingClientRect();
  return box.bottom < -300 || box.top > innerHeight + 300;
}).map((chart) => chart.id);
const drawn = [], { react } = Plotly, { setTimeout: later } = window;
let task = 0;
window.setTimeout = (call, ...words) => later(() => { task += 1; call(); }, ...words);
Plotly.react = (chart, traces, ...words) => {
  drawn.push({ id: chart.id, task, points: traces.reduce((sum, { y }) => sum + y.length, 0) });
  return react(chart, traces, ...words);
};
for (let step = 0; step < 50; step += 1) {  // the slider is dragged
  get("smoothing").value = 0.99 - 0.01 * step;
  get("smoothing").dispatchEvent(new Event("input", { bubbles: true }));
}
await until(() => drawn.length);
await wait(1000);
const first = drawn.splice(0);
charts.at(-1).scrollIntoView();
await until(() => drawn.some(({ id }) => id === charts.at(-1).id));
report({ charts: charts.length, far, first, last: drawn.map(({ id }) => id).includes(charts.at(-1).id) });
})();</script>"""


@pytest.mark.full
def test_smoothing_redraws_charts_in_view_once(tmp_path):
    """The test counts work, since times depend on the machine. A drag of the slider redraws each chart in view once, in
    a separate task, with at most 4,000 points. Other charts are redrawn when they come into view.
    """
    for number in range(10):
        values = {f"train/Metric{n}": [1.0 + number] for n in range(20)}
        run = write_run(tmp_path / f"run-{number}", values, config=f"seed: {number}\n", steps=5000)
        for n in range(20):
            write_steps(run, f"Metric{n}", 1, [number + (step * 7919 % 1000) / 1000 for step in range(5000)])
    seen = run_script(report(find_runs([tmp_path])), SMOOTHING, tmp_path)
    first = seen["first"]
    assert len(seen["far"]) >= 5
    assert 1 <= len(first) <= seen["charts"] - len(seen["far"])
    assert not {chart["id"] for chart in first} & set(seen["far"])
    for key in ("id", "task"):
        assert len({chart[key] for chart in first}) == len(first)
    assert 3000 < max(chart["points"] for chart in first) <= 4000
    assert seen["last"]


@pytest.mark.full
def test_ticks_of_steps_are_whole_numbers(tmp_path):
    run = write_run(tmp_path / "a", {"valid/Loss": [1.0, 0.5, 0.25]}, steps=50_000)
    act = """<script>(async () => {
      await until(lines); await wait(); report(texts("#chart-0 .xtick"));
    })();</script>"""
    seen = run_script(report(find_runs([run])), act, tmp_path)
    assert "100,000" in seen
    assert all(text.replace(",", "").isdigit() for text in seen)


@pytest.mark.full
def test_report_without_epochs_in_a_browser(tmp_path):
    content = report(find_runs([write_run(tmp_path / "a", {}, ending=None)]))
    act = "<script>dispatchEvent(new Event('beforeprint')); get('theme').click(); report({});</script>"
    assert run_script(content, act, tmp_path) == {}


@pytest.mark.full
@pytest.mark.parametrize("width", [1600, 400])
def test_screenshot_shows_both_runs(runs, tmp_path, width):
    """The lines of both runs are drawn in their colors."""
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    write_report(page, runs)
    browse(page, tmp_path, f"--window-size={width},1600", f"--screenshot={picture}")
    colours = {colour for _, colour in Image.open(picture).convert("RGB").getcolors(1 << 24)}
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= colours
