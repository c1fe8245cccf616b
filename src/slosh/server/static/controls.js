/** How to search: the filter, how many neighbours, the recall, the distance, the kind of match, and a proof. */

import { byId, element, fill } from "./dom.js";
import { isExact, isProvable, usedDistance, whyNoProof } from "./proof.js";
import { count, distanceKind, equals, percent } from "./text.js";

/** @import {Field, IndexInfo, State} from "./types.d.ts" */

const RECALLS = ["0.8", "0.9", "0.95", "0.99", "1"];
const EXACT = ["sliced", "wasserstein", "chamfer", "hausdorff"];
const EXACT_PARTS = ["maxsim", "partial_wasserstein"];
const EXAMPLES = 60;
/** So many filters are suggested. */
const LONGEST_EXAMPLE = 26;
/** A longer one does not fit into the field that shows it. */

/** The distances of parts, as short as a list of choices has room for. @type {Record<string, string>} */
const OF_PARTS = { part: "To the nearest element", contained: "To the nearest element", both: "Chamfer" };
/** @type {Record<string, string>} */
const MATCHES = { whole: "whole sets", part: "sets that contain it", contained: "sets within it", both: "both ways" };

export class Controls {
  #where = byId("where", HTMLInputElement);
  #whereError = byId("where-error", HTMLElement);
  #error = byId("control-error", HTMLElement);
  #k = byId("k", HTMLInputElement);
  #kError = byId("k-error", HTMLElement);
  #recall = byId("recall", HTMLSelectElement);
  #rerank = byId("rerank", HTMLSelectElement);
  #match = byId("match", HTMLSelectElement);
  #certify = byId("certify", HTMLInputElement);
  #certifyWhy = byId("certify-why", HTMLElement);
  /** The distance of the index. */
  #usual = "";
  /** The number of neighbours that the results are of. */
  #shownK = 0;
  #more = byId("more", HTMLDetailsElement);
  #timer = 0;
  /** The field whose text is being typed: it is not overwritten. */
  #typed = /** @type {HTMLInputElement | null} */ (null);

