/* Attention as pixels, in the browser: the same hills, contrast and styles as captioner/figures/masks.py.
 *
 * Attention.unpack(attention)   the grids of T words, from either form:
 *     nested arrays [T][rows][columns] of weights that sum to one for each word, as a record holds them, or packed
 *     {rows, columns, peaks: [T], cells: base64}, one byte a cell: weight = byte / 255 * the word's peak
 *   returns {rows, columns, words: [Float32Array of rows * columns, ...]}
 * Attention.spread(weights, rows, columns, geometry, width, height)   a word's weights over a raster of the image:
 *   {values: Float32Array of height * width, left, top, right, bottom}; outside that box nothing was seen
 * Attention.paint(pixels, weights, rows, columns, geometry, style, scale)   an ImageData of the whole image, under the
 *   word's attention in one of Attention.STYLES; scale is the number of raster pixels in a CSS pixel, for the hatching
 * Attention.place(weights, rows, columns, geometry)   where a word looked, in English: "the centre left"
 *
 * geometry is {width, height, box: [left, top, right, bottom], flipped, boxes}: the upright original's size in pixels,
 * the part of it that the network saw, and whether it saw it mirrored left to right. Where the regions are those of a
 * detector, boxes are theirs, one for each column of a single row; the one that a word looked at most is outlined.
 */
"use strict";

