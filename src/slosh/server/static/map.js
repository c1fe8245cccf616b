/**
 * The map of the collection: every set is a point, placed by the first two principal components of the vectors and
 * coloured by a field of the metadata. Where there are too many, their density and a sample are shown. The query and
 * its neighbours are marked.
 */

import { ask, isAbort } from "./api.js";
import { drawCloud, frameOf } from "./cloud.js";
import { byId, colour, element, fill, prepare } from "./dom.js";
import { Legend } from "./legend.js";
import { MapGestures } from "./map-gestures.js";
import { edgePlace, paintMarks, paintShades, shadeOf } from "./map-paint.js";
import { Palette } from "./palette.js";
import { pointRenderer } from "./points-gl.js";
import { counted, percent, plain } from "./text.js";
import { LIMIT, Tiles } from "./tiles.js";

/** @import {Cloud, Field, MapAnswer, PlaceAnswer, TileAnswer} from "./types.d.ts" */
/** @import {View} from "./points-gl.js" */
/** @import {Marks} from "./map-paint.js" */
/** @import {Shown} from "./tiles.js" */

const REACH = 14;
/** A set is pointed at from so many pixels away. */
const MARGIN = 28;
const SMALLEST_DOT = 2.6;
const LARGEST_DOT = 9;
/** Widths of points, in pixels. */
const FILL = 0.45;
/** Points are this part as wide as they would be apart, if all that there is room for lay evenly. */
const GROWTH = 0.2;
/** Sixteen times closer, points are 16 ** GROWTH times as wide. */
const STRETCH = 3;
/** A query beyond the map is shown in its place if that makes the map at most so many times as wide. */

