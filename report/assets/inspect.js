// Tasks of a drawn pipeline found by name, followed from stage to stage, and measured over a range of time.
"use strict";

const MOST_ARROWS = 200;

// Tasks in whose name or row some words begin, as their window's place and their own; a number is meant as a whole.
function matchesOf(plan, text) {
  const words = text.trim().replace(/\s+/g, " ");
  if (!words) return [];
  const sought = new RegExp(`(^|[ (])${words.replace(/[^\w ]/g, "\\$&")}${/\d$/.test(words) ? "(?!\\d)" : ""}`, "i");
  return plan.windows.flatMap((view, at) => {
    const tasks = complete(view.tasks);
    return tasks.row.map((_, i) => i).filter((i) => sought.test(tasks.name[i]) || sought.test(plan.rows[tasks.row[i]])).map((i) => ({ at, i }));
  });
}

// Arrows from task to task, as annotations of a chart: those of a micro-batch, or of one task without any.
function flowArrows(tasks, suffix, chosen) {
  const middle = (i) => tasks.row[i] - 0.45 + 0.9 * ((tasks.lane[i] + 0.5) / tasks.lanes[i]);
  return tasks.flows.filter(([from, to]) => chosen(from) && chosen(to)).slice(0, MOST_ARROWS).map(([from, to]) => ({
    text: "", showarrow: true, arrowhead: 2, arrowsize: 0.9, arrowwidth: 1.3, arrowcolor: themed("ink"), xref: `x${suffix}`, yref: "y", axref: `x${suffix}`, ayref: "y",
    ax: tasks.end[from], ay: middle(from), x: tasks.start[to], y: middle(to) }));
}

// Time by kind of the tasks between two moments: [name, time summed over the rows, tasks], the idle time last.
function timeByKind(plan, tasks, begin, end) {
  const sums = new Map(), busy = plan.rows.map(() => []);
  const add = (name, from, to, counts) => {
    const time = Math.min(to, end) - Math.max(from, begin);
    if (time <= 0) return;
    const one = sums.get(name) || [name, 0, 0];
    sums.set(name, [name, one[1] + time, one[2] + counts]);
  };
  tasks.row.forEach((row, i) => {
    const works = tasks.start[i] + tasks.recompute[i];
    add("recompute (in the backward)", tasks.start[i], works, 0);
    add(PALETTE.names[tasks.kind[i]], works, tasks.end[i], 1);
    if (tasks.end[i] > begin && tasks.start[i] < end) busy[row].push([Math.max(begin, tasks.start[i]), Math.min(end, tasks.end[i])]);
  });
  const idle = busy.reduce((sum, spans) => sum + (end - begin) - covered(spans), 0);
  return [...[...sums.values()].sort((a, b) => b[1] - a[1]), ["idle", Math.max(0, idle), 0]];
}

// Length of the union of some stretches of time.
function covered(spans) {
  let sum = 0, last = -Infinity;
  for (const [from, to] of spans.sort((a, b) => a[0] - b[0])) {
    sum += Math.max(0, to - Math.max(from, last));
    last = Math.max(last, to);
  }
  return sum;
}

// The same of the slices of a whole step, each counted as its main kind.
function timeBySlice(plan, begin, end) {
  const sums = new Map(), names = { [PALETTE.idle]: "idle" };
  for (const [mark, kind] of Object.entries(PALETTE.marks)) names[mark] = kind < 0 ? "mostly recompute" : `mostly ${PALETTE.names[kind]}`;
  for (const marks of plan.overview) {
    const width = (plan.end - plan.begin) / marks.length;
    [...marks].forEach((mark, at) => {
      const from = plan.begin + at * width, time = Math.min(from + width, end) - Math.max(from, begin);
      if (time > 0) sums.set(mark, (sums.get(mark) || 0) + time);
    });
  }
  return [...sums].sort((a, b) => b[1] - a[1]).map(([mark, time]) => [names[mark], time, 0]);
}

// Ranges of the parts of a chart that are shown, as text and a table of what fills them.
function showStatistics(host, plan, ranges) {
  const sums = new Map();
  for (const { tasks, range } of ranges) {
    for (const [name, time, count] of tasks ? timeByKind(plan, tasks, ...range) : timeBySlice(plan, ...range)) {
      const one = sums.get(name) || [0, 0];
      sums.set(name, [one[0] + time, one[1] + count]);
    }
  }
  const length = ranges.reduce((sum, { range }) => sum + range[1] - range[0], 0), figure = fixed(length < 10 ? 3 : 1);
  const named = ranges.map(({ range }) => `${figure(range[0])} to ${figure(range[1])} ${plan.unit}`).join(", ");
  const cells = (tag, texts) => element("tr", {}, ...texts.map((text, at) => element(tag, at ? { class: "number" } : {}, text)));
  const rows = [...sums].map(([name, [time, count]]) => cells("td", [name, `${figure(time / plan.rows.length)} ${plan.unit}`, `${(100 * time / plan.rows.length / length).toFixed(1)} %`,
    count ? count.toLocaleString("en-US") : ""]));
  host.replaceChildren(element("p", { class: "soft hint" }, `From ${named}: what a row of ${plan.rows.length} does in the mean.`),
    element("table", { class: "statistics" }, element("thead", {}, cells("th", ["kind", "time", "share", "tasks"])), element("tbody", {}, ...rows)));
}
