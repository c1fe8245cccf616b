/**
 * The match of two sets: both overlaid, the matching between them, and what each element and each slice adds to their
 * distance. A slider moves the query onto the result along the matching.
 */

import { camera, dotSize, drawPoints, frameOf, projection, turnable, turnByKey } from "./cloud.js";
import { byId, colour, element, fill, icon, prepare } from "./dom.js";
import { pairsOf, shares, top, weighted } from "./explanation.js";
import { drawSlices } from "./slices.js";
import { distance, distanceKind, percent, plain } from "./text.js";

/** @import {Cloud, Explanation, Metadata} from "./types.d.ts" */

const LISTED = 4;
/** So many elements of each set are listed. */
const LINES = 400;
/** Of the pairs, only the heaviest are drawn: more lines would hide the sets. */

/**
 * @typedef {object} Match
 * @property {string} id of the stored set
 * @property {string} queryName
 * @property {number | null} rank its place in the answer, from 0
 * @property {number} of how many there are
 * @property {number | null} distance of the answer
 * @property {string} kind of that distance
 * @property {Metadata} metadata
 * @property {Explanation | null} explanation null while it is fetched
 * @property {string} problem why there is none
 */

export class MatchDialog {
  #dialog = byId("match-dialog", HTMLDialogElement);
  #match = /** @type {Match | null} */ (null);
  #canvas = document.createElement("canvas");
  #slices = document.createElement("canvas");
  #moved = 0;
  #painting = 0;
  /** The element that is pointed at in the list: "x" or "y" and its number. */
  #marked = /** @type {{side: "x" | "y", element: number} | null} */ (null);

