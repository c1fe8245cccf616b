/**
 * Pictures of sets: points in one, two or three dimensions on a canvas. All pictures share one camera, so that clouds
 * turn together; they share a frame where places can be compared, so that sizes can be compared by eye.
 */

import { prepare } from "./dom.js";

/** @import {Cloud, Frame, Points} from "./types.d.ts" */

const LAYERS = 4;
/** Points of a 3-D cloud are drawn in so many layers, from far and pale to near and strong. */
const STRAY = 2.5;
/** A point of a 3-D cloud that is so many times as far as nearly all others is left out, or these would be a speck. */

/** The direction from which all clouds are seen. Fires "turn". */
export class Camera extends EventTarget {
  yaw = -0.6;
  pitch = 0.42;

  /**
   * @param {number} yaw
   * @param {number} pitch
   */
  turn(yaw, pitch) {
    this.yaw += yaw;
    this.pitch = Math.min(Math.PI / 2, Math.max(-Math.PI / 2, this.pitch + pitch));
    this.dispatchEvent(new Event("turn"));
  }

  /**
   * Coordinates on the screen, in units of the data, y upwards, and the depth (larger is nearer).
   * @param {number[]} point relative to the centre
   * @returns {[number, number, number]}
   */
  project(point) {
    if (point.length < 3) return [point[0], point[1] ?? 0, 0];
    const [x, y, z] = point;
    const cosYaw = Math.cos(this.yaw);
    const sinYaw = Math.sin(this.yaw);
    const cosPitch = Math.cos(this.pitch);
    const sinPitch = Math.sin(this.pitch);
    const across = x * cosYaw - y * sinYaw;
    const away = x * sinYaw + y * cosYaw;
    return [across, z * cosPitch + away * sinPitch, z * sinPitch - away * cosPitch];
  }
}

export const camera = new Camera();

/**
 * Let a drag, a finger or the arrow keys on an element turn the camera.
 * @param {HTMLElement} target
 * @param {() => boolean} active whether what it shows has three dimensions
 */
export function turnable(target, active) {
  /** @type {[number, number] | null} */
  let last = null;
  let moved = false;
  target.addEventListener("pointerdown", (event) => {
    if (!active() || event.button !== 0) return;
    last = [event.clientX, event.clientY];
    moved = false;
  });
  target.addEventListener("pointermove", (event) => {
    if (!last || !event.buttons) return;
    const [dx, dy] = [event.clientX - last[0], event.clientY - last[1]];
    if (!moved && Math.hypot(dx, dy) < 4) return;
    if (!moved && event.isTrusted) target.setPointerCapture(event.pointerId);
    moved = true;
    last = [event.clientX, event.clientY];
    camera.turn(dx * 0.01, dy * 0.01);
  });
  const end = () => {
    last = null;
  };
  target.addEventListener("pointerup", end);
  target.addEventListener("pointercancel", end);
  // A drag is not a click on what was dragged.
  target.addEventListener(
    "click",
    (event) => {
      if (!moved) return;
      event.preventDefault();
      event.stopImmediatePropagation();
      moved = false;
    },
    { capture: true },
  );
}

/**
 * Turn the camera by the arrow keys.
 * @param {KeyboardEvent} event
 * @returns {boolean} whether it was such a key
 */
export function turnByKey(event) {
  /** @type {Record<string, [number, number]>} */
  const turns = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, -0.15], ArrowDown: [0, 0.15] };
  const turn = turns[event.key];
  if (!turn) return false;
  camera.turn(...turn);
  event.preventDefault();
  return true;
}

/**
 * The smallest frame that holds all of these points, however 3-D ones are turned; of these, without strays.
 * @param {Points[]} sets
 * @returns {Frame}
 */
export function frameOf(sets) {
  const dim = Math.max(1, ...sets.map((points) => points[0]?.length ?? 0));
  const points = dim > 2 ? withoutStrays(sets.flat(), dim) : sets.flat();
  const low = new Array(dim).fill(Infinity);
  const high = new Array(dim).fill(-Infinity);
  for (const point of points) {
    for (let i = 0; i < point.length; i++) {
      low[i] = Math.min(low[i], point[i]);
      high[i] = Math.max(high[i], point[i]);
    }
  }
  const centre = low.map((x, i) => (Number.isFinite(x) ? (x + high[i]) / 2 : 0));
  const sides = low.map((x, i) => (Number.isFinite(x) ? high[i] - x : 0));
  const side = dim > 2 ? 2 * farthest(points, centre) : Math.max(...sides);
  return { centre, side: side > 0 ? side : 1 };
}

/**
 * @param {Points} points
 * @param {number[]} centre
 */
function farthest(points, centre) {
  return points.reduce((most, point) => Math.max(most, Math.hypot(...point.map((x, i) => x - centre[i]))), 0);
}

/**
 * @param {Points} points
 * @param {number} dim
 */
function withoutStrays(points, dim) {
  const middle = Array.from({ length: dim }, (_, i) => median(points.map((point) => point[i])));
  const off = points.map((point) => Math.hypot(...point.map((x, i) => x - middle[i])));
  const usual = [...off].sort((a, b) => a - b)[Math.floor(0.98 * (off.length - 1))] ?? 0;
  return usual > 0 ? points.filter((_, i) => off[i] <= STRAY * usual) : points;
}

