"use strict";
const TOKEN = JSON.parse(document.body.dataset.token);
const WORDS = {
  en: { model: "Model", device: "Device", ranks: "Devices", seq: "Tokens a sample", gbs: "Batch, samples",
    recompute: "Recomputed, %", solve: "Solve", rank: "Rank strategies", stop: "Stop", memory: "Memory by stage, GiB",
    plan: "Proven plan", history: "History", compare: "Compare the two chosen", step: "Step", mfu: "MFU",
    rate: "Tokens/s", dp: "Data parallel", micro: "Micro-batches", fits: "Fits", yes: "yes", no: "no",
    waiting: "waiting for its turn", running: "solving: best {step}, none takes less than {bound}",
    done: "{status}: {step}, none takes less than {bound}", limit: "limit", config: "configuration",
    script: "start script", result: "result (JSON)", report: "report", table: "table", ended: "ended",
    seconds: "Seconds to solve", lost: "the server does not answer", strategy: "Strategy" },
  zh: { model: "模型", device: "设备", ranks: "卡数", seq: "序列长度", gbs: "全局批大小", recompute: "重计算, %",
    solve: "求解", rank: "策略排名", stop: "停止", memory: "各流水级显存, GiB", plan: "已证明的方案", history: "历史",
    compare: "比较所选两项", step: "单步时间", mfu: "MFU", rate: "Token/秒", dp: "数据并行", micro: "微批数", fits: "放得下",
    yes: "是", no: "否", waiting: "排队中", running: "求解中：当前最优 {step}，下界 {bound}",
    done: "{status}：{step}，下界 {bound}", limit: "上限", config: "配置文件", script: "启动脚本", result: "结果 (JSON)",
    report: "报告", table: "表格", ended: "已结束", seconds: "求解秒数", lost: "服务器没有响应", strategy: "策略" },
};
const POWERS = [1, 2, 4, 8, 16, 32, 64];
const SLIDERS = { tp: POWERS, pp: POWERS, ep: POWERS, cp: POWERS, vpp: [1, 2, 3, 4, 5, 6, 8], mbs: [1, 2, 4, 8],
  recompute: Array.from({ length: 21 }, (_, i) => 5 * i), seconds: [5, 10, 30, 60, 120, 300] };
const START = { tp: 8, pp: 4, recompute: 100, seconds: 30 };
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999"];
const $ = (id) => document.getElementById(id);
let language = navigator.language.startsWith("zh") ? "zh" : "en";
let job = null, asked = 0, last = null, chosen = [];
const word = (name) => WORDS[language][name] || name;

async function api(path, body) {
  const options = { headers: { "X-Token": TOKEN } };
  if (body !== undefined) { options.method = "POST"; options.body = JSON.stringify(body); }
  let reply;
  try { reply = await fetch(path, options); } catch (error) { throw new Error(word("lost")); }
  const told = await reply.json();
  if (!reply.ok) throw new Error(told.error);
  return told;
}

function question() {
  const ask = { model: $("model").value.trim(), device: $("device").value };
  for (const name of ["ranks", "seq", "gbs"]) ask[name] = Number($(name).value);
  for (const [name, values] of Object.entries(SLIDERS)) ask[name] = values[Number($(name).value)];
  return ask;
}

const ms = (value) => value === null || value === undefined ? "–"
  : `${value.toLocaleString(undefined, { maximumFractionDigits: 1 })} ms`;
