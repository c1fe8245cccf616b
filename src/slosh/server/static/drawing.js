/**
 * Drawings: strokes with coordinates 0 to 255 become the points of a set, in the units of the collection. Also the
 * usual place and size of the sets of a collection, to which a drawing is fitted.
 */

import { frameOf, median } from "./cloud.js";

/** @import {Cloud, Frame, Points} from "./types.d.ts" */

export const SIDE = 255;
const MOST_POINTS = 128;
const FINEST = 4;
/** Points of a drawing are no closer than this. */

/**
 * @typedef {object} Usual what the sets of a 2-D collection have in common
 * @property {Frame} frame the usual centre, and the usual larger side
 * @property {Frame} pad what the drawing area shows
 * @property {boolean} alike whether places and sizes hardly differ, so that a drawing is best fitted to them
 */

/**
 * @param {Cloud[]} clouds some sets of the collection
 * @returns {Usual}
 */
export function usualFrame(clouds) {
  const frames = clouds.filter((cloud) => cloud.points.length > 1).map((cloud) => frameOf([cloud.points]));
  if (!frames.length) {
    const frame = { centre: [0.5, 0.5], side: 1 };
    return { frame, pad: { centre: [0.5, 0.5], side: 1 }, alike: false };
  }
  const side = median(frames.map((frame) => frame.side)) || 1;
  const centre = [0, 1].map((i) => median(frames.map((frame) => frame.centre[i])));
  const off = median(frames.map((frame) => Math.hypot(frame.centre[0] - centre[0], frame.centre[1] - centre[1])));
  const spread = median(frames.map((frame) => Math.abs(Math.log(frame.side / side))));
  const alike = off < 0.2 * side && spread < 0.35;
  const all = frameOf(clouds.map((cloud) => cloud.points));
  const frame = { centre, side };
  return { frame, pad: alike ? { centre, side: side * 1.4 } : { centre: all.centre, side: all.side * 1.1 }, alike };
}

/**
 * Points along the strokes, evenly spaced, at most about 128, in coordinates of the pad.
 * @param {number[][]} strokes
 * @returns {Points}
 */
export function alongStrokes(strokes) {
  let length = 0;
  for (const stroke of strokes) {
    for (let i = 2; i < stroke.length; i += 2)
      length += Math.hypot(stroke[i] - stroke[i - 2], stroke[i + 1] - stroke[i - 1]);
  }
  const step = Math.max(FINEST, length / MOST_POINTS);
  /** @type {Points} */
  const points = [];
  for (const stroke of strokes) {
    points.push([stroke[0], stroke[1]]);
    let left = step;
    for (let i = 2; i < stroke.length; i += 2) {
      let [x, y] = [stroke[i - 2], stroke[i - 1]];
      let rest = Math.hypot(stroke[i] - x, stroke[i + 1] - y);
      while (rest >= left) {
        x += ((stroke[i] - x) * left) / rest;
        y += ((stroke[i + 1] - y) * left) / rest;
        rest -= left;
        left = step;
        points.push([x, y]);
      }
      left -= rest;
    }
  }
  return points;
}

/**
 * The set that a drawing stands for.
 * @param {number[][]} strokes
 * @param {Usual} usual
 * @param {boolean} fit move and scale it to the usual place and size
 * @returns {Points}
 */
export function drawnPoints(strokes, usual, fit) {
  const drawn = alongStrokes(strokes);
  const { pad } = usual;
  const unit = pad.side / SIDE;
  const points = drawn.map(([x, y]) => [pad.centre[0] + (x - SIDE / 2) * unit, pad.centre[1] - (y - SIDE / 2) * unit]);
  const own = frameOf([points]);
  if (!fit || own.side < 0.12 * pad.side) return points;
  const scale = usual.frame.side / own.side;
  return points.map((point) => point.map((x, i) => usual.frame.centre[i] + (x - own.centre[i]) * scale));
}
