/* An image as the network takes it, by the arithmetic of Pillow's resize.
 *
 * Browsers scale images each in its own way, and a caption may hang on it. Fitting.fit does what
 * captioner/images/preprocessing.py does, from the same pixels to the same pixels; some versions of Pillow start tall
 * images with the other pass, which rounds a few pixels to the next level.
 *
 * Fitting.geometry(settings, width, height)   where the network's input lies on the upright image, for the viewer
 * Fitting.fit(image, settings)                Uint8Array of size * size * 3, row by row
 *   image     {width, height, jpeg, read(left, top, width, height)}: read returns RGBA bytes of a part of the upright
 *             image; it is called for some rows at a time, since a phone has no canvas as large as its photographs
 *   settings  the preprocessing of model.json
 */
"use strict";

const Fitting = (() => {
  const BITS = 22; // of a coefficient behind the point
  const GAP = 3; // an image is reduced by whole factors first, to no less than so many times the input
  const STRIP = 1 << 21; // pixels read at a time

  function bicubic(x) {
    const a = -0.5;
    const away = Math.abs(x);
    if (away < 1) return ((a + 2) * away - (a + 3)) * away * away + 1;
    return away < 2 ? (((away - 5) * away + 8) * away - 4) * a : 0;
  }

  const sinc = (x) => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));
  const FILTERS = {
    bilinear: { support: 1, weight: (x) => Math.max(0, 1 - Math.abs(x)) },
    bicubic: { support: 2, weight: bicubic },
    lanczos: { support: 3, weight: (x) => (x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0) },
  };

  function geometry(settings, width, height) {
    const flipped = settings.flip;
    if (settings.fit === "squash") return { width, height, box: [0, 0, width, height], flipped };
    const side = (Math.min(width, height) * settings.size) / (settings.resize ?? settings.size);
    const [left, top] = [(width - side) / 2, (height - side) / 2];
    return { width, height, box: [left, top, left + side, top + side], flipped };
  }

  /* Pixels in memory, as an image to read from. */
  function inMemory(width, height, data) {
    const read = (left, top, columns, rows) => {
      if (columns === width) return data.subarray(4 * top * width, 4 * (top + rows) * width);
      const part = new Uint8Array(4 * columns * rows);
      for (let row = 0; row < rows; row++) {
        const start = 4 * ((top + row) * width + left);
        part.set(data.subarray(start, start + 4 * columns), 4 * row * columns);
      }
      return part;
    };
    return { width, height, read };
  }

  /* The mean of blocks of across x down pixels within a box; those at its right and bottom may be smaller. */
  function reduce(image, across, down, [left, top, right, bottom]) {
    const width = Math.ceil((right - left) / across);
    const height = Math.ceil((bottom - top) / down);
    const reduced = new Uint8Array(4 * width * height);
    const rowsAtOnce = Math.max(1, Math.floor(STRIP / ((right - left) * down)));
    for (let first = 0; first < height; first += rowsAtOnce) {
      const start = top + first * down;
      const rows = Math.min(rowsAtOnce * down, bottom - start);
      const strip = image.read(left, start, right - left, rows);
      reduceStrip(strip, right - left, rows, across, down, reduced.subarray(4 * first * width), width);
    }
    return inMemory(width, height, reduced);
  }

  function reduceStrip(strip, columns, rows, across, down, reduced, width) {
    for (let y = 0, top = 0; top < rows; y++, top += down) {
      const tall = Math.min(down, rows - top);
      for (let x = 0, left = 0; left < columns; x++, left += across) {
        const wide = Math.min(across, columns - left);
        const count = tall * wide;
        // Pillow divides by a multiplication, which rounds down where a division would not.
        const multiplier = Math.floor(2 ** 32 / (256 * count));
        let red = count >> 1, green = red, blue = red;
        for (let row = 0; row < tall; row++) {
          let at = 4 * ((top + row) * columns + left);
          for (let column = 0; column < wide; column++, at += 4) {
            red += strip[at];
            green += strip[at + 1];
            blue += strip[at + 2];
          }
        }
        const target = 4 * (y * width + x);
        reduced[target] = Math.floor((red * multiplier) / 2 ** 24);
        reduced[target + 1] = Math.floor((green * multiplier) / 2 ** 24);
        reduced[target + 2] = Math.floor((blue * multiplier) / 2 ** 24);
      }
    }
  }

  /* What each of `size` output pixels takes of the input pixels between start and stop. */
  function coefficients(length, start, stop, size, filter) {
    const scale = Math.fround(stop - start) / size; // Pillow's edges are of single precision
    const stretch = Math.max(scale, 1);
    const support = filter.support * stretch;
    return Array.from({ length: size }, (_, place) => {
      const centre = start + (place + 0.5) * scale;
      const first = Math.max(Math.trunc(centre - support + 0.5), 0);
      const last = Math.min(Math.trunc(centre + support + 0.5), length);
      const weights = Array.from({ length: last - first }, (_, x) => filter.weight((x + first - centre + 0.5) / stretch));
      const total = weights.reduce((sum, weight) => sum + weight, 0);
      const rounded = weights.map((weight) => {
        const share = (total === 0 ? weight : weight / total) * 2 ** BITS;
        return Math.trunc(share + (share < 0 ? -0.5 : 0.5));
      });
      return { first, weights: Int32Array.from(rounded) };
    });
  }

  /* One pass along all lines; strides are the bytes from line to line and from pixel to pixel, before and after. */
  function pass(source, target, lines, taken, strides) {
    const half = 1 << (BITS - 1);
    const { line, pixel, targetLine, targetPixel } = strides;
    for (let place = 0; place < taken.length; place++) {
      const { first, weights } = taken[place];
      for (let each = 0; each < lines; each++) {
        let red = half, green = half, blue = half;
        let at = each * line + first * pixel;
        for (let tap = 0; tap < weights.length; tap++, at += pixel) {
          const weight = weights[tap];
          red += source[at] * weight;
          green += source[at + 1] * weight;
          blue += source[at + 2] * weight;
        }
        const to = each * targetLine + place * targetPixel;
        // What is behind the point is cut off; the array clamps.
        target[to] = red >> BITS;
        target[to + 1] = green >> BITS;
        target[to + 2] = blue >> BITS;
      }
    }
  }

  function resample(image, size, [left, top, right, bottom], filter) {
    const { width, height } = image;
    const source = image.read(0, 0, width, height);
    const across = coefficients(width, left, right, size, filter);
    const narrow = new Uint8ClampedArray(3 * size * height);
    pass(source, narrow, height, across, { line: 4 * width, pixel: 4, targetLine: 3 * size, targetPixel: 3 });
    const down = coefficients(height, top, bottom, size, filter);
    const fitted = new Uint8ClampedArray(3 * size * size);
    pass(narrow, fitted, size, down, { line: 3, pixel: 3 * size, targetLine: 3, targetPixel: 3 * size });
    return fitted;
  }

  /* How much smaller a JPEG is decoded that is much larger than the input: 1, 2, 4 or 8 times. */
  function draft(image, settings) {
    const least = 2 * (settings.resize ?? settings.size);
    const most = Math.min(Math.floor(image.width / least), Math.floor(image.height / least));
    return image.jpeg ? [8, 4, 2].find((scale) => most >= scale) ?? 1 : 1;
  }

  /* The part of the image that the filter reads for a box, in whole pixels. */
  function safeBox(image, size, [left, top, right, bottom], filter) {
    const reachX = ((filter.support - 0.5) * (right - left)) / size;
    const reachY = ((filter.support - 0.5) * (bottom - top)) / size;
    return [
      Math.max(0, Math.trunc(left - reachX)),
      Math.max(0, Math.trunc(top - reachY)),
      Math.min(image.width, Math.ceil(right + reachX)),
      Math.min(image.height, Math.ceil(bottom + reachY)),
    ];
  }

  function fit(image, settings) {
    const { size } = settings;
    const filter = FILTERS[settings.interpolation];
    const scale = draft(image, settings);
    let box = geometry(settings, image.width, image.height).box.map((edge) => edge / scale);
    // The JPEG decoder's own reduction is not to be had here; blocks come near it, and the final resize hides the rest.
    if (scale > 1) image = reduce(image, scale, scale, [0, 0, image.width, image.height]);
    box = [box[0], box[1], Math.min(box[2], image.width), Math.min(box[3], image.height)];
    const across = Math.max(1, Math.trunc((box[2] - box[0]) / size / GAP));
    const down = Math.max(1, Math.trunc((box[3] - box[1]) / size / GAP));
    if (across > 1 || down > 1) {
      const part = safeBox(image, size, box, filter);
      image = reduce(image, across, down, part);
      box = box.map((edge, side) => (edge - part[side % 2]) / (side % 2 ? down : across));
    }
    const fitted = resample(image, size, box.map(Math.fround), filter);
    return settings.flip ? mirrored(fitted, size) : new Uint8Array(fitted.buffer);
  }

  function mirrored(pixels, size) {
    const turned = new Uint8Array(pixels.length);
    for (let at = 0; at < size * size; at++) {
      const from = at - (at % size) + (size - 1 - (at % size));
      turned.set(pixels.subarray(3 * from, 3 * from + 3), 3 * at);
    }
    return turned;
  }

  return Object.freeze({ geometry, fit });
})();
