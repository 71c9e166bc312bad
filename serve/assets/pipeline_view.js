"use strict";
const TASKS = { forward: "前向", backward: "反向", "weight gradient": "权重梯度", optimizer: "优化器", recompute: "重计算", communication: "通信",
  other: "其他", "whole step": "整步", "warm-up": "预热", "steady state": "稳态", drain: "收尾" };
const taskWord = (name) => language === "zh" ? TASKS[name] ?? name : name;

/* What every stage does over the step, above the memory that it holds, over the same time. */

function drawPipeline(host, view) {
  host.hidden = !view;
  host.classList.remove("old");
  if (!view) return;
  const wide = host.clientWidth || 640, left = 40, rows = view.rows.length, high = Math.max(8, Math.min(18, 400 / rows));
  const x = (place) => left + (wide - left - 2) * place, first = 18, bottom = first + rows * high, low = bottom + 190;
  const svg = element("svg", null, { class: "pipeline", role: "img", viewBox: `0 0 ${wide} ${low + 22}`, width: wide, height: low + 22 });
  for (const one of view.windows) {
    svg.append(element("text", taskWord(one.name), { x: x(one.left), y: 12 }));
    timeLabels(svg, view, one, x, low + 15);
  }
  taskBlocks(svg, view, x, first, high);
  const every = Math.ceil(12 / high);
  view.rows.forEach((row, at) => {
    if (at % every === 0) svg.append(element("text", String(row.stage), { x: left - 6, y: first + (at + 0.5) * high + 4, "text-anchor": "end" }));
  });
  memoryLines(svg, view, x, bottom + 34, low);
  const fullest = fullestOf(view), said = fill("fullest", { stage: fullest.stage, peak: gib(fullest.peak) });
  svg.setAttribute("aria-label", `${word("pipeline")}: ${said}`);
  const legend = element("p", null, { class: "legend" });
  legend.append(...Object.values(view.kinds).map(([name, colour]) => keyOf(taskWord(name), colour)), keyOf(said, "var(--accent)"));
  host.replaceChildren(element("h3", word("pipeline")), svg, legend);
}

const fullestOf = (view) => view.rows.reduce((one, other) => (other.peak > one.peak ? other : one));

function keyOf(text, colour) {
  const shown = element("span", text), mark = element("i", null);
  mark.style.background = colour;
  shown.prepend(mark);
  return shown;
}

function timeLabels(svg, view, one, x, y) {
  const text = (value) => view.unit === "ms" ? ms(value) : number(value, 1), pixels = x(one.right) - x(one.left);
  svg.append(element("text", text(one.begin), { x: x(one.left), y }));
  if (pixels > 150) svg.append(element("text", text(one.end), { x: x(one.right), y, "text-anchor": "end" }));
}

/* One path for all blocks of a colour; a block that is wide enough has its micro-batch's number. */

function taskBlocks(svg, view, x, first, high) {
  for (const [kind, [, colour]] of Object.entries(view.kinds)) {
    const path = view.rows.map((row, at) => row.spans.filter((span) => String(span[2]) === kind)
      .map(([begin, end]) => `M${x(begin).toFixed(1)} ${(first + at * high + 0.5).toFixed(1)}H${x(end).toFixed(1)}v${(high - 1).toFixed(1)}H${x(begin).toFixed(1)}Z`).join("")).join("");
    svg.append(element("path", null, { class: "task", d: path, fill: colour }));
  }
  view.rows.forEach((row, at) => {
    for (const [begin, end, kind, micro] of row.spans) {
      if (high < 11 || kind < 0 || micro < 0 || x(end) - x(begin) < 6 * String(micro).length + 3) continue;
      svg.append(element("text", String(micro), { class: kind === 2 ? "number light" : "number", x: (x(begin) + x(end)) / 2, y: first + (at + 0.5) * high + 3, "text-anchor": "middle" }));
    }
  });
}

/* Memory of every stage as steps, that of the fullest one above the others, under the lowest limit. */

function memoryLines(svg, view, x, top, low) {
  const limits = view.rows.map((row) => row.limit).filter((limit) => limit !== null), limit = limits.length ? Math.min(...limits) : null;
  const most = 1.08 * Math.max(limit ?? 0, ...view.rows.map((row) => row.peak)), y = (mib) => low - (low - top) * mib / most;
  svg.append(element("text", word("held"), { x: 40, y: top - 8 }));
  for (const mib of memoryTicks(most)) {
    svg.append(element("line", null, { class: "grid", x1: 40, x2: x(1), y1: y(mib), y2: y(mib) }),
      element("text", number(mib / 1024), { x: 34, y: y(mib) + 4, "text-anchor": "end" }));
  }
  const fullest = fullestOf(view);
  for (const row of [...view.rows.filter((one) => one !== fullest), fullest]) {
    const path = row.mib.map((points, window) => points.map(([place, mib], at) =>
      at ? `H${x(place).toFixed(1)}V${y(mib).toFixed(1)}` : `M${x(place).toFixed(1)} ${y(mib).toFixed(1)}`).join("") + `H${x(view.windows[window].right).toFixed(1)}`).join("");
    const line = element("path", null, { class: row === fullest ? "held fullest" : "held", d: path });
    line.append(element("title", `${word("stage")} ${row.stage}: ${gib(row.peak)} GiB`));
    svg.append(line);
  }
  if (limit !== null) svg.append(element("line", null, { class: "limit", x1: 40, x2: x(1), y1: y(limit), y2: y(limit) }),
    element("text", `${word("limit_at_risk")} ${gib(limit)}`, { x: x(1), y: y(limit) - 4, "text-anchor": "end" }));
}
