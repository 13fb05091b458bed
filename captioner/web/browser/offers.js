/* What the server offers on the page of `captioner serve`: models to choose from, and images to try.
 *
 *   Offers.showModels(form, models, onChange)     the chosen one is the value of the form's input or select "model"
 *   Offers.showExamples(list, examples, client, onChoose, onError)     onChoose is given a File
 */
"use strict";

const Offers = (() => {
  function make(tag, properties, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  }

  function showModels(form, models, onChange) {
    form.hidden = models.length < 2;
    let choice;
    if (models.length <= 3) {
      const labels = models.map((model, place) => {
        const input = make("input", { type: "radio", name: "model", value: model.name, checked: place === 0 });
        return make("label", { title: `${model.attention} attention` }, input, make("span", {}, model.name));
      });
      choice = make("div", { className: "choice" }, ...labels);
      choice.setAttribute("role", "radiogroup");
    } else {
      const options = models.map((model) => make("option", { value: model.name }, model.name));
      choice = make("select", { name: "model" }, ...options);
    }
    choice.setAttribute("aria-label", "Model");
    form.replaceChildren(choice);
    form.onchange = onChange;
  }

  function showExamples(list, examples, client, onChoose, onError) {
    const entries = examples.map(({ name, url }) => {
      const picture = make("img", { alt: name, loading: "lazy", decoding: "async" });
      // An <img> sends no token.
      if (client.token) client.blob(url).then((blob) => (picture.src = URL.createObjectURL(blob)), () => {});
      else picture.src = url;
      const button = make("button", { type: "button", title: name }, picture);
      button.addEventListener("click", async () => {
        try {
          const blob = await client.blob(url);
          onChoose(new File([blob], decodeURIComponent(url.split("/").pop()), { type: blob.type }));
        } catch (error) {
          onError(error);
        }
      });
      return make("li", {}, button);
    });
    list.replaceChildren(...entries);
  }

  return Object.freeze({ showModels, showExamples });
})();