  /** @param {(change: Partial<State>, typing: boolean) => void} onChange */
  constructor(onChange) {
    byId("controls", HTMLFormElement).addEventListener("submit", (event) => event.preventDefault());
    for (const field of [this.#where, this.#k]) {
      field.addEventListener("input", () => {
        this.#typed = field;
      });
      // By Enter, or by leaving the field.
      field.addEventListener("change", () => this.stopTyping());
    }
    this.#where.addEventListener("input", () => {
      window.clearTimeout(this.#timer);
      this.#timer = window.setTimeout(() => onChange({ where: this.#where.value.trim(), offset: 0 }, true), 250);
    });
    this.#where.addEventListener("change", () => {
      onChange({ where: this.#where.value.trim(), offset: 0 }, true);
    });
    this.#k.addEventListener("input", () => {
      const wrong = this.#k.validity.badInput || (this.#k.value !== "" && !this.#isCount(Number(this.#k.value)));
      this.#explainK(wrong ? `${this.#askForK()} The results are of ${count(this.#shownK)}.` : "");
      if (!wrong && this.#k.value !== "") onChange({ k: Number(this.#k.value), offset: 0 }, true);
    });
    this.#k.addEventListener("change", () => {
      if (this.#k.value !== "" || this.#k.validity.badInput) return; // it was left empty: show what counts
      this.#k.value = String(this.#shownK);
    });
    this.#recall.addEventListener("change", () => onChange({ recall: this.#recall.value }, false));
    this.#rerank.addEventListener("change", () => onChange({ rerank: this.#rerank.value }, false));
    this.#match.addEventListener("change", () => onChange({ match: this.#match.value }, false));
    this.#certify.addEventListener("change", () => onChange({ certify: this.#certify.checked }, false));
    window.addEventListener("keydown", (event) => {
      const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLTextAreaElement;
      if (event.key !== "/" || typing || document.querySelector("dialog[open]")) return;
      event.preventDefault();
      this.#where.focus();
    });
  }

  /**
   * @param {IndexInfo} info
   * @param {Field[]} fields
   * @param {number} largest k that the server takes
   */
  setIndex(info, fields, largest) {
    this.#k.max = String(Math.min(1000, largest));
    const usual = info.recall === null ? "default" : `default, ${percent(info.recall)}`;
    options(this.#recall, [["", usual], ...RECALLS.map((r) => [r, r === "1" ? "exact" : percent(Number(r))])]);
    const distances = info.parts ? [...EXACT, ...EXACT_PARTS] : EXACT;
    this.#usual = info.distance_kind;
    options(this.#rerank, [["", ""], ...distances.map((kind) => [kind, shortName(kind)])]);
    this.#nameUsual("whole");
    options(
      this.#match,
      Object.entries(MATCHES).filter(([kind]) => kind === "whole" || info.parts),
    );
    for (const select of [this.#rerank, this.#match]) {
      const label = select.closest("label");
      label?.classList.toggle("wide", Boolean(info.parts)); // parts have long names
      if (label && select === this.#match) label.hidden = !info.parts;
    }
    const examples = fields.flatMap(({ name: field, values }) =>
      values.slice(0, 12).map(({ value }) => equals(field, value)),
    );
    fill(
      byId("examples", HTMLDataListElement),
      examples.slice(0, EXAMPLES).map((value) => element("option", { value })),
    );
    const short = examples.find((example) => example.length <= LONGEST_EXAMPLE);
    this.#where.placeholder = short ? `such as ${short}` : "all sets";
    this.#explainK("");
  }

  /**
   * Name the distance that is used if none is chosen: that of the index, or that of the match.
   * @param {string} match
   */
  #nameUsual(match) {
    this.#rerank.options[0].textContent = OF_PARTS[match] ?? shortName(this.#usual);
  }

  /** What is being typed is finished, or given up: from now on its field shows the state again. */
  stopTyping() {
    window.clearTimeout(this.#timer);
    this.#typed = null;
  }

  /** @param {State} state */
  show(state) {
    if (this.#typed !== this.#where) this.#where.value = state.where;
    this.#shownK = state.k;
    if (this.#typed !== this.#k) {
      this.#k.value = String(state.k);
      this.#explainK("");
    }
    if (state.recall && ![...this.#recall.options].some((option) => option.value === state.recall)) {
      this.#recall.append(element("option", { value: state.recall }, percent(Number(state.recall))));
    }
    this.#recall.value = state.recall;
    this.#nameUsual(state.match);
    this.#rerank.value = usedDistance(state);
    this.#match.value = state.match;
    this.#certify.checked = state.certify;
    this.#offerProofs(state);
    if (state.recall || state.rerank || state.certify || state.match !== "whole") this.#more.open = true;
  }

  /**
   * A proof goes with some settings only: whoever chose one of them is not offered the other.
   * @param {State} state
   */
  #offerProofs(state) {
    const why = whyNoProof(state);
    this.#certify.disabled = why !== "" && !state.certify;
    this.#certifyWhy.textContent = state.certify ? "" : why;
    const used = usedDistance(state);
    for (const option of this.#rerank.options) {
      const provable =
        isProvable(option.value, state.match) && usedDistance({ ...state, rerank: option.value }) === option.value;
      option.disabled = state.certify && option.value !== used && !provable;
    }
    for (const option of this.#recall.options) {
      option.disabled = state.certify && option.value !== state.recall && !isExact(option.value);
    }
  }

  /**
   * What the server would refuse is not asked for: say why beside its control.
   * @param {State} state
   * @returns {string} why, or ""
   */
  refuse(state) {
    const known = (/** @type {HTMLSelectElement} */ select, /** @type {string} */ value) =>
      [...select.options].some((option) => option.value === value);
    if (!this.#isCount(state.k)) {
      this.explain(this.#askForK(), "k");
      return this.#askForK();
    }
    let why = state.certify ? whyNoProof(state) : "";
    if (!known(this.#rerank, state.rerank)) why = `This index has no distance “${state.rerank}”: choose another one.`;
    if (!known(this.#match, state.match)) why = `This index cannot match by “${state.match}”: choose another way.`;
    if (why) this.explain(why, "");
    return why;
  }

  /**
   * Show what is wrong beside the control that it is about.
   * @param {string} message
   * @param {string} argument
   */
  explain(message, argument) {
    const filter = argument === "where";
    const neighbours = argument === "k";
    this.#whereError.textContent = filter ? message : "";
    this.#where.setAttribute("aria-invalid", String(filter && message !== ""));
    this.#error.textContent = filter || neighbours ? "" : message;
    if (neighbours) this.#explainK(message);
    if (message && !filter) this.#more.open = true;
  }

  /** @param {number} k */
  #isCount(k) {
    return Number.isInteger(k) && k >= 1 && k <= Number(this.#k.max);
  }

  #askForK() {
    return `Give a whole number from 1 to ${count(Number(this.#k.max))}.`;
  }

  /** @param {string} message */
  #explainK(message) {
    this.#kError.textContent = message;
    this.#k.setAttribute("aria-invalid", String(message !== ""));
  }
}

/**
 * @param {HTMLSelectElement} select
 * @param {string[][]} rows values and names
 */
function options(select, rows) {
  fill(
    select,
    rows.map(([value, name]) => element("option", { value }, name)),
  );
}

/**
 * A distance, named without the word.
 * @param {string} kind
 */
function shortName(kind) {
  const name = distanceKind(kind).replace(/ distance$/, "");
  return name[0].toUpperCase() + name.slice(1);
}
