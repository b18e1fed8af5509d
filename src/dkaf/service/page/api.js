// What the page says to the service. An action that must count once is written down before it is sent, under a key of
// its own, and sent again under the same key until an answer came: after a lost connection as after a reload.

const OUTBOX = "dkaf.outbox";

export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

// No answer came, or one from a proxy: whether the service has done it is unknown.
export class NoAnswer extends Error {}

let csrf = null; // of the session, where there is one
let whoIsAsked = null; // while a token is asked for, further requests wait for the same answer
let signIn = () => Promise.reject(new Problem(401, "sign in first"));

export function onUnauthorised(ask) {
  signIn = ask;
}

export const path = (...parts) => `api/${parts.map(encodeURIComponent).join("/")}`;
export const signedIn = () => csrf !== null;

async function send(method, address, body, signal) {
  const headers = { Accept: "application/json" };
  if (method !== "GET") headers["X-CSRF-Token"] = csrf ?? "";
  if (body !== undefined && !(body instanceof FormData)) {
    headers["Content-Type"] = "application/json";
    body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(address, { method, headers, body, signal, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new NoAnswer("The service does not answer.");
  }
  if ([502, 503, 504].includes(answer.status)) throw new NoAnswer("The service cannot be reached.");
  const text = await answer.text().catch(() => {
    throw new NoAnswer("The connection was lost.");
  });
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

export async function call(method, address, body, signal) {
  try {
    return await send(method, address, body, signal);
  } catch (error) {
    if (error.status === 401) {
      whoIsAsked ??= signIn().finally(() => (whoIsAsked = null));
      await whoIsAsked;
    } else if (error.status !== 403 || !(await sessionChanged())) throw error;
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
  return about;
}

export const get = (address, signal) => call("GET", address, undefined, signal);
export const post = (address, body = {}, signal) => call("POST", address, body, signal);
export const remove = (address) => call("DELETE", address);

export async function openSession(token) {
  ({ csrf } = await send("POST", "api/session", { token }));
}

export async function closeSession() {
  await send("DELETE", "api/session");
  csrf = null;
}

const outbox = () => JSON.parse(sessionStorage.getItem(OUTBOX) ?? "{}");

function keep(slot, entry) {
  const entries = outbox();
  if (entry) entries[slot] = entry;
  else delete entries[slot];
  sessionStorage.setItem(OUTBOX, JSON.stringify(entries));
}

// `slot` names what is meant ("ask", or telling of one candidate); `keyName` is what the service calls the key.
export async function once(slot, address, body, keyName = "key") {
  const entry = outbox()[slot] ?? { address, body: { ...body, [keyName]: uuid() } };
  keep(slot, entry);
  return deliver(slot, entry);
}

async function deliver(slot, entry) {
  try {
    const answer = await post(entry.address, entry.body);
    keep(slot, null);
    return answer;
  } catch (error) {
    if (error instanceof Problem) keep(slot, null); // an answer: it was not done, and a next try is another action
    throw error;
  }
}

export const unsent = (address) => Object.entries(outbox()).filter(([, entry]) => entry.address.startsWith(address));

export async function deliverUnsent(address) {
  const answers = [];
  for (const [slot, entry] of unsent(address)) answers.push(await deliver(slot, entry));
  return answers;
}

// Over plain HTTP beyond localhost, browsers have no randomUUID.
function uuid() {
  if (crypto.randomUUID) return crypto.randomUUID();
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
