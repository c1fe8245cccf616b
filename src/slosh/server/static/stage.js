/**
 * The stage: the square that shows the query. In a 2-D index people draw on it, with a mouse, a finger, or the arrow
 * keys; a cloud with more dimensions turns.
 */

import { camera, dotSize, drawCloud, drawPoints, frameOf, projection, turnable, turnByKey } from "./cloud.js";
import { byId, colour, prepare } from "./dom.js";
import { alongStrokes, SIDE } from "./drawing.js";
import { counted } from "./text.js";

/** @import {Cloud, Frame} from "./types.d.ts" */

const CLOSEST = 3;
/** Points of a stroke are no closer than this: a hand is not more exact. */
const PEN_STEP = 8;

export class Stage {
  #canvas = byId("pad", HTMLCanvasElement);
  #box = byId("stage", HTMLElement);
  #hint = byId("pad-hint", HTMLElement);
  #drawable = false;
  #empty = false;
  #strokes = /** @type {number[][]} */ ([]);
  #cloud = /** @type {Cloud | null} */ (null);
  #frame = /** @type {Frame | null} */ (null);
  #pointer = /** @type {number | null} */ (null);
  /** Where the keyboard's pen is, once an arrow key was pressed, and whether it draws. */
  #pen = /** @type {{x: number, y: number, down: boolean} | null} */ (null);
  #painting = 0;

