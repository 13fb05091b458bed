/* The gallery: builds the cards from the page's data, finds and orders them, and opens one in the viewer, where its
 * caption can be copied, chosen among several, or written anew. What was changed is saved as JSON lines.
 */
"use strict";

(() => {
  const byId = (id) => document.getElementById(id);
  const read = (element) => JSON.parse(element.textContent);
  const { plain } = GalleryCard;
  const pictures = document.querySelectorAll("script.picture");
  const cards = Array.from(
    document.querySelectorAll("script.entry"),
    (element, index) => new GalleryCard(read(element), index, pictures[index])
  );
  const grid = byId("grid");

  /* Names are shown without the folder that they share. */
  let folder = cards.length ? cards[0].name.slice(0, cards[0].name.lastIndexOf("/") + 1) : "";
  while (!cards.every((card) => card.name.startsWith(folder))) {
    folder = folder.slice(0, folder.lastIndexOf("/", folder.length - 2) + 1);
  }
  for (const card of cards) card.shortName = card.name.slice(folder.length);

  let shown = cards; // those that are found, in their order

  /* One word of one card is lit at a time. */
  let litCard = null;

  function light(card, word) {
    if (litCard !== card) litCard?.light(null);
    litCard = word === null ? null : card;
    card?.light(word, viewer.style);
  }

  function cardOf(node) {
    const element = node instanceof Element ? node.closest(".card") : null;
    return element ? cards[Number(element.dataset.index)] : null;
  }

  function wordOf(node) {
    const word = node instanceof Element ? node.closest("[data-word]") : null;
    return word ? Number(word.dataset.word) : null;
  }

  grid.addEventListener("pointerover", (event) => {
    if (event.pointerType !== "mouse") return;
    const word = wordOf(event.target);
    light(word === null ? litCard : cardOf(event.target), word);
  });
  grid.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && light(litCard, null));
  grid.addEventListener("focusout", () => light(litCard, null));

  let pointerType = "mouse";
  grid.addEventListener("pointerdown", (event) => (pointerType = event.pointerType));
  grid.addEventListener("click", (event) => {
    const card = cardOf(event.target);
    const word = wordOf(event.target);
    if (!card || word === null || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    if (pointerType === "mouse") location.hash = `#image-${card.index + 1}-word-${word + 1}`;
    else light(card, card.lit === word ? null : word); // a finger cannot hover
  });

  grid.addEventListener("keydown", (event) => {
    const card = cardOf(event.target);
    if (!card || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (event.key === "Escape") light(card, null);
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const last = card.caption.children.length - 1; // a text that somebody wrote has no words that look
      if (last < 0) return;
      event.preventDefault();
      const rightToLeft = getComputedStyle(card.caption).direction === "rtl";
      const step = (event.key === "ArrowRight") !== rightToLeft ? 1 : -1;
      const word = card.lit === null ? (step > 0 ? 0 : last) : Math.min(Math.max(card.lit + step, 0), last);
      light(card, word);
      byId("announcer").textContent = CaptionViewer.describe(card.best, card.best.geometry ?? card.geometry, word);
    }
  });

  /* Cards are built when they come near the screen. */
  let printing = false;
  const nearby = new IntersectionObserver(
    (changes) => {
      for (const { target, isIntersecting } of changes) {
        const card = cards[Number(target.dataset.index)];
        if (isIntersecting) card.approach();
        else if (!printing) card.leave();
      }
    },
    { rootMargin: "100% 0px" }
  );
  for (const card of cards) nearby.observe(card.element);
  addEventListener("beforeprint", () => {
    printing = true;
    shown.forEach((card) => card.approach());
  });
  addEventListener("afterprint", () => (printing = false));

  /* Finding and ordering. */
  const names = new Intl.Collator(undefined, { numeric: true });
  const orders = {
    record: (first, second) => first.index - second.index,
    name: (first, second) => names.compare(first.name, second.name),
    likely: (first, second) => second.certainty - first.certainty,
    unlikely: (first, second) => first.certainty - second.certainty,
    short: (first, second) => first.best.words.length - second.best.words.length,
    long: (first, second) => second.best.words.length - first.best.words.length,
  };

  /* What may be shown alone: captions of low confidence, where the page knows, and those that were changed. */
  const filters = { all: () => true };
  function offerFilter(name, label, filter) {
    if (filters[name]) return;
    filters[name] = filter;
    byId("show").append(Object.assign(document.createElement("option"), { value: name, textContent: label }));
    byId("show-label").hidden = false;
  }
  function offerChanged() {
    if (cards.some((card) => card.changed)) offerFilter("changed", "changed captions", (card) => card.changed);
  }
  if (cards.some((card) => card.confidence !== undefined)) {
    orders.doubtful = (first, second) => (first.sure ?? 1) - (second.sure ?? 1);
    byId("order").append(
      Object.assign(document.createElement("option"), { value: "doubtful", textContent: "confidence, lowest first" })
    );
    offerFilter("low", "low confidence", (card) => card.doubtful);
    byId("explain-confidence").hidden = false;
  }

  function arrange() {
    light(litCard, null);
    const wanted = plain(byId("search").value).split(/\s+/).filter(Boolean);
    const order = orders[byId("order").value];
    const filter = filters[byId("show").value];
    shown = cards.filter((card) => filter(card) && wanted.every((word) => card.searched.includes(word)));
    shown.sort((first, second) => order(first, second) || first.index - second.index);
    grid.replaceChildren(...shown.map((card) => card.element));
    const narrowed = wanted.length > 0 || byId("show").value !== "all";
    byId("empty").hidden = shown.length > 0 || !narrowed;
    const total = `${cards.length.toLocaleString("en")} image${cards.length === 1 ? "" : "s"}`;
    byId("count").textContent = narrowed ? `${shown.length.toLocaleString("en")} of ${total}` : total;
  }

  let waiting = 0;
  byId("search").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(arrange, 120); // not at every key: readers would speak of each
  });
  byId("order").addEventListener("change", arrange);
  byId("show").addEventListener("change", arrange);
  byId("tools").addEventListener("submit", (event) => {
    event.preventDefault();
    arrange();
  });

  /* The head: what made the captions, and dark or light. */
  function summarise({ method, beam, temperature, n_best: several }) {
    const found = method === "sample" ? `sampled at temperature ${temperature}` : `beam of ${beam}`;
    return several > 1 ? `${found}, ${several} captions each` : found;
  }

  function fillHead({ model, search }) {
    const { make } = GalleryCard;
    const count = `${cards.length.toLocaleString("en")} image${cards.length === 1 ? "" : "s"}`;
    const known = [folder ? `${count} of ${folder}` : count, model && `model ${model}`].filter(Boolean).join(" · ");
    byId("about").append(make("bdi", "", known));
    if (!search.method) return;
    const settings = Object.entries(search).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
    const details = make("details", "", make("summary", "", summarise(search)), make("div", "", settings.join(", ")));
    byId("about").append(" · ", details);
  }
  fillHead(read(document.querySelector("script.about")));

  /* What the reader changes, until it is saved. */
  const corrections = new Corrections(({ size }) => {
    byId("save").hidden = !size;
    byId("save").textContent = `Save ${size} change${size === 1 ? "" : "s"}`;
  });
  byId("save").addEventListener("click", () => corrections.save("corrections.jsonl"));

  function change(card, choice, correction) {
    card.take(choice, correction);
    if (card.text === card.first) corrections.remove(card.name);
    else corrections.set(card.name, card.text);
    offerChanged();
    const lost = byId("alternatives").contains(document.activeElement);
    fillAlternatives(card);
    show(card, choice);
    if (lost) viewer.focus({ preventScroll: true }); // its button is another now
  }

  /* The dialog, which the address opens: #image-3, #image-3-word-2. */
  const dialog = byId("dialog");
  const viewer = new CaptionViewer(byId("viewer"), { onWord: () => viewer.playing || rewriteAddress() });
  const editor = new CaptionEditor(byId("editor"), {
    onSave: (text) => change(opened, opened.choice, text),
    onRestore: () => change(opened, 0, null),
  });
  let opened = null;

  function rewriteAddress() {
    if (!opened) return;
    const word = viewer.word === null ? "" : `-word-${viewer.word + 1}`;
    try {
      history.replaceState(null, "", `#image-${opened.index + 1}${word}`);
    } catch {
      // Some browsers allow so many a minute only; the address is a convenience.
    }
  }

  function open(card, word = null) {
    opened = card;
    if (!dialog.open) dialog.showModal();
    byId("dialog-name").replaceChildren(GalleryCard.make("bdi", "", card.shortName));
    byId("dialog-name").title = card.name;
    byId("problem").hidden = !card.problem;
    byId("problem").textContent = card.problem ?? "";
    const place = shown.indexOf(card);
    byId("dialog-count").textContent = place < 0 ? "" : `${place + 1} of ${shown.length}`;
    byId("previous").disabled = place <= 0;
    byId("next").disabled = place < 0 || place === shown.length - 1;
    fillAlternatives(card);
    show(card, card.choice, word);
    dialog.scrollTop = 0;
    viewer.focus({ preventScroll: true });
  }

  function show(card, choice, word = null) {
    Array.from(byId("alternatives").children).forEach((row, index) =>
      row.firstChild.setAttribute("aria-pressed", String(index === choice))
    );
    const caption = card.captions[choice];
    const geometry = caption.geometry ?? card.geometry;
    const sure = choice === card.choice ? card.sure : undefined;
    byId("confidence").hidden = sure === undefined;
    byId("confidence").classList.toggle("low", card.doubtful);
    byId("confidence").textContent =
      sure === undefined ? "" : `${card.doubtful ? "Low confidence" : "Confidence"}: ${GalleryCard.explain(sure)}`;
    editor.show({ text: card.text, corrected: card.changed });
    viewer.show({ image: card.address, alt: card.text, caption, geometry, word }).catch(() => {});
  }

  function fillAlternatives(card) {
    const { make } = GalleryCard;
    const several = card.captions.length > 1;
    byId("alternatives").hidden = !several;
    byId("alternatives").replaceChildren(
      ...(several ? card.captions : []).map((caption, index) => {
        const text = make("span", "", make("bdi", "", caption.text));
        if (card.labels) text.prepend(make("bdi", "label", card.labels[index]));
        const certainty = make("span", "", `${GalleryCard.perWord(caption).toFixed(2)} per word`);
        certainty.title = CaptionViewer.PER_WORD;
        const button = make("button", "look", text, certainty);
        button.title = "Show where the model looked";
        const taken = card.correction === null && card.choice === index;
        const take = make("button", "take", taken ? "Taken" : "Take");
        take.title = "Take this caption for the image";
        take.disabled = taken;
        button.type = take.type = "button";
        button.addEventListener("click", () => show(card, index));
        take.addEventListener("click", () => change(card, index, null));
        return make("div", "alternative", button, take);
      })
    );
  }

  function move(step) {
    const card = shown[shown.indexOf(opened) + step];
    if (!card || !shown.includes(opened)) return;
    open(card);
    rewriteAddress();
  }

  function followAddress() {
    const match = /^#image-(\d+)(?:-word-(\d+))?$/.exec(location.hash);
    const card = match && cards[Number(match[1]) - 1];
    if (card) open(card, match[2] ? Number(match[2]) - 1 : null);
    else if (dialog.open) dialog.close();
  }

  byId("previous").addEventListener("click", () => move(-1));
  byId("next").addEventListener("click", () => move(1));
  byId("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && isOutside(event) && dialog.close());
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "PageDown") move(1);
    else if (event.key === "PageUp") move(-1);
    else {
      viewer.handleKey(event);
      return;
    }
    event.preventDefault();
  });
  dialog.addEventListener("close", () => {
    const card = opened;
    opened = null;
    viewer.clear();
    history.replaceState(null, "", location.pathname + location.search);
    card.element.scrollIntoView({ block: "nearest" });
    card.approach();
    card.link.focus({ preventScroll: true });
  });

  function isOutside({ clientX, clientY }) {
    const box = dialog.getBoundingClientRect();
    return clientX < box.left || clientX > box.right || clientY < box.top || clientY > box.bottom;
  }

  addEventListener("hashchange", followAddress);
  offerChanged();
  arrange();
  followAddress();
})();
