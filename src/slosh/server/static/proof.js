/** Which answers can be proved: the page offers no proof that the server would refuse, and says why in its own words. */

/** @import {State} from "./types.d.ts" */

const PROVABLE = ["", "sliced", "hausdorff"];
/** Distances between whole sets that can be proved; "" is that of the index. */

/**
 * Whether the nearest by a distance can be proved.
 * @param {string} rerank
 * @param {string} match
 */
export function isProvable(rerank, match) {
  if (match === "whole") return PROVABLE.includes(rerank);
  return rerank === "" || (match === "part" && rerank === "maxsim");
}

/**
 * Whether a proof, which is exact, goes with a recall.
 * @param {string} recall
 */
export function isExact(recall) {
  return recall === "" || Number(recall) === 1;
}

/**
 * By which distance an answer is, as far as the settings say: a proof about whole sets is by the sliced distance unless
 * another one is chosen.
 * @param {Pick<State, "rerank" | "match" | "certify">} state
 * @returns {string} "" is the distance of the index, or of the match
 */
export function usedDistance({ rerank, match, certify }) {
  return rerank === "" && certify && match === "whole" ? "sliced" : rerank;
}

/**
 * Why the answer cannot be proved; "" if nothing is against it.
 * @param {Pick<State, "rerank" | "match" | "recall">} state
 */
export function whyNoProof({ rerank, match, recall }) {
  if (!isProvable(rerank, match)) {
    return match === "whole"
      ? "A proof is possible by the sliced and by the Hausdorff distance: choose one of them, or do without the proof."
      : "Of parts, a proof is possible by the first distance only: choose it, or do without the proof.";
  }
  return isExact(recall) ? "" : "A proved answer is exact: choose the default recall, or do without the proof.";
}
