"""Captions from Python: what goes in, what comes out, and that nothing depends on what it should not."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from helpers.awkward_images import COLOURS, exif, jpeg
from helpers.photo_folders import EXAMPLES
from helpers.tar_files import write_tar
from helpers.toy_captioner import make_toy, save_toy, write_images
from PIL import Image

import captioner
from captioner.captioning.caption import Caption, Result
from captioner.captioning.captioner import Captioner, load
from captioner.captioning.collection import caption_images, caption_sources
from captioner.captioning.options import SETTINGS, CaptionOptions, CaptionSettings, OutputOptions, make_options
from captioner.datasets.vocabulary import join_words
from captioner.images.finding import find_sources
from captioner.images.opening import ImageError, open_image
from captioner.images.sources import Source
from captioner.model.bundled import DEFAULT, MANIFEST, bundled_models, distinct_names, find_model
from captioner.model.checkpoint_files import MANIFEST as CHECKPOINT_MANIFEST
from captioner.model.encoders.encoder import Encoder
from captioner.model.search.beam import search
from captioner.model.search_settings import SearchConfig, settings_of
from captioner.threads import map_ahead

CAT = EXAMPLES / "cat.jpg"


@pytest.fixture(scope="module")
def model(lite0: Encoder) -> Captioner:
    return Captioner(make_toy(lite0), device="cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_images(tmp_path_factory.mktemp("photos"), 40)


def assert_same(found: list[Caption], expected: list[Caption]) -> None:
    """Check that captions are the same; numbers may differ by what another batch does to their rounding."""
    assert [caption.words for caption in found] == [caption.words for caption in expected]
    assert [caption.log_prob for caption in found] == pytest.approx(
        [caption.log_prob for caption in expected], abs=1e-3
    )


def test_a_caption_is_what_the_search_finds(model: Captioner, lite0: Encoder) -> None:
    caption = model.caption(CAT)
    prepared = lite0.preprocessing.read(CAT)
    regions = lite0(torch.from_numpy(prepared.pixels).permute(2, 0, 1).unsqueeze(0))  # (1, L, D)
    ((best,),) = search(make_toy(lite0).build_decoder(), regions, SearchConfig())
    assert caption.words == tuple(model.vocabulary.words(best.ids))
    assert caption.text == join_words(model.vocabulary.words(best.ids))
    assert caption.log_prob == pytest.approx(best.log_prob, abs=1e-3)
    assert caption.attention.shape == (len(caption.words), *lite0.grid)
    assert caption.attention.reshape(len(caption.words), -1) == pytest.approx(best.alpha.numpy(), abs=1e-4)
    assert caption.probabilities == pytest.approx(best.probabilities.numpy(), abs=1e-3)
    assert caption.geometry == prepared.geometry
    assert caption.source == CAT


def test_every_kind_of_image_gives_the_same(model: Captioner) -> None:
    image = open_image(CAT)
    pixels = np.asarray(image)  # (height, width, 3)
    tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)  # (3, height, width)
    kinds: list[Any] = [image, pixels, pixels[..., ::-1][..., ::-1], pixels / 255, pixels.astype(np.float32) / 255]
    kinds += [tensor, tensor / 255, (tensor / 255).double(), tensor.contiguous()]
    expected = model.caption(image)
    for kind in kinds:
        assert_same([model.caption(kind)], [expected])
        assert model.caption(kind).open_source().size == image.size
    files = [CAT, str(CAT), CAT.read_bytes()]  # decoded at a smaller size
    assert len({model.caption(file).words for file in files}) == 1


def test_a_pillow_image_is_turned_upright(model: Captioner, tmp_path: Path) -> None:
    (tmp_path / "turned.jpg").write_bytes(jpeg(COLOURS, exif=exif(6)))
    with Image.open(tmp_path / "turned.jpg") as image:
        assert model.caption(image).geometry == model.caption(tmp_path / "turned.jpg").geometry
        assert model.caption(image).geometry.width == image.height


def test_lists_give_lists_in_order(model: Captioner, photos: list[Path]) -> None:
    captions = model.caption(photos)
    assert [caption.source for caption in captions] == photos
    assert_same([model.caption(photo) for photo in photos[:10]], captions[:10])
    assert len({caption.words for caption in captions}) > 10
    assert model.caption(tuple(photos[:2]))[1].words == captions[1].words
    assert model.caption([]) == []
    for size in (1, 7, 1000):
        assert_same(model.caption(photos, batch_size=size), captions)


def test_n_best_gives_alternatives(model: Captioner, photos: list[Path]) -> None:
    single = model.caption(photos[0], n_best=3)
    assert len(single) == 3
    assert len({caption.words for caption in single}) == 3
    assert single[0].words == model.caption(photos[0]).words
    several = model.caption(photos[:4], n_best=8)  # the beam grows with it
    assert [len(captions) for captions in several] == [8] * 4
    assert all(
        caption.source == photo for captions, photo in zip(several, photos, strict=False) for caption in captions
    )
    assert [len(captions) for captions in model.caption(photos[:2], n_best=1)] == [1, 1]
    diverse = [caption.words for caption in model.caption(photos[0], n_best=4, groups=2)]
    assert 2 <= len(set(diverse)) == len(diverse) <= 4  # groups may find the same


def test_a_beam_of_one_is_another_search(model: Captioner, photos: list[Path]) -> None:
    assert [c.words for c in model.caption(photos, beam=1)] != [c.words for c in model.caption(photos)]


def test_samples_depend_on_seed_and_place_only(model: Captioner, photos: list[Path]) -> None:
    first = model.caption(photos, sample=True, seed=1)
    assert_same(model.caption(photos, sample=True, seed=1, batch_size=3), first)
    assert [c.words for c in first] != [c.words for c in model.caption(photos, sample=True, seed=2)]
    again = model.caption([photos[0]] * 6, sample=True)
    assert len({caption.words for caption in again}) > 1  # each image of a list has draws of its own
    sharp = model.caption(photos, sample=True, top_k=1)
    assert [c.words for c in sharp] == [c.words for c in model.caption(photos, sample=True, temperature=0.01)]
    assert len(model.caption(photos[0], n_best=12, sample=True, top_p=0.9)) == 12


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((4, 4), np.uint8), r"the array has the shape \(4, 4\); an image is \(height, width, 3\)"),
        (np.zeros((3, 8, 8), np.uint8), r"the array has the shape \(3, 8, 8\); an image is \(height, width, 3\)"),
        (np.zeros((8, 8, 4), np.uint8), r"the array has the shape \(8, 8, 4\)"),
        (np.zeros((0, 8, 3), np.uint8), r"the array has the shape \(0, 8, 3\)"),
        (np.zeros((1, 8, 8, 3), np.uint8), r"the array has the shape \(1, 8, 8, 3\)"),
        (np.zeros((8, 8, 3), np.int64), "the array holds int64; an image is uint8, 0 to 255, or floats, 0 to 1"),
        (np.full((8, 8, 3), 200.0), "the array holds 200 to 200; floats are from 0 to 1"),
        (np.full((8, 8, 3), np.nan), "the array holds nan to nan; floats are from 0 to 1"),
        (torch.zeros(8, 8, 3), r"the tensor has the shape \(8, 8, 3\); an image is \(3, height, width\)"),
        (torch.full((3, 8, 8), -0.5), "the tensor holds -0.5 to -0.5; floats are from 0 to 1"),
        (torch.zeros(3, 8, 8, dtype=torch.int32), "the tensor holds int32; an image is uint8"),
        (3, "int is not an image; give a path, bytes, a Pillow image, an array or a tensor"),
        (None, "NoneType is not an image"),
        (b"no image", "image: not one of JPEG"),
        (b"", "image: empty file"),
        ("nowhere.jpg", "nowhere.jpg: no such file or directory"),
        (Image.new("RGB", (0, 4)), "it has 0 x 4 pixels"),
    ],
)
def test_what_is_no_image_is_refused_in_one_line(model: Captioner, image: Any, message: str) -> None:
    for given in (image, [CAT, image, CAT]):
        with pytest.raises(ImageError, match=message) as raised:
            model.caption(given)
        assert "\n" not in str(raised.value)


def test_a_pillow_image_that_turns_out_damaged(model: Captioner, tmp_path: Path) -> None:
    (tmp_path / "half.jpg").write_bytes(CAT.read_bytes()[:9000])
    with Image.open(tmp_path / "half.jpg") as image, pytest.raises(ImageError, match="cannot be decoded: "):
        model.caption(image)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_best": 0}, "n_best is 0; it must be at least 1"),
        ({"beam": 0}, "search beam is 0"),
        ({"beam": 2, "n_best": 3}, "n_best is 3; a beam of 2 gives at most 2"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"temperature": 0.5}, "temperature applies to sampling only"),
        ({"seed": 0}, "seed applies to sampling only"),
        ({"sample": True, "beam": 3}, "beam does not apply to sampling"),
        ({"sample": True, "temperature": 0.0}, "search temperature is 0.0"),
        ({"groups": 3, "beam": 4}, "search groups is 3"),
    ],
)
def test_bad_settings_name_the_value(model: Captioner, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.caption(CAT, **settings)


def test_an_unknown_setting_is_an_error(model: Captioner) -> None:
    with pytest.raises(TypeError, match="beams"):
        model.caption(CAT, beams=3)  # type: ignore[call-overload]


def test_what_is_kept_checks_itself() -> None:
    with pytest.raises(ValueError, match="format is 'xml'; choose from jsonl, txt, csv, coco"):
        OutputOptions(("csv", "xml"))
    with pytest.raises(ValueError, match="existing is 'keep'; choose from skip, overwrite, error"):
        OutputOptions(existing="keep")


def test_identity_is_all_that_decides_and_no_more() -> None:
    plain = make_options()
    assert plain == CaptionOptions()
    assert {
        "method": "beam",
        "beam": 5,
        "length_power": 0.9,
        "minimum_length": 1,
        "maximum_length": 30,
        "no_repeat": 3,
        "n_best": 1,
    }.items() <= plain.identity().items()
    absent = {"groups", "diversity", "content_limit", "temperature", "top_k", "top_p", "seed"}
    assert not absent & set(plain.identity())
    assert make_options(batch_size=3, workers=9).identity() == plain.identity()
    assert make_options(groups=1).identity() == plain.identity()
    different = [make_options(beam=3), make_options(n_best=2), make_options(groups=5), make_options(sample=True)]
    different += [make_options(sample=True, seed=1), make_options(sample=True, top_k=3), make_options(groups=2)]
    different.append(make_options(content_limit=1))
    identities = [plain.identity(), *(options.identity() for options in different)]
    assert all(one != two for number, one in enumerate(identities) for two in identities[:number])
    assert make_options(groups=2).search.beam == 6


def test_a_python_call_is_typed_for_every_setting() -> None:
    typed = get_type_hints(CaptionSettings)
    assert typed.pop("sample") is bool
    assert typed == {name: about.type | None for name, about in SETTINGS.items() if name not in ("n_best", "workers")}


@pytest.mark.parametrize("name", settings_of(SearchConfig))
def test_every_setting_reaches_the_search(name: str) -> None:
    about = SETTINGS[name]
    value = about.read("1" if about.most == 1 else "4")
    options = make_options(
        sample=about.method == "sample", **{name: value, **({"beam": 8} if name == "groups" else {})}
    )
    assert getattr(options.search, name) == value
    assert about.default == getattr(SearchConfig(), name)
    assert about.http is not None
    assert about.allows(about.default)
    assert about.http[0] <= about.default <= about.http[1]


def test_many_threads_may_ask_at_once(model: Captioner, photos: list[Path]) -> None:
    expected = model.caption(photos[:12])
    gate = threading.Barrier(4)

    def ask(number: int) -> list[Caption]:
        gate.wait()
        return [model.caption(photo) for photo in photos[:12]] if number % 2 else model.caption(photos[:12])

    with ThreadPoolExecutor(4) as pool:
        for captions in pool.map(ask, range(4)):
            assert_same(captions, expected)


def test_collections_come_in_order_with_reasons(model: Captioner, photos: list[Path], tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"x")
    archive = write_tar(tmp_path / "shard.tar", {"k.jpg": photos[0].read_bytes(), "l.jpg": b"", "m.jpg": b"x"})
    paths = [
        photos[0],
        tmp_path / "bad.jpg",
        photos[1],
        tmp_path / "gone.jpg",
        archive,
        tmp_path / "none.tar",
        photos[2],
    ]
    results = list(caption_sources(model, find_sources(paths), make_options(batch_size=2)))
    assert [result.source.name.removeprefix(f"{tmp_path}/") for result in results] == [
        str(photos[0]),
        "bad.jpg",
        str(photos[1]),
        "gone.jpg",
        "shard.tar/k.jpg",
        "shard.tar/l.jpg",
        "shard.tar/m.jpg",
        "none.tar",
        str(photos[2]),
    ]
    errors = [result.error for result in results if result.error]
    assert [error.name.rpartition("/")[2] for error in errors] == ["bad.jpg", "gone.jpg", "l.jpg", "m.jpg", "none.tar"]
    assert [error.reason for error in errors] == [
        "not one of JPEG, PNG, GIF, WEBP, BMP, TIFF, AVIF, HEIC",
        "no such file or directory",
        "empty file",
        "not one of JPEG, PNG, GIF, WEBP, BMP, TIFF, AVIF, HEIC",
        "no such file or directory",
    ]
    alone = model.caption(photos[:3])
    found = [result.captions[0] for result in results if result.captions]
    assert_same(found, [alone[0], alone[1], alone[0], alone[2]])
    assert [caption.source for caption in found] == [photos[0], photos[1], None, photos[2]]


def test_collections_from_python(model: Captioner, photos: list[Path], tmp_path: Path, lite0: Encoder) -> None:
    (tmp_path / "some" / "more").mkdir(parents=True)
    for number, place in enumerate(("some", "some", "some/more")):
        (tmp_path / place / f"{number}.jpg").write_bytes(photos[number].read_bytes())
    (tmp_path / "some" / "0.jpg").write_bytes(b"")
    write_tar(tmp_path / "shard.tar", {"k.jpg": photos[3].read_bytes()})
    some = tmp_path / "some"
    assert [result.name for result in caption_images(some, model)] == [f"{some}/0.jpg", f"{some}/1.jpg"]
    results = list(caption_images([f"{some}/*.jpg", tmp_path / "shard.tar", "gone.jpg"], model, n_best=2, beam=3))
    assert [result.name.rpartition("/")[2] for result in results] == ["0.jpg", "1.jpg", "k.jpg", "gone.jpg"]
    assert [len(result.captions) for result in results] == [0, 2, 2, 0]
    assert [str(result.error) for result in results if result.error] == [
        f"{some}/0.jpg: empty file",
        "gone.jpg: no such file or directory",
    ]
    expected = model.caption(photos[1], n_best=2, beam=3)
    assert_same(list(results[1].captions), expected)
    folder = save_toy(tmp_path / "model", lite0)
    named = list(caption_images(some, folder, recursive=True))
    assert len(named) == 3
    assert named[1].captions[0].words == model.caption(photos[1]).words
    with pytest.raises(ValueError, match="beam is 0"):  # at once, not with the first result
        caption_images(some, model, beam=0)
    with pytest.raises(ValueError, match="model is 'unheard-of'"):
        caption_images(some, "unheard-of")


def test_a_model_shows_itself_and_can_be_pickled(model: Captioner, photos: list[Path], lite0: Encoder) -> None:
    named = Captioner(make_toy(lite0), device="cpu", engine="torch", threads=1, name="toy")
    assert repr(named) == "Captioner('toy', attention=soft, grid=2x2, device=cpu)"
    assert repr(model) == f"Captioner({model.digest!r}, attention=soft, grid=2x2, device=cpu)"
    again = pickle.loads(pickle.dumps(named))
    assert (again.name, again.digest, again.encodes_in_torch) == ("toy", named.digest, True)
    assert_same(again.caption(photos[:5]), named.caption(photos[:5]))
    # Another process that has imported nothing gets the model with its work.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        (caption,) = pool.map(model.caption, photos[:1])
    assert_same([caption], [model.caption(photos[0])])


def test_sources_are_taken_as_they_are_needed(model: Captioner, photos: list[Path]) -> None:
    taken = 0

    def endless() -> Any:
        nonlocal taken
        while True:
            taken += 1
            yield Source(f"{taken}", photos[0])

    results = caption_sources(model, endless(), make_options(batch_size=4))
    for number in range(1, 13):
        assert next(results).source.name == str(number)
    results.close()  # type: ignore[attr-defined]
    assert taken < 200  # a few groups that are searched together
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("decode", "search"))]


def test_work_ahead_keeps_its_order_and_its_bounds() -> None:
    started: list[int] = []
    ahead = map_ahead(lambda item: started.append(item) or item * item, range(100), workers=3, ahead=5, name="square")
    assert next(ahead) == 0
    assert len(started) <= 6
    assert list(ahead) == [number**2 for number in range(1, 100)]
    with pytest.raises(ZeroDivisionError):
        list(map_ahead(lambda item: 1 // item, [1, 0, 1], workers=2, ahead=2, name="divide"))


def test_loading_by_folder_run_and_name(tmp_path: Path, lite0: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("captioner.model.bundled.PRETRAINED", tmp_path / "pretrained")
    assert MANIFEST == CHECKPOINT_MANIFEST
    with pytest.raises(
        ValueError, match=r"^no model comes with this version; train one with `captioner train .*name its"
    ):
        load()
    with pytest.raises(ValueError, match=r"^model is 'flickr8k-soft'; none is bundled; train one with"):
        load("flickr8k-soft")
    with pytest.raises(
        ValueError, match=f"^{tmp_path} holds no model: neither it nor its best/ has a checkpoint.json$"
    ):
        load(tmp_path)
    folder = save_toy(tmp_path / "run" / "best", lite0)
    expected = Captioner(make_toy(lite0)).caption(CAT)
    for name in (folder, str(folder), tmp_path / "run"):
        assert load(name, device="cpu").caption(CAT).words == expected.words
    for name in ("b-model", "a-model"):
        save_toy(tmp_path / "pretrained" / name, lite0)
    assert bundled_models() == ["a-model", "b-model"]
    assert find_model() == tmp_path / "pretrained" / "a-model"
    assert find_model("b-model") == tmp_path / "pretrained" / "b-model"
    with pytest.raises(ValueError, match=r"^model is 'c'; choose from a-model, b-model, or name a checkpoint folder$"):
        load("c")
    save_toy(tmp_path / "pretrained" / DEFAULT, lite0)
    assert find_model().name == DEFAULT
    assert distinct_names([]) == ()
    assert distinct_names(["a", "b", "a", "a-2", "a"]) == ("a", "b", "a-3", "a-2", "a-4")


def test_public_names_come_without_torch_until_they_are_used() -> None:
    script = """
