// Puts the page together from the data embedded in it: ranking, trade-off, chosen candidate, pipelines, pruning.
"use strict";

const REPORT = JSON.parse(document.getElementById("report-data").textContent);
const PALETTE = REPORT.palette;
const byId = (id) => document.getElementById(id);

function figure(text) {
  return text === "" || text === undefined || Number.isNaN(Number(text)) ? null : Number(text);
}

function list(text) {
  try {
    const data = JSON.parse(text);
    return Array.isArray(data) ? data : [];
  } catch { return []; }
}

function grids(text) {
  try {
    const data = JSON.parse(text);
    return data && typeof data === "object" && !Array.isArray(data) ? data : Array.isArray(data) ? { full: data } : {};
  } catch { return {}; }
}

// Sum over the interleaves: [vpp][pp] -> [pp].
function overStages(grid) {
  const rows = grid.length && Array.isArray(grid[0]) ? grid : [grid];
  return rows[0].map((_, s) => rows.reduce((sum, row) => sum + Number(row[s]), 0));
}

function byStage(grouped) {
  return Object.fromEntries(Object.entries(grouped).filter(([, grid]) => grid.length).map(([name, grid]) => [name, overStages(grid)]));
}

const candidates = REPORT.rows.map((row, index) => {
  const peaks = list(row.peak_memory).map(Number);
  return { index, row, name: REPORT.names[index], status: row.status || "unknown", gap: figure(row.gap), peaks, limits: list(row.memory_limit).map(Number),
    time: figure(REPORT.in_ms ? row.cost : row.objective), peak: peaks.length ? Math.max(...peaks) / 1024 : null };
});
const timeTitle = REPORT.in_ms ? "step time, ms" : "step time, units";

function fixed(digits) {
  return (text) => (figure(text) === null ? text : Number(text).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
}

function percent(text) {
  const value = figure(text);
  return value === null ? text : value <= 1e-6 ? "0 %" : value < 1e-4 ? "<0.01 %" : `${(100 * value).toFixed(2)} %`;
}

const SHOWN = { cost: fixed(1), objective: fixed(3), bound: fixed(3), gap: percent, time: fixed(2) };
const TITLES = { cost: "step ms", micro_batches: "m", time: "solve s", peak_memory: "peak GiB" };

function rankingColumns() {
  const columns = [{ title: "#", number: true, raw: (one) => String(one.index + 1), shown: (one) => String(one.index + 1) }];
  for (const name of REPORT.columns) {
    const short = REPORT.short[name];
    const shown = short ? (one) => short[one.index] : (one) => (SHOWN[name] ? SHOWN[name](one.row[name]) : one.row[name]);
    // Memory by stage sorts by the heaviest stage.
    const raw = name === "peak_memory" ? (one) => (one.peak === null ? "" : String(one.peak)) : (one) => one.row[name];
    columns.push({ title: TITLES[name] || name, name, number: REPORT.numeric.includes(name), wide: Boolean(short) || name === "reason", raw, shown });
  }
  return columns;
}

function facts(host, pairs) {
  host.replaceChildren(...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function choose(index) {
  const one = candidates[index];
  byId("chosen-name").textContent = `#${index + 1} ${one.name}`;
  facts(byId("chosen-facts"), REPORT.all_columns.filter((name) => one.row[name] !== "").map((name) => [name, one.row[name]]));
  stageMemory(byId("chosen-memory"), one.peaks, one.limits.length === one.peaks.length ? one.limits : []);
  const plan = REPORT.plans[REPORT.plan_of[index]];
  const layers = byStage(grids(one.row.layers));
  const kinds = Object.keys(layers).length || !plan ? layers : plan.layers;
  stageLayers(byId("chosen-layers"), kinds, byStage(grids(one.row.recompute)));
  if (plan) {
    byId("plan-a").value = REPORT.plan_of[index];
    drawPlans();
  }
  byId("chosen-plan").textContent = plan ? "Its pipeline is drawn below." : "Its pipeline is not drawn in this page; timeline-tool or pipeline-parallel --html draws it.";
}

function showPlan(suffix, name, sameSpan) {
  const section = byId(`drawing-${suffix}`);
  const plan = REPORT.plans[name];
  section.hidden = !plan;
  if (!plan) return;
  byId(`name-${suffix}`).textContent = `${plan.title} (${plan.tasks} tasks, ${plan.span})`;
  const lines = [...plan.notes];
  if (plan.bubble) lines.unshift("bubble " + Object.entries(plan.bubble).map(([part, share]) => `${part} ${(100 * share).toFixed(2)} %`).join(", "));
  byId(`notes-${suffix}`).replaceChildren(...lines.map((line) => element("li", {}, line)));
  pipeline(byId(`pipeline-${suffix}`), plan, sameSpan);
  const curves = byId(`memory-${suffix}`);
  curves.hidden = !plan.memory.some((one) => one.time.length);
  if (!curves.hidden) memoryCurves(curves, plan);
  const layers = byId(`layers-${suffix}`);
  layers.hidden = !Object.keys(plan.layers).length;
  if (!layers.hidden) stageLayers(layers, plan.layers, plan.recompute);
  const solving = byId(`progress-${suffix}`);
  solving.hidden = !plan.progress.length;
  if (!solving.hidden) progressChart(solving, plan.progress);
}

function drawPlans() {
  const first = byId("plan-a").value, second = byId("plan-b").value;
  const pair = [REPORT.plans[first], REPORT.plans[second]];
  // Two whole steps in the same unit share one scale, so that lengths compare.
  const same = pair.every((plan) => plan && plan.windows.length === 1) && pair[0].unit === pair[1].unit;
  const span = same ? Math.max(...pair.map((plan) => plan.windows[0].end - plan.windows[0].begin)) : 0;
  showPlan("a", first, span);
  showPlan("b", second, span);
}

function start() {
  const names = Object.keys(REPORT.plans);
  for (const name of names) {
    byId("plan-a").append(element("option", { value: name }, name));
    byId("plan-b").append(element("option", { value: name }, name));
  }
  byId("plan-b").prepend(element("option", { value: "", selected: "" }, "nothing"));
  byId("plan-a").addEventListener("change", drawPlans);
  byId("plan-b").addEventListener("change", drawPlans);
  byId("pipelines").hidden = !names.length;
  byId("ranking").hidden = byId("overview").hidden = byId("chosen").hidden = !candidates.length;
  let table = null;
  if (candidates.length) {
    table = new DataTable(byId("ranking-table"), rankingColumns(), candidates, { label: "ranking", choose });
    tradeOff(byId("trade-off"), candidates, timeTitle, (index) => table.choose(index));
    gaps(byId("gaps"), candidates);
    table.choose(0);
  }
  if (names.length && (!candidates.length || !REPORT.plan_of[0])) drawPlans();
  byId("pruned").hidden = !REPORT.pruned;
  if (REPORT.pruned) {
    const columns = REPORT.pruned.columns.map((title, at) => ({ title, wide: true, raw: (row) => row[at], shown: (row) => row[at] }));
    new DataTable(byId("pruned-table"), columns, REPORT.pruned.rows, { label: "pruned", page: 500 });
  }
  document.body.dataset.ready = String(Math.round(performance.now()));
}

start();
