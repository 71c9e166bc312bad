// Charts drawn with the inlined plotly. Names from the data pass through `plain`, since plotly reads a few tags.
"use strict";

const FONT = { family: "system-ui, sans-serif", size: 12 };

function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function draw(host, traces, layout) {
  const base = { font: FONT, margin: { l: 60, r: 16, t: 30, b: 44 }, hovermode: "closest", legend: { orientation: "h", y: 1.12, x: 0 } };
  return Plotly.react(host, traces, Object.assign(base, layout), { displaylogo: false, showSendToCloud: false, plotlyServerURL: "", responsive: true, modeBarButtonsToRemove: ["lasso2d", "select2d"] });
}

function tradeOff(host, candidates, timeTitle, choose) {
  const groups = new Map();
  for (const one of candidates) {
    if (one.time === null || one.peak === null) continue;
    if (!groups.has(one.status)) groups.set(one.status, []);
    groups.get(one.status).push(one);
  }
  const symbols = ["circle", "diamond", "square", "x"];
  const traces = [...groups].map(([status, list], at) => ({
    type: "scatter", mode: "markers", name: plain(status), x: list.map((one) => one.peak), y: list.map((one) => one.time),
    customdata: list.map((one) => one.index), text: list.map((one) => plain(one.name)),
    marker: { size: 8, symbol: symbols[at % symbols.length], color: PALETTE.lines[at % PALETTE.lines.length], opacity: 0.75 },
    hovertemplate: "%{text}<br>%{x:.1f} GiB, %{y:,.2f}<extra></extra>",
  }));
  const front = [];
  const solved = [...groups.values()].flat().sort((a, b) => a.peak - b.peak || a.time - b.time);
  for (const one of solved) if (!front.length || one.time < front[front.length - 1].time) front.push(one);
  traces.push({ type: "scatter", mode: "lines", name: "best for its memory", x: front.map((one) => one.peak), y: front.map((one) => one.time),
    line: { color: "#555555", dash: "dot", shape: "hv" }, hoverinfo: "skip" });
  draw(host, traces, { height: 340, xaxis: { title: { text: "peak memory of the heaviest stage, GiB" } }, yaxis: { title: { text: timeTitle } } });
  host.on("plotly_click", (event) => {
    const index = event.points[0].customdata;
    if (index !== undefined) choose(index);
  });
}

function gaps(host, candidates) {
  const known = candidates.filter((one) => one.gap !== null);
  const data = { x: known.map((one) => one.index + 1), y: known.map((one) => 100 * one.gap), text: known.map((one) => plain(one.name)),
    hovertemplate: "#%{x} %{text}<br>gap %{y:.4f} %<extra></extra>" };
  // A thousand bars cost half a second; one filled path says the same.
  const look = known.length <= 100 ? { type: "bar", textposition: "none", marker: { color: PALETTE.lines[0] } }
    : { type: "scatter", mode: "lines", fill: "tozeroy", line: { shape: "hvh", width: 1, color: PALETTE.lines[0] } };
  draw(host, [Object.assign(data, look)],
  { height: 340, xaxis: { title: { text: "rank" } }, yaxis: { title: { text: "proven gap, %" }, rangemode: "tozero",
    range: known.some((one) => one.gap > 1e-6) ? undefined : [0, 1] },
    annotations: known.some((one) => one.gap > 1e-6) ? [] : [{ text: known.length ? "every gap is closed: all proven optimal" : "no gap is known", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5 }] });
}

function progressChart(host, points) {
  const line = (name, at, colour) => ({ type: "scatter", mode: "lines+markers", name, line: { shape: "hv", color: colour }, marker: { size: 4 },
    x: points.filter((p) => p[at] !== null).map((p) => p[0]), y: points.filter((p) => p[at] !== null).map((p) => p[at]) });
  draw(host, [line("best plan", 1, PALETTE.lines[1]), line("proven bound", 2, PALETTE.lines[0])],
    { height: 300, xaxis: { title: { text: "seconds" } }, yaxis: { title: { text: "step time, units" } } });
}

function stageMemory(host, peaks, limits) {
  const gib = (values) => values.map((value) => value / 1024);
  const stages = peaks.map((_, s) => s);
  const over = peaks.map((peak, s) => limits.length && peak > limits[s]);
  const traces = [{ type: "bar", name: "peak", x: stages, y: gib(peaks), marker: { color: over.map((bad) => (bad ? "#b2182b" : "#8ecdf2")), line: { color: "#333333", width: 0.5 } },
    hovertemplate: "stage %{x}: %{y:.2f} GiB<extra></extra>" }];
  if (limits.length) traces.push({ type: "scatter", mode: "lines", name: "limit", x: stages, y: gib(limits), line: { color: "#000000", dash: "dash", shape: "hvh" },
    hovertemplate: "limit %{y:.2f} GiB<extra></extra>" });
  draw(host, traces, { height: 300, xaxis: { title: { text: "stage" }, dtick: stages.length > 20 ? 4 : 1 }, yaxis: { title: { text: "peak memory, GiB" }, rangemode: "tozero" } });
}

