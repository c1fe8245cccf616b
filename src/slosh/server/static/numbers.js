/** Numbers as text: what a person pastes, and files of numbers, which are read here and not by the server. */

import { counted } from "./text.js";

/** @import {Points} from "./types.d.ts" */

/** Files that are numbers as text. The server reads tables, too, if a column says which set a row belongs to. */
export const TEXT_FORMATS = [".csv", ".tsv", ".txt", ".dat", ".json"];
const TABLES = [".csv", ".tsv"];
const LONGEST = 1 << 25;
/** Characters of a file that are read here at most. */

/**
 * Whether a file is one set as text; otherwise the server reads it.
 * @param {File} file
 * @returns {Promise<string | null>} its text
 */
export async function textOfOneSet(file) {
  const suffix = suffixOf(file.name);
  if (!TEXT_FORMATS.includes(suffix) || file.size > LONGEST) return null;
  const text = await file.text();
  return TABLES.includes(suffix) && hasIds(text, suffix === ".tsv" ? "\t" : ",") ? null : text;
}

/**
 * What is wrong with a file of numbers.
 * @param {string} name of the file
 * @param {string} error of `parseNumbers`
 */
export function fileError(name, error) {
  const several = TABLES.includes(suffixOf(name)) ? " A table of several sets has a column with the name id." : "";
  return `${name}: ${error || "There are no numbers in it."}${several}`;
}

/** @param {string} name */
function suffixOf(name) {
  return /\.[^.]*$/.exec(name)?.[0].toLowerCase() ?? "";
}

/** @param {string} text */
function linesOf(text) {
  return text.split(/\r?\n|\r/).filter((line) => line.trim() && !line.trim().startsWith("#"));
}

/**
 * Whether a column says which set a row belongs to, as the server takes it: one with the name id, or a first one of
 * text.
 * @param {string} text
 * @param {string} separator
 */
function hasIds(text, separator) {
  const [head, first] = linesOf(text.slice(0, 1 << 16))
    .slice(0, 2)
    .map((line) => line.split(separator).map((cell) => cell.trim().replace(/^"(.*)"$/, "$1")));
  if (!head) return false;
  return head.includes("id") || (first !== undefined && first.length > 1 && Number.isNaN(Number(first[0])));
}

/**
 * Read numbers that a person pasted, or that a file of text has: JSON, or lines of numbers with commas, semicolons, tabs or spaces between them.
 * @param {string} text
 * @param {number} dim
 * @param {boolean} weighted whether a further column is the weight
 * @returns {{points: Points, weights: number[] | null} | {error: string}}
 */
export function parseNumbers(text, dim, weighted) {
  const trimmed = text.trim();
  if (!trimmed) return { error: "" };
  /** @type {any[]} */
  let rows;
  if (trimmed.startsWith("[")) {
    try {
      rows = JSON.parse(trimmed);
    } catch {
      return { error: "This begins like JSON, but a bracket or a comma is wrong." };
    }
    if (!Array.isArray(rows) || !rows.every((row) => Array.isArray(row) || typeof row === "number")) {
      return { error: "Give a list of points, like [[0, 1], [2, 3]]." };
    }
    if (rows.every((row) => typeof row === "number")) rows = [rows];
  } else {
    rows = linesOf(trimmed).map((line) =>
      line
        .trim()
        .split(/[\s,;]+/)
        .map((cell) => cell.replace(/^"(.*)"$/, "$1"))
        .filter(Boolean)
        .map(Number),
    );
    if (rows.length > 1 && rows[0].some(Number.isNaN)) rows.shift(); // a line of names
  }
  return checkedRows(rows, dim, weighted);
}

/**
 * @param {unknown[][]} rows
 * @param {number} dim
 * @param {boolean} weighted
 * @returns {{points: Points, weights: number[] | null} | {error: string}}
 */
function checkedRows(rows, dim, weighted) {
  const wanted = counted(dim, "number");
  if (!rows.length) return { error: "There are no numbers in it." };
  const width = rows[0].length;
  const hasWeights = weighted && width === dim + 1;
  for (const [i, row] of rows.entries()) {
    if (!row.every((x) => typeof x === "number" && Number.isFinite(x))) {
      return { error: `Point ${i + 1} has something in it that is not a number.` };
    }
    if (row.length !== width) {
      return { error: `Point ${i + 1} has ${counted(row.length, "number")}, the first has ${width}.` };
    }
  }
  if (width !== dim && !hasWeights) {
    return {
      error: `A point of this index has ${wanted}${weighted ? ", and may have its weight behind them" : ""}; these have ${width}.`,
    };
  }
  const values = /** @type {Points} */ (rows);
  if (!hasWeights) return { points: values, weights: null };
  const weights = values.map((row) => row[dim]);
  if (weights.some((w) => w < 0) || !weights.some((w) => w > 0))
    return { error: "Weights are 0 or more, and not all 0." };
  return { points: values.map((row) => row.slice(0, dim)), weights };
}
