"""A trained model as ONNX graphs and JSON: all that captioning takes, for runtimes without torch or this package."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captioner import __version__
from captioner.datasets.vocabulary import CONTRACTIONS, CUT_WORDS, END, PAD, START, UNKNOWN
from captioner.files import write_whole
from captioner.model.checkpoint import Checkpoint
from captioner.model.encoders.onnx_graph import build_graph
from captioner.model.onnx.decoder import build_start, build_step
from captioner.model.onnx.nodes import Unsupported, store_in_half
from captioner.model.search_settings import SearchConfig, settings_of

FORMAT = 1
ABOUT = "model.json"
_LEFT_OUT = ("groups", "diversity", "content_limit")  # off by default, and left to the package
_FITS = ("squash", "crop")  # the others have regions that are missing


@dataclass(frozen=True)
class OnnxModel:
    """Three serialised graphs, by file name (see `onnx_graph` and `onnx_decoder`), and what to do with them."""

    graphs: dict[str, bytes]
    about: dict[str, Any]  # plain values for JSON

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write graphs and JSON into a folder, the JSON last: where it is, all is."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, contents in self.graphs.items():
            write_whole(folder / name, contents)
        write_whole(folder / ABOUT, json.dumps(self.about, indent=1, ensure_ascii=False) + "\n")


def to_onnx(checkpoint: Checkpoint, name: str, *, half: bool = True) -> OnnxModel:
    """Return the graphs of a model and all that is said of it, by a name.

    `half` stores weights in half precision; all is computed in single precision. Raise ValueError for an encoder or
    decoder that has no translation.
    """
    encoder, decoder = checkpoint.build_encoder(), checkpoint.build_decoder()
    if encoder.preprocessing.fit not in _FITS:
        raise Unsupported(f"no ONNX translation of encoder.fit {encoder.preprocessing.fit}")
    rows, columns = encoder.grid
    regions = rows * columns
    graphs = {
        "encoder.onnx": build_graph(encoder).to_bytes(),
        "start.onnx": build_start(decoder, encoder.dimensions, regions),
        "step.onnx": build_step(decoder, regions),
    }
    if half:
        graphs = {file: store_in_half(graph) for file, graph in graphs.items()}
    about = {
        "format": FORMAT,
        "captioner": __version__,
        "name": name,
        "digest": checkpoint.digest,
        "attention": checkpoint.attention.mode,
        "grid": [rows, columns],
        "preprocessing": encoder.preprocessing.to_dict(),
        "search": _beam_settings(),
        "markers": {"pad": PAD, "start": START, "end": END, "unknown": UNKNOWN},
        "words": list(checkpoint.vocabulary.entries),
        # What is written without a space before it, and pairs of words without one between them.
        "contractions": sorted(CONTRACTIONS),
        "cut_words": [list(pair) for pair in CUT_WORDS.values() if pair],
    }
    return OnnxModel(graphs, about)


def _beam_settings() -> dict[str, float]:
    """Return the default settings of a beam search, as `SearchConfig` describes them."""
    config = SearchConfig()
    names = [name for name, about in settings_of(SearchConfig).items() if about.method in (None, "beam")]
    return {name: getattr(config, name) for name in names if name not in _LEFT_OUT}
