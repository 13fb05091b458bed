"""`captioner serve` as a process of its own on this machine's loopback: hostile clients, load, and its end."""

from __future__ import annotations

import http.client
import io
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers.holding import PATIENCE, wait_until
from helpers.toy_captioner import make_toy, save_toy, write_images
from PIL import Image

pytest.importorskip("starlette", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from captioner.captioning.captioner import Captioner
from captioner.cli import main
from captioner.model.encoders.encoder import Encoder


@dataclass
class Running:
    """The server, seen from a test."""

    process: subprocess.Popen[str]
    port: int

    def ask(self, body: Any, path: str = "/caption", **headers: str) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("POST", path, body, {"Content-Type": "image/jpeg", **headers})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def health(self) -> dict[str, Any]:
        return self.get("/health")

    def get(self, path: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.read(path))
        return answer

    def metrics(self) -> dict[str, float]:
        lines = (line.rpartition(" ") for line in self.read("/metrics").decode().splitlines() if line[0] != "#")
        return {name: float(value) for name, _, value in lines}

    def read(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()

    def end(self, number: int) -> None:
        """Send a signal, and check that it ends in peace."""
        self.process.send_signal(number)
        try:
            _, said = self.process.communicate(timeout=PATIENCE)
        finally:
            self.process.kill()
        assert (self.process.returncode, said) == (0, "stopped\n")

    def raw(self, data: bytes, *, seconds: float = PATIENCE) -> bytes:
        """Send bytes as they are, and return all that comes until the server closes or the time is over."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            received = b""
            try:
                connection.sendall(data)
                while part := connection.recv(65536):
                    received += part
            except (TimeoutError, ConnectionError):
                pass
            return received


def raw_answer(server: Running, data: bytes) -> bytes:
    """Send bytes as they are, and return the answer.

    A machine may be so busy that a hasty server closes the connection before the bytes are sent; they are sent again.
    """
    while not (answer := server.raw(data)):
        pass
    return answer


def start(*arguments: str, hasty: bool = False, files: int | None = None, drawing: Path | None = None) -> Running:
    """Start a server; it may have so many `files` open, and draws no figure before there is a file `drawing`."""
    settings = {"HASTY": "yes" if hasty else "", "FILES": str(files or ""), "DRAWING": str(drawing or "")}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "serve", "--port", "0", "--device", "cpu", "--max-upload", "1", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **settings},
    )
    assert process.stderr is not None
    said = ""
    while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", said)):
        line = process.stderr.readline()
        assert line, said
        said += line
    return Running(process, int(found[1]))


# Limits that no good request meets, on however busy a machine. Where a test waits for one, the server is hasty, but for
# the time of an upload, which is short for those alone that say so. The interrupt is ignored by a process that a shell
# has put into the background.
PROGRAM = """
import os, signal, sys, time
from captioner.web import guard, server, service, uploads
signal.signal(signal.SIGINT, signal.default_int_handler)
if os.environ["FILES"]:
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(os.environ["FILES"]), int(os.environ["FILES"])))
make_server = server.make_server
def note_files(app):  # from when the server is ready to answer
    def note(event, arguments):
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            if arguments[0] != os.devnull:  # of the input and output of processes
                print("opened to write:", arguments[0], file=sys.stderr)
    sys.addaudithook(note)
    return make_server(app)
server.make_server = note_files
read_body = uploads.read_body
def read_body_in_time(request, take, *, limit, seconds):
    return read_body(request, take, limit=limit, seconds=1.5 if "x-hasty" in request.headers else seconds)
uploads.read_body = read_body_in_time
patient = {"upload_seconds": 600, "answer_seconds": 600}
service.Limits.of_uploads = classmethod(lambda cls, body: cls(body=body, **patient))
server.STOP_SECONDS = 600
server.KEEP_SECONDS = 3 if os.environ["HASTY"] else 600
draw = service._draw
def draw_when_told(*arguments):
    while os.environ["DRAWING"] and not os.path.exists(os.environ["DRAWING"]):
        time.sleep(0.001)
    return draw(*arguments)
