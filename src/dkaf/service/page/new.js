// To begin a campaign: a table, what its columns are, and how to search.

import { get, path, post, repeatable } from "./api.js";
import { announce, el, plural, refill, showProblem } from "./dom.js";

const DRAFT = "dkaf.new"; // survives a reload
const KINDS = ["numeric", "categorical", "text", "smiles", "ignore"];
const FOLDED = 20; // columns shown; of more, the others unfold
const GP = "gp";
const OTHER = "other"; // what is measured is no column of the table
const DELIMITERS = { ",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars" };
const ENCODINGS = { "utf-8": "UTF-8", cp1252: "Western European (Windows-1252)", "utf-16": "UTF-16" };
// The sentences of the command line name its options; here they are fields.
const FIELDS = [
  [/(say )?--kind .*?=(\w+)/g, "take it for “$2” below"],
  [/--kind\b/g, "“Taken for”"],
  [/--impute\b/g, "“Fill in missing values”"],
  [/(pass )?--delimiter( \S+)?/g, "“Columns are separated by”$2"],
  [/--encoding\b/g, "“Encoding”"],
  [/--id\b/g, "“Column that names candidates”"],
  [/--response\b/g, "“What is measured”"],
  [/send the pool to POST \/api\/uploads first/g, "choose the file again"],
];
export const NAME = { pattern: "[A-Za-z0-9_\\-]{1,64}", maxlength: "64", title: "letters, digits, - and _" };

