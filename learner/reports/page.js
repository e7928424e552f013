"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const get = (id) => document.getElementById(id);

  // Colours that are told apart with every kind of colour vision (Okabe and Ito, 2008), dark enough on both themes.
  const colours = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#8c6bb1", "#7f7f7f"];
  const dashes = { train: "dot" };
  const buttons = ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"];
  const titles = { step: "optimizer step", epoch: "epoch", time: "minutes of training" };
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  root.dataset.theme = dark.matches ? "dark" : "light";

  // Paper is white, and its printed charts too.
  let before = root.dataset.theme;
  const themed = (theme) => { root.dataset.theme = theme; draw(); };
  addEventListener("beforeprint", () => { before = root.dataset.theme; themed("light"); });
  addEventListener("afterprint", () => themed(before));

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

  const paint = (colour, alpha) => colour + Math.round(alpha * 255).toString(16).padStart(2, "0");

  function traces(metric, said) {
    const bands = metric.curves.filter((curve) => curve.runs !== undefined);
    const same = (one, other) => one.split === other.split && one.each === other.each;
    const found = [];
    for (const curve of metric.curves) {
      const band = curve.runs !== undefined;
      if (band && !said.bands) continue;
      if (!band && said.bands && bands.some((other) => same(other, curve) && other.runs.includes(curve.run))) continue;
      if (curve.each && !said.each) continue;
      const pair = metric.curves.some((other) => other.each && other.run === curve.run && other.split === curve.split
        && (other.runs !== undefined) === band);
      if (!curve.each && pair && said.each) continue;
      const colour = colours[curve.run % colours.length];
      const runs = band ? `${curve.runs.length} seeds of ` : "";
      const name = data.runs.length > 1 ? `${runs}${data.runs[curve.run]} ${curve.split}` : curve.split;
      const x = curve.x[said.axis];
      if (curve.low) {
        const edge = { x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: name };
        found.push({ ...edge, y: curve.low }, { ...edge, y: curve.high, fill: "tonexty", fillcolor: paint(colour, 0.15) });
      }
      const mode = x.length > 60 ? "lines" : "lines+markers";
      const line = { color: colour, width: 2, dash: dashes[curve.split] || "solid" };
      found.push({ x, y: smoothed(curve.y, said.weight), mode, line, name, legendgroup: name, marker: { size: 5 } });
    }
    return found.map((trace) => ({ ...trace, name: trace.name && plain(trace.name) }));
  }

  // Plotly reads some HTML in texts.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  // What was zoomed into stays, as long as the axis does.
  function zoom(chart, said) {
    const stays = chart.dataset.axis === said.axis && chart.layout.xaxis.autorange === false;
    chart.dataset.axis = said.axis;
    return stays ? { range: chart.layout.xaxis.range } : {};
  }

  function layout(metric, chart, said) {
    const style = getComputedStyle(root);
    const [text, line] = ["--text", "--line"].map((name) => style.getPropertyValue(name).trim());
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
    return {
      title: { text: plain(metric.name), font: { size: 16 }, x: 0, xanchor: "left", y: 0.99, yanchor: "top" },
      xaxis: { ...axis, title: { text: titles[said.axis] }, ...zoom(chart, said) },
      yaxis: { ...axis, title: { text: plain(metric.unit) }, type: said.log ? "log" : "linear" },
      margin: { t: 60, r: 40, b: 50, l: 60 },
      legend: { orientation: "h", y: 1.02, x: 0, yanchor: "bottom" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: line, activecolor: text, orientation: "v" },
      hovermode: "x unified",
      showlegend: true,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      hoverlabel: { bgcolor: style.getPropertyValue("--back").trim() },
      font: { color: text, family: "system-ui, sans-serif" },
    };
  }

  function draw() {
    if (!data.metrics.length) return;
    const weight = Number(get("smoothing").value);
    const said = { axis: get("axis").value, weight, log: get("log").checked, each: get("each").checked,
                   bands: get("bands").checked };
    get("smoothed").textContent = weight.toString();
    const options = { responsive: true, displaylogo: false, modeBarButtons: [buttons] };
    data.metrics.forEach((metric, index) => {
      const chart = get(`chart-${index}`);
      Plotly.react(chart, traces(metric, said), layout(metric, chart, said), options);
    });
  }

  if (!data.metrics.length) return;
  // The keys of a curve that has the focus, as parts of its width: of the left end, and of the right.
  const moves = { ArrowLeft: [-0.1, -0.1], ArrowRight: [0.1, 0.1], "+": [0.1, -0.1], "-": [-0.125, 0.125] };
  const ranges = (chart, key) => {
    if (key === "0") return { "xaxis.autorange": true, "yaxis.autorange": true };
    const [left, right] = chart.layout.xaxis.range;
    return { "xaxis.range": [left, right].map((end, index) => end + moves[key][index] * (right - left)) };
  };
  data.metrics.forEach((metric, index) => get(`chart-${index}`).addEventListener("keydown", (event) => {
    if ((!(event.key in moves) && event.key !== "0") || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    Plotly.relayout(event.currentTarget, ranges(event.currentTarget, event.key));
  }));

  get("banded").hidden = data.seeds.length === 0;
  get("controls").hidden = false;
  get("controls").addEventListener("input", draw);
  get("controls").addEventListener("submit", (event) => event.preventDefault());
  get("theme").addEventListener("click", () => themed(root.dataset.theme === "dark" ? "light" : "dark"));
  draw();
})();
