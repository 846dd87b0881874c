// Calls of /api/v1. A failed one throws Failed, with what the broker said.

export class Failed extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// Of this site, without the password that the address of the page may have: fetch refuses that.
export const here = (path) => location.origin + path;

async function call(method, path, body, signal) {
  let response;
  try {
    response = await fetch(here("/api/v1" + path), {
      method,
      signal,
      cache: "no-store",
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failed(0, "UNREACHABLE", "the broker does not answer: is it running?");
  }
  let found = null;
  try {
    found = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (response.ok && found !== null) return found;
  const told = found && found.detail !== undefined;
  throw new Failed(
    response.status,
    told ? found.code : "HTTP_ERROR",
    told ? found.detail : `the response has status ${response.status} and no text`,
  );
}

export function get(path, query = {}, signal = undefined) {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") given.set(name, value);
  }
  const text = given.toString();
  return call("GET", path + (text ? "?" + text : ""), undefined, signal);
}

export const post = (path, body) => call("POST", path, body);
export const remove = (path) => call("DELETE", path);
export const part = (text) => encodeURIComponent(text);
