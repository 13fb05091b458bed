"""Images decoded in processes of their own, which can be ended: one that takes too long or too much costs no other.

A process is started when it is first needed and reused afterwards. It imports neither torch nor a web framework, has
bounded time and memory, and may write no file. Both sides exchange bytes alone, a line of JSON and then pixels, so that
a decoder that was taken over has nothing to send but a wrong picture.
"""

from __future__ import annotations

import io
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np
from PIL import Image

from captioner.images.geometry import Geometry
from captioner.images.opening import ImageError, NotAnImageError, open_image
from captioner.images.preprocessing import Prepared, Preprocessing

try:
    import resource
except ImportError:  # Windows: the request's own deadline must do
    resource = None  # type: ignore[assignment]

# An image of 50 megapixels takes a few hundred megabytes while it is unpacked.
DECODERS = 2
DECODE_SECONDS = 5  # of a processor, which a busy machine does not make shorter
DECODE_BYTES = 2 << 30  # of addresses: more than the largest image needs
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from captioner.web.decoding import answer; answer(int(sys.argv[2]), int(sys.argv[3]))"
)
About = dict[str, Any]


def _prepare(image: bytes, about: About) -> tuple[About, bytes]:
    prepared = Preprocessing.from_dict(about["preprocessing"]).read(image)
    return {"side": len(prepared.pixels), "geometry": prepared.geometry.to_dict()}, prepared.pixels.tobytes()


def _open(image: bytes, _: About) -> tuple[About, bytes]:
    picture = open_image(image)
    return {"size": picture.size}, picture.tobytes()


def _shrink(image: bytes, about: About) -> tuple[About, bytes]:
    picture = open_image(image)
    picture.thumbnail((about["side"], about["side"]))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=90)
    return {}, buffer.getvalue()


_TASKS = {"prepare": _prepare, "open": _open, "shrink": _shrink}


def answer(descriptor: int, seconds: int) -> None:
    """Do what the server asks for until it is gone; this is what a decoding process runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to answer
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries have words of their own for damaged files
    if resource is not None:
        with suppress(ValueError, OSError):  # a system that has no such limit
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (DECODE_BYTES, DECODE_BYTES))
    with Connection(descriptor) as server:
        while True:
            try:
                head, _, image = server.recv_bytes().partition(b"\n")
            except EOFError:
                return
            about = json.loads(head)
            _allow_seconds(seconds)
            try:
                found, contents = _TASKS[about["task"]](image, about)
            except ImageError as error:
                found = {"refused": error.reason, "is_image": not isinstance(error, NotAnImageError)}
                contents = b""
            except MemoryError:
                found = {"refused": "it takes too much memory to decode", "is_image": True}
                contents = b""
            server.send_bytes(json.dumps(found).encode() + b"\n" + contents)
            del image, contents


def _allow_seconds(seconds: int) -> None:
    """Let the system end this process once it has computed for so long from now on."""
    if resource is not None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime) + 1 + seconds, most))


class _Process:
    """A decoding process, seen from the server."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds
        self.connection, other = Pipe()
        with other:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", _PROGRAM, json.dumps(sys.path), str(other.fileno()), str(seconds)],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )

    def ask(self, about: About, image: bytes, deadline: float) -> tuple[About, bytes]:
        """Return the answer; raise `ImageError` where there is none in time, and the process has ended."""
        try:
            self.connection.send_bytes(json.dumps(about).encode() + b"\n" + image)
            if not self.connection.poll(max(0.0, deadline - time.monotonic())):
                raise ImageError("image", "it takes too long to decode")
            head, _, contents = self.connection.recv_bytes().partition(b"\n")
        except BaseException as error:
            code = self.end()
            if isinstance(error, EOFError | OSError):
                raise ImageError("image", self._reason(code)) from None
            raise
        return json.loads(head), contents

    def _reason(self, code: int) -> str:
        if code == -getattr(signal, "SIGXCPU", 0):
            return f"it takes more than {self.seconds} seconds to decode"
        return f"its decoder ended with {f'signal {-code}' if code < 0 else f'code {code}'}"

    def end(self) -> int:
        """End the process, and return its exit code."""
        self.connection.close()
        self.process.kill()
        return self.process.wait()


class Decoders:
    """At most `count` decoding processes; its methods may be called from any thread."""

    def __init__(self, count: int = DECODERS, *, seconds: int = DECODE_SECONDS) -> None:
        """Start no process yet; each image may take so many `seconds` of a processor."""
        self.seconds = seconds
        self.ended = 0  # processes that did not live to answer
        self._idle: queue.LifoQueue[_Process | None] = queue.LifoQueue()
        for _ in range(count):
            self._idle.put(None)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="decode")

    def prepare(self, image: bytes, preprocessing: Preprocessing, deadline: float) -> Future[Prepared]:
        """Return the future image fitted for a network; all futures here raise `ImageError`.

        A `deadline` is a time of `time.monotonic`.
        """

        def read(found: About, contents: bytes) -> Prepared:
            pixels = np.frombuffer(contents, dtype=np.uint8).reshape(found["side"], found["side"], 3)  # (S, S, 3)
            return Prepared(pixels, Geometry.from_dict(found["geometry"]))

        about = {"task": "prepare", "preprocessing": preprocessing.to_dict()}
        return self._threads.submit(self._ask, about, image, deadline, read)

    def open(self, image: bytes, deadline: float) -> Future[Image.Image]:
        """Return the future image as upright RGB at full size."""

        def read(found: About, contents: bytes) -> Image.Image:
            width, height = found["size"]
            return Image.frombytes("RGB", (width, height), contents)

        return self._threads.submit(self._ask, {"task": "open"}, image, deadline, read)

    def shrink(self, image: bytes, side: int, deadline: float) -> Future[bytes]:
        """Return the future JPEG of an image, upright and at most `side` pixels wide and high."""
        about = {"task": "shrink", "side": side}
        return self._threads.submit(self._ask, about, image, deadline, lambda _, contents: contents)

    def warm_up(self) -> None:
        """Start all processes now, so that the first image need not wait."""
        processes = [self._idle.get() or _Process(self.seconds) for _ in range(self._idle.qsize())]
        for process in processes:
            self._idle.put(process)

    def _ask(self, about: About, image: bytes, deadline: float, read: Callable[[About, bytes], Any]) -> Any:
        if time.monotonic() > deadline:
            raise ImageError("image", "it waited too long for its turn")
        process = self._idle.get()  # there are no more threads than processes
        try:
            if process is None or process.process.poll() is not None:
                process = _Process(self.seconds)
            found, contents = process.ask(about, image, deadline)
        except BaseException:
            process = None
            self.ended += 1
            raise
        finally:
            self._idle.put(process)
        if "refused" in found:
            raise (ImageError if found["is_image"] else NotAnImageError)("image", found["refused"])
        return read(found, contents)

    def close(self) -> None:
        """Let go of images that wait, and return when all processes have ended."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        while not self._idle.empty():
            process = self._idle.get()
            if process is not None:
                process.end()