service._draw = draw_when_told
guard.LINGER_SECONDS = server.Connection.head_seconds = 3.0 if os.environ["HASTY"] else 600.0
from captioner.cli import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def folder(lite0: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    save_toy(folder / "toy", lite0)
    write_images(folder / "photos", 8)
    examples = folder / "examples"
    write_images(examples, 8)
    os.mkfifo(examples / "000-pipe.jpg")
    (examples / "000-zero.jpg").symlink_to("/dev/zero")
    with (examples / "000-sparse.jpg").open("wb") as sparse:
        sparse.truncate(200_000_000_000)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    running = start("--model", str(folder / "toy"), "--examples", str(folder / "examples"))
    yield running
    running.end(signal.SIGTERM)


@pytest.fixture(scope="module")
def hasty(folder: Path) -> Iterator[Running]:
    running = start("--model", str(folder / "toy"), hasty=True)
    yield running
    running.end(signal.SIGTERM)


@pytest.fixture(scope="module")
def photos(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((folder / "photos").iterdir())]


@pytest.fixture(scope="module")
def expected(lite0: Encoder, photos: list[bytes]) -> list[str]:
    return [caption.text for caption in Captioner(make_toy(lite0), device="cpu").caption(photos)]


def test_it_answers(server: Running, photos: list[bytes], expected: list[str]) -> None:
    status, answer = server.ask(photos[0])
    assert (status, answer["text"], answer["model"]) == (200, expected[0], "toy")
    assert server.health()["status"] == "ok"


def test_load(server: Running, photos: list[bytes], expected: list[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda place: server.ask(photos[place % 8]), range(64)))
    assert [(status, answer["text"]) for status, answer in answers] == [
        (200, expected[place % 8]) for place in range(64)
    ]


def chunked(body: bytes, size: int = 50_000) -> bytes:
    chunks = (body[start : start + size] for start in range(0, len(body), size))
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)


HEAD = b"POST /caption HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"


def test_a_chunked_upload_above_the_limit_is_cut(hasty: Running) -> None:
    # It never ends; the answer comes all the same, whole, and the connection is closed.
    answer = raw_answer(hasty, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(bytes(1_100_000)))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in head.lower()
    assert json.loads(body) == {"error": "the upload has more than 1 MB; send a smaller image"}


