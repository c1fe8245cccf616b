/** A query as the routes take it, as a picture shows it, and by its name. */

import { ask } from "./api.js";
import { drawnPoints } from "./drawing.js";

/** @import {Cloud, PointsAnswer, Points, Query} from "./types.d.ts" */
/** @import {Clouds} from "./clouds.js" */
/** @import {Usual} from "./drawing.js" */

/** @param {Query | null} query */
export function queryName(query) {
  if (!query) return "";
  if (query.kind === "stored") return query.id;
  return query.kind === "drawn" ? "drawing" : query.name || "pasted numbers";
}

/**
 * The id of a stored query, or the points of any other.
 * @param {Query} query
 * @param {Usual} usual
 * @param {boolean} fit whether a drawing is fitted to the usual place and size
 * @returns {{id: string | null, points: Points | null, weights: number[] | null}}
 */
export function querySet(query, usual, fit) {
  if (query.kind === "stored") return { id: query.id, points: null, weights: null };
  if (query.kind === "given") return { id: null, points: query.points, weights: query.weights };
  return { id: null, points: drawnPoints(query.strokes, usual, fit), weights: null };
}

/**
 * The picture of a query; null if it is no longer stored.
 * @param {string} index
 * @param {Query} query
 * @param {Clouds} clouds
 * @returns {Promise<Cloud | null>}
 */
export async function queryCloud(index, query, clouds) {
  if (query.kind === "stored") return (await clouds.get([query.id])).get(query.id) ?? null;
  if (query.kind === "drawn") return null; // the stage shows its strokes
  const { points, weights } = query;
  if (points[0].length <= 3) return { points, weights, size: points.length };
  /** @type {PointsAnswer} */
  const answer = await ask(`indexes/${encodeURIComponent(index)}/project`, {
    body: { sets: [points], limit: 500, components: 3 },
  });
  return { ...answer.sets[0], weights: null };
}
