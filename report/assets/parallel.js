// Strategies as lines over parallel axes; the pages of rankings and of `taylor serve` both draw with it.
"use strict";

// axes: [{ name, shown: (value) => text, spread: whether values lie by size, not one step apart }];
// lines: [{ values: one an axis, null where there is none; title; tone: "best", "tie" or "" }], the best first.
function parallelAxes(host, axes, lines, label, choose) {
  const make = (tag, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const wide = Math.max(host.clientWidth || 640, 64 * axes.length), high = 250, top = 34, low = high - 14, side = 34;
  const svg = make("svg", { class: "parallel", role: "img", viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, "aria-label": label });
  const place = (at) => side + (wide - 2 * side) * (axes.length > 1 ? at / (axes.length - 1) : 0.5);
  const levels = axes.map((axis, at) => {
    const values = [...new Set(lines.map((line) => line.values[at]).filter((value) => value !== null))].sort((a, b) => a - b);
    const [least, most] = [values[0], values[values.length - 1]];
    const share = (value) => (values.length < 2 ? 0.5 : axis.spread ? (value - least) / (most - least) : values.indexOf(value) / (values.length - 1));
    return { y: (value) => low - (low - top) * share(value), ticks: axis.spread ? [...new Set([least, most])] : values.slice(0, 12) };
  });
  // The best are drawn last, above the others.
  [...lines].reverse().forEach((line, back) => {
    const points = line.values.map((value, at) => (value === null ? null : `${place(at).toFixed(1)},${levels[at].y(value).toFixed(1)}`)).filter(Boolean);
    const group = make("g", { class: `strategy ${line.tone}` });
    group.append(make("polyline", { points: points.join(" ") }), make("polyline", { class: "near", points: points.join(" ") }), make("title", {}, line.title));
    group.addEventListener("click", () => choose(lines.length - 1 - back));
    svg.append(group);
  });
  axes.forEach((axis, at) => {
    const x = place(at).toFixed(1);
    svg.append(make("line", { x1: x, x2: x, y1: top, y2: low }), make("text", { x, y: 14, "text-anchor": "middle", class: "axis" }, axis.name));
    for (const value of levels[at].ticks) {
      if (value === undefined) continue;
      const last = at === axes.length - 1;
      svg.append(make("text", { x: place(at) + (last ? -5 : 5), y: levels[at].y(value) + 4, "text-anchor": last ? "end" : "start" }, axis.shown(value)));
    }
  });
  host.replaceChildren(svg);
}
