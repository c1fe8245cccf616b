/** What went wrong, in the words of the page: the server's advice is for programs, and names their arguments. */

import { Problem } from "./api.js";

/** What a person can change, by the argument that the server refuses. @type {Record<string, string>} */
const ADVICE = {
  k: "Choose another number of neighbours.",
  recall: "Choose another recall.",
  rerank: "Choose another distance.",
  match: "Choose another kind of match.",
};

/**
 * What to say of a search that the server refused, and beside which control: one of Controls, or "" if it is about
 * the query.
 * @param {Problem} problem
 * @returns {{message: string, argument: string}}
 */
export function refusal({ argument, message, problem }) {
  if (argument === "certify") {
    return {
      message: "This index cannot prove its answer by this distance: choose another one, or do without the proof.",
      argument,
    };
  }
  if (argument in ADVICE) return { message: `${problem || message} ${ADVICE[argument]}`, argument };
  return argument === "where" ? { message, argument } : { message: problem || message, argument: "" };
}

/**
 * Why a file cannot be read: the server would list every format that it knows, and name options of programs.
 * @param {unknown} error
 * @param {string} name of the file
 */
export function unreadable(error, name) {
  if (!(error instanceof Problem)) return error;
  if (error.argument === "body" && error.status === 400 && error.problem) {
    const problem = error.problem[0].toLowerCase() + error.problem.slice(1);
    return new Problem("request", `${name}: ${problem} Choose another file, or another index.`);
  }
  if (error.argument !== "filename") return error;
  const message = `${name}: files of this kind cannot be read. Common ones that can are .npy, .csv, .json, .ply and .parquet; docs/files.md has all.`;
  return new Problem("request", message);
}

/**
 * Why a match cannot be shown.
 * @param {unknown} error
 */
export function noMatch(error) {
  if (!(error instanceof Problem)) return String(error);
  const again = error.kind === "gone" ? " The match is shown when it is back." : "";
  return `${(error.kind === "request" && error.problem) || error.message}${again}`;
}
