// The chosen candidate, its plan and another beside it, and what was pruned, around the ranking table.
"use strict";

const MOST_CURVES = 4;

function facts(host, pairs) {
  host.replaceChildren(...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

// What of a drawing a row of the ranking tells when its pipeline is not drawn.
function planOfRow(one) {
  const layers = Object.entries(grids(one.row.layers)), recompute = grids(one.row.recompute);
  const shaped = (grid) => Array.isArray(grid) && Array.isArray(grid[0]);
  return { title: one.name, rows: [], unit: "", tasks: 0, windows: [], overview: [], memory: [], dryrun: [], marks: [], notes: [], bubble: null, progress: [],
    layers: layers.filter(([, grid]) => shaped(grid)), recompute: Object.fromEntries(Object.entries(recompute).filter(([, grid]) => shaped(grid))),
    parts: one.peaks.length ? { source: "", mib: { peak: one.peaks } } : null };
}

// The plan that each drawing shows, the view of its time, and the limits that hold for the chosen candidate.
const shown = { a: null, b: null };

function chosenCandidate() {
  return rankingTable && rankingTable.selected !== null ? candidates[rankingTable.selected] : null;
}

function choose(index) {
  const one = candidates[index], name = REPORT.plan_of[index];
  byId("chosen-name").textContent = `Selected: #${index + 1} ${one.name}`;
  byId("chosen-figures").hidden = false;
  facts(byId("chosen-facts"), REPORT.all_columns.filter((column) => one.row[column] !== "").map((column) => [column, one.row[column]]));
  byId("chosen-plan").hidden = Boolean(name);
  byId("chosen-plan").textContent = name ? "" : "Its pipeline is not drawn in this page; timeline-tool or pipeline-parallel --html draws it.";
  byId("plan-a").value = name || "";
  drawPlans();
}

// Outline the tasks of the words typed; Enter zooms to one after the other.
function findTasks(suffix, plan, again, open) {
  const field = byId(`find-${suffix}`), said = byId(`found-${suffix}`), state = shown[suffix];
  let at = -1;
  const find = () => {
    state.marked.found = matchesOf(plan, field.value);
    at = -1;
    const count = state.marked.found.length;
    said.textContent = !field.value.trim() ? "" : count ? `${count.toLocaleString("en-US")} of the tasks drawn; Enter goes to the first` : "none of the tasks drawn";
  };
  find();
  field.oninput = () => { find(); again(); };
  field.onkeydown = (event) => {
    const { found } = state.marked;
    if (event.key !== "Enter" || !found.length) return;
    at = (at + 1) % found.length;
    if (!state.chart.reach(found[at])) { open(found[at].at); state.chart.reach(found[at]); }
    const { tasks } = plan.windows[found[at].at], i = found[at].i;
    said.textContent = `${(at + 1).toLocaleString("en-US")} of ${found.length.toLocaleString("en-US")}: ${tasks.name[i]}, ${plan.rows[tasks.row[i]]}`;
  };
}

function drawViews(suffix, plan, span) {
  const host = byId(`views-${suffix}`), views = viewsOf(plan), state = shown[suffix];
  const show = (view) => {
    shown[suffix].view = view.name;
    for (const button of host.children) button.setAttribute("aria-pressed", String(button.textContent === view.name));
    state.marked.press = (task) => {
      const same = state.marked.followed && state.marked.followed.at === task.at && state.marked.followed.i === task.i;
      state.marked.followed = same ? null : task;
      show(view);
    };
    state.chart = new PipelineChart(byId(`pipeline-${suffix}`), plan, span, state.marked);
    state.chart.show(view);
  };
  findTasks(suffix, plan, () => show(views.find((view) => view.name === state.view)), (at) => show(views.find((view) => view.kind === "window" && view.at === at)));
  host.replaceChildren(...views.map((view) => {
    const button = element("button", { type: "button", "aria-pressed": "false" }, view.name);
    button.addEventListener("click", () => show(view));
    return button;
  }));
  host.hidden = views.length < 2;
  show(views.find((view) => view.name === shown[suffix].view) || views[0]);
}

function drawPlan(suffix, plan, limits, span) {
  const section = byId(`drawing-${suffix}`);
  section.hidden = !plan;
  if (!plan) return;
  if (!shown[suffix] || shown[suffix].plan !== plan) shown[suffix] = { plan, view: null, stages: null,
    marked: { found: [], followed: null, tell: (ranges) => showStatistics(byId(`range-${suffix}`), plan, ranges) } };
  const drawn = plan.windows.length > 0;
  byId(`name-${suffix}`).textContent = drawn ? `${plan.title}: ${plan.span}, ${plan.tasks.toLocaleString("en-US")} tasks` : plan.title;
  const lines = [...plan.notes];
  if (plan.bubble) {
    const { total: whole, ...rest } = plan.bubble;
    const told = Object.entries(rest).map(([part, share]) => `${part} ${(100 * share).toFixed(1)} %`).join(", ");
    lines.unshift(`In ${(100 * whole).toFixed(1)} % of the step an average stage does no first-time forward or backward work: ${told}.`);
  }
  byId(`notes-${suffix}`).replaceChildren(...lines.map((line) => element("li", {}, line)));
  byId(`pipeline-part-${suffix}`).hidden = !drawn;
  if (drawn) drawViews(suffix, plan, span);
  const held = plan.parts || (plan.memory.length ? { mib: { peak: plan.memory.map((one) => one.peak) } } : null);
  byId(`parts-part-${suffix}`).hidden = !held;
  const known = plan.memory.length && plan.memory.every((one) => one.limit !== null) ? plan.memory.map((one) => one.limit) : limits;
  if (held) stageMemory(byId(`parts-${suffix}`), held.mib, known);
  byId(`layers-part-${suffix}`).hidden = !plan.layers.length;
  if (plan.layers.length) layerStrips(byId(`layers-${suffix}`), byId(`legend-${suffix}`), plan.layers, plan.recompute);
  const curves = plan.memory.some((one) => one.time.length);
  byId(`memory-part-${suffix}`).hidden = !curves;
  if (curves) {
    const known = plan.memory.map((_, row) => row).filter((row) => plan.memory[row].time.length);
    const heaviest = [...known].sort((a, b) => plan.memory[b].peak - plan.memory[a].peak).slice(0, MOST_CURVES);
    const chosen = shown[suffix].stages = shown[suffix].stages || heaviest.sort((a, b) => a - b);
    memorySparks(byId(`sparks-${suffix}`), plan, chosen, (stages) => memoryCurves(byId(`memory-${suffix}`), plan, stages));
    memoryCurves(byId(`memory-${suffix}`), plan, chosen);
  }
}

function drawPlans() {
  const first = byId("plan-a").value, second = byId("plan-b").value, one = chosenCandidate();
  const pair = [REPORT.plans[first] || (one && planOfRow(one)), REPORT.plans[second]];
  // Two whole steps in the same unit share one scale, so that lengths compare.
  const same = pair.every((plan) => plan && plan.windows.length === 1) && pair[0].unit === pair[1].unit;
  const span = same ? Math.max(...pair.map((plan) => plan.windows[0].end - plan.windows[0].begin)) : 0;
  drawPlan("a", pair[0], one ? one.limits : [], span);
  drawPlan("b", pair[1], [], span);
  const course = pair[0] && pair[0].progress.length > 1;
  byId("course").hidden = !course;
  if (course && byId("course").open) progressChart(byId("progress-chart"), pair[0].progress);
}

// Charts that say nothing (one point, gaps that are all closed) are left out.
function drawOverview() {
  const solved = candidates.filter((one) => one.time !== null && one.peak !== null), open = candidates.filter((one) => one.gap !== null);
  const spread = solved.length > 1, unproven = open.length > 1 && open.some((one) => one.gap > 1e-6);
  byId("overview").hidden = !spread && !unproven;
  byId("trade-off-part").hidden = !spread;
  byId("gaps-part").hidden = !unproven;
  byId("parallel-part").hidden = !spread;
  if (spread) strategies(byId("parallel"), solved, (index) => rankingTable.choose(index));
  if (spread) tradeOff(byId("trade-off"), solved, REPORT.in_ms ? "step time, ms" : "step time, units", (index) => rankingTable.choose(index));
  if (unproven) gaps(byId("gaps"), open);
}

function start() {
  const names = Object.keys(REPORT.plans);
  byId("plan-choice").hidden = names.length < 2;
  for (const id of ["plan-a", "plan-b"]) byId(id).addEventListener("change", drawPlans);
  byId("course").addEventListener("toggle", drawPlans);
  byId("pipelines").hidden = !names.length && !candidates.length;
  drawOverview();
  if (candidates.length) {
    onChoice = choose;
    rankingTable.choose(rankingTable.selected || 0);
  } else if (names.length) drawPlans();
  byId("pruned").hidden = !REPORT.pruned;
  if (REPORT.pruned) {
    const columns = REPORT.pruned.columns.map((title, at) => ({ title, wide: true, raw: (row) => row[at], shown: (row) => row[at] }));
    new DataTable(byId("pruned-table"), columns, REPORT.pruned.rows, { label: "pruned", page: 500 });
  }
  byId("details").hidden = !byId("details").querySelector("details:not([hidden])");
  dark.addEventListener("change", () => { drawOverview(); drawPlans(); });
}

(async () => {
  if (typeof DecompressionStream === "undefined") {
    byId("unreadable").hidden = false;
    return;
  }
  REPORT = JSON.parse(await unpacked("report-data"));
  PALETTE = REPORT.palette;
  drawRanking();
  const library = document.createElement("script");
  library.textContent = await unpacked("plotly");
  document.head.append(library);
  start();
  document.body.dataset.ready = String(Math.round(performance.now()));
})();
