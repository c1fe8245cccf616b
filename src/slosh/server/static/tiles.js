/**
 * The tiles of the map: only those that are looked at are loaded, a few at a time, and the least recently seen are
 * dropped. Until a tile is there, what its ancestors know of it is shown.
 */

import { ask, isAbort } from "./api.js";

/** @import {Bounds, MapAnswer, TileAnswer} from "./types.d.ts" */
/** @import {Batch, View} from "./points-gl.js" */

const TILE_PIXELS = 420;
/** A tile of the chosen level is about so wide on the screen. */
export const LIMIT = 2000;
/** A tile holds at most so many of its sets. */
const FEW = 250;
/** So many sets of a tile are drawn in any case. */
const MOST_TILES = 160;
const AT_ONCE = 4;
const DEEPER = 4;
/** Levels below the deepest that the server names: where sets lie close together, a tile of it does not hold all. */
const DEEPEST = 12;

/**
 * @typedef {object} Tile
 * @property {string} key
 * @property {TileAnswer} answer
 * @property {Batch} batch
 * @property {HTMLCanvasElement | null} shade its density, one pixel a cell: shown where not every set is drawn
 * @property {number} seen
 */

/**
 * @typedef {object} Shown a tile, and the part of it (as fractions, from the lower left) that is shown
 * @property {Tile} tile
 * @property {Bounds} part
 */

export class Tiles {
  #tiles = /** @type {Map<string, Tile>} */ (new Map());
  #failed = /** @type {Set<string>} */ (new Set());
  #loading = /** @type {Map<string, AbortController>} */ (new Map());
  #wanted = /** @type {[number, number, number][]} */ ([]);
  #clock = 0;

  /**
   * @param {string} index
   * @param {MapAnswer} map
   * @param {string} field
   * @param {(answer: TileAnswer) => {inks: Uint8Array, shade: HTMLCanvasElement | null}} paint
   * @param {() => void} onChange
   * @param {(error: unknown) => void} onError
   * @param {(batch: Batch) => void} drop
   */
  constructor(index, map, field, paint, onChange, onError, drop) {
    this.index = index;
    this.map = map;
    this.bounds = /** @type {Bounds} */ (map.bounds);
    this.field = field;
    this.paint = paint;
    this.onChange = onChange;
    this.onError = onError;
    this.drop = drop;
  }

