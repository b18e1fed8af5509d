// What is pending, a card for each, and the fields by which people ask and tell.

import { once, path, waits } from "./api.js";
import { columnList, drawing, expectation, fetchCandidate, reasons } from "./candidate.js";
import { announce, el, exact, refill } from "./dom.js";

const wrong = "A result is a number, with a point before the decimals, such as 6.9 or -0.3.";
const MOST = 1024; // at once, as the service has it
const askSlot = (campaign) => `ask ${campaign}`;
const tellSlot = (campaign, id) => `tell ${campaign} ${id}`;
const draftKey = (campaign, id) => `dkaf.typed ${campaign} ${id}`;

function result(text) {
  const value = text.trim() === "" ? NaN : Number(text.trim());
  return Number.isFinite(value) ? value : null;
}

export function tell(campaign, measurement) {
  const { id, value } = measurement;
  return once({
    slot: tellSlot(campaign, id),
    words: value === undefined ? `${id} failed` : `${id} = ${exact(value)}`,
    address: path("campaigns", campaign, "tell"),
    body: { measurements: [measurement] },
  });
}

export function giveBack(campaign, id) {
  const address = path("campaigns", campaign, "release");
  return once({ slot: `release ${campaign} ${id}`, words: `release of ${id}`, address, body: { id } });
}

// `act` sends, refreshes the view and says what went wrong.
export class Card {
  constructor({ campaign, id, response, operator, act, signal, fail }) {
    Object.assign(this, { campaign, id, response, act, signal, fail, stale: true, visible: false });
    this.about = el("div", {}, el("p", { class: "quiet" }, "…"));
    this.why = el("div", {});
    this.node = el(
      "li",
      { class: "card candidate" },
      el("h3", { class: "id", tabindex: "-1" }, id),
      this.about,
      operator ? this.form(response) : null,
      el("details", {}, el("summary", {}, "Why this candidate"), this.why),
    );
    // A pool's texts can be long and the pending many: what nobody sees is not fetched.
    this.watch = new IntersectionObserver(([entry]) => {
      this.visible = entry.isIntersecting;
      this.load();
    });
    this.watch.observe(this.node);
  }

  form(response) {
    const { campaign, id } = this;
    const problem = el("p", { class: "wrong", id: `wrong ${id}`.replaceAll(/\s/g, "_"), role: "alert" });
    // No `inputmode`: the keypads of some phones have no minus.
    this.field = el("input", { name: "value", autocomplete: "off", "aria-describedby": problem.id, size: "8" });
    this.field.value = sessionStorage.getItem(draftKey(campaign, id)) ?? "";
    this.field.addEventListener("input", () => sessionStorage.setItem(draftKey(campaign, id), this.field.value));
    const refused = (error) => (problem.textContent = error.message);
    const send = (measurement, words) => {
      if (this.waiting) return;
      this.waiting = true;
      problem.textContent = "";
      this.mark();
      this.act(
        () => tell(campaign, measurement),
        () => announce(words),
        refused,
      ).finally(() => ((this.waiting = false), this.mark()));
    };
    const submit = (event) => {
      event.preventDefault();
      const value = result(this.field.value);
      problem.textContent = value === null ? wrong : "";
      this.field.setAttribute("aria-invalid", String(value === null));
      if (value === null) this.field.focus();
      else send({ id, value }, `Told: ${id} gave ${exact(value)}.`);
    };
    const failed = () => send({ id, failed: true }, `${id} is noted as failed.`);
    const release = () =>
      this.act(
        () => giveBack(campaign, id),
        () => announce(`${id} is released.`),
        refused,
      );
    this.state = el("span", { class: "quiet", role: "status" });
    return el(
      "form",
      { class: "tell", onsubmit: submit },
      el("label", {}, el("span", {}, response ? `Result (${response})` : "Result"), this.field),
      el("button", { type: "submit", class: "main-action", "aria-label": `Tell the result of ${id}` }, "Tell"),
      el(
        "button",
        { type: "button", "aria-label": `${id} failed: it could not be measured`, onclick: failed },
        "Failed",
      ),
      el(
        "button",
        { type: "button", "aria-label": `Release ${id}: it may be asked for again`, onclick: release },
        "Release",
      ),
      this.state,
      problem,
    );
  }

  // While something is under way the field cannot be changed: what would count is what was sent.
  mark() {
    if (!this.field) return;
    const kept = waits(tellSlot(this.campaign, this.id));
    this.field.readOnly = this.waiting || kept;
    this.state.textContent = kept ? "being sent …" : "";
  }

