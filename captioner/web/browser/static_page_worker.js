/* The worker of the static page: it holds the model, and captions images without stopping the page.
 *
 * It is made from text, so that it starts from file:// too, after static_page_resize.js and static_page_search.js.
 * It is told                                        it answers
 *   {type: "part", file, text}                        nothing: a piece of a file, gzip in base64
 *   {type: "start", about}  model.json's contents     {type: "ready"} or {type: "failed", reason}
 *   {type: "caption", id, image, count}  a Blob       {type: "captioned", id, captions, geometry, milliseconds}
 *                                                     or {type: "refused", id, reason}
 */
"use strict";

let about = null;
let sessions = null;
let runtime = null; // the module of ONNX Runtime
const pieces = new Map(); // of files: their bytes so far
let turn = Promise.resolve(); // one image after the other

onmessage = ({ data }) => {
  if (data.type === "part") keep(data.file, data.text);
  else if (data.type === "start") turn = start(data.about);
  else turn = turn.then(() => answer(data));
};

/* The files. */

function keep(file, text) {
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let place = 0; place < bytes.length; place++) bytes[place] = characters.charCodeAt(place);
  pieces.set(file, [...(pieces.get(file) ?? []), bytes]);
}

async function unpack(file) {
  const stream = new Blob(pieces.get(file)).stream().pipeThrough(new DecompressionStream("gzip"));
  pieces.delete(file);
  return new Response(stream).arrayBuffer();
}

async function start(given) {
  try {
    about = given;
    const script = new Blob([await unpack("runtime.mjs")], { type: "text/javascript" });
    runtime = await import(URL.createObjectURL(script));
    // More threads need headers that a plain static host does not send, and file:// never has.
    runtime.env.wasm.numThreads = 1;
    runtime.env.wasm.wasmBinary = await unpack("runtime.wasm");
    sessions = {};
    for (const name of ["encoder", "start", "step"]) {
      sessions[name] = await runtime.InferenceSession.create(await unpack(`${name}.onnx`), {
        executionProviders: ["wasm"],
      });
    }
    postMessage({ type: "ready" });
  } catch (error) {
    postMessage({ type: "failed", reason: String(error?.message ?? error) });
  }
}

/* The model. */

async function run(name, values) {
  const session = sessions[name];
  return session.run(Object.fromEntries(session.inputNames.map((input) => [input, values[input]])));
}

/* Rows of a state (1, K, H). */
function select(state, rows) {
  const width = state.dims[2];
  const selected = new Float32Array(rows.length * width);
  rows.forEach((row, place) => selected.set(state.data.subarray(row * width, (row + 1) * width), place * width));
  return new runtime.Tensor("float32", selected, [1, rows.length, width]);
}

async function findCaptions(pixels, count) {
  const { size } = about.preprocessing;
  const { regions } = await run("encoder", { pixels: new runtime.Tensor("uint8", pixels, [1, size, size, 3]) });
  const values = await run("start", { regions });
  let state = [values.hidden, values.cell];
  let read = 0; // words so far
  const advance = async (words, parents) => {
    const [hidden, cell] = state.map((each) => select(each, parents));
    const step = await run("step", {
      ...values,
      hidden,
      cell,
      words: new runtime.Tensor("int32", Int32Array.from(words), [1, words.length]),
      step: new runtime.Tensor("int32", Int32Array.of(read++), []),
    });
    state = [step.next_hidden, step.next_cell];
    return { logProbs: step.log_probs.data, alpha: step.alpha.data, beta: step.beta.data };
  };
  return BeamSearch.search(advance, about.search, about.markers, count);
}

/* The image. */

async function openImage(blob) {
  const start = new Uint8Array(await blob.slice(0, 2).arrayBuffer());
  // Colour profiles are left alone, as the package leaves them.
  const bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none" });
  const { width, height } = bitmap;
  const read = (left, top, columns, rows) => {
    const context = new OffscreenCanvas(columns, rows).getContext("2d", { willReadFrequently: true });
    context.fillStyle = "white"; // what transparent pixels lie on
    context.fillRect(0, 0, columns, rows);
    context.drawImage(bitmap, left, top, columns, rows, 0, 0, columns, rows);
    return context.getImageData(0, 0, columns, rows).data;
  };
  return { width, height, read, jpeg: start[0] === 0xff && start[1] === 0xd8, close: () => bitmap.close() };
}

async function answer({ id, image: blob, count }) {
  let image = null;
  try {
    image = await openImage(blob);
  } catch {
    return postMessage({ type: "refused", id, reason: "This browser cannot open the file as an image." });
  }
  try {
    const started = performance.now();
    const geometry = Fitting.geometry(about.preprocessing, image.width, image.height);
    const found = await findCaptions(Fitting.fit(image, about.preprocessing), count);
    const captions = found.map(describe);
    postMessage({ type: "captioned", id, captions, geometry, milliseconds: performance.now() - started });
  } catch (error) {
    postMessage({ type: "refused", id, reason: `The image could not be captioned: ${error?.message ?? error}` });
  } finally {
    image.close();
  }
}

/* A caption as a record of captions.jsonl has it. */
function describe({ ids, logProb, probabilities, alphas, betas }) {
  const words = ids.map((id) => about.words[id]);
  const [rows, columns] = about.grid;
  const grid = (alpha) => Array.from({ length: rows }, (_, row) => [...alpha.slice(row * columns, (row + 1) * columns)]);
  return { text: join(words), words, probabilities, log_prob: logProb, attention: alphas.map(grid), beta: betas };
}

/* Words as a sentence: "the man 's dog" becomes "the man's dog". */
function join(words) {
  const cut = about.cut_words.map((pair) => pair.join(" "));
  return words.reduce((text, word, place) => {
    const joined = about.contractions.includes(word) || cut.includes(`${words[place - 1]} ${word}`);
    return place === 0 ? word : text + (joined ? "" : " ") + word;
  }, "");
}