  /**
   * @param {{close: () => void, step: (by: number) => void, searchFrom: (id: string) => void}} actions
   */
  constructor(actions) {
    this.actions = actions;
    const dialog = this.#dialog;
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      actions.close();
    });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) actions.close();
    });
    dialog.addEventListener("keydown", (event) => {
      if (event.target instanceof HTMLInputElement || event.altKey || event.metaKey || event.ctrlKey) return;
      if (event.target === this.#canvas && this.#deep && turnByKey(event)) return;
      if (event.key === "ArrowLeft") actions.step(-1);
      if (event.key === "ArrowRight") actions.step(1);
    });
    this.#canvas.tabIndex = 0;
    this.#canvas.setAttribute("role", "img");
    this.#slices.setAttribute("role", "img");
    turnable(this.#canvas, () => this.#deep);
    const repaint = () => this.#repaint();
    camera.addEventListener("turn", repaint);
    window.addEventListener("slosh-theme", repaint);
    new ResizeObserver(repaint).observe(this.#canvas);
    new ResizeObserver(repaint).observe(this.#slices);
  }

  get #deep() {
    return (this.#match?.explanation?.x.points[0]?.length ?? 0) > 2;
  }

  /** @param {Match} match */
  show(match) {
    const another = this.#match?.id !== match.id;
    if (another) this.#moved = 0;
    const held = this.#dialog.contains(document.activeElement)
      ? document.activeElement?.getAttribute("data-focus")
      : null;
    this.#match = match;
    this.#marked = null;
    fill(
      this.#dialog,
      element("div", { class: "match-in" }, this.#top(match), this.#picture(match), this.#text(match)),
    );
    if (!this.#dialog.open) this.#dialog.showModal();
    const target = held && this.#dialog.querySelector(`[data-focus="${held}"]:not(:disabled)`);
    if (target instanceof HTMLElement) target.focus();
    else if (!this.#dialog.contains(document.activeElement)) this.#focusFirst();
    this.#repaint();
  }

  hide() {
    if (this.#dialog.open) this.#dialog.close();
    this.#match = null;
  }

  #focusFirst() {
    const first = this.#dialog.querySelector('[data-focus="close"]');
    if (first instanceof HTMLElement) first.focus();
  }

  /** @param {Match} match */
  #picture({ id, queryName, explanation, problem }) {
    const pairs = explanation?.pairs?.length ?? explanation?.nearest?.length ?? 0;
    this.#canvas.classList.toggle("turns", this.#deep);
    this.#canvas.classList.toggle("unknown", !explanation);
    const note = explanation ? null : problem || "Comparing the two sets";
    this.#canvas.setAttribute(
      "aria-label",
      explanation
        ? `${queryName} with ${explanation.x.points.length} elements and ${id} with ${explanation.y.points.length}, ` +
            `overlaid${pairs ? `, with ${pairs} matched pairs` : ""}.${this.#deep ? " Arrow keys turn it." : ""}`
        : problem || "Comparing the two sets",
    );
    const slider = element("input", {
      type: "range",
      min: 0,
      max: 100,
      step: 1,
      value: this.#moved,
      "data-focus": "mover",
      oninput: (/** @type {Event} */ event) => {
        this.#moved = Number(/** @type {HTMLInputElement} */ (event.target).value);
        this.#repaint();
      },
    });
    return element(
      "div",
      { class: "match-picture" },
      element(
        "div",
        { class: "match-keys", "aria-hidden": "true" },
        element("div", {}, element("span", { class: "chip of-query" }), queryName),
        element("div", {}, element("span", { class: "chip of-result" }), id),
      ),
      element(
        "div",
        { class: "canvas" },
        this.#canvas,
        note && element("p", { class: problem ? "stage-note wrong" : "stage-note", role: "status" }, note),
      ),
      element(
        "div",
        { class: "mover" },
        pairs
          ? element("label", {}, "Move the query along the matching", slider)
          : explanation &&
              "The matching is not shown: the sets are too large for it, or the server lacks the extra “transport”.",
      ),
    );
  }

  /** @param {Match} match */
  #top(match) {
    const { actions } = this;
    const place = match.rank === null ? "" : `neighbour ${match.rank + 1} of ${match.of}`;
    return element(
      "div",
      { class: "match-top" },
      element("h2", { id: "match-title" }, match.id, element("small", {}, place)),
      button("left", "Previous neighbour", "previous", () => actions.step(-1), match.rank === null || match.rank === 0),
      button(
        "right",
        "Next neighbour",
        "next",
        () => actions.step(1),
        match.rank === null || match.rank + 1 >= match.of,
      ),
      button("close", "Close", "close", () => actions.close(), false),
    );
  }

  /** @param {Match} match */
  #text(match) {
    const { actions } = this;
    const { explanation } = match;
    const rows = Object.entries(match.metadata).map(([name, value]) => [name, plain(value)]);
    return element(
      "div",
      { class: "match-text" },
      element(
        "button",
        {
          type: "button",
          class: "strong",
          "data-focus": "search",
          onclick: () => actions.searchFrom(match.id),
        },
        "Search from here",
      ),
      facts([
        match.distance !== null && [sentence(distanceKind(match.kind)), distance(match.distance)],
        explanation?.kind === "whole" && match.kind !== "sliced" && ["Sliced distance", distance(explanation.distance)],
        explanation && ["Elements", `${explanation.x.points.length} and ${explanation.y.points.length}`],
      ]),
      rows.length > 0 && element("div", { class: "block" }, element("h3", {}, "Metadata"), facts(rows)),
      explanation && this.#elements(explanation, match),
      explanation?.slices && this.#sliceBlock(explanation, explanation.slices),
    );
  }

  /**
   * @param {Explanation} explanation
   * @param {Match} match
   */
  #elements(explanation, match) {
    const sides = /** @type {const} */ ([
      ["x", shares(explanation.x_elements ?? weighted(explanation)), "query"],
      ["y", shares(explanation.y_elements), "result"],
    ]);
    const found = sides.flatMap(([side, share, name]) =>
      top(share, LISTED).map(([i, value]) => ({ side, i, share: value, name })),
    );
    if (!found.length) return null;
    const most = Math.max(...found.map(({ share }) => share));
    const listed = found.map((each) => this.#elementRow(each, most, explanation));
    const squared = explanation.kind === "whole" ? "the squared sliced distance" : "the distance";
    return element(
      "div",
      { class: "block" },
      element("h3", {}, "Elements that add most"),
      element("p", {}, `Their share of ${squared}, of ${match.queryName} and of ${match.id}. Large points add most.`),
      element("ul", { class: "elements" }, listed),
    );
  }

  /**
   * @param {{side: "x" | "y", i: number, share: number, name: string}} row
   * @param {number} most the largest share of all rows
   * @param {Explanation} explanation
   */
  #elementRow({ side, i, share, name }, most, explanation) {
    const bar = element("i");
    bar.style.width = `${Math.max(2, (100 * share) / most)}%`;
    const at = explanation[side].points[i].map((x) => Number(x.toPrecision(3))).join(", ");
    const mark = (/** @type {boolean} */ on) => () => {
      this.#marked = on ? { side, element: i } : null;
      this.#repaint();
    };
    return element(
      "li",
      {},
      element(
        "button",
        {
          type: "button",
          onpointerenter: mark(true),
          onpointerleave: mark(false),
          onfocus: mark(true),
          onblur: mark(false),
        },
        element("span", { class: `chip of-${name}` }),
        element("span", {}, element("span", { class: "unseen" }, `element of the ${name} at `), at),
        element("span", { class: `meter of-${name}` }, bar),
        element("span", { class: "share" }, percent(share)),
      ),
    );
  }

  /**
   * @param {Explanation} explanation
   * @param {number[]} slices
   */
  #sliceBlock(explanation, slices) {
    const flat = explanation.directions?.[0]?.length === 2;
    const share = shares(slices);
    if (!share) return null;
    const most = top(share, Math.max(1, Math.round(share.length / 10)));
    const sum = most.reduce((total, [, value]) => total + value, 0);
    const text = `The strongest ${most.length} of ${share.length} directions add ${percent(sum)}.`;
    this.#slices.setAttribute("aria-label", text);
    return element(
      "div",
      { class: "block" },
      element("h3", {}, "Directions that add most"),
      element("p", {}, `${text} ${flat ? "A bar points along its direction." : "One bar for each, largest first."}`),
      element("div", { class: flat ? "slices" : "slices strip" }, this.#slices),
    );
  }

  #repaint() {
    if (this.#painting || !this.#match?.explanation) return;
    this.#painting = requestAnimationFrame(() => {
      this.#painting = 0;
      const explanation = this.#match?.explanation;
      if (!explanation || !this.#dialog.open) return;
      this.#paint(explanation);
      if (explanation.slices && this.#slices.isConnected) {
        drawSlices(this.#slices, explanation.slices, explanation.directions ?? null);
      }
    });
  }

  /** @param {Explanation} explanation */
  #paint(explanation) {
    const { x, y } = explanation;
    const { context, width, height } = prepare(this.#canvas);
    const size = Math.min(width, height);
    if (!size) return;
    const place = projection(frameOf([x.points, y.points]), width, height, size * 0.12);
    const pairs = pairsOf(explanation);
    const t = this.#moved / 100;
    const moving =
      t > 0 ? pairs.map(([i, j]) => x.points[i].map((value, axis) => value + t * (y.points[j][axis] - value))) : null;
    this.#paintPairs(context, pairs, moving, explanation, place);
    const sides = /** @type {const} */ ([
      ["y", y, explanation.y_elements, "other"],
      ["x", x, explanation.x_elements ?? weighted(explanation), "accent"],
    ]);
    for (const [side, set, adds, ink] of sides) {
      const cloud = { points: set.points, weights: null, size: set.points.length };
      const radius = radiusByShare(shares(adds), elementRadius(cloud, size));
      if (side === "x" && moving) {
        const most = Math.max(...pairs.map(([, , mass]) => mass));
        const base = elementRadius(cloud, size);
        const moved = { points: moving, weights: null, size: moving.length };
        drawPoints(context, moved, place, (k) => base * Math.max(0.35, Math.sqrt(pairs[k][2] / most)), colour(ink));
      } else {
        drawPoints(context, cloud, place, radius, colour(ink));
      }
    }
    if (this.#marked) this.#paintMark(context, explanation[this.#marked.side].points[this.#marked.element], place);
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {[number, number, number][]} pairs
   * @param {number[][] | null} moving where the mass of each pair is now
   * @param {Explanation} explanation
   * @param {(point: number[]) => [number, number, number]} place
   */
  #paintPairs(context, pairs, moving, { x, y }, place) {
    const most = Math.max(...pairs.map(([, , mass]) => mass), 0) || 1;
    context.strokeStyle = colour("soft");
    pairs.slice(0, LINES).forEach(([i, j, mass], k) => {
      const [x1, y1] = place(moving ? moving[k] : x.points[i]);
      const [x2, y2] = place(y.points[j]);
      context.globalAlpha = 0.15 + 0.5 * (mass / most);
      context.lineWidth = 0.6 + 1.2 * (mass / most);
      context.beginPath();
      context.moveTo(x1, y1);
      context.lineTo(x2, y2);
      context.stroke();
    });
    context.globalAlpha = 1;
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {number[] | undefined} point
   * @param {(point: number[]) => [number, number, number]} place
   */
  #paintMark(context, point, place) {
    if (!point) return;
    const [x, y] = place(point);
    context.strokeStyle = colour("ink");
    context.lineWidth = 2;
    context.beginPath();
    context.arc(x, y, 14, 0, 2 * Math.PI);
    context.stroke();
  }
}

/**
 * @param {Cloud} cloud
 * @param {number} size of the picture
 */
function elementRadius(cloud, size) {
  const deep = (cloud.points[0]?.length ?? 0) > 2;
  return Math.min(6.5, dotSize([cloud], null) * size * (deep ? 0.45 : 1));
}

/**
 * @param {number[] | null} share
 * @param {number} base
 * @returns {(i: number) => number}
 */
function radiusByShare(share, base) {
  if (!share) return () => base;
  const most = Math.max(...share) || 1;
  return (i) => base * (0.55 + 1.1 * Math.sqrt(share[i] / most));
}

/** @param {([string, string] | string[] | false | null | undefined)[]} rows */
function facts(rows) {
  const shown = rows.filter((row) => row !== false && row !== null && row !== undefined);
  return element(
    "dl",
    { class: "facts" },
    shown.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]),
  );
}

/** @param {string} text */
function sentence(text) {
  return text[0].toUpperCase() + text.slice(1);
}

/**
 * @param {string} name of the icon
 * @param {string} label
 * @param {string} focus by what it is found again when the dialog is filled anew
 * @param {() => void} onclick
 * @param {boolean} disabled
 */
function button(name, label, focus, onclick, disabled) {
  const properties = { type: "button", class: "quiet square", "aria-label": label, title: label, "data-focus": focus };
  return element("button", { ...properties, onclick, disabled }, icon(name));
}
