/**
 * Round points on a canvas: by WebGL, and where a browser has none, by the 2-D canvas, which is slower. Batches of
 * points stay in the memory of the graphics card until they are dropped.
 */

const VERTEX = `
attribute vec2 place;
attribute vec4 ink;
uniform vec2 centre;
uniform vec2 scale;
uniform mediump float size;
varying vec4 colour;
void main() {
  gl_Position = vec4((place - centre) * scale, 0.0, 1.0);
  gl_PointSize = size;
  colour = ink;
}`;

const FRAGMENT = `
precision mediump float;
uniform mediump float size;
varying vec4 colour;
void main() {
  float off = length(gl_PointCoord - 0.5) * size;
  float cover = clamp(0.5 * size - off, 0.0, 1.0) * colour.a;
  gl_FragColor = vec4(colour.rgb * cover, cover);
}`;

/**
 * @typedef {object} View what part of the plane is shown
 * @property {number} x of the centre
 * @property {number} y of the centre
 * @property {number} unit CSS pixels for one unit of the plane
 */

/**
 * @typedef {object} Batch
 * @property {Float32Array} places x, y of each point, relative to an origin
 * @property {[number, number]} origin so that single precision suffices however far one zooms in
 * @property {Uint8Array} inks red, green, blue, alpha of each
 * @property {number} count how many of them are drawn: the first ones
 * @property {boolean} changed whether the inks have to be sent again
 */

/**
 * @typedef {object} Renderer
 * @property {(batches: Batch[], view: View, size: number) => void} draw
 * @property {(batch: Batch) => void} drop
 */

/**
 * @param {HTMLCanvasElement} canvas
 * @returns {Renderer}
 */
export function pointRenderer(canvas) {
  const options = { alpha: true, antialias: false, premultipliedAlpha: true, depth: false };
  const gl = /** @type {WebGLRenderingContext | null} */ (canvas.getContext("webgl", options));
  const renderer = gl && webgl(canvas, gl);
  if (renderer) return renderer;
  // A canvas that has given out a context of one kind never gives out another.
  const fresh = /** @type {HTMLCanvasElement} */ (canvas.cloneNode());
  canvas.replaceWith(fresh);
  return plain(fresh);
}

/**
 * @param {HTMLCanvasElement} canvas
 * @returns {{ratio: number, width: number, height: number}} size in CSS pixels
 */
function resized(canvas) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  return { ratio, width, height };
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {WebGLRenderingContext} gl
 * @returns {Renderer | null}
 */
function webgl(canvas, gl) {
  /** @type {WebGLProgram | null} */
  let program = null;
  /** @type {Map<Batch, {places: WebGLBuffer, inks: WebGLBuffer}>} */
  let buffers = new Map();
  const begin = () => {
    program = linked(gl);
    buffers = new Map();
  };
  canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
  canvas.addEventListener("webglcontextrestored", () => {
    begin();
    window.dispatchEvent(new Event("slosh-theme")); // everything is painted again
  });
  begin();
  if (!program) return null;

  /** @param {Batch} batch */
  const bufferOf = (batch) => {
    let held = buffers.get(batch);
    if (!held) {
      held = { places: gl.createBuffer(), inks: gl.createBuffer() };
      buffers.set(batch, held);
      gl.bindBuffer(gl.ARRAY_BUFFER, held.places);
      gl.bufferData(gl.ARRAY_BUFFER, batch.places, gl.STATIC_DRAW);
      batch.changed = true;
    }
    if (batch.changed) {
      gl.bindBuffer(gl.ARRAY_BUFFER, held.inks);
      gl.bufferData(gl.ARRAY_BUFFER, batch.inks, gl.STATIC_DRAW);
      batch.changed = false;
    }
    return held;
  };

  return {
    draw(batches, view, size) {
      const { ratio, width, height } = resized(canvas);
      if (!program || gl.isContextLost()) return;
      gl.viewport(0, 0, canvas.width, canvas.height);
      gl.clearColor(0, 0, 0, 0);
      gl.clear(gl.COLOR_BUFFER_BIT);
      gl.useProgram(program);
      gl.enable(gl.BLEND);
      gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
      gl.uniform2f(gl.getUniformLocation(program, "scale"), (2 * view.unit) / width, (2 * view.unit) / height);
      gl.uniform1f(gl.getUniformLocation(program, "size"), size * ratio);
      const centre = gl.getUniformLocation(program, "centre");
      const place = gl.getAttribLocation(program, "place");
      const ink = gl.getAttribLocation(program, "ink");
      gl.enableVertexAttribArray(place);
      gl.enableVertexAttribArray(ink);
      for (const batch of batches) {
        const held = bufferOf(batch);
        gl.uniform2f(centre, view.x - batch.origin[0], view.y - batch.origin[1]);
        gl.bindBuffer(gl.ARRAY_BUFFER, held.places);
        gl.vertexAttribPointer(place, 2, gl.FLOAT, false, 0, 0);
        gl.bindBuffer(gl.ARRAY_BUFFER, held.inks);
        gl.vertexAttribPointer(ink, 4, gl.UNSIGNED_BYTE, true, 0, 0);
        gl.drawArrays(gl.POINTS, 0, batch.count);
      }
    },
    drop(batch) {
      const held = buffers.get(batch);
      if (!held) return;
      gl.deleteBuffer(held.places);
      gl.deleteBuffer(held.inks);
      buffers.delete(batch);
    },
  };
}

/** @param {WebGLRenderingContext} gl */
function linked(gl) {
  const program = gl.createProgram();
  for (const [type, source] of /** @type {const} */ ([
    [gl.VERTEX_SHADER, VERTEX],
    [gl.FRAGMENT_SHADER, FRAGMENT],
  ])) {
    const shader = gl.createShader(type);
    if (!shader) return null;
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  return gl.getProgramParameter(program, gl.LINK_STATUS) ? program : null;
}

/**
 * @param {HTMLCanvasElement} canvas
 * @returns {Renderer}
 */
function plain(canvas) {
  const context = canvas.getContext("2d");
  return {
    draw(batches, view, size) {
      const { ratio, width, height } = resized(canvas);
      if (!context) return;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      for (const { places, inks, origin, count } of batches) {
        for (let i = 0; i < count; i++) {
          const x = width / 2 + (places[2 * i] + origin[0] - view.x) * view.unit;
          const y = height / 2 - (places[2 * i + 1] + origin[1] - view.y) * view.unit;
          if (x < -size || y < -size || x > width + size || y > height + size) continue;
          context.fillStyle = `rgb(${inks[4 * i]} ${inks[4 * i + 1]} ${inks[4 * i + 2]} / ${inks[4 * i + 3] / 255})`;
          context.fillRect(x - size / 2, y - size / 2, size, size);
        }
      }
    },
    drop() {},
  };
}
