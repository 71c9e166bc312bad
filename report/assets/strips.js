// Drawings without the charts' library: layers as strips of boxes, and every stage's memory as a small curve.
"use strict";

const KIND_CLASSES = 8;

function total(grid, stage) {
  return grid.reduce((sum, row) => sum + Number(row[stage] || 0), 0);
}

function pieces(counts, unit) {
  return Object.entries(counts).filter(([, count]) => count).map(([name, count]) => `${count} ${name}${unit}`).join(" + ");
}

// layers: [[kind, [vpp][pp]], ...] in model order; recompute: {mode: [vpp][pp]}. In a chunk the first layers are
// the recomputed ones, those of the first mode leading.
function layerStrips(host, legend, layers, recompute) {
  const kinds = [...new Set(layers.map(([kind]) => kind))];
  const modes = [...PALETTE.modes.filter((mode) => mode in recompute), ...Object.keys(recompute).filter((mode) => !PALETTE.modes.includes(mode))];
  const interleaves = layers[0][1].length, stages = layers[0][1][0].length;
  const used = new Set();
  const rows = [];
  for (let stage = 0; stage < stages; stage++) {
    const strip = element("span", { class: "strip" });
    const counts = {}, again = {};
    for (let v = 0; v < interleaves; v++) {
      const chunk = element("span", { class: "chunk" });
      const left = modes.map((mode) => Number(recompute[mode][v][stage]));
      for (const [kind, grid] of layers) {
        for (let i = 0; i < Number(grid[v][stage]); i++) {
          const mode = left.findIndex((count) => count > 0);
          if (mode >= 0) {
            left[mode] -= 1;
            used.add(mode);
            again[modes[mode]] = (again[modes[mode]] || 0) + 1;
          }
          counts[kind] = (counts[kind] || 0) + 1;
          chunk.append(element("span", { class: `layer kind-${kinds.indexOf(kind) % KIND_CLASSES}${mode >= 0 ? ` mode-${Math.min(mode, 1)}` : ""}` }));
        }
      }
      strip.append(chunk);
    }
    const redone = pieces(again, "");
    const told = `stage ${stage}: ${pieces(counts, "")} layers${redone ? `, recomputed: ${redone}` : ""}`;
    strip.setAttribute("role", "img");
    strip.setAttribute("aria-label", told);
    strip.title = told;
    rows.push(element("div", { class: "strip-row" }, element("span", { class: "soft strip-name" }, String(stage)), strip));
  }
  host.replaceChildren(...rows);
  const key = (cls, text) => element("span", { class: "key" }, element("span", { class: `layer ${cls}` }), text);
  legend.replaceChildren(...kinds.map((kind, at) => key(`kind-${at % KIND_CLASSES}`, `${kind} layer`)),
    ...[...used].sort().map((mode) => key(`kind-${Math.max(0, kinds.length - 1) % KIND_CLASSES} mode-${Math.min(mode, 1)}`, modes[mode] === "full" ? "recomputed" : `${modes[mode]} recompute`)),
    ...(interleaves > 1 ? [element("span", { class: "soft" }, "a gap parts the interleaves")] : []));
}

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// A small curve of every stage that has one; pressed ones are drawn larger by `choose`.
function memorySparks(host, plan, chosen, choose) {
  const width = 120, height = 34;
  const limits = plan.memory.map((one) => one.limit).filter((limit) => limit !== null);
  const top = 1.02 * Math.max(1, ...limits, ...plan.memory.map((one) => one.peak));
  const x = (time) => ((time - plan.begin) / Math.max(plan.end - plan.begin, 1e-12) * width).toFixed(1);
  const y = (mib) => (height - (mib / top) * height).toFixed(1);
  const buttons = [];
  plan.memory.forEach((one, row) => {
    if (!one.time.length) return;
    let path = `M${x(one.time[0])} ${y(one.mib[0])}`;
    for (let i = 1; i < one.time.length; i++) path += `H${x(one.time[i])}V${y(one.mib[i])}`;
    path += `H${width}`;
    const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", preserveAspectRatio: "none" });
    drawing.append(svg("path", { d: `${path}V${height}H${x(one.time[0])}Z`, class: "spark-fill" }), svg("path", { d: path, class: "spark-line" }));
    if (one.limit !== null) drawing.append(svg("path", { d: `M0 ${y(one.limit)}H${width}`, class: "spark-limit" }));
    const over = one.limit !== null && one.peak > one.limit + 1e-6;
    const told = `${(one.peak / 1024).toFixed(1)} GiB${over ? ", over" : ""}`;
    const button = element("button", { type: "button", class: over ? "spark over" : "spark", "aria-pressed": String(chosen.includes(row)) },
      element("span", { class: "spark-text" }, element("span", {}, plan.rows[row]), element("span", { class: "soft" }, told)), drawing);
    button.addEventListener("click", () => {
      const at = chosen.indexOf(row);
      if (at < 0) chosen.push(row);
      else if (chosen.length > 1) chosen.splice(at, 1);
      button.setAttribute("aria-pressed", String(chosen.includes(row)));
      choose(chosen);
    });
    buttons.push(button);
  });
  host.replaceChildren(...buttons);
}