  update(measurements) {
    if (this.measurements !== measurements) this.stale = true; // others' results change what is expected
    this.measurements = measurements;
    this.mark();
    this.load();
  }

  async load() {
    if (!this.visible || !this.stale) return;
    this.stale = false;
    try {
      const found = await fetchCandidate(this.campaign, this.id, this.signal);
      refill(this.about, drawing(found), expectation(found), columnList(found, this.response));
      refill(this.why, reasons(found));
    } catch (error) {
      this.stale = true;
      this.fail(error);
    }
  }

  leave() {
    this.watch.disconnect();
    sessionStorage.removeItem(draftKey(this.campaign, this.id));
    this.node.remove();
  }
}

// The forms around the cards: to ask, and to tell of a candidate that nobody asked for.
export function pendingTalk(campaign, act, status, list) {
  const count = el("input", {
    type: "number",
    min: "1",
    max: MOST,
    step: "1",
    value: "4",
    id: "how-many",
    "aria-describedby": "too-many",
  });
  const used = el("p", { class: "quiet" });
  const tooMany = el("p", { class: "wrong", id: "too-many", role: "alert" });
  const send = (n) => {
    if (waits(askSlot(campaign))) return;
    used.textContent = "Choosing …";
    const before = new Set(status().pending.map(({ id }) => id));
    act(
      () =>
        once({
          slot: askSlot(campaign),
          words: `asking for ${n}`,
          address: path("campaigns", campaign, "ask"),
          body: { n },
          keyName: "request_id",
        }),
      (candidates) => {
        announce(`To try next: ${candidates.map(({ id }) => id).join(", ")}.`);
        const first = [...list.children].find((node) => !before.has(node.querySelector("h3").textContent));
        if (ask.contains(document.activeElement)) first?.querySelector("input").focus(); // unless somebody types elsewhere by now
      },
    ).finally(() => update(status()));
  };
  const askForMany = (event) => {
    event.preventDefault();
    const n = count.valueAsNumber;
    const right = Number.isInteger(n) && n >= 1 && n <= MOST;
    tooMany.textContent = right
      ? ""
      : `One asks for 1 to ${MOST} at once, ${count.value || "nothing"} came; change it.`;
    if (right) send(n);
    else count.focus();
  };
  const one = el("button", { type: "button", class: "main-action", onclick: () => send(1) }, "Ask for 1");
  const many = el(
    "form",
    { class: "inline", novalidate: true, onsubmit: askForMany },
    el("label", { for: "how-many" }, "or for"),
    count,
    el("button", { type: "submit" }, "Ask"),
  );
  const ask = el("div", { class: "ask" }, one, many, used, tooMany);

  const id = el("input", { name: "id", required: true, autocomplete: "off" });
  const value = el("input", { name: "value", required: true, autocomplete: "off", size: "8" });
  const problem = el("p", { class: "wrong", role: "alert" });
  const tellOther = (event) => {
    event.preventDefault();
    const measured = result(value.value);
    problem.textContent = measured === null ? wrong : "";
    if (measured === null) return value.focus();
    const told = id.value;
    act(
      () => tell(campaign, { id: told.trim(), value: measured }),
      () => {
        announce(`Told: ${told} gave ${exact(measured)}.`);
        if (id.value !== told) return; // the next one is being typed
        id.value = value.value = "";
        if (other.contains(document.activeElement)) id.focus();
      },
      (error) => (problem.textContent = error.message),
    );
  };
  const other = el(
    "details",
    { class: "other" },
    el("summary", {}, "Tell of another candidate"),
    el(
      "form",
      { class: "tell", onsubmit: tellOther },
      el("label", {}, el("span", {}, "Candidate"), id),
      el("label", {}, el("span", {}, "Result"), value),
      el("button", { type: "submit" }, "Tell"),
      problem,
    ),
  );

  function update({ left, pending }) {
    one.hidden = many.hidden = left === 0;
    used.textContent = left === 0 ? `The budget is ${pending.length ? "given out" : "used up"}.` : "";
    mark();
  }

  function mark() {
    if (waits(askSlot(campaign))) used.textContent = "being sent …";
  }

  // A card that goes takes the focus with it: it goes on to the next one, or to where one asks for more.
  function focusAfter(node) {
    const next = node.nextElementSibling ?? node.previousElementSibling;
    (next?.querySelector("input") ?? (one.hidden ? other.querySelector("summary") : one)).focus();
  }

  return { ask, other, update, mark, focusAfter };
}
