"""Images per second from files to captions, against BLIP-base and ViT-GPT2 of `transformers`, all in one run.

    pip install '.[benchmark]'
    python experiments/benchmarks/transformers_models.py --data FOLDER

The two have random weights, which take as long as trained ones: captions of 10 words by a beam of 3, for all. Each has
a process of its own with all cores, and captions a first batch before the clock starts. The median of rounds counts.
Seconds of the cores' time are what others on the machine change least.
The images of the two are decoded one after the other, and prepared by the processors of `transformers`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "data" / "examples"
WORDS, BEAM, BATCH = 10, 3, 8
OURS = "captioner"
Run = Callable[[list[Path]], int]
IMAGES = {OURS: 512, "ViT-GPT2": 16, "BLIP-base": 16}  # enough for each to take some seconds


def captioner_run(model: str | None) -> Run:
    """Return what captions files with one of our models, and counts the captions."""
    from captioner.captioning.captioner import load
    from captioner.captioning.collection import caption_images
    from captioner.commands.arguments import search_beside_encoding

    loaded = load(model)
    search_beside_encoding(loaded)

    def run(paths: list[Path]) -> int:
        # A path is captioned once, however often it is given, so that files that repeat are given in turns.
        counted, rest = 0, list(paths)
        while rest:
            once = list(dict.fromkeys(rest))
            found = caption_images(once, loaded, beam=BEAM, minimum_length=WORDS, maximum_length=WORDS)
            counted += sum(len(result.captions) for result in found)
            rest = rest[len(once) :]
        return counted

    return run


def transformers_run(name: str) -> Run:
    """Return what captions files with a model of `transformers`, and counts the captions."""
    import torch
    import transformers

    from captioner.images.opening import open_image

    model, processor = _build(transformers, name)
    model.eval()
    settings = {"num_beams": BEAM, "min_new_tokens": WORDS, "max_new_tokens": WORDS}

    def run(paths: list[Path]) -> int:
        counted = 0
        with torch.inference_mode():
            for start in range(0, len(paths), BATCH):
                images = [open_image(path) for path in paths[start : start + BATCH]]
                pixels = processor(images=images, return_tensors="pt")["pixel_values"]  # (B, 3, S, S)
                counted += len(model.generate(pixel_values=pixels, **settings))
        return counted

    return run


def _build(transformers: Any, name: str) -> tuple[Any, Any]:
    """Return a model with random weights, and what makes its pixels of images."""
    if name == "BLIP-base":
        model = transformers.BlipForConditionalGeneration(transformers.BlipConfig())
        return model, transformers.BlipImageProcessor()
    words = transformers.GPT2Config(add_cross_attention=True)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(transformers.ViTConfig(), words)
    model = transformers.VisionEncoderDecoderModel(config)
    model.generation_config.decoder_start_token_id = words.bos_token_id
    model.generation_config.pad_token_id = words.eos_token_id
    return model, transformers.ViTImageProcessor()


def measure(name: str, files: list[Path], rounds: int, model: str | None) -> list[tuple[float, float]]:
    """Return the seconds and core seconds per image of each round of one contestant, which runs in this process."""
    paths = list(islice(cycle(files), IMAGES[name]))
    run = captioner_run(model) if name == OURS else transformers_run(name)
    run(paths[:BATCH])
    found = []
    for _ in range(rounds):
        started = time.perf_counter(), time.process_time()
        counted = run(paths)
        found.append(((time.perf_counter() - started[0]) / counted, (time.process_time() - started[1]) / counted))
    return found


def main() -> None:
    """Measure each contestant in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=EXAMPLES, help="folder of images (default: the examples)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--model", help="our model (default: the default one)")
    parser.add_argument("--only", choices=IMAGES, help=argparse.SUPPRESS)  # what the processes are told
    options = parser.parse_args()
    if options.only:
        from captioner.images.finding import find_images

        files = list(find_images([options.data]))
        print(json.dumps(measure(options.only, files, options.rounds, options.model)))
        return
    seconds, core_seconds = {}, {}
    for name in IMAGES:
        command = [sys.executable, __file__, "--only", name, "--data", str(options.data)]
        command += ["--rounds", str(options.rounds), *(["--model", options.model] if options.model else [])]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        wall, cores = zip(*json.loads(output.splitlines()[-1]), strict=True)
        seconds[name], core_seconds[name] = statistics.median(wall), statistics.median(cores)
    print(f"{'model':<12}{'images/s':>10}{'times ours':>12}{'core ms per image':>20}{'times ours':>12}")
    for name in IMAGES:
        times, core_times = seconds[name] / seconds[OURS], core_seconds[name] / core_seconds[OURS]
        print(
            f"{name:<12}{1 / seconds[name]:>10.2f}{times:>12.1f}{1000 * core_seconds[name]:>20.0f}{core_times:>12.1f}"
        )


if __name__ == "__main__":
    main()
