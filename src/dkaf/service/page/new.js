// To begin a campaign: a table, what its columns are, and how to search.

import { get, path, post } from "./api.js";
import { announce, el, plural, refill, showProblem } from "./dom.js";

const DRAFT = "dkaf.new"; // survives a reload
const KINDS = ["numeric", "categorical", "text", "smiles", "ignore"];
const GP = "gp";
export const NAME = { pattern: "[A-Za-z0-9_\\-]{1,64}", maxlength: "64", title: "letters, digits, - and _" };

export async function newView({ about, body, name, operator, signal, fail }) {
  name("New campaign");
  if (!operator) {
    body.append(el("p", {}, "To begin a campaign takes the role of operator; you can look."));
    return;
  }
  const draft = JSON.parse(sessionStorage.getItem(DRAFT) ?? "null") ?? { table: null, kinds: {}, fields: {} };
  const save = () => sessionStorage.setItem(DRAFT, JSON.stringify(draft));
  let policies = await usablePolicies(signal);

  const found = el("p", { class: "quiet", role: "status" });
  const columns = el("div", {});
  const rest = el("div", { hidden: true });
  const field = (key) => form.elements.namedItem(key);

  const take = async (file) => {
    if (!file) return;
    found.textContent = `Reading ${file.name} …`;
    try {
      const table = await upload(file, signal);
      if (table.kind !== "table")
        throw new Error(`${file.name} is a policy, not a table of candidates; add it under “Policy” below`);
      Object.assign(draft, { table, kinds: {} });
      draft.fields.name ||= stem(file.name);
      delete draft.fields.id;
      delete draft.fields.response;
      save();
      showProblem(null);
      showTable();
      field("name").focus();
    } catch (error) {
      found.textContent = draft.table ? inWords(draft.table) : "";
      fail(error);
    }
  };

  const showColumns = () => {
    const policy = policies.find(({ name: known }) => known === field("policy").value);
    const roles = { [field("id").value]: "id", [field("response").value]: "response, left out" };
    refill(columns, columnTable(draft, { policy, roles, chem: about.chem, changed: save }));
    field("minimise").disabled = Boolean(policy);
    if (policy) field("minimise").value = String(policy.minimise);
    const words = policy
      ? `${policy.gain_in_words ?? ""} What the columns are, and which results are better, it knows.`
      : "";
    form.querySelector("#policy-words").textContent = words;
  };

  const showPolicies = () => {
    const options = policies.map((policy) =>
      el("option", { value: policy.name }, `${policy.name} (${policy.method} ${policy.acquisition})`),
    );
    const chosen = field("policy").value;
    field("policy").replaceChildren(el("option", { value: GP }, "No past campaigns: Gaussian process"), ...options);
    field("policy").value = policies.some((policy) => policy.name === chosen) ? chosen : GP;
  };

  const showTable = () => {
    const { table } = draft;
    found.textContent = inWords(table);
    const names = table.columns.map((column) => el("option", { value: column.name }, column.name));
    field("id").replaceChildren(el("option", { value: "" }, "none: rows are called 1, 2, …"), ...names);
    form.querySelector("#columns").replaceChildren(...names.map((option) => option.cloneNode(true)));
    for (const [key, value] of Object.entries(draft.fields)) restore(field(key), value);
    if (draft.fields.id === undefined) field("id").value = likelyId(table);
    rest.hidden = false;
    showColumns();
  };

  const create = async (event) => {
    event.preventDefault();
    const button = form.querySelector("[type=submit]");
    if (button.getAttribute("aria-disabled") === "true") return;
    button.setAttribute("aria-disabled", "true");
    announce("The pool is being prepared …");
    try {
      const own = field("policy").value === GP;
      const campaign = await post("api/campaigns", {
        name: field("name").value.trim(),
        pool: draft.table.upload,
        policy: field("policy").value,
        id: field("id").value || null,
        response: field("response").value.trim() || null,
        budget: field("budget").value ? Number(field("budget").value) : null,
        minimise: own ? field("minimise").value === "true" : null,
        kinds: own ? draft.kinds : {},
        impute: field("impute").checked,
        seed: Number(field("seed").value || 0),
      });
      sessionStorage.removeItem(DRAFT);
      location.hash = `#/campaign/${encodeURIComponent(campaign.name)}`;
    } catch (error) {
      fail(error);
    } finally {
      button.setAttribute("aria-disabled", "false");
    }
  };

  const addPolicy = async (event) => {
    try {
      const answer = await upload(event.target.files[0], signal);
      if (answer.kind !== "policy")
        throw new Error("This file is a table, not a policy; take it under “Candidates” above");
      policies = await usablePolicies(signal);
      showPolicies();
      field("policy").value = answer.policy;
      showColumns();
      announce(`Policy ${answer.policy} is there.`);
    } catch (error) {
      fail(error);
    }
    event.target.value = "";
  };

  const form = el(
    "form",
    {
      class: "stack",
      onsubmit: create,
      oninput: (event) => remember(event.target, draft, save),
      onchange: showIfChosen,
    },
    el("section", { class: "card" }, el("h2", {}, "1. Candidates"), dropZone(take), found),
    rest,
  );
  function showIfChosen(event) {
    if (!["id", "response", "policy"].includes(event.target.name)) return;
    const learned = policies.find(({ name: known }) => event.target.name === "policy" && known === event.target.value);
    if (learned && draft.table.columns.some((column) => column.name === learned.id)) field("id").value = learned.id;
    showColumns();
  }
  rest.append(
    el(
      "section",
      { class: "card" },
      el("h2", {}, "2. How to search"),
      el(
        "div",
        { class: "fields" },
        labelled(
          "Name of the campaign",
          el("input", { name: "name", required: true, ...NAME, autocomplete: "off" }),
          NAME.title,
        ),
        labelled("Column that names candidates", el("select", { name: "id" })),
        labelled(
          "What is measured",
          el("input", { name: "response", list: "columns", placeholder: "result", autocomplete: "off" }),
          "a column of this name is left out: before it is measured, nobody knows it",
        ),
        el("datalist", { id: "columns" }),
        labelled(
          "Budget",
          el("input", { name: "budget", type: "number", min: "1", step: "1", placeholder: "no limit" }),
          "measurements, at most",
        ),
        labelled("Policy", el("select", { name: "policy", "aria-describedby": "policy-words" })),
        labelled(
          "Which results are better",
          el(
            "select",
            { name: "minimise" },
            el("option", { value: "false" }, "larger"),
            el("option", { value: "true" }, "smaller"),
          ),
        ),
      ),
      el("p", { id: "policy-words", class: "quiet" }),
      el(
        "details",
        {},
        el("summary", {}, "More"),
        el(
          "div",
          { class: "fields" },
          labelled("Add a policy file", el("input", { type: "file", accept: ".safetensors", onchange: addPolicy })),
          labelled(
            "Seed",
            el("input", { name: "seed", type: "number", min: "0", step: "1", value: "0" }),
            "of what chance picks",
          ),
          el("label", { class: "check" }, el("input", { name: "impute", type: "checkbox" }), "Fill in missing values"),
        ),
      ),
    ),
    el("section", { class: "card" }, el("h2", {}, "3. The columns found"), columns),
    el("p", {}, el("button", { type: "submit", class: "main-action" }, "Begin the campaign")),
  );
  body.append(form);
  showPolicies();
  if (draft.table) showTable();
}