  /**
   * @param {(strokes: number[][], moving: boolean) => void} onDraw called with all strokes whenever they change
   */
  constructor(onDraw) {
    this.onDraw = onDraw;
    const canvas = this.#canvas;
    canvas.addEventListener("pointerdown", (event) => this.#begin(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointerup", (event) => this.#end(event));
    canvas.addEventListener("pointercancel", (event) => this.#end(event));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("blur", () => this.#penGone());
    turnable(canvas, () => !this.#drawable && (this.#cloud?.points[0]?.length ?? 0) > 2);
    camera.addEventListener("turn", () => this.repaint());
    window.addEventListener("slosh-theme", () => this.repaint());
    new ResizeObserver(() => this.repaint()).observe(canvas);
  }

  /** @param {{dim: number, sets: number}} info on the index: two dimensions can be drawn, and an empty one has no sets to choose */
  setIndex({ dim, sets }) {
    const drawable = dim === 2;
    this.#drawable = drawable;
    this.#empty = sets === 0;
    this.#box.classList.toggle("drawable", drawable);
    this.#pen = null;
  }

  /** The strokes that are on the stage now. */
  get strokes() {
    return this.#strokes;
  }

  /** @param {number[][]} strokes */
  showStrokes(strokes) {
    if (this.#pointer !== null) return; // someone is drawing: what they see is newer
    this.#strokes = strokes.map((stroke) => [...stroke]);
    this.#cloud = null;
    this.#label();
    this.repaint();
  }

  /**
   * @param {Cloud | null} cloud
   * @param {Frame | null} frame null is the set's own
   */
  showCloud(cloud, frame = null) {
    if (this.#pointer !== null) return;
    this.#strokes = [];
    this.#cloud = cloud;
    this.#frame = frame;
    this.#box.classList.toggle("turnable", (cloud?.points[0]?.length ?? 0) > 2);
    this.#label();
    this.repaint();
  }

  undo() {
    this.#penGone();
    this.#strokes = this.#strokes.slice(0, -1);
    this.#label();
    this.repaint();
    this.onDraw(this.#strokes, false);
  }

  repaint() {
    if (this.#painting) return;
    this.#painting = requestAnimationFrame(() => {
      this.#painting = 0;
      this.#paint();
    });
  }

  #label() {
    const blank = !this.#strokes.length && !this.#cloud;
    this.#hint.textContent = blank ? this.#invitation() : "";
    const shown = this.#strokes.length
      ? `A drawing of ${counted(this.#strokes.length, "stroke")}.`
      : this.#cloud
        ? `The query, a set of ${counted(this.#cloud.size, "element")}.`
        : "No query yet.";
    const keys = this.#drawable
      ? "Arrow keys move the pen, Space sets it down or lifts it, Backspace removes a stroke."
      : "Arrow keys turn it.";
    this.#canvas.setAttribute("role", this.#drawable ? "application" : "img");
    this.#canvas.setAttribute(
      "aria-label",
      `${this.#drawable ? "Drawing area" : "Picture of the query"}. ${shown} ${keys}`,
    );
  }

  /** What to do where there is no query yet. */
  #invitation() {
    if (this.#empty) return "There is nothing to search yet: this index has no sets";
    return this.#drawable ? "Draw here, drop a file, or choose a set" : "Drop a file, paste numbers, or choose a set";
  }

  #paint() {
    const canvas = this.#canvas;
    const ink = colour("accent");
    if (this.#cloud) {
      drawCloud(canvas, this.#cloud, this.#frame ?? frameOf([this.#cloud.points]), ink);
    } else {
      const { context, width } = prepare(canvas);
      this.#paintStrokes(context, width / SIDE, ink);
    }
    if (this.#pen) this.#paintPen();
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {number} unit
   * @param {string} ink
   */
  #paintStrokes(context, unit, ink) {
    if (!this.#strokes.length) return;
    context.strokeStyle = ink;
    context.lineWidth = 18 * unit;
    context.lineCap = "round";
    context.lineJoin = "round";
    context.globalAlpha = 0.16;
    context.beginPath();
    for (const stroke of this.#strokes) {
      context.moveTo(stroke[0] * unit, stroke[1] * unit);
      if (stroke.length === 2) context.lineTo(stroke[0] * unit + 0.01, stroke[1] * unit);
      for (let i = 2; i < stroke.length; i += 2) context.lineTo(stroke[i] * unit, stroke[i + 1] * unit);
    }
    context.stroke();
    const points = alongStrokes(this.#strokes).map(([x, y]) => [x, SIDE - y]);
    const cloud = { points, weights: null, size: points.length };
    const side = SIDE * unit;
    const place = projection({ centre: [SIDE / 2, SIDE / 2], side: SIDE }, side, side, 0);
    const radius = Math.min(5, dotSize([cloud], null) * side) * 0.7;
    drawPoints(context, cloud, place, () => radius, ink);
  }

  #paintPen() {
    if (!this.#pen) return;
    const context = /** @type {CanvasRenderingContext2D} */ (this.#canvas.getContext("2d"));
    const unit = this.#canvas.clientWidth / SIDE;
    const [x, y] = [this.#pen.x * unit, this.#pen.y * unit];
    context.strokeStyle = colour("ink");
    context.lineWidth = this.#pen.down ? 3 : 1.5;
    context.beginPath();
    for (const [dx, dy] of [
      [1, 0],
      [-1, 0],
      [0, 1],
      [0, -1],
    ]) {
      context.moveTo(x + 4 * dx, y + 4 * dy);
      context.lineTo(x + 11 * dx, y + 11 * dy);
    }
    context.stroke();
  }

  /**
   * Add the place of an event to the last stroke, unless it is where the stroke is already.
   * @param {PointerEvent} event
   */
  #extend(event) {
    const box = this.#canvas.getBoundingClientRect();
    const x = toByte(((event.clientX - box.left) / box.width) * SIDE);
    const y = toByte(((event.clientY - box.top) / box.height) * SIDE);
    return this.#extendTo(x, y);
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  #extendTo(x, y) {
    const stroke = this.#strokes[this.#strokes.length - 1];
    const n = stroke.length;
    if (n && Math.hypot(x - stroke[n - 2], y - stroke[n - 1]) < CLOSEST) return false;
    stroke.push(x, y);
    return true;
  }

  /** @param {PointerEvent} event */
  #begin(event) {
    if (!this.#drawable || event.button !== 0 || this.#pointer !== null) return;
    this.#penGone();
    this.#pointer = event.pointerId;
    if (event.isTrusted) this.#canvas.setPointerCapture(event.pointerId);
    this.#cloud = null;
    this.#strokes.push([]);
    this.#extend(event);
    this.#hint.textContent = "";
    this.repaint();
    this.onDraw(this.#strokes, true);
  }

  /** @param {PointerEvent} event */
  #move(event) {
    if (event.pointerId !== this.#pointer) return;
    const events = event.getCoalescedEvents?.() ?? [];
    let changed = false;
    for (const each of events.length ? events : [event]) changed = this.#extend(each) || changed;
    if (!changed) return;
    this.repaint();
    this.onDraw(this.#strokes, true);
  }

  /** @param {PointerEvent} event */
  #end(event) {
    if (event.pointerId !== this.#pointer) return;
    this.#pointer = null;
    this.#label();
    this.onDraw(this.#strokes, false);
  }

  #penGone() {
    if (!this.#pen) return;
    this.#pen = null;
    this.repaint();
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.altKey || event.metaKey) return;
    if (!this.#drawable) {
      turnByKey(event);
      return;
    }
    if (event.key === "Backspace" || (event.ctrlKey && event.key === "z")) {
      if (this.#strokes.length) this.undo();
      event.preventDefault();
      return;
    }
    /** @type {Record<string, [number, number]>} */
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const step = steps[event.key];
    if (!step && event.key !== " ") return;
    event.preventDefault();
    this.#pen ??= { x: SIDE >> 1, y: SIDE >> 1, down: false };
    if (step) this.#movePen(step, event.shiftKey ? 3 : PEN_STEP);
    else this.#switchPen();
    this.repaint();
  }

  /**
   * @param {[number, number]} step
   * @param {number} length
   */
  #movePen(step, length) {
    if (!this.#pen) return;
    this.#pen.x = toByte(this.#pen.x + step[0] * length);
    this.#pen.y = toByte(this.#pen.y + step[1] * length);
    if (this.#pen.down && this.#extendTo(this.#pen.x, this.#pen.y)) this.onDraw(this.#strokes, false);
  }

  #switchPen() {
    if (!this.#pen) return;
    this.#pen.down = !this.#pen.down;
    if (!this.#pen.down) return;
    this.#cloud = null;
    this.#hint.textContent = "";
    this.#strokes.push([this.#pen.x, this.#pen.y]);
    this.onDraw(this.#strokes, false);
  }
}

/** @param {number} x */
function toByte(x) {
  return Math.max(0, Math.min(SIDE, Math.round(x)));
}
