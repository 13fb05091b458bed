/* Captions that the reader has chosen or written: copied, and kept until they are saved.
 *
 *   const corrections = new Corrections((corrections) => ...);     told of every change
 *   corrections.set(image, caption), corrections.get(image), corrections.remove(image), corrections.size
 *   corrections.save("corrections.jsonl")     a download of one line per image: {"image": ..., "caption": ...}
 *   Corrections.lines([[image, caption], ...])     the same as a text; `captioner caption --corrections FILE` reads it
 *   Corrections.download(blob, name)
 *
 *   const editor = new CaptionEditor(element, {onSave: (text) => ..., onRestore: () => ...});
 *   editor.show({text, corrected})     the caption to copy or to edit, and whether it is the reader's own
 */
"use strict";

const Corrections = (() => {
  class Corrections {
    constructor(onChange = () => {}) {
      this.captions = new Map();
      this.unsaved = false;
      this.onChange = onChange;
      addEventListener("beforeunload", (event) => this.unsaved && event.preventDefault());
    }

    get size() {
      return this.captions.size;
    }

    get(image) {
      return this.captions.get(image);
    }

    set(image, caption) {
      this.captions.set(image, caption);
      this.unsaved = true;
      this.onChange(this);
    }

    remove(image) {
      this.captions.delete(image);
      this.unsaved = this.captions.size > 0;
      this.onChange(this);
    }

    save(name) {
      Corrections.download(new Blob([Corrections.lines(this.captions)], { type: "application/jsonl" }), name);
      this.unsaved = false;
    }

    static lines(captions) {
      return Array.from(captions, ([image, caption]) => JSON.stringify({ image, caption }) + "\n").join("");
    }

    static download(blob, name) {
      const url = URL.createObjectURL(blob);
      Object.assign(document.createElement("a"), { href: url, download: name }).click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
    }
  }

  return Corrections;
})();

const CaptionEditor = (() => {
  const TOLD = 1500; // milliseconds that a button says what it has done

  function make(tag, properties, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  }

  function button(label, title, onclick) {
    return make("button", { type: "button", className: "quiet editor-button", title, onclick }, label);
  }

  /* Put a text on the clipboard; pages that came over plain HTTP from elsewhere have the old way only. */
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = make("textarea", { value: text, className: "unseen" });
      (document.querySelector("dialog[open]") ?? document.body).append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  }

  return class CaptionEditor {
    constructor(element, { onSave, onRestore }) {
      this.onSave = onSave;
      this.text = "";
      this.shown = make("p", { className: "editor-text", dir: "auto" });
      this.copyButton = button("Copy", "Copy the caption", () => this.copy());
      this.editButton = button("Edit", "Write a better caption", () => this.edit());
      this.restoreButton = button("Undo", "Return to the model's caption", onRestore);
      this.area = make("textarea", { className: "editor-area", rows: 2, maxLength: 2000, dir: "auto", spellcheck: true });
      this.area.setAttribute("aria-label", "Caption");
      this.form = make(
        "form",
        { className: "editor-form", hidden: true },
        this.area,
        make("button", { type: "submit", className: "quiet editor-button" }, "Keep"),
        button("Cancel", "Leave the caption as it is", () => this.close())
      );
      this.row = make("div", { className: "editor-row" }, this.shown, this.copyButton, this.editButton, this.restoreButton);
      element.classList.add("editor");
      element.append(this.row, this.form);
      this.form.addEventListener("submit", (event) => {
        event.preventDefault();
        const text = this.area.value.trim().replace(/\s+/g, " ");
        this.close();
        if (text && text !== this.text) this.onSave(text);
      });
      this.form.addEventListener("keydown", (event) => {
        event.stopPropagation(); // arrows move through the text here, not through words or images
        if (event.key === "Escape") {
          event.preventDefault();
          this.close();
        } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
          event.preventDefault();
          this.form.requestSubmit();
        }
      });
    }

    show({ text, corrected }) {
      this.form.hidden = true;
      this.row.hidden = false;
      this.text = text;
      this.shown.textContent = corrected ? text : "";
      this.shown.hidden = this.restoreButton.hidden = !corrected;
    }

    async copy() {
      await copy(this.text);
      this.copyButton.textContent = "Copied";
      setTimeout(() => (this.copyButton.textContent = "Copy"), TOLD);
    }

    edit() {
      this.area.value = this.text;
      this.form.hidden = false;
      this.row.hidden = true;
      this.area.focus();
      this.area.select();
    }

    close() {
      this.form.hidden = true;
      this.row.hidden = false;
      this.editButton.focus();
    }
  };
})();
