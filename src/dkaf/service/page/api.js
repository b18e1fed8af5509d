// What the page says to the service. An action that must count once is written down before it is sent, under a key of
// its own, and sent again under the same key until an answer came: after a lost connection as after a reload. It goes
// out in the name of who did it and of nobody else: the service knows keys by name, and so do the records.

// What this tab keeps; what cannot be read is as good as nothing.
export function stored(key, nothing) {
  try {
    return JSON.parse(sessionStorage.getItem(key)) ?? nothing;
  } catch {
    return nothing;
  }
}

const OUTBOX = "dkaf.outbox";

export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

// No answer came, or one from a proxy: whether the service has done it is unknown.
export class NoAnswer extends Error {}

// What the shell of the page does for all views: it asks for a token, and shows who is here and what is kept.
export const shell = {
  askForToken: () => Promise.reject(new Problem(401, "sign in first")),
  met: () => {},
  kept: () => {},
};

let csrf = null; // of the session, where there is one
let caller = null; // the name of who is here
let whoIsAsked = null; // while a token is asked for, further requests wait for the same answer

export const path = (...parts) => `api/${parts.map(encodeURIComponent).join("/")}`;
export const signedIn = () => csrf !== null;

async function send(method, address, body, signal) {
  const headers = { Accept: "application/json" };
  if (method !== "GET") headers["X-CSRF-Token"] = csrf ?? "";
  if (body !== undefined && !(body instanceof FormData)) {
    headers["Content-Type"] = "application/json";
    body = JSON.stringify(body);
  }
  // Who leaves a view stops what it asked for, before the answer or in the midst of it: nothing is wrong then.
  const lost = (words) => (error) => {
    throw error.name === "AbortError" ? error : new NoAnswer(words);
  };
  const request = { method, headers, body, signal, credentials: "same-origin", cache: "no-store" };
  const answer = await fetch(address, request).catch(lost("The service does not answer."));
  if ([502, 503, 504].includes(answer.status)) throw new NoAnswer("The service cannot be reached.");
  const text = await answer.text().catch(lost("The connection was lost."));
  const data = read(text);
  if (answer.ok) return data;
  throw new Problem(answer.status, sentence(data) ?? `The service answered ${answer.status} ${answer.statusText}.`);
}

function read(text) {
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return null;
  }
}

function sentence(data) {
  return typeof data?.detail === "string" ? data.detail : data?.title;
}

// `name`: of whom a change is; in anybody else's name it is not sent.
export async function call(method, address, body, signal, name = method === "GET" ? null : caller) {
  try {
    return await send(method, address, body, signal);
  } catch (error) {
    if (error.status === 401) {
      whoIsAsked ??= shell.askForToken().finally(() => (whoIsAsked = null));
      await whoIsAsked;
    } else if (error.status !== 403 || !(await sessionChanged())) throw error;
    if (name && name !== caller) throw new Error(`${name} did this and ${caller} is here now; it was not sent`);
    return send(method, address, body, signal);
  }
}

// In another tab somebody may have signed in anew: the cookie is of that session then, and so has to be the token.
async function sessionChanged() {
  const before = csrf;
  await meet();
  return csrf !== before;
}

export async function meet() {
  const about = await get("api/about");
  csrf = about.csrf;
  caller = about.name;
  shell.met(about);
  shell.kept();
  return about;
}

export const get = (address, signal) => call("GET", address, undefined, signal);
export const post = (address, body = {}, signal, name) => call("POST", address, body, signal, name);
export const remove = (address) => call("DELETE", address);

export async function openSession(token) {
  ({ csrf } = await send("POST", "api/session", { token }));
}

export async function closeSession() {
  await send("DELETE", "api/session");
  csrf = null;
}

const outbox = () => stored(OUTBOX, {});
const placeOf = ({ name, slot }) => JSON.stringify([name, slot]);
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

function change(entry, kept) {
  const entries = outbox();
  if (kept) entries[placeOf(entry)] = kept;
  // Another action may have taken its place while the answer was under way.
  else if (same(entries[placeOf(entry)]?.body, entry.body)) delete entries[placeOf(entry)];
  sessionStorage.setItem(OUTBOX, JSON.stringify(entries));
  shell.kept();
}

// `slot` names what is meant ("ask", or telling of one candidate), `words` say it to people; `keyName` is what the
// service calls the key.
export async function once({ slot, words, address, body, keyName = "key" }) {
  const place = placeOf({ name: caller, slot });
  let entry = outbox()[place];
  if (entry) {
    const { [keyName]: key, ...kept } = entry.body;
    if (!same(kept, body))
      throw new Error(`${entry.words} is still being sent; wait until it is there, then try again`);
  } else {
    entry = { name: caller, slot, words, address, body: { ...body, [keyName]: uuid() } };
    change(entry, entry);
  }
  return deliver(entry);
}

// An answer that may be another one later: too many requests, or an error of the service's own.
const passing = ({ status }) => status === 429 || status >= 500;

// Whether what met this error is kept, and sent again.
export const isKept = (error) => error instanceof NoAnswer || (error instanceof Problem && passing(error));

async function deliver(entry) {
  try {
    const answer = await post(entry.address, entry.body, undefined, entry.name);
    change(entry, null);
    return answer;
  } catch (error) {
    if (error instanceof Problem && passing(error)) change(entry, { ...entry, trouble: error.message });
    else if (error instanceof Problem) change(entry, null); // it was not done, and a next try is another action
    throw error;
  }
}

// For what a person sends again themselves: pressed anew because no answer came, it is still the same request.
export function repeatable(address) {
  let last = null;
  return async (body) => {
    const text = JSON.stringify(body);
    if (last?.text !== text) last = { text, key: uuid() };
    try {
      const answer = await post(address, { ...body, key: last.key });
      last = null;
      return answer;
    } catch (error) {
      if (!isKept(error)) last = null;
      throw error;
    }
  };
}

// What is kept from who is here, for an address and below.
export const unsent = (address) =>
  Object.values(outbox()).filter((entry) => entry.name === caller && entry.address.startsWith(`${address}/`));

export const waits = (slot) => Boolean(outbox()[placeOf({ name: caller, slot })]);

// What does not go out by itself: it is somebody else's, or the service had trouble with it.
export const stuck = () => Object.values(outbox()).filter(({ name, trouble }) => name !== caller || trouble);

export const ownUnsent = () => Object.values(outbox()).filter(({ name }) => name === caller);

export const discard = (entry) => change(entry, null);

// All are tried, unless the service cannot be reached: what is refused does not hold up the next.
export async function deliverUnsent(address) {
  let first = null;
  for (const entry of unsent(address)) {
    try {
      await deliver(entry);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      first ??= new Problem(error.status, `${entry.words}: ${error.message}`);
    }
  }
  if (first) throw first;
}

// Over plain HTTP beyond localhost, browsers have no randomUUID.
function uuid() {
  if (crypto.randomUUID) return crypto.randomUUID();
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
