// Charts drawn with the inlined plotly. Names from the data pass through `plain`, since plotly reads a few tags.
"use strict";

function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function draw(host, traces, layout, buttons) {
  const axis = { gridcolor: themed("line"), linecolor: themed("line"), zerolinecolor: themed("line") };
  const base = { font: { family: "system-ui, sans-serif", size: 12, color: themed("ink") }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 56, r: 12, t: 30, b: 44 }, hovermode: "closest", modebar: { bgcolor: "rgba(0,0,0,0)", color: themed("soft"), activecolor: themed("link") }, legend: { orientation: "h", y: 1.04, yanchor: "bottom", x: 0 } };
  for (const name of Object.keys(layout)) if (/^[xy]axis/.test(name)) layout[name] = Object.assign({}, axis, layout[name]);
  return Plotly.react(host, traces, Object.assign(base, layout), { displaylogo: false, showSendToCloud: false, plotlyServerURL: "", responsive: true,
    displayModeBar: Boolean(buttons) && window.innerWidth >= 700, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d", "toImage"] });
}

function tradeOff(host, solved, timeTitle, choose) {
  const groups = new Map();
  for (const one of solved) {
    if (!groups.has(one.status)) groups.set(one.status, []);
    groups.get(one.status).push(one);
  }
  const symbols = ["circle", "diamond", "square", "x"];
  const traces = [...groups].map(([status, list], at) => ({
    type: "scatter", mode: "markers", name: plain(statusWord(status)), x: list.map((one) => one.peak), y: list.map((one) => one.time),
    customdata: list.map((one) => one.index), text: list.map((one) => plain(one.name)),
    marker: { size: 8, symbol: symbols[at % symbols.length], color: themed(`line-${at % 6}`), opacity: 0.8 },
    hovertemplate: "%{text}<br>%{x:.1f} GiB, %{y:,.2f}<extra></extra>",
  }));
  const front = [];
  for (const one of [...solved].sort((a, b) => a.peak - b.peak || a.time - b.time)) if (!front.length || one.time < front[front.length - 1].time) front.push(one);
  if (front.length > 1) traces.push({ type: "scatter", mode: "lines", name: "best for its memory", x: front.map((one) => one.peak), y: front.map((one) => one.time),
    line: { color: themed("soft"), dash: "dot", shape: "hv" }, hoverinfo: "skip" });
  draw(host, traces, { height: 340, xaxis: { title: { text: "peak memory of the heaviest stage, GiB" } }, yaxis: { title: { text: timeTitle } } });
  host.removeAllListeners("plotly_click");
  host.on("plotly_click", (event) => {
    const index = event.points[0].customdata;
    if (index !== undefined) choose(index);
  });
}

function gaps(host, known) {
  const data = { x: known.map((one) => one.index + 1), y: known.map((one) => 100 * one.gap), text: known.map((one) => plain(one.name)),
    hovertemplate: "#%{x} %{text}<br>gap %{y:.4f} %<extra></extra>" };
  // A thousand bars cost half a second; one filled path says the same.
  const look = known.length <= 100 ? { type: "bar", textposition: "none", marker: { color: themed("line-0") } }
    : { type: "scatter", mode: "lines", fill: "tozeroy", line: { shape: "hvh", width: 1, color: themed("line-0") } };
  draw(host, [Object.assign(data, look)], { height: 340, xaxis: { title: { text: "rank" } }, yaxis: { title: { text: "proven gap, %" }, rangemode: "tozero" } });
}

function progressChart(host, points) {
  const line = (name, at, colour) => ({ type: "scatter", mode: "lines+markers", name, line: { shape: "hv", color: colour }, marker: { size: 4 },
    x: points.filter((p) => p[at] !== null).map((p) => p[0]), y: points.filter((p) => p[at] !== null).map((p) => p[at]) });
  draw(host, [line("best plan", 1, themed("line-1")), line("proven bound", 2, themed("line-0"))],
    { height: 300, xaxis: { title: { text: "seconds" } }, yaxis: { title: { text: "step time, body-layer forwards" } } });
}

// parts: {name: [pp]} MiB, stacked; the limit is a line over them.
function stageMemory(host, parts, limits) {
  const names = Object.keys(parts), stages = parts[names[0]].map((_, s) => s);
  const traces = names.map((name, at) => ({ type: "bar", name: plain(name), x: stages, y: parts[name].map((mib) => mib / 1024),
    marker: { color: PALETTE.parts[at % PALETTE.parts.length], line: { color: themed("paper"), width: 0.5 } },
    hovertemplate: `stage %{x}, ${plain(name)}: %{y:.2f} GiB<extra></extra>` }));
  if (limits.length) {
    // From edge to edge of the outer bars.
    const x = [stages[0] - 0.5, ...stages, stages[stages.length - 1] + 0.5];
    const y = [limits[0], ...limits, limits[limits.length - 1]].map((mib) => mib / 1024);
    traces.push({ type: "scatter", mode: "lines", name: "limit", x, y, line: { color: themed("bad"), dash: "dash", width: 2, shape: "hvh" }, hovertemplate: "limit %{y:.2f} GiB<extra></extra>" });
  }
  const few = stages.length > 20 || window.innerWidth < 700 ? Math.ceil(stages.length / 12) : 1;
  draw(host, traces, { height: 340 + 22 * Math.ceil(names.length / (host.clientWidth > 500 ? 6 : 3)), barmode: "stack", bargap: 0.15, legend: { orientation: "h", y: -0.2, yanchor: "top", x: 0, traceorder: "normal" },
    margin: { l: 50, r: 8, t: 12, b: 30 }, xaxis: { title: { text: "stage", standoff: 4 }, dtick: few }, yaxis: { title: { text: "GiB" }, rangemode: "tozero" } });
}

// Planned memory as lines, and in the same colour what lies on the host as dashes, what a dry-run of the plan saw as dots.
function memoryCurves(host, plan, chosen) {
  const traces = [];
  const add = (one, row, at, dash) => {
    if (!one.time.length) return;
    const name = plain(plan.rows[row]) + ({ dot: ", dry-run", dash: ", on its host" }[dash] || "");
    traces.push({ type: "scatter", mode: "lines", name, legendgroup: name, x: one.time, y: one.mib.map((value) => value / 1024), line: { shape: "hv", width: 1.4, dash, color: themed(`line-${at % 6}`) },
      hovertemplate: `${name}: %{y:.2f} GiB at %{x:.2f}<extra></extra>` });
  };
  chosen.forEach((row, at) => {
    add(plan.memory[row], row, at, "solid");
    if (plan.host.length) add(plan.host[row], row, at, "dash");
    if (plan.dryrun.length) add(plan.dryrun[row], row, at, "dot");
  });
  const limits = [...new Set(plan.memory.map((one) => one.limit).filter((limit) => limit !== null))];
  const shapes = limits.map((limit) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: limit / 1024, y1: limit / 1024, line: { color: themed("bad"), dash: "dash", width: 1.5 } }));
  const annotations = limits.map((limit) => ({ text: `limit ${(limit / 1024).toFixed(1)} GiB`, xref: "paper", x: 1, xanchor: "right", y: limit / 1024, yanchor: "bottom", showarrow: false, font: { color: themed("bad"), size: 11 } }));
  const xaxis = { title: { text: `time, ${plan.unit}` } };
  if (plan.dryrun.length && plan.windows.length > 1) {
    xaxis.range = [plan.windows[0].begin, plan.windows[0].end];
    xaxis.title.text += " (the warm-up; double-click for the whole step)";
  }
  const top = Math.max(0, ...limits, ...plan.memory.map((one) => one.peak), ...plan.host.map((one) => one.peak), ...plan.dryrun.map((one) => one.peak)) / 1024;
  draw(host, traces, { height: 340, shapes, annotations, showlegend: true, xaxis, yaxis: { title: { text: "memory, GiB" }, range: [0, top * 1.08] } });
}
