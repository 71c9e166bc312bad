// The pipeline: a row a stage or device, from the whole step down to one micro-batch.
"use strict";

// What the page's data leave out where it follows from the rest: lanes of one lane, names of planned tasks.
function complete(tasks) {
  if (!tasks.lane.length) {
    tasks.lane = tasks.row.map(() => 0);
    tasks.lanes = tasks.row.map(() => 1);
  }
  if (!tasks.name.length) {
    const interleaved = tasks.interleave.some((v) => v > 0);
    tasks.name = tasks.kind.map((kind, i) => PALETTE.names[kind] + (tasks.micro_batch[i] < 0 ? "" : ` ${tasks.micro_batch[i]}`)
      + (tasks.split.length ? `.${tasks.split[i]}` : "") + (interleaved && tasks.interleave[i] >= 0 ? ` (virtual stage ${tasks.interleave[i]})` : ""));
  }
  return tasks;
}

// What of a step a reader may look at, the first one first.
function viewsOf(plan) {
  const several = plan.windows.length > 1, wide = window.innerWidth >= 700;
  const all = plan.marks.length > 1 ? "all steps" : "whole step";
  const whole = { name: all, kind: "overview" }, parts = { name: "three parts", kind: "parts" };
  const views = several ? [...(wide ? [parts, whole] : [whole]), ...plan.windows.map((view, at) => ({ name: view.name, kind: "window", at }))]
    : [{ name: all, kind: "window", at: 0 }];
  const life = longestLife(plan);
  if (life) views.push({ name: `one micro-batch (${life.micro_batch})`, kind: "life", at: life.at, life });
  return views;
}

