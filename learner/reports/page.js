"use strict";
(async () => {
  const get = (id) => document.getElementById(id);
  const all = (choice, inside = document) => [...inside.querySelectorAll(choice)];
  const data = JSON.parse(get("data").textContent);
  const root = document.documentElement;
  const titles = { step: "optimizer step", epoch: "epoch", time: "minutes of training" };
  const alone = data.runs.length === 1;
  const LONG = 60, WAIT = 100;  // points of a curve that is smoothed; milliseconds without a further change
  const MOST_SETTINGS = 6;  // axes of the parallel coordinates
  const SPLITS = ["#0072b2", "#d55e00", "#8c6bb1", "#7f7f7f"], DASHES = ["solid", "dash", "dashdot"];
  const dash_of = (split) => split === "train" ? "dot" : DASHES[splits.filter((each) => each !== "train").indexOf(split) % 3];
  const CSS_DASHES = { solid: "solid", dot: "dotted", dash: "dashed", dashdot: "double" };
  const splits = all(".split input").map((box) => box.value);
  const rows = all("#runs-table tbody tr");
  const charts = all(".chart");

  // Plotly reads some HTML in texts.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const paint = (colour, alpha) => colour + Math.round(alpha * 255).toString(16).padStart(2, "0");

  // An exponential moving average whose weights sum to 1 from the first value on.
  function smoothed(values, weight) {
    let average = 0, total = 0;
    return values.map((value) => {
      if (value === null) return null;
      average = weight * average + (1 - weight) * value;
      total = weight * total + 1 - weight;
      return average / total;
    });
  }

  function interpolated(x, known, values) {
    let at = 0;
    return x.map((place) => {
      while (at < known.length - 2 && known[at + 1] < place) at += 1;
      const span = known[at + 1] - known[at];
      if (!(span > 0) || place === known[at]) return values[at];
      const [left, right] = [values[at], values[at + 1]];
      return left === null || right === null ? null : left + (right - left) * (place - known[at]) / span;
    });
  }

  // The mean of curves and a band around it, where all of them have values: the interval of the mean, or all of them.
  function mean(curves) {
    const first = Math.max(...curves.map((curve) => curve.x[0])), last = Math.min(...curves.map((curve) => curve.x.at(-1)));
    const x = curves[0].x.filter((place) => first <= place && place <= last);
    const columns = curves.map((curve) => interpolated(x, curve.x, curve.y));
    const over = (reduce) => x.map((_, at) => {
      const values = columns.map((column) => column[at]);
      return values.includes(null) ? null : reduce(values);
    });
    const sum = (values) => values.reduce((total, value) => total + value, 0);
    const average = (values) => sum(values) / values.length;
    const [least, greatest] = [(values) => Math.min(...values), (values) => Math.max(...values)];
    if (view.band === "range") return { x, y: over(average), low: over(least), high: over(greatest) };
    const half = (values) => {
      const squares = sum(values.map((value) => (value - average(values)) ** 2));
      return data.quantiles[values.length] * Math.sqrt(squares / (values.length - 1) / values.length);
    };
    const lower = (values) => view.log ? Math.max(average(values) - half(values), least(values)) : average(values) - half(values);
    return { x, y: over(average), low: over(lower), high: over((values) => average(values) + half(values)) };
  }

  // -- what is shown: the table of runs is the legend of all charts

  const view = {};
  function look() {
    view.weight = Number(get("smoothing").value);
    view.axis = get("axis").value;
    view.log = get("log").checked;
    view.band = get("band")?.value;
    view.splits = all(".split input:checked").map((box) => box.value);
    const label = data.groups[get("group")?.value];
    view.label = data.runs.map((run, index) => label ? label[index] : index);
    const shown = rows.filter((row) => !row.hidden && row.querySelector("input").checked);
    view.runs = new Set(alone ? [0] : shown.map((row) => Number(row.dataset.run)));
    view.colour = view.label.map((each) => data.runs[view.label.indexOf(each)].colour);
    view.grouped = label !== undefined;
    for (const row of rows) row.querySelector("i").style.background = view.colour[row.dataset.run];
    if (!alone) get("shown").textContent = `${view.runs.size} of ${rows.length} shown`;
    get("smoothed").textContent = view.weight;
  }

  function traces(metric) {
    const found = [], together = new Map();
    const several = metric.curves.some((curve) => curve.split !== metric.curves[0].split);
    for (const curve of metric.curves) {
      if (!view.runs.has(curve.run) || (several && !view.splits.includes(curve.split))) continue;
      const key = `${curve.split} ${view.label[curve.run]}`;
      together.set(key, [...(together.get(key) ?? []), { ...curve, x: data.axes[curve.axes][view.axis] }]);
    }
    for (const curves of together.values()) {
      const { run, split } = curves[0];
      const curve = curves.length > 1 ? mean(curves) : curves[0];
      const colour = alone ? SPLITS[splits.indexOf(split) % SPLITS.length] : view.colour[run];
      const names = view.grouped ? `${view.label[run]} (mean of ${curves.length})` : data.runs[run].name;
      const of = { x: curve.x, meta: { run, name: alone ? split : `${names}, ${split}` }, hoverinfo: "none" };
      const edge = { ...of, mode: "lines", line: { width: 0 }, hoverinfo: "skip" };
      if (curve.low) {
        found.push({ ...edge, y: curve.low }, { ...edge, y: curve.high, fill: "tonexty", fillcolor: paint(colour, 0.15) });
      }
      const long = curve.y.length > LONG;
      if (alone && long && view.weight) found.push({ ...edge, y: curve.y, line: { color: paint(colour, 0.3), width: 1 } });
      const dash = alone ? "solid" : dash_of(split);
      const y = long ? smoothed(curve.y, view.weight) : curve.y;
      const line = { color: colour, width: dash === "dot" ? 1 : 2, dash };
      found.push({ ...of, y, line, mode: y.length === 1 || (alone && !long) ? "lines+markers" : "lines", marker: { size: 4 } });
    }
    return found;
  }

  // -- charts

  function look_of(title) {
    const style = getComputedStyle(root);
    const [text, line, back] = ["--text", "--line", "--back"].map((name) => style.getPropertyValue(name).trim());
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, exponentformat: "e" };
    const layout = {
      title: { text: plain(title), font: { size: 15 }, x: 0, xanchor: "left", y: 0.98, yanchor: "top" },
      margin: { t: 32, r: 12, b: 40, l: 48 }, showlegend: false, hovermode: "closest", hoverdistance: 40,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: text, family: "system-ui, sans-serif" },
    };
    return { axis, layout, back };
  }

  // What was zoomed into stays, as long as the axis does.
  function zoom(chart) {
    const stays = chart.dataset.axis === view.axis && chart.layout.xaxis.autorange === false;
    chart.dataset.axis = view.axis;
    return stays ? { range: chart.layout.xaxis.range } : {};
  }

  function curves_of(chart, metric) {
    const { axis, layout } = look_of(metric.name);
    const xaxis = { ...axis, exponentformat: "none", title: { text: titles[view.axis] }, ...zoom(chart) };
    return [traces(metric), { ...layout, xaxis, yaxis: { ...axis, title: { text: plain(metric.unit) },
      type: view.log ? "log" : "linear" } }];
  }

  const ticks = (dimension) => ({ tickvals: dimension.ticks[0], ticktext: dimension.ticks[1].map(plain) });

  function scatter() {
    const [setting, result] = [data.settings[get("setting").value], data.results[get("result").value]];
    const { axis, layout } = look_of(`${result.name} over ${setting.name}`);
    const found = [...view.runs].map((run) => ({ x: [setting.at[run]], y: [result.at[run]], mode: "markers",
      marker: { size: 9, color: view.colour[run] }, hoverinfo: "none", meta: { run, name: data.runs[run].name } }));
    return [found, { ...layout, xaxis: { ...axis, title: { text: plain(setting.name) }, ...ticks(setting), range: [-0.05, 1.05] },
      yaxis: { ...axis, ...ticks(result), range: [-0.05, 1.05] } }];
  }

  function parallel() {
    const shown = [...data.settings.slice(0, MOST_SETTINGS), data.results[get("result").value]];
    const { axis, layout, back } = look_of("Settings and results");
    const found = [...view.runs].map((run) => ({ x: shown.map((_, at) => at), y: shown.map((each) => each.at[run]),
      mode: "lines", line: { color: view.colour[run], width: 1.5 }, hoverinfo: "none", connectgaps: true,
      meta: { run, name: data.runs[run].name } }));
    const annotations = shown.flatMap((each, x) => each.ticks[0].map((y, at) => ({ x, y, text: plain(each.ticks[1][at]),
      showarrow: false, xanchor: x ? "right" : "left", font: { size: 11 }, bgcolor: back, borderpad: 0 })));
    const names = { tickvals: shown.map((_, at) => at), ticktext: shown.map((each) => plain(each.name)) };
    return [found, { ...layout, annotations, margin: { ...layout.margin, r: 48 }, xaxis: { ...axis, ...names, range: [-0.1, shown.length - 0.9], ticklabeloverflow: "allow", tickangle: 0 },
      yaxis: { visible: false, range: [-0.05, 1.05] } }];
  }

  function draw(chart) {
    const content = chart.id === "scatter" ? scatter() : chart.id === "parallel" ? parallel()
      : curves_of(chart, data.metrics[charts.indexOf(chart)]);
    Plotly.react(chart, ...content, { responsive: true, displayModeBar: false });
    if (chart.dataset.listens) return;
    chart.dataset.listens = "yes";
    chart.on("plotly_hover", ({ points, event }) => point(chart, points[0], event));
    chart.on("plotly_unhover", () => point());
  }

  // Charts are drawn while they are in view, each in a task of its own, so that keys and the mouse wait for one at most.
  const stale = new Set(), near = new Set();
  let busy = false;
  function next() {
    const chart = charts.find((each) => near.has(each) && stale.has(each));
    if (busy || chart === undefined) return;
    busy = true;
    setTimeout(() => {
      stale.delete(chart);
      draw(chart);
      busy = false;
      next();
    });
  }
  function redraw() {
    look();
    for (const chart of charts) stale.add(chart);
    next();
  }

  // -- the nearest run: its name and its line

  const tip = document.body.appendChild(Object.assign(document.createElement("div"), { id: "tip", role: "status" }));
  const number = (value) => typeof value === "number" ? Number(value.toPrecision(5)) : value;
  function point(chart, at, event) {
    emphasize(at?.data.meta.run);
    tip.textContent = "";
    if (at === undefined) return;
    const { name, run } = at.data.meta;
    const metric = data.metrics[charts.indexOf(chart)];
    tip.textContent = metric ? `${name}: ${number(at.y)} at ${view.axis} ${number(at.x)}` : name;
    tip.style.borderLeftColor = at.fullData.line?.color ?? view.colour[run];
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - box.width - 4))}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - box.height - 4))}px`;
  }
  function emphasize(run) {
    if (alone) return;
    for (const row of rows) row.classList.toggle("near", Number(row.dataset.run) === run);
    for (const chart of near) {
      all(".scatterlayer .trace", chart).forEach((line, at) => {
        line.style.opacity = run === undefined || chart.data[at]?.meta.run === run ? "" : 0.15;
      });
    }
  }

  // -- the table of runs

  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  };
  const order = (one, other) => typeof one === "number" && typeof other === "number" ? one - other
    : typeof one === "number" ? -1 : typeof other === "number" ? 1 : one.localeCompare(other, "en", { numeric: true });
  all("#runs-table thead th").forEach((head, index) => head.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of all("#runs-table thead th")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const sorted = rows.toSorted((one, other) => (up ? 1 : -1) * order(value(one, index + 1), value(other, index + 1)));
    get("runs-table").tBodies[0].append(...sorted);
  }));
  for (const row of rows) {
    row.addEventListener("mouseenter", () => emphasize(Number(row.dataset.run)));
    row.addEventListener("mouseleave", () => emphasize());
  }
  get("filter")?.addEventListener("input", (event) => {
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(event.target.value.toLowerCase());
  });
  get("all")?.addEventListener("input", (event) => {
    for (const row of rows) if (!row.hidden) row.querySelector("input").checked = event.target.checked;
  });

  // -- the theme. Paper is white, and its printed charts too.

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const themed = (theme) => { root.dataset.theme = theme; if (charts.length) redraw(); };
  root.dataset.theme = dark.matches ? "dark" : "light";
  let before = root.dataset.theme;
  get("theme").addEventListener("click", () => themed(root.dataset.theme === "dark" ? "light" : "dark"));
  if (!charts.length) return;

  // -- the start

  const packed = Uint8Array.from(atob(get("plotly").textContent), (character) => character.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = Object.assign(document.createElement("script"), { textContent: await new Response(unpacked).text() });
  document.head.append(script);

  addEventListener("beforeprint", () => { before = root.dataset.theme; themed("light"); charts.forEach(draw); });
  addEventListener("afterprint", () => themed(before));

  // The keys of a chart that has the focus, as parts of its width: of the left end, and of the right.
  const moves = { ArrowLeft: [-0.1, -0.1], ArrowRight: [0.1, 0.1], "+": [0.1, -0.1], "-": [-0.125, 0.125] };
  const ranges = (chart, key) => {
    if (key === "0") return { "xaxis.autorange": true, "yaxis.autorange": true };
    const [left, right] = chart.layout.xaxis.range;
    return { "xaxis.range": [left, right].map((end, index) => end + moves[key][index] * (right - left)) };
  };
  for (const chart of charts) {
    chart.addEventListener("keydown", (event) => {
      if ((!(event.key in moves) && event.key !== "0") || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      Plotly.relayout(chart, ranges(chart, event.key));
    });
  }

  let timer;
  document.addEventListener("input", () => {
    get("smoothed").textContent = get("smoothing").value;
    clearTimeout(timer);
    timer = setTimeout(redraw, WAIT);
  });
  document.addEventListener("submit", (event) => event.preventDefault());
  get("controls").hidden = false;
  all(".split i").forEach((mark, at) => {
    mark.style.borderTop = alone ? `0.35em solid ${SPLITS[at % SPLITS.length]}` : `2px ${CSS_DASHES[dash_of(splits[at])]}`;
  });
  redraw();
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) near[entry.isIntersecting ? "add" : "delete"](entry.target);
    next();
  }, { rootMargin: "200px" });
  charts.forEach((chart) => observer.observe(chart));
})();