// layers: {kind: [pp]}, recompute: {mode: [pp]}; recomputed layers are a hatched bar beside the layers.
function stageLayers(host, layers, recompute) {
  const kinds = Object.entries(layers), modes = Object.entries(recompute);
  const stages = (kinds[0] || modes[0] || ["", []])[1].map((_, s) => s);
  const traces = kinds.map(([kind, counts], at) => ({ type: "bar", name: plain(`${kind} layers`), x: stages, y: counts, offsetgroup: "layers",
    marker: { color: ["#d9d9d9", "#8ecdf2", "#0072b2", "#000000"][at % 4], line: { color: "#333333", width: 0.5 } } }));
  modes.forEach(([mode, counts], at) => traces.push({ type: "bar", name: plain(`${mode} recompute`), x: stages, y: counts, offsetgroup: "recompute",
    marker: { color: PALETTE.recompute, pattern: { shape: at ? "." : "/", fgcolor: "#7f3b08" }, line: { color: "#333333", width: 0.5 } } }));
  draw(host, traces, { height: 300, barmode: "stack", xaxis: { title: { text: "stage" }, dtick: stages.length > 20 ? 4 : 1 }, yaxis: { title: { text: "layers" }, rangemode: "tozero" } });
}

// One path for all rectangles of a colour: thousands of tasks stay quick.
function rectangles(tasks, pick, from, to) {
  const x = [], y = [];
  for (let i = 0; i < tasks.row.length; i++) {
    if (!pick(i)) continue;
    const a = from(i), b = to(i);
    if (b <= a) continue;
    const low = tasks.row[i] - 0.45 + 0.9 * (tasks.lane[i] / tasks.lanes[i]), high = low + 0.9 / tasks.lanes[i];
    x.push(a, b, b, a, a, null);
    y.push(low, low, high, high, low, null);
  }
  return { x, y };
}

// What the page's data leave out where it follows from the rest: lanes of one lane, names of planned tasks.
function complete(tasks) {
  if (!tasks.lane.length) {
    tasks.lane = tasks.row.map(() => 0);
    tasks.lanes = tasks.row.map(() => 1);
  }
  if (!tasks.name.length) {
    const interleaved = tasks.interleave.some((v) => v > 0);
    tasks.name = tasks.kind.map((kind, i) => PALETTE.names[kind] + (tasks.micro_batch[i] < 0 ? "" : ` ${tasks.micro_batch[i]}`)
      + (tasks.split.length ? `.${tasks.split[i]}` : "") + (interleaved && tasks.interleave[i] >= 0 ? ` (interleave ${tasks.interleave[i]})` : ""));
  }
  return tasks;
}