/**
 * Whether a frame holds all of these points.
 * @param {Frame} frame
 * @param {Points} points
 */
export function holds({ centre, side }, points) {
  return points.every(
    (point) => point.length === centre.length && point.every((x, i) => Math.abs(x - centre[i]) <= side / 2),
  );
}

/**
 * Map points of a frame to a square of a canvas.
 * @param {Frame} frame
 * @param {number} width
 * @param {number} height
 * @param {number} margin
 * @returns {(point: number[]) => [number, number, number]} x, y on the canvas, and the depth from -1 to 1
 */
export function projection(frame, width, height, margin) {
  const { centre, side } = frame;
  const scale = Math.max(1, Math.min(width, height) - 2 * margin) / side;
  const relative = /** @type {number[]} */ ([]);
  return (point) => {
    relative.length = point.length;
    for (let i = 0; i < point.length; i++) relative[i] = point[i] - (centre[i] ?? 0);
    const [x, y, depth] = camera.project(relative);
    return [width / 2 + x * scale, height / 2 - y * scale, Math.max(-1, Math.min(1, (2 * depth) / side))];
  };
}

/** @param {number[]} values */
export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? 0;
}

/**
 * The radius of the points of sets that are seen beside each other, as a part of the size of a picture: many points
 * are small ones. It is the same for all of these sets, so that dots can be compared; it suits the fuller ones, since
 * large dots would hide each other there.
 * @param {Cloud[]} clouds
 * @param {Frame | null} frame that the pictures share; null if each set has its own
 */
export function dotSize(clouds, frame) {
  const sizes = clouds.map(({ points, weights }) => {
    const n = Math.max(1, points.length);
    const flat = (points[0]?.length ?? 2) < 3;
    const part = frame ? Math.min(1, Math.max(0.3, frameOf([points]).side / frame.side)) : 1;
    const loose = flat && !weights && n > 12 ? 0.8 : 1;
    return part * loose * Math.min(1 / 18, (flat ? 0.36 : 0.26) / Math.sqrt(n));
  });
  return sizes.sort((a, b) => a - b)[Math.floor(sizes.length / 4)] ?? 0;
}

/**
 * The radius of each point: areas are as weights.
 * @param {Cloud} cloud
 * @param {number} size of the picture
 * @param {number} dot the largest radius, as a part of it
 * @returns {(i: number) => number}
 */
export function radiusOf({ weights }, size, dot) {
  const radius = Math.max(0.75, dot * size);
  if (!weights) return () => radius;
  const most = Math.max(...weights) || 1;
  return (i) => radius * Math.sqrt(Math.max(0, weights[i]) / most);
}

/**
 * Draw a set on a canvas, which is cleared. No point is cut at the edge.
 * @param {HTMLCanvasElement} canvas
 * @param {Cloud} cloud
 * @param {Frame} frame
 * @param {string} ink
 * @param {number} [dot] the radius of a point, as a part of the size of the picture
 */
export function drawCloud(canvas, cloud, frame, ink, dot = dotSize([cloud], frame)) {
  const { context, width, height } = prepare(canvas);
  if (!width) return;
  const size = Math.min(width, height);
  const deep = (cloud.points[0]?.length ?? 0) > 2; // turned, it seldom fills its frame
  const place = projection(frame, width, height, size * (deep ? 0.01 + dot : 0.1));
  const radius = radiusOf(cloud, size, dot);
  const shown = cloud.points.map((point, i) => {
    const [x, y] = place(point);
    const r = radius(i);
    return x >= r && y >= r && x <= width - r && y <= height - r ? r : 0;
  });
  drawPoints(context, cloud, place, (i) => shown[i], ink);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Cloud} cloud
 * @param {(point: number[]) => [number, number, number]} place
 * @param {(i: number) => number} radius
 * @param {string} ink
 * @param {number} strength
 */
export function drawPoints(context, cloud, place, radius, ink, strength = 1) {
  const { points } = cloud;
  const deep = (points[0]?.length ?? 0) > 2;
  /** @type {[number, number, number][][]} */
  const layers = Array.from({ length: deep ? LAYERS : 1 }, () => []);
  for (let i = 0; i < points.length; i++) {
    const [x, y, depth] = place(points[i]);
    const layer = deep ? Math.min(LAYERS - 1, Math.floor(((depth + 1) / 2) * LAYERS)) : 0;
    layers[layer].push([x, y, radius(i)]);
  }
  context.fillStyle = ink;
  layers.forEach((layer, i) => {
    context.globalAlpha = strength * (deep ? 0.3 + (0.65 * (i + 0.5)) / LAYERS : 0.88);
    context.beginPath();
    for (const [x, y, r] of layer) {
      if (r <= 0) continue;
      if (r < 1.6) {
        context.rect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8);
      } else {
        context.moveTo(x + r, y);
        context.arc(x, y, r, 0, 2 * Math.PI);
      }
    }
    context.fill();
  });
  context.globalAlpha = 1;
}
