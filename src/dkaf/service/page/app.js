// The shell: who is here, which view is open, and where the focus goes.

import { NoAnswer, closeSession, discard, meet, openSession, ownUnsent, shell, signedIn, stuck } from "./api.js";
import { announce, el, refill, showProblem } from "./dom.js";
import { campaignView } from "./campaign.js";
import { campaignsView } from "./campaigns.js";
import { demoView } from "./demo.js";
import { newView } from "./new.js";
import { raceView } from "./race.js";
import { rateView } from "./rate.js";
import { trainingView } from "./training.js";

const ROUTES = [
  [/^\/?$/, "campaigns", campaignsView],
  [/^\/new$/, "new", newView],
  [/^\/training$/, "training", trainingView],
  [/^\/campaign\/([^/]+)$/, "campaigns", campaignView],
  [/^\/demo$/, "demo", demoView],
  [/^\/demo\/rate\/(\d+)$/, "demo", rateView],
  [/^\/demo\/race\/(\d+)$/, "demo", raceView],
];
const AGAIN = 3000; // ms until a service that did not answer is asked again
const main = document.getElementById("main");
let about = null;
let leave = null; // stops what the open view has running

shell.askForToken = () => {
  const dialog = document.getElementById("sign-in");
  const form = dialog.querySelector("form");
  const field = document.getElementById("token");
  const problem = document.getElementById("sign-in-problem");
  return new Promise((done) => {
    dialog.oncancel = (event) => event.preventDefault(); // without a token there is nothing to see
    dialog.onclose = () => dialog.showModal(); // a second Esc closes it, whatever is said to the first
    form.onsubmit = async (event) => {
      event.preventDefault();
      try {
        await openSession(field.value.trim());
      } catch (error) {
        problem.textContent = error.message;
        field.select();
        return;
      }
      field.value = problem.textContent = "";
      dialog.onclose = null;
      dialog.close();
      if (about) await meet(); // what waits for this has to know who is here now
      done();
    };
    if (!dialog.open) dialog.showModal();
    field.focus();
  });
};

shell.met = (found) => {
  const other = about && (about.name !== found.name || about.role !== found.role);
  about = found;
  document.getElementById("about").textContent = `dkaf ${about.version}`;
  document.getElementById("role").textContent = signedIn()
    ? `${about.name}${about.role === "viewer" ? ", can look and not change" : ""}`
    : "";
  document.getElementById("sign-out").hidden = !signedIn();
  for (const link of document.querySelectorAll("[data-operator]")) link.hidden = about.role !== "operator";
  document.querySelector("[data-view=demo]").hidden = about.demo === null;
  if (other) open();
};

shell.kept = () => {
  const entries = stuck();
  const box = document.getElementById("kept");
  box.hidden = !entries.length;
  refill(
    box,
    entries.map((entry) =>
      el(
        "div",
        {},
        el("p", {}, keptWords(entry)),
        el(
          "button",
          { type: "button", "aria-label": `Discard ${entry.words}`, onclick: () => discard(entry) },
          "Discard",
        ),
      ),
    ),
  );
};

function keptWords({ name, words, trouble }) {
  if (name !== about?.name) return `Kept from ${name}: ${words}. It goes out when ${name} signs in here.`;
  return `Kept: ${words}. It is tried again (${trouble}).`;
}

function routed(place) {
  for (const [pattern, view, show] of ROUTES) {
    const found = place.match(pattern);
    if (!found) continue;
    try {
      return [view, show, found.slice(1).map(decodeURIComponent)];
    } catch {
      break; // a percent sign that begins nothing
    }
  }
  return [null, nothingHere, []];
}

async function open() {
  leave?.();
  showProblem(null);
  const stopped = new AbortController();
  leave = () => stopped.abort();
  const [view, show, parts] = routed(location.hash.slice(1));
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const title = el("h1", { tabindex: "-1" });
  const body = el("div", { class: "view" });
  main.replaceChildren(title, body);
  const context = {
    about,
    body,
    operator: about.role === "operator",
    signal: stopped.signal,
    name: (text) => {
      title.textContent = text;
      document.title = `${text} · dkaf`;
    },
    fail,
  };
  try {
    await show(context, ...parts);
  } catch (error) {
    fail(error);
    if (error instanceof NoAnswer && !stopped.signal.aborted) setTimeout(() => stopped.signal.aborted || open(), AGAIN); // half a view is none
  }
  if (stopped.signal.aborted) return;
  if (!body.contains(document.activeElement)) title.focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

function nothingHere({ body, name }) {
  name("Nothing is here");
  body.append(el("p", {}, "This address names no view. ", el("a", { href: "#/" }, "All campaigns")));
}

function fail(error) {
  if (error.name === "AbortError") return;
  announce(""); // it may cover what is wrong
  showProblem(error.message);
}

async function signOut() {
  try {
    await closeSession();
  } catch (error) {
    return fail(error);
  }
  location.hash = "#/";
  location.reload();
}

document.querySelector("#problem button").addEventListener("click", () => showProblem(null));
document.getElementById("news").addEventListener("click", () => announce(""));
document.getElementById("sign-out").addEventListener("click", () => {
  const entries = ownUnsent();
  if (!entries.length) return signOut();
  const dialog = document.getElementById("leaving");
  dialog.querySelector("ul").replaceChildren(...entries.map(({ words }) => el("li", {}, words)));
  dialog.onclose = () => dialog.returnValue === "leave" && signOut();
  dialog.returnValue = "";
  dialog.showModal();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the view
  main.focus();
});
window.addEventListener("hashchange", open);

async function begin() {
  try {
    await meet();
  } catch (error) {
    fail(error);
    if (error instanceof NoAnswer) setTimeout(begin, AGAIN);
    return;
  }
  await open();
}

begin();
