/* The page of `captioner serve`: images in, their captions from the server, and the viewer to explore them.
 *
 * An image is {blob, url, shown, name, title, answer, asked, choice, asking, button}: `url` is what is shown of it, once
 * the promise `shown` is kept, `answer` is the server's last of it, to the settings `asked`, and `choice` the caption that is shown. One of them is `current`; a strip has them all.
 */
"use strict";

(() => {
  const CAPTIONS = 5;
  const LOW = 0.5; // confidence, as in captioner/model/confidence.py
  const WAIT = 45_000; // milliseconds, longer than the server takes to give up
  const TEMPERATURE_PAUSE = 250;
  const AT_ONCE = 2; // requests under way for images that were dropped together
  const MOST = 100; // images in the strip

  const at = (id) => document.getElementById(id);
  const client = new Client(() => (at("token-form").hidden = false));
  const viewer = new CaptionViewer(at("viewer"));
  const corrections = new Corrections();
  const editor = new CaptionEditor(at("editor"), {
    onSave: (text) => correct(text),
    onRestore: () => correct(null),
  });
  let limits = { max_upload: 10_000_000 };
  let images = [];
  let current = null;
  let seed = 0;

  function make(tag, properties, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  }

  function showError(reason) {
    at("error").textContent = reason;
    at("error").hidden = !reason;
  }

  /* Images. */

  function problemOf(blob) {
    if (!blob.size) return "This file is empty.";
    if (blob.size <= limits.max_upload) return "";
    const sizes = [blob.size, limits.max_upload].map((bytes) => `${Number((bytes / 1e6).toFixed(1))} MB`);
    return `This image has ${sizes[0]}; at most ${sizes[1]} can be sent. Try a smaller copy.`;
  }

  /* Caption files; what is refused is told, and the image that was shown before stays. */
  async function takeAll(files) {
    showError("");
    const problems = [];
    const tell = (file, reason) => {
      problems.push(file.name ? `${file.name}: ${reason}` : reason);
      showError(problems.join("\n"));
    };
    const added = [];
    for (const file of files) {
      const problem = problemOf(file);
      if (problem) tell(file, problem);
      else added.push(add(file));
    }
    if (!added.length) return;
    const before = current;
    const waiting = [...added];
    show(added[0]);
    async function work() {
      for (let image = waiting.shift(); image; image = waiting.shift()) {
        try {
          await ask(image);
        } catch (error) {
          drop(image, before);
          tell(image.blob, error.message);
        }
      }
    }
    await Promise.all(Array.from({ length: AT_ONCE }, work));
  }

  function add(blob) {
    const title = blob.name || "image";
    const image = { blob, title, url: null, name: title.replace(/\.[^.]*$/, "") || "image", choice: 0 };
    const picture = make("img", { alt: "", draggable: false });
    image.shown = Shrinking.copy(blob).then((copy) => {
      if (images.includes(image)) picture.src = image.url = URL.createObjectURL(copy);
    });
    image.button = make("button", { type: "button", title, onclick: () => show(image, { askAgain: true }) }, picture);
    image.button.setAttribute("aria-label", title);
    images.push(image);
    if (images.length > MOST) drop(images[0], current);
    showStrip();
    return image;
  }

  /* Let go of an image; where it was shown, another takes its place. */
  function drop(image, instead) {
    image.asking?.abort();
    image.asking = null;
    if (image.url) URL.revokeObjectURL(image.url);
    images = images.filter((each) => each !== image);
    showStrip();
    if (current !== image) return;
    const next = images.includes(instead) ? instead : images.findLast((each) => each.answer);
    if (next) show(next);
    else {
      current = null;
      viewer.clear();
      at("work").hidden = at("preview").hidden = at("hint").hidden = true;
      showState();
    }
  }

  function showStrip() {
    at("strip").hidden = images.length < 2;
    at("strip").replaceChildren(...images.map((image) => make("li", {}, image.button)));
  }

  function showState() {
    document.body.dataset.state = !current ? "empty" : current.answer && !current.asking ? "answered" : "asking";
    for (const image of images) {
      image.button.setAttribute("aria-pressed", String(image === current));
      image.button.classList.toggle("waiting", !image.answer);
    }
  }

  function show(image, { askAgain = false } = {}) {
    current = image;
    at("work").hidden = false;
    at("image-name").replaceChildren(make("bdi", {}, image.title));
    at("image-name").title = image.title;
    at("editor").hidden = !image.answer;
    if (image.answer) {
      at("preview").hidden = true;
      showAnswer();
      if (askAgain && image.asked !== String(settings())) askCurrent();
    } else {
      viewer.clear();
      at("captions").replaceChildren();
      at("note").textContent = "";
      at("hint").hidden = true;
      showPreview(image);
    }
    showState();
  }

  async function showPreview(image) {
    const picture = at("preview-image");
    at("preview").hidden = false;
    picture.hidden = true;
    await image.shown;
    if (current !== image) return;
    picture.src = image.url;
    try {
      await picture.decode();
      if (current !== image) return;
      at("preview").style.setProperty("--viewer-ratio", picture.naturalWidth / picture.naturalHeight);
      picture.hidden = false;
    } catch {
      // A format that this browser does not know; the server may, and sends what it sees.
    }
  }

  /* The server. */

  function settings() {
    const chosen = new URLSearchParams({ n_best: CAPTIONS });
    const model = document.querySelector("input[name=model]:checked, select[name=model]");
    if (model) chosen.set("model", model.value);
    if (document.querySelector("input[name=search]:checked").value === "sample") {
      chosen.set("sample", "true");
      chosen.set("temperature", at("temperature").value);
      chosen.set("seed", seed);
    }
    return chosen;
  }

  /* Caption an image with the settings of now; an Error says why it has no caption. */
  async function ask(image) {
    image.asking?.abort();
    const request = (image.asking = new AbortController());
    const timer = setTimeout(() => request.abort(), WAIT);
    if (image === current) at("live").textContent = "Looking …";
    showState();
    try {
      const chosen = settings();
      const response = await client.post("caption", chosen, image.blob, request.signal);
      const answer = await response.json();
      await image.shown;
      if (image.asking !== request) return;
      if (!(await canShow(image.url))) await replaceUnknown(image, request.signal);
      if (image.asking !== request) return;
      Object.assign(image, { answer, asked: String(chosen), choice: 0, asking: null });
      if (image === current) await showAnswer();
    } catch (error) {
      if (image.asking !== request) return;
      image.asking = null;
      if (image === current) at("live").textContent = "";
      throw request.signal.aborted ? new Error("The server took too long. Try again.") : error;
    } finally {
      clearTimeout(timer);
      showState();
    }
  }

  async function askCurrent() {
    try {
      await ask(current);
      showError("");
    } catch (error) {
      showError(error.message); // and what was there before stays
    }
  }

  async function canShow(url) {
    try {
      await Object.assign(new Image(), { src: url }).decode();
      return true;
    } catch {
      return false;
    }
  }

  async function replaceUnknown(image, signal) {
    const response = await client.post("preview", new URLSearchParams(), image.blob, signal);
    URL.revokeObjectURL(image.url);
    image.url = URL.createObjectURL(await response.blob());
    image.button.firstChild.src = image.url;
  }

  /* The answer. */

  function allCaptions({ answer }) {
    return [answer, ...(answer.alternatives ?? [])];
  }

  /* How likely people would accept the first caption, where the model can tell. */
  function describeConfidence({ confidence }) {
    if (confidence === undefined) return "";
    return `${confidence < LOW ? "low confidence" : "confidence"} ${Math.round(100 * confidence)} %, `;
  }

  async function showAnswer() {
    const image = current;
    const entries = allCaptions(image).map((caption, place) => {
      // The end of a caption is one more word.
      const sure = Math.exp(caption.log_prob / (caption.words.length + 1));
      const checked = place === image.choice;
      const choice = make("input", { type: "radio", name: "caption", value: place, checked });
      const text = make("span", { className: "caption-text", dir: "auto" }, caption.text || "(nothing)");
      const number = make("span", { className: "sure", title: CaptionViewer.PER_WORD }, sure.toFixed(2));
      return make("label", { className: "caption" }, choice, text, number);
    });
    at("captions").replaceChildren(...entries);
    const { answer } = image;
    const seconds = (answer.milliseconds / 1000).toFixed(2);
    at("note").textContent = `${describeConfidence(answer)}${answer.model}, ${seconds} s on the server`;
    await showCaption();
    showState();
  }

  async function showCaption() {
    const image = current;
    const caption = allCaptions(image)[image.choice];
    at("editor").hidden = false;
    showEditor();
    await viewer.show({ image: image.url, caption, geometry: image.answer.geometry }).catch(() => {});
    at("preview").hidden = true;
    at("hint").hidden = false;
    at("live").textContent = `Caption: ${captionOf(image)}`;
  }

  /* What the reader takes for the caption of an image: what was written, or the one that is chosen. */
  function captionOf(image) {
    return corrections.get(image.title) ?? allCaptions(image)[image.choice].text;
  }

  function showEditor() {
    editor.show({ text: captionOf(current), corrected: corrections.get(current.title) !== undefined });
  }

  function correct(text) {
    if (text === null) corrections.remove(current.title);
    else corrections.set(current.title, text);
    showEditor();
  }

  async function save(format, button) {
    if (!current?.answer) return;
    const image = current;
    const name = `${image.name}-caption.${format}`;
    if (format === "json") {
      const text = JSON.stringify(image.answer, null, 1);
      return Corrections.download(new Blob([text], { type: "application/json" }), name);
    }
    if (format === "jsonl") {
      const told = images.filter((each) => each.answer).map((each) => [each.title, captionOf(each)]);
      corrections.unsaved = false;
      return Corrections.download(new Blob([Corrections.lines(told)], { type: "application/jsonl" }), "captions.jsonl");
    }
    const chosen = new URLSearchParams(image.asked);
    chosen.set("format", format);
    chosen.set("style", viewer.style);
    chosen.set("alternative", image.choice);
    button.setAttribute("aria-busy", "true");
    try {
      const response = await client.post("figure", chosen, image.blob, AbortSignal.timeout(WAIT));
      showError("");
      Corrections.download(await response.blob(), name);
    } catch (error) {
      showError(error.name === "TimeoutError" ? "The server took too long. Try again." : error.message);
    } finally {
      button.removeAttribute("aria-busy");
    }
  }

  /* What the reader does. */

  Incoming.listen(takeAll, showError);
  addEventListener("keydown", (event) => {
    if (!event.target.closest?.("input, select, textarea, .viewer")) viewer.handleKey(event);
  });

  let pause = 0;
  at("search").addEventListener("input", () => {
    const sampling = document.querySelector("input[name=search]:checked").value === "sample";
    at("heat").hidden = !sampling;
    at("temperature-value").textContent = Number(at("temperature").value).toFixed(2);
    clearTimeout(pause);
    if (current) pause = setTimeout(askCurrent, TEMPERATURE_PAUSE);
  });
  at("again").addEventListener("click", () => {
    seed = Math.floor(Math.random() * 1e9);
    if (current) askCurrent();
  });
  at("captions").addEventListener("change", () => {
    current.choice = Number(document.querySelector("input[name=caption]:checked").value);
    corrections.remove(current.title); // who chooses another has changed their mind
    showCaption();
  });
  for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
  for (const button of document.querySelectorAll("[data-format]")) {
    button.addEventListener("click", () => save(button.dataset.format, button));
  }

  /* What the server offers. */

  function takeExample(file) {
    takeAll([file]);
    scrollTo({ top: 0, behavior: "smooth" });
  }

  async function start() {
    try {
      const [offer, gallery] = await Promise.all([client.get("models"), client.get("examples")]);
      limits = offer;
      at("token-form").hidden = true;
      showError("");
      at("examples").hidden = !gallery.examples.length;
      Offers.showModels(at("models"), offer.models, () => current && askCurrent());
      Offers.showExamples(at("examples-list"), gallery.examples, client, takeExample, ({ message }) => showError(message));
    } catch (error) {
      if (at("token-form").hidden) showError(error.message);
    }
  }
  at("token-form").addEventListener("submit", () => {
    client.token = at("token").value.trim();
    start();
  });
  start();
})();
