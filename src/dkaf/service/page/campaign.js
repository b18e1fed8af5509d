// A campaign: what to try next, what was measured, and what is thought of the others. It is drawn once; what arrives
// later is put in its place, so that nobody loses what they are typing, nor the focus.

import { deliverUnsent, get, isKept, once, path, unsent } from "./api.js";
import { Card, giveBack, pendingTalk } from "./card.js";
import { policyWords } from "./campaigns.js";
import { openCandidate } from "./candidate.js";
import { Chart, asTable, drawMap, drawProgress, drawRanking, pointWords } from "./charts.js";
import { announce, el, exact, number, plural, refill, showProblem, when } from "./dom.js";

const AGAIN = 3000,
  SELDOM = 60_000; // ms until what got no answer is sent again, at first and at most
const LATEST = 50; // measurements shown before "all"

export async function campaignView(context, name) {
  const { body, operator, signal, fail } = context;
  context.name(name);
  const address = path("campaigns", name);
  const cards = new Map();
  let status = null;
  let everything = false; // whether the whole history is shown

  const facts = el("dl", { class: "facts" });
  const notes = el("div", {});
  const list = el("ul", { class: "cards" });
  const charts = {
    progress: new Chart("Best so far", "progress"),
    ranking: new Chart("What is expected of the best", "ranking"),
    map: new Chart("Map of the pool", "map"),
  };
  const history = el("div", {});
  const link = el("span", { class: "quiet", role: "status" });

  let resending,
    patience = AGAIN;

  // `refused` gets what is wrong, to say it also where it was done.
  const act = async (sending, done, refused) => {
    try {
      const answer = await sending();
      patience = AGAIN;
      showProblem(null);
      await refresh();
      done?.(answer);
    } catch (error) {
      if (signal.aborted) return;
      fail(error);
      const waiting = unsent(address).length > 0;
      if (waiting && isKept(error))
        showProblem(`${error.message} What you sent is kept here and goes out again by itself; it counts once.`);
      else refused?.(error);
      if (waiting) {
        clearTimeout(resending);
        resending = setTimeout(sendAgain, patience);
        patience = Math.min(SELDOM, 2 * patience);
      }
      for (const card of cards.values()) card.mark();
      talk?.mark();
    }
  };

  const sendAgain = () => {
    if (signal.aborted || !unsent(address).length) return;
    return act(
      () => deliverUnsent(address),
      () => announce("What was kept is now sent."),
    );
  };

  const talk = operator ? pendingTalk(name, act, () => status, list) : null;

  const refresh = coalesced(async () => {
    const before = status;
    status = await get(address, signal);
    showFacts(facts, status);
    showNotes(notes, status);
    showCards();
    talk?.update(status);
    refill(history, historyTable());
    tellNews(before, status);
    redraw().catch(fail);
  });

  // By itself: to fit a model takes seconds, and nobody should wait for charts to see a result taken.
  const redraw = coalesced(async () => {
    const plots = await get(path("campaigns", name, "plots"), signal);
    showCharts(charts, plots, status, (id) => openCandidate(name, id, status.response, signal).catch(fail));
  });

  function showCards() {
    const pending = status.pending.map(({ id }) => id);
    for (const [id, card] of cards) {
      if (pending.includes(id)) continue;
      if (card.node.contains(document.activeElement)) talk?.focusAfter(card.node);
      card.leave();
      cards.delete(id);
    }
    for (const id of pending) {
      if (!cards.has(id))
        cards.set(id, new Card({ campaign: name, id, response: status.response, operator, act, signal, fail }));
      const card = cards.get(id);
      if (!card.node.isConnected) list.append(card.node);
      card.update(status.history.length);
    }
    list.hidden = !pending.length;
  }

  function historyTable() {
    const rows = status.history.slice(everything ? 0 : -LATEST).reverse();
    const more = status.history.length - rows.length;
    return [
      operator && (status.history.length || status.failed.length)
        ? el(
            "p",
            {},
            el(
              "button",
              { type: "button", "data-key": "undo", onclick: undo },
              "Undo the last result, failure or release",
            ),
          )
        : null,
      rows.length ? measurements(rows, status) : el("p", { class: "quiet" }, "Nothing is measured yet."),
      more
        ? el("p", {}, el("button", { type: "button", "data-key": "all", onclick: showAll }, `Show ${more} more`))
        : null,
      status.failed.length
        ? [el("h3", {}, "Could not be measured"), el("ul", { class: "failed" }, status.failed.map(failedEntry))]
        : null,
    ];
  }

  function showAll() {
    everything = true;
    refill(history, historyTable());
  }

  function failedEntry({ id, at }) {
    const release = () =>
      act(
        () => giveBack(name, id),
        () => announce(`${id} may be asked for again.`),
      );
    const button = el(
      "button",
      { type: "button", "data-key": `release ${id}`, "aria-label": `Release ${id}`, onclick: release },
      "Release",
    );
    return el(
      "li",
      {},
      el("span", { class: "id" }, id),
      " ",
      el("span", { class: "quiet" }, when(at)),
      " ",
      operator ? button : null,
    );
  }

  const undo = () =>
    act(
      () => once({ slot: `undo ${name}`, words: "undo", address: path("campaigns", name, "undo"), body: {} }),
      ({ id, value }) =>
        announce(`Taken back: ${id}${value === null || value === undefined ? "" : `, ${exact(value)}`}.`),
    );

  try {
    await refresh();
  } catch (error) {
    if (error.status !== 404) throw error;
    body.append(el("p", {}, "There is no such campaign. ", el("a", { href: "#/" }, "All campaigns")));
    return;
  }
  body.append(
    facts,
    notes,
    el(
      "section",
      { "aria-labelledby": "next" },
      el("h2", { id: "next" }, "Next candidates"),
      talk?.ask,
      list,
      talk?.other,
    ),
    el(
      "section",
      { "aria-labelledby": "charts" },
      el("h2", { id: "charts" }, "Charts"),
      el(
        "div",
        { class: "charts" },
        Object.values(charts).map(({ node }) => node),
      ),
    ),
    el("section", { "aria-labelledby": "history" }, el("h2", { id: "history" }, "History"), history),
    el(
      "p",
      {},
      el(
        "a",
        { class: "button", href: path("campaigns", name, "export.csv"), download: `${name}.csv` },
        "Export as CSV",
      ),
      " ",
      link,
    ),
  );
  listen(path("campaigns", name, "events"), signal, link, () => {
    refresh().catch(fail);
    sendAgain();
  });
  sendAgain(); // what a reload interrupted
}

