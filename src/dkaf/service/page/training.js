// To train a policy from campaigns that are finished, and the policies there are.

import { get, path, remove, repeatable } from "./api.js";
import { announce, el, exact, plural, refill, when } from "./dom.js";
import { NAME } from "./new.js";

const SOON = 1000,
  LATER = 10_000; // ms; while a job runs, and otherwise
const OVER = ["done", "failed", "cancelled"];

export async function trainingView({ body, name, operator, signal, fail }) {
  name("Training");
  const jobs = el("div", {});
  const policies = el("div", {});
  const states = new Map();
  let timer;

  const refresh = async () => {
    clearTimeout(timer);
    const found = await get("api/jobs", signal);
    refill(
      jobs,
      found.length
        ? el("ul", { class: "campaigns" }, found.map(jobCard))
        : el("p", { class: "quiet" }, "No training yet."),
    );
    const ended = found.filter(
      ({ job, state }) => states.has(job) && states.get(job) !== state && OVER.includes(state),
    );
    for (const job of ended) announce(`Training ${job.name}: ${stateWords(job)}.`);
    if (ended.length || !states.size) await showPolicies();
    for (const { job, state } of found) states.set(job, state);
    const running = found.some(({ state }) => !OVER.includes(state));
    timer = setTimeout(() => refresh().catch(later), running ? SOON : LATER);
  };
  const later = (error) => {
    fail(error);
    timer = setTimeout(() => refresh().catch(later), LATER);
  };
  signal.addEventListener("abort", () => clearTimeout(timer));

  const showPolicies = async () =>
    refill(policies, policyList(await get("api/policies", signal), operator ? removePolicy : null));

  const removePolicy = async ({ name }) => {
    if (!window.confirm(`Remove the policy ${name}? Campaigns that began with it keep a copy of their own.`)) return;
    try {
      await remove(path("policies", name));
      await showPolicies();
      announce(`${name} is removed.`);
    } catch (error) {
      fail(error);
    }
  };

  function jobCard(job) {
    const running = !OVER.includes(job.state);
    const cancel = async () => {
      try {
        await remove(path("jobs", job.job));
        await refresh();
      } catch (error) {
        fail(error);
      }
    };
    return el(
      "li",
      { class: "card" },
      el("h3", {}, job.name),
      el("p", {}, stateWords(job)),
      running
        ? el("progress", {
            ...(job.total ? { max: job.total, value: job.done } : {}),
            "aria-label": `Progress of ${job.name}`,
          })
        : null,
      el(
        "p",
        { class: "quiet" },
        `From ${plural(job.campaigns.length, "campaign")} (${job.campaigns.join(", ")}), begun `,
        when(job.created),
        job.who ? ` by ${job.who}` : "",
      ),
      job.message && job.message !== job.state
        ? el("p", { class: job.state === "failed" ? "wrong" : "quiet" }, job.message)
        : null,
      running && operator
        ? el("p", {}, el("button", { type: "button", "data-key": `cancel ${job.job}`, onclick: cancel }, "Cancel"))
        : null,
    );
  }

  if (operator) body.append(await startForm({ signal, fail, started: refresh }));
  body.append(
    el("section", { "aria-labelledby": "jobs" }, el("h2", { id: "jobs" }, "Under way and done"), jobs),
    el("section", { "aria-labelledby": "policies" }, el("h2", { id: "policies" }, "Policies"), policies),
  );
  await refresh();
}

function stateWords({ state, stage, done, total }) {
  if (OVER.includes(state)) return state;
  return [stage || state, total ? `${done} of ${total}` : ""].filter(Boolean).join(", ");
}

async function startForm({ signal, fail, started }) {
  const campaigns = (await get("api/campaigns", signal)).filter(({ told }) => told > 0);
  const form = el("form", { class: "card stack" });
  form.append(el("h2", {}, "Learn from finished campaigns"));
  if (!campaigns.length) {
    form.append(
      el(
        "p",
        {},
        "A policy learns from campaigns with measurements; there are none yet. Until then, a Gaussian process chooses.",
      ),
    );
    return form;
  }
  const choice = campaigns.map((campaign) =>
    el(
      "label",
      { class: "check" },
      el("input", { type: "checkbox", name: "campaign", value: campaign.name }),
      el(
        "span",
        {},
        campaign.name,
        el(
          "small",
          { class: "quiet" },
          ` ${plural(campaign.told, "measurement")}, best ${exact(campaign.best?.value)}`,
        ),
      ),
    ),
  );
  const problem = el("p", { class: "wrong", role: "alert" });
  const boxes = () => [...form.querySelectorAll("[name=campaign]")];
  const all = el("input", { type: "checkbox", onchange: () => boxes().forEach((box) => (box.checked = all.checked)) });
  const follow = () => (all.checked = boxes().every(({ checked }) => checked));
  form.append(
    el(
      "fieldset",
      { class: "choices", onchange: (event) => event.target.name === "campaign" && follow() },
      el("legend", {}, "Campaigns with the same columns and response"),
      campaigns.length > 1 ? el("label", { class: "check all" }, all, "All of them") : null,
      choice,
    ),
    el(
      "label",
      { class: "fields" },
      el("span", {}, "Name of the policy"),
      el("input", { name: "name", required: true, ...NAME, autocomplete: "off" }),
      el("small", { class: "quiet" }, NAME.title),
    ),
    el("p", {}, el("button", { type: "submit", class: "main-action" }, "Train")),
    problem,
  );
  const train = repeatable("api/jobs");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const chosen = boxes()
      .filter(({ checked }) => checked)
      .map(({ value }) => value);
    problem.textContent = "";
    try {
      if (!chosen.length) throw new Error("Training takes past campaigns, none is chosen; tick some.");
      await train({ campaigns: chosen, name: form.elements.namedItem("name").value.trim() });
      announce(`Training from ${plural(chosen.length, "campaign")} has begun.`);
    } catch (error) {
      if (error.name !== "AbortError") problem.textContent = error.message;
      return;
    }
    started().catch(fail);
  });
  return form;
}

function policyList(policies, removePolicy) {
  if (!policies.length) return el("p", { class: "quiet" }, "No policies yet.");
  return el(
    "ul",
    { class: "campaigns" },
    policies.map((policy) =>
      el(
        "li",
        { class: "card" },
        el("h3", {}, policy.name),
        policy.error ? el("p", { class: "wrong" }, policy.error) : el("p", {}, policy.gain_in_words ?? ""),
        policy.error
          ? null
          : el(
              "p",
              { class: "quiet" },
              `${policy.method} ${policy.acquisition}, for ${policy.response}: ${policy.minimise ? "smaller" : "larger"} is better`,
            ),
        removePolicy
          ? el(
              "p",
              {},
              el(
                "button",
                { type: "button", "aria-label": `Remove ${policy.name}`, onclick: () => removePolicy(policy) },
                "Remove",
              ),
            )
          : null,
      ),
    ),
  );
}
