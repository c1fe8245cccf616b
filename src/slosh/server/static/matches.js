/** The match that is open: why two sets are as far from each other as they are, asked of the server and shown. */

import { ask, isAbort, Latest, Problem } from "./api.js";
import { turned } from "./explanation.js";
import { MatchDialog } from "./match.js";
import { noMatch } from "./refusals.js";

/** @import {Explanation, Metadata, Points} from "./types.d.ts" */
/** @import {Item} from "./cards.js" */

/**
 * @typedef {object} Asked
 * @property {string} index
 * @property {string} id of the stored set
 * @property {string} queryName
 * @property {{id: string | null, points: Points | null, weights: number[] | null}} query
 * @property {string} match whole, part, contained or both
 * @property {Item[]} items of the answer to the query
 * @property {string} kind of its distances
 * @property {Metadata} metadata of the stored set, if it is not in the answer
 */

export class Matches {
  #dialog;
  #asking = new Latest();
  #open = "";
  #explained = /** @type {{key: string, explanation: Explanation} | null} */ (null);

  /**
   * @param {object} actions
   * @param {() => void} actions.close
   * @param {(by: number) => void} actions.step
   * @param {(id: string) => void} actions.searchFrom
   * @param {(error: unknown) => void} actions.failed the server is at fault, not the question
   */
  constructor(actions) {
    this.actions = actions;
    this.#dialog = new MatchDialog(actions);
  }

  hide() {
    this.#open = "";
    this.#asking.cancel();
    this.#dialog.hide();
  }

  /** @param {Asked} asked */
  show(asked) {
    const { index, id, query, items } = asked;
    const rank = items.findIndex((item) => item.id === id);
    const item = items[rank];
    const match = {
      id,
      queryName: asked.queryName,
      rank: rank < 0 ? null : rank,
      of: items.length,
      distance: item?.distance ?? null,
      kind: asked.kind,
      metadata: item?.metadata ?? asked.metadata,
      explanation: /** @type {Explanation | null} */ (null),
      problem: "",
    };
    const kind = asked.match === "both" ? "part" : asked.match;
    const key = JSON.stringify([index, query, id, kind]);
    const held = this.#explained?.key === key ? this.#explained.explanation : null;
    this.#open = key;
    this.#dialog.show({ ...match, explanation: held });
    if (held) {
      this.#asking.cancel();
      return;
    }
    this.#asking.ask(async (signal) => {
      try {
        const { points, weights } = query;
        /** @type {Explanation} */
        const found = await ask(`indexes/${encodeURIComponent(index)}/explain`, {
          body: { id, match: kind, components: 3, ...(points ? { query: points, weights } : { query_id: query.id }) },
          signal,
        });
        const explanation = kind === "contained" ? turned(found) : found;
        this.#explained = { key, explanation };
        if (this.#open === key) this.#dialog.show({ ...match, explanation });
      } catch (error) {
        if (isAbort(error)) return;
        if (this.#open === key) this.#dialog.show({ ...match, problem: noMatch(error) });
        if (!(error instanceof Problem && error.kind === "request")) this.actions.failed(error);
      }
    });
  }
}