// The micro-batch of which a window shows most tasks, with the time that they take; null in a measurement without any.
function longestLife(plan) {
  let best = null;
  plan.windows.forEach((view, at) => {
    const seen = new Map();
    view.tasks.micro_batch.forEach((m, i) => {
      if (m < 0) return;
      // A measurement has the same numbers in every step.
      const key = `${m}/${plan.marks.filter(([time]) => time <= view.tasks.start[i]).length}`;
      const one = seen.get(key) || { micro_batch: m, at, count: 0, begin: Infinity, end: -Infinity };
      one.count += 1;
      one.begin = Math.min(one.begin, view.tasks.start[i]);
      one.end = Math.max(one.end, view.tasks.end[i]);
      seen.set(key, one);
    });
    for (const one of seen.values()) if (!best || one.count > best.count) best = one;
  });
  return best && best.count > 2 ? best : null;
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

class PipelineChart {
  // marked: { found: tasks to outline, followed: { at, i } or null, tell: what shows the statistics, press: a click on a task }.
  constructor(host, plan, span, marked) {
    this.host = host;
    this.marked = marked;
    this.parts = [];
    this.plan = plan;
    this.span = span;
    this.traces = [];
    this.seen = new Set();
    this.layout = { height: Math.min(1400, 120 + Math.max(16, Math.min(24, 900 / plan.rows.length)) * plan.rows.length), shapes: [], annotations: [] };
    // Names of rows inside the plot would cover it: on a narrow screen stages keep their number alone.
    this.labels = plan.rows.map((name) => (window.innerWidth < 700 ? name.replace(/^stage /, "") : name));
  }

  show(view) {
    const plan = this.plan;
    if (view.kind === "overview") this.overview();
    else if (view.kind === "parts") {
      let left = 0;
      plan.windows.forEach((part, at) => {
        const gap = at < plan.windows.length - 1 ? 0.025 : 0;
        this.part(part, at, left, Math.max(left + 0.05, left + part.share - gap), [part.begin, part.end], part.name);
        left += part.share;
      });
    } else if (view.kind === "life") {
      const room = 0.03 * (view.life.end - view.life.begin);
      this.part(plan.windows[view.at], view.at, 0, 1, [view.life.begin - room, view.life.end + room], "", view.life.micro_batch);
    } else {
      const part = plan.windows[view.at];
      const end = plan.windows.length === 1 && this.span ? part.begin + this.span : part.end;
      this.part(part, view.at, 0, 1, [part.begin, end], "");
    }
    this.finish();
  }

  axis(left, right, range, name) {
    const suffix = this.axes ? String(this.axes + 1) : "";
    this.axes = (this.axes || 0) + 1;
    this.layout[`xaxis${suffix}`] = { domain: [left, right], range, title: { text: this.axes === 1 ? `time, ${this.plan.unit}` : "" }, anchor: "y", showgrid: false, zeroline: false, nticks: Math.max(3, Math.round((right - left) * this.host.clientWidth / 90)) };
    if (name) this.layout.annotations.push({ text: plain(name), xref: "paper", yref: "paper", x: (left + right) / 2, y: 1, yanchor: "bottom", yshift: this.plan.marks.length ? 14 : 0, showarrow: false, font: { size: 12 } });
    return suffix;
  }

  add(suffix, key, name, colour, pattern, shape, outlined) {
    if (!shape.x.length) return;
    const trace = { type: "scatter", mode: "lines", fill: "toself", x: shape.x, y: shape.y, xaxis: `x${suffix}`, name, legendgroup: key, showlegend: !this.seen.has(key),
      line: { color: outlined ? themed(outlined) : "#333333", width: outlined ? 2.5 : 0.4 }, fillcolor: colour, hoverinfo: "skip" };
    if (pattern) trace.fillpattern = { shape: pattern, fgcolor: "#7f3b08", bgcolor: colour, size: 5, solidity: 0.3 };
    this.seen.add(key);
    this.traces.push(trace);
  }

  fills(kind) {
    return PALETTE.shades[this.plan.interleaves - 1][kind];
  }

  part(view, at, left, right, range, name, followed) {
    const plan = this.plan, tasks = complete(view.tasks), suffix = this.axis(left, right, range, name);
    this.parts.push({ suffix, at, tasks, range });
    // Measured jobs have no interleave (-1): they look like those of the first.
    const interleaves = tasks.interleave.map((v) => Math.max(0, v));
    const groups = new Map();
    tasks.kind.forEach((kind, i) => groups.set(`${kind}/${interleaves[i]}`, [kind, interleaves[i]]));
    const colour = (kind, v) => this.fills(kind)[v % this.fills(kind).length];
    for (const [key, [kind, interleave]] of [...groups].sort((a, b) => a[1][0] - b[1][0] || a[1][1] - b[1][1])) {
      const named = PALETTE.names[kind] + (plan.interleaves > 1 && kind < 3 ? ` ${interleave}` : "");
      this.add(suffix, key, named, colour(kind, interleave), "",
        rectangles(tasks, (i) => tasks.kind[i] === kind && interleaves[i] === interleave, (i) => tasks.start[i] + tasks.recompute[i], (i) => tasks.end[i]));
    }
    this.add(suffix, "recompute", "recompute (in the backward)", PALETTE.recompute, "/",
      rectangles(tasks, (i) => tasks.recompute[i] > 0, (i) => tasks.start[i], (i) => tasks.start[i] + tasks.recompute[i]));
    this.mark(tasks, suffix, at, followed);
    // Numbers stand only in blocks that are wide enough for them (about 6 pixels a digit).
    const pixels = (Math.max(250, this.host.clientWidth) - 100) * (right - left) / Math.max(range[1] - range[0], 1e-12);
    const fits = (i, text) => (tasks.end[i] - tasks.start[i] - tasks.recompute[i]) * pixels > 6 * text.length + 2;
    const inks = tasks.kind.map((kind, i) => (PALETTE.dark.includes(colour(kind, interleaves[i])) ? "#ffffff" : "#000000"));
    this.traces.push({ type: "scatter", mode: "markers+text", marker: { size: 6, opacity: 0 }, xaxis: `x${suffix}`, showlegend: false, textfont: { size: 9, color: inks },
      x: tasks.start.map((a, i) => (a + tasks.recompute[i] + tasks.end[i]) / 2), y: tasks.row.map((row, i) => row - 0.45 + 0.9 * ((tasks.lane[i] + 0.5) / tasks.lanes[i])),
      meta: at, text: tasks.micro_batch.map((m, i) => (m >= 0 && fits(i, String(m)) ? String(m) : "")), customdata: tasks.name.map((task, i) => [plain(task), plain(plan.rows[tasks.row[i]]), tasks.start[i], tasks.end[i]]),
      hovertemplate: `%{customdata[1]}: %{customdata[0]}<br>%{customdata[2]:.4f} to %{customdata[3]:.4f} ${plan.unit}<extra></extra>` });
    for (const [time, mark] of plan.marks) {
      if (time < range[0] || time > range[1]) continue;
      this.layout.shapes.push({ type: "line", xref: `x${suffix}`, yref: "paper", x0: time, x1: time, y0: 0, y1: 1, line: { dash: "dot", width: 1, color: themed("ink") } });
      this.layout.annotations.push({ text: plain(mark), xref: `x${suffix}`, yref: "paper", x: time, y: 1, yanchor: "bottom", showarrow: false, font: { size: 9 } });
    }
  }

  // Outlines of what was found and followed, and arrows between the tasks of the latter.
  mark(tasks, suffix, at, followed) {
    const { found, followed: pressed } = this.marked, outline = (key, name, colour, pick) => this.add(suffix, key, name, "rgba(0,0,0,0)", "",
      rectangles(tasks, pick, (i) => tasks.start[i], (i) => tasks.end[i]), colour);
    const one = pressed && this.plan.windows[pressed.at].tasks;
    const micro = followed !== undefined ? followed : one ? one.micro_batch[pressed.i] : -1;
    const chosen = (i) => (micro >= 0 ? tasks.micro_batch[i] === micro : Boolean(one) && pressed.at === at && pressed.i === i);
    if (micro >= 0 || one) {
      outline("followed", micro >= 0 ? `micro-batch ${micro}` : "chosen task", "ink", chosen);
      const linked = micro >= 0 ? chosen : (i) => chosen(i) || tasks.flows.some(([from, to]) => (from === i && chosen(to)) || (to === i && chosen(from)));
      this.layout.annotations.push(...flowArrows(tasks, suffix, linked));
    }
    const mine = new Set(found.filter((match) => match.at === at).map((match) => match.i));
    if (mine.size) outline("found", "found", "bad", (i) => mine.has(i));
  }

  // The whole of a big step in slices, each in the colour of what fills most of it.
  overview() {
    const plan = this.plan, suffix = this.axis(0, 1, [plan.begin, plan.end], "");
    this.parts.push({ suffix, at: -1, tasks: null, range: [plan.begin, plan.end] });
    const groups = new Map();
    plan.overview.forEach((marks, row) => {
      const width = (plan.end - plan.begin) / marks.length;
      for (let a = 0, b = 0; a < marks.length; a = b) {
        while (b < marks.length && marks[b] === marks[a]) b++;
        if (marks[a] === PALETTE.idle) continue;
        if (!groups.has(marks[a])) groups.set(marks[a], { x: [], y: [] });
        const shape = groups.get(marks[a]), from = plan.begin + a * width, to = plan.begin + b * width;
        shape.x.push(from, to, to, from, from, null);
        shape.y.push(row - 0.45, row - 0.45, row + 0.45, row + 0.45, row - 0.45, null);
      }
    });
    for (const [mark, shape] of groups) {
      const kind = PALETTE.marks[mark];
      const again = kind < 0;
      this.add(suffix, mark, again ? "mostly recompute" : `mostly ${PALETTE.names[kind]}`, again ? PALETTE.recompute : this.fills(kind)[0], "", shape);
    }
    for (const trace of this.traces) trace.line.width = 0;
  }

  finish() {
    const rows = this.labels, every = rows.length > 40 ? 4 : 1;
    const shown = rows.map((_, i) => i).filter((i) => i % every === 0);
    this.layout.yaxis = { autorange: false, fixedrange: true, range: [rows.length - 0.4, -0.6], tickvals: shown, ticktext: shown.map((i) => plain(rows[i])), showgrid: false, zeroline: false, automargin: true };
    // Above the windows' names: 24 pixels over the plot, whatever its height.
    this.layout.legend = { orientation: "h", y: 1 + (this.plan.marks.length ? 34 : 22) / (this.layout.height - 128), yanchor: "bottom", x: 0 };
    this.layout.margin = { l: window.innerWidth < 700 ? 28 : 80, r: 12, t: this.plan.marks.length ? 84 : 70, b: 44 };
    this.layout.dragmode = "zoom";
    draw(this.host, this.traces, this.layout, true);
    this.host.removeAllListeners("plotly_relayout");
    this.host.on("plotly_relayout", (event) => this.measure(event));
    this.host.removeAllListeners("plotly_click");
    this.host.on("plotly_click", ({ points: [point] }) => { if (point.data.meta !== undefined) this.marked.press({ at: point.data.meta, i: point.pointNumber }); });
    this.measure({});
  }

  // Statistics of the range that was dragged, else of all that is shown.
  measure(event) {
    const moved = this.parts.filter(({ suffix }) => Object.keys(event).some((key) => key.startsWith(`xaxis${suffix}.`)));
    const within = ({ suffix, tasks, range }) => {
      const axis = this.host.layout[`xaxis${suffix}`].range.map(Number), whole = this.parts.length > 1 || !tasks ? range : [Math.min(range[0], axis[0]), Math.max(range[1], axis[1])];
      return { tasks, range: [Math.max(whole[0], axis[0]), Math.min(whole[1], axis[1])] };
    };
    const ranges = (moved.length === 1 ? moved : this.parts).map(within).filter(({ range }) => range[1] > range[0]);
    if (ranges.length) this.marked.tell(ranges);
  }

  // Zoom to a task of a part that is drawn; whether it is.
  reach(match) {
    const part = this.parts.find((one) => one.at === match.at && one.tasks);
    if (!part) return false;
    const begin = part.tasks.start[match.i], end = part.tasks.end[match.i], around = 6 * (end - begin);
    Plotly.relayout(this.host, { [`xaxis${part.suffix}.range`]: [begin - around, end + around] });
    return true;
  }
}
