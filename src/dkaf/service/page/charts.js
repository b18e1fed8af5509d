// The charts as SVG: drawn at the width there is, so that their texts keep their size, and each with a table that says
// the same in words.

import { el, exact, headOf, number, refill, svg } from "./dom.js";

const RIGHT = 12,
  TOP = 10,
  BOTTOM = 36;
const TABLE_ROWS = 50;
const SHADES = 5;
const pen = document.createElement("canvas").getContext("2d");

// `draw(width)` gives the chart; it is called again whenever the width changes.
export class Chart {
  constructor(title, kind) {
    this.picture = el("div", { class: "picture" });
    this.words = el("div", {});
    this.node = el(
      "figure",
      { class: `card chart ${kind}` },
      el("figcaption", {}, el("h3", {}, title)),
      this.picture,
      this.words,
    );
    new ResizeObserver(([entry]) => this.paint(Math.floor(entry.contentRect.width))).observe(this.picture);
  }

  show(draw, table) {
    this.draw = draw;
    refill(this.words, table);
    if (this.width) this.paint(this.width, true);
  }

  paint(width, anew = false) {
    if (!anew && width === this.width) return;
    this.width = width;
    if (this.draw && width) refill(this.picture, this.draw(width));
  }
}

export function asTable(caption, head, rows) {
  if (!rows.length) return null;
  const shown = rows.slice(0, TABLE_ROWS);
  return el(
    "details",
    { "data-key": "table" },
    el("summary", { "data-key": "table summary" }, "As a table"),
    el(
      "table",
      {},
      el(
        "caption",
        {},
        rows.length > shown.length ? `${caption}, the first ${shown.length} of ${rows.length}` : caption,
      ),
      headOf(head),
      el(
        "tbody",
        {},
        shown.map((row) =>
          el(
            "tr",
            {},
            row.map((cell) => el("td", {}, String(cell))),
          ),
        ),
      ),
    ),
  );
}

const nothing = (text) => el("p", { class: "quiet nothing" }, text);

function ticks(low, high, about = 4) {
  const rough = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) found.push(i * step);
  return found;
}

// With as many digits as tell one from the next.
function tickWords(values) {
  if (values.length < 2) return values.map((value) => number(value));
  const largest = Math.max(...values.map(Math.abs));
  const digits = Math.ceil(Math.log10(largest / (values[1] - values[0]))) + 1;
  return values.map((value) => number(value, Math.min(15, Math.max(2, digits))));
}

function extent(values) {
  return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
}

function scale(values, from, to) {
  let [low, high] = extent(values);
  const pad = low === high ? Math.max(0.5, Math.abs(low) / 20) : (high - low) * 0.05;
  [low, high] = [low - pad, high + pad];
  const at = (value) => from + ((value - low) / (high - low)) * (to - from);
  return Object.assign(at, { low, high });
}

// What the numbers beside an axis take, and its title.
function left(y, width) {
  pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const widest = Math.max(...tickWords(ticks(y.low, y.high)).map((text) => pen.measureText(text).width));
  return Math.min(width / 2, Math.max(40, Math.ceil(widest) + 28));
}

function frame(width, height, label, y, start, yTitle, xTitle, xTicks = []) {
  const values = ticks(y.low, y.high);
  const words = tickWords(values);
  return svg(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    values.map((value, i) => [
      svg("line", { class: "grid", x1: start, x2: width - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: start - 6, y: y(value) + 4, "text-anchor": "end" }, words[i]),
    ]),
    xTicks.map(([at, text]) => svg("text", { x: at, y: height - BOTTOM + 16, "text-anchor": "middle" }, text)),
    svg("text", { class: "axis", x: (start + width - RIGHT) / 2, y: height - 4, "text-anchor": "middle" }, xTitle),
    svg(
      "text",
      { class: "axis", transform: `translate(12 ${height / 2}) rotate(-90)`, "text-anchor": "middle" },
      yTitle,
    ),
  );
}

const titled = (node, text) => {
  node.append(svg("title", {}, text));
  return node;
};