export async function newView({ about, body, name, operator, signal, fail }) {
  name("New campaign");
  if (!operator) {
    body.append(el("p", {}, "To begin a campaign takes the role of operator; you can look."));
    return;
  }
  const draft = { table: null, kinds: [], fields: {}, ...JSON.parse(sessionStorage.getItem(DRAFT) ?? "{}") };
  draft.kinds = new Map(draft.kinds); // a column may be called as what every object has
  const save = () => sessionStorage.setItem(DRAFT, JSON.stringify({ ...draft, kinds: [...draft.kinds] }));
  const refused = (error) => fail(Object.assign(error, { message: inFields(error.message) }));
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
      draft.fields.name ||= stem(file.name);
      put(table);
      field("name").focus();
    } catch (error) {
      found.textContent = draft.table ? inWords(draft.table) : "";
      refused(error);
    }
  };

  const put = (table) => {
    Object.assign(draft, { table, kinds: new Map() });
    for (const key of ["id", "response", "known"]) delete draft.fields[key];
    save();
    showProblem(null);
    showTable();
  };

  const readAgain = async () => {
    const how = new URLSearchParams({ delimiter: delimiter.value, encoding: encoding.value });
    try {
      put(await get(`${path("uploads", draft.table.upload)}?${how}`, signal));
    } catch (error) {
      showReading(); // as it was
      refused(error);
    }
  };
  const delimiter = choice(DELIMITERS, { onchange: readAgain });
  const encoding = choice(ENCODINGS, { onchange: readAgain });
  const reading = el(
    "div",
    { class: "fields reading", hidden: true },
    labelled("Columns are separated by", delimiter),
    labelled("Encoding", encoding),
  );
  const isText = () => /\.[ct]sv$/.test(draft.table.upload);
  const showReading = () => {
    reading.hidden = !isText();
    delimiter.value = draft.table.delimiter ?? (draft.table.upload.endsWith(".tsv") ? "\t" : ",");
    encoding.value = draft.table.encoding ?? "utf-8";
  };

  // A column of the table that holds the results, or null.
  const responseColumn = () => draft.table.columns.find(({ name }) => `column ${name}` === field("response").value);
  const responseName = () => responseColumn()?.name ?? field("other").value.trim();

  const showResponse = () => {
    const column = responseColumn();
    const { filled = 0 } = column ?? {};
    const other = field("response").value === OTHER;
    field("other").closest("label").hidden = !other;
    field("other").required = other;
    field("known").closest("label").hidden = !filled;
    form.querySelector("#known-words").textContent = `Take over the ${plural(filled, "value")} of ${plural(
      draft.table.rows,
      "row",
    )} as measured already; else they are left out`;
    form.querySelector("#response-words").textContent = column
      ? `${filled ? "It has values." : "It is empty so far."} To choose by, it is left out: before it is measured, nobody knows it.`
      : "";
  };

  const showColumns = () => {
    const policy = policies.find(({ name: known }) => known === field("policy").value);
    if (policy?.response) {
      const there = draft.table.columns.some((column) => column.name === policy.response);
      field("response").value = there ? `column ${policy.response}` : OTHER;
      if (!there) field("other").value = policy.response;
    }
    field("response").disabled = field("other").disabled = Boolean(policy?.response);
    showResponse();
    const roles = new Map([
      [field("id").value, "id"],
      [responseColumn()?.name, "response, left out"],
    ]);
    refill(columns, columnTables(draft, { policy, roles, chem: about.chem, changed: save }));
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
    showReading();
    const names = table.columns.map((column) => el("option", { value: column.name }, column.name));
    field("id").replaceChildren(el("option", { value: "" }, "none: rows are called 1, 2, …"), ...names);
    field("response").replaceChildren(
      el("option", { value: "" }, "choose …"),
      ...table.columns.map(({ name }) => el("option", { value: `column ${name}` }, name)),
      el("option", { value: OTHER }, "not in the table: a name"),
    );
    field("known").checked = true;
    for (const [key, value] of Object.entries(draft.fields)) restore(field(key), value);
    if (draft.fields.id === undefined) field("id").value = likelyId(table);
    rest.hidden = false;
    showColumns();
  };

  const begin = repeatable("api/campaigns");
  const create = async (event) => {
    event.preventDefault();
    const button = form.querySelector("[type=submit]");
    if (button.getAttribute("aria-disabled") === "true") return;
    button.setAttribute("aria-disabled", "true");
    announce("The pool is being prepared …");
    try {
      const own = field("policy").value === GP;
      const campaign = await begin({
        name: field("name").value.trim(),
        pool: draft.table.upload,
        policy: field("policy").value,
        id: field("id").value || null,
        response: responseName() || null,
        known: Boolean(responseColumn()?.filled) && field("known").checked,
        budget: field("budget").value ? Number(field("budget").value) : null,
        minimise: own ? field("minimise").value === "true" : null,
        kinds: own ? Object.fromEntries(draft.kinds) : {},
        impute: field("impute").checked,
        seed: Number(field("seed").value || 0),
        ...(isText() ? { delimiter: delimiter.value, encoding: encoding.value } : {}),
      });
      sessionStorage.removeItem(DRAFT);
      location.hash = `#/campaign/${encodeURIComponent(campaign.name)}`;
    } catch (error) {
      refused(error);
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
    el("section", { class: "card" }, el("h2", {}, "1. Candidates"), dropZone(take), found, reading),
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
          el("select", { name: "response", required: true, "aria-describedby": "response-words" }),
          el("span", { id: "response-words" }),
        ),
        labelled(
          "Name of what is measured",
          el("input", { name: "other", maxlength: "1000", placeholder: "yield", autocomplete: "off" }),
        ),
        el(
          "label",
          { class: "check" },
          el("input", { name: "known", type: "checkbox" }),
          el("span", { id: "known-words" }),
        ),
        labelled(
          "Which results are better",
          el(
            "select",
            { name: "minimise" },
            el("option", { value: "false" }, "larger"),
            el("option", { value: "true" }, "smaller"),
          ),
        ),
        labelled(
          "Budget",
          el("input", { name: "budget", type: "number", min: "1", step: "1", placeholder: "no limit" }),
          "measurements, at most",
        ),
        labelled("Policy", el("select", { name: "policy", "aria-describedby": "policy-words" })),
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

const inFields = (sentence) => FIELDS.reduce((text, [option, words]) => text.replace(option, words), sentence);

function choice(options, attributes) {
  return el(
    "select",
    attributes,
    Object.entries(options).map(([value, text]) => el("option", { value }, text)),
  );
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
    el("input", { type: "file", accept: ".csv,.tsv,.parquet,.pq", onchange: (event) => take(event.target.files[0]) }),
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

function columnTables(draft, context) {
  const { columns } = draft.table;
  const rest = columns.slice(FOLDED);
  return [
    columnTable(columns.slice(0, FOLDED), draft, context),
    rest.length
      ? el(
          "details",
          { "data-key": "more columns" },
          el("summary", {}, `${plural(rest.length, "more column")}`),
          columnTable(rest, draft, context),
        )
      : null,
  ];
}

function columnTable(columns, draft, { policy, roles, chem, changed }) {
  const takenFor = (column) => {
    if (roles.has(column.name)) return roles.get(column.name);
    if (!policy) return kindField(column, draft, chem, changed);
    return Object.hasOwn(policy.columns, column.name) ? policy.columns[column.name] : "not used";
  };
  const rows = columns.map((column) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, column.name),
      el("td", { "data-label": "taken for" }, takenFor(column)),
      el("td", { "data-label": "because" }, inFields(column.reason ?? "")),
      el("td", { "data-label": "first values", class: "values" }, column.first.map((text) => text || "–").join(" · ")),
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
    if (event.target.value === column.kind) draft.kinds.delete(column.name);
    else draft.kinds.set(column.name, event.target.value);
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
  select.value = draft.kinds.get(column.name) ?? column.kind;
  return select;
}
