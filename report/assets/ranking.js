// The ranking table, drawn before the charts' library is read.
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

const candidates = REPORT.rows.map((row, index) => {
  const peaks = list(row.peak_memory).map(Number);
  return { index, row, name: REPORT.names[index], status: row.status || "unknown", gap: figure(row.gap), peaks, limits: list(row.memory_limit).map(Number),
    time: figure(REPORT.in_ms ? row.cost : row.objective), peak: peaks.length ? Math.max(...peaks) / 1024 : null };
});
const timeTitle = REPORT.in_ms ? "step time, ms" : "step time, units";

function fixed(digits) {
  // One formatter for all cells: making one costs more than using it a thousand times.
  const format = new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return (text) => (figure(text) === null ? text : format.format(Number(text)));
}

function percent(text) {
  const value = figure(text);
  return value === null ? text : value <= 1e-6 ? "0 %" : value < 1e-4 ? "<0.01 %" : `${(100 * value).toFixed(2)} %`;
}

const SHOWN = { cost: fixed(1), objective: fixed(3), bound: fixed(3), gap: percent, time: fixed(2) };
const TITLES = { cost: "step ms", micro_batches: "m", time: "solve s", peak_memory: "heaviest GiB" };

function rankingColumns() {
  const columns = [{ title: "#", number: true, raw: (one) => String(one.index + 1), shown: (one) => String(one.index + 1) }];
  for (const name of REPORT.columns) {
    const short = REPORT.short[name];
    const shown = short ? (one) => short[one.index] : (one) => (SHOWN[name] ? SHOWN[name](one.row[name]) : one.row[name]);
    // Memory by stage sorts by the heaviest stage.
    const raw = name === "peak_memory" ? (one) => (one.peak === null ? "" : String(one.peak)) : (one) => one.row[name];
    columns.push({ title: TITLES[name] || name, name, number: REPORT.numeric.includes(name), wide: ["offset", "recompute", "reason"].includes(name), raw, shown });
  }
  return columns;
}

// What a choice does is known once the charts are loaded; a choice made before that is kept by the table.
let onChoice = null;
const rankingTable = candidates.length
  ? new DataTable(byId("ranking-table"), rankingColumns(), candidates, { label: "ranking", choose: (index) => { if (onChoice) onChoice(index); } })
  : null;
byId("ranking").hidden = !candidates.length;
