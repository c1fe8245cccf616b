/** The points of stored sets, fetched once for all pictures of them, and kept while they are recent. */

import { ask } from "./api.js";

/** @import {PointsAnswer, StoredCloud} from "./types.d.ts" */

const MOST = 3000;
const AT_ONCE = 200;
const POINTS = 500;
/** So many points of a set are drawn at most. */

export class Clouds {
  /** By id, the most recent last. @type {Map<string, StoredCloud>} */
  #held = new Map();
  #index = "";
  /** Whether pictures show principal components. */
  projected = false;

  /** @param {string} index */
  setIndex(index) {
    this.#index = index;
    this.#held.clear();
    this.projected = false;
  }

  /** @param {string} id */
  peek(id) {
    return this.#held.get(id);
  }

  /**
   * @param {string[]} ids
   * @param {AbortSignal} [signal]
   * @returns {Promise<Map<string, StoredCloud>>} without those that are no longer stored
   */
  async get(ids, signal) {
    const index = this.#index;
    const missing = ids.filter((id) => !this.#held.has(id));
    for (let from = 0; from < missing.length; from += AT_ONCE) {
      /** @type {PointsAnswer} */
      const answer = await ask(`indexes/${encodeURIComponent(index)}/points`, {
        body: { ids: missing.slice(from, from + AT_ONCE), limit: POINTS, components: 3 },
        ...(signal ? { signal } : {}),
      });
      if (index !== this.#index) return new Map();
      this.projected = answer.projected;
      for (const set of answer.sets) this.#held.set(set.id, set);
    }
    const found = new Map();
    for (const id of ids) {
      const cloud = this.#held.get(id);
      if (!cloud) continue;
      found.set(id, cloud);
      this.#held.delete(id);
      this.#held.set(id, cloud);
    }
    for (const id of this.#held.keys()) {
      if (this.#held.size <= MOST) break;
      this.#held.delete(id);
    }
    return found;
  }
}
