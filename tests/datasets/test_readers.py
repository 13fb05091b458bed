"""Each reader on a small folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.data_folders import (
    captions_by_name,
    captions_txt,
    change_json,
    coco,
    flickr8k,
    karpathy,
    write_image,
)

from captioner.datasets.dataset import load_dataset

# --- flickr8k


@pytest.mark.parametrize("text_folder", ["Flickr8k_text", "."])
def test_flickr8k_reads_splits_and_leaves_out_unlisted_images(tmp_path, text_folder):
    flickr8k(tmp_path, text_folder)
    dataset = load_dataset(tmp_path)
    assert (dataset.format, dataset.name) == ("flickr8k", "Flickr8k")
    assert dataset.splits() == {"train": 1, "val": 1, "test": 1}
    [image] = dataset.split("val")
    assert image.file_name == "Flicker8k_Dataset/b.jpg"
    assert image.path == tmp_path / "Flicker8k_Dataset" / "b.jpg"
    assert image.captions == ("A dog , b 0 .", "A dog , b 1 .")
    assert image.tokens is None
    assert image.tokenized() == (("a", "dog", "b", "0"), ("a", "dog", "b", "1"))
    assert dataset.notes == ("left out 1 of 4 captioned images: they are in no split list",)
    assert len(dataset.problems) == 0


def test_flickr8k_accepts_the_other_spelling_of_the_image_folder(tmp_path):
    flickr8k(tmp_path)
    (tmp_path / "Flicker8k_Dataset").rename(tmp_path / "Flickr8k_Dataset")
    assert load_dataset(tmp_path).images[0].file_name == "Flickr8k_Dataset/a.jpg"


def test_flickr8k_counts_bad_lines_and_keeps_the_good_ones(tmp_path):
    text = flickr8k(tmp_path)
    good = (text / "Flickr8k.token.txt").read_bytes()
    bad = b"no tab here\nb.jpg#x\tno number\n../b.jpg#0\toutside\nb.jpg#2\tcaf\xe9\nb.jpg#3\t  \n"
    (text / "Flickr8k.token.txt").write_bytes(b"\xef\xbb\xbf" + good.replace(b"\n", b"\r\n") + bad)
    (text / "Flickr_8k.testImages.txt").write_text("c.jpg\nnever-captioned.jpg\n")
    write_image(tmp_path / "Flicker8k_Dataset" / "never-captioned.jpg")
    dataset = load_dataset(tmp_path, tolerance=0.9)
    assert dataset.problems.counts() == {"malformed line": 4, "empty caption": 1, "image without captions": 1}
    wheres = [problem.where for problem in dataset.problems.first("malformed line")]
    assert wheres == [f"Flickr8k_text/Flickr8k.token.txt:{number}" for number in (9, 10, 11, 12)]
    assert "0xe9" in dataset.problems.first("malformed line")[3].detail
    [uncaptioned] = dataset.problems.first("image without captions")
    assert uncaptioned.where == "Flickr8k_text/Flickr_8k.testImages.txt:2"
    assert captions_by_name(dataset)["Flicker8k_Dataset/a.jpg"] == ("A dog , a 0 .", "A dog , a 1 .")
    assert captions_by_name(dataset)["Flicker8k_Dataset/b.jpg"] == ("A dog , b 0 .", "A dog , b 1 .")


def test_flickr8k_image_in_two_lists_is_in_both_splits(tmp_path):
    text = flickr8k(tmp_path)
    (text / "Flickr_8k.testImages.txt").write_text("c.jpg\na.jpg\n")
    dataset = load_dataset(tmp_path)
    assert dataset.splits() == {"train": 1, "val": 1, "test": 2}
    assert [image.split for image in dataset.images if image.file_name.endswith("/a.jpg")] == ["train", "test"]


def test_flickr8k_without_split_lists(tmp_path):
    text = flickr8k(tmp_path)
    (text / "Flickr_8k.devImages.txt").unlink()
    dataset = load_dataset(tmp_path)
    assert dataset.splits() == {"train": 1, "test": 1}
    assert "Flickr_8k.devImages.txt is absent: no val split" in dataset.notes
    for stem in ("trainImages", "testImages"):
        (text / f"Flickr_8k.{stem}.txt").unlink()
    with pytest.raises(ValueError, match="no split list"):
        load_dataset(tmp_path)


# --- captions-txt


def test_captions_txt_handles_commas_and_quotes_line_by_line(tmp_path):
    content = (
        b"image,caption\n"
        b"a.jpg,A dog , running\n"
        b'a.jpg,"Two dogs, one ""big"" one"\n'
        b'b.jpg,"never closed\n'
        b'c.jpg,A 6" ruler\n'
        b'"d.jpg","quoted name"\n'
        b"b.jpg,after it\n"
        b"no comma\n"
        b",no name\n"
        b"b.jpg,\xff\n"
        b"b.jpg,\n"
    )
    captions_txt(tmp_path, content)
    dataset = load_dataset(tmp_path, tolerance=0.5)
    assert dataset.format == "captions-txt"
    assert captions_by_name(dataset) == {
        "Images/a.jpg": ("A dog , running", 'Two dogs, one "big" one'),
        "Images/b.jpg": ("after it",),
        "Images/c.jpg": ('A 6" ruler',),
        "Images/d.jpg": ("quoted name",),
    }
    assert dataset.problems.counts() == {"malformed line": 4, "empty caption": 1}
    assert [problem.where for problem in dataset.problems.first("malformed line")] == [
        "captions.txt:4", "captions.txt:8", "captions.txt:9", "captions.txt:10",
    ]  # fmt: skip


def test_captions_txt_image_folder_in_any_case(tmp_path):
    captions_txt(tmp_path, b"image,caption\na.jpg,A dog\n", folder="IMAGES")
    assert load_dataset(tmp_path).images[0].file_name == "IMAGES/a.jpg"


def test_captions_txt_without_its_header_is_an_error(tmp_path):
    captions_txt(tmp_path, b"a.jpg,A dog\n")
    with pytest.raises(ValueError, match=r"captions\.txt starts with 'a\.jpg,A dog', expected the header"):
        load_dataset(tmp_path)


# --- coco


@pytest.mark.parametrize("image_parent", ["", "images"])
def test_coco_reads_both_splits_silently(tmp_path, capsys, image_parent):
    coco(tmp_path, image_parent=image_parent)
    dataset = load_dataset(tmp_path)
    assert (dataset.format, dataset.name) == ("coco", "COCO 2017")
    assert dataset.splits() == {"train": 2, "val": 2}
    image = dataset.split("val")[0]
    assert image.file_name == str(Path(image_parent, "val2017", "000000000011.jpg"))
    assert (image.image_id, image.captions) == (11, ("Caption 11",))
    assert capsys.readouterr().out == ""


def test_coco_of_two_years_must_be_chosen(tmp_path):
    coco(tmp_path, "2014")
    coco(tmp_path, "2017")
    for format in (None, "coco"):
        with pytest.raises(ValueError, match="coco2014 or coco2017"):
            load_dataset(tmp_path, format)
    dataset = load_dataset(tmp_path, "coco2014")
    assert dataset.format == "coco2014"
    assert {image.file_name.split("/")[0] for image in dataset.images} == {"train2014", "val2014"}


def test_coco_with_one_split_is_fine(tmp_path):
    coco(tmp_path)
    (tmp_path / "annotations" / "captions_train2017.json").unlink()
    assert load_dataset(tmp_path).splits() == {"val": 2}


def test_coco_counts_bad_records(tmp_path):
    coco(tmp_path)
    path = tmp_path / "annotations" / "captions_train2017.json"

    def spoil(content):
        content["images"] += [5, {"id": 4}, {"id": [], "file_name": "x.jpg"}, {"id": 6, "file_name": "/etc/x.jpg"}]
        content["images"].append({"id": 3, "file_name": "000000000001.jpg.none"})
        content["images"].append({"id": 7, "file_name": "lonely.jpg"})
        content["annotations"] += [
            {"id": 71, "image_id": 999, "caption": "nobody's"},
            {"id": 72, "image_id": 1, "caption": " \n"},
            {"id": 73, "image_id": 1, "caption": None},
            {"id": 74, "image_id": 1},
            {"id": 75, "image_id": 1, "caption": "\ud800"},
            {"image_id": 1, "caption": "no id"},
            {"id": 76, "image_id": {}, "caption": "no image id"},
            "not a record",
        ]

    change_json(path, spoil)
    write_image(tmp_path / "train2017" / "lonely.jpg")
    dataset = load_dataset(tmp_path, tolerance=0.9)
    assert dataset.problems.counts() == {
        "malformed image record": 4,
        "malformed line": 6,
        "empty caption": 1,
        "unknown image id": 1,
        "missing image": 1,
        "image without captions": 1,
    }
    [unknown] = dataset.problems.first("unknown image id")
    assert unknown.where == "annotations/captions_train2017.json: annotation 71"
    assert "999" in unknown.detail
    assert dataset.splits() == {"train": 2, "val": 2}
    assert dataset.split("train")[0].captions == ("Caption 1",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"images": [', "not valid JSON.*line 1 column 13"),
        (b"[1]", "JSON list, expected an object"),
        (b'{"images": []}', "no list 'annotations'"),
        (b'{"images": {}, "annotations": []}', "no list 'images'"),
        (b'{"images": "\xff"}', "not UTF-8.*0xff at 12"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_coco_broken_file_is_an_error_that_names_it(tmp_path, content, message):
    coco(tmp_path)
    (tmp_path / "annotations" / "captions_val2017.json").write_bytes(content)
    with pytest.raises(ValueError, match=f"captions_val2017.json .*{message}"):
        load_dataset(tmp_path)


# --- karpathy


def test_karpathy_keeps_splits_tokens_and_ids(tmp_path):
    karpathy(tmp_path)
    dataset = load_dataset(tmp_path)
    assert list(dataset.splits().items()) == [("train", 1), ("restval", 1), ("val", 1), ("test", 1)]
    [image] = dataset.split("restval")
    assert (image.file_name, image.image_id) == ("val2014/1.jpg", 101)
    assert image.captions == ("A Dog, number 1.",)
    assert image.tokens == image.tokenized() == (("a", "dog", "number", "1"),)


def test_karpathy_restval_can_join_train(tmp_path):
    karpathy(tmp_path)
    assert load_dataset(tmp_path, restval_to_train=True).splits() == {"train": 2, "val": 1, "test": 1}


def test_karpathy_flickr_images_are_found_in_the_usual_folders(tmp_path):
    karpathy(tmp_path, "dataset_flickr30k.json", filepath=None)
    image = load_dataset(tmp_path).images[2]
    assert (image.file_name, image.image_id) == ("flickr30k-images/2.jpg", 2)


def test_karpathy_counts_bad_records(tmp_path):
    path = karpathy(tmp_path)

    def spoil(content):
        first = content["images"][0]
        first["sentences"] += [
            3,
            {"raw": "x"},
            {"raw": "x", "tokens": [1]},
            {"tokens": ["x"]},
            {"raw": ".", "tokens": []},
        ]
        content["images"] += [None, {"filename": "0.jpg"}, first | {"split": 3}, first | {"filename": "../../x.jpg"}]
        content["images"].append(first | {"filename": "0.jpg", "filepath": [], "sentences": {}})

    change_json(path, spoil)
    dataset = load_dataset(tmp_path, tolerance=0.9)
    assert dataset.problems.counts() == {"malformed line": 4, "empty caption": 1, "malformed image record": 5}
    assert dataset.problems.first("malformed line")[0].where == "dataset_coco.json: images[0].sentences[1]"
    assert dataset.problems.first("malformed image record")[0].where == "dataset_coco.json: images[4]"
    assert dataset.split("train")[0].captions == ("A Dog, number 0.",)


def test_two_karpathy_files_in_one_folder_are_an_error(tmp_path):
    karpathy(tmp_path)
    karpathy(tmp_path, "dataset_flickr8k.json", filepath=None)
    with pytest.raises(ValueError, match=r"dataset_coco\.json and dataset_flickr8k\.json: keep only one"):
        load_dataset(tmp_path)