def test_a_large_upload_gets_its_answer(server: Running, hasty: Running) -> None:
    status, answer = server.ask(bytes(5_000_000))
    assert (status, answer["error"]) == (413, "the upload has more than 1 MB; send a smaller image")
    # One that asks before it sends need not send at all.
    told = raw_answer(hasty, HEAD + b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 413")


def test_slow_uploads_and_heads_are_cut(hasty: Running, photos: list[bytes]) -> None:
    answered = [
        HEAD + b"X-Hasty: yes\r\nContent-Length: 1000\r\n\r\n" + photos[0][:300],
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea",  # half a head after a whole one
    ]
    silent = [HEAD, b""]  # a head that never ends, and nothing at all
    with ThreadPoolExecutor(4) as pool:
        cut = pool.map(hasty.raw, silent)
        answer, halved = pool.map(lambda data: raw_answer(hasty, data), answered)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"the upload took more than 1.5 seconds" in answer
    assert halved.count(b"HTTP/1.1 200") == 1
    assert list(cut) == [b"", b""]


def test_what_is_not_http(server: Running) -> None:
    for data in (b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\r\n\r\n", HEAD + b"X: " + b"x" * 100_000):
        answer = server.raw(data)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400")
        assert json.loads(body)["error"].startswith("Invalid HTTP request")


def bomb() -> bytes:
    buffer = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def hostilities(photos: list[bytes]) -> list[Callable[[Running], object]]:
    """Fifty ways to be a nuisance."""
    noise = random.Random(0)
    photo = photos[0]
    large = bomb()

    def post(body: bytes, **headers: str) -> Callable[[Running], object]:
        return lambda server: server.ask(body, **headers)

    def send(data: bytes) -> Callable[[Running], object]:
        return lambda server: server.raw(data, seconds=2)  # then it leaves

    def hang_up(server: Running) -> None:
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
        connection.sendall(HEAD + b"Content-Length: 5000\r\n\r\n" + photo)
        connection.close()

    def leave_at_once(server: Running) -> None:
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(photo) + photo)
        connection.close()

    return [
        *(post(photo[: noise.randrange(1, len(photo))]) for _ in range(8)),
        *(post(large) for _ in range(6)),
        *(post(photo, **{"Content-Type": kind}) for kind in ("text/html", "application/json", "x" * 500)),
        *(post(noise.randbytes(noise.randrange(1, 50_000))) for _ in range(6)),
        *(post(b"\xff\xd8\xff" + noise.randbytes(5000)) for _ in range(3)),
        *(post(noise.randbytes(5000), **{"Content-Type": "multipart/form-data; boundary=x"}) for _ in range(3)),
        *(send(HEAD + b"Content-Length: 9999\r\n\r\n" + photo[:200]) for _ in range(6)),
        *(send(HEAD + b"X: " + b"x" * 200_000) for _ in range(3)),
        *(send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(bytes(2_000_000))) for _ in range(3)),
        *(send(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n") for _ in range(2)),
        *(send(noise.randbytes(3000)) for _ in range(2)),
        *(hang_up for _ in range(3)),
        *(leave_at_once for _ in range(2)),
    ]


def test_fifty_hostile_uploads_at_once(server: Running, photos: list[bytes], expected: list[str]) -> None:
    attacks = hostilities(photos)
    assert len(attacks) == 50
    answers: list[tuple[int, dict[str, Any]]] = []

    def attack(one: Callable[[Running], object]) -> None:
        try:
            found = one(server)
        except (OSError, http.client.HTTPException):  # cut off in the middle of its upload
            return
        if isinstance(found, tuple):
            answers.append(found)

    threads = [threading.Thread(target=attack, args=(one,), daemon=True) for one in attacks]
    for thread in threads:
        thread.start()
    amid = [server.ask(photo) for photo in photos]
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert [(status, answer["text"]) for status, answer in amid] == [(200, text) for text in expected]
    assert len(answers) == 29  # all that were sent whole
    assert all(400 <= status < 500 and set(answer) == {"error"} for status, answer in answers)
    assert not [answer for _, answer in answers if "Traceback" in answer["error"] or "\n" in answer["error"]]
    status, answer = server.ask(photos[3])
    assert (status, answer["text"]) == (200, expected[3])
    wait_until(lambda: server.health()["waiting"] == 0)  # for those of clients that left


def test_no_file_is_written_and_an_interrupt_ends_it(folder: Path, photos: list[bytes]) -> None:
    running = start("--model", str(folder / "toy"))
    part = b'--x\r\nContent-Disposition: form-data; name="image"; filename="../given.jpg"\r\n\r\n%s\r\n--x--'
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    # Large enough for a form's parser to put it on a disk, were it one that does.
    status, answer = running.ask(part % bytes(990_000), **kind)
    assert (status, answer["error"][:35]) == (415, "the image is refused: not one of JP")
    assert running.ask(part % photos[0], **kind)[0] == 200
    running.end(signal.SIGINT)  # which checks that no file was named
    with pytest.raises(ConnectionRefusedError):
        running.health()


def test_a_signal_while_figures_are_drawn_answers_all_that_were_asked_for(
    folder: Path, photos: list[bytes], tmp_path: Path
) -> None:
    drawing = tmp_path / "draw"
    running = start("--model", str(folder / "toy"), drawing=drawing)

    def figure(photo: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=PATIENCE)
        connection.request("POST", "/figure?maximum_length=2", photo, {"Content-Type": "image/jpeg"})
        response = connection.getresponse()
        return response.status, response.read()

    def held() -> float:
        return running.metrics()["captioner_upload_bytes"]

    def is_listening() -> bool:
        try:
            socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE).close()
        except OSError:
            return False
        return True

    with ThreadPoolExecutor(len(photos)) as pool:
        answers = [pool.submit(figure, photo) for photo in photos]
        wait_until(lambda: held() == sum(map(len, photos)))
        running.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not is_listening())
        drawing.touch()
        found = [answer.result() for answer in answers]
    assert [(status, contents[:4]) for status, contents in found] == [(200, b"\x89PNG")] * len(photos)
    assert running.process.communicate(timeout=PATIENCE)[1] == "stopped\n"
    assert running.process.returncode == 0


