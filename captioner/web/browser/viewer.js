/* A caption on its image: words to move through, and the attention of the current one drawn over the image.
 *
 * Load attention.js and fixations.js before this file, and viewer.css beside it; they work from file:// and under a
 * Content-Security-Policy without 'unsafe-inline'. All text is set as text, never as HTML.
 *
 *   const viewer = new CaptionViewer(element, {style: "mask", onWord: (index) => ..., onStyle: (name) => ...});
 *   await viewer.show({image, alt, caption, geometry, word});
 *
 *   image     a URL (data: and blob: too, which must stay valid while it is shown) or an <img>, upright, at any size
 *   alt       what a screen reader says of the plain image (default: the caption)
 *   caption   {words: [T], probabilities: [T], beta: [T], attention}, as a record of captions.jsonl holds it;
 *             attention may be packed too, see attention.js; several captions of one image: call show again; points and extents
 *             where the model chose where to look, see fixations.js
 *   geometry  {width, height, box, flipped} of the original image, as a record holds it
 *   word      the word to start with, 0 to T - 1 (default null: the plain image)
 *
 * show resolves once the image is on the page, and rejects where it cannot be decoded. Then:
 *   viewer.select(index)     a word, or null for the plain image; onWord is told of every change, also by the reader
 *   viewer.word, viewer.style, viewer.playing     what is current
 *   viewer.setStyle(name)    one of Attention.STYLES
 *   viewer.play(), viewer.stop()     through the words
 *   viewer.handleKey(event)  move by a keydown event that happened elsewhere on the page; true where it was used:
 *                            left, right, Home and End move through the words, Escape returns to the plain image
 *   viewer.focus(options)    the keyboard to the current word, with the options of HTMLElement.focus
 *   viewer.clear(), viewer.destroy()
 *   CaptionViewer.describe(caption, geometry, index)     "Word 3 of 9: dog, probability 0.83, gate 0.62, looks at ..."
 *   CaptionViewer.PROBABILITY, GATE, PER_WORD     what the numbers mean, in a sentence each, to be shown on hover
 * The image is at most as high as the custom property --viewer-height (default 70vh) and as wide as the element.
 */
"use strict";

