"""The HTTP API for programs: JSON, several images in one request, its description, and its metrics."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import jsonschema
import pytest
from helpers.toy_captioner import make_toy, write_images
from helpers.toy_confidence import CALIBRATION

pytest.importorskip("starlette", reason="the extra serve is not installed")

from helpers.patient_limits import PATIENT
from starlette.testclient import TestClient

from captioner.captioning.captioner import Captioner
from captioner.captioning.schema import record_schema
from captioner.model.confidence import LOW
from captioner.model.encoders.encoder import Encoder
from captioner.web.app import make_app
from captioner.web.assets import read_asset
from captioner.web.metrics import Metrics
from captioner.web.openapi import REFUSALS
from captioner.web.request_settings import SERVED
from captioner.web.served_models import Served


@pytest.fixture(scope="module")
def models(lite0: Encoder) -> list[Served]:
    return [Served(name, Captioner(make_toy(lite0, seed), device="cpu"), "soft") for seed, name in enumerate("ab")]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return [path.read_bytes() for path in write_images(tmp_path_factory.mktemp("photos"), 4)]


@pytest.fixture(scope="module")
def client(models: list[Served]) -> Iterator[TestClient]:
    with TestClient(make_app(models, limits=PATIENT), base_url="http://localhost") as client:
        yield client


def encoded(image: bytes) -> str:
    return base64.b64encode(image).decode()


def plain(client: TestClient, image: bytes, **settings: Any) -> dict[str, Any]:
    answer: dict[str, Any] = client.post("/caption", content=image, params=settings).json()
    return without_time(answer)


def without_time(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "milliseconds"}


def test_json_does_as_well(client: TestClient, photos: list[bytes]) -> None:
    settings = {"model": "b", "sample": True, "temperature": 0.7, "seed": 5, "n_best": 2}
    expected = plain(client, photos[0], **{**settings, "sample": "true"})
    wrapped = re.sub("(.{76})", r"\1\n", encoded(photos[0]))
    for image in (encoded(photos[0]), f"data:image/jpeg;base64,{encoded(photos[0])}", wrapped):
        assert without_time(client.post("/caption", json={"image": image, **settings}).json()) == expected
    figure = client.post("/figure", json={"image": encoded(photos[0]), "maximum_length": 3, "format": "svg"})
    assert figure.content.startswith(b"<?xml")


def test_several_images_are_answered_in_their_order(client: TestClient, photos: list[bytes]) -> None:
    expected = [plain(client, photo, beam=3) for photo in photos]
    as_json = client.post("/caption", json={"images": [encoded(photo) for photo in photos], "beam": 3}).json()
    as_form = client.post("/caption", files=[("image", photo) for photo in photos], data={"beam": "3"}).json()
    for answer in (as_json, as_form):
        assert [each["text"] for each in answer["captions"]] == [each["text"] for each in expected]
        assert all(each["attention"] and each["model"] == "a" for each in answer["captions"])
        assert answer["milliseconds"] > 0


def test_one_of_several_fails_alone(client: TestClient, photos: list[bytes]) -> None:
    images = [encoded(photos[0]), encoded(b"no image"), encoded(photos[1][:300])]
    answer = client.post("/caption", json={"images": images})
    assert answer.status_code == 200
    good, other, cut = answer.json()["captions"]
    assert good["text"] == plain(client, photos[0])["text"]
    assert (other["status"], cut["status"]) == (415, 422)
    assert other["error"].startswith("the image is refused: not one of")
    alone = client.post("/caption", json={"images": [encoded(photos[0])]})
    assert len(alone.json()["captions"]) == 1  # a list is answered with a list


WRONG = {
    b"{": "the body is not JSON",
    b"[" * 100_000: "the body is not JSON",
    b"[]": 'the JSON must be an object with "image", or with "images" for several',
    b'{"image": "", "images": []}': 'the JSON must be an object with "image", or with "images" for several',
    b'{"images": []}': '"images" must be a list of images in base64',
    b'{"images": "aGVsbG8="}': '"images" must be a list of images in base64',
    b'{"image": 5}': "an image in JSON is a text: its bytes in base64",
    b'{"image": "a/b:c"}': "an image in JSON is not base64; encode the bytes of the image file",
    b'{"image": ""}': "the upload is empty; send the bytes of an image",
    b'{"image": "aGVsbG8=", "beam": [3]}': "beam must be a text, a number, true or false",
    b'{"image": "aGVsbG8=", "beam": null}': "beam must be a text, a number, true or false",
    b'{"image": "aGVsbG8=", "beam": 99}': "beam is '99'; it must be from 1 to 20",
    b'{"image": "aGVsbG8=", "size": 3}': "unknown setting 'size'",
    json.dumps({"images": ["aGVsbG8="] * 17}).encode(): "the upload has 17 images; send at most 16 at a time",
}


@pytest.mark.parametrize("body", WRONG, ids=range(len(WRONG)))
def test_wrong_json(client: TestClient, body: bytes) -> None:
    answer = client.post("/caption", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(WRONG[body])


def test_a_figure_is_of_one_image(client: TestClient, photos: list[bytes]) -> None:
    for path in ("/figure", "/preview"):
        answer = client.post(path, json={"images": [encoded(photo) for photo in photos]})
        assert (answer.status_code, answer.json()) == (400, {"error": "the upload has 4 images; send one"})


def test_confidence_where_the_model_can_tell(lite0: Encoder, photos: list[bytes]) -> None:
    model = Captioner(make_toy(lite0), device="cpu", calibration=CALIBRATION)
    with TestClient(make_app([Served("a", model, "soft")], limits=PATIENT), base_url="http://localhost") as client:
        answer = plain(client, photos[0], n_best=2)
        schemas = {"components": client.get("/openapi.json").json()["components"]}
        jsonschema.validate(answer, {**schemas, "$ref": "#/components/schemas/Answer"})
        assert answer["confidence"] == model.caption(photos[0]).confidence
        assert "confidence" not in answer["alternatives"][0]
        assert "confidence" not in plain(client, photos[0], sample="true")


def test_the_page_marks_what_is_low() -> None:
    assert f"const LOW = {LOW};" in read_asset("serve.js")


def test_the_description_is_true(client: TestClient, photos: list[bytes]) -> None:
    api = client.get("/openapi.json").json()
    assert api["openapi"].startswith("3.1")
    parameters = {each["name"]: each["schema"] for each in api["paths"]["/caption"]["post"]["parameters"]}
    assert parameters.keys() == {"model", "sample", *SERVED}
    assert parameters["model"]["enum"] == ["a", "b"]
    for name, schema in parameters.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        if "maximum" in schema and name not in ("n_best", "seed"):
            above = {name: schema["maximum"] + 1, "sample": name in ("temperature", "top_k", "top_p")}
            assert client.post("/caption", content=photos[0], params=above).status_code == 400, name
    schemas = {"components": api["components"], "$ref": "#/components/schemas/Answer"}
    jsonschema.Draft202012Validator.check_schema(schemas)
    jsonschema.validate(client.post("/caption", content=photos[0], params={"n_best": 3}).json(), schemas)
    jsonschema.validate(
        client.post("/caption", content=b"no image").json(), {**schemas, "$ref": "#/components/schemas/Error"}
    )
    for path, methods in api["paths"].items():
        for method in methods:
            answer = client.request(method, path, content=photos[0] if method == "post" else None)
            assert answer.status_code == 200, path
            kinds = api["paths"][path][method]["responses"]["200"]["content"]
            assert answer.headers["content-type"].partition(";")[0] in kinds


def strict(schema: Any) -> Any:
    """Return a schema that admits no field but those that it names."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "properties" in schema else {}
    return {**{name: strict(value) for name, value in schema.items()}, **closed}