def test_more_connections_than_files(folder: Path, photos: list[bytes], expected: list[str]) -> None:
    running = start("--model", str(folder / "toy"), files=160)
    silent: list[socket.socket] = []
    try:
        for _ in range(25):  # each answer tells that those before it were taken, so that none waits for a second try
            for begun in (b"", b"GET /hea", HEAD, HEAD + b"Content-Length: 5000\r\n\r\n" + photos[0][:100]) * 2:
                silent.append(socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE))
                with suppress(ConnectionError):  # which had to make room already
                    silent[-1].sendall(begun)
            assert running.health()["status"] == "ok"
        answers = [running.ask(photo) for photo in photos]
        again = [socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE) for _ in range(20)]
        answers.append(running.ask(photos[0]))
    finally:
        for connection in silent:
            connection.close()
    for connection in again:
        connection.close()
    assert [(status, answer["text"]) for status, answer in answers] == [
        (200, text) for text in [*expected, expected[0]]
    ]
    running.process.send_signal(signal.SIGTERM)
    said = running.process.communicate(timeout=PATIENCE)[1]
    assert running.process.returncode == 0
    # It says so, and says it once.
    assert re.fullmatch(r"\d+ connections are open; silent ones are closed to make room\nstopped\n", said), said[:2000]


def test_memory_does_not_grow_with_requests(server: Running, photos: list[bytes]) -> None:
    def ask(count: int) -> float:
        """Ask so often, and return the memory that the server and its processes hold, in megabytes."""
        with ThreadPoolExecutor(4) as pool:
            statuses = set(pool.map(lambda place: server.ask(photos[place % len(photos)])[0], range(count)))
        assert statuses == {200}
        return sum(map(resident_megabytes, family(server.process.pid)))

    after_50 = ask(50)
    after_500 = ask(450)
    assert after_500 < after_50 + 40


def family(number: int) -> list[int]:
    """Return the numbers of a process and its children."""
    path = Path(f"/proc/{number}/task/{number}/children")
    if not path.exists():
        pytest.skip("this system does not tell a process's children")
    return [number, *map(int, path.read_text().split())]


def resident_megabytes(number: int) -> float:
    pages = int(Path(f"/proc/{number}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def test_a_folder_of_examples_that_are_no_files(server: Running, folder: Path, photos: list[bytes]) -> None:
    examples = server.get("/examples")["examples"]
    assert [example["name"] for example in examples] == [f"{number:04d}" for number in range(8)]
    assert server.read("/examples/0000.jpg") == photos[0]
    # What takes the place of an example later on is not waited for either.
    (folder / "examples" / "0007.jpg").unlink()
    os.mkfifo(folder / "examples" / "0007.jpg")
    assert server.get("/examples/0007.jpg") == {"error": "there is no '/examples/0007.jpg' here"}


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["serve", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_what_it_cannot_do(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    toy = str(folder / "toy")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = complaint(capsys, "--model", toy, "--port", port)
        assert said.startswith(f"captioner: cannot listen on port {port} of 127.0.0.1: ")
        assert said.endswith("; choose another with --port or --host\n")
    assert "cannot listen on port 0 of nowhere.invalid" in complaint(
        capsys, "--model", toy, "--port", "0", "--host", "nowhere.invalid"
    )
    assert "model is 'unheard-of'" in complaint(capsys, "--model", "unheard-of")
    empty = folder / "toy"
    assert f"no images in {empty}" in complaint(capsys, "--model", toy, "--examples", str(empty))
    monkeypatch.setattr("captioner.commands.serve.find_spec", lambda name: None)
    assert complaint(capsys, "--model", toy) == (
        "captioner: serving needs starlette and uvicorn: pip install 'captioner[serve]'\n"
    )


def test_ports_there_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "70000"]) == 2
    assert "70000 is not a port; choose from 0 to 65535" in capsys.readouterr().err