export class CollectionMap {
  #plane = byId("plane", HTMLElement);
  #shades = byId("map-density", HTMLCanvasElement);
  #marksCanvas = byId("map-marks", HTMLCanvasElement);
  #zoomBox = byId("zoom", HTMLElement);
  #status = byId("map-status", HTMLElement);
  #tip = byId("tip", HTMLElement);
  #renderer = pointRenderer(byId("map-points", HTMLCanvasElement));
  #index = "";
  #map = /** @type {MapAnswer | null} */ (null);
  #tiles = /** @type {Tiles | null} */ (null);
  #shown = /** @type {Shown[]} */ ([]);
  #palette = new Palette(null);
  #view = /** @type {View | null} */ (null);
  #marks = /** @type {Marks} */ ({ query: null, hits: [] });
  #pointed = /** @type {{id: string, x: number, y: number, value: unknown} | null} */ (null);
  #looked = false;
  #timer = 0;
  #painting = 0;
  #asking = /** @type {AbortController | null} */ (null);
  #gestures = new MapGestures(this.#marksCanvas, {
    pan: (dx, dy) => this.#pan(dx, dy),
    zoom: (by, x, y) => this.#zoom(by, x, y),
    showAll: () => this.#showAll(),
    rest: () => this.#settled(),
    point: (place) => this.#point(place && this.#at(...place)),
    pointMiddle: () => requestAnimationFrame(() => this.#point(this.#middle())),
    choose: (place) => {
      const found = place ? this.#at(...place) : (this.#pointed ?? this.#middle());
      if (found) this.actions.choose(found.id);
    },
  });

  /**
   * @param {object} actions
   * @param {(id: string) => void} actions.choose
   * @param {(at: [number, number, number] | null) => void} actions.moved
   * @param {(id: string) => Promise<Cloud | null>} actions.cloudOf
   * @param {(error: unknown) => void} actions.failed
   */
  constructor(actions) {
    this.actions = actions;
    this.legend = new Legend(() => {
      this.#tiles?.recolour();
      this.repaint();
    });
    new ResizeObserver(() => this.repaint()).observe(this.#plane);
    // A map that nobody looks at (below, on a phone) is not loaded.
    new IntersectionObserver((entries) => {
      this.#looked = entries[entries.length - 1].isIntersecting;
      if (this.#looked) this.#begin();
    }).observe(this.#plane);
    window.addEventListener("slosh-theme", () => {
      this.#palette.refresh();
      this.legend.show(this.#palette);
      this.#tiles?.recolour();
      this.repaint();
    });
  }

  /**
   * Show the map of an index.
   * @param {string} index
   */
  setIndex(index) {
    this.#asking?.abort();
    window.clearTimeout(this.#timer);
    this.#tiles?.end();
    this.#index = index;
    this.#map = null;
    this.#tiles = null;
    this.#view = null;
    this.#marks = { query: null, hits: [] };
    this.#point(null);
    this.#status.textContent = "";
    this.repaint();
    if (this.#looked) this.#begin();
  }

  /** @param {Field | null} field */
  setField(field) {
    if (this.#palette.field === field) return;
    this.#palette = new Palette(field);
    this.legend.show(this.#palette);
    if (this.#map) this.#startTiles();
  }

  /** @param {unknown} value */
  colourOf(value) {
    return this.#palette.field && value !== null && value !== undefined ? this.#palette.css(value) : "";
  }

  /** @param {[number, number, number] | null} at centre, and how many times larger than all of it */
  setView(at) {
    if (this.#gestures.active) return;
    const all = this.#whole();
    this.#view = at && all ? { x: at[0], y: at[1], unit: at[2] * all.unit } : null;
    this.#pendingView = at;
    this.repaint();
  }

  #pendingView = /** @type {[number, number, number] | null} */ (null);

  /**
   * Mark the query and its neighbours.
   * @param {object} request for map/place; null marks nothing
   * @param {string[]} ids of the neighbours, nearest first
   * @param {string | null} own id of the query, if it is stored
   * @param {AbortSignal} signal
   */
  async mark(request, ids, own, signal) {
    if (!this.#map?.bounds) {
      this.#pendingMark = () => this.mark(request, ids, own, this.#controller().signal);
      return;
    }
    const index = this.#index;
    const wanted = own === null ? ids : [own, ...ids];
    /** @type {PlaceAnswer} */
    const answer = await ask(`indexes/${encodeURIComponent(this.#index)}/map/place`, {
      body: { ...request, ids: wanted },
      signal,
    });
    if (index !== this.#index) return;
    const places = answer.ids ?? [];
    const query = own === null ? (answer.queries?.[0] ?? null) : (places[0] ?? null);
    const rest = own === null ? places : places.slice(1);
    this.#marks = { query, hits: ids.flatMap((id, i) => (rest[i] ? [{ id, place: rest[i] }] : [])) };
    this.#sayStatus();
    this.repaint();
  }

  #pendingMark = /** @type {(() => Promise<void>) | null} */ (null);

  unmark() {
    this.#marks = { query: null, hits: [] };
    this.#pendingMark = null;
    this.#sayStatus();
    this.repaint();
  }

  #controller() {
    this.#asking?.abort();
    this.#asking = new AbortController();
    return this.#asking;
  }

  #begin() {
    if (!this.#index || this.#map) return;
    void this.#fetchMap();
  }

  async #fetchMap() {
    window.clearTimeout(this.#timer);
    const { signal } = this.#controller();
    try {
      /** @type {MapAnswer} */
      const map = await ask(`indexes/${encodeURIComponent(this.#index)}/map`, { signal });
      this.#take(map);
    } catch (error) {
      if (isAbort(error)) return;
      this.#status.textContent = "cannot be shown";
      this.actions.failed(error);
    }
  }

  /** @param {MapAnswer} map */
  #take(map) {
    const again = map.state === "building" || map.stale;
    if (again) this.#timer = window.setTimeout(() => this.#looked && void this.#fetchMap(), map.bounds ? 2000 : 300);
    if (!map.bounds) {
      const done = map.total ? ` ${percent(map.done / map.total)}` : "";
      this.#status.textContent = map.state === "building" ? `is being computed${done}` : "";
      return;
    }
    const changed = !this.#map || String(this.#map.bounds) !== String(map.bounds) || this.#map.sets !== map.sets;
    this.#map = map;
    this.#sayStatus();
    this.#marksCanvas.setAttribute(
      "aria-label",
      `Map of ${counted(map.sets, "set")}. Arrow keys move it, plus and minus zoom, 0 shows all of it, Enter searches from the set in the middle.`,
    );
    if (changed) this.#startTiles();
    if (this.#pendingView) this.setView(this.#pendingView);
    void this.#pendingMark?.().catch(() => undefined);
    this.#pendingMark = null;
  }

  /** Say how much the map shows, and whether the query is beyond it. */
  #sayStatus() {
    if (!this.#map?.bounds) return;
    const { explained, sets } = this.#map;
    const share = explained ? explained[0] + explained[1] : 0;
    const shows = share > 0 ? `${percent(share)} of the variance` : counted(sets, "set"); // one has no variance
    this.#status.textContent = this.#isFar() ? `${shows} · the query is far outside` : shows;
  }

  /** Whether the query is so far beyond everything stored that the map does not reach to it. */
  #isFar() {
    const bounds = this.#map?.bounds;
    const { query } = this.#marks;
    if (!bounds || !query || this.#map?.sets === 1) return false;
    const [left, low, right, high] = bounds;
    const wide = Math.max(right, query[0]) - Math.min(left, query[0]);
    const tall = Math.max(high, query[1]) - Math.min(low, query[1]);
    return Math.max(wide, tall) > STRETCH * Math.max(right - left, high - low);
  }

  #startTiles() {
    if (!this.#map?.bounds) return;
    this.#tiles?.end();
    this.#tiles = new Tiles(
      this.#index,
      this.#map,
      this.#palette.field?.name ?? "",
      (answer) => this.#paintTile(answer),
      () => this.repaint(),
      (error) => this.actions.failed(error),
      (batch) => this.#renderer.drop(batch),
    );
    this.repaint();
  }

  /** @param {TileAnswer} answer */
  #paintTile({ ids, values, level, density }) {
    const inks = new Uint8Array(4 * ids.length);
    const palette = this.#palette;
    for (let i = 0; i < ids.length; i++) {
      const value = values?.[i] ?? null;
      inks.set([...palette.of(value), 205 * palette.alpha(value)], 4 * i);
    }
    // In the densest cells lie about so many, and fewer in the smaller ones of deeper levels.
    const most = Math.max(4, (this.#map?.sets ?? 0) / 128 / 2 ** level);
    return { inks, shade: shadeOf(density, most) };
  }

  /** The view that shows everything. @returns {View | null} */
  #whole() {
    const bounds = this.#map?.bounds;
    if (!bounds) return null;
    const [width, height] = [this.#plane.clientWidth, this.#plane.clientHeight];
    const query = this.#isFar() ? null : this.#marks.query; // a query may lie beyond everything stored
    const [left, low] = [Math.min(bounds[0], query?.[0] ?? Infinity), Math.min(bounds[1], query?.[1] ?? Infinity)];
    const [right, high] = [Math.max(bounds[2], query?.[0] ?? -Infinity), Math.max(bounds[3], query?.[1] ?? -Infinity)];
    /** @param {number} aside pixels at the right that are left free */
    const view = (aside) => {
      const unit = Math.min((width - MARGIN - aside) / (right - left || 1), (height - 2 * MARGIN) / (high - low || 1));
      const safe = Math.max(unit, 1e-9);
      return { x: (left + right) / 2 + (aside - MARGIN) / 2 / safe, y: (low + high) / 2, unit: safe };
    };
    const all = view(MARGIN);
    const { x, y, right: end, bottom } = this.#taken();
    if (!query) return all;
    const [px, py] = [width / 2 + (query[0] - all.x) * all.unit, height / 2 - (query[1] - all.y) * all.unit];
    return px > x && px < end && py > y && py < bottom ? view(width - x) : all; // not under the buttons
  }

  /** What the buttons cover, with room for a mark. */
  #taken() {
    const { offsetLeft, offsetTop, offsetWidth, offsetHeight } = this.#zoomBox;
    const room = 14;
    return new DOMRect(offsetLeft - room, offsetTop - room, offsetWidth + 2 * room, offsetHeight + 2 * room);
  }

  repaint() {
    if (this.#painting) return;
    this.#painting = requestAnimationFrame(() => {
      this.#painting = 0;
      this.#paint();
    });
  }

  #paint() {
    const [width, height] = [this.#plane.clientWidth, this.#plane.clientHeight];
    const view = this.#view ?? this.#whole();
    const size = this.#dotSize(view, width * height);
    const room = (width * height * FILL ** 2) / size ** 2;
    this.#shown = view && this.#tiles && width ? this.#tiles.visible(view, width, height, room) : [];
    this.#plane.classList.toggle("zoomed", this.#view !== null);
    this.#plane.dataset.tiles = String(this.#shown.length);
    this.#plane.dataset.dot = size.toFixed(2);
    const shades = prepare(this.#shades);
    const marks = prepare(this.#marksCanvas);
    const unique = [...new Set(this.#shown.map(({ tile }) => tile))];
    this.#renderer.draw(
      unique.map((tile) => tile.batch),
      view ?? { x: 0, y: 0, unit: 1 },
      size,
    );
    if (!view) return;
    /** @type {(x: number, y: number) => [number, number]} */
    const place = (x, y) => [width / 2 + (x - view.x) * view.unit, height / 2 - (y - view.y) * view.unit];
    paintShades(shades.context, this.#shown, place);
    const { query } = this.#marks;
    const at = query && place(...query);
    const mark = at && edgePlace(at, [width, height], this.#taken());
    this.#plane.dataset.query = !mark ? "none" : mark.beyond ? "beyond" : "shown";
    paintMarks(marks.context, this.#marks, mark, this.#pointed, place);
  }

  /**
   * How wide points are: as suits what all of the map shows, and wider as one zooms in, wherever one looks.
   * @param {View | null} view
   * @param {number} area of the map on the screen
   */
  #dotSize(view, area) {
    const sets = Math.max(1, Math.min(LIMIT, this.#map?.sets ?? 0));
    const unit = this.#whole()?.unit ?? 1;
    const closer = Math.max(1, (view?.unit ?? unit) / unit);
    const usual = Math.max(SMALLEST_DOT, Math.min(LARGEST_DOT, Math.sqrt(area / sets) * FILL));
    return Math.min(LARGEST_DOT, usual * closer ** GROWTH);
  }

  /**
   * @param {number} dx
   * @param {number} dy
   */
  #pan(dx, dy) {
    const view = this.#view ?? this.#whole();
    if (!view) return;
    this.#view = { ...view, x: view.x - dx / view.unit, y: view.y + dy / view.unit };
    this.repaint();
  }

  /**
   * @param {number} by
   * @param {number} [px] the place that stays where it is; the middle by default
   * @param {number} [py]
   */
  #zoom(by, px, py) {
    const view = this.#view ?? this.#whole();
    const all = this.#whole();
    if (!view || !all || !this.#map) return;
    const [dx, dy] = [
      (px ?? this.#plane.clientWidth / 2) - this.#plane.clientWidth / 2,
      (py ?? this.#plane.clientHeight / 2) - this.#plane.clientHeight / 2,
    ];
    const unit = Math.max(all.unit * 0.8, Math.min(all.unit * 2 ** (this.#map.max_level + 6), view.unit * by));
    const [x, y] = [view.x + dx / view.unit, view.y - dy / view.unit];
    this.#view = { x: x - dx / unit, y: y + dy / unit, unit };
    this.repaint();
    this.#settled();
  }

  #showAll() {
    this.#view = null;
    this.repaint();
    this.#settled();
  }

  /** The view has changed: say so, once it rests. */
  #settled() {
    window.clearTimeout(this.#settling);
    this.#settling = window.setTimeout(() => {
      const all = this.#whole();
      if (!all) return;
      this.#pendingView = this.#view ? [this.#view.x, this.#view.y, this.#view.unit / all.unit] : null;
      this.actions.moved(this.#pendingView);
    }, 200);
  }

  #settling = 0;

  /**
   * The set nearest to a place on the screen.
   * @param {number} px
   * @param {number} py
   * @param {number} reach
   */
  #at(px, py, reach = REACH) {
    const view = this.#view ?? this.#whole();
    if (!view) return null;
    const x = view.x + (px - this.#plane.clientWidth / 2) / view.unit;
    const y = view.y - (py - this.#plane.clientHeight / 2) / view.unit;
    let nearest = (reach / view.unit) ** 2;
    let found = null;
    for (const {
      tile: { answer, batch },
    } of this.#shown) {
      for (let i = 0; i < batch.count; i++) {
        const [sx, sy] = answer.points[i];
        const off = (sx - x) ** 2 + (sy - y) ** 2;
        if (off >= nearest || this.#palette.alpha(answer.values?.[i] ?? null) < 1) continue;
        nearest = off;
        found = { id: answer.ids[i], x: sx, y: sy, value: answer.values?.[i] ?? null };
      }
    }
    return found;
  }

  /** The set nearest to the middle of what is shown. */
  #middle() {
    return this.#at(this.#plane.clientWidth / 2, this.#plane.clientHeight / 2, this.#plane.clientWidth);
  }

  /** @param {{id: string, x: number, y: number, value: unknown} | null} found */
  #point(found) {
    if (found?.id === this.#pointed?.id) return;
    this.#pointed = found;
    this.#marksCanvas.classList.toggle("near", found !== null);
    this.repaint();
    this.#tip.hidden = found === null;
    const view = this.#view ?? this.#whole();
    if (!found || !view) return;
    const field = this.#palette.field;
    const canvas = element("canvas", { hidden: true });
    fill(
      this.#tip,
      canvas,
      element("div", { class: "id" }, found.id),
      field && element("div", { class: "meta" }, `${field.name} ${plain(found.value)}`),
    );
    void this.actions.cloudOf(found.id).then((cloud) => {
      if (!cloud || this.#pointed?.id !== found.id) return;
      canvas.hidden = false;
      drawCloud(canvas, cloud, frameOf([cloud.points]), colour("set"));
      this.#placeTip(found, view);
    });
    this.#placeTip(found, view);
  }

  /**
   * @param {{x: number, y: number}} found
   * @param {View} view
   */
  #placeTip(found, view) {
    const [width, height] = [this.#plane.clientWidth, this.#plane.clientHeight];
    const [px, py] = [width / 2 + (found.x - view.x) * view.unit, height / 2 - (found.y - view.y) * view.unit];
    const [w, h] = [this.#tip.offsetWidth, this.#tip.offsetHeight];
    const left = px + 14 + w > width ? px - 14 - w : px + 14;
    const top = Math.max(4, Math.min(height - h - 4, py - h / 2));
    this.#tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }
}
