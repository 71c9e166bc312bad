// A table that sorts by a click on a heading and filters by text and by column. Text is only ever set
// as text, so that no name in the data can become markup.
"use strict";

// A filter such as "8", "8,16", ">=4", "!=failed" or any part of the text.
function matcher(filter) {
  const text = filter.trim().toLowerCase();
  if (!text) return null;
  const compared = /^(<=|>=|<|>|!=|=)\s*(.+)$/.exec(text);
  if (compared) {
    const [, sign, wanted] = compared;
    const limit = Number(wanted);
    if (sign === "!=") return (raw) => raw.toLowerCase() !== wanted;
    if (sign === "=") return (raw) => raw.toLowerCase() === wanted;
    if (Number.isNaN(limit)) return (raw) => raw.toLowerCase().includes(text);
    const tests = { "<": (x) => x < limit, ">": (x) => x > limit, "<=": (x) => x <= limit, ">=": (x) => x >= limit };
    return (raw) => raw !== "" && tests[sign](Number(raw));
  }
  const choices = text.split(",").map((part) => part.trim()).filter((part) => part);
  if (choices.length && choices.every((part) => !Number.isNaN(Number(part)))) {
    const figures = choices.map(Number);
    return (raw, shown) => (raw !== "" && figures.includes(Number(raw))) || (Number.isNaN(Number(raw)) && shown.includes(text));
  }
  return (raw, shown) => raw.toLowerCase().includes(text) || shown.toLowerCase().includes(text);
}

function compareCells(a, b) {
  // Empty cells go last in either direction; the caller handles the direction of the others.
  const x = Number(a), y = Number(b);
  if (!Number.isNaN(x) && !Number.isNaN(y)) return x - y;
  return a < b ? -1 : a > b ? 1 : 0;
}

// columns: [{title, number, wide, raw(row) -> text, shown(row) -> text}]; options: {label, filters, choose, page}
class DataTable {
  constructor(host, columns, rows, options) {
    this.columns = columns;
    this.rows = rows;
    this.options = Object.assign({ page: 1000, filters: true }, options);
    this.sortColumn = -1;
    this.ascending = true;
    this.filters = columns.map(() => null);
    this.search = null;
    this.limit = this.options.page;
    this.selected = null;
    this.cells = rows.map((row) => columns.map((column) => [String(column.raw(row)), String(column.shown(row))]));
    this.order = rows.map((_, index) => index);
    this.build(host);
    this.draw();
  }

  build(host) {
    const find = element("input", { type: "search", placeholder: "filter every column", "aria-label": `filter ${this.options.label}` });
    find.addEventListener("input", () => { this.search = matcher(find.value); this.draw(); });
    this.count = element("span", { class: "soft", role: "status" });
    this.more = element("button", { type: "button" }, "show all");
    this.more.addEventListener("click", () => { this.limit = Infinity; this.draw(); });
    host.append(element("div", { class: "bar" }, find, this.count, this.more));
    const heads = element("tr"), inputs = element("tr", { class: "filters" });
    this.heads = this.columns.map((column, index) => {
      const button = element("button", { type: "button" }, column.title);
      button.addEventListener("click", () => this.sortBy(index));
      const head = element("th", { scope: "col", class: column.number ? "number" : "", "aria-sort": "none" }, button);
      if (column.help) head.title = column.help;
      heads.append(head);
      const input = element("input", { type: "text", "aria-label": `filter column ${column.title}`, title: "text, 8,16 or >=4" });
      input.addEventListener("input", () => { this.filters[index] = matcher(input.value); this.draw(); });
      inputs.append(element("th", {}, input));
      return head;
    });
    const top = element("thead", {}, heads);
    if (this.options.filters) top.append(inputs);
    this.body = element("tbody");
    host.append(element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `table: ${this.options.label}` }, element("table", { "aria-label": this.options.label }, top, this.body)));
  }

  sortBy(index) {
    this.ascending = this.sortColumn === index ? !this.ascending : true;
    this.sortColumn = index;
    const sign = this.ascending ? 1 : -1;
    this.order.sort((a, b) => {
      const x = this.cells[a][index][0], y = this.cells[b][index][0];
      if (x === "" || y === "") return (x === "") - (y === "") || a - b;
      return sign * compareCells(x, y) || a - b;
    });
    this.heads.forEach((head, at) => head.setAttribute("aria-sort", at !== index ? "none" : this.ascending ? "ascending" : "descending"));
    this.draw();
  }

  passes(index) {
    const cells = this.cells[index];
    if (this.search && !cells.some(([raw, shown]) => this.search(raw, shown))) return false;
    return this.filters.every((test, at) => !test || test(cells[at][0], cells[at][1]));
  }

  draw() {
    const passing = this.order.filter((index) => this.passes(index));
    const shown = passing.slice(0, this.limit);
    const fragment = document.createDocumentFragment();
    for (const index of shown) fragment.append(this.row(index));
    this.body.replaceChildren(fragment);
    this.count.textContent = `${shown.length} of ${this.rows.length} shown` + (passing.length > shown.length ? ` (${passing.length} match)` : "");
    this.more.hidden = passing.length <= shown.length;
  }

  row(index) {
    const line = document.createElement("tr");
    line.dataset.index = index;
    this.columns.forEach((column, at) => {
      const cell = document.createElement("td");
      const [raw, shown] = this.cells[index][at];
      if (column.number) cell.className = "number";
      if (column.wide) cell.className = "wide";
      cell.setAttribute("data-value", raw);
      cell.textContent = shown;
      line.append(cell);
    });
    if (this.options.choose) {
      line.classList.add("choosable");
      line.tabIndex = 0;
      if (index === this.selected) this.mark(line, true);
      line.addEventListener("click", () => this.choose(index));
      line.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.choose(index); }
      });
    }
    return line;
  }

  mark(line, on) {
    line.classList.toggle("selected", on);
    line.setAttribute("aria-selected", on ? "true" : "false");
  }

  choose(index) {
    this.selected = index;
    for (const line of this.body.children) this.mark(line, Number(line.dataset.index) === index);
    this.options.choose(index);
  }
}
