// Requests to the server. Paths begin with a slash and are relative to the address of the dashboard.
//
//   url`/api/v1/resources/queues/${name}`     a path whose values are encoded
//   get(path, query, {signal})                the answer as data; throws ApiError
//   post(path, body), put(path, body), del(path, query)
//   attempt(action, done)      runs an async function; shows a toast with its error, or else with the text `done`.
//                              Returns the result of the function, or undefined if it failed
//   new JsonText(text)         a body that is JSON already and is sent unchanged, with every digit
//   class ApiError             .status, .code, .message (the server's text)
//   left(error)                true for errors that only mean that the user left the page: no toast needed

import { toast } from "./toasts.js";

export class ApiError extends Error {
  constructor(status, code, text) {
    super(text);
    this.status = status;
    this.code = code;
  }
}

export class JsonText {
  constructor(text) {
    this.text = text;
  }
}

export function url(texts, ...values) {
  return texts.reduce((path, text, index) => path + encodeURIComponent(values[index - 1]) + text);
}

export const get = (path, query, options) => request("GET", path, { query, ...options });
export const post = (path, body, options) => request("POST", path, { body: body ?? {}, ...options });
export const put = (path, body, options) => request("PUT", path, { body, ...options });
export const del = (path, query, options) => request("DELETE", path, { query, ...options });

export async function attempt(action, done) {
  try {
    const answer = await action();
    if (done) toast(done);
    return answer;
  } catch (error) {
    if (!left(error)) toast(error.message, "bad");
    return undefined;
  }
}

export function left(error) {
  return error.name === "AbortError" || error.code === "unauthorized";
}

// Web browsers remove these segments from an address, even encoded: purging the group `..` would purge its queue.
const STEPS = new Set([".", ".."]);

async function request(method, path, { query, body, signal } = {}) {
  if (path.split("/").some((segment) => STEPS.has(segment))) throw new ApiError(0, "unaddressable", "A web browser cannot request a name that is '.' or '..'. Use the hark command instead.");
  const response = await reach(`.${path}${asQuery(query)}`, {
    method,
    signal,
    headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body instanceof JsonText ? body.text : body === undefined ? undefined : JSON.stringify(body),
  });
  const data = parse(await response.text());
  if (response.ok) return data;
  if (response.status === 401) askToLogIn();
  throw new ApiError(response.status, data?.code ?? "error", data?.error ?? `The server returned status ${response.status}.`);
}

async function reach(address, options) {
  try {
    return await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The server is unreachable. Check that it is running.");
  }
}

function asQuery(query) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

function askToLogIn() {
  const here = location.hash || "#/";
  if (!here.startsWith("#/login")) location.hash = `#/login?next=${encodeURIComponent(here)}`;
}

// Payloads can contain integers that a double cannot represent: these keep their digits, also when printed.
function exactly(_key, value, context) {
  const source = context?.source;
  if (typeof value !== "number" || source === undefined || !JSON.rawJSON) return value;
  return /^-?\d+$/.test(source) && String(value) !== source ? JSON.rawJSON(source) : value;
}

function parse(text) {
  if (text === "") return null;
  try {
    return JSON.parse(text, exactly);
  } catch {
    return null;
  }
}
