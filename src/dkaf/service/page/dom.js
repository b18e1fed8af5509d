// Elements are made by calls and texts are set as texts: nothing that came from a table is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

// New contents, with the focus where it was: what can be focused and is made anew carries a `data-key`.
export function refill(parent, ...children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const open = new Set([...parent.querySelectorAll("details[open][data-key]")].map((node) => node.dataset.key));
  parent.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  for (const node of parent.querySelectorAll("[data-key]")) {
    if (open.has(node.dataset.key)) node.open = true;
    if (node.dataset.key === focused) node.focus({ preventScroll: true });
  }
}

// What is estimated, rounded. A very large or small one in powers of ten: its zeros would not be read.
export function headOf(names) {
  return el(
    "thead",
    {},
    el(
      "tr",
      {},
      names.map((text) => el("th", { scope: "col" }, text)),
    ),
  );
}

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0"; // there is a -0
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-4) return Number(value.toPrecision(digits)).toExponential().replace("e+", "e");
  return value.toLocaleString("en", { maximumSignificantDigits: digits, useGrouping: false });
}

// What somebody told, every digit of it.
export function exact(value) {
  if (value === null || value === undefined) return "–";
  return String(value === 0 ? 0 : value);
}

export function when(text) {
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return el("span", {}, text ?? "");
  const shown = at.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  return el("time", { datetime: at.toISOString() }, shown);
}

export function plural(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}

const SHOWN = 4000; // ms
let fading;

// Shown for a while, and said by a screen reader; emptied first, so that the same sentence is said again.
export function announce(text) {
  const news = document.getElementById("news");
  clearTimeout(fading);
  news.textContent = "";
  if (!text) return;
  fading = setTimeout(() => {
    news.textContent = text;
    fading = setTimeout(() => (news.textContent = ""), SHOWN);
  }, 50);
}

export function showProblem(text) {
  const box = document.getElementById("problem");
  if (box.querySelector("p").textContent === (text ?? "")) return; // said once, not at every further try
  box.hidden = !text;
  box.querySelector("p").textContent = text ?? "";
}
