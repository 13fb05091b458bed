"""The server's answers, within this process: what is asked, what is refused, and what is answered together."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.awkward_images import png_of
from helpers.holding import PATIENCE
from helpers.photo_folders import ROOT
from helpers.served_stubs import HeldDecoders, Hung, Stub
from helpers.toy_captioner import make_toy, save_toy, write_images
from helpers.toy_confidence import CALIBRATION
from PIL import Image

pytest.importorskip("starlette", reason="the extra serve is not installed")

from helpers.patient_limits import PATIENT
from starlette.testclient import TestClient

from captioner import __version__
from captioner.captioning.captioner import Captioner
from captioner.captioning.options import make_options
from captioner.model.checkpoint import load_checkpoint
from captioner.model.confidence import CONFIDENCE
from captioner.model.encoders.encoder import Encoder
from captioner.model.search_settings import SearchConfig, settings_of
from captioner.web.app import make_app
from captioner.web.assets import PAGE_FILES
from captioner.web.decoding import Decoders
from captioner.web.guard import Access, Guard, is_loopback
from captioner.web.request_queue import CaptionQueue
from captioner.web.request_settings import SERVED
from captioner.web.served_models import Served, find_examples, load_models
from captioner.web.service import Limits

HERE = "http://localhost"


@pytest.fixture(scope="module")
def models(lite0: Encoder) -> list[Served]:
    return [Served(name, Captioner(make_toy(lite0, seed), device="cpu"), "soft") for seed, name in enumerate("ab")]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_images(tmp_path_factory.mktemp("photos"), 12)


@pytest.fixture(scope="module")
def client(models: list[Served], photos: list[Path]) -> Iterator[TestClient]:
    app = make_app(models, examples=find_examples(photos[0].parent), limits=PATIENT)
    with TestClient(app, base_url=HERE) as client:
        yield client


def ask(client: TestClient, image: bytes, path: str = "/caption", **settings: Any) -> Any:
    return client.post(path, content=image, headers={"content-type": "image/jpeg"}, params=settings)


def test_an_answer_is_what_the_model_says(client: TestClient, models: list[Served], photos: list[Path]) -> None:
    image = photos[0].read_bytes()
    answer = ask(client, image, n_best=3).json()
    best, *others = models[0].captioner.caption(image, n_best=3)
    assert answer["text"] == best.text
    assert answer["words"] == list(best.words)
    assert answer["probabilities"] == pytest.approx(best.probabilities.tolist(), rel=1e-4)
    assert answer["log_prob"] == pytest.approx(best.log_prob, rel=1e-4)
    assert answer["beta"] == pytest.approx(best.beta.tolist(), rel=1e-4)
    np.testing.assert_allclose(np.array(answer["attention"]), best.attention, atol=1e-4)
    assert answer["geometry"] == {"width": 40, "height": 32, "box": [0, 0, 40, 32], "flipped": False}
    assert [other["text"] for other in answer["alternatives"]] == [other.text for other in others]
    assert all(np.array(other["attention"]).shape == (len(other["words"]), 2, 2) for other in answer["alternatives"])
    assert (answer["model"], answer["digest"]) == ("a", models[0].captioner.digest)
    assert answer["milliseconds"] > 0
    assert "file_name" not in answer


def test_settings_reach_the_search(client: TestClient, models: list[Served], photos: list[Path]) -> None:
    image = photos[1].read_bytes()
    drawn = ask(client, image, model="b", sample="true", temperature=0.7, top_k=9, top_p=0.95, seed=5, n_best=2).json()
    same = models[1].captioner.caption(image, sample=True, temperature=0.7, top_k=9, top_p=0.95, seed=5, n_best=2)
    assert [drawn["text"], drawn["alternatives"][0]["text"]] == [caption.text for caption in same]
    assert drawn["search"]["seed"] == 5
    short = ask(client, image, minimum_length=2, maximum_length=3, beam=2).json()
    assert 2 <= len(short["words"]) <= 3
    assert short["search"]["beam"] == 2
    settings = {"beam": 4, "groups": 2, "diversity": 2.5, "length_power": 0.1, "no_repeat": 0}
    assert ask(client, image, **settings).json()["search"].items() >= settings.items()
    assert set(SERVED) == {*settings_of(SearchConfig), "n_best", "seed"}
    told = (ROOT / "captioner" / "web" / "README.md").read_text()
    assert [name for name in SERVED if f"`{name}`" not in told] == []


def test_a_form_does_as_well(client: TestClient, photos: list[Path]) -> None:
    image = photos[0].read_bytes()
    plain = ask(client, image, beam=3).json()
    for name in ("image", "file", "whatever"):
        form = client.post("/caption", files={name: ("../../etc/passwd", image)}, data={"beam": "3"}).json()
        assert form["text"] == plain["text"]
        assert form["search"] == plain["search"]
    # Without a file name, and with a boundary's beginning in the image.
    tricky = image + b"\r\n--edg"
    body = b"".join(
        [
            b"preamble\r\n--edge\r\n",
            b'Content-Disposition: form-data; name="image"\r\n\r\n',
            tricky,
            b'\r\n--edge\r\nContent-Disposition: form-data; name="beam"\r\n\r\n3\r\n--edge--\r\nepilogue',
        ]
    )
    answer = client.post("/caption", content=body, headers={"content-type": 'multipart/form-data; boundary="edge"'})
    assert answer.json()["text"] == plain["text"]


def test_what_the_server_is(client: TestClient, models: list[Served], photos: list[Path]) -> None:
    before = client.get("/health").json()
    assert before["status"] == "ok"
    assert before["version"] == __version__
    assert before["models"] == [{"name": model.name, "digest": model.captioner.digest} for model in models]
    assert before["uptime_seconds"] >= 0
    ask(client, photos[0].read_bytes())
    after = client.get("/health").json()
    assert (after["answered"], after["waiting"]) == (before["answered"] + 1, 0)
    described = client.get("/models").json()["models"]
    assert [(model["name"], model["attention"], model["grid"]) for model in described] == [
        ("a", "soft", [2, 2]),
        ("b", "soft", [2, 2]),
    ]
    examples = client.get("/examples").json()["examples"]
    assert [example["name"] for example in examples] == [path.stem for path in photos]
    sent = client.get("/" + examples[3]["url"])
    assert sent.content == photos[3].read_bytes()
    assert sent.headers["content-type"] == "image/jpeg"


def test_no_examples_without_a_folder(models: list[Served], tmp_path: Path) -> None:
    assert find_examples(tmp_path / "none") == {}
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff half")
    assert find_examples(tmp_path) == {}
    with TestClient(make_app(models, limits=PATIENT), base_url=HERE) as client:
        assert client.get("/examples").json() == {"examples": []}


@pytest.mark.parametrize("path", ["/", "/docs", *(f"/{name}" for name in PAGE_FILES if name != "serve.html")])
def test_the_page_and_its_parts(client: TestClient, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 200
    assert "script-src 'self'" in response.headers["content-security-policy"]
    assert "unsafe" not in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["x-frame-options"] == "DENY"
    assert not [name for name in response.headers if name.startswith("access-control")]
    # The page asks no other server (its examples name this one), and works under whatever path a proxy gives it.
    elsewhere = response.text.replace("http://www.w3.org/2000/svg", "").replace(f"{HERE}/", "")
    assert "http://" not in elsewhere
    assert "https://" not in elsewhere
    assert not re.findall(r'(?:href|src)="/', response.text)


@pytest.mark.parametrize(
    ("format", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")], ids=["png", "pdf", "svg"]
)
def test_figures(client: TestClient, photos: list[Path], format: str, start: bytes) -> None:
    response = ask(
        client,
        photos[0].read_bytes(),
        "/figure",
        format=format,
        style="heat",
        n_best=2,
        alternative=1,
        maximum_length=4,
    )
    assert response.status_code == 200
    assert response.content.startswith(start)
    assert response.headers["content-disposition"] == f'attachment; filename="caption.{format}"'


def test_a_figure_is_of_the_caption_asked_for(client: TestClient, photos: list[Path]) -> None:
    image, settings = photos[2].read_bytes(), {"n_best": 3, "maximum_length": 5}
    figures = [ask(client, image, "/figure", alternative=place, **settings).content for place in (0, 1, 1)]
    assert figures[0] != figures[1]
    assert figures[1] == figures[2]
    refused = ask(client, image, "/figure", alternative=3, **settings)
    assert refused.status_code == 400
    assert refused.json()["error"] == "alternative is '3'; choose from 0, 1, 2"


def test_a_preview_of_what_browsers_do_not_show(client: TestClient) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (2000, 100), (10, 200, 30)).save(buffer, "TIFF")
    response = ask(client, buffer.getvalue(), "/preview")
    with Image.open(io.BytesIO(response.content)) as preview:
        assert (preview.format, preview.size) == ("JPEG", (1600, 80))
        assert preview.getpixel((800, 40)) == pytest.approx((10, 200, 30), abs=3)
    assert ask(client, b"nothing", "/preview").status_code == 415


REFUSED_SETTINGS = {
    "model=c": "model is 'c'; choose from a, b",
    "beam=0": "beam is '0'; it must be from 1 to 20",
    "beam=21": "beam is '21'; it must be from 1 to 20",
    "beam=many": "beam is 'many'; it must be a whole number",
    "n_best=6&beam=5": "n_best is 6; a beam of 5 gives at most 5",
    "temperature=0.5": "temperature applies to sampling only",
    "sample=maybe": "sample is 'maybe'; it must be true or false",
    "sample=1&temperature=nan": "temperature is 'nan'; it must be a number",
    "sample=1&temperature=1e-9": "temperature is '1e-9'; it must be from 0.05 to 10",
    "sample=1&top_p=0": "top_p is '0'; it must be from 0.001 to 1",
    f"sample=1&seed={9**99}": f"seed is '{str(9**99)[:50]}'; it must be a whole number",
    "minimum_length=9&maximum_length=4": ("search maximum_length is 4; it must be at least minimum_length, which is 9"),
    "maximum_length=61": "maximum_length is '61'; it must be from 1 to 60",
    "beam=3&beam=4": "beam is given twice; give it once",
}


@pytest.mark.parametrize("query", REFUSED_SETTINGS)
def test_refused_settings(client: TestClient, photos: list[Path], query: str) -> None:
    response = client.post(f"/caption?{query}", content=photos[0].read_bytes(), headers={"content-type": "image/jpeg"})
    assert response.status_code == 400
    assert response.json() == {"error": REFUSED_SETTINGS[query]}


def test_unknown_settings_name_the_known(client: TestClient, photos: list[Path]) -> None:
    response = ask(client, photos[0].read_bytes(), beams=3)
    assert response.status_code == 400
    assert response.json()["error"].startswith("unknown setting 'beams'; choose from model, beam, groups, ")
    assert ask(client, photos[0].read_bytes(), style="heat").status_code == 400  # that of a figure


def test_refused_images(client: TestClient, photos: list[Path]) -> None:
    whole = photos[0].read_bytes()
    expected = {
        b"": (400, "the upload is empty; send the bytes of an image"),
        b"hello": (415, "the image is refused: not one of JPEG, PNG, GIF, WEBP, BMP, TIFF, AVIF, HEIC"),
        whole[: len(whole) // 2]: (422, "the image is refused: truncated: it ends before its end-of-image marker"),
        png_of(30_000, 30_000): (
            422,
            "the image is refused: 30000 x 30000 is 900.0 megapixels; at most 50 are opened",
        ),
    }
    for image, (status, reason) in expected.items():
        response = ask(client, image)
        assert (response.status_code, response.json()) == (status, {"error": reason})
    assert ask(client, whole).status_code == 200


@pytest.mark.parametrize("kind", ["text/html", "application/xml", "multipart/mixed; boundary=x", "nonsense"])
def test_refused_content_types(client: TestClient, photos: list[Path], kind: str) -> None:
    response = client.post("/caption", content=photos[0].read_bytes(), headers={"content-type": kind})
    assert response.status_code == 415
    assert response.json() == {
        "error": f"the content type is {kind!r}; send image/*, multipart/form-data, or application/json"
    }


@pytest.mark.parametrize("kind", ["image/png", "application/octet-stream", "application/x-www-form-urlencoded", ""])
def test_content_types_that_say_little_are_taken(client: TestClient, photos: list[Path], kind: str) -> None:
    answer = client.post("/caption", content=photos[0].read_bytes(), headers={"content-type": kind})
    assert answer.status_code == 200


PART = b'--x\r\nContent-Disposition: form-data; name="image"\r\n\r\nhello\r\n'
FIELD = b'--x\r\nContent-Disposition: form-data; name="beam"\r\n\r\n3\r\n'
REFUSED_FORMS = {
    "the form has no boundary; see multipart/form-data": ("", PART + b"--x--"),
    "the form is cut off, damaged, or has 40 parts or more": ("x", PART),
    "a part of the form has no name; see multipart/form-data": ("x", b"--x\r\n\r\nhello\r\n--x--"),
    "the form has no file; send an image": ("x", FIELD + b"--x--"),
    "the upload has 17 images; send at most 16 at a time": ("x", PART * 17 + b"--x--"),
    "beam is given twice; give it once": ("x", FIELD + FIELD + PART + b"--x--"),
    "beam is given in the address and in the body; give it once": ("x", FIELD + PART + b"--x--"),
}


@pytest.mark.parametrize("reason", REFUSED_FORMS)
def test_refused_forms(client: TestClient, reason: str) -> None:
    boundary, body = REFUSED_FORMS[reason]
    path = "/caption?beam=3" if "address" in reason else "/caption"
    response = client.post(path, content=body, headers={"content-type": f"multipart/form-data; boundary={boundary}"})
    assert (response.status_code, response.json()) == (400, {"error": reason})


def test_a_form_of_thousands_of_parts_is_refused_at_once(client: TestClient) -> None:
    body = FIELD * 100_000 + b"--x--"
    response = client.post("/caption", content=body, headers={"content-type": "multipart/form-data; boundary=x"})
    assert response.status_code == 400


def test_a_large_upload_is_refused_told_or_not(models: list[Served]) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield bytes(1000)

    limits = Limits(body=10_000)
    with TestClient(make_app(models, limits=limits), base_url=HERE) as client:
        for content in (bytes(10_001), chunks()):
            response = client.post("/caption", content=content)
            assert response.status_code == 413
            assert response.json() == {"error": "the upload has more than 0.01 MB; send a smaller image"}
        assert client.post("/caption", content=bytes(10_000)).status_code == 415


def test_too_many_uploads_at_once(models: list[Served], photos: list[Path]) -> None:
    with TestClient(make_app(models, limits=Limits(held=1000)), base_url=HERE) as client:
        response = client.post("/caption", content=bytes(1001))
        assert response.status_code == 503
        assert response.headers["retry-after"] == "5"
        # What was held is given back.
        for _ in range(3):
            assert client.post("/caption", content=bytes(900)).status_code == 415


def test_paths_and_methods_there_are_not(client: TestClient) -> None:
    missing = client.get("/nothing")
    assert (missing.status_code, missing.json()) == (404, {"error": "there is no '/nothing' here"})
    for name in ("..%2f..%2fetc%2fpasswd", "none.jpg", "%00"):
        assert client.get(f"/examples/{name}").status_code == 404
    wrong = client.get("/caption")
    assert (wrong.status_code, wrong.json()) == (405, {"error": "GET is not allowed here"})
    assert wrong.headers["allow"] == "POST"
    assert client.post("/health").status_code == 405


def test_other_hosts_and_origins(client: TestClient, models: list[Served], photos: list[Path]) -> None:
    image = photos[0].read_bytes()
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost:80@evil.example", "localhost/evil", "[::1", ""):
        response = client.get("/health", headers={"host": host})
        assert response.status_code == 403, host
        assert "this server answers to localhost" in response.json()["error"]
    for host in ("localhost:9000", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST"):
        assert client.get("/health", headers={"host": host}).status_code == 200, host
    own = {"host": "localhost:8000", "content-type": "image/jpeg"}
    for origin in ("http://evil.example", "null", "http://localhost:9999", "http://localhost"):
        response = client.post("/caption", content=image, headers={**own, "origin": origin})
        assert response.status_code == 403, origin
    assert client.post("/caption", content=image, headers={**own, "sec-fetch-site": "cross-site"}).status_code == 403
    granted = {**own, "origin": "http://localhost:8000", "sec-fetch-site": "same-origin"}
    assert client.post("/caption", content=image, headers=granted).status_code == 200
    with TestClient(make_app(models, access=Access(local=False)), base_url="http://captions.example") as public:
        assert public.get("/health").status_code == 200


def test_loopback_names() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.0.1", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example", ""))


def test_no_answer_in_time(models: list[Served], photos: list[Path]) -> None:
    decoders = HeldDecoders()
    app = make_app(models, limits=Limits(answer_seconds=0.05), decoders=decoders)
    with TestClient(app, base_url=HERE) as client:
        response = ask(client, photos[0].read_bytes())
        decoders.go.set()
    assert response.status_code == 504
    assert response.json() == {"error": "no answer within 0.05 seconds"}


def test_a_deadline_ends_the_search(models: list[Served], photos: list[Path]) -> None:
    hung: Any = Hung(models[0].captioner)
    decoders = HeldDecoders()
    decoders.go.set()
    app = make_app([Served("hung", hung, "soft")], limits=Limits(answer_seconds=1), decoders=decoders)
    with TestClient(app, base_url=HERE) as client:
        # Where the machine is slow, the first has had its time before its search; one of them gets there.
        while not hung.searching.is_set():
            assert ask(client, photos[0].read_bytes()).status_code == 504
        assert hung.stopped.wait(PATIENCE)


def test_a_failure_is_told_without_its_traceback(
    models: list[Served], photos: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    stub: Any = Stub(models[0].captioner, bad=lambda _: True)
    with TestClient(make_app([Served("bad", stub, "soft")]), base_url=HERE, raise_server_exceptions=False) as client:
        response = ask(client, photos[0].read_bytes())
    assert response.status_code == 500
    assert response.json() == {"error": "the server failed; its log says why"}
    assert "this one breaks the encoder" in caplog.text


def converse(app: Guard, messages: list[Any], send: Callable[[Any], Any]) -> None:
    """Let a client say `messages` of a request whose body is the first."""
    coming = iter(messages)

    async def receive() -> Any:
        return next(coming)

    headers = [(b"host", b"localhost"), (b"content-length", b"%d" % len(messages[0]["body"]))]
    scope = {"type": "http", "method": "POST", "path": "/caption", "query_string": b"", "headers": headers}
    asyncio.run(app(scope, receive, send))


def test_an_asker_who_leaves_is_not_waited_for(models: list[Served], photos: list[Path]) -> None:
    stub: Any = Stub(models[0].captioner)
    decoders = HeldDecoders()
    queue = CaptionQueue(decoders)
    app = make_app([Served("slow", stub, "soft")], queue=queue)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    converse(app, [{"type": "http.request", "body": photos[0].read_bytes()}, {"type": "http.disconnect"}], send)
    assert queue.unanswered == 0
    assert sent[0]["status"] == 499
    decoders.go.set()
    decoders.close()
    queue.close()
    assert stub.batches == []


def test_an_asker_who_does_not_listen_is_not_waited_for(
    models: list[Served], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("captioner.web.guard.SEND_SECONDS", 0.05)
    queue = CaptionQueue(decoders := Decoders())
    app = make_app(models, queue=queue, decoders=decoders)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    converse(app, [{"type": "http.request", "body": b"no image"}, {"type": "http.disconnect"}], send)
    queue.close()
    decoders.close()
    assert app.under_way == 0
    assert caplog.text == ""


def test_a_full_queue_over_http(models: list[Served], photos: list[Path]) -> None:
    model, decoders = models[0], HeldDecoders()
    queue = CaptionQueue(decoders, waiting=1)
    with TestClient(make_app([model], queue=queue, decoders=decoders), base_url=HERE) as client:
        first = queue.submit(model.captioner, photos[0].read_bytes(), make_options(), PATIENCE)
        response = ask(client, photos[0].read_bytes())
        decoders.go.set()
        first.result(timeout=PATIENCE)
    assert response.status_code == 503
    assert response.json() == {"error": "1 images are waiting already; try again"}
    assert response.headers["retry-after"] == "2"


def test_many_at_once_get_their_own_answers(client: TestClient, models: list[Served], photos: list[Path]) -> None:
    expected = [models[0].captioner.caption(path).text for path in photos]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda place: ask(client, photos[place % 12].read_bytes()).json()["text"], range(64)))
    assert answers == [expected[place % 12] for place in range(64)]


def test_models_by_folder(lite0: Encoder, tmp_path: Path) -> None:
    folder = save_toy(tmp_path / "run" / "best", lite0)
    save_toy(tmp_path / "other", lite0, seed=1)
    served = load_models([folder.parent, folder, tmp_path / "other"], device="cpu")
    assert [model.name for model in served] == ["run", "run-2", "other"]
    assert served[0].captioner.digest != served[2].captioner.digest
    with pytest.raises(ValueError, match="model is 'unheard-of'"):
        load_models(["unheard-of"])


def test_models_bring_their_calibration(lite0: Encoder, tmp_path: Path) -> None:
    folder = save_toy(tmp_path / "toy", lite0)
    digest = load_checkpoint(folder).digest
    (folder / CONFIDENCE).write_text(replace(CALIBRATION, model=digest).to_text(), encoding="utf-8")
    (model,) = load_models([folder], device="cpu")
    (path,) = write_images(tmp_path / "photos", 1)
    assert model.captioner.caption(path).confidence is not None
