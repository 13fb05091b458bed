/* One image of the gallery: its thumbnail and caption, a word of which may be lit.
 *
 * An entry is {name, geometry, colour, captions, labels?, problem?, confidence?, low?, correction?}, the captions as
 * viewer.js takes them, with their text and log_prob, and a geometry of their own where it is another; `confidence`,
 * 0..1, tells how likely people would accept the first, `low` whether that is low, and `correction` is what a person
 * wrote instead. `picture` is the element whose text is the thumbnail in base64, read only while the card is near the
 * screen.
 */
"use strict";

const GalleryCard = (() => {
  const BOX = 4 / 3; // width to height, as in gallery.css
  // One canvas and one layer of points, for the one word that is lit.
  const canvas = make("canvas", "");
  canvas.setAttribute("aria-hidden", "true");
  const fixations = Fixations.layer();

  function make(tag, className, ...children) {
    const element = document.createElement(tag);
    element.className = className;
    element.append(...children);
    return element;
  }

  /* The probability of a caption for each of its words and its end: long captions can be compared with short ones. */
  function perWord(caption) {
    return Math.exp(caption.log_prob / (caption.words.length + 1));
  }

  /* How much larger than its box a thumbnail is: one of nearly the box's shape fills it, the others fit in. */
  function zoom(ratio) {
    const larger = Math.max(ratio / BOX, BOX / ratio);
    return larger <= 1.15 ? larger : 1;
  }

  /* Text without accents and capitals, to search in. */
  function plain(text) {
    return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
  }

  /* Where the words lie in a text, [start, stop] each; null where they are not all there. The text may be a sentence,
   * with a capital, and may have something before and after the words.
   */
  function wordPlaces(words, text) {
    const small = text.toLowerCase();
    const searched = small.length === text.length ? small : text; // as "\u0130" does not
    let from = Math.max(searched.indexOf(words.join(" ").toLowerCase()), 0);
    const places = words.map((word) => {
      const start = searched.indexOf(searched === small ? word.toLowerCase() : word, from);
      from = start + word.length;
      return [start, from];
    });
    return places.every(([start]) => start >= 0) ? places : null;
  }

  /* The caption's text, its words in elements of their own. */
  function splitCaption({ words, text }) {
    const joined = wordPlaces(words, text) ? text : words.join(" ");
    const nodes = [];
    let end = 0;
    wordPlaces(words, joined).forEach(([start, stop], index) => {
      const word = make("span", "", joined.slice(start, stop));
      word.dataset.word = index;
      nodes.push(joined.slice(end, start), word);
      end = stop;
    });
    return [...nodes, joined.slice(end)];
  }

  function percent(share) {
    return `${Math.round(100 * share)} %`;
  }

  /* What a confidence means. */
  function explain(confidence) {
    const share = Math.round(100 * confidence);
    return `About ${share} in 100 captions like this describe their image as well as most people do.`;
  }

  return class GalleryCard {
    static explain = explain;
    static make = make;
    static perWord = perWord;
    static plain = plain;

    constructor(entry, index, picture) {
      Object.assign(this, entry);
      this.shortName = entry.name;
      this.index = index;
      this.picture = picture;
      this.choice = 0; // which of the captions is taken
      this.correction = entry.correction ?? null;
      this.first = this.text; // as the page came
      this.certainty = perWord(this.best);
      this.lit = null;
      this.built = false;
      this.element = make("li", "card");
      this.element.dataset.index = index;
    }

    get best() {
      return this.captions[this.choice];
    }

    /* What the image is called in the end: what was written for it, or the caption that is taken. */
    get text() {
      return this.correction ?? this.best.text;
    }

    /* Whether the reader, or one before, has taken another caption than the model's first. */
    get changed() {
      return this.correction !== null || this.choice > 0;
    }

    /* How likely people would accept the caption, undefined where nobody knows; what a reader chose needs no guess. */
    get sure() {
      return this.changed ? undefined : this.confidence;
    }

    get doubtful() {
      return this.sure !== undefined && this.low;
    }

    get searched() {
      this.plain ??= plain([this.name, this.text, ...this.captions.map((caption) => caption.text)].join("\n"));
      return this.plain;
    }

    /* Take one of the captions, or a text that somebody wrote. */
    take(choice, correction) {
      this.light(null);
      Object.assign(this, { choice, correction, plain: undefined });
      if (this.built) this.fill();
    }

    fill() {
      this.caption.replaceChildren(...(this.correction === null ? splitCaption(this.best) : [this.correction]));
      this.element.classList.toggle("changed", this.changed);
      this.mark.hidden = !this.doubtful;
      this.number.textContent =
        this.sure === undefined ? `${this.certainty.toFixed(2)} per word` : `confidence ${percent(this.sure)}`;
      this.number.title =
        this.sure === undefined
          ? `${CaptionViewer.PER_WORD} All words together: ${Math.exp(this.best.log_prob).toPrecision(2)}.`
          : explain(this.sure);
    }

    get address() {
      return `data:image/jpeg;base64,${this.picture.textContent}`;
    }

    build() {
      this.built = true;
      this.image = Object.assign(document.createElement("img"), { alt: "", decoding: "async", draggable: false });
      this.frame = make("span", "thumb-frame", this.image);
      if (this.problem) this.frame.append(make("span", "thumb-problem", "The image could not be shown."));
      const ratio = this.geometry.width / this.geometry.height;
      this.frame.style.setProperty("--ratio", String(ratio));
      this.frame.style.setProperty("--zoom", String(zoom(ratio)));
      this.caption = make("span", "caption");
      this.caption.dir = "auto";
      this.mark = make("span", "low-mark", "low confidence");
      this.number = make("span", "");
      this.fill();
      const name = make("span", "name", make("bdi", "", this.shortName));
      name.title = this.name;
      const text = make("span", "card-text", this.caption, this.mark, make("span", "card-foot", name, this.number));
      const thumb = make("span", "thumb", this.frame);
      thumb.style.setProperty("--colour", this.colour);
      this.link = make("a", "card-link", thumb, text);
      this.link.href = `#image-${this.index + 1}`;
      this.link.draggable = false;
      this.element.append(this.link);
    }

    /* Be complete: the card is near the screen. */
    approach() {
      if (!this.built) this.build();
      if (!this.image.hasAttribute("src")) this.image.src = this.address;
    }

    /* Let go of the picture: those of a large gallery would fill the memory. */
    leave() {
      if (this.built && this.lit === null) this.image.removeAttribute("src");
    }

    /* Show the attention of a word on the thumbnail, in a style of Attention.STYLES; none with null. */
    light(word, style) {
      if (this.lit === word) return;
      this.caption?.children[this.lit]?.classList.remove("lit");
      this.lit = word;
      if (word === null) {
        canvas.remove();
        fixations.remove();
      } else {
        this.caption.children[word].classList.add("lit");
        this.draw(word, style);
      }
    }

    async draw(word, style) {
      if (!this.image.complete) await this.image.decode().catch(() => {});
      if (this.lit !== word || !this.image.naturalWidth) return;
      const scale = Math.min(window.devicePixelRatio || 1, 2);
      const { clientWidth, clientHeight } = this.frame;
      canvas.width = Math.max(Math.round(clientWidth * scale), 1);
      canvas.height = Math.max(Math.round(clientHeight * scale), 1);
      const context = canvas.getContext("2d", { willReadFrequently: true });
      context.drawImage(this.image, 0, 0, canvas.width, canvas.height);
      const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
      const { rows, columns, words } = Attention.unpack(this.best.attention);
      const geometry = this.best.geometry ?? this.geometry;
      context.putImageData(Attention.paint(pixels, words[word], rows, columns, geometry, style, scale), 0, 0);
      Fixations.draw(fixations, this.best, geometry, { rows, columns }, word);
      this.frame.append(canvas, fixations);
    }
  };
})();
