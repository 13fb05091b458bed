// Pages of runs: values under the pointer, the samples of an epoch, and a page that reloads itself while training goes.
"use strict";

for (const figure of document.querySelectorAll(".curves")) {
  const { left, scale, digits, curves } = JSON.parse(figure.dataset.points);
  const svg = figure.querySelector("svg");
  const cursor = figure.querySelector(".cursor");
  const at = figure.querySelector(".at");
  const outputs = [...figure.querySelectorAll(".legend output")];
  const last = outputs.map((output) => output.textContent);
  const written = (value) => (digits ? value.toFixed(digits) : value.toExponential(2));

  const nearest = (points, step) =>
    points.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best));

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const step = (x - left) / scale;
    if (step < 0) return;
    const found = curves.map((points) => nearest(points, step));
    const shown = found.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best));
    cursor.removeAttribute("hidden");
    cursor.setAttribute("x1", left + shown[0] * scale);
    cursor.setAttribute("x2", left + shown[0] * scale);
    at.textContent = `step ${Math.round(shown[0]).toLocaleString("en")}`;
    outputs.forEach((output, index) => { output.textContent = written(found[index][1]); });
  });
  svg.addEventListener("pointerleave", () => {
    cursor.setAttribute("hidden", "hidden");
    at.textContent = "";
    outputs.forEach((output, index) => { output.textContent = last[index]; });
  });
}

const slider = document.querySelector(".epochs input");
if (slider) {
  const key = `epoch of ${location.pathname}`;
  const groups = [...document.querySelectorAll(".epoch")];
  const show = () => {
    groups.forEach((group, index) => { group.hidden = index !== Number(slider.value); });
    document.querySelector(".epochs output").textContent = `epoch ${groups[slider.value].dataset.epoch}`;
  };
  // Whoever looks at an earlier epoch goes on looking at it when the page is loaded again.
  const kept = groups.findIndex((group) => group.dataset.epoch === sessionStorage.getItem(key));
  slider.value = kept < 0 ? groups.length - 1 : kept;
  slider.addEventListener("input", () => {
    show();
    const newest = Number(slider.value) === groups.length - 1;
    if (newest) sessionStorage.removeItem(key);
    else sessionStorage.setItem(key, groups[slider.value].dataset.epoch);
  });
  show();
}

const main = document.querySelector("main");
if (main.dataset.refresh) {
  const news = document.querySelector(".news");
  const old = Date.now() / 1000 - Number(main.dataset.written);
  if (old > 600) {
    const minutes = Math.round(old / 60);
    news.textContent = `No news for ${minutes < 120 ? `${minutes} minutes` : `${Math.round(minutes / 60)} hours`}: it may have been killed.`;
  }
  const reload = () => {
    if (document.hidden || document.querySelector(".curves:hover")) setTimeout(reload, 1000);
    else location.reload();
  };
  setTimeout(reload, 1000 * Number(main.dataset.refresh));
}
