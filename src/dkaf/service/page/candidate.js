// One candidate: what is known of it, what is expected of it, and why.

import { get, path } from "./api.js";
import { el, exact, number, refill } from "./dom.js";

const SHOWN = 12; // columns; of more, the others unfold
const WIDE = 14; // characters; more get two columns, so that no number breaks
const LONG = 80; // characters; a longer text gets the whole width and lines to read

export const fetchCandidate = (campaign, id, signal) =>
  get(`${path("campaigns", campaign, "candidates")}?id=${encodeURIComponent(id)}`, signal);

// Without its name, which stands above, and without the result as long as there is none.
export function columnList({ id, columns }, response) {
  const entries = Object.entries(columns).filter(
    ([name, value]) => value !== id && (name !== response || !isEmpty(value)),
  );
  if (!entries.length) return null;
  const rest = entries.slice(SHOWN);
  return [
    definitions(entries.slice(0, SHOWN)),
    rest.length
      ? el("details", { "data-key": "columns" }, el("summary", {}, `${rest.length} more columns`), definitions(rest))
      : null,
  ];
}

const isEmpty = (value) => value === null || String(value).trim() === "";

function definitions(entries) {
  return el(
    "dl",
    { class: "columns" },
    entries.map(([name, value]) => {
      const text = isEmpty(value) ? "–" : String(value);
      const long = text.length > LONG;
      const size = long ? "long" : text.length > WIDE ? "wide" : null;
      // What scrolls has to be reached by the keyboard.
      return el(
        "div",
        { class: size },
        el("dt", {}, name),
        el("dd", long ? { tabindex: "0", "aria-label": `${name}: ${text}`, role: "group" } : {}, text),
      );
    }),
  );
}

export function expectation({ mean, deviation }) {
  if (mean === null)
    return el("p", { class: "quiet" }, "Nothing is expected of it yet: chance picks until something is measured.");
  return el("p", { class: "expected" }, `Expected: ${number(mean)} ± ${number(deviation, 2)}`);
}

// The service draws; as an image a drawing runs no script, whatever it holds.
export function drawing({ id, svg }) {
  if (!svg) return null;
  return el("img", {
    class: "molecule",
    alt: `Molecule ${id}`,
    src: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`,
  });
}

export function reasons({ mean, deviation, near }) {
  const expected =
    mean === null
      ? "Nothing is measured yet, so nothing is expected: chance picks."
      : `It is expected to give ${number(mean)}, and two times in three between ${number(mean - deviation)} and ${number(mean + deviation)}. ` +
        "A candidate is picked for a good value, for what is still unknown of it, or for both.";
  if (!near.length) return [el("p", {}, expected), el("p", {}, "No measured candidate is near it yet.")];
  const rows = near.map((other) =>
    el(
      "tr",
      {},
      el("th", { scope: "row", class: "id" }, other.id),
      el("td", {}, exact(other.value)),
      el("td", {}, number(other.distance)),
    ),
  );
  return [
    el("p", {}, expected),
    el(
      "table",
      {},
      el("caption", {}, "The nearest measured candidates, as the policy sees them"),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          ["Candidate", "Gave", "Distance"].map((text) => el("th", { scope: "col" }, text)),
        ),
      ),
      el("tbody", {}, rows),
    ),
  ];
}

export async function openCandidate(campaign, id, response, signal) {
  const found = await fetchCandidate(campaign, id, signal);
  showDialog(
    id,
    [drawing(found), expectation(found), columnList(found, response), el("h3", {}, "Why"), reasons(found)],
    [el("button", { class: "main-action" }, "Close")],
  );
}

// The title gets the focus: reading begins there, and a long text is not scrolled to its end.
export function showDialog(title, contents, actions) {
  const dialog = document.getElementById("candidate");
  const heading = el("h2", { id: "candidate-title", class: "id", tabindex: "-1" }, title);
  refill(dialog, heading, contents, el("form", { method: "dialog", class: "ask actions" }, actions));
  dialog.showModal();
  heading.focus();
  dialog.scrollTop = 0;
  return dialog;
}
