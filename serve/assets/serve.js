"use strict";
const TOKEN = JSON.parse(document.body.dataset.token);
const WORDS = {
  en: { what: "what if the job ran otherwise", model: "Model", device: "Device", ranks: "Device count",
    seq: "Sequence length", gbs: "Global batch", recompute: "Recompute, %", seconds: "Time limit, s",
    solve: "Solve", rank: "Rank strategies", stop: "Stop", even: "These settings, layers spread evenly",
    memory: "Peak memory by stage, GiB", plan: "Plan", ranking: "Ranking", history: "History",
    compare: "Compare the two ticked", step: "Step", mfu: "MFU", rate: "Tokens/s", dp: "Data parallel",
    micro: "Micro-batches", fits: "Fits", yes: "yes", no: "no", stage: "stage", limit: "limit",
    hint: "«Solve» finds the division of layers and recompute with the shortest step, and proves it; "
      + "«Rank strategies» compares the ten quickest.",
    waiting: "Waiting for its turn …", starting: "Starting …", found: "Best so far {step}; none takes less than {bound}.",
    ranks_now: "Ranking the ten quickest strategies …", lost: "The server does not answer; asking again.",
    optimal: "Proven: {step} a step, no plan takes less. MFU {mfu}, {rate} tokens/s.",
    feasible: "{step} a step; none takes less than {bound} (gap {gap}). MFU {mfu}, {rate} tokens/s.",
    stopped: "Stopped; the best plan so far:", unwritten: "Not written: {files}.", layers: "{kind} layers", again: "recomputed, {mode}", chunk: "{text}, chunk {chunk}",
    peak: "peak, GiB",
    config: "configuration", script: "start script", yaml: "training YAML", toml: "training TOML", result: "result (JSON)", report: "report", table: "table (CSV)",
    gap: "Gap", status: "Status", take: "use", proven: "proven", open: "limit reached", slower: "proven slower",
    over: "does not fit", failed: "failed", run: "Run", when: "When", kind: "Kind", strategy: "Strategy", a_solve: "plan",
    nothing: "Nothing yet: what is solved and ranked here is remembered.", unmodelled: "Not in the figures: ",
    risk: "Risk of exceeding memory, %", run_out: "Risk", seen: "What a run of these settings showed", seen_peak: "Measured peaks, stage=MiB",
    seen_out: "Stages out of memory", seen_limit: "Limits of stages, stage=MiB", learn: "Learn from it", forget: "Forget",
    size: "How many devices", sizing: "Devices", sizes_now: "Trying numbers of devices from 8 to 16,384 …", curve: "Tokens/s of a device, by number of devices",
    devices: "Devices", efficiency: "Efficiency", kept: "Kept by the doubling", again_short: "Recompute", drop: "Drop your training file here, or choose it:", assume: "Assumptions", framework: "Framework", precision: "Precision",
    dispatcher: "Token dispatcher", sp: "Sequence parallel", op: "Distributed optimizer", own_limit: "Limit, GiB", images: "Images a sample x patches", usual: "usual",
    rests: "What this rests on", link: "Copy link", start_file: "Download start file", stale: "The settings have changed since this answer.",
    back: "Back to its settings", copied: "Copied: a link with these settings and no token.", changes_fit: "It fits with:", changes_fast: "Faster with:",
    no_change: "No single change makes it fit.", over_stage: "Stage {stage} is {over} GiB over its limit.", given: "{file}: {title}, {name}.",
    interval: "90 % interval", per_device: "{gain} tokens/s a device", busy: "Computing …", tie: "tie", within: "{low} to {high}",
    gradient_bytes: "Gradients, bytes", moments_bytes: "Moments, bytes", optimizer_ranks: "Optimizer over ranks", sequence_parallel: "Sequence parallel",
    flash_attention: "Flash attention", schedule: "Schedule", software: "Software", limit_mib: "Memory limit, GiB", risk_share: "Risk planned",
    ties: "The first {count} are a tie: their steps are within {share} of the first one's, which is less than the estimate is off.",
    pipeline: "Pipeline and memory over the step", held: "Memory by stage, GiB", limit_at_risk: "limit at the risk chosen", fullest: "stage {stage}, the fullest: {peak} GiB", pick: "Tick",
    strategies: "Strategies over their degrees, step and memory; click a line to use it. Thick: the quickest; dashed: a tie with it",
    peak_gib: "GiB", too_big: "The file is longer than 1 MiB, which no training file is.",
    risky: "above the risk", open_fit: "unknown", upto: "up to", wrong_seen: "Write 0=61300,1=58000 for MiB by stage, 0,3 for stages." },
  zh: { what: "换一种跑法会怎样", model: "模型", device: "设备", ranks: "卡数", seq: "序列长度", gbs: "全局批大小",
    recompute: "重计算比例, %", seconds: "求解时限, 秒", solve: "求解", rank: "策略排名", stop: "停止",
    even: "当前设置，各级层数均分", memory: "各流水级峰值显存, GiB", plan: "方案", ranking: "排名", history: "历史记录",
    compare: "比较勾选的两项", step: "单步时间", mfu: "MFU", rate: "Token/秒", dp: "数据并行", micro: "微批数",
    fits: "能放下", yes: "是", no: "否", stage: "级", limit: "上限",
    hint: "“求解”会找出单步最短的层划分与重计算方案，并证明其最优；“策略排名”比较估算最快的十个策略。",
    waiting: "排队中……", starting: "正在启动……", found: "当前最优 {step}；任何方案都不少于 {bound}。",
    ranks_now: "正在比较最快的十个策略……", lost: "服务器没有响应，正在重试。",
    optimal: "已证明最优：单步 {step}。MFU {mfu}，{rate} token/秒。",
    feasible: "单步 {step}；任何方案都不少于 {bound}（差距 {gap}）。MFU {mfu}，{rate} token/秒。",
    risk: "超出显存的风险, %", run_out: "风险", seen: "以当前设置实际运行的结果", seen_peak: "实测峰值, 级=MiB",
    seen_out: "显存不足的级", seen_limit: "各级上限, 级=MiB", learn: "据此修正", forget: "清除",
    size: "需要多少张卡", sizing: "卡数", sizes_now: "正在试 8 到 16,384 张卡……", curve: "单卡 token/秒，按卡数",
    devices: "卡数", efficiency: "效率", kept: "翻倍后保留", again_short: "重计算", drop: "把训练文件拖到这里，或选择：", assume: "假设", framework: "框架", precision: "精度", dispatcher: "token 分发方式",
    sp: "序列并行", op: "分布式优化器", own_limit: "上限, GiB", images: "每样本图像数 x 每图块数", usual: "默认", rests: "以上结果的依据", link: "复制链接",
    start_file: "下载启动文件", stale: "得到这个结果之后，设置已经改变。", back: "恢复当时的设置", copied: "已复制：链接包含当前设置，不含令牌。",
    changes_fit: "这样就能放下：", changes_fast: "这样更快：", no_change: "没有单项改动能放下。", over_stage: "第 {stage} 级超出上限 {over} GiB。",
    given: "{file}：{title}，{name}。", interval: "90% 区间", per_device: "单卡 token/秒 {gain}", busy: "正在计算……", tie: "并列", within: "{low} 至 {high}",
    gradient_bytes: "梯度, 字节", moments_bytes: "动量, 字节", optimizer_ranks: "优化器切分的卡数", sequence_parallel: "序列并行",
    flash_attention: "Flash attention", schedule: "调度", software: "软件特性", limit_mib: "显存上限, GiB", risk_share: "允许的风险",
    ties: "前 {count} 个并列：单步时间与第一名相差不到 {share}，小于估算误差。",
    pipeline: "单步内的流水线与显存", held: "各级显存, GiB", limit_at_risk: "所选风险下的上限", fullest: "最满的第 {stage} 级：{peak} GiB", pick: "选择",
    strategies: "各策略的并行度、单步时间与显存；点击一条线即采用。粗线：最快；虚线：与之并列", peak_gib: "GiB",
    too_big: "文件超过 1 MiB，训练文件不会这么大。",
    risky: "超出允许的风险", open_fit: "未知", upto: "至多", wrong_seen: "各级 MiB 写作 0=61300,1=58000，级写作 0,3。",
    stopped: "已停止；目前最好的方案：", unwritten: "未能写出：{files}。", layers: "{kind} 层", again: "重计算（{mode}）", chunk: "{text}，第 {chunk} 块",
    peak: "峰值, GiB",
    config: "配置文件", script: "启动脚本", yaml: "训练 YAML", toml: "训练 TOML", result: "结果 (JSON)", report: "报告", table: "表格 (CSV)",
    gap: "差距", status: "状态", take: "采用", proven: "已证明", open: "到达时限", slower: "已证明更慢", over: "放不下",
    failed: "失败", run: "编号", when: "时间", kind: "类型", strategy: "策略", a_solve: "方案",
    nothing: "暂无：在这里求解和排名的结果都会保留。", unmodelled: "未计入：",
    "besides the layers": "层以外", activations: "激活", "dense layers": "稠密层", "moe layers": "MoE 层",
    weights: "权重", gradients: "梯度", optimizer: "优化器状态", "activations dense": "稠密层激活",
    "activations moe": "MoE 层激活", logits: "logits", buffers: "通信缓冲", workspace: "工作区", overhead: "框架开销" },
};
const TIPS = {
  en: { tp: "Tensor parallel: each layer's matrices are split over this number of devices.", pp: "Pipeline parallel: the layers are split over this number of stages.",
    ep: "Expert parallel: the experts are split over this number of devices.", cp: "Context parallel: each sample's tokens are split over this number of devices.",
    vpp: "Virtual stages: chunks of layers that each stage holds.", mbs: "Samples of a micro-batch.", recompute: "Share of layers whose activations are computed again in the backward.",
    risk: "Probability with which a real peak may exceed the limit.", seconds: "Longest time of a solve.", gbs: "Samples of a step.", ranks: "Devices of the job.",
    mfu: "The model's own work over what the devices' peak allows in the same time." },
  zh: { tp: "张量并行：每层的矩阵切分到这么多张卡。", pp: "流水线并行：层切分到这么多级。", ep: "专家并行：专家切分到这么多张卡。",
    cp: "上下文并行：每个样本的 token 切分到这么多张卡。", vpp: "虚拟级：每级持有的层块数。", mbs: "每个微批的样本数。", recompute: "反向时重新计算激活的层所占比例。",
    risk: "实际峰值超出上限的概率。", seconds: "求解的最长时间。", gbs: "每步的样本数。", ranks: "任务的卡数。", mfu: "模型本身的计算量与同样时间内设备峰值之比。" },
};
// What a person at the page reads most often, as the program says it in English, and in Chinese.
const CHINESE = [
  [/([\w.-]+): is longer than/, "$1 太大：请给出启动训练的文件"],
  [/^at least ([\d,]+) devices? \(([^)]*)\)$/, "至少 $1 张卡（$2）"],
  [/^beyond ([\d,]+) devices each doubling keeps ([\d.]+)% of a device's speed$/, "超过 $1 张卡后，每翻一倍单卡速度保留 $2%"],
  [/^no knee: each doubling up to ([\d,]+) devices keeps at least ([\d.]+)% of a device's speed$/, "没有拐点：到 $1 张卡为止，每翻一倍单卡速度至少保留 $2%"],
  [/^the time limit left numbers of devices unsolved, from ([\d,]+) to ([\d,]+)$/, "时限内未求解的卡数：$1 到 $2"],
  [/^its speeds are fitted to no published run/, "该设备没有公开的实测数据，区间更宽"],
  [/^memory estimated by the analytical model$/, "显存由解析模型估算"],
  [/file: is longer than/, "文件太大：请给出启动训练的文件"],
  [/([\w.-]+): is no text/, "$1 不是文本：请给出 UTF-8 编码的训练文件"],
  [/is not a known kind of configuration/, "不是可识别的训练配置"],
  [/model: is a file that this server does not have/, "服务器上没有这个文件：请重新选择"],
  [/--with: has no flag in (.*?)'s files \(found '([^']*)'\)/, "$1 的文件没有 $2 对应的参数"],
  [/--with: concerns experts, and the model has none/, "该特性只用于有专家的模型"],
  [/--framework: cannot describe ([^:]+)/, "该框架的文件不能描述 $1"],
  [/breaks the rule ([\w-]+): (.*?) \(found (\d+)\); nearest legal: ([^;]+); source: (.*); --allow_illegal/, "违反框架规则 $1（$2）：现为 $3；最近的合法取值：$4；依据：$5"],
  [/breaks the rule ([\w-]+): (.*?) \(found (\d+)\)/, "违反框架规则 $1（$2）：现为 $3"],
  [/ranks: is not divisible by TP x PP x CP = (\d+) \(found (\d+)\)/, "卡数 $2 不能被 TP x PP x CP = $1 整除"],
  [/gbs: is not divisible by DP x micro-batch = (\d+) \(found (\d+)\)/, "全局批大小 $2 不能被 DP x 微批大小 = $1 整除"],
  [/one stage has nothing to interleave \(found (\d+)\)/, "只有一个流水级，不能交错成 $1 块：请把交错数设为 1，或至少用两个流水级"],
  [/(\d+) layers cannot fill (\d+) stages x (\d+) interleaves/, "$1 层不够分给 $2 级 x $3 块：请减少流水级或交错数"],
  [/no plan fits the memory: at best stage (\d+) is short by ([\d.]+) MiB of its limit of ([\d.]+) MiB; the least device memory with which a plan exists is ([\d.]+) MiB/,
    "没有方案放得下：最好的情况下第 $1 级仍差 $2 MiB（上限 $3 MiB）；每卡显存至少要 $4 MiB"],
  [/no model of that name is registered \(found '([^']*)'\)/, "没有登记名为 $1 的模型"],
  [/(\w+): Input should be greater than or equal to ([\d.]+)/, "$1 不能小于 $2"],
  [/(\w+): Input should be less than or equal to ([\d.]+)/, "$1 不能大于 $2"],
  [/(\w+): Input should be a valid integer/, "$1 须为整数"],
  [/(\w+): has no effect on a search of strategies/, "$1 对策略搜索不起作用：请恢复默认值，或对当前策略求解"],
  [/limit_mib: is above the ([\d,]+) MiB of ([\w.-]+)/, "显存上限超过 $2 的 $1 MiB"],
  [/images: states no images/, "图像数写成 1.5 或 1.5x1024：每样本平均图像数 x 每图块数"],
  [/images: asks for images/, "没有该模型视觉编码器的数据：请清空图像数"],
  [/stopped before there was a plan/, "在找到方案之前已停止"],
  [/no plan was found in time on ([\d,]+) to ([\d,]+) devices/, "时限内没有找到 $1 到 $2 张卡的方案：请增大求解时限"],
  [/the token is missing or wrong/, "令牌缺失或有误：请打开 taylor serve 打印的链接"],
  [/its process died/, "求解进程已退出：是被终止了，还是内存不足？"],
];
const STATUS = { optimal: "proven", feasible: "open", cut_off: "slower", infeasible: "over", over_limit: "over" };
const POWERS = [1, 2, 4, 8, 16, 32, 64];
const SLIDERS = { tp: POWERS, pp: POWERS, ep: POWERS, cp: POWERS, vpp: [1, 2, 3, 4, 5, 6, 8], mbs: [1, 2, 4, 8],
  recompute: Array.from({ length: 21 }, (_, i) => 5 * i), risk: [0, 1, 2, 5, 10, 20, 50],
  seconds: [5, 10, 30, 60, 120, 300] };
const START = { model: "llama3-70b", device: "h100-80g", tp: 8, pp: 4, ep: 1, cp: 1, vpp: 1, mbs: 1, recompute: 100, risk: 5, seconds: 30 };
// Settings that a question leaves out where they are the usual ones.
const USUAL = { framework: null, software: [], sp: true, op: true, limit_mib: null, stage_limit: {}, run: null, images: "" };
const FIT = { fits: "yes", "exceeds the risk": "risky", "does not fit": "no" };
const OF_RUN = ["tp", "pp", "ep", "cp", "vpp", "mbs", "recompute"];
const FIELDS = ["model", "device", "ranks", "seq", "gbs"];
const DEGREES = ["dp", "tp", "pp", "ep", "cp", "vpp", "mbs"];
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#f0e442"];
const $ = (id) => document.getElementById(id);
let language = navigator.language.startsWith("zh") ? "zh" : "en";
let asked = 0, last = null, job = null, jobState = null, runs = [], seenRun = null, limits = {};

const word = (name) => WORDS[language][name] ?? name;
const fill = (name, values) => word(name).replace(/\{(\w+)\}/g, (_, key) => values[key]);
const number = (value, digits = 0) => value === null || value === undefined ? "–"
  : value.toLocaleString(language, { minimumFractionDigits: digits, maximumFractionDigits: digits });
const ms = (value) => value === null || value === undefined ? "–" : value >= 1e4 ? `${number(value / 1e3, 2)} s` : `${number(value, 1)} ms`;
const reason = (text) => {
  if (language !== "zh") return text;
  for (const [english, chinese] of CHINESE) {
    const found = text.match(english);
    if (found) return chinese.replace(/\$(\d)/g, (_, group) => found[group]);
  }
  return `程序的说明（英文）：${text}`;
};
const share = (value, digits = 1) => value === null || value === undefined ? "–" : `${number(100 * value, digits)} %`;
const gib = (mib) => (mib / 1024).toFixed(1);
const strategy = (degrees) => DEGREES.filter((name) => degrees[name] > 1)
  .map((name) => `${name.toUpperCase()}${degrees[name]}`).join(" ");

async function api(path, body, signal) {
  const options = { headers: { "X-Token": TOKEN }, signal };
  if (body !== undefined) { options.method = "POST"; options.body = body instanceof Blob ? body : JSON.stringify(body); }
  const reply = await fetch(path, options).catch(() => { throw Object.assign(new Error(word("lost")), { lost: true }); });
  const answer = await reply.json();
  if (!reply.ok) throw Object.assign(new Error(reason(answer.error)), { field: answer.field });
  return answer;
}

function element(name, text, attributes = {}) {
  const made = ["svg", "rect", "text", "line", "title", "polyline", "polygon", "circle", "path"].includes(name)
    ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  if (text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/* Rows of cells; a cell is a text or an element, and `words` names the columns that are no numbers. */
function table(columns, rows, words = [0]) {
  const line = (cells, kind) => {
    const row = element("tr", null);
    row.append(...cells.map((cell, index) => {
      const made = element(kind, null, words.includes(index) ? { class: "word" } : {});
      made.append(cell ?? "");
      return made;
    }));
    return row;
  };
  const made = element("table", null);
  made.append(line(columns, "th"), ...rows.map((row) => line(row, "td")));
  return made;
}

/* The settings. */

function question() {
  const ask = { model: $("model").value.trim(), device: $("device").value };
  for (const name of ["ranks", "seq", "gbs"]) ask[name] = Number($(name).value);
  for (const [name, values] of Object.entries(SLIDERS)) ask[name] = values[Number($(name).value)];
  if (Object.keys(limits).length) ask.stage_limit = limits;
  if (seenRun) ask.run = seenRun;
  if ($("framework").value) ask.framework = $("framework").value;
  const software = ["precision", "dispatcher"].map((id) => $(id).value).filter(Boolean);
  if (software.length) ask.software = software;
  if (!$("sp").checked) ask.sp = false;
  if (!$("op").checked) ask.op = false;
  if ($("images").value.trim()) ask.images = $("images").value.trim();
  if ($("limit").value) ask.limit_mib = 1024 * Number($("limit").value);
  return ask;
}

/* What a run of the present settings showed; null where the text is not of that form. */

function byStage(text) {
  const found = {};
  for (const part of text.split(",").filter((piece) => piece.trim())) {
    const match = part.match(/^\s*(\d+)\s*=\s*(\d+(?:\.\d+)?)\s*$/);
    if (!match) return null;
    found[match[1]] = Number(match[2]);
  }
  return found;
}

function learn() {
  const peaks = byStage($("seen-peak").value), kept = byStage($("seen-limit").value), out = $("seen-out").value.trim();
  if (!peaks || !kept || !/^[\d\s,]*$/.test(out)) { $("error").textContent = word("wrong_seen"); return; }
  const stages = out.split(",").filter((piece) => piece.trim()).map(Number), now = question();
  seenRun = Object.keys(peaks).length || stages.length ? { measured_peak: peaks, out_of_memory: stages } : null;
  if (seenRun) for (const name of OF_RUN) seenRun[name] = now[name];
  limits = kept;
  estimate();
}

function forget() {
  for (const name of ["seen-peak", "seen-out", "seen-limit"]) $(name).value = "";
  seenRun = null; limits = {};
  estimate();
}

const stagesText = (mib) => Object.entries(mib ?? {}).map(([stage, one]) => `${stage}=${one}`).join(",");

/* Show some settings, or with `USUAL` before them those of a whole question; the server judges what a link states. */

function set(ask) {
  if ("framework" in ask) $("framework").value = ask.framework ?? "";
  for (const id of ["sp", "op"]) if (id in ask) $(id).checked = ask[id] ?? true;
  if ("images" in ask) $("images").value = ask.images ?? "";
  if ("limit_mib" in ask) $("limit").value = ask.limit_mib ? ask.limit_mib / 1024 : "";
  if ("software" in ask) for (const id of ["precision", "dispatcher"]) {
    const named = [ask.software].flat();
    $(id).value = [...$(id).options].map((one) => one.value).find((one) => one && named.includes(one)) ?? "";
  }
  if ("stage_limit" in ask) { limits = ask.stage_limit ?? {}; $("seen-limit").value = stagesText(limits); }
  if ("run" in ask) {
    seenRun = ask.run;
    $("seen-peak").value = stagesText(seenRun?.measured_peak);
    $("seen-out").value = [seenRun?.out_of_memory ?? []].flat().join(",");
  }
  for (const name of FIELDS) if (name in ask) $(name).value = ask[name];
  for (const [name, values] of Object.entries(SLIDERS)) {
    if (!(name in ask)) continue;
    if (!values.includes(ask[name])) SLIDERS[name] = [...values, ask[name]].sort((a, b) => a - b);
    $(name).max = SLIDERS[name].length - 1;
    $(name).value = SLIDERS[name].indexOf(ask[name]);
    $(`${name}-shown`).textContent = ask[name];
  }
}

function remember() { sessionStorage.setItem("taylor", JSON.stringify({ ask: question(), job, language })); }

async function estimate() {
  const turn = ++asked;
  abandoned.abort();
  $("pipeline").classList.add("old");
  remember(); showStale();
  const busy = setTimeout(() => { $("even").setAttribute("aria-busy", "true"); }, 150);
  for (const one of document.querySelectorAll("[aria-invalid]")) one.removeAttribute("aria-invalid");
  try {
    const answer = await api("/api/estimate", question());
    if (turn !== asked) return;  // a later question is under way
    last = answer; $("error").textContent = "";
  } catch (error) {
    if (turn !== asked) return;
    last = null; $("error").textContent = error.message;
    $({ "--with": "precision" }[error.field] ?? error.field?.replace(/^-+/, ""))?.setAttribute("aria-invalid", "true");
  } finally {
    clearTimeout(busy);
    if (turn === asked) $("even").removeAttribute("aria-busy");
  }
  showFigures();
  document.body.dataset.answered = turn;
  clearTimeout(later);
  if (last) later = setTimeout(askMore, 400, turn); else $("pipeline").hidden = true;
}

/* What takes longer than the answer, asked for once the settings rest: the pipeline, then what would be better. */

let steps = null;

async function askMore(turn) {
  abandoned = new AbortController();
  try {
    const found = (await api("/api/pipeline", question(), abandoned.signal)).pipeline;
    if (turn !== asked) return;
    steps = found;
    drawPipeline($("pipeline"), steps);
    document.body.dataset.drawn = turn;
  } catch { if (turn === asked) $("pipeline").hidden = true; }
  if (turn === asked) await askChanges(turn);
}

/* Changes that make the job fit, or faster. */

let later = 0, changes = null, abandoned = new AbortController();

async function askChanges(turn) {
  try {
    const found = (await api("/api/changes", question(), abandoned.signal)).changes;
    if (turn !== asked) return;
    changes = found; showChanges();
    document.body.dataset.changes = turn;
  } catch { if (turn === asked) { changes = null; showChanges(); } }
}

const changeText = (change) => Object.entries(change).map(([name, value]) => name === "software" ? value[value.length - 1]
  : name === "recompute" ? `${word("again_short")} ${number(value)} %` : name === "ranks" ? `${number(value)} × ${$("device").value}`
    : typeof value === "boolean" ? word(name) : `${name.toUpperCase()} ${value}`).join(", ");

function showChanges() {
  $("changes").replaceChildren();
  if (!last || changes === null) return;
  if (!changes.length) { if (!last.fits) $("changes").append(element("span", word("no_change"))); return; }
  $("changes").append(element("span", word(last.fits ? "changes_fast" : "changes_fit")));
  for (const one of changes) {
    const gain = `${one.gain < 0 ? "−" : "+"}${number(100 * Math.abs(one.gain), 1)} %`;
    const button = element("button", `${changeText(one.change)}: ${ms(one.step_ms)} (${fill("per_device", { gain })})`, { type: "button" });
    button.addEventListener("click", () => { set(one.change); changes = null; estimate(); });
    $("changes").append(button);
  }
}

/* A file of one's own. */

async function give(file) {
  $("given").textContent = ""; $("given").className = "";
  try {
    if (file.size > 1 << 20) throw new Error(word("too_big"));
    const stated = await api(`/api/own?name=${encodeURIComponent(file.name)}`, file);
    set({ ...USUAL, ...stated.ask });
    $("given").textContent = [fill("given", { file: file.name, title: stated.title, name: stated.name }), ...stated.notes].join(" ");
    document.body.dataset.given = file.name;
    changes = null;
    await estimate();
  } catch (error) { $("given").textContent = error.message; $("given").className = "bad"; }
}

/* A link that states the settings, and nothing of the server. */

const coded = (ask) => btoa(String.fromCharCode(...new TextEncoder().encode(JSON.stringify(ask)))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");

function linked() {
  const text = new URLSearchParams(location.hash.slice(1)).get("q");
  if (!text) return null;
  try {
    const bytes = Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (one) => one.charCodeAt(0));
    const ask = JSON.parse(new TextDecoder().decode(bytes));
    return ask && typeof ask === "object" && !Array.isArray(ask) ? ask : null;
  } catch { return null; }
}

async function copyLink() {
  const link = `${location.origin}/#q=${coded(question())}`;
  try { await navigator.clipboard.writeText(link); $("said").textContent = word("copied"); }
  catch { $("said").textContent = link; }
  document.body.dataset.link = link;
}

async function startFile() {
  try {
    const made = await api(`/api/start/${$("start-framework").value}`, question());
    const link = element("a", null, { href: URL.createObjectURL(new Blob([made.text], { type: "text/plain" })), download: made.name });
    link.click();
    URL.revokeObjectURL(link.href);
    $("said").textContent = made.name;
  } catch (error) { $("said").textContent = error.message; }
}

function showStale() {
  $("stale").hidden = !(job && job.ask && jobState && jobState.state === "done" && JSON.stringify(job.ask) !== JSON.stringify(question()));
}

const utilization = (speed) => share(speed.mfu) + (speed.mfu_precision ? ` (${speed.mfu_precision})` : "");

function showFigures() {
  $("figures").replaceChildren(); $("chart").hidden = !last;
  const notes = last && last.unmodelled.length ? [word("unmodelled") + last.unmodelled.join("; ")] : [];
  if (last) notes.unshift(...last.learned.map(reason));
  if (last && !last.fits) notes.unshift(reason(last.verdict.sentence));
  $("over").textContent = last ? last.over.map((stage) => fill("over_stage", { stage,
    over: gib(last.peak_mib[stage] - last.limits_mib[stage]) })).join(" ") : "";
  showAssumed(); showChanges();
  $("notes").textContent = notes.join(" · ");
  if (!last) return;
  const figures = { step: ms(last.step_ms), mfu: utilization(last), rate: number(last.tokens_per_second),
    dp: number(last.dp), micro: number(last.micro_batches), fits: word(FIT[last.verdict.fit] ?? "open_fit") + sure(last.verdict) };
  for (const [name, text] of Object.entries(figures)) {
    const box = element("div", null), value = element("dd", text, { id: `figure-${name}` });
    if (name === "fits" && !last.fits) value.className = "bad";
    if (name === "step") {
      const [low, high] = last.step_interval_ms.map(ms);
      box.title = last.narrowed_by;
      value.append(element("small", fill("within", { low, high })));
    }
    if (TIPS[language][name]) box.title = TIPS[language][name];
    box.append(element("dt", word(name)), value);
    $("figures").append(box);
  }
  drawMemory(last);
}

/* What the figures rest on. */

const plainly = (value) => Array.isArray(value) ? value.join(", ") || "–" : value === true ? word("yes") : value === false ? word("no") : String(value);

function showAssumed() {
  $("assumed").replaceChildren(); $("sentences").replaceChildren(); $("rests").hidden = !last;
  if (!last) return;
  const { sentences, risk, limit_mib: limit, ...facts } = last.assumed;
  const shown = { ...facts, limit_mib: gib(limit), risk_share: share(risk, 0) };
  for (const [name, value] of Object.entries(shown)) {
    const box = element("div", null);
    box.append(element("dt", word(name)), element("dd", plainly(value)));
    $("assumed").append(box);
  }
  $("sentences").append(...sentences.map((one) => element("li", reason(one))));
}

/* Probability of the answer; none is certain. */

function sure(verdict) {
  if (verdict.probability === null) return "";
  const percent = 100 * (verdict.fit === "does not fit" ? verdict.risk : verdict.probability);
  return percent < 99 ? ` (${number(percent)} %)` : " (> 99 %)";
}

/* Round numbers of GiB below a level, as MiB. */

function memoryTicks(top) {
  const tick = 1024 * [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((each) => 1024 * each * 5 >= top);
  return Array.from({ length: Math.ceil(top / tick) }, (_, at) => at * tick);
}

function drawMemory(jobState) {
  const svg = $("memory"), stages = jobState.peak_mib.length, names = Object.keys(jobState.parts);
  const most = jobState.peak_mib.map((peak, stage) => jobState.peak_interval_mib?.[stage][1] ?? peak);
  const right = svg.clientWidth || 640, top = 1.08 * Math.max(jobState.limit_mib, ...jobState.whole_mib, ...most);
  const wide = (right - 44) / stages, bottom = 205, high = 200 / top;
  const level = (mib) => bottom - high * mib;
  svg.setAttribute("viewBox", `0 0 ${right} 230`);
  svg.replaceChildren();
  for (const mib of memoryTicks(top)) {
    svg.append(element("line", null, { class: "grid", x1: 40, x2: right, y1: level(mib), y2: level(mib) }),
      element("text", number(mib / 1024), { x: 34, y: level(mib) + 4, "text-anchor": "end" }));
  }
  for (let stage = 0; stage < stages; stage++) {
    const x = 40 + stage * wide, width = Math.max(1, Math.min(0.8 * wide, 80)), left = x + (wide - width) / 2;
    let sum = 0;
    names.forEach((name, index) => {
      const mib = jobState.parts[name][stage];
      sum += mib;
      const bar = element("rect", null, { x: left, y: level(sum), width, height: high * mib, fill: COLOURS[index % COLOURS.length] });
      bar.append(element("title", `${word("stage")} ${stage}: ${word(name)} ${gib(mib)} GiB`));
      svg.append(bar);
    });
    const whisker = element("line", null, { class: "interval", x1: x + wide / 2, x2: x + wide / 2,
      y1: level(jobState.peak_mib[stage]), y2: level(most[stage]) });
    whisker.append(element("title", `${word("stage")} ${stage}: ${word("upto")} ${gib(most[stage])} GiB`));
    svg.append(whisker);
    const every = Math.ceil(24 / wide);
    if (stage % every === 0) svg.append(element("text", String(stage), { x: x + wide / 2, y: 220, "text-anchor": "middle" }));
  }
  const whole = Math.max(...jobState.whole_mib), limit = level(whole);
  svg.append(element("line", null, { class: "limit", x1: 40, x2: right, y1: limit, y2: limit }),
    element("text", `${word("limit")} ${gib(whole)}`, { x: right, y: limit - 4, "text-anchor": "end" }));
  svg.setAttribute("aria-label", `${word("memory")}: ${jobState.peak_mib.map(gib).join(", ")}`);
  $("legend").replaceChildren(...names.map((name, index) => {
    const shown = element("span", word(name)), mark = element("i", null);
    mark.style.background = COLOURS[index % COLOURS.length];
    shown.prepend(mark);
    return shown;
  }));
}

/* Solves and rankings. */

async function start(kind) {
  jobState = { state: "waiting" };
  delete document.body.dataset.done;
  const ask = question();
  try { job = { kind, ask, name: (await api(`/api/jobs/${kind}`, ask)).job }; }
  catch (error) { jobState = { state: "done", files: [], answer: { jobState: error.message } }; }
  remember(); showAnswer();
  if (jobState.state !== "done") follow(job.name);
}

async function follow(name) {
  if (job === null || name !== job.name) return;
  let wait = 400;
  try {
    const state = await api(`/api/job/${name}`);
    if (name !== job.name) return;
    jobState = state;
  } catch (error) {
    if (!error.lost) { job = jobState = null; remember(); showAnswer(); return; }  // a server that was started anew
    jobState = { ...jobState, lost: true }; wait = 2000;
  }
  showAnswer();
  if (jobState.state !== "done") { setTimeout(follow, wait, name); return; }
  document.body.dataset.done = name;
  history_();
}

function showAnswer() {
  const kind = { rank: "ranking", size: "sizing" }[job && job.kind] ?? "plan", open = jobState !== null && jobState.state !== "done";
  showStale();
  $("answer").dataset.word = kind; $("answer").textContent = word(kind);
  $("stop").hidden = !open;
  for (const id of ["plan", "files"]) $(id).replaceChildren();
  $("progress").className = "";
  if (jobState === null) { $("progress").textContent = word("hint"); return; }
  if (open) {
    const so_far = jobState.progress;
    $("progress").textContent = jobState.lost ? word("lost") : jobState.state === "waiting" ? word("waiting")
      : so_far ? fill("found", { step: ms(so_far.step), bound: ms(so_far.bound) })
        : word({ ranking: "ranks_now", sizing: "sizes_now" }[kind] ?? "starting");
    return;
  }
  const answer = jobState.answer;
  if (answer.error || answer.jobState) { $("progress").textContent = answer.jobState ?? reason(answer.error); $("progress").className = "bad"; }
  else if (answer.rows) showRanking(answer);
  else if (answer.sized) showSize(answer);
  else showPlan(answer);
  for (const role of jobState.files) {
    const link = element("a", word(role), { id: `file-${role}`,
      href: jobState.links[role] });
    if (role === "report") link.target = "_blank"; else link.download = "";
    $("files").append(link);
  }
}

function showPlan(answer) {
  const status = answer.status === "optimal" ? "optimal" : "feasible";
  $("progress").textContent = (answer.stopped ? `${word("stopped")} ` : "") + fill(status, { step: ms(answer.step_ms),
    bound: ms(answer.bound_ms), gap: share(answer.gap, 2), mfu: utilization(answer), rate: number(answer.tokens_per_second) })
    + (answer.unwritten?.length ? ` ${fill("unwritten", { files: answer.unwritten.join(", ") })}` : "");
  const rows = [];
  const add = (text, grid) => grid.forEach((row, chunk) => rows.push(
    [grid.length > 1 ? fill("chunk", { text, chunk }) : text, ...row.map(String)]));
  for (const [kind, grid] of Object.entries(answer.layers)) add(fill("layers", { kind }), grid);
  for (const [mode, grid] of Object.entries(answer.recompute)) {
    if (grid.some((row) => row.some((count) => count))) add(fill("again", { mode }), grid);
  }
  rows.push([word("peak"), ...answer.peak_memory.map(gib)]);
  const host = element("div", null, { id: "plan-pipeline" });
  $("plan").append(table([word("stage"), ...answer.peak_memory.map((_, stage) => String(stage))], rows), host);
  drawPipeline(host, answer.pipeline);
}

function showRanking(answer) {
  $("progress").textContent = answer.ties > 1 ? fill("ties", { count: answer.ties, share: share(answer.tie_share, 0) }) : "";
  const rows = answer.rows.map((cells, index) => {
    const row = Object.fromEntries(answer.columns.map((name, index) => [name, cells[index]]));
    const take = element("button", word("take"), { type: "button" });
    take.addEventListener("click", () => use(row));
    const tied = index < answer.ties && answer.ties > 1 ? ` (${word("tie")})` : "";
    return [take, strategy(row) + tied, ms(row.cost), row.cost ? fill("within", { low: ms(row.low), high: ms(row.high) }) : "–", share(row.mfu), share(row.gap, 2), share(row.risk),
      word(STATUS[row.status] || "failed")];
  });
  $("plan").append(table(["take", "strategy", "step", "interval", "mfu", "gap", "run_out", "status"].map(word), rows, [0, 1, 7]));
  showStrategies(answer);
}

/* The ranking's strategies as lines: the degrees that differ, the step, the memory of the fullest stage. */

function showStrategies(answer) {
  const found = answer.rows.map((cells, place) => ({ place, ...Object.fromEntries(answer.columns.map((name, index) => [name, cells[index]])) }))
    .filter((row) => row.cost !== null);
  if (found.length < 2) return;
  const differs = DEGREES.filter((name) => new Set(found.map((row) => row[name])).size > 1);
  const axes = [...differs.map((name) => ({ name: name.toUpperCase(), shown: String, of: (row) => row[name] })),
    { name: word("step"), shown: ms, spread: true, of: (row) => row.cost }, { name: word("peak_gib"), shown: gib, spread: true, of: (row) => row.peak }];
  const lines = found.map((row, at) => ({ values: axes.map((axis) => axis.of(row)), title: `${strategy(row)}: ${ms(row.cost)}, ${gib(row.peak)} GiB`,
    tone: at === 0 ? "best" : row.place < answer.ties ? "tie" : "" }));
  const host = element("div", null, { id: "strategies" });
  $("plan").append(element("h3", word("strategies")), host);
  parallelAxes(host, axes, lines, `${word("strategies")}: ${lines.map((line) => line.title).join("; ")}`, (at) => use(found[at]));
}

function use(row) {
  set(Object.fromEntries(DEGREES.slice(1).map((name) => [name, row[name]])));
  estimate();
}

/* Speed of a device over the number of devices, which doubles from point to point. */

function showSize(answer) {
  $("progress").textContent = answer.lines.map(reason).join(". ");
  const curve = answer.sized.curve, points = curve.filter((one) => one.strategy);
  const speed = (one) => one.tokens_per_second_per_device, ends = (one) => one.step_interval_ms.map((end) => speed(one) * one.step_ms / end);
  const top = 1.08 * Math.max(...points.map((one) => Math.max(...ends(one))));
  const x = (one) => 60 + 560 * curve.indexOf(one) / Math.max(1, curve.length - 1), y = (value) => 185 - 170 * value / top;
  const svg = element("svg", null, { class: "curve", viewBox: "0 0 640 220", role: "img",
    "aria-label": `${word("curve")}: ${points.map((one) => `${one.devices}: ${number(speed(one))}`).join(", ")}` });
  for (let at = 0; at <= 4; at++) svg.append(element("line", null, { class: "grid", x1: 56, x2: 624, y1: y(top * at / 4), y2: y(top * at / 4) }),
    element("text", number(top * at / 4), { x: 50, y: y(top * at / 4) + 4, "text-anchor": "end" }));
  for (const one of curve) svg.append(element("text", one.devices >= 1024 ? `${one.devices / 1024}k` : String(one.devices), { x: x(one), y: 205, "text-anchor": "middle" }));
  const line = (list) => list.map(([at, value]) => `${x(at)},${y(value)}`).join(" ");
  svg.append(element("polygon", null, { points: line([...points.map((one) => [one, ends(one)[0]]), ...[...points].reverse().map((one) => [one, ends(one)[1]])]) }),
    element("polyline", null, { points: line(points.map((one) => [one, speed(one)])) }),
    ...points.map((one) => element("circle", null, { cx: x(one), cy: y(speed(one)), r: 3 })));
  const rows = points.map((one) => [number(one.devices), strategy(one.strategy), ms(one.step_ms), number(speed(one)), share(one.kept, 0), share(one.efficiency, 0)]);
  $("plan").append(element("h3", word("curve")), svg, table(["devices", "strategy", "step", "rate", "kept", "efficiency"].map(word), rows, [1]));
}

/* What was found before. */

const ticked = () => [...document.querySelectorAll("#history input:checked")].map((one) => one.value);

async function history_() {
  runs = (await api("/api/history")).runs;
  showHistory();
}

function showHistory() {
  const before = ticked();
  if (!runs.length) { $("history").replaceChildren(element("caption", word("nothing"))); $("compare").hidden = true; return; }
  $("compare").hidden = false;
  const rows = runs.map((run) => {
    const best = run.plans[0], degrees = best ? JSON.parse(best.strategy) : {};
    const pick = element("input", null, { type: "checkbox", value: run.id, "aria-label": run.id });
    pick.checked = before.includes(run.id);
    pick.addEventListener("change", () => { $("compare").disabled = ticked().length !== 2; });
    return [run.ranking ? "" : pick, run.id, new Date(run.at).toLocaleString(language, { dateStyle: "short", timeStyle: "short" }),
      word(run.ranking ? "ranking" : "a_solve"), run.model, run.device, number(run.ranks), strategy(degrees), ms(best && best.step_ms)];
  });
  const heads = ["pick", "run", "when", "kind", "model", "device", "ranks", "strategy", "step"].map(word);
  $("history").replaceChildren(...table(heads, rows, [0, 1, 2, 3, 4, 5, 7]).childNodes);
  $("compare").disabled = ticked().length !== 2;
}

async function compare() {
  const [first, second] = ticked();
  try { $("verdict").textContent = (await api(`/api/compare/${first}/${second}`)).verdict; }
  catch (error) { $("verdict").textContent = error.message; }
}

/* The page. */

function speak() {
  document.documentElement.lang = language;
  for (const each of document.querySelectorAll("[data-word]")) each.textContent = word(each.dataset.word);
  for (const each of document.querySelectorAll("[data-slider]")) each.textContent = WORDS[language][each.dataset.slider] ?? each.dataset.slider.toUpperCase();
  for (const [name, tip] of Object.entries(TIPS[language])) $(name)?.closest("label")?.setAttribute("title", tip);
  for (const one of document.querySelectorAll("option[value='']")) one.textContent = word("usual");
  $("start-framework").setAttribute("aria-label", word("framework"));
  $("language").textContent = language === "en" ? "中文" : "English";
  showFigures(); showAnswer(); showHistory();
  if (last) drawPipeline($("pipeline"), steps);
}

async function begin() {
  const kept = JSON.parse(sessionStorage.getItem("taylor")) || {};
  language = kept.language || language;
  for (const name of Object.keys(SLIDERS)) {
    const label = element("label", null), shown = element("output", null, { id: `${name}-shown` });
    const slider = element("input", null, { type: "range", id: name, min: 0, max: SLIDERS[name].length - 1 });
    slider.addEventListener("input", () => { shown.textContent = SLIDERS[name][Number(slider.value)]; estimate(); });
    label.append(element("span", null, { "data-slider": name }), slider, shown);
    $("sliders").append(label);
  }
  for (const name of FIELDS) $(name).addEventListener("change", estimate);
  const choices = await api("/api/choices");
  $("models").append(...choices.models.map((name) => element("option", null, { value: name })));
  $("device").append(...choices.devices.map((name) => element("option", name)));
  const listed = (id, values) => $(id).append(...values.map((value) => element("option", value, { value })));
  listed("framework", ["", ...choices.frameworks]); listed("start-framework", choices.frameworks);
  listed("precision", ["", ...["fp8", "fp4"].flatMap((name) => choices.features[name].map((value) => `${name}=${value}`))]);
  listed("dispatcher", ["", ...choices.features.dispatcher.map((value) => `dispatcher=${value}`)]);
  set({ ...START, ...USUAL, ...(linked() ?? kept.ask) });
  for (const id of ["framework", "precision", "dispatcher", "sp", "op", "limit"]) $(id).addEventListener("change", estimate);
  $("file").addEventListener("change", () => { if ($("file").files.length) give($("file").files[0]); $("file").value = ""; });
  for (const kind of ["dragover", "dragleave", "drop"]) document.addEventListener(kind, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files.length) give(event.dataTransfer.files[0]);
  });
  $("link").addEventListener("click", copyLink);
  $("start").addEventListener("click", startFile);
  $("back").addEventListener("click", () => { set({ ...USUAL, ...job.ask }); estimate(); });
  window.addEventListener("hashchange", () => { const ask = linked(); if (ask) { set({ ...START, ...USUAL, ...ask }); estimate(); } });
  $("solve").addEventListener("click", () => start("solve"));
  $("rank").addEventListener("click", () => start("rank"));
  $("size").addEventListener("click", () => start("size"));
  $("learn").addEventListener("click", learn);
  $("forget").addEventListener("click", forget);
  $("stop").addEventListener("click", () => api(`/api/job/${job.name}/stop`, {}));
  $("compare").addEventListener("click", compare);
  window.addEventListener("resize", () => { if (last) { drawMemory(last); drawPipeline($("pipeline"), steps); } });
  $("language").addEventListener("click", () => { language = language === "en" ? "zh" : "en"; remember(); speak(); });
  if (kept.job) { job = kept.job; jobState = { state: "waiting" }; follow(job.name); }
  speak();
  await estimate();
  await history_();
  document.body.dataset.ready = "yes";
}
begin().catch((error) => { $("error").textContent = error.message; });
