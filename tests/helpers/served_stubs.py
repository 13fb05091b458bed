"""Models and decoders for tests of the server: held back, failing, or hung."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from captioner.captioning.captioner import Captioner
from captioner.images.preprocessing import Prepared, Preprocessing
from captioner.web.decoding import Decoders
from helpers.holding import PATIENCE


class HeldDecoders(Decoders):
    """Decoding in this process, that waits until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.pool = ThreadPoolExecutor(2)

    def prepare(self, image: bytes, preprocessing: Preprocessing, deadline: float) -> Future[Prepared]:
        def read() -> Prepared:
            assert self.go.wait(PATIENCE)
            return preprocessing.read(image)

        return self.pool.submit(read)

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)
        super().close()


class Stub:
    """A model that notes what it is asked for, and fails where an image is named bad."""

    def __init__(self, model: Captioner, bad: Callable[[Prepared], bool] = lambda _: False) -> None:
        self.model, self.bad, self.batches = model, bad, list[int]()
        self.preprocessing, self.digest = model.preprocessing, model.digest

    def encode(self, prepared: list[Prepared]) -> Any:
        self.batches.append(len(prepared))
        if any(map(self.bad, prepared)):
            raise RuntimeError("this one breaks the encoder")
        return self.model.encode(prepared)

    def find_captions(self, *arguments: Any) -> Any:
        return self.model.find_captions(*arguments)


class Hung(Stub):
    """A model whose search never ends of its own accord."""

    def __init__(self, model: Captioner) -> None:
        super().__init__(model)
        self.searching, self.stopped = threading.Event(), threading.Event()

    def find_captions(self, *arguments: Any) -> Any:
        *_, check = arguments
        self.searching.set()
        try:
            while True:
                check()
                time.sleep(0.001)
        finally:
            self.stopped.set()