function pipeline(host, plan, sameSpan) {
  const traces = [], layout = { height: Math.min(1400, 110 + 24 * plan.rows.length), shapes: [], annotations: [] };
  const seen = new Set();
  let left = 0;
  plan.windows.forEach((view, at) => {
    const suffix = at ? String(at + 1) : "";
    const gap = at < plan.windows.length - 1 ? 0.025 : 0;
    const right = left + view.share;
    const tasks = complete(view.tasks);
    const end = plan.windows.length === 1 && sameSpan ? view.begin + sameSpan : view.end;
    layout[`xaxis${suffix}`] = { domain: [left, Math.max(left + 0.05, right - gap)], range: [view.begin, end], title: { text: at === 0 ? `time, ${plan.unit}` : "" }, anchor: "y", showgrid: false, zeroline: false };
    layout.annotations.push({ text: plain(view.name), xref: "paper", yref: "paper", x: (left + right - gap) / 2, y: 1, yanchor: "bottom", yshift: plan.marks.length ? 14 : 0, showarrow: false, font: { size: 12 } });
    const groups = new Map();
    // Measured jobs have no interleave (-1): they look like those of the first.
    const interleaves = tasks.interleave.map((v) => Math.max(0, v));
    tasks.kind.forEach((kind, i) => groups.set(`${kind}/${interleaves[i]}`, [kind, interleaves[i]]));
    const add = (key, name, colour, pattern, shape) => {
      if (!shape.x.length) return;
      const trace = { type: "scatter", mode: "lines", fill: "toself", x: shape.x, y: shape.y, xaxis: `x${suffix}`, name, legendgroup: key, showlegend: !seen.has(key),
        line: { color: "#333333", width: 0.4 }, fillcolor: colour, hoverinfo: "skip" };
      if (pattern) trace.fillpattern = { shape: pattern, fgcolor: "#7f3b08", bgcolor: colour, size: 5, solidity: 0.3 };
      seen.add(key);
      traces.push(trace);
    };
    for (const [key, [kind, interleave]] of [...groups].sort((a, b) => (a[0] < b[0] ? -1 : 1))) {
      const name = PALETTE.names[kind] + (interleave > 0 ? ` (interleave ${interleave})` : "");
      add(key, name, PALETTE.shades[kind][interleave % PALETTE.shades[kind].length], "",
        rectangles(tasks, (i) => tasks.kind[i] === kind && interleaves[i] === interleave, (i) => tasks.start[i] + tasks.recompute[i], (i) => tasks.end[i]));
    }
    add("recompute", "recompute (in the backward)", PALETTE.recompute, "/",
      rectangles(tasks, (i) => tasks.recompute[i] > 0, (i) => tasks.start[i], (i) => tasks.start[i] + tasks.recompute[i]));
    // Numbers stand only in blocks that are wide enough for them (about 6 pixels a digit).
    const pixels = (Math.max(400, host.clientWidth) - 100) * view.share / Math.max(view.end - view.begin, 1e-12);
    const fits = (i, text) => (tasks.end[i] - tasks.start[i] - tasks.recompute[i]) * pixels > 6 * text.length + 2;
    traces.push({ type: "scatter", mode: "markers+text", marker: { size: 6, opacity: 0 }, xaxis: `x${suffix}`, showlegend: false, textfont: { size: 9 },
      x: tasks.start.map((a, i) => (a + tasks.recompute[i] + tasks.end[i]) / 2), y: tasks.row.map((row, i) => row - 0.45 + 0.9 * ((tasks.lane[i] + 0.5) / tasks.lanes[i])),
      text: tasks.micro_batch.map((m, i) => (m >= 0 && fits(i, String(m)) ? String(m) : "")), customdata: tasks.name.map((name, i) => [plain(name), plain(plan.rows[tasks.row[i]]), tasks.start[i], tasks.end[i]]),
      hovertemplate: `%{customdata[1]}: %{customdata[0]}<br>%{customdata[2]:.4f} to %{customdata[3]:.4f} ${plan.unit}<extra></extra>` });
    for (const [time, name] of plan.marks) {
      if (time < view.begin || time > view.end) continue;
      layout.shapes.push({ type: "line", xref: `x${suffix}`, yref: "paper", x0: time, x1: time, y0: 0, y1: 1, line: { dash: "dot", width: 1 } });
      layout.annotations.push({ text: plain(name), xref: `x${suffix}`, yref: "paper", x: time, y: 1, yanchor: "bottom", showarrow: false, font: { size: 9 } });
    }
    left = right;
  });
  const labelled = plan.rows.length > 40 ? plan.rows.map((_, i) => i).filter((i) => i % 4 === 0) : plan.rows.map((_, i) => i);
  layout.yaxis = { autorange: false, range: [plan.rows.length - 0.4, -0.6], tickvals: labelled, ticktext: labelled.map((i) => plain(plan.rows[i])), showgrid: false, zeroline: false, automargin: true };
  // Above the windows' names: 24 pixels over the plot, whatever its height.
  layout.legend = { orientation: "h", y: 1 + (plan.marks.length ? 34 : 22) / (layout.height - 128), yanchor: "bottom", x: 0 };
  layout.margin = { l: 80, r: 16, t: plan.marks.length ? 84 : 70, b: 44 };
  draw(host, traces, layout);
}

// Planned memory as lines and, where there is a dry-run of the plan, what it saw as dots of the same colour.
function memoryCurves(host, plan) {
  const traces = [], first = plan.dryrun.findIndex((one) => one.time.length);
  const add = (one, row, kind, dash) => {
    if (!one.time.length) return;
    const name = plain(plan.rows[row]);
    traces.push({ type: "scatter", mode: "lines", name: kind ? "dotted: by dry-run" : name, legendgroup: name, showlegend: !kind || row === first, x: one.time, y: one.mib.map((value) => value / 1024), line: { shape: "hv", width: 1.3, dash, color: `hsl(${Math.round((360 * row) / plan.rows.length)} 65% 42%)` },
      hovertemplate: `${name} ${kind}: %{y:.2f} GiB at %{x:.2f}<extra></extra>` });
  };
  plan.memory.forEach((one, row) => {
    add(one, row, "", "solid");
    if (plan.dryrun.length) add(plan.dryrun[row], row, "dry-run", "dot");
  });
  const limits = [...new Set(plan.memory.map((one) => one.limit).filter((limit) => limit !== null))];
  const shapes = limits.map((limit) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: limit / 1024, y1: limit / 1024, line: { color: "#b2182b", dash: "dash", width: 1.5 } }));
  const annotations = limits.map((limit) => ({ text: `limit ${(limit / 1024).toFixed(1)} GiB`, xref: "paper", x: 1, xanchor: "right", y: limit / 1024, yanchor: "bottom", showarrow: false, font: { color: "#b2182b", size: 11 } }));
  const xaxis = { title: { text: `time, ${plan.unit}` } };
  if (first >= 0 && plan.windows.length > 1) {
    xaxis.range = [plan.windows[0].begin, plan.windows[0].end];
    xaxis.title.text += " (the warm-up; double-click for the whole step)";
  }
  const top = Math.max(0, ...limits, ...plan.memory.map((one) => one.peak), ...plan.dryrun.map((one) => one.peak)) / 1024;
  draw(host, traces, { height: 340, shapes, annotations, showlegend: plan.memory.length <= 32, legend: { orientation: "v" }, xaxis, yaxis: { title: { text: "memory, GiB" }, range: [0, top * 1.06] } });
}
