/* Where the eye rested, drawn over an image: the points of a word, how far was seen around them, and the path of the eye
 * over all words; as captioner/figures/fixations.py draws them.
 *
 *   const layer = Fixations.layer();     an <svg> that fills the frame that it is put into, which has the image's shape
 *   Fixations.draw(layer, caption, geometry, grid, word)     draw a word, or nothing with null
 *   grid      {rows, columns} of the caption's attention
 *
 * Only captions of models that choose points have `points`, [T][glimpses][row and column in cells], and `extents`, how far
 * the patch of each scale reaches from a point in cells; for others nothing is drawn.
 */
"use strict";

const Fixations = (() => {
  // The parser knows the name of the namespace; a page that asks nothing of a network holds no address.
  const NAMESPACE = new DOMParser().parseFromString("<svg></svg>", "text/html").querySelector("svg").namespaceURI;
  const DOT = 0.012; // radius of a point, as a share of the image's longer side
  const OPACITIES = [1, 0.7, 0.45]; // of patches, the smallest first; of larger ones as of the last

  function shape(tag, className, values) {
    const element = document.createElementNS(NAMESPACE, tag);
    element.setAttribute("class", className);
    for (const [name, value] of Object.entries(values)) element.setAttribute(name, value);
    return element;
  }

  /* A bright line with a dark rim, which shows on any image. */
  function rimmed(tag, className, values) {
    return [shape(tag, "fixation-rim", values), shape(tag, className, values)];
  }

  /* The points of a word in pixels of the original image, [x, y] each. */
  function places(points, { box, flipped }, { rows, columns }) {
    const [left, top, right, bottom] = box;
    return points.map(([row, column]) => {
      const share = (column + 0.5) / columns; // of the width that the network saw
      const y = top + ((row + 0.5) / rows) * (bottom - top);
      return [left + (flipped ? 1 - share : share) * (right - left), y];
    });
  }

  function patches([x, y], extents, { box }, { rows, columns }) {
    const [across, down] = [(box[2] - box[0]) / columns, (box[3] - box[1]) / rows]; // pixels of a cell
    return extents.flatMap((extent, scale) =>
      rimmed("rect", "fixation-patch", {
        x: x - extent * across,
        y: y - extent * down,
        width: 2 * extent * across,
        height: 2 * extent * down,
        opacity: OPACITIES[Math.min(scale, OPACITIES.length - 1)],
      })
    );
  }

  function layer() {
    return shape("svg", "fixations", { "aria-hidden": "true", preserveAspectRatio: "none" });
  }

  function draw(layer, { points, extents }, geometry, grid, word) {
    layer.replaceChildren();
    if (!points || word === null) return;
    layer.setAttribute("viewBox", `0 0 ${geometry.width} ${geometry.height}`);
    const radius = DOT * Math.max(geometry.width, geometry.height);
    const all = points.map((each) => places(each, geometry, grid));
    const dot = ([cx, cy], className, r) => shape("circle", className, { cx, cy, r });
    layer.append(
      ...all[word].flatMap((place) => patches(place, extents, geometry, grid)),
      ...rimmed("polyline", "fixation-path", { points: all.flat().map((place) => place.join(",")).join(" ") }),
      ...all.flatMap((places, index) => (index === word ? [] : places.map((place) => dot(place, "fixation-dot", radius / 2)))),
      ...all[word].map((place) => dot(place, "fixation-dot fixation-now", radius))
    );
  }

  return Object.freeze({ layer, draw });
})();
