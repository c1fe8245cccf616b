/** What each slice adds to a distance: bars along the directions in two dimensions, otherwise bars side by side. */

import { colour, prepare } from "./dom.js";

/** @import {Points} from "./types.d.ts" */

/**
 * @param {HTMLCanvasElement} canvas
 * @param {number[]} slices
 * @param {Points | null} directions
 */
export function drawSlices(canvas, slices, directions) {
  const { context, width, height } = prepare(canvas);
  const most = Math.max(...slices) || 1;
  context.strokeStyle = colour("accent");
  context.fillStyle = colour("accent");
  if (directions?.[0]?.length !== 2) {
    const sorted = [...slices].sort((a, b) => b - a);
    const step = width / sorted.length;
    sorted.forEach((value, i) => {
      const bar = Math.max(1, (height - 2) * (value / most));
      context.fillRect(i * step, height - bar, Math.max(0.6, step - (step > 3 ? 1 : 0)), bar);
    });
    return;
  }
  const [cx, cy, radius] = [width / 2, height / 2, Math.min(width, height) / 2 - 4];
  context.save();
  context.strokeStyle = colour("line");
  context.lineWidth = 1;
  context.beginPath();
  context.arc(cx, cy, radius, 0, 2 * Math.PI);
  context.moveTo(cx - radius, cy);
  context.lineTo(cx + radius, cy);
  context.moveTo(cx, cy - radius);
  context.lineTo(cx, cy + radius);
  context.stroke();
  context.restore();
  context.lineWidth = 2;
  context.lineCap = "round";
  context.beginPath();
  slices.forEach((value, i) => {
    const [dx, dy] = directions[i];
    const length = Math.hypot(dx, dy) || 1;
    const [x, y] = [(dx / length) * radius * (value / most), (dy / length) * radius * (value / most)];
    context.moveTo(cx - x, cy + y);
    context.lineTo(cx + x, cy - y);
  });
  context.stroke();
}
