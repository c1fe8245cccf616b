/** What an explanation of a distance says: shares of elements and slices, and the matching. */

/** @import {Explanation} from "./types.d.ts" */

/**
 * What the elements of a set add, as shares of all that they add.
 * @param {number[] | undefined} values
 */
export function shares(values) {
  const total = values?.reduce((sum, value) => sum + value, 0) ?? 0;
  return values && total > 0 ? values.map((value) => value / total) : null;
}

/**
 * Pairs of elements that are matched, and the mass between them.
 * @param {Explanation} explanation
 * @returns {[number, number, number][]}
 */
export function pairsOf({ pairs, nearest, weights }) {
  if (pairs) return pairs;
  return (nearest ?? []).map((j, i) => [i, j, weights?.[i] ?? 1]);
}

/**
 * What the elements of a part add to its distance.
 * @param {Explanation} explanation
 */
export function weighted({ distances, weights }) {
  return distances?.map((distance, i) => distance * (weights?.[i] ?? 1));
}

/**
 * @param {number[] | null} values
 * @param {number} n
 * @returns {[number, number][]} place and value of the largest
 */
export function top(values, n) {
  if (!values) return [];
  return [...values.entries()].sort((a, b) => b[1] - a[1]).slice(0, n);
}

/**
 * An explanation of "contained" has the stored set as x: turn it round, so that x is the query as always.
 * @param {Explanation} explanation
 * @returns {Explanation}
 */
export function turned({ x, y, nearest, distances, weights, ...rest }) {
  const pairs = (nearest ?? []).map((j, i) => /** @type {[number, number, number]} */ ([j, i, weights?.[i] ?? 1]));
  const adds = distances?.map((distance, i) => distance * (weights?.[i] ?? 1));
  return { ...rest, x: y, y: x, pairs, ...(adds ? { y_elements: adds } : {}) };
}