  /** Forget everything. */
  end() {
    for (const controller of this.#loading.values()) controller.abort();
    this.#loading.clear();
    this.#wanted = [];
    for (const tile of this.#tiles.values()) this.drop(tile.batch);
    this.#tiles.clear();
  }

  /** Paint all tiles again: colours have changed. */
  recolour() {
    for (const tile of this.#tiles.values()) {
      const { inks, shade } = this.paint(tile.answer);
      Object.assign(tile.batch, { inks, changed: true });
      tile.shade = shade;
    }
  }

  /**
   * What to draw for a view, from coarse to fine; asks for the tiles that are missing.
   * @param {View} view
   * @param {number} width in CSS pixels
   * @param {number} height
   * @param {number} room for so many points, unless all sets that are in view have been loaded
   * @returns {Shown[]}
   */
  visible(view, width, height, room) {
    this.#clock += 1;
    const [left, low, right, high] = this.bounds;
    const across = Math.max(right - left, high - low) * view.unit;
    const deepest = Math.min(DEEPEST, this.map.max_level + DEEPER);
    const level = Math.max(0, Math.min(deepest, Math.round(Math.log2(across / TILE_PIXELS))));
    const n = 2 ** level;
    const [w, h] = [(right - left) / n || 1, (high - low) / n || 1];
    /** @param {number} i */
    const within = (i) => Math.max(0, Math.min(n - 1, i));
    const [halfWidth, halfHeight] = [width / 2 / view.unit, height / 2 / view.unit];
    const x0 = within(Math.floor((view.x - halfWidth - left) / w));
    const x1 = within(Math.floor((view.x + halfWidth - left) / w));
    const y0 = within(Math.floor((view.y - halfHeight - low) / h));
    const y1 = within(Math.floor((view.y + halfHeight - low) / h));
    /** @type {Map<string, Shown>} */
    const shown = new Map();
    this.#wanted = [[0, 0, 0]];
    for (let y = y0; y <= y1; y++) {
      for (let x = x0; x <= x1; x++) this.#take(level, x, y, shown);
    }
    this.#load();
    this.#forget();
    const sorted = [...shown.values()].sort((a, b) => a.tile.answer.level - b.tile.answer.level);
    const seen = /** @type {Bounds} */ ([
      view.x - halfWidth,
      view.y - halfHeight,
      view.x + halfWidth,
      view.y + halfHeight,
    ]);
    thin(new Set(sorted.map(({ tile }) => tile)), seen, room);
    return sorted;
  }

  /**
   * Show a tile, or the part of an ancestor that covers it. Tiles that are known to hold nothing new are not asked for.
   * @param {number} level
   * @param {number} x
   * @param {number} y
   * @param {Map<string, Shown>} shown
   */
  #take(level, x, y, shown) {
    for (let up = 0; up <= level; up++) {
      const key = keyOf(level - up, x >> up, y >> up);
      const tile = this.#tiles.get(key);
      if (!tile) continue;
      tile.seen = this.#clock;
      const side = 2 ** up;
      const part = /** @type {Bounds} */ ([
        (x % side) / side,
        (y % side) / side,
        ((x % side) + 1) / side,
        ((y % side) + 1) / side,
      ]);
      if (up === 0) shown.set(key, { tile, part });
      else {
        const complete = tile.answer.count <= tile.answer.ids.length;
        const name = complete ? key : `${key}/${up}/${x}/${y}`;
        shown.set(name, { tile, part: complete ? [0, 0, 1, 1] : part });
        if (!complete && setsWithin(tile.answer, part) > 0) this.#wanted.push([level, x, y]);
      }
      return;
    }
    this.#wanted.push([level, x, y]);
  }

  #load() {
    const wanted = new Set(this.#wanted.map(([level, x, y]) => keyOf(level, x, y)));
    for (const [key, controller] of this.#loading) if (!wanted.has(key)) controller.abort();
    for (const [level, x, y] of this.#wanted) {
      if (this.#loading.size >= AT_ONCE) return;
      const key = keyOf(level, x, y);
      if (this.#tiles.has(key) || this.#loading.has(key) || this.#failed.has(key)) continue;
      const controller = new AbortController();
      this.#loading.set(key, controller);
      void this.#fetch(key, level, x, y, controller);
    }
  }

  /**
   * @param {string} key
   * @param {number} level
   * @param {number} x
   * @param {number} y
   * @param {AbortController} controller
   */
  async #fetch(key, level, x, y, controller) {
    try {
      /** @type {TileAnswer} */
      const answer = await ask(`indexes/${encodeURIComponent(this.index)}/map/tile`, {
        parameters: { level, x, y, field: this.field, limit: LIMIT },
        signal: controller.signal,
      });
      const origin = /** @type {[number, number]} */ ([answer.bounds[0], answer.bounds[1]]);
      const places = new Float32Array(2 * answer.points.length);
      answer.points.forEach(([px, py], i) => {
        places.set([px - origin[0], py - origin[1]], 2 * i);
      });
      const { inks, shade } = this.paint(answer);
      this.#tiles.set(key, {
        key,
        answer,
        batch: { places, origin, inks, changed: true, count: answer.ids.length },
        shade,
        seen: this.#clock,
      });
    } catch (error) {
      if (!isAbort(error)) {
        this.#failed.add(key);
        this.onError(error);
      }
    }
    this.#loading.delete(key);
    this.onChange();
  }

  #forget() {
    if (this.#tiles.size <= MOST_TILES) return;
    const old = [...this.#tiles.values()].filter((tile) => tile.seen < this.#clock && tile.key !== keyOf(0, 0, 0));
    old.sort((a, b) => a.seen - b.seen);
    for (const tile of old.slice(0, this.#tiles.size - MOST_TILES)) {
      this.drop(tile.batch);
      this.#tiles.delete(tile.key);
    }
  }
}

/**
 * How many sets the density of a tile counts in a part of it.
 * @param {TileAnswer} answer
 * @param {Bounds} part as fractions, from the lower left
 */
function setsWithin({ density }, [x0, y0, x1, y1]) {
  const rows = density.length;
  let sum = 0;
  for (let row = Math.floor(y0 * rows); row < Math.ceil(y1 * rows); row++) {
    const columns = density[row].length;
    for (let column = Math.floor(x0 * columns); column < Math.ceil(x1 * columns); column++) sum += density[row][column];
  }
  return sum;
}

/**
 * The part of a tile that is in view, as fractions, from the lower left.
 * @param {TileAnswer} answer
 * @param {Bounds} seen
 * @returns {Bounds}
 */
function partInView({ bounds: [left, low, right, high] }, [seenLeft, seenLow, seenRight, seenHigh]) {
  /** @type {(x: number, from: number, to: number) => number} */
  const fraction = (x, from, to) => Math.max(0, Math.min(1, (x - from) / (to - from || 1)));
  return [
    fraction(seenLeft, left, right),
    fraction(seenLow, low, high),
    fraction(seenRight, left, right),
    fraction(seenHigh, low, high),
  ];
}

/**
 * Choose how many of the sets of each tile are drawn: all of them, if all that are in view have been loaded. Otherwise
 * the same share of every tile, so that no edges appear where dense and sparse ones meet, and no more than there is
 * room for; but a quarter of those that are there, and all where they are few. The points of a tile are in random order.
 * @param {Set<Tile>} tiles
 * @param {Bounds} seen what is in view
 * @param {number} room for so many points in view
 */
function thin(tiles, seen, room) {
  const answers = [...tiles].map(({ answer }) => answer);
  const shares = answers.map(({ ids, count }) => ids.length / count).filter((share) => share < 1);
  if (shares.length) {
    const inView = answers.reduce((sum, answer) => sum + setsWithin(answer, partInView(answer, seen)), 0);
    shares.push(room / Math.max(1, inView));
  }
  const share = Math.min(1, ...shares);
  for (const { answer, batch } of tiles) {
    const held = answer.ids.length;
    const least = Math.max(FEW, held / 4);
    batch.count = Math.round(Math.min(held, Math.max(least, share * answer.count)));
  }
}

/**
 * @param {number} level
 * @param {number} x
 * @param {number} y
 */
function keyOf(level, x, y) {
  return `${level}/${x}/${y}`;
}
