/**
 * Sets as cards: a picture, the distance, the id, the metadata. Cards that stay in the answer move to their new place,
 * so that the eye sees what changed. Pictures are drawn when they come into view.
 */

import { camera, dotSize, drawCloud, frameOf, turnable } from "./cloud.js";
import { colour, element, fill } from "./dom.js";
import { distance, summary } from "./text.js";

/** @import {Cloud, Frame, Metadata} from "./types.d.ts" */

const SEEN_AT_ONCE = 48;
/** So many new pictures are drawn at once, before it is known which ones are in view. */

/**
 * @typedef {object} Item a set to show
 * @property {string} id
 * @property {Metadata} metadata
 * @property {number | null} distance
 */

/**
 * @typedef {object} Card
 * @property {Item} item
 * @property {HTMLLIElement} row
 * @property {HTMLButtonElement} button
 * @property {HTMLCanvasElement} canvas
 * @property {HTMLElement} text
 */

export class Cards {
  #cards = /** @type {Map<string, Card>} */ (new Map());
  #clouds = /** @type {Map<string, Cloud>} */ (new Map());
  #frame = /** @type {Frame | null} */ (null);
  #dot = 0;
  #painting = 0;
  #seen = /** @type {Set<Element>} */ (new Set());
  #observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) this.#seen.add(target);
      else this.#seen.delete(target);
    }
    this.repaint();
  });

  /**
   * @param {HTMLOListElement} list
   * @param {(item: Item) => void} onChoose
   * @param {(item: Item) => string} colourOf the colour of a set on the map, or ""
   */
  constructor(list, onChoose, colourOf) {
    this.list = list;
    this.onChoose = onChoose;
    this.colourOf = colourOf;
    camera.addEventListener("turn", () => this.repaint());
    window.addEventListener("slosh-theme", () => this.recolour());
    new ResizeObserver(() => this.repaint()).observe(list);
  }

  /** The ids that are shown, in their order. */
  get ids() {
    return [...this.#cards.keys()];
  }

  /**
   * Show these sets, in this order.
   * @param {Item[]} items
   * @param {(item: Item) => string} label what a screen reader says of a set
   */
  show(items, label) {
    const before = new Map([...this.#cards].map(([id, card]) => [id, card.row.getBoundingClientRect()]));
    /** @type {Map<string, Card>} */
    const next = new Map();
    for (const item of items) {
      const card = this.#cards.get(item.id) ?? this.#made(item);
      card.item = item;
      this.#fillText(card);
      card.button.setAttribute("aria-label", label(item));
      next.set(item.id, card);
    }
    for (const [id, card] of this.#cards) {
      if (next.has(id)) continue;
      this.#observer.unobserve(card.canvas);
      this.#seen.delete(card.canvas);
    }
    const focused = document.activeElement;
    this.#cards = next;
    fill(this.list, ...[...next.values()].map((card) => card.row));
    if (focused instanceof HTMLElement && focused !== document.activeElement && focused.isConnected) {
      focused.focus({ preventScroll: true });
    }
    this.#animate(before);
    this.repaint();
  }

  /**
   * The pictures of the sets, and the frame that they share (null: each has its own).
   * @param {Map<string, Cloud>} clouds
   * @param {Frame | null} frame
   */
  showClouds(clouds, frame) {
    this.#clouds = clouds;
    this.#frame = frame;
    this.#dot = dotSize([...clouds.values()], frame);
    this.repaint();
  }

  /** @param {string} id of the set whose match is open */
  mark(id) {
    for (const [each, card] of this.#cards) card.button.classList.toggle("here", each === id);
  }

  /** @param {string} id */
  focus(id) {
    this.#cards.get(id)?.button.focus();
  }

  recolour() {
    for (const card of this.#cards.values()) this.#fillText(card);
    this.repaint();
  }

  repaint() {
    if (this.#painting) return;
    this.#painting = requestAnimationFrame(() => {
      this.#painting = 0;
      const ink = colour("set");
      for (const [id, card] of this.#cards) {
        if (!this.#seen.has(card.canvas)) continue;
        const cloud = this.#clouds.get(id);
        if (cloud) drawCloud(card.canvas, cloud, this.#frame ?? frameOf([cloud.points]), ink, this.#dot);
      }
    });
  }

  /**
   * @param {Item} item
   * @returns {Card}
   */
  #made(item) {
    const canvas = element("canvas", { "aria-hidden": "true" });
    const text = element("span", { class: "text" });
    const button = element("button", { type: "button", class: "card", "data-id": item.id }, canvas, text);
    const row = element("li", {}, button);
    const card = { item, row, button, canvas, text };
    turnable(button, () => (this.#clouds.get(card.item.id)?.points[0]?.length ?? 0) > 2);
    button.addEventListener("click", () => this.onChoose(card.item));
    if (this.#seen.size < SEEN_AT_ONCE) this.#seen.add(canvas); // until the observer knows better
    this.#observer.observe(canvas);
    return card;
  }

  /** @param {Card} card */
  #fillText({ item, text }) {
    const chip = this.colourOf(item);
    const mark = chip ? element("span", { class: "chip" }) : null;
    if (mark) mark.style.backgroundColor = chip;
    const about = summary(item.metadata);
    fill(
      text,
      item.distance !== null && element("span", { class: "distance" }, distance(item.distance)),
      element("span", { class: "id" }, item.id),
      (about || mark) && element("span", { class: "meta" }, mark, element("span", {}, about)),
    );
  }

  /** @param {Map<string, DOMRect>} before */
  #animate(before) {
    if (window.matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    for (const [id, card] of this.#cards) {
      const from = before.get(id);
      const to = card.row.getBoundingClientRect();
      if (!from) continue;
      const [dx, dy] = [from.left - to.left, from.top - to.top];
      if (!dx && !dy) continue;
      card.row.animate([{ transform: `translate(${dx}px, ${dy}px)` }, { transform: "none" }], {
        duration: 180,
        easing: "ease-out",
      });
    }
  }
}