def test_answers_hold_what_the_schema_of_records_says_and_nothing_else(client: TestClient, photos: list[bytes]) -> None:
    api = client.get("/openapi.json").json()
    described = api["components"]["schemas"]["Answer"]["properties"]
    records = record_schema()["oneOf"][0]["properties"]
    for name in ("text", "words", "probabilities", "log_prob", "attention", "beta", "geometry", "search"):
        assert described[name] == records[name]
    validator = jsonschema.Draft202012Validator(
        {"components": strict(api["components"]), "$ref": "#/components/schemas/Answer"}
    )
    for settings in ({}, {"n_best": "3"}, {"sample": "true", "n_best": "2", "model": "b"}):
        answer = client.post("/caption", content=photos[0], params=settings).json()
        validator.validate(answer)
        assert set(described) - set(answer) <= {"alternatives", "confidence"}
        jsonschema.validate({"file_name": "a.jpg", **answer}, record_schema())
    files = [("image", photo) for photo in (photos[0], b"no image", photos[1])]
    several = client.post("/caption", files=files).json()
    answers = api["paths"]["/caption"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(several, {"components": api["components"], **answers})
    for answer in several["captions"][::2]:
        validator.validate(answer)


class Tags(HTMLParser):
    """The tags of a page that are open, which must all be closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_for_people_tells_all(client: TestClient) -> None:
    page = Tags()
    page.feed(client.get("/docs").text)
    assert page.open == []
    assert "http://localhost/caption" in page.text  # examples name the server that was asked
    for told in (*SERVED, *REFUSALS, "/caption", "/figure", "/preview", "/metrics", "base64", "1 to 20; 5 by default"):
        assert told in page.text, told


def samples(text: str) -> dict[str, float]:
    """Return the samples of a text in Prometheus' format by their names and labels, having checked each line."""
    found: dict[str, float] = {}
    kinds: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in ("counter", "gauge", "histogram")
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            match = re.fullmatch(
                r'([a-z_]+)(\{[a-z_]+="(?:[^"\\\n]|\\.)*"(?:,[a-z_]+="(?:[^"\\\n]|\\.)*")*\})? (\S+)', line
            )
            assert match, line
            family = re.sub("_(bucket|sum|count)$", "", match[1]) if match[1] not in kinds else match[1]
            assert family in kinds, line
            found[match[1] + (match[2] or "")] = float(match[3])
    assert text.endswith("\n")
    return found


def test_metrics(models: list[Served], photos: list[bytes]) -> None:
    with TestClient(make_app(models, limits=PATIENT), base_url="http://localhost") as client:
        client.post("/caption", json={"images": [encoded(photos[0]), encoded(b"no image"), encoded(photos[1])]})
        client.post("/caption", content=b"no image")
        for number in range(5):
            client.get(f"/scanned/{number}")
        answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = samples(answer.text)
    assert found['captioner_requests_total{path="/caption",method="POST",status="200"}'] == 1
    assert found['captioner_requests_total{path="/caption",method="POST",status="415"}'] == 1
    assert found['captioner_requests_total{path="other",method="GET",status="404"}'] == 5
    assert found['captioner_images_total{model="a",outcome="captioned"}'] == 2
    assert found['captioner_images_total{model="a",outcome="refused"}'] == 2
    assert found["captioner_request_seconds_count"] == found['captioner_request_seconds_bucket{le="+Inf"}'] == 7
    assert found["captioner_images_waiting"] == found["captioner_upload_bytes"] == 0
    assert found["captioner_uptime_seconds"] > 0


def test_names_in_metrics_are_escaped() -> None:
    metrics = Metrics(["/caption"])
    metrics.images['a"b\\c\nd', "captioned"] += 1
    assert samples(metrics.text({}))['captioner_images_total{model="a\\"b\\\\c\\nd",outcome="captioned"}'] == 1
    metrics.observe("/caption", "POST", 200, 0.3)
    metrics.observe("/caption", "BREW", 405, 99.0)
    found = samples(metrics.text({}))
    assert found['captioner_request_seconds_bucket{le="0.25"}'] == 0
    assert found['captioner_request_seconds_bucket{le="0.5"}'] == 1
    assert found['captioner_request_seconds_bucket{le="30"}'] == 1
    assert found["captioner_request_seconds_sum"] == pytest.approx(99.3)
