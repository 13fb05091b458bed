/* The page of `captioner serve`: an image in, its captions from the server, and the viewer to explore them. */
"use strict";

(() => {
  const MAX_BYTES = 10_000_000; // as the server has it, so that nobody uploads in vain
  const CAPTIONS = 5;
  const WAIT = 45_000; // milliseconds, longer than the server takes to give up
  const TEMPERATURE_PAUSE = 250;

  const at = (id) => document.getElementById(id);
  const viewer = new CaptionViewer(at("viewer"));
  let image = null; // {blob, url, name} of what is shown
  let answer = null; // the server's last answer, of that image
  let asked = null; // the settings that it was given with
  let asking = null; // an AbortController while the server is asked
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

  /* The image. */

  async function take(blob, name) {
    showError("");
    if (blob.size > MAX_BYTES) {
      const size = (blob.size / 1e6).toFixed(1);
      return showError(`This image has ${size} MB; at most ${MAX_BYTES / 1e6} MB can be sent. Try a smaller copy.`);
    }
    if (!blob.size) return showError("This file is empty.");
    asking?.abort();
    asking = null;
    const taken = { blob, url: URL.createObjectURL(blob), name: name.replace(/\.[^.]*$/, "") || "image" };
    const before = image;
    image = taken;
    answer = null;
    viewer.clear();
    at("hint").hidden = true;
    if (before) URL.revokeObjectURL(before.url);
    at("captions").replaceChildren();
    at("note").textContent = "";
    at("work").hidden = false;
    taken.previewed = showPreview(taken);
    await ask();
  }

  async function showPreview(taken) {
    const picture = at("preview-image");
    at("preview").hidden = false;
    picture.hidden = true;
    picture.src = taken.url;
    try {
      await picture.decode();
      if (image !== taken) return;
      at("preview").style.setProperty("--viewer-ratio", picture.naturalWidth / picture.naturalHeight);
      picture.hidden = false;
    } catch {
      // A format that this browser does not know; the server may, and sends what it sees.
      taken.unknown = true;
    }
  }

  function forget() {
    if (image) URL.revokeObjectURL(image.url);
    image = answer = null;
    viewer.clear();
    at("preview").hidden = at("hint").hidden = true;
    at("work").hidden = true;
    document.body.dataset.state = "empty";
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

  async function post(path, chosen, blob, signal) {
    let response;
    try {
      response = await fetch(`${path}?${chosen}`, {
        method: "POST",
        headers: { "Content-Type": "application/octet-stream" },
        body: blob,
        signal,
      });
    } catch (error) {
      if (signal.aborted) throw error;
      throw new Error("The server does not answer. Is `captioner serve` still running?");
    }
    if (response.ok) return response;
    let reason = `the server answered ${response.status}`;
    try {
      reason = (await response.json()).error ?? reason;
    } catch {
      // What is not JSON comes from something in between, and its status must do.
    }
    throw new Error(reason.charAt(0).toUpperCase() + reason.slice(1) + ".");
  }

  async function ask() {
    asking?.abort();
    const taken = image;
    const request = (asking = new AbortController());
    const timer = setTimeout(() => request.abort(), WAIT);
    document.body.dataset.state = "asking";
    at("live").textContent = "Looking …";
    try {
      const chosen = settings();
      const response = await post("/caption", chosen, taken.blob, request.signal);
      const found = await response.json();
      await taken.previewed;
      if (taken.unknown) await replaceUnknown(taken, request.signal);
      if (asking !== request) return;
      showError("");
      asked = chosen;
      await showAnswer(found);
    } catch (error) {
      if (asking !== request) return;
      if (!answer) forget();
      else document.body.dataset.state = "answered";
      at("live").textContent = "";
      showError(request.signal.aborted ? "The server took too long. Try again." : error.message);
    } finally {
      clearTimeout(timer);
      if (asking === request) asking = null;
    }
  }

  async function replaceUnknown(taken, signal) {
    const response = await post("/preview", new URLSearchParams(), taken.blob, signal);
    URL.revokeObjectURL(taken.url);
    taken.url = URL.createObjectURL(await response.blob());
    taken.unknown = false;
  }

  /* The answer. */

  function allCaptions() {
    return [answer, ...(answer.alternatives ?? [])];
  }

  async function showAnswer(found) {
    answer = found;
    const entries = allCaptions().map((caption, place) => {
      // The end of a caption is one more word.
      const sure = Math.exp(caption.log_prob / (caption.words.length + 1));
      const choice = make("input", { type: "radio", name: "caption", value: place, checked: place === 0 });
      const text = make("span", { className: "caption-text", dir: "auto" }, caption.text || "(nothing)");
      return make("label", { className: "caption" }, choice, text, make("span", { className: "sure" }, sure.toFixed(2)));
    });
    at("captions").replaceChildren(...entries);
    const seconds = (found.milliseconds / 1000).toFixed(2);
    at("note").textContent = `${found.model}, ${seconds} s on the server`;
    await showCaption(0);
    document.body.dataset.state = "answered";
  }

  async function showCaption(place) {
    const caption = allCaptions()[place];
    await viewer.show({ image: image.url, caption, geometry: answer.geometry });
    at("preview").hidden = true;
    at("hint").hidden = false;
    at("live").textContent = `Caption: ${caption.text}`;
  }

  function chosenPlace() {
    return Number(document.querySelector("input[name=caption]:checked")?.value ?? 0);
  }

  async function save(format, button) {
    if (!answer) return;
    const name = `${image.name}-caption.${format}`;
    if (format === "json") {
      const text = JSON.stringify(answer, null, 1);
      return download(new Blob([text], { type: "application/json" }), name);
    }
    const chosen = new URLSearchParams(asked);
    chosen.set("format", format);
    chosen.set("style", viewer.style);
    chosen.set("alternative", chosenPlace());
    button.setAttribute("aria-busy", "true");
    try {
      const response = await post("/figure", chosen, image.blob, AbortSignal.timeout(WAIT));
      showError("");
      download(await response.blob(), name);
    } catch (error) {
      showError(error.name === "TimeoutError" ? "The server took too long. Try again." : error.message);
    } finally {
      button.removeAttribute("aria-busy");
    }
  }

  function download(blob, name) {
    const url = URL.createObjectURL(blob);
    const link = make("a", { href: url, download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  /* What the reader does. */

  function takeFirst(files) {
    const file = [...files].find((each) => each.type.startsWith("image/")) ?? files[0];
    if (file) take(file, file.name);
  }

  for (const [button, input] of [["choose", "file"], ["photograph", "camera"]]) {
    at(button).addEventListener("click", () => at(input).click());
    at(input).addEventListener("change", () => {
      takeFirst(at(input).files);
      at(input).value = ""; // so that the same file can be chosen again
    });
  }

  let depth = 0; // of elements that a dragged file is over
  const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragenter", (event) => {
    if (carriesFiles(event)) document.body.classList.toggle("dragging", ++depth > 0);
  });
  addEventListener("dragleave", (event) => {
    if (carriesFiles(event)) document.body.classList.toggle("dragging", --depth > 0);
  });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    depth = 0;
    document.body.classList.remove("dragging");
    if (event.dataTransfer.files.length) takeFirst(event.dataTransfer.files);
    else showError("That is not an image file. Copy the image and paste it here, or save it first.");
  });
  addEventListener("paste", (event) => {
    const files = event.clipboardData?.files ?? [];
    if (files.length) takeFirst(files);
    else showError("The clipboard holds no image. Copy an image, then paste it here.");
  });
  addEventListener("keydown", (event) => {
    if (!event.target.closest?.("input, select, textarea, .viewer")) viewer.handleKey(event);
  });

  let pause = 0;
  at("search").addEventListener("input", () => {
    const sampling = document.querySelector("input[name=search]:checked").value === "sample";
    at("heat").hidden = !sampling;
    at("temperature-value").textContent = Number(at("temperature").value).toFixed(2);
    clearTimeout(pause);
    if (image) pause = setTimeout(ask, TEMPERATURE_PAUSE);
  });
  at("again").addEventListener("click", () => {
    seed = Math.floor(Math.random() * 1e9);
    if (image) ask();
  });
  at("captions").addEventListener("change", () => showCaption(chosenPlace()));
  for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
  for (const button of document.querySelectorAll("[data-format]")) {
    button.addEventListener("click", () => save(button.dataset.format, button));
  }

  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (systemDark.matches ? "dark" : "light")) === "dark";
  function nameTheme() {
    at("theme").textContent = isDark() ? "Light" : "Dark";
    at("theme").setAttribute("aria-label", `Change to ${isDark() ? "light" : "dark"} colours`);
  }
  at("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
  });
  systemDark.addEventListener("change", nameTheme);
  nameTheme();

  /* What the server offers. */

  async function get(path) {
    const response = await fetch(path);
    if (!response.ok) throw new Error(`${path} answered ${response.status}`);
    return response.json();
  }

  function showModels(models) {
    const form = at("models");
    form.hidden = models.length < 2;
    if (models.length <= 3) {
      const labels = models.map((model, place) => {
        const input = make("input", { type: "radio", name: "model", value: model.name, checked: place === 0 });
        return make("label", { title: `${model.attention} attention` }, input, make("span", {}, model.name));
      });
      const choice = make("div", { className: "choice" }, ...labels);
      choice.setAttribute("role", "radiogroup");
      choice.setAttribute("aria-label", "Model");
      form.replaceChildren(choice);
    } else {
      const options = models.map((model) => make("option", { value: model.name }, model.name));
      const select = make("select", { name: "model" }, ...options);
      select.setAttribute("aria-label", "Model");
      form.replaceChildren(select);
    }
    form.addEventListener("change", () => image && ask());
  }

  function showExamples(examples) {
    at("examples").hidden = !examples.length;
    const entries = examples.map(({ name, url }) => {
      const picture = make("img", { src: url, alt: name, loading: "lazy", decoding: "async" });
      const button = make("button", { type: "button", title: name }, picture);
      button.addEventListener("click", async () => {
        try {
          const response = await fetch(url);
          if (!response.ok) throw new Error(response.status);
          take(await response.blob(), name);
          scrollTo({ top: 0, behavior: "smooth" });
        } catch {
          showError("The server does not answer. Is `captioner serve` still running?");
        }
      });
      return make("li", {}, button);
    });
    at("examples-list").replaceChildren(...entries);
  }

  Promise.all([get("/models"), get("/examples")]).then(
    ([offer, gallery]) => {
      showModels(offer.models);
      showExamples(gallery.examples);
    },
    () => showError("The server does not answer. Is `captioner serve` still running?")
  );
})();
