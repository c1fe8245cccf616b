/** Elements: made, found and filled without markup in strings, so that no text can become markup. */

/** @typedef {Node | string | number | null | undefined | false} Child */

/**
 * Make an element. Properties that begin with "on" are listeners; true sets an attribute without a value; null,
 * undefined and false leave it out.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, any>} [properties]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  fill(made, ...children);
  return made;
}

/**
 * Replace everything inside an element.
 * @param {Element} parent
 * @param {...(Child | Child[])} children
 */
export function fill(parent, ...children) {
  const nodes = children.flat().filter((child) => child !== null && child !== undefined && child !== false);
  parent.replaceChildren(...nodes.map((child) => (child instanceof Node ? child : String(child))));
}

/**
 * The element with this id, which index.html has.
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} type
 * @returns {T}
 */
export function byId(id, type) {
  const found = document.getElementById(id);
  if (!(found instanceof type)) throw new Error(`index.html has no ${type.name} with the id ${id}`);
  return found;
}

/**
 * An icon of index.html's symbols, hidden from screen readers.
 * @param {string} name
 */
export function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const use = document.createElementNS(space, "use");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/**
 * Small canvases are drawn by the processor: one on the graphics card may keep its picture when all of it is cleared
 * and nothing is drawn after that (Chromium 150).
 */
const ON_PROCESSOR = { willReadFrequently: true };

/**
 * Size a canvas for the screen's pixels.
 * @param {HTMLCanvasElement} canvas
 * @returns {{context: CanvasRenderingContext2D, width: number, height: number}} its size in CSS pixels
 */
export function prepare(canvas) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", ON_PROCESSOR));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/**
 * The value of a colour of style.css, which differs in light and dark.
 * @param {string} name without the two dashes
 */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
