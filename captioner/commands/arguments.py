"""Arguments that several commands share, and what is made of them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.captioning.options import SETTINGS, CaptionOptions, make_options
from captioner.commands.messages import say
from captioner.commands.parser import checking_usage, positive
from captioner.files import printable
from captioner.images.preprocessing import FITS
from captioner.model.bundled import DEFAULT
from captioner.model.config import WEIGHTS, EncoderConfig
from captioner.model.extensions import allow
from captioner.model.search_settings import SearchConfig, settings_of

if TYPE_CHECKING:
    from captioner.captioning.captioner import Captioner
    from captioner.datasets.dataset import CaptionDataset


def add_setting(group: Any, name: str) -> None:
    """Add one of the settings of captioning."""
    about = SETTINGS[name]

    def read(text: str) -> float:
        try:
            return about.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is refused; {error}") from None

    default = "" if about.default is None else f" (default: {about.default:g})"
    group.add_argument(f"--{name.replace('_', '-')}", type=read, metavar=about.metavar, help=about.help + default)


def add_search_arguments(group: Any) -> None:
    """Add all settings of a search but its seed and how many captions it gives."""
    of_samples = [name for name, about in settings_of(SearchConfig).items() if about.method == "sample"]
    for name in settings_of(SearchConfig):
        if name not in of_samples:
            add_setting(group, name)
    group.add_argument("--sample", action="store_true", help="draw words at random instead of following a beam")
    for name in of_samples:
        add_setting(group, name)


def read_search(options: argparse.Namespace) -> CaptionOptions:
    """Return what the arguments ask for; a seed counts for samples only, and may mean something else to the command."""
    given: dict[str, Any] = {name: getattr(options, name, None) for name in SETTINGS}
    if not options.sample:
        given["seed"] = None
    with checking_usage():
        return make_options(sample=options.sample, **given)


def add_dataset_arguments(parser: Any) -> None:
    """Add DATA and how it is read."""
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of the data set")
    add_reading_arguments(parser)
    parser.add_argument("--seed", type=int, help="seed of the split, for data that comes without one (default: 0)")


def add_reading_arguments(parser: Any) -> None:
    """Add how a data set is read."""
    parser.add_argument(
        "--format", type=_data_format, metavar="NAME", help="format of the data set (default: recognised by its files)"
    )
    parser.add_argument(
        "--restval-to-train", action="store_true", help="count Karpathy's restval images as training images"
    )
    parser.add_argument(
        "--tolerance",
        type=_share,
        default=0.01,
        metavar="SHARE",
        help="accept up to this share of unusable lines or images",
    )


def _data_format(text: str) -> str:
    from captioner.datasets.dataset import FORMATS

    if text not in FORMATS:
        raise argparse.ArgumentTypeError(f"unknown format {text!r}; choose from {', '.join(FORMATS)}")
    return text


def _share(text: str) -> float:
    if not 0 <= float(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share from 0 to 1")
    return float(text)


def read_dataset(options: argparse.Namespace) -> CaptionDataset:
    """Return the data set that the arguments name."""
    from captioner.datasets.dataset import load_dataset

    return load_dataset(
        options.data,
        options.format,
        restval_to_train=options.restval_to_train,
        tolerance=options.tolerance,
        seed=options.seed,
    )


def add_encoder_arguments(parser: Any) -> None:
    """Add a group of options that name an encoder."""
    group = parser.add_argument_group("encoder")
    default = EncoderConfig()
    group.add_argument(
        "--encoder", metavar="NAME", default=default.name, help="name of the encoder, see `captioner encoders`"
    )
    group.add_argument(
        "--size", metavar="S", type=positive, help="side of its input in pixels (default: the encoder's)"
    )
    group.add_argument(
        "--layer", metavar="strideN", help="layer to take regions from, such as stride16 (default: the last)"
    )
    group.add_argument(
        "--fit", choices=FITS, help="make images square: squash, crop, or pad with masked cells (default: squash)"
    )
    group.add_argument(
        "--weights", metavar="W", default=default.weights, help=f"{', '.join(WEIGHTS)}, or a safetensors file"
    )


def encoder_config(options: argparse.Namespace) -> EncoderConfig:
    """Return the encoder's settings that the arguments give; a module outside of captioner may be named in them."""
    allow(options.encoder)
    with checking_usage():
        return EncoderConfig(options.encoder, options.size, options.layer, options.fit, options.weights)


def add_features_argument(parser: Any) -> None:
    """Add --features."""
    parser.add_argument(
        "--features",
        type=Path,
        metavar="DIR",
        help="read regions from the caches in this folder, where one fits the model",
    )


def with_features(model: Captioner, features: Path | None) -> Captioner:
    """Return a model that reads regions from the cache below a folder that is of its encoder, where one is named."""
    if features is None:
        return model
    from captioner.evaluation.model_captions import SplitCaptioner, open_cache

    cache = open_cache(features, model.encoder_identity)
    if cache is None:
        say(f"{model.name}: no regions of its encoder in {features}; images are encoded")
        return model
    return SplitCaptioner(model, [], cache)


def add_model_argument(parser: Any, *, several: str | None = None, default: str = DEFAULT) -> None:
    """Add --model, which `several` tells how to give more than once."""
    parser.add_argument(
        "--model",
        action="append" if several else "store",
        metavar="NAME",
        help=f"bundled model or checkpoint folder{f'; {several}' if several else ''} (default: {default})",
    )


def add_download_argument(parser: Any) -> None:
    """Add --allow-download."""
    parser.add_argument(
        "--allow-download",
        action="store_true",
        help="download the encoder's weights where a model comes without them",
    )


def add_device_argument(parser: Any) -> None:
    """Add --device."""
    parser.add_argument("--device", default="auto", help="where to compute: auto, cpu, cuda, cuda:1 or mps")


def read_device(options: argparse.Namespace) -> str:
    """Return the device that the arguments name, for this process."""
    from captioner.processes import choose_process_device

    with checking_usage():
        return choose_process_device(options.device)


def cores_per_process() -> int:
    """Return this process's share of the cores, beside others that torchrun has started on this machine."""
    from captioner.threads import available_cores

    return max(1, available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def search_beside_encoding(model: Captioner) -> None:
    """Let torch search with one thread where others encode: threads that wait for each other come off badly then."""
    from torch import set_num_threads

    if model.device == "cpu" and not model.encodes_in_torch:
        set_num_threads(1)


def no_images(paths: Sequence[str], *, recursive: bool, unread: str = "") -> ValueError:
    """Return the error that there is nothing to do; `unread` tells what there is instead."""
    hint = "" if recursive or not any(map(_has_subfolders, paths)) else "; --recursive searches subfolders too"
    left_out = f"; left out: {unread}" if unread else ""
    return ValueError(f"no images in {', '.join(map(printable, paths))}{hint}{left_out}")


def _has_subfolders(path: str) -> bool:
    try:
        with os.scandir(path) as entries:
            return any(entry.is_dir() and not entry.name.startswith(".") for entry in entries)
    except OSError:
        return False
