"""Requests per second that `captioner serve` answers: one client, and many at once, captioned together or in turn.

    python experiments/benchmarks/serving.py
    python experiments/benchmarks/serving.py --model PATH/TO/MODEL --clients 16

Servers of both kinds run in this process on the loopback, their clients in another. Rounds of all contestants in turn
are added up, so that a busy spell of the machine meets all.
"""

from __future__ import annotations

import argparse
import http.client
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

from captioner.images.finding import find_images
from captioner.web.app import make_app
from captioner.web.decoding import Decoders
from captioner.web.request_queue import BATCH, CaptionQueue
from captioner.web.served_models import Served, load_models
from captioner.web.server import listen, make_server

EXAMPLES = Path(__file__).parent.parent.parent / "data" / "examples"


@contextmanager
def running(models: list[Served], batch: int) -> Iterator[int]:
    """Serve models, at most `batch` images captioned together, and yield the port."""
    with listen("127.0.0.1", 0) as listener:
        decoders = Decoders()
        decoders.warm_up()
        app = make_app(models, queue=CaptionQueue(decoders, batch=batch), decoders=decoders)
        server = make_server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def ask(port: int, images: list[bytes], clients: int, requests: int) -> float:
    """Return the seconds it takes so many clients to have so many requests answered, in turn with each connection."""

    def client(first: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        for place in range(first, requests, clients):
            connection.request("POST", "/caption", images[place % len(images)], {"Content-Type": "image/jpeg"})
            response = connection.getresponse()
            answer = response.read()
            if response.status != 200:
                raise RuntimeError(f"status {response.status}: {answer[:200]!r}")
        connection.close()

    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    return time.perf_counter() - started


def main() -> None:
    """Compare one client with many, and many in turn with many together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a bundled model or a checkpoint folder (default: the bundled)")
    parser.add_argument("--data", type=Path, default=EXAMPLES, help="a folder of images")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=96, help="in each round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    images = [path.read_bytes() for path in islice(find_images([options.data]), 64)]
    models = load_models([options.model] if options.model else [])[:1]
    many = f"{options.clients} clients"
    with running(models, 1) as in_turn, running(models, BATCH) as together:
        contestants = {
            "1 client": (together, 1),
            f"{many}, in turn": (in_turn, options.clients),
            f"{many}, together": (together, options.clients),
        }
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
            for port in (in_turn, together):
                other.submit(ask, port, images, 2, 8).result()
            for _ in range(options.rounds):
                for name, (port, clients) in contestants.items():
                    seconds[name].append(other.submit(ask, port, images, clients, options.requests).result())
    print(f"{models[0].name}, {len(images)} images, {options.rounds} rounds of {options.requests} requests, beam 5")
    total = options.rounds * options.requests
    first = sum(seconds["1 client"])
    print(f"{'':<24}{'requests/s':>12}{'times 1 client':>18}")
    for name, times in seconds.items():
        print(f"{name:<24}{total / sum(times):>12.1f}{first / sum(times):>18.2f}")
    ratios = [a / b for a, b in zip(seconds[f"{many}, in turn"], seconds[f"{many}, together"], strict=True)]
    mean = sum(seconds[f"{many}, in turn"]) / sum(seconds[f"{many}, together"])
    print(f"together is {mean:.2f} times as fast as in turn (rounds from {min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
