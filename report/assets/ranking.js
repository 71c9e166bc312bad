// The ranking table, drawn before the charts' library is read.
"use strict";

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

function percent(text) {
  const value = figure(text);
  if (value === null) return text;
  return value <= 1e-6 ? "0 %" : value < 1e-4 ? "<0.01 %" : `${(100 * value).toFixed(2)} %`;
}

const signed = (text) => (figure(text) === null ? text : `${Number(text) > 0 ? "+" : ""}${Number(text).toFixed(1)} %`);
const share = (text) => (figure(text) === null ? text : `${(100 * Number(text)).toFixed(1)} %`);
const yes = (text) => (/^(true|1|1\.0)$/i.test(text) ? "yes" : /^(false|0|0\.0)$/i.test(text) ? "" : text);
const STATUS_WORDS = { optimal: "proven", feasible: "not proven", cut_off: "slower, proven", infeasible: "does not fit", over_limit: "does not fit",
  no_solution: "no plan in time", failed: "failed", interrupted: "not reached" };
const statusWord = (text) => STATUS_WORDS[text] || text;
const risk = (text) => (figure(text) === null ? text : Number(text) < 0.005 ? "<1 %" : `${(100 * Number(text)).toFixed(0)} %`);
const SHOWN = { status: statusWord, risk, cost: fixed(1), objective: fixed(3), bound: fixed(3), gap: percent, time: fixed(2), gain: signed, mfu: share,
  tokens_per_second: fixed(0), tokens_per_second_per_device: fixed(1), own: yes };
const TITLES = { cost: "step ms", micro_batches: "m", time: "solve s", peak_memory: "heaviest GiB", gain: "faster than the file's plan",
  tokens_per_second: "tokens/s", tokens_per_second_per_device: "a device", mfu: "MFU", mfu_precision: "MFU of the peak in", ratio_source: "ratios", smallest_change: "would fit with", own: "file's plan" };
const WIDE = ["offset", "recompute", "reason"];

function readCandidates() {
  return REPORT.rows.map((row, index) => {
    const peaks = list(row.peak_memory).map(Number);
    return { index, row, name: REPORT.names[index], status: row.status || "unknown", gap: figure(row.gap), peaks, limits: list(row.memory_limit).map(Number),
      time: figure(REPORT.in_ms ? row.cost : row.objective), peak: peaks.length ? Math.max(...peaks) / 1024 : null };
  });
}

function rankingColumns() {
  const columns = [{ title: "#", number: true, raw: (one) => String(one.index + 1), shown: (one) => String(one.index + 1) }];
  for (const name of REPORT.columns) {
    const short = REPORT.short[name];
    const shown = short ? (one) => short[one.index] : (one) => (SHOWN[name] ? SHOWN[name](one.row[name]) : one.row[name]);
    // Memory by stage sorts by the heaviest stage.
    const raw = name === "peak_memory" ? (one) => (one.peak === null ? "" : String(one.peak)) : (one) => one.row[name];
    columns.push({ title: TITLES[name] || name, name, number: REPORT.numeric.includes(name), wide: WIDE.includes(name), raw, shown });
  }
  return columns;
}

const MOST_LINES = 200;

// The quickest strategies as lines: the degrees that differ, the step, the memory of the fullest stage.
function strategies(host, solved, choose) {
  const best = [...solved].sort((a, b) => a.time - b.time).slice(0, MOST_LINES), degree = (name) => (one) => figure(one.row[name]);
  const differs = ["dp", "tp", "pp", "ep", "cp", "vpp", "mbs"].filter((name) => new Set(best.map(degree(name))).size > 1);
  const axes = [...differs.map((name) => ({ name: name.toUpperCase(), shown: String, of: degree(name) })),
    { name: REPORT.in_ms ? "step, ms" : "step, units", spread: true, shown: fixed(REPORT.in_ms ? 0 : 2), of: (one) => one.time },
    { name: "peak, GiB", spread: true, shown: fixed(1), of: (one) => one.peak }];
  const tied = new Set(REPORT.tied);
  const lines = best.map((one, at) => ({ values: axes.map((axis) => axis.of(one)), tone: at === 0 ? "best" : tied.has(one.index) ? "tie" : "",
    title: `#${one.index + 1} ${one.name}: ${axes[axes.length - 2].shown(one.time)} ${REPORT.in_ms ? "ms" : "units"}, ${one.peak.toFixed(1)} GiB` }));
  parallelAxes(host, axes, lines, `${best.length} strategies over ${axes.map((axis) => axis.name).join(", ")}; the table has their figures`, (at) => choose(best[at].index));
}

// What a choice does is known once the charts are loaded; a choice made before that is kept by the table.
let candidates = [], rankingTable = null, onChoice = null;

function drawRanking() {
  candidates = readCandidates();
  if (!candidates.length) return;
  rankingTable = new DataTable(byId("ranking-table"), rankingColumns(), candidates,
    { label: "ranking", filters: candidates.length > 1, choose: (index) => { if (onChoice) onChoice(index); } });
}
