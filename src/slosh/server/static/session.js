/**
 * The state of the page and its history: changes are written into the address, and the back button brings them back.
 * Queries that are too long for the address are kept in memory, for as long as the tab is open.
 */

import { emptyState, read, write } from "./address.js";

/** @import {Query, State} from "./types.d.ts" */

/** @typedef {"push" | "replace"} Way a change makes a new entry of the history, or changes the newest one */

export class Session {
  state = emptyState();
  /** Whether the address names a query that this tab does not have. */
  lost = false;
  /** What of the address could not be read. @type {string[]} */
  unread = [];
  #held = /** @type {Map<number, Query>} */ (new Map());

  /** @param {() => void} onMove the person went back or forward, or changed the address */
  constructor(onMove) {
    this.#read();
    window.addEventListener("popstate", () => {
      this.#read();
      onMove();
    });
  }

  #read() {
    const { state, lost, unread } = read(window.location.hash);
    this.state = state;
    this.unread = unread;
    this.lost = lost;
    const number = window.history.state?.query;
    if (lost && typeof number === "number" && this.#held.has(number)) {
      this.state.query = this.#held.get(number) ?? null;
      this.lost = false;
    }
  }

  /**
   * @param {Partial<State>} change
   * @param {Way} way
   */
  change(change, way) {
    const before = this.state;
    this.state = { ...before, ...change };
    this.lost = false;
    const address = write(this.state);
    const held = {
      opened: way === "push" ? !before.open && this.state.open !== "" : this.opened,
      query: this.#hold(address),
    };
    try {
      if (way === "push" && address !== window.location.hash) window.history.pushState(held, "", address);
      else window.history.replaceState(held, "", address);
    } catch {
      // Browsers refuse more than some changes a second: the address follows with the next one.
    }
  }

  /** Whether the entry before this one is the same without the open match, so that closing it may go back. */
  get opened() {
    return window.history.state?.opened === true;
  }

  /** @param {string} address */
  #hold(address) {
    const { query } = this.state;
    if (!query || !/[#&]unsaved=/.test(address)) return null;
    for (const [number, held] of this.#held) if (held === query) return number;
    const number = Date.now();
    this.#held.set(number, query);
    return number;
  }
}