const Attention = (() => {
  const STYLES = ["mask", "heat"];
  const SMOOTHING = 0.8; // the standard deviation of a cell's hill, in cells
  const HATCH = 0.06 * 96; // CSS pixels from stripe to stripe
  const INFERNO = (
    "000004 040312 0b0724 150b37 210c4a 2f0a5b 3d0965 4a0c6b 57106e 64156e 71196e 7d1e6d 8a226a 972766 a32c61 b0315b " +
    "bc3754 c73e4c d24644 db503b e45a31 eb6628 f1731d f68013 f98e09 fb9d07 fcac11 fbbc21 f9cb35 f5db4c f2ea69 f3f68a " +
    "fcffa4"
  ).split(" ").map((hex) => [0, 2, 4].map((start) => parseInt(hex.slice(start, start + 2), 16)));

  function unpack(attention) {
    if (Array.isArray(attention)) {
      const rows = attention.length ? attention[0].length : 1;
      const columns = attention.length ? attention[0][0].length : 1;
      return { rows, columns, words: attention.map((grid) => Float32Array.from(grid.flat())) };
    }
    const { rows, columns, peaks } = attention;
    const bytes = Uint8Array.from(atob(attention.cells), (character) => character.charCodeAt(0));
    const cells = rows * columns;
    const words = peaks.map((peak, word) =>
      Float32Array.from(bytes.subarray(word * cells, (word + 1) * cells), (byte) => (byte / 255) * peak)
    );
    return { rows, columns, words };
  }

  /* Where the centres of `pixels` over `length` fall in a row of `cells` that runs from start to stop. */
  function cellsAt(pixels, length, start, stop, cells) {
    return Float32Array.from({ length: pixels }, (_, pixel) => {
      const centre = ((pixel + 0.5) * length) / pixels;
      return ((centre - start) / (stop - start)) * cells;
    });
  }

  /* The first place within the cells and the first after them; both 0 where there is none. */
  function within(places, cells) {
    const start = places.findIndex((place) => place >= 0 && place < cells);
    if (start < 0) return [0, 0];
    const stop = places.findIndex((place, index) => index > start && place >= cells);
    return [start, stop < 0 ? places.length : stop];
  }

  /* The share of each cell at each place, (places, cells); hills are mirrored at the grid's edges. */
  function hills(places, cells) {
    const shares = new Float32Array(places.length * cells);
    places.forEach((place, index) => {
      const inside = Math.min(Math.max(place, 0), cells);
      let total = 0;
      for (let cell = 0; cell < cells; cell++) {
        let share = 0;
        for (const centre of [-cell - 0.5, cell + 0.5, 2 * cells - cell - 0.5]) {
          share += Math.exp(-0.5 * ((inside - centre) / SMOOTHING) ** 2);
        }
        shares[index * cells + cell] = share;
        total += share;
      }
      for (let cell = 0; cell < cells; cell++) shares[index * cells + cell] /= total;
    });
    return shares;
  }

  function largest(weights) {
    return weights.reduce((best, weight, index) => (weight > weights[best] ? index : best), 0);
  }

  /* A box in raster pixels: those whose centres lie in it. */
  function pixelsWithin(box, geometry, width, height) {
    const [left, right] = [box[0], box[2]].map((edge) => Math.ceil((edge / geometry.width) * width - 0.5));
    const [top, bottom] = [box[1], box[3]].map((edge) => Math.ceil((edge / geometry.height) * height - 0.5));
    const clip = (edge, most) => Math.min(Math.max(edge, 0), most);
    return [clip(left, width), clip(top, height), clip(right, width), clip(bottom, height)];
  }

  /* A pixel has the highest weight of the boxes that it lies in. */
  function spreadBoxes(weights, geometry, width, height) {
    const values = new Float32Array(height * width);
    geometry.boxes.forEach((box, index) => {
      const [left, top, right, bottom] = pixelsWithin(box, geometry, width, height);
      for (let y = top; y < bottom; y++) {
        for (let at = y * width + left; at < y * width + right; at++) values[at] = Math.max(values[at], weights[index]);
      }
    });
    return { values, left: 0, top: 0, right: width, bottom: height };
  }

  /* A bright line with a dark rim around the box that a word looked at most. */
  function outline(image, weights, geometry, scale) {
    const { width, height, data } = image;
    const [left, top, right, bottom] = pixelsWithin(geometry.boxes[largest(weights)], geometry, width, height);
    const line = Math.max(Math.round(2 * scale), 1), rim = Math.max(Math.round(scale), 1);
    for (let y = Math.max(top - rim, 0); y < Math.min(bottom + rim, height); y++) {
      for (let x = Math.max(left - rim, 0); x < Math.min(right + rim, width); x++) {
        const inside = Math.min(x - left, right - 1 - x, y - top, bottom - 1 - y); // pixels to the nearest edge
        if (inside >= line + rim) continue;
        const colour = inside >= 0 && inside < line ? [255, 225, 77] : [26, 26, 26];
        colour.forEach((level, channel) => (data[4 * (y * width + x) + channel] = level));
      }
    }
  }

  function spread(weights, rows, columns, geometry, width, height) {
    if (geometry.boxes) return spreadBoxes(weights, geometry, width, height);
    const [boxLeft, boxTop, boxRight, boxBottom] = geometry.box;
    const across = cellsAt(width, geometry.width, boxLeft, boxRight, columns);
    const down = cellsAt(height, geometry.height, boxTop, boxBottom, rows);
    const [left, right] = within(across, columns);
    const [top, bottom] = within(down, rows);
    const acrossHills = hills(across, columns);
    const downHills = hills(down, rows);
    const strips = new Float32Array(rows * width); // each row of cells spread across
    for (let row = 0; row < rows; row++) {
      for (let x = left; x < right; x++) {
        let sum = 0;
        for (let column = 0; column < columns; column++) {
          const seen = geometry.flipped ? columns - 1 - column : column;
          sum += weights[row * columns + seen] * acrossHills[x * columns + column];
        }
        strips[row * width + x] = sum;
      }
    }
    const values = new Float32Array(height * width);
    for (let y = top; y < bottom; y++) {
      for (let row = 0; row < rows; row++) {
        const share = downHills[y * rows + row];
        if (share < 1e-7) continue; // far away: most rows of a fine grid
        for (let x = left; x < right; x++) values[y * width + x] += share * strips[row * width + x];
      }
    }
    return { values, left, top, right, bottom };
  }

  /* The lowest and highest value that was seen; both 0 where nothing was. */
  function range(spreading, width) {
    const { values, left, top, right, bottom } = spreading;
    let low = Infinity, high = -Infinity;
    for (let y = top; y < bottom; y++) {
      for (let x = left; x < right; x++) {
        const value = values[y * width + x];
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
    return low <= high ? [low, high] : [0, 0];
  }

  function blendMask(target, source, at, grey, level) {
    const share = level * Math.sqrt(level); // the power keeps what is half attended from competing
    const dim = 0.38 * grey;
    for (let channel = 0; channel < 3; channel++) {
      target[at + channel] = dim + (127.5 + 0.5 * source[at + channel] - dim) * share;
    }
  }

  function blendHeat(target, source, at, grey, level) {
    const place = level * (INFERNO.length - 1);
    const below = Math.min(Math.floor(place), INFERNO.length - 2);
    const share = 0.45 + 0.25 * level;
    for (let channel = 0; channel < 3; channel++) {
      const low = INFERNO[below][channel];
      const colour = low + (INFERNO[below + 1][channel] - low) * (place - below);
      target[at + channel] = (1 - share) * grey + share * colour;
    }
  }

  function paint(pixels, weights, rows, columns, geometry, style, scale) {
    const { width, height, data: source } = pixels;
    const spreading = spread(weights, rows, columns, geometry, width, height);
    const [low, high] = range(spreading, width);
    // Nearly uniform attention must look nearly flat instead of peaked.
    const contrast = 1 / Math.max(high - low, 1 / (rows * columns));
    const blend = style === "heat" ? blendHeat : blendMask;
    const painted = new ImageData(width, height);
    const target = painted.data;
    const period = Math.max(HATCH * scale, 4);
    for (let y = 0, at = 0; y < height; y++) {
      const rowSeen = y >= spreading.top && y < spreading.bottom;
      for (let x = 0; x < width; x++, at += 4) {
        const grey = 0.299 * source[at] + 0.587 * source[at + 1] + 0.114 * source[at + 2];
        target[at + 3] = 255;
        if (rowSeen && x >= spreading.left && x < spreading.right) {
          const level = (spreading.values[at / 4] - (low + high) / 2) * contrast + 0.5;
          blend(target, source, at, grey, Math.min(Math.max(level, 0), 1));
        } else {
          const pale = 193.8 + 0.2 * grey - ((x + y) % period < period / 5 ? 22.95 : 0);
          target[at] = target[at + 1] = target[at + 2] = pale;
        }
      }
    }
    if (geometry.boxes) outline(painted, weights, geometry, scale);
    return painted;
  }

  function place(weights, rows, columns, geometry) {
    if (geometry.boxes) {
      const best = largest(weights);
      if (weights[best] - Math.min(...weights) < 0.5 / weights.length) return "the whole image";
      const [left, top, right, bottom] = geometry.boxes[best];
      return named((left + right) / 2 / geometry.width, (top + bottom) / 2 / geometry.height);
    }
    const cells = rows * columns;
    const [left, top, right, bottom] = geometry.box;
    // Four points a cell find the top of the smoothed hills, wherever the cells lie in the image.
    const width = 4 * columns, height = 4 * rows;
    const seen = { width: 1, height: 1, box: [0, 0, 1, 1], flipped: geometry.flipped };
    const { values } = spread(weights, rows, columns, seen, width, height);
    let best = 0, low = Infinity;
    values.forEach((value, index) => {
      if (value > values[best]) best = index;
      if (value < low) low = value;
    });
    if (values[best] - low < 0.5 / cells) return "the whole image";
    const x = (left + (((best % width) + 0.5) / width) * (right - left)) / geometry.width;
    const y = (top + ((Math.floor(best / width) + 0.5) / height) * (bottom - top)) / geometry.height;
    return named(x, y);
  }

  /* A point of the image, from 0 to 1 across and down, in English. */
  function named(x, y) {
    const third = (share) => Math.min(Math.floor(3 * share), 2);
    const vertical = ["top", "centre", "bottom"][third(y)];
    const horizontal = ["left", "centre", "right"][third(x)];
    return vertical === horizontal ? "the centre" : `the ${vertical} ${horizontal}`;
  }

  return Object.freeze({ STYLES, unpack, spread, paint, place });
})();
