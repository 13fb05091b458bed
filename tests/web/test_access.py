"""Who may ask, and under which address: hosts, tokens, a proxy's path, and the log of requests."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.toy_captioner import make_toy, write_images

pytest.importorskip("starlette", reason="the extra serve is not installed")

from helpers.patient_limits import PATIENT
from starlette.testclient import TestClient

from captioner.captioning.captioner import Captioner
from captioner.cli import main
from captioner.model.encoders.encoder import Encoder
from captioner.web.app import make_app
from captioner.web.guard import Access
from captioner.web.served_models import Served, find_examples

TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def models(lite0: Encoder) -> list[Served]:
    return [Served("toy", Captioner(make_toy(lite0), device="cpu"), "soft")]


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("photos"), 1)[0]


@pytest.fixture
def image(photo: Path) -> bytes:
    return photo.read_bytes()


def client_of(models: list[Served], base_url: str = "http://localhost", **options: Any) -> TestClient:
    return TestClient(make_app(models, limits=PATIENT, **options), base_url=base_url)


@pytest.fixture(scope="module")
def proxied(models: list[Served]) -> Iterator[TestClient]:
    access = Access(hosts=("captions.example", "other.example:8443"))
    with client_of(models, access=access) as client:
        yield client


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("captions.example", 200),
        ("Captions.Example:443", 200),
        ("other.example:8443", 200),
        ("localhost:8000", 200),
        ("127.0.0.1:8000", 200),
        ("other.example", 403),
        ("other.example:80", 403),
        ("evil.example", 403),
        ("captions.example.evil.example", 403),
        ("captions.example@evil.example", 403),
    ],
)
def test_hosts_that_are_allowed(proxied: TestClient, host: str, status: int) -> None:
    assert proxied.get("/health", headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("captions.example", "https://captions.example", 415),  # the host passed through
        ("127.0.0.1:8000", "https://captions.example", 415),  # the host rewritten by the proxy
        ("127.0.0.1:8000", "https://other.example:8443", 415),
        ("127.0.0.1:8000", "https://evil.example", 403),
        ("captions.example", "https://other.example", 403),
        ("captions.example", "ftp://captions.example", 403),
        ("captions.example", "null", 403),
    ],
)
def test_origins_behind_a_proxy(proxied: TestClient, host: str, origin: str, status: int) -> None:
    answer = proxied.post("/caption", content=b"no image", headers={"host": host, "origin": origin})
    assert answer.status_code == status


def test_examples_are_of_the_address_that_was_asked(models: list[Served]) -> None:
    access = Access(hosts=("captions.example",), root_path="/captions", token=TOKEN)
    with client_of(models, access=access) as client:
        sent = {"host": "captions.example", "x-forwarded-proto": "https"}
        page = html.unescape(client.get("/docs", headers=sent).text)
        command = 'curl -H "Authorization: Bearer TOKEN" --data-binary @photo.jpg'
        assert f"{command} 'https://captions.example/captions/caption?n_best=3'" in page
        assert TOKEN not in page
    with client_of(models, access=Access(local=False)) as client:  # an address that no shell should see
        assert "$(" not in client.get("/docs", headers={"host": "a$(b)"}).text.replace("$(base64", "")


def test_an_open_server_with_names_answers_to_no_other(models: list[Served]) -> None:
    with client_of(models, access=Access(local=False, hosts=("captions.example",))) as client:
        assert client.get("/health", headers={"host": "captions.example"}).status_code == 200
        refused = client.get("/health", headers={"host": "10.0.0.7:8000"})
        assert refused.status_code == 403
        assert refused.json()["error"].endswith("answers to localhost, 127.0.0.1, captions.example")


def test_a_token_is_asked_for(models: list[Served], photo: Path, image: bytes) -> None:
    examples = find_examples(photo.parent)
    with client_of(models, access=Access(token=TOKEN), examples=examples) as client:
        for path in ("/", "/serve.js", "/docs", "/openapi.json", "/health"):
            assert client.get(path).status_code == 200, path
        for path in ("/models", "/examples", f"/examples/{photo.name}", "/metrics", "/nothing"):
            refused = client.get(path)
            assert refused.status_code == 401, path
            assert refused.headers["www-authenticate"] == "Bearer"
        for header in ("", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer \xff"):
            sent = {"authorization": header.encode("latin-1")}
            assert client.post("/caption", content=image, headers=sent).status_code == 401, header
        granted = {"authorization": f"Bearer {TOKEN}"}
        assert client.post("/caption", content=image, headers=granted).status_code == 200
        assert client.get(f"/examples/{photo.name}", headers=granted).content == image


def test_under_a_path_with_it_or_without(models: list[Served], image: bytes) -> None:
    with client_of(models, access=Access(root_path="/some/captions")) as client:
        for path in ("/", "/some/captions/", "/viewer.js", "/some/captions/viewer.js", "/some/captions/health"):
            assert client.get(path).status_code == 200, path
        assert client.post("/some/captions/caption", content=image).status_code == 200
        assert client.post("/caption", content=image).status_code == 200
        moved = client.get("/some/captions", follow_redirects=False)
        assert (moved.status_code, moved.headers["location"]) == (308, "/some/captions/")
        assert client.get("/some/captionsx").status_code == 404
        assert client.get("/openapi.json").json()["servers"] == [{"url": "/some/captions"}]


def test_a_line_per_request(models: list[Served], image: bytes) -> None:
    lines: list[str] = []
    with client_of(models, log=lines.append) as client:
        client.get("/health")
        client.post("/caption", content=image)
        client.get("/a%0Ab%1b[31m" + "x" * 500)
        client.get("/health", headers={"host": "evil.example"})
    told = [re.sub(r"^\S+Z (.*) \d+ bytes \d+ ms$", r"\1", line) for line in lines]
    assert told[:2] == ["testclient GET /health 200", "testclient POST /caption 200"]
    assert told[2].startswith("testclient GET '/a\\nb\\x1b[31mxxx")
    assert told[3] == "testclient GET /health 403"
    assert all(line.isprintable() and len(line) < 400 for line in lines)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--allow-host", "http://x.example"], "'http://x.example' is not a host name"),
        (["--allow-host", "x example"], "is not a host name"),
        (["--root-path", "captions"], "'captions' is not a path; give one such as /captions"),
        (["--root-path", "/a/../b c"], "is not a path"),
        (["--max-upload", "0"], "0 is refused; it must be from 0.001 to 500 megabytes"),
        (["--queue", "0"], "0 is refused; it must be at least 1"),
    ],
)
def test_options_that_are_wrong(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *arguments]) == 2
    assert reason in capsys.readouterr().err


def test_files_without_a_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"none": None, "folder": "", "empty": b"", "short": b"abc\n", "two": b"a" * 20 + b"\n" + b"b" * 20}
    for name, contents in files.items():
        path = tmp_path / name
        if isinstance(contents, bytes):
            path.write_bytes(contents)
        elif contents is not None:
            path.mkdir()
        assert main(["serve", "--model", "coco-fast", "--token-file", str(path)]) == 1
        said = capsys.readouterr().err
        assert str(path) in said
        assert said.count("\n") == 1
        assert "aaa" not in said  # nothing of a token is told