async function usablePolicies(signal) {
  return (await get("api/policies", signal)).filter(({ error }) => !error);
}

async function upload(file, signal) {
  const data = new FormData();
  data.append("file", file);
  return post(path("uploads"), data, signal);
}

const stem = (filename) =>
  filename
    .replace(/\.[^.]*$/, "")
    .replaceAll(/[^A-Za-z0-9_-]+/g, "-")
    .slice(0, 64);
const inWords = (table) =>
  `${table.filename}: ${plural(table.rows, "candidate")}, ${plural(table.columns.length, "column")}.`;

// Names are different in most rows, so detection leaves their column out, with a sentence that says so.
function likelyId(table) {
  const named = table.columns.find(({ name }) => /^(id|name|key|smiles)$/i.test(name));
  return (named ?? table.columns.find(({ kind }) => kind === "ignore"))?.name ?? "";
}

function remember(target, draft, save) {
  if (!target.name || target.type === "file") return;
  draft.fields[target.name] = target.type === "checkbox" ? target.checked : target.value;
  save();
}

function restore(field, value) {
  if (!field) return;
  if (field.type === "checkbox") field.checked = value;
  else field.value = value;
}

function labelled(text, control, hint) {
  return el("label", {}, el("span", {}, text), control, hint ? el("small", { class: "quiet" }, hint) : null);
}

function dropZone(take) {
  const zone = el(
    "label",
    { class: "drop" },
    el("span", {}, "Drop a CSV file here, or choose one"),
    el("input", { type: "file", accept: ".csv,.tsv,.txt,.parquet", onchange: (event) => take(event.target.files[0]) }),
    el(
      "small",
      { class: "quiet" },
      "A row for each candidate, a column for each thing that is known before it is measured.",
    ),
  );
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("over");
  });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    take(event.dataTransfer.files[0]);
  });
  return zone;
}

function columnTable(draft, { policy, roles, chem, changed }) {
  const rows = draft.table.columns.map((column) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, column.name),
      el(
        "td",
        { "data-label": "taken for" },
        roles[column.name] ??
          (policy ? (policy.columns[column.name] ?? "not used") : kindField(column, draft, chem, changed)),
      ),
      el("td", { "data-label": "because" }, column.reason ?? ""),
      el("td", { "data-label": "first values", class: "values" }, column.first.join(" · ")),
    ),
  );
  return el(
    "table",
    { class: "folding" },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        ["Column", "Taken for", "Because", "First values"].map((text) => el("th", { scope: "col" }, text)),
      ),
    ),
    el("tbody", {}, rows),
  );
}

function kindField(column, draft, chem, changed) {
  const change = (event) => {
    if (event.target.value === column.kind) delete draft.kinds[column.name];
    else draft.kinds[column.name] = event.target.value;
    changed();
  };
  const options = KINDS.map((kind) =>
    el("option", { value: kind }, kind === "smiles" && !chem ? "smiles (needs dkaf[chem])" : kind),
  );
  const select = el(
    "select",
    { "aria-label": `What ${column.name} is`, "data-key": `kind ${column.name}`, onchange: change },
    options,
  );
  select.value = draft.kinds[column.name] ?? column.kind;
  return select;
}
