/**
 * The state of the page and the address: everything a person chose is behind the # of the address, so that a view can
 * be shared and the back button works. Nothing behind the # is sent to the server by the browser itself.
 */

/** @import {Query, State, Points} from "./types.d.ts" */

export const DEFAULT_K = 12;
const LONGEST = 6000;
/** Longer queries are not written into the address: programs that pass addresses on cut them. */

/** What parts of the address are called. @type {Record<string, string>} */
const PARTS = {
  k: "the number of neighbours",
  offset: "the page",
  recall: "the recall",
  fit: "whether the drawing is fitted",
  at: "the place on the map",
  query: "the query",
};

/** @returns {State} */
export function emptyState() {
  return {
    index: "",
    query: null,
    open: "",
    k: DEFAULT_K,
    where: "",
    recall: "",
    rerank: "",
    certify: false,
    match: "whole",
    fit: null,
    offset: 0,
    colour: "",
    at: null,
  };
}

/**
 * Read the address. What is not understood is left at its default, and named.
 * @param {string} hash
 * @returns {{state: State, lost: boolean, unread: string[]}} lost: the address names a query that was too long for it
 */
export function read(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const state = emptyState();
  state.index = given.get("index") ?? "";
  state.open = given.get("open") ?? "";
  state.where = given.get("where") ?? "";
  state.rerank = given.get("rerank") ?? "";
  state.match = given.get("match") ?? "whole";
  state.colour = given.get("colour") ?? "";
  state.certify = given.get("certify") === "1";
  /** @type {string[]} */
  const unread = [];
  /** @type {(name: string, take: (text: string) => boolean) => void} */
  const part = (name, take) => {
    const text = given.get(name);
    if (text !== null && !take(text)) unread.push(PARTS[name]);
  };
  part("k", (text) => {
    const k = Number(text);
    if (Number.isInteger(k) && k > 0) state.k = k;
    return state.k === k;
  });
  part("offset", (text) => {
    const offset = Number(text);
    if (Number.isInteger(offset) && offset > 0) state.offset = offset;
    return state.offset === offset;
  });
  part("recall", (text) => {
    const recall = Number(text);
    if (recall > 0 && recall <= 1) state.recall = String(recall);
    return state.recall !== "";
  });
  part("fit", (text) => {
    if (text === "0" || text === "1") state.fit = text === "1";
    return state.fit !== null;
  });
  part("at", (text) => {
    const at = text.split(",").map(Number);
    if (at.length === 3 && at.every(Number.isFinite) && at[2] > 0) state.at = [at[0], at[1], at[2]];
    return state.at !== null;
  });
  try {
    state.query = readQuery(given);
  } catch {
    unread.push(PARTS.query);
  }
  return { state, lost: given.has("unsaved"), unread };
}

/**
 * The query of an address, null if it names none. One that cannot be read is an error.
 * @param {URLSearchParams} given
 * @returns {Query | null}
 */
function readQuery(given) {
  const id = given.get("id");
  if (id !== null && id !== "") return { kind: "stored", id };
  const drawn = given.get("drawn");
  if (drawn) {
    const strokes = readStrokes(fromText(drawn));
    if (!strokes.length) throw new Error("these are no strokes");
    return { kind: "drawn", strokes };
  }
  const points = given.get("points");
  if (!points) return null;
  const columns = Number(given.get("dim"));
  const values = new Float32Array(fromText(points).buffer);
  const weighted = given.get("weighted") === "1";
  const width = columns + (weighted ? 1 : 0);
  if (!(columns > 0) || values.length === 0 || values.length % width || !values.every(Number.isFinite)) {
    throw new Error("these are no points");
  }
  /** @type {Points} */
  const rows = [];
  const weights = [];
  for (let i = 0; i < values.length; i += width) {
    rows.push(Array.from(values.subarray(i, i + columns)));
    if (weighted) weights.push(values[i + columns]);
  }
  return { kind: "given", points: rows, weights: weighted ? weights : null, name: given.get("name") ?? "" };
}

/**
 * Write the address. What is at its default is left out.
 * @param {State} state
 * @returns {string} with the #
 */
export function write(state) {
  const out = new URLSearchParams();
  if (state.index) out.set("index", state.index);
  const { query } = state;
  if (query?.kind === "stored") out.set("id", query.id);
  if (query?.kind === "drawn") setShort(out, "drawn", toText(strokeBytes(query.strokes)));
  if (query?.kind === "given") {
    const rows = query.points.map((row, i) => (query.weights ? [...row, query.weights[i]] : row));
    const bytes = rows.length * (rows[0]?.length ?? 0) * 4;
    if (bytes > LONGEST) out.set("unsaved", "1");
    else {
      out.set("dim", String(query.points[0]?.length ?? 0));
      if (query.weights) out.set("weighted", "1");
      if (query.name) out.set("name", query.name);
      setShort(out, "points", toText(new Uint8Array(new Float32Array(rows.flat()).buffer)));
    }
  }
  if (state.open) out.set("open", state.open);
  if (state.k !== DEFAULT_K) out.set("k", String(state.k));
  if (state.where) out.set("where", state.where);
  if (state.recall) out.set("recall", state.recall);
  if (state.rerank) out.set("rerank", state.rerank);
  if (state.certify) out.set("certify", "1");
  if (state.match !== "whole") out.set("match", state.match);
  if (state.fit !== null) out.set("fit", state.fit ? "1" : "0");
  if (state.offset) out.set("offset", String(state.offset));
  if (state.colour) out.set("colour", state.colour);
  if (state.at) out.set("at", state.at.map((x) => Number(x.toPrecision(5))).join(","));
  const text = out.toString();
  return text ? `#${text}` : "#";
}

/**
 * @param {URLSearchParams} out
 * @param {string} name
 * @param {string} value
 */
function setShort(out, name, value) {
  if (value.length <= 2 * LONGEST) out.set(name, value);
  else out.set("unsaved", "1");
}

/**
 * Each stroke as its number of points and their coordinates, a byte each. A stroke of more than 255 points becomes
 * several that share an end.
 * @param {number[][]} strokes
 */
function strokeBytes(strokes) {
  const bytes = [];
  for (const stroke of strokes) {
    for (let from = 0; from < stroke.length; from += 508) {
      const part = stroke.slice(from, from + 510);
      if (from > 0 && part.length <= 2) break;
      bytes.push(part.length / 2, ...part);
    }
  }
  return new Uint8Array(bytes);
}

/**
 * @param {Uint8Array} bytes
 * @returns {number[][]}
 */
function readStrokes(bytes) {
  const strokes = [];
  for (let i = 0; i < bytes.length; ) {
    const length = 2 * bytes[i];
    if (length === 0 || i + 1 + length > bytes.length) return [];
    strokes.push(Array.from(bytes.subarray(i + 1, i + 1 + length)));
    i += 1 + length;
  }
  return strokes;
}

/** @param {Uint8Array} bytes */
function toText(bytes) {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** @param {string} text */
function fromText(text) {
  const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(binary, (character) => character.charCodeAt(0));
}
