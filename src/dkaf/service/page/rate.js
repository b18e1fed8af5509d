// Somebody rates what they are shown, and after ten the best of it is there.

import { get } from "./api.js";
import { another, brief, table, things, whole } from "./demo.js";
import { el, number, refill } from "./dom.js";

export async function rateView({ body, name, signal, fail }, game) {
  name("Rate, and be found out");
  const demo = await get("api/demo", signal);
  const { moves, add, takeBack, clear, first } = table(`dkaf.demo rate ${demo.corpus} ${game}`, turn, fail);
  const shown = new Map(); // briefs of what was rated
  const now = el("section", { "aria-labelledby": "now" });
  const past = el("section", { "aria-labelledby": "past" });

  async function turn(focus = true) {
    const rated = moves.map(({ candidate, rating }) => `rated=${candidate}:${rating}`).join("&");
    const next = await get(`api/demo/games/${encodeURIComponent(game)}/next?${rated}`, signal);
    for (const { candidate } of moves) {
      if (!shown.has(candidate)) {
        const address = `api/demo/games/${encodeURIComponent(game)}/candidates/${candidate}`;
        shown.set(candidate, await get(address, signal));
      }
    }
    refill(now, next.candidate === null ? found(next) : question(next));
    refill(past, history());
    if (focus) now.querySelector("h2").focus();
  }

  function question({ candidate, item, expected }) {
    shown.set(candidate, item);
    const scale = Array.from({ length: demo.ratings + 1 }, (_, i) =>
      el(
        "button",
        { type: "button", onclick: () => add({ candidate, rating: i }), "aria-label": `${i} of ${demo.ratings}` },
        String(i),
      ),
    );
    return [
      el("h2", { id: "now", tabindex: "-1" }, `${moves.length + 1} of ${demo.queries}`),
      el(
        "div",
        { class: "card rating" },
        whole(item, `What is to be rated, number ${moves.length + 1}`),
        el(
          "fieldset",
          { class: "scale" },
          el("legend", {}, "How near is it to what you have in mind?"),
          el("div", { class: "steps" }, scale),
          el("p", { class: "quiet ends" }, el("span", {}, "nothing like it"), el("span", {}, "that is it")),
        ),
        el(
          "p",
          { class: "quiet" },
          expected === null
            ? "The first one is drawn by lot."
            : `dkaf expects a rating of about ${number(expected, 2)}.`,
        ),
      ),
    ];
  }

  function found({ liked }) {
    const best = moves.reduce((a, b) => (b.rating > a.rating ? b : a));
    return [
      el("h2", { id: "now", tabindex: "-1" }, `The best of ${demo.queries}: rated ${best.rating}`),
      el("div", { class: "card rating" }, whole(shown.get(best.candidate), "The one that you rated best")),
      el("h3", {}, "Not shown yet, and expected to be liked"),
      el(
        "ul",
        { class: `tried ${demo.kind}` },
        liked.map(({ item, expected, candidate }) =>
          el(
            "li",
            {},
            item.pixels
              ? brief(item, `Picture ${candidate}`)
              : el("details", {}, el("summary", {}, item.title), whole(item, item.title)),
            el("span", { class: "quiet" }, `expected ${number(expected, 2)}`),
          ),
        ),
      ),
      el(
        "p",
        { class: "ask" },
        el(
          "a",
          { class: "button main-action", href: `#/demo/rate/${another(demo)}` },
          `Others among the ${things(demo)}`,
        ),
        el("button", { type: "button", onclick: clear }, "The same again"),
      ),
    ];
  }

  function history() {
    if (!moves.length) return [];
    return [
      el("h2", { id: "past" }, "Rated so far"),
      el(
        "ol",
        { class: `tried ${demo.kind}` },
        moves.map(({ candidate, rating }) =>
          el("li", {}, brief(shown.get(candidate), `Picture ${candidate}`), el("strong", {}, String(rating))),
        ),
      ),
      el("p", {}, el("button", { type: "button", onclick: takeBack }, "Take back the last")),
    ];
  }

  body.append(
    el(
      "p",
      { class: "lead" },
      `Have something in mind, and keep to it. After ${demo.queries} ratings it should be there. `,
      el("a", { href: "#/demo" }, "The other game"),
    ),
    now,
    past,
  );
  await first(() => turn(false));
}
