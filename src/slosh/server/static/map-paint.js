/** What is painted on the map beside its points: densities, the query and its neighbours. */

import { colour } from "./dom.js";
import { rgb } from "./palette.js";

/** @import {Shown} from "./tiles.js" */

/**
 * @typedef {object} Marks
 * @property {[number, number] | null} query
 * @property {{id: string, place: [number, number]}[]} hits nearest first
 */

/**
 * @typedef {object} QueryMark
 * @property {[number, number]} place on the screen
 * @property {[number, number]} direction to the query, if it is beyond what is shown
 * @property {boolean} beyond
 */

const EDGE = 16;
/** The mark of a query that is not in view is so many pixels from the edge. */

/**
 * The density of a tile as a small picture: as dark as the logarithm of the count.
 * @param {number[][]} density rows from the lowest
 * @param {number} most sets in a cell, for the darkest; the same for all tiles of a level, or their edges would show
 */
export function shadeOf(density, most) {
  const rows = density.length;
  const columns = density[0]?.length ?? 0;
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  if (!context || !columns) return null;
  const picture = context.createImageData(columns, rows);
  const ink = rgb(colour("dots"));
  density.forEach((row, y) => {
    row.forEach((value, x) => {
      const strength = value > 0 ? 20 + 110 * Math.min(1, Math.log1p(value) / Math.log1p(most)) : 0;
      picture.data.set([...ink, strength], 4 * ((rows - 1 - y) * columns + x));
    });
  });
  context.putImageData(picture, 0, 0);
  return canvas;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Shown[]} shown
 * @param {(x: number, y: number) => [number, number]} place
 */
export function paintShades(context, shown, place) {
  context.imageSmoothingEnabled = true;
  for (const { tile, part } of shown) {
    const { shade } = tile;
    if (!shade || tile.batch.count === tile.answer.count) continue;
    const [left, low, right, high] = tile.answer.bounds;
    const [x0, y0] = place(left + part[0] * (right - left), low + part[3] * (high - low));
    const [x1, y1] = place(left + part[2] * (right - left), low + part[1] * (high - low));
    const [w, h] = [shade.width, shade.height];
    const from = [part[0] * w, (1 - part[3]) * h, (part[2] - part[0]) * w, (part[3] - part[1]) * h];
    context.drawImage(shade, from[0], from[1], from[2], from[3], x0, y0, x1 - x0, y1 - y0);
  }
}

/**
 * Where the query is marked: in its place, or, if that is not in view or under the buttons, at the edge in its
 * direction from the middle.
 * @param {[number, number]} at
 * @param {[number, number]} size of the map
 * @param {DOMRect} taken by the buttons, at the upper right
 * @returns {QueryMark}
 */
export function edgePlace(at, [width, height], taken) {
  const [cx, cy] = [width / 2, height / 2];
  const [dx, dy] = [at[0] - cx, at[1] - cy];
  const inside = (/** @type {number} */ right) =>
    at[0] >= EDGE && at[0] <= right && at[1] >= EDGE && at[1] <= height - EDGE;
  /** @param {number} right @returns {[number, number]} */
  const edge = (right) => {
    const across = dx > 0 ? (right - cx) / dx : dx < 0 ? (EDGE - cx) / dx : Infinity;
    const along = dy > 0 ? (height - EDGE - cy) / dy : dy < 0 ? (EDGE - cy) / dy : Infinity;
    const t = Math.min(across, along);
    return [cx + t * dx, cy + t * dy];
  };
  const covered = (/** @type {[number, number]} */ [x, y]) =>
    x > taken.left && x < taken.right && y > taken.top && y < taken.bottom;
  if (inside(width - EDGE) && !covered(at)) return { place: at, direction: [0, 0], beyond: false };
  const length = Math.hypot(dx, dy) || 1;
  const first = edge(width - EDGE);
  const place = covered(first) || inside(width - EDGE) ? edge(taken.left) : first;
  return { place, direction: [dx / length, dy / length], beyond: true };
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Marks} marks
 * @param {QueryMark | null} mark of the query
 * @param {{x: number, y: number} | null} pointed the set that is pointed at
 * @param {(x: number, y: number) => [number, number]} place
 */
export function paintMarks(context, { hits }, mark, pointed, place) {
  const [accent, paper] = [colour("accent"), colour("paper")];
  const from = mark?.place;
  if (from) {
    context.lineWidth = 1;
    context.strokeStyle = accent;
    context.globalAlpha = 0.35;
    context.beginPath();
    for (const hit of hits) {
      context.moveTo(...from);
      context.lineTo(...place(...hit.place));
    }
    context.stroke();
    context.globalAlpha = 1;
  }
  for (const hit of hits) ring(context, ...place(...hit.place), 6, accent, paper);
  if (from) {
    context.fillStyle = accent;
    context.strokeStyle = paper;
    context.lineWidth = 2.5;
    context.beginPath();
    if (mark.beyond) arrow(context, from, mark.direction);
    else context.arc(from[0], from[1], 8, 0, 2 * Math.PI);
    context.stroke();
    context.fill();
  }
  if (pointed) ring(context, ...place(pointed.x, pointed.y), 7, colour("ink"), paper);
}

/**
 * The path of an arrow head.
 * @param {CanvasRenderingContext2D} context
 * @param {[number, number]} place
 * @param {[number, number]} direction
 */
function arrow(context, [x, y], [dx, dy]) {
  context.moveTo(x + 11 * dx, y + 11 * dy);
  context.lineTo(x - 7 * dx - 9 * dy, y - 7 * dy + 9 * dx);
  context.lineTo(x - 3 * dx, y - 3 * dy);
  context.lineTo(x - 7 * dx + 9 * dy, y - 7 * dy - 9 * dx);
  context.closePath();
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} x
 * @param {number} y
 * @param {number} radius
 * @param {string} ink
 * @param {string} paper
 */
function ring(context, x, y, radius, ink, paper) {
  const strokes = /** @type {const} */ ([
    [4, paper],
    [2, ink],
  ]);
  for (const [width, stroke] of strokes) {
    context.lineWidth = width;
    context.strokeStyle = stroke;
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.stroke();
  }
}
