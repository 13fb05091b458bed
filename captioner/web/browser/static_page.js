/* The page of `captioner export --web`: an image in, its captions from the worker, and the viewer to explore them.
 *
 * The model is in scripts of its own, which call captionerPart: a page from file:// may load scripts, and nothing else.
 */
"use strict";

(() => {
  const CAPTIONS = 5;

  const at = (id) => document.getElementById(id);
  const { model, files, bytes } = JSON.parse(at("about").textContent);
  const viewer = new CaptionViewer(at("viewer"));
  let worker = null;
  let ready = false;
  let image = null; // {blob, url, shown, name}: url is what is shown of it, once the promise `shown` is kept
  let answer = null; // the worker's last answer, of that image
  let asked = 0; // the number of the last question

  function make(tag, properties, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  }

  function showError(reason) {
    at("error").textContent = reason;
    at("error").hidden = !reason;
  }

  /* The model. */

  function loadScript(path) {
    return new Promise((resolve, reject) => {
      const reason = `${path} cannot be loaded. The page needs its whole folder.`;
      const script = make("script", { src: path, onload: resolve, onerror: () => reject(new Error(reason)) });
      document.head.append(script);
    });
  }

  async function load() {
    for (const name of ["WebAssembly", "Worker", "OffscreenCanvas", "DecompressionStream"]) {
      if (!(name in window)) throw new Error(`This browser is too old for the page: it has no ${name}.`);
    }
    const source = new Blob([at("worker").textContent], { type: "text/javascript" });
    worker = new Worker(URL.createObjectURL(source));
    worker.onmessage = ({ data }) => hear(data);
    worker.onerror = (event) => fail(event.message);
    let arrived = 0;
    for (const { file, path, size } of files) {
      window.captionerPart = (text) => worker.postMessage({ type: "part", file, text });
      await loadScript(path);
      arrived += size;
      at("progress").value = arrived / bytes;
      const [done, all] = [arrived, bytes].map((size) => (size / 1e6).toFixed(0));
      at("loading-text").textContent = `Loading the model: ${done} of ${all} MB`;
    }
    at("loading-text").textContent = "Starting the model …";
    worker.postMessage({ type: "start", about: model });
  }

  function fail(reason) {
    at("loading").hidden = true;
    showError(`The model cannot be started: ${reason}`);
    document.body.dataset.model = "failed";
  }

  /* What the worker says. */

  function hear(message) {
    if (message.type === "failed") return fail(message.reason);
    if (message.type === "ready") {
      ready = true;
      at("loading").hidden = true;
      document.body.dataset.model = "ready";
      if (image) ask();
    } else if (message.id === asked) {
      if (message.type === "captioned") showAnswer(message).catch((error) => refuse(error.message));
      else refuse(message.reason);
    }
  }

  function refuse(reason) {
    if (image?.url) URL.revokeObjectURL(image.url);
    image = answer = null;
    viewer.clear();
    at("preview").hidden = at("hint").hidden = at("work").hidden = true;
    at("live").textContent = "";
    document.body.dataset.state = "empty";
    showError(reason);
  }

  function ask() {
    at("live").textContent = "Looking …";
    worker.postMessage({ type: "caption", id: ++asked, image: image.blob, count: CAPTIONS });
  }

  async function showAnswer(message) {
    answer = message;
    const entries = message.captions.map((caption, place) => {
      // The end of a caption is one more word.
      const sure = Math.exp(caption.log_prob / (caption.words.length + 1));
      const choice = make("input", { type: "radio", name: "caption", value: place, checked: place === 0 });
      const text = make("span", { className: "caption-text", dir: "auto" }, caption.text || "(nothing)");
      return make("label", { className: "caption" }, choice, text, make("span", { className: "sure" }, sure.toFixed(2)));
    });
    at("captions").replaceChildren(...entries);
    at("note").textContent = `${model.name}, ${(message.milliseconds / 1000).toFixed(2)} s in this browser`;
    await showCaption(0);
    document.body.dataset.state = "answered";
  }

  async function showCaption(place) {
    const taken = image;
    const caption = answer.captions[place];
    await taken.shown;
    if (image !== taken) return;
    await viewer.show({ image: image.url, caption, geometry: answer.geometry });
    at("preview").hidden = true;
    at("hint").hidden = false;
    at("live").textContent = `Caption: ${caption.text}`;
  }

  /* The image. */

  async function take(blob, name) {
    showError("");
    if (!blob.size) return showError("This file is empty.");
    if (image?.url) URL.revokeObjectURL(image.url);
    const taken = (image = { blob, url: null, name: name.replace(/\.[^.]*$/, "") || "image" });
    taken.shown = Shrinking.copy(blob).then((copy) => {
      if (image === taken) taken.url = URL.createObjectURL(copy);
    });
    answer = null;
    asked++; // an answer about the image before comes too late
    viewer.clear();
    at("hint").hidden = true;
    at("captions").replaceChildren();
    at("note").textContent = "";
    at("work").hidden = at("preview").hidden = false;
    document.body.dataset.state = "asking";
    if (ready) ask();
    const picture = at("preview-image");
    picture.hidden = true;
    await taken.shown;
    if (image !== taken) return;
    picture.src = taken.url;
    try {
      await picture.decode();
    } catch {
      return; // the worker says what is wrong with it
    }
    if (image !== taken) return;
    at("preview").style.setProperty("--viewer-ratio", picture.naturalWidth / picture.naturalHeight);
    picture.hidden = false;
  }

  function takeFirst(files) {
    const file = [...files].find((each) => each.type.startsWith("image/")) ?? files[0];
    if (file) take(file, file.name);
  }

  function save() {
    if (!answer) return;
    const [best, ...alternatives] = answer.captions;
    const record = { ...best, geometry: answer.geometry, alternatives, model: model.name, digest: model.digest };
    const text = JSON.stringify({ ...record, search: model.search }, null, 1);
    const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    make("a", { href: url, download: `${image.name}-caption.json` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  /* What the reader does. */

  Incoming.listen(takeFirst, showError);
  addEventListener("keydown", (event) => {
    if (!event.target.closest?.("input, select, textarea, .viewer")) viewer.handleKey(event);
  });
  at("captions").addEventListener("change", (event) => showCaption(Number(event.target.value)));
  at("captions-form").addEventListener("submit", (event) => event.preventDefault());
  at("save").addEventListener("click", save);

  load().catch((error) => fail(error.message));
})();