// One refresh at a time; what happens meanwhile is fetched right after.
function coalesced(work) {
  let running = null,
    again = false;
  return () => {
    again = true;
    running ??= (async () => {
      try {
        while (again) {
          again = false;
          await work();
        }
      } finally {
        running = null;
      }
    })();
    return running;
  };
}

// The service says `changed` at every connection, so what happened between two of them is not missed. A hidden tab
// does not listen: a browser has six connections to a service for all its tabs.
function listen(address, signal, link, changed) {
  let source = null;
  const connect = () => {
    if (signal.aborted || document.hidden) return;
    source?.close();
    source = new EventSource(address);
    source.addEventListener("changed", changed);
    source.addEventListener("open", () => (link.textContent = ""));
    source.addEventListener("error", () => {
      link.textContent = "The connection is lost; trying again.";
      if (source.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
      changed(); // which asks for a token, if that is why
      setTimeout(connect, AGAIN);
    });
  };
  const visible = () => (document.hidden ? source?.close() : connect());
  document.addEventListener("visibilitychange", visible);
  signal.addEventListener("abort", () => {
    document.removeEventListener("visibilitychange", visible);
    source?.close();
  });
  connect();
}

function showFacts(facts, status) {
  const fact = (term, ...value) => el("div", {}, el("dt", {}, term), el("dd", {}, value));
  const best = status.best
    ? [
        el("strong", {}, exact(status.best.value)),
        " ",
        el("span", { class: "id" }, status.best.id),
        status.best.measurements > 1 ? ` (${status.best.measurements} times)` : "",
      ]
    : ["nothing yet"];
  const used = status.budget === null ? null : status.budget - status.left;
  refill(
    facts,
    fact(`Best ${status.response ?? "so far"}`, ...best),
    fact("Measured", measuredWords(status)),
    fact("Pending", String(status.pending.length)),
    fact(
      "Left of the budget",
      status.budget === null ? "no limit" : `${status.left} of ${status.budget}`,
      status.budget === null
        ? null
        : el("progress", { max: status.budget, value: used, "aria-label": "Used of the budget" }),
    ),
    fact("Chosen by", policyWords(status.policy), `, ${status.minimise ? "smaller" : "larger"} is better`),
  );
}

// A candidate can be measured more than once.
function measuredWords({ history, candidates }) {
  const different = new Set(history.map(({ id }) => id)).size;
  const times = history.length > different ? `, ${history.length} times in all` : "";
  return `${different} of ${plural(candidates, "candidate")}${times}`;
}

function showNotes(notes, status) {
  const changed =
    "The file of the pool is another one than at the beginning. The campaign keeps the candidates that it began with.";
  refill(notes, status.pool_changed ? el("p", { class: "note" }, changed) : null);
}

function tellNews(before, status) {
  if (!before) return;
  const added = status.history.slice(before.history.length);
  if (added.length) announce(added.map(({ id, value }) => `${id} gave ${exact(value)}.`).join(" "));
}

function measurements(rows, status) {
  const remark = ({ asked, known }) => (known ? "known before" : asked ? "" : "not asked for");
  const head = ["", "Candidate", status.response ?? "Result", "When", "Who", ""];
  return el(
    "table",
    { class: "folding history" },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        head.map((text) => el(text ? "th" : "td", text ? { scope: "col" } : {}, text)),
      ),
    ),
    el(
      "tbody",
      {},
      rows.map((row, i) =>
        el(
          "tr",
          { class: row.id === status.best?.id ? "best" : null },
          el("td", { class: "quiet count" }, String(status.history.length - i)),
          el("th", { scope: "row", class: "id" }, row.id),
          el(
            "td",
            { "data-label": status.response ?? "Result" },
            exact(row.value),
            row.id === status.best?.id ? " (best)" : "",
          ),
          el("td", { "data-label": "when" }, when(row.at)),
          el("td", { "data-label": "who" }, row.who ?? ""),
          el("td", { class: "quiet" }, remark(row)),
        ),
      ),
    ),
  );
}

function showCharts(charts, plots, status, open) {
  const response = status.response ?? "result";
  charts.progress.show(
    drawProgress(plots, response),
    asTable(
      "Each measurement and the best until then",
      ["Measurement", response, "Best"],
      plots.measured.map((value, i) => [i + 1, exact(value), exact(plots.best[i])]),
    ),
  );
  charts.ranking.show(
    drawRanking(plots.ranking, response),
    asTable(
      "What is expected, best first",
      ["Candidate", "Expected", "Deviation", "Measured"],
      plots.ranking.map(({ id, mean, deviation, value }) => [id, number(mean), number(deviation, 2), exact(value)]),
    ),
  );
  charts.map.show(
    drawMap(plots.map, status.minimise, open),
    asTable(
      "Places in the map",
      ["Candidate", "x", "y"],
      plots.map.map((point) => [pointWords(point), number(point.x), number(point.y)]),
    ),
  );
}
