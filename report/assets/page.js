// What every script of the page uses: its packed data, elements, colours of the reader's theme.
"use strict";

const byId = (id) => document.getElementById(id);

function element(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "class") node.className = value;
    else node.setAttribute(name, value);
  }
  for (const child of children) node.append(child);
  return node;
}

// The text of a script element that holds gzip in base64.
async function unpacked(id) {
  const bytes = Uint8Array.from(atob(byId(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

const dark = window.matchMedia("(prefers-color-scheme: dark)");

function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Set once the page's data are unpacked.
let REPORT = null, PALETTE = null;

function figure(text) {
  return text === "" || text === undefined || text === null || Number.isNaN(Number(text)) ? null : Number(text);
}

function fixed(digits) {
  // One formatter for all cells: making one costs more than using it a thousand times.
  const format = new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return (text) => (figure(text) === null ? text : format.format(Number(text)));
}