import sys, captioner
assert not {"torch", "PIL", "numpy"} & set(sys.modules)
assert {"load", "Captioner", "Caption", "caption_images", "ImageError", "__version__"} <= set(dir(captioner))
assert "torch" not in sys.modules
from captioner import ImageError
assert issubclass(ImageError, ValueError) and "torch" not in sys.modules
import captioner.commands.caption
assert "torch" not in sys.modules
try:
    captioner.paint
except AttributeError as error:
    assert str(error) == "module 'captioner' has no attribute 'paint'"
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert captioner.load is load
    assert captioner.Captioner is Captioner
    assert captioner.Caption is Caption
    assert captioner.ImageError is ImageError
    assert captioner.caption_images is caption_images


def test_a_caption_draws_itself(model: Captioner, tmp_path: Path) -> None:
    caption = model.caption(open_image(CAT))
    short = replace(caption, words=caption.words[:2], **{
        name: getattr(caption, name)[:2] for name in ("probabilities", "attention", "beta")
    })  # fmt: skip
    short.save_overlay(tmp_path / "cat.png", dpi=50)
    assert Image.open(tmp_path / "cat.png").format == "PNG"


def test_results_are_plain() -> None:
    failed = Result.failed(Source("a\nb", Path("a")), "why")
    assert (failed.name, failed.captions, failed.error and failed.error.reason) == ("a\nb", (), "why")
    assert str(failed.error) == r"'a\nb': why"