const CaptionViewer = (() => {
  const STEP = 900; // milliseconds a word is shown while playing
  const FADE = 160;
  const MAX_PIXELS = 1_200_000; // of the canvas; a larger display scales it
  const MAX_KEPT = 24; // words whose picture is kept
  const STYLE_NAMES = { mask: "Spotlight", heat: "Heat map" };
  const PROBABILITY = "How sure the model was of this word, from 0 to 1: 1 is certain.";
  const GATE = "The gate: how much of the image went into this word, from 0 to 1. Words like “a” and “of” need little.";
  const PER_WORD = "How sure the model was of a word on average, from 0 to 1: 1 is certain.";
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

  function make(tag, properties, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  }

  function attributes(element, values) {
    for (const [name, value] of Object.entries(values)) element.setAttribute(name, value);
    return element;
  }

  function number(value) {
    return value > 0 && value < 0.005 ? "<0.01" : value.toFixed(2);
  }

  /* What a word is and where it looks: parts of a sentence, those that need it with an explanation. */
  function sentence({ words, probabilities, beta, attention }, geometry, index) {
    const grids = Attention.unpack(attention);
    const place = Attention.place(grids.words[index], grids.rows, grids.columns, geometry);
    return [
      [`Word ${index + 1} of ${words.length}: ${words[index]}, `],
      ["probability", PROBABILITY],
      [` ${number(probabilities[index])}, `],
      ["gate", GATE],
      [` ${number(beta[index])}, looks at ${place}`],
    ];
  }

  class CaptionViewer {
    static PROBABILITY = PROBABILITY;
    static GATE = GATE;
    static PER_WORD = PER_WORD;

    constructor(element, { style = "mask", onWord = () => {}, onStyle = () => {} } = {}) {
      this.element = element;
      this.onWord = onWord;
      this.onStyle = onStyle;
      this.style = style;
      this.word = null;
      this.hovered = null;
      this.caption = null;
      this.timer = 0;
      this.frameRequest = 0;
      this.kept = new Map(); // of words: their picture at the current size and style
      this.build();
      this.observer = new ResizeObserver(() => this.resize());
      try {
        this.observer.observe(this.frame, { box: "device-pixel-content-box" }); // tells of zooming too
      } catch {
        this.observer.observe(this.frame);
      }
    }

    build() {
      this.image = make("img", { className: "viewer-image", decoding: "async", draggable: false });
      this.canvas = attributes(make("canvas", { className: "viewer-canvas" }), { "aria-hidden": "true" });
      this.fixations = Fixations.layer();
      this.frame = make("div", { className: "viewer-frame" }, this.image, this.canvas, this.fixations);
      this.words = attributes(make("ol", { className: "viewer-words", dir: "auto" }), {
        role: "list", // some browsers take it from a list without bullets
        "aria-label": "Words of the caption; arrow keys move through them",
      });
      this.status = attributes(make("p", { className: "viewer-status" }), { "aria-live": "polite" });
      this.playButton = make("button", { type: "button", className: "viewer-play", onclick: () => this.toggle() });
      this.styles = make("div", { className: "viewer-styles" });
      attributes(this.styles, { role: "group", "aria-label": "Attention as" });
      for (const name of Attention.STYLES) {
        const button = make("button", { type: "button", onclick: () => this.setStyle(name) }, STYLE_NAMES[name]);
        button.dataset.style = name;
        this.styles.append(button);
      }
      const controls = make("div", { className: "viewer-controls" }, this.playButton, this.styles, this.status);
      this.root = make("div", { className: "viewer" }, this.frame, this.words, controls);
      this.element.append(this.root);
      this.words.addEventListener("keydown", (event) => this.handleKey(event));
      this.words.addEventListener("pointerleave", () => this.hover(null));
      this.frame.addEventListener("click", () => this.select(null));
      this.setStyle(this.style);
      this.showPlaying();
    }

    async show({ image, alt, caption, geometry, word = null }) {
      this.stop();
      const url = typeof image === "string" ? image : image.currentSrc || image.src;
      this.kept.clear();
      this.pixels = null;
      this.word = this.hovered = null;
      this.caption = caption;
      this.geometry = geometry;
      this.attention = Attention.unpack(caption.attention);
      this.frame.style.setProperty("--viewer-ratio", String(geometry.width / geometry.height));
      this.image.alt = alt ?? caption.words.join(" ");
      this.canvas.hidden = true; // of the image before
      this.fillWords();
      this.root.classList.add("viewer-shown");
      this.root.classList.remove("viewer-ready");
      if (this.image.src !== url) this.image.src = url;
      this.select(word);
      await this.image.decode();
      if (this.caption === caption) this.resize();
    }

    fillWords() {
      const { words, probabilities, beta } = this.caption;
      this.buttons = words.map((word, index) => {
        const bar = make("span", { className: "viewer-bar" });
        bar.style.setProperty("--viewer-share", probabilities[index]);
        const gate = make("span", { className: "viewer-gate" });
        gate.style.setProperty("--viewer-share", beta[index]);
        const meters = attributes(make("span", { className: "viewer-meters" }, bar, gate), { "aria-hidden": "true" });
        const chance = attributes(make("span", { className: "viewer-number" }, number(probabilities[index])), {
          "aria-hidden": "true",
        });
        const text = make("span", { className: "viewer-text" }, word);
        const button = make("button", { type: "button", className: "viewer-word" }, text, meters, chance);
        attributes(button, { "aria-label": `${word}, probability ${number(probabilities[index])}` });
        button.addEventListener("click", () => this.choose(index));
        button.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && this.hover(index));
        return button;
      });
      this.words.replaceChildren(...this.buttons.map((button) => make("li", {}, button)));
    }

    choose(index) {
      this.stop();
      // A second tap on a word returns to the plain image.
      this.select(this.word === index ? null : index);
      this.hovered = null;
      this.update();
    }

    hover(index) {
      if (this.playing || this.hovered === index) return;
      this.hovered = index;
      this.update();
    }

    select(index) {
      if (!this.caption) return;
      const last = this.caption.words.length - 1;
      const word = index === null || last < 0 ? null : Math.min(Math.max(index, 0), last);
      const changed = word !== this.word;
      this.word = word;
      this.hovered = null;
      this.update();
      if (changed) this.onWord(word);
    }

    get current() {
      return this.hovered ?? this.word;
    }

    get playing() {
      return this.timer !== 0;
    }

    /* Make all that is shown agree with the current word. */
    update() {
      this.buttons.forEach((button, index) => {
        button.classList.toggle("viewer-lit", index === this.current);
        button.tabIndex = index === (this.word ?? 0) ? 0 : -1;
        if (index === this.word) button.setAttribute("aria-current", "true");
        else button.removeAttribute("aria-current");
      });
      const parts = this.describe();
      if (this.status.textContent !== parts.map(([text]) => text).join("")) {
        const nodes = parts.map(([text, title]) => (title ? make("abbr", { title }, text) : text));
        this.status.replaceChildren(make("span", {}, ...nodes));
      }
      Fixations.draw(this.fixations, this.caption, this.geometry, this.attention, this.current);
      this.draw();
    }

    /* What a word is and where it looks, in one sentence. */
    static describe(caption, geometry, index) {
      return sentence(caption, geometry, index).map(([text]) => text).join("");
    }

    describe() {
      if (this.current !== null) return sentence(this.caption, this.geometry, this.current);
      const empty = !this.caption.words.length;
      return [[empty ? "The caption is empty." : "Choose a word to see where the model looked."]];
    }

    handleKey(event) {
      if (!this.caption || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return false;
      const last = this.caption.words.length - 1;
      const forward = getComputedStyle(this.words).direction === "rtl" ? "ArrowLeft" : "ArrowRight";
      let index;
      if (event.key === "Escape" && this.word !== null) index = null;
      else if (last < 0) return false;
      else if (event.key === "Home") index = 0;
      else if (event.key === "End") index = last;
      else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        if (this.word === null) index = event.key === forward ? 0 : last;
        else index = Math.min(Math.max(this.word + (event.key === forward ? 1 : -1), 0), last);
      } else return false;
      event.preventDefault();
      event.stopPropagation();
      this.stop();
      this.select(index);
      if (index !== null) this.focus();
      return true;
    }

    focus(options) {
      this.buttons?.[this.word ?? 0]?.focus(options);
    }

    setStyle(name) {
      if (!Attention.STYLES.includes(name)) throw new RangeError(`style is ${name}; choose from ${Attention.STYLES}`);
      const changed = this.style !== name;
      this.style = name;
      for (const button of this.styles.children) {
        button.setAttribute("aria-pressed", String(button.dataset.style === name));
      }
      this.kept.clear();
      if (changed) {
        this.draw();
        this.onStyle(name);
      }
    }

    toggle() {
      if (this.playing) this.stop();
      else this.play();
    }

    play() {
      if (!this.caption?.words.length) return;
      this.stop();
      const last = this.caption.words.length - 1;
      const start = this.word === null || this.word === last ? 0 : this.word + 1;
      this.timer = setInterval(() => {
        if (this.word === null || this.word >= last) this.stop();
        else this.select(this.word + 1);
      }, STEP);
      this.showPlaying();
      this.select(start);
    }

    stop() {
      clearInterval(this.timer);
      this.timer = 0;
      this.showPlaying();
    }

    showPlaying() {
      const label = this.playing ? "Stop" : "Play";
      this.playButton.classList.toggle("viewer-playing", this.playing);
      attributes(this.playButton, { "aria-label": `${label} through the words`, title: `${label} through the words` });
      // A reader that is told of every word would lag behind.
      this.status.setAttribute("aria-live", this.playing ? "off" : "polite");
    }

    /* Fit the canvas to the image as it is displayed, in the screen's own pixels. */
    resize() {
      if (!this.caption || !this.image.complete || !this.image.naturalWidth) return;
      const { clientWidth, clientHeight } = this.frame;
      if (!clientWidth || !clientHeight) return;
      const ratio = window.devicePixelRatio || 1;
      this.scale = Math.min(ratio, Math.sqrt(MAX_PIXELS / (clientWidth * clientHeight)));
      const width = Math.max(Math.round(clientWidth * this.scale), 1);
      const height = Math.max(Math.round(clientHeight * this.scale), 1);
      if (this.pixels && width === this.pixels.width && height === this.pixels.height) return;
      this.kept.clear();
      attributes(this.canvas, { width, height });
      const context = this.canvas.getContext("2d", { willReadFrequently: true });
      context.imageSmoothingQuality = "high";
      context.drawImage(this.image, 0, 0, width, height);
      this.pixels = context.getImageData(0, 0, width, height);
      this.draw({ fade: false });
      this.root.classList.add("viewer-ready"); // what is shown from now on is complete
    }

    picture(index) {
      let picture = this.kept.get(index);
      if (!picture) {
        const { rows, columns, words } = this.attention;
        const { width, height } = this.pixels;
        picture = make("canvas", { width, height });
        const { pixels, geometry, style, scale } = this;
        const painted = Attention.paint(pixels, words[index], rows, columns, geometry, style, scale);
        picture.getContext("2d").putImageData(painted, 0, 0);
        if (this.kept.size >= MAX_KEPT) this.kept.delete(this.kept.keys().next().value);
        this.kept.set(index, picture);
      }
      return picture;
    }

    draw({ fade = true } = {}) {
      cancelAnimationFrame(this.frameRequest);
      if (!this.caption || !this.pixels) return;
      const index = this.current;
      if (index === null) {
        this.canvas.hidden = true;
        return;
      }
      const picture = this.picture(index);
      const context = this.canvas.getContext("2d");
      if (!fade || calm.matches) {
        context.drawImage(picture, 0, 0);
        this.canvas.hidden = false;
        return;
      }
      const before = make("canvas", { width: picture.width, height: picture.height });
      const shown = this.canvas.hidden ? this.image : this.canvas;
      before.getContext("2d").drawImage(shown, 0, 0, before.width, before.height);
      this.canvas.hidden = false;
      const started = performance.now();
      const step = (now) => {
        const share = Math.min(Math.max((now - started) / FADE, 0), 1);
        context.globalAlpha = 1;
        context.drawImage(before, 0, 0);
        context.globalAlpha = share;
        context.drawImage(picture, 0, 0);
        context.globalAlpha = 1;
        if (share < 1) this.frameRequest = requestAnimationFrame(step);
      };
      step(started);
    }

    clear() {
      this.stop();
      cancelAnimationFrame(this.frameRequest);
      this.caption = this.pixels = null;
      this.word = this.hovered = null;
      this.kept.clear();
      this.words.replaceChildren();
      this.fixations.replaceChildren();
      this.status.textContent = "";
      this.image.removeAttribute("src");
      this.canvas.hidden = true;
      this.root.classList.remove("viewer-shown", "viewer-ready");
    }

    destroy() {
      this.clear();
      this.observer.disconnect();
      this.root.remove();
    }
  }

  return CaptionViewer;
})();
