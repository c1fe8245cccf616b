/** Hands on the map: a drag moves it, two fingers or the wheel zoom, keys do both, and a click takes a set. */

import { byId } from "./dom.js";

const STEP = 50;
const ZOOM = 1.6;

/**
 * @typedef {object} MapActions
 * @property {(dx: number, dy: number) => void} pan by pixels
 * @property {(by: number, x?: number, y?: number) => void} zoom about a place, or about the middle
 * @property {() => void} showAll
 * @property {() => void} rest the view has changed, and rests
 * @property {(place: [number, number] | null) => void} point at the set at a place
 * @property {() => void} pointMiddle point at the set nearest to the middle
 * @property {(place: [number, number] | null) => void} choose the set at a place, or the one that is pointed at
 */

export class MapGestures {
  /** Pointers that are down, by their ids: one drags, two zoom. */
  #pointers = /** @type {Map<number, [number, number]>} */ (new Map());
  #dragged = false;

  /**
   * @param {HTMLCanvasElement} canvas
   * @param {MapActions} actions
   */
  constructor(canvas, actions) {
    this.canvas = canvas;
    this.actions = actions;
    canvas.addEventListener("pointerdown", (event) => this.#down(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointerup", (event) => this.#up(event));
    canvas.addEventListener("pointercancel", (event) => this.#up(event));
    canvas.addEventListener("pointerleave", () => actions.point(null));
    canvas.addEventListener("blur", () => actions.point(null));
    canvas.addEventListener("click", (event) => {
      if (!this.#dragged) actions.choose([event.offsetX, event.offsetY]);
    });
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    canvas.addEventListener("keydown", (event) => this.#key(event));
    byId("zoom-in", HTMLButtonElement).addEventListener("click", () => actions.zoom(ZOOM));
    byId("zoom-out", HTMLButtonElement).addEventListener("click", () => actions.zoom(1 / ZOOM));
    byId("zoom-all", HTMLButtonElement).addEventListener("click", () => actions.showAll());
  }

  /** Whether the map is being moved. */
  get active() {
    return this.#pointers.size > 0;
  }

  /** @param {PointerEvent} event */
  #down(event) {
    if (event.button !== 0) return;
    this.#pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
    if (event.isTrusted) this.canvas.setPointerCapture(event.pointerId);
    this.#dragged = false;
  }

  /** @param {PointerEvent} event */
  #move(event) {
    const last = this.#pointers.get(event.pointerId);
    const here = /** @type {[number, number]} */ ([event.offsetX, event.offsetY]);
    if (!last) {
      if (event.pointerType !== "touch") this.actions.point(here);
      return;
    }
    if (!this.#dragged && Math.hypot(here[0] - last[0], here[1] - last[1]) < 4) return;
    this.#dragged = true;
    this.actions.point(null);
    const others = [...this.#pointers].filter(([id]) => id !== event.pointerId);
    if (others.length === 1) {
      const [, other] = others[0];
      const before = Math.hypot(last[0] - other[0], last[1] - other[1]);
      const after = Math.hypot(here[0] - other[0], here[1] - other[1]);
      if (before > 0) this.actions.zoom(after / before, (here[0] + other[0]) / 2, (here[1] + other[1]) / 2);
    } else {
      this.actions.pan(here[0] - last[0], here[1] - last[1]);
    }
    this.#pointers.set(event.pointerId, here);
  }

  /** @param {PointerEvent} event */
  #up(event) {
    if (this.#pointers.delete(event.pointerId) && this.#dragged) this.actions.rest();
  }

  /** @param {WheelEvent} event */
  #wheel(event) {
    event.preventDefault();
    const speed = event.ctrlKey ? 0.01 : 0.0018; // a pinch on a touchpad is a wheel with Ctrl, in small steps
    this.actions.zoom(Math.exp(-event.deltaY * speed), event.offsetX, event.offsetY);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.altKey || event.metaKey || event.ctrlKey) return;
    const { actions } = this;
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowLeft: () => actions.pan(STEP, 0),
      ArrowRight: () => actions.pan(-STEP, 0),
      ArrowUp: () => actions.pan(0, STEP),
      ArrowDown: () => actions.pan(0, -STEP),
      "+": () => actions.zoom(ZOOM),
      "=": () => actions.zoom(ZOOM),
      "-": () => actions.zoom(1 / ZOOM),
      0: () => actions.showAll(),
    };
    if (event.key === "Enter") {
      event.preventDefault();
      actions.choose(null);
      return;
    }
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
    actions.rest();
    actions.pointMiddle();
  }
}