def test_the_size_of_batches_changes_nothing_to_the_last_digit(tmp_path: Path) -> None:
    model = load("flickr8k-soft", device="cpu", threads=1)  # the order of computing depends on a model's size as well
    paths = write_images(tmp_path / "many", 37)
    (tmp_path / "many" / "0002.jpg").write_bytes(b"junk")

    def plain(batch_size: int) -> list[list[dict[str, Any]]]:
        results = caption_sources(model, find_sources(paths), make_options(batch_size=batch_size, n_best=2))
        return [[caption.to_dict() for caption in result.captions] for result in results]

    whole = plain(64)
    assert sum(map(bool, whole)) == 36
    for size in (1, 7, 33):
        assert plain(size) == whole
    model.close()


def test_an_interrupt_ends_a_search_under_way(
    model: Captioner, photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    searching = threading.Event()

    def search_for_ever(*arguments: Any) -> None:
        searching.set()
        while True:
            arguments[-1]()  # what is called before each word

    def sources() -> Iterator[Source]:
        while not searching.is_set():
            yield Source("photo.jpg", photos[0])
        raise KeyboardInterrupt  # as Ctrl-C and SIGTERM do

    monkeypatch.setattr("captioner.captioning.captioner.search", search_for_ever)
    with pytest.raises(KeyboardInterrupt):
        list(caption_sources(model, sources(), CaptionOptions(batch_size=1)))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("search")]