export function drawProgress({ measured, best }, response) {
  return (width) => {
    if (!measured.length) return nothing("Nothing is measured yet.");
    const height = 240;
    const y = scale([...measured, ...best], height - BOTTOM, TOP);
    const start = left(y, width);
    const x = scale([1, Math.max(2, measured.length)], start, width - RIGHT);
    const label = `Best ${response} after each measurement: ${exact(best.at(-1))} after ${measured.length}.`;
    const whole = ticks(1, Math.max(2, measured.length))
      .filter(Number.isInteger)
      .map((value) => [x(value), String(value)]);
    const chart = frame(width, height, label, y, start, response, "measurement", whole);
    const steps = best.map((value, i) => (i ? `H${x(i + 1)}V${y(value)}` : `M${x(1)} ${y(value)}`)).join("");
    chart.append(svg("path", { class: "best-line", d: steps }));
    measured.forEach((value, i) =>
      chart.append(
        titled(svg("circle", { class: "measured", cx: x(i + 1), cy: y(value), r: 3.5 }), `${i + 1}: ${exact(value)}`),
      ),
    );
    return [chart, legend(["key-dot", "measured"], ["key-line", "best so far"])];
  };
}

// `lines` have a method, which is their style, a name, and a distance after 0, 1, ... tries.
export function drawRace(lines, most) {
  return (width) => {
    const height = 260;
    const y = scale([0, ...lines.flatMap(({ distances }) => distances)], height - BOTTOM, TOP);
    const start = left(y, width);
    const x = scale([0, most], start, width - RIGHT);
    const tries = lines[0].distances.length - 1;
    const label = `Distance of the nearest after ${tries} tries: ${lines.map(({ name, distances }) => `${name} ${number(distances.at(-1), 3)}`).join(", ")}.`;
    const whole = Array.from({ length: most + 1 }, (_, i) => [x(i), String(i)]);
    const chart = frame(width, height, label, y, start, "distance", "tries", whole);
    for (const { method, name, distances } of lines) {
      const steps = distances.map((value, i) => (i ? `H${x(i)}V${y(value)}` : `M${x(0)} ${y(value)}`)).join("");
      chart.append(titled(svg("path", { class: `race-line ${method}`, d: steps }), name));
      chart.append(svg("circle", { class: `race-end ${method}`, cx: x(tries), cy: y(distances.at(-1)), r: 4 }));
    }
    return [chart, legend(...lines.map(({ method, name }) => [`line ${method}`, name]))];
  };
}

export function drawRanking(ranking, response) {
  return (width) => {
    const known = ranking.filter(({ mean }) => mean !== null);
    if (!known.length) return nothing("Nothing is expected yet: it takes a measurement.");
    const shown = known.slice(0, Math.max(8, Math.floor((width - 50 - RIGHT) / 14)));
    const height = 240;
    const ends = shown.flatMap(({ mean, deviation, value }) => [
      mean - deviation,
      mean + deviation,
      ...(value === null ? [] : [value]),
    ]);
    const y = scale(ends, height - BOTTOM, TOP);
    const start = left(y, width);
    const x = scale([1, Math.max(2, shown.length)], start, width - RIGHT);
    const label = `What is expected of the ${shown.length} best candidates: from ${number(shown[0].mean)} for ${shown[0].id} to ${number(shown.at(-1).mean)}.`;
    const chart = frame(width, height, label, y, start, response, "candidates, best expected first");
    shown.forEach(({ id, mean, deviation, value }, i) => {
      const at = x(i + 1);
      const text = `${id}: ${number(mean)} ± ${number(deviation, 2)}${value === null ? "" : `, measured ${exact(value)}`}`;
      const group = svg(
        "g",
        {},
        svg("line", { class: "deviation", x1: at, x2: at, y1: y(mean - deviation), y2: y(mean + deviation) }),
        svg("circle", { class: "mean", cx: at, cy: y(mean), r: 3.5 }),
        value === null ? null : svg("path", { class: "told", d: `M${at - 4} ${y(value) - 4}l8 8m0 -8l-8 8` }),
      );
      chart.append(titled(group, text));
    });
    return [chart, legend(["key-bar", "expected ± deviation"], ["key-cross", "measured"])];
  };
}

