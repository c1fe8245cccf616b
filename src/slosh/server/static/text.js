/** Numbers, times and sentences as people read them. */

/** @import {Metadata, Stats} from "./types.d.ts" */

const MAX_SHOWN = 200;
/** Characters of a value where there is little room. */

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** @param {number} n */
export function count(n) {
  return whole.format(n);
}

/**
 * A count with its noun: "1 set", "1,500 sets".
 * @param {number} n
 * @param {string} noun
 */
export function counted(n, noun) {
  return `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
}

/**
 * A number with at most four significant digits.
 * @param {number | null | undefined} x
 */
export function number(x) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1e6 || size < 1e-4) return x.toExponential(2);
  return x.toLocaleString("en", { maximumSignificantDigits: 4, useGrouping: size >= 1e4 });
}

/**
 * A distance: always four significant digits, so that a column of them can be compared.
 * @param {number | null | undefined} x
 */
export function distance(x) {
  if (!x || !Number.isFinite(x) || x >= 1e4 || x < 1e-4) return number(x);
  return x.toPrecision(4);
}

/** @param {number} seconds */
export function duration(seconds) {
  if (seconds < 1e-3) return `${Math.max(1, Math.round(seconds * 1e6))} µs`;
  if (seconds < 1) return `${number(Math.round(seconds * 1e5) / 100)} ms`;
  return `${number(Math.round(seconds * 100) / 100)} s`;
}

/** @param {number} share */
export function percent(share) {
  const value = 100 * share;
  return `${value >= 9.95 || value === 0 ? Math.round(value) : value.toFixed(1)}%`;
}

/** @type {Record<string, string>} */
const KINDS = {
  embedded: "embedded distance",
  sliced: "sliced distance",
  wasserstein: "Wasserstein distance",
  chamfer: "Chamfer distance",
  hausdorff: "Hausdorff distance",
  maxsim: "1 − MaxSim",
  part: "mean distance to the nearest element",
  contained: "mean distance to the nearest element of the query",
  both: "mean of both part distances",
  partial_wasserstein: "partial Wasserstein distance",
};

/** @param {string} kind */
export function distanceKind(kind) {
  return KINDS[kind] ?? `${kind.replaceAll("_", " ")} distance`;
}

/**
 * What an answer promises or proves.
 * @param {Stats} stats
 * @param {boolean} certified
 * @param {number} total how many sets the index holds
 */
export function promise(stats, certified, total) {
  const computed = stats.full_distances?.[0];
  if (certified) {
    const cost = computed === undefined ? "" : ` with ${count(computed)} of ${counted(total, "exact distance")}`;
    return `proved${cost}`;
  }
  if (stats.recall === null) return "no promise of recall";
  return stats.recall >= 1 ? "exact" : `finds ${percent(stats.recall)} of the true nearest, on average`;
}

/** @param {unknown} value */
export function plain(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return number(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "string" ? value : JSON.stringify(value);
}

/**
 * A value of the metadata by a name whose dots reach into nested objects: a text, a number or a boolean; the first of
 * a list; null where there is none. `_value` in maps.py has the same rule for the map.
 * @param {Metadata | undefined} metadata
 * @param {string} name
 */
export function fieldOf(metadata, name) {
  if (!metadata || !name) return null;
  /** @type {unknown} */
  let value = metadata;
  for (const part of Object.hasOwn(metadata, name) ? [name] : name.split(".")) {
    if (value === null || typeof value !== "object" || Array.isArray(value) || !Object.hasOwn(value, part)) return null;
    value = /** @type {Record<string, unknown>} */ (value)[part];
  }
  if (Array.isArray(value)) return value.find(isPlain) ?? null;
  return isPlain(value) ? value : null;
}

/** @param {unknown} value */
function isPlain(value) {
  return ["string", "number", "boolean"].includes(typeof value);
}

/** A text for where there is little room: its beginning, if it is long. @param {string} text */
function shortened(text) {
  return text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN).replace(/[\uD800-\uDBFF]$/, "")}…` : text;
}

/**
 * The first fields of some metadata, on one line; of long values the beginning.
 * @param {Metadata} metadata
 * @param {number} most
 */
export function summary(metadata, most = 3) {
  const entries = Object.entries(metadata).filter(([, value]) => typeof value !== "object" || value === null);
  return entries
    .slice(0, most)
    .map(([name, value]) => {
      const said = typeof value === "boolean" ? `${value ? "" : "not "}${name}` : `${name} ${plain(value)}`;
      return shortened(said);
    })
    .join(" · ");
}

/**
 * A filter that takes the sets whose field has a value: names and texts are quoted unless they are plain words.
 * @param {string} name
 * @param {unknown} value
 */
export function equals(name, value) {
  const word = /^[A-Za-z_][A-Za-z0-9_.-]*$/;
  const taken = new Set(["and", "or", "not", "in", "prefix", "exists", "true", "false", "null", "none"]);
  /** @param {string} text */
  const quoted = (text) =>
    word.test(text) && !taken.has(text.toLowerCase()) ? text : `"${text.replaceAll('"', '""')}"`;
  return `${quoted(name)} = ${typeof value === "string" ? quoted(value) : String(value)}`;
}
