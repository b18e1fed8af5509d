// The demo: what is played with, the two games, and how an item is shown.

import { Problem, get, stored } from "./api.js";
import { el, headOf, number } from "./dom.js";

const THINGS = { pictures: "handwritten digits", documents: "documents", words: "documents" };

export const things = ({ kind }) => THINGS[kind];

export async function demoView({ body, name, signal }) {
  name("Find what somebody has in mind");
  const demo = await get("api/demo", signal);
  const game = Math.floor(Math.random() * demo.games);
  body.append(
    el(
      "p",
      { class: "lead" },
      `${demo.items} ${things(demo)} (${demo.corpus}), and somebody who would know the right one when they see it. ` +
        `They look at ${demo.queries}, no more. dkaf has made ${demo.past} such searches before, and has learned from ` +
        "them which to show next.",
    ),
    el(
      "div",
      { class: "charts" },
      gameCard(
        "Rate, and be found out",
        demo.kind === "pictures"
          ? "Have a digit in mind, and the way you write it. dkaf shows pictures, you say how near each one is."
          : `Have a subject in mind, such as ${examples(demo)}. dkaf shows documents, you say how near each one is.`,
        `#/demo/rate/${game}`,
        `Rate ${things(demo)}`,
      ),
      gameCard(
        "Race to a hidden one",
        `One of the ${things(demo)} is hidden. Every try tells how far from it you are. You have ${demo.queries} tries, ` +
          "as have dkaf, a Gaussian process without a past, and chance.",
        `#/demo/race/${game}`,
        "Play against dkaf",
      ),
    ),
    el("section", { "aria-labelledby": "record" }, el("h2", { id: "record" }, "How they do"), record(demo)),
  );
}

const examples = ({ classes }) => `${classes.slice(0, -1).join(", ")} or ${classes.at(-1)}`;

function gameCard(title, words, address, action) {
  return el(
    "div",
    { class: "card" },
    el("h2", {}, title),
    el("p", {}, words),
    el("p", {}, el("a", { class: "button main-action", href: address }, action)),
  );
}

function record({ players, tests, queries }) {
  const head = ["Player", `Found one of the nearest 1% within ${queries}`, "Mean gap ± standard error"];
  return el(
    "table",
    { class: "record" },
    el("caption", {}, `Over ${tests} other hidden targets, four starts each; smaller gaps are better`),
    headOf(head),
    el(
      "tbody",
      {},
      players.map((player) =>
        el(
          "tr",
          {},
          el("th", { scope: "row" }, player.name),
          el("td", {}, `${Math.round(100 * player.found)}%`),
          el("td", {}, `${number(player.gap, 3)} ± ${number(player.error, 2)}`),
        ),
      ),
    ),
  );
}

// A picture of eight by eight, as ink on paper.
export function picture(pixels, label, size = 8) {
  const canvas = el("canvas", { width: size, height: size, class: "pixels", role: "img", "aria-label": label });
  const drawing = canvas.getContext("2d");
  const image = drawing.createImageData(size, size);
  pixels.forEach((ink, i) => image.data.set([20, 24, 28, Math.round(255 * ink)], 4 * i));
  drawing.putImageData(image, 0, 0);
  return canvas;
}

export function whole(item, label) {
  if (item.pixels) return el("div", { class: "item" }, picture(item.pixels, label));
  return el("div", { class: "item document", tabindex: "0", role: "region", "aria-label": label }, item.text);
}

export function brief(item, label) {
  return item.pixels ? picture(item.pixels, label) : el("span", {}, item.title);
}

// What was played is kept by the page: the service knows games, and nothing of who plays them. `play` makes a move, shows
// it, and takes it back where that cannot be shown.
export function table(key, show, fail) {
  const moves = stored(key, []);
  let busy = false;
  const put = (next) => {
    moves.splice(0, moves.length, ...next);
    sessionStorage.setItem(key, JSON.stringify(moves));
  };
  const play = async (next) => {
    if (busy) return;
    busy = true;
    const before = [...moves];
    put(next);
    try {
      await show();
    } catch (error) {
      if (error.name === "AbortError") return; // who has left finds the move when they come back
      put(before);
      fail(error);
    } finally {
      busy = false;
    }
  };
  // What the service does not take, of another version say, is no reason not to play.
  const first = async (showFirst) => {
    try {
      await showFirst();
    } catch (error) {
      if (!(error instanceof Problem) || !moves.length) throw error;
      put([]);
      await showFirst();
    }
  };
  return {
    moves,
    first,
    add: (move) => play([...moves, move]),
    takeBack: () => play(moves.slice(0, -1)),
    clear: () => play([]),
  };
}

export const another = (demo) => Math.floor(Math.random() * demo.games);
