// Charts, the chosen candidate, pipelines and pruning, around the ranking table.
"use strict";

// Sum over the interleaves: [vpp][pp] -> [pp].
function overStages(grid) {
  const rows = grid.length && Array.isArray(grid[0]) ? grid : [grid];
  return rows[0].map((_, s) => rows.reduce((sum, row) => sum + Number(row[s]), 0));
}

function byStage(grouped) {
  return Object.fromEntries(Object.entries(grouped).filter(([, grid]) => grid.length).map(([name, grid]) => [name, overStages(grid)]));
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
  // Task by task it has detail that wants the page's width.
  curves.style.gridColumn = plan.dryrun.length ? "1 / -1" : "";
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
  byId("chosen").hidden = !candidates.length;
  byId("overview").hidden = candidates.length < 2;
  if (candidates.length > 1) {
    tradeOff(byId("trade-off"), candidates, timeTitle, (index) => rankingTable.choose(index));
    gaps(byId("gaps"), candidates);
  }
  if (candidates.length) {
    onChoice = choose;
    rankingTable.choose(rankingTable.selected || 0);
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