const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
function element(name, text, attributes = {}) {
  const made = name === "rect" || name === "text" || name === "line"
    ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  if (text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function showFigures() {
  $("figures").replaceChildren();
  if (!last) return;
  const told = { step: ms(last.step_ms), mfu: last.mfu === null ? "–" : `${(100 * last.mfu).toFixed(1)} %`,
    rate: Math.round(last.tokens_per_second).toLocaleString(), dp: last.dp, micro: last.micro_batches,
    fits: word(last.fits ? "yes" : "no") };
  for (const [name, text] of Object.entries(told)) {
    const box = element("div", null);
    box.append(element("dt", word(name)), element("dd", text, { id: `figure-${name}` }));
    $("figures").append(box);
  }
  drawMemory(last);
}

function drawMemory(told) {
  const svg = $("memory"), stages = told.peak_mib.length, names = Object.keys(told.parts);
  const top = 1.05 * Math.max(told.limit_mib, ...told.peak_mib), wide = 600 / stages;
  svg.replaceChildren();
  for (let stage = 0; stage < stages; stage++) {
    let at = 240;
    names.forEach((name, index) => {
      const high = 230 * told.parts[name][stage] / top;
      at -= high;
      const bar = element("rect", null, { x: 36 + stage * wide, y: at, width: Math.max(1, wide - 3), height: high,
        fill: COLOURS[index % COLOURS.length] });
      bar.append(element("title", `${stage}: ${name} ${(told.parts[name][stage] / 1024).toFixed(1)} GiB`));
      svg.append(bar);
    });
    if (stages <= 32) svg.append(element("text", String(stage), { x: 36 + stage * wide + wide / 2 - 6, y: 254 }));
  }
  const limit = 240 - 230 * told.limit_mib / top;
  svg.append(element("line", null, { x1: 36, x2: 636, y1: limit, y2: limit, stroke: "currentColor", "stroke-dasharray": "4" }),
    element("text", (told.limit_mib / 1024).toFixed(0), { x: 2, y: limit + 4 }));
  svg.setAttribute("aria-label", `${word("memory")}: ${told.peak_mib.map((mib) => (mib / 1024).toFixed(1)).join(", ")}`);
  $("legend").replaceChildren(...names.map((name, index) => {
    const shown = element("span", name), mark = element("i", null);
    mark.style.background = COLOURS[index % COLOURS.length];
    shown.prepend(mark);
    return shown;
  }));
}

async function estimate() {
  const number = ++asked;
  try {
    const told = await api("/api/estimate", question());
    if (number !== asked) return;  // a later question is under way
    last = told; $("error").textContent = "";
  } catch (error) {
    if (number !== asked) return;
    last = null; $("error").textContent = error.message; $("memory").replaceChildren(); $("legend").replaceChildren();
  }
  showFigures();
  document.body.dataset.answered = number;
}

async function start(kind) {
  $("plan").replaceChildren(); $("files").replaceChildren(); $("progress").textContent = word("waiting");
  try {
    job = (await api(`/api/jobs/${kind}`, question())).job;
    $("stop").hidden = false;
    follow(job);
  } catch (error) { $("progress").textContent = error.message; }
}

async function follow(name) {
  if (name !== job) return;
  let told;
  try { told = await api(`/api/job/${name}`); } catch (error) { $("progress").textContent = error.message; return; }
  if (told.state !== "done") {
    const p = told.progress;
    $("progress").textContent = p ? fill(word("running"), { step: ms(p.step), bound: ms(p.bound) })
      : word(told.state === "running" ? "…" : "waiting");
    setTimeout(follow, 400, name);
    return;
  }
  $("stop").hidden = true;
  const answer = told.answer;
  if (answer.error) { $("progress").textContent = answer.error; document.body.dataset.done = name; return; }
  if (answer.rows) showRanking(answer);
  else showPlan(answer);
  for (const role of told.files) {
    const link = element("a", word(role), { href: `/api/job/${name}/${role}?token=${encodeURIComponent(TOKEN)}`,
      id: `file-${role}` });
    if (role === "report") link.target = "_blank"; else link.download = "";
    $("files").append(link);
  }
  document.body.dataset.done = name;
  history_();
}

function table(columns, rows) {
  const made = element("table", null), head = element("tr", null);
  head.append(...columns.map((name) => element("th", name)));
  made.append(head, ...rows.map((row) => {
    const line = element("tr", null);
    line.append(...row.map((cell) => element("td", cell === null ? "" : String(cell))));
    return line;
  }));
  return made;
}

function showPlan(answer) {
  $("progress").textContent = fill(word("done"), { status: answer.status, step: ms(answer.step_ms), bound: ms(answer.bound_ms) });
  const layers = Object.entries(answer.layers).map(([kind, grid]) => [kind, JSON.stringify(grid)]);
  const modes = Object.entries(answer.recompute).map(([mode, grid]) => [`${word("recompute")} ${mode}`, JSON.stringify(grid)]);
  const peaks = answer.peak_memory.map((mib) => (mib / 1024).toFixed(1)).join(" ");
  $("plan").append(table(["", ""], [...layers, ...modes, ["offset", JSON.stringify(answer.offset)], ["GiB", peaks]]));
}

function showRanking(answer) {
  $("progress").textContent = word("ended");
  $("plan").append(table(answer.columns, answer.rows.map((row) => row.map(
    (cell) => typeof cell === "number" && !Number.isInteger(cell) ? cell.toPrecision(5) : cell))));
}

async function history_() {
  const told = await api("/api/history");
  const made = table(["", "", word("model"), word("device"), word("ranks"), word("strategy"), word("step")], []);
  for (const run of told.runs) {
    const best = run.plans[0], line = element("tr", null), pick = element("input", null, { type: "checkbox", value: run.id });
    pick.setAttribute("aria-label", run.id);
    pick.addEventListener("change", () => { chosen = [...document.querySelectorAll("#history input:checked")].map((one) => one.value); });
    const cell = element("td", null);
    cell.append(pick);
    const degrees = best ? Object.entries(JSON.parse(best.strategy)).filter(([, n]) => typeof n === "number" && n > 1)
      .map(([name, n]) => `${name.toUpperCase()}${n}`).join(" ") : "";
    line.append(cell, ...[run.id, run.model, run.device, run.ranks, degrees, ms(best && best.step_ms)].map((text) => element("td", text)));
    made.append(line);
  }
  $("history").replaceChildren(...made.childNodes);
}

async function compare() {
  if (chosen.length !== 2) { $("verdict").textContent = word("compare"); return; }
  try { $("verdict").textContent = (await api(`/api/compare/${chosen[0]}/${chosen[1]}`)).verdict; }
  catch (error) { $("verdict").textContent = error.message; }
}

function speak() {
  document.documentElement.lang = language;
  for (const each of document.querySelectorAll("[data-word]")) each.textContent = word(each.dataset.word);
  for (const each of document.querySelectorAll("[data-slider]")) each.textContent = WORDS[language][each.dataset.slider] || each.dataset.slider.toUpperCase();
  $("language").textContent = language === "en" ? "中文" : "English";
  showFigures();
}

async function begin() {
  for (const [name, values] of Object.entries(SLIDERS)) {
    const label = element("label", null), shown = element("output", null), slider = element("input", null,
      { type: "range", id: name, min: 0, max: values.length - 1, value: Math.max(0, values.indexOf(START[name] || 1)) });
    const tell = () => { shown.textContent = values[Number(slider.value)]; };
    slider.addEventListener("input", () => { tell(); estimate(); });
    tell();
    label.append(element("span", null, { "data-slider": name }), slider, shown);
    $("sliders").append(label);
  }
  for (const name of ["model", "device", "ranks", "seq", "gbs"]) $(name).addEventListener("change", estimate);
  const choices = await api("/api/choices");
  $("models").append(...choices.models.map((name) => element("option", null, { value: name })));
  $("device").append(...choices.devices.map((name) => element("option", name)));
  $("model").value = "llama3-70b"; $("device").value = "h100-80g";
  $("solve").addEventListener("click", () => start("solve"));
  $("rank").addEventListener("click", () => start("rank"));
  $("stop").addEventListener("click", () => api(`/api/job/${job}/stop`, {}));
  $("compare").addEventListener("click", compare);
  $("language").addEventListener("click", () => { language = language === "en" ? "zh" : "en"; speak(); history_(); });
  speak();
  await estimate();
  await history_();
  document.body.dataset.ready = "yes";
}
begin().catch((error) => { $("error").textContent = error.message; });
