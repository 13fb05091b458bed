/* Large photographs as smaller copies to show: a page that decodes 24 megapixels for each picture stands still.
 *
 * Shrinking.copy(blob)   a promise of a Blob of the same picture, upright, of at most Shrinking.MOST pixels a side; the
 *   very blob where it is small enough, or of a format that this browser cannot open
 *
 * createImageBitmap decodes beside the page's own thread, and what is sent or captioned is the original.
 */
"use strict";

const Shrinking = (() => {
  const MOST = 2048; // pixels of the longer side, enough for a dense screen

  async function copy(blob) {
    let bitmap;
    try {
      bitmap = await createImageBitmap(blob);
    } catch {
      return blob;
    }
    const scale = MOST / Math.max(bitmap.width, bitmap.height);
    if (scale >= 1) {
      bitmap.close();
      return blob;
    }
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(Math.round(bitmap.width * scale), 1);
    canvas.height = Math.max(Math.round(bitmap.height * scale), 1);
    const context = canvas.getContext("2d", { alpha: false });
    context.fillStyle = "white"; // what transparent pixels lie on
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.imageSmoothingQuality = "medium";
    context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    bitmap.close();
    return new Promise((resolve) => canvas.toBlob((small) => resolve(small ?? blob), "image/jpeg", 0.9));
  }

  return Object.freeze({ MOST, copy });
})();
