/** Colours of the values of a metadata field: ten for the most frequent values, or a ramp for numbers. */

import { colour } from "./dom.js";

/** @import {Field} from "./types.d.ts" */

const COLOURS = 10;

/** @typedef {[number, number, number]} Rgb */

/**
 * @param {string} text #rrggbb
 * @returns {Rgb}
 */
export function rgb(text) {
  const value = parseInt(text.slice(1), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

/** @param {Rgb} parts */
function css([r, g, b]) {
  return `rgb(${r} ${g} ${b})`;
}

/** Whether a field can be shown by colours: its values repeat, or are numbers.
 * @param {Field} field
 */
export function colourable(field) {
  return field.kind === "number" || field.distinct <= 50 || field.distinct < field.sets / 4;
}

/**
 * The field that colours tell most about: one whose values have a colour each, the more the better; then texts, then
 * numbers, and last what has one value only, or another one for every set.
 * @param {Field[]} fields
 * @returns {Field | null}
 */
export function firstField(fields) {
  /** @param {Field} field */
  const rank = ({ kind, distinct, sets }) => {
    if (distinct < 2 || (kind !== "number" && distinct >= sets)) return 3;
    if (distinct <= COLOURS && distinct < sets) return 0;
    return kind === "number" ? 2 : 1;
  };
  const most = Math.max(...fields.map((field) => field.sets));
  /** How many sets have the field, in quarters: a few more or less do not matter. @param {Field} field */
  const spread = (field) => Math.round((4 * field.sets) / most);
  const order = fields.filter(colourable).sort((a, b) => {
    const ranks = rank(a) - rank(b) || spread(b) - spread(a);
    return ranks || (rank(a) === 0 ? b.distinct - a.distinct : 0);
  });
  return order[0] ?? null;
}

export class Palette {
  /** @param {Field | null} field */
  constructor(field) {
    this.field = field;
    this.ramp = field !== null && field.kind === "number" && field.distinct > 2 * COLOURS;
    /** Values with a colour of their own. */
    this.values = field && !this.ramp ? orderedValues(field) : [];
    /** The value that is emphasised, or null. @type {unknown} */
    this.emphasis = null;
    /** @type {Rgb[]} */
    this.inks = [];
    /** Of values without a colour of their own. @type {Rgb} */
    this.rest = [0, 0, 0];
    /** Of the least and the greatest number. @type {[Rgb, Rgb]} */
    this.ends = [this.rest, this.rest];
    this.refresh();
  }

  /** Read the colours again: light and dark differ. */
  refresh() {
    this.inks = Array.from({ length: COLOURS }, (_, i) => rgb(colour(`c${i}`)));
    this.rest = rgb(colour("dots"));
    this.ends = [rgb(colour("ramp0")), rgb(colour("ramp1"))];
  }

  /**
   * @param {unknown} value
   * @returns {Rgb}
   */
  of(value) {
    if (!this.field || value === null || value === undefined) return this.rest;
    if (this.ramp) {
      const { least, greatest } = this.field;
      if (typeof value !== "number" || least === null || greatest === null) return this.rest;
      const t = Math.max(0, Math.min(1, (value - least) / (greatest - least || 1)));
      return /** @type {Rgb} */ (this.ends[0].map((from, i) => Math.round(from + t * (this.ends[1][i] - from))));
    }
    const place = this.values.indexOf(/** @type {string} */ (value));
    return place < 0 ? this.rest : this.inks[place];
  }

  /** @param {unknown} value */
  css(value) {
    return css(this.of(value));
  }

  /** @param {unknown} value */
  alpha(value) {
    return this.emphasis === null || this.emphasis === value ? 1 : 0.08;
  }
}

/** @param {Field} field */
function orderedValues(field) {
  const values = field.values.slice(0, COLOURS).map(({ value }) => value);
  return values.sort((a, b) =>
    typeof a === "number" && typeof b === "number"
      ? a - b
      : String(a).localeCompare(String(b), "en", { numeric: true }),
  );
}
