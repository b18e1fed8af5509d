// Four players look for a hidden one: you, dkaf, a GP and chance. Each knows the distances of its own tries alone.

import { get } from "./api.js";
import { showDialog } from "./candidate.js";
import { Chart, asTable, drawRace } from "./charts.js";
import { another, brief, table, things, whole } from "./demo.js";
import { announce, el, headOf, number, refill } from "./dom.js";

const YOU = "you";

export async function raceView({ body, name, signal, fail }, game) {
  name("Race to a hidden one");
  const address = `api/demo/games/${encodeURIComponent(game)}`;
  const [demo, pool] = await Promise.all([get("api/demo", signal), get(address, signal)]);
  const { moves, add, clear, first } = table(`dkaf.demo race ${demo.corpus} ${game}`, turn, fail);
  const players = [[YOU, "You"], ...demo.players.map(({ method, name }) => [method, name])];
  const state = el("section", { "aria-labelledby": "state" });
  const tries = el("section", { "aria-labelledby": "tries" });
  const chart = new Chart("Nearest so far", "progress");
  const board = el("div", { class: "card" });
  const choices = el("section", { "aria-labelledby": "choices" });

  async function turn() {
    const race = await get(`${address}/race?${moves.map((row) => `picked=${row}`).join("&")}`, signal);
    const lines = players.map(([method, name]) => ({ method, name, distances: nearest(race, method) }));
    refill(state, race.over ? outcome(race) : standing());
    refill(board, scores(lines, race));
    chart.show(
      drawRace(lines, demo.queries),
      asTable(
        "Distance of the nearest so far",
        ["Tries", ...lines.map(({ name }) => name)],
        lines[0].distances.map((_, i) => [i, ...lines.map(({ distances }) => number(distances[i]))]),
      ),
    );
    refill(tries, tried(race));
    const known = new Set([race.start.candidate, ...moves]);
    choices.hidden = race.over;
    for (const node of choices.querySelectorAll("[data-row]")) {
      if (known.has(Number(node.dataset.row))) node.setAttribute("aria-disabled", "true");
      else node.removeAttribute("aria-disabled");
    }
    const last = race.played[YOU].at(-1);
    if (last) announce(`Your try ${moves.length}: distance ${number(last.distance, 3)}.`);
  }

  const pick = async (row) => {
    if (row === pool.start.candidate || moves.includes(row) || moves.length >= demo.queries) return;
    await add(row);
    if (moves.length >= demo.queries) state.querySelector("h2").focus();
  };

  const again = async () => {
    await clear();
    state.querySelector("h2").focus();
  };

  const standing = () => [
    el("h2", { id: "state", tabindex: "-1" }, `Try ${moves.length + 1} of ${demo.queries}`),
    el(
      "p",
      {},
      "Choose one below. It tells how far from the hidden one it is: the smaller, the nearer. The others try one too.",
    ),
  ];

  function outcome({ revealed }) {
    const order = players.slice().sort(([a], [b]) => revealed.places[a] - revealed.places[b]);
    const winners = order.filter(([method]) => revealed.places[method] === revealed.places[order[0][0]]);
    const ours = revealed.places[YOU] === revealed.places[order[0][0]];
    const words = ours
      ? winners.length > 1
        ? "A draw at the top"
        : "You win"
      : `${winners.map(([, name]) => name).join(" and ")} ${winners.length > 1 ? "were" : "was"} nearer`;
    return [
      el("h2", { id: "state", tabindex: "-1" }, words),
      el(
        "div",
        { class: "reveal" },
        el("div", { class: "card" }, el("h3", {}, "The hidden one"), whole(revealed.target, "The hidden one")),
        el(
          "div",
          { class: "card" },
          el("h3", {}, `Nearest of the ${revealed.candidates}`),
          revealed.best.item.pixels
            ? whole(revealed.best.item, "The nearest")
            : brief(revealed.best.item, "The nearest"),
          el("p", { class: "quiet" }, `distance ${number(revealed.best.distance, 3)}`),
        ),
      ),
      el(
        "p",
        { class: "ask" },
        el("a", { class: "button main-action", href: `#/demo/race/${another(demo)}` }, "Another hidden one"),
        el("button", { type: "button", onclick: again }, "The same again"),
      ),
    ];
  }

  function scores(lines, { revealed, played }) {
    const head = ["Player", "Last try", "Nearest so far", ...(revealed ? ["Its place in the pool"] : [])];
    return el(
      "table",
      { class: "board" },
      el("caption", {}, "Distances to the hidden one"),
      headOf(head),
      el(
        "tbody",
        {},
        lines.map(({ method, name, distances }) =>
          el(
            "tr",
            {},
            el("th", { scope: "row" }, el("i", { class: `key line ${method}` }), name),
            el("td", {}, number(played[method].at(-1)?.distance, 3)),
            el("td", {}, number(distances.at(-1), 3)),
            revealed ? el("td", {}, `${revealed.places[method]} of ${revealed.candidates}`) : null,
          ),
        ),
      ),
    );
  }

  function tried(race) {
    const list = (method) =>
      el(
        "ol",
        { class: `tried ${demo.kind}` },
        race.played[method].map(({ candidate, item, distance }) =>
          el("li", {}, brief(item, `Picture ${candidate}`), el("span", { class: "quiet" }, number(distance, 3))),
        ),
      );
    const begun = el(
      "p",
      { class: "begun" },
      "All began with ",
      brief(race.start.item, "the first"),
      ` at ${number(race.start.distance, 3)}.`,
    );
    const shown = race.over ? players : players.slice(0, 1);
    return [
      el("h2", { id: "tries" }, race.over ? "What everybody tried" : "Your tries"),
      begun,
      shown.map(([method, name]) => [race.over ? el("h3", {}, name) : null, list(method)]),
    ];
  }

  function offer() {
    const count = pool.items.length;
    const heading = el("h2", { id: "choices" }, `Choose among ${count} ${things(demo)}`);
    if (demo.kind === "pictures") {
      const tiles = pool.items.map((item, row) =>
        el(
          "button",
          {
            type: "button",
            class: "tile",
            "data-row": row,
            "aria-label": `Try picture ${row}`,
            onclick: () => pick(row),
          },
          brief(item, ""),
        ),
      );
      return [heading, el("div", { class: "tiles" }, tiles)];
    }
    const field = el("input", { type: "search", autocomplete: "off" });
    const rows = pool.items.map((item, row) =>
      el(
        "li",
        { "data-text": item.title.toLowerCase() },
        el(
          "button",
          { type: "button", class: "plain title", "data-row": row, onclick: () => read(row, item) },
          item.title,
        ),
      ),
    );
    const many = el("p", { class: "quiet", role: "status" });
    field.addEventListener("input", () => {
      const wanted = field.value.trim().toLowerCase();
      for (const row of rows) row.hidden = !row.dataset.text.includes(wanted);
      many.textContent = wanted ? `${rows.filter((row) => !row.hidden).length} of ${count}` : "";
    });
    return [
      heading,
      el("label", { class: "fields" }, el("span", {}, "Words in the title"), field),
      many,
      el("ul", { class: "titles" }, rows),
    ];
  }

  async function read(row, { title }) {
    const item = await get(`${address}/candidates/${row}`, signal).catch(fail);
    if (!item) return;
    showDialog(
      title,
      [whole(item, title), moves.includes(row) ? el("p", { class: "quiet" }, "This one was tried.") : null],
      [
        moves.includes(row) ? null : el("button", { class: "main-action", onclick: () => pick(row) }, "Try this one"),
        el("button", {}, "Close"),
      ],
    );
  }

  body.append(
    el(
      "p",
      { class: "lead" },
      `One of the ${demo.items} ${things(demo)} is hidden. `,
      el("a", { href: "#/demo" }, "The other game"),
    ),
    state,
    el("div", { class: "charts" }, board, chart.node),
    tries,
    choices,
  );
  refill(choices, offer());
  await first(turn);
}

// The distance of the nearest after each try, the one that all began with before the first.
function nearest(race, method) {
  const distances = [race.start.distance, ...race.played[method].map(({ distance }) => distance)];
  return distances.map((_, i) => Math.min(...distances.slice(0, i + 1)));
}
