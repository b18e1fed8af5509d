// The list of campaigns.

import { get } from "./api.js";
import { el, exact, plural, refill, when } from "./dom.js";

const EVERY = 10_000; // ms; a list of campaigns has no events of its own

export async function campaignsView({ body, name, operator, signal, fail }) {
  name("Campaigns");
  const list = el("div", {});
  body.append(list);
  const refresh = async () => {
    const campaigns = await get("api/campaigns", signal);
    refill(list, campaigns.length ? [operator ? beginLink() : null, cards(campaigns)] : beginning(operator));
  };
  const timer = setInterval(() => document.hidden || refresh().catch(fail), EVERY);
  signal.addEventListener("abort", () => clearInterval(timer));
  await refresh();
}

function cards(campaigns) {
  return el(
    "ul",
    { class: "campaigns" },
    campaigns.map((campaign) =>
      el(
        "li",
        { class: "card" },
        el(
          "h2",
          {},
          el(
            "a",
            { href: `#/campaign/${encodeURIComponent(campaign.name)}`, "data-key": `campaign ${campaign.name}` },
            campaign.name,
          ),
        ),
        campaign.error ? el("p", { class: "wrong" }, campaign.error) : facts(campaign),
      ),
    ),
  );
}

function facts(campaign) {
  return [
    el("p", {}, best(campaign)),
    el(
      "p",
      { class: "quiet" },
      `${plural(campaign.told, "measurement")}, ${plural(campaign.candidates, "candidate")}, ${campaign.pending} pending`,
      campaign.budget === null ? "" : `, ${campaign.left} of ${campaign.budget} left of the budget`,
    ),
    el("p", { class: "quiet" }, `${policyWords(campaign.policy)}, begun `, when(campaign.created)),
  ];
}

function beginLink() {
  return el("p", {}, el("a", { class: "button main-action", href: "#/new", "data-key": "begin" }, "Begin a campaign"));
}

function best(campaign) {
  if (!campaign.best) return "Nothing is measured yet.";
  return [
    "Best so far: ",
    el("strong", {}, exact(campaign.best.value)),
    " by ",
    el("span", { class: "id" }, campaign.best.id),
  ];
}

export function policyWords(policy) {
  return policy === "gp" ? "Gaussian process" : `Policy ${policy}`;
}

function beginning(operator) {
  return el(
    "div",
    { class: "card empty" },
    el("h2", {}, "No campaigns yet"),
    el(
      "p",
      {},
      "A campaign is a search through a table of candidates for the best one, in as few measurements as possible.",
    ),
    el(
      "ol",
      {},
      el("li", {}, "Take a CSV file with a row for each candidate: what is known of it before it is measured."),
      el(
        "li",
        {},
        "Begin a campaign with it. Past campaigns are not needed: a Gaussian process learns from your measurements.",
      ),
      el("li", {}, "Ask what to try next, measure it, tell what it gave. And again."),
    ),
    operator ? beginLink() : el("p", { class: "quiet" }, "Somebody with the role of operator can begin one."),
  );
}
