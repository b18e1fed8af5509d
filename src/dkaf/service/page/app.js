// The shell: who is here, which view is open, and where the focus goes.

import { NoAnswer, closeSession, meet, onUnauthorised, openSession, signedIn } from "./api.js";
import { el, showProblem } from "./dom.js";
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
const main = document.getElementById("main");
let about = null;
let leave = null; // stops what the open view has running

function askForToken() {
  const dialog = document.getElementById("sign-in");
  const form = dialog.querySelector("form");
  const field = document.getElementById("token");
  const problem = document.getElementById("sign-in-problem");
  return new Promise((done) => {
    dialog.oncancel = (event) => event.preventDefault(); // without a token there is nothing to see
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
      dialog.close();
      if (about) await greet();
      done();
    };
    dialog.showModal();
    field.focus();
  });
}

async function greet() {
  about = await meet();
  document.getElementById("about").textContent = `dkaf ${about.version}`;
  document.getElementById("role").textContent = signedIn()
    ? `${about.name}${about.role === "viewer" ? ", can look and not change" : ""}`
    : "";
  document.getElementById("sign-out").hidden = !signedIn();
  for (const link of document.querySelectorAll("[data-operator]")) link.hidden = about.role !== "operator";
  document.querySelector("[data-view=demo]").hidden = about.demo === null;
}

async function open() {
  leave?.();
  showProblem(null);
  const stopped = new AbortController();
  leave = () => stopped.abort();
  const place = location.hash.slice(1);
  const [pattern, view, show] = ROUTES.find(([route]) => route.test(place)) ?? [null, null, nothingHere];
  const parts = pattern ? place.match(pattern).slice(1).map(decodeURIComponent) : [];
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
  }
  if (!stopped.signal.aborted && !body.contains(document.activeElement)) title.focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

function nothingHere({ body, name }) {
  name("Nothing is here");
  body.append(el("p", {}, "This address names no view. ", el("a", { href: "#/" }, "All campaigns")));
}

function fail(error) {
  if (error.name === "AbortError") return;
  showProblem(error.message);
}

document.querySelector("#problem button").addEventListener("click", () => showProblem(null));
document.getElementById("sign-out").addEventListener("click", async () => {
  await closeSession().catch(fail);
  location.hash = "#/";
  location.reload();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the view
  main.focus();
});
window.addEventListener("hashchange", open);

onUnauthorised(askForToken);

async function begin() {
  try {
    await greet();
  } catch (error) {
    fail(error);
    if (error instanceof NoAnswer) setTimeout(begin, 3000);
    return;
  }
  await open();
}

begin();
