/**
 * Requests to the server. Answers are JSON; whatever goes wrong becomes a `Problem` with a sentence for people.
 * The key, if the server wants one, stays in this tab (sessionStorage) and never enters the address.
 */

const KEY = "slosh-key";

/** What went wrong with a request, in words. */
export class Problem extends Error {
  /**
   * @param {"gone" | "key" | "forbidden" | "busy" | "request" | "server"} kind
   * @param {string} message
   * @param {{status?: number, retry?: number, argument?: string, problem?: string}} [more]
   */
  constructor(kind, message, more = {}) {
    super(message);
    this.kind = kind;
    this.status = more.status ?? 0;
    /** Seconds after which to try again, if the server says so. */
    this.retry = more.retry ?? 0;
    /** The argument that is wrong, if the server says so. */
    this.argument = more.argument ?? "";
    /** What is wrong, without the server's advice, which is for programs. */
    this.problem = more.problem ?? "";
  }
}

export function storedKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

/** @param {string} key */
export function storeKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** @param {unknown} error */
export function isAbort(error) {
  return error instanceof DOMException && error.name === "AbortError";
}

/**
 * Ask the server. With a body the method is POST.
 * @template T
 * @param {string} path below /v1/
 * @param {{body?: unknown, bytes?: Blob, signal?: AbortSignal, parameters?: Record<string, string | number | null>}} [options]
 * @returns {Promise<T>}
 */
export async function ask(path, { body, bytes, signal, parameters } = {}) {
  const url = new URL(`v1/${path}`, document.baseURI);
  url.hash = "";
  url.search = "";
  for (const [name, value] of Object.entries(parameters ?? {})) {
    if (value !== null && value !== "") url.searchParams.set(name, String(value));
  }
  /** @type {Record<string, string>} */
  const headers = { Accept: "application/json" };
  const key = storedKey();
  if (key) headers.Authorization = `Bearer ${key}`;
  /** @type {RequestInit} */
  const init = { headers, signal: signal ?? null, cache: "no-store" };
  if (bytes) {
    headers["Content-Type"] = "application/octet-stream";
    Object.assign(init, { method: "POST", body: bytes });
  } else if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    Object.assign(init, { method: "POST", body: JSON.stringify(body) });
  }
  let response;
  try {
    response = await fetch(url, init);
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new Problem("gone", "The server does not answer. It may have been stopped, or the network is down.");
  }
  if (!response.ok) throw await problemOf(response);
  try {
    return await response.json();
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new Problem("gone", "The answer of the server broke off. It may have been stopped.");
  }
}

/**
 * @param {Response} response
 * @returns {Promise<Problem>}
 */
async function problemOf(response) {
  const { status } = response;
  const told = await response.json().catch(() => null);
  const detail = sentence(typeof told?.detail === "string" ? told.detail : "");
  const more = {
    status,
    retry: Number(response.headers.get("Retry-After")) || 0,
    argument: told?.fields?.argument ?? "",
    problem: sentence(typeof told?.problem === "string" ? told.problem : ""),
  };
  if (status === 401) return new Problem("key", "The server does not know this key.", more);
  if (status === 403) return new Problem("forbidden", detail || "Your key does not allow this.", more);
  if (status === 503) return new Problem("busy", detail || "The server has more requests than it takes at once.", more);
  if (status === 413) return new Problem("request", detail || "This is larger than the server takes.", more);
  if (status >= 500) return new Problem("server", detail || `The server failed (status ${status}).`, more);
  return new Problem("request", detail || `The server refused the request (status ${status}).`, more);
}

/** @param {string} text */
function sentence(text) {
  if (!text) return "";
  const line = text.split(/\n|\\n/)[0].replace(/^where, character/, "at character");
  const begun = /^[a-z]+[ ,]/.test(line) ? line[0].toUpperCase() + line.slice(1) : line; // not the name of a file
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

/**
 * Runs one task at a time: what is asked for last is what counts. A task that has run for `patience` milliseconds is
 * aborted when another is asked for; a younger one may finish first, so that results appear while someone draws.
 */
export class Latest {
  #controller = /** @type {AbortController | null} */ (null);
  #waiting = /** @type {((signal: AbortSignal) => Promise<void>) | null} */ (null);
  #timer = 0;

  /**
   * @param {(signal: AbortSignal) => Promise<void>} task
   * @param {number} delay milliseconds to wait for further changes
   * @param {number} patience
   */
  ask(task, delay = 0, patience = 0) {
    const waits = this.#waiting !== null;
    this.#waiting = task;
    if (this.#controller && patience === 0) this.#controller.abort();
    if (waits && delay > 0) return;
    window.clearTimeout(this.#timer);
    this.#timer = window.setTimeout(() => this.#start(patience), delay);
  }

  /** Give up what runs and what waits. */
  cancel() {
    this.#waiting = null;
    window.clearTimeout(this.#timer);
    this.#controller?.abort();
  }

  /** @param {number} patience */
  #start(patience) {
    if (this.#controller) {
      const running = this.#controller;
      this.#timer = window.setTimeout(() => running.abort(), patience);
      return;
    }
    const task = this.#waiting;
    if (!task) return;
    this.#waiting = null;
    const controller = new AbortController();
    this.#controller = controller;
    const ended = () => {
      if (this.#controller === controller) this.#controller = null;
      window.clearTimeout(this.#timer);
      if (this.#waiting) this.#start(patience);
    };
    task(controller.signal).then(ended, ended);
  }
}
