/* Photographs that the reader gives to a page: chosen, taken with the camera, dropped or pasted.
 *
 * Incoming.listen(take, refuse)   take(files) gets an array of files; refuse(reason) is told why there are none
 *
 * The page has the buttons "choose" and "photograph" and their inputs "file" and "camera"; while files are dragged over
 * it, its body has the class "dragging".
 */
"use strict";

const Incoming = (() => {
  const at = (id) => document.getElementById(id);
  const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");

  function listen(take, refuse) {
    for (const [button, input] of [["choose", "file"], ["photograph", "camera"]]) {
      at(button).addEventListener("click", () => at(input).click());
      at(input).addEventListener("change", () => {
        take([...at(input).files]);
        at(input).value = ""; // so that the same file can be chosen again
      });
    }

    let depth = 0; // of elements that a dragged file is over
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
      const files = [...event.dataTransfer.files];
      if (files.length) take(files);
      else refuse("That is not an image file. Copy the image and paste it here, or save it first.");
    });
    addEventListener("paste", (event) => {
      if (event.target.closest?.("textarea, input")) return;
      const files = [...(event.clipboardData?.files ?? [])];
      if (files.length) take(files);
      else refuse("The clipboard holds no image. Copy an image, then paste it here.");
    });
  }

  return { listen };
})();