// Each point can be hovered, and focused by the arrow keys: one stop of the tab key for all, in the order of what is
// expected.
export function drawMap(points, minimise, open) {
  let current = 0;
  return (width) => {
    if (!points.length) return nothing("There is no map yet: it takes a measurement.");
    const height = Math.min(620, Math.round(1.15 * width));
    const x = scale(
      points.map((point) => point.x),
      14,
      width - 14,
    );
    const y = scale(
      points.map((point) => point.y),
      height - 14,
      14,
    );
    const means = points.map(({ mean }) => mean).filter((mean) => mean !== null);
    const [low, high] = extent(means);
    const shade = (mean) =>
      mean === null || low === high ? 2 : Math.min(SHADES - 1, Math.floor(((mean - low) / (high - low)) * SHADES));
    const better = (a, b) => (minimise ? 1 : -1) * ((a.mean ?? 0) - (b.mean ?? 0));
    const order = points.slice().sort(better);
    const tip = el("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    const nodes = order.map((point, i) => {
      const text = pointWords(point);
      const node = svg("path", {
        class: `point ${point.state} shade-${minimise ? SHADES - 1 - shade(point.mean) : shade(point.mean)}`,
        d: shape(point.state, x(point.x), y(point.y)),
        role: "button",
        tabindex: i === current ? "0" : "-1",
        "aria-label": text,
        "data-key": `point ${point.id}`,
      });
      const show = () => {
        tip.textContent = text;
        tip.hidden = false;
        tip.style.left = `${Math.min(Math.max(0, x(point.x) - 20), Math.max(0, width - tip.offsetWidth))}px`;
        tip.style.top = `${Math.max(0, y(point.y) - tip.offsetHeight - 12)}px`;
      };
      const hide = () => (tip.hidden = true);
      node.addEventListener("mouseenter", show);
      node.addEventListener("mouseleave", hide);
      node.addEventListener("focus", show);
      node.addEventListener("blur", hide);
      node.addEventListener("click", () => open(point.id));
      return node;
    });
    const go = (to) => {
      nodes[current].setAttribute("tabindex", "-1");
      current = Math.max(0, Math.min(nodes.length - 1, to));
      nodes[current].setAttribute("tabindex", "0");
      nodes[current].focus();
    };
    const key = (event) => {
      const at = nodes.indexOf(event.target);
      const to = {
        ArrowRight: at + 1,
        ArrowDown: at + 1,
        ArrowLeft: at - 1,
        ArrowUp: at - 1,
        Home: 0,
        End: nodes.length - 1,
      }[event.key];
      if (to !== undefined) go(to);
      else if (event.key === "Enter" || event.key === " ") open(order[at].id);
      else return;
      event.preventDefault();
    };
    const label = `Map of ${points.length} candidates. Near ones are alike, as the policy sees them. Arrow keys go from the best expected to the worst.`;
    // Those that matter are drawn last, above the others; the order of the keys is another.
    const layered = nodes
      .slice()
      .sort((a, b) => (a.classList.contains("other") < b.classList.contains("other") ? 1 : -1));
    const chart = svg(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label, onkeydown: key },
      layered,
    );
    const range = means.length ? ` (${number(minimise ? high : low)} to ${number(minimise ? low : high)})` : "";
    const shades = el(
      "span",
      {},
      `expected, worse to better${range} `,
      el(
        "span",
        { class: "swatches" },
        Array.from({ length: SHADES }, (_, i) => el("i", { class: `swatch shade-${i}` })),
      ),
    );
    return [
      el("div", { class: "over-map" }, chart, tip),
      legend(["key-dot", "measured"], ["key-diamond", "pending"], ["key-small", "not tried"], shades),
    ];
  };
}

export function pointWords({ id, mean, state }) {
  const expected = mean === null ? "nothing is expected yet" : `expected ${number(mean)}`;
  return `${id}: ${expected}, ${{ measured: "measured", pending: "pending", other: "not tried" }[state]}`;
}

function shape(state, x, y) {
  if (state === "pending") return `M${x} ${y - 8}l8 8l-8 8l-8 -8z`;
  const r = state === "measured" ? 6 : 4;
  return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
}

function legend(...entries) {
  return el(
    "p",
    { class: "legend quiet" },
    entries.map((entry) =>
      Array.isArray(entry) ? el("span", {}, el("i", { class: `key ${entry[0]}` }), entry[1]) : entry,
    ),
  );
}
