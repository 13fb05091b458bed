"""Behind a real nginx on this machine's loopback, which offers the server under its own name or under a path."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from helpers.browser import browser, watched_page  # noqa: F401
from helpers.holding import PATIENCE, wait_until
from helpers.photo_folders import EXAMPLES
from helpers.toy_captioner import make_toy

pytest.importorskip("starlette", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from helpers.patient_limits import PATIENT

from captioner.captioning.captioner import Captioner
from captioner.model.encoders.encoder import Encoder
from captioner.web.app import make_app
from captioner.web.guard import Access
from captioner.web.served_models import Served, find_examples
from captioner.web.server import listen, make_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAME = "captions.test"
CAT = (EXAMPLES / "cat.jpg").read_bytes()
# One server for each way to pass requests on: with the client's host name or with the server's own, at the top or under
# a path, which nginx takes off or leaves.
CONFIGURATION = """
{user}
daemon off;
pid nginx.pid;
error_log error.log;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_max_body_size 12m;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path a; uwsgi_temp_path b; scgi_temp_path c;
  server {{
    listen 127.0.0.1:{port};
    server_name {name};
    location / {{ proxy_pass http://127.0.0.1:{server}; proxy_set_header Host $http_host; }}
    location /rewritten/ {{ proxy_pass http://127.0.0.1:{server}/; }}
    location /captions/ {{ proxy_pass http://127.0.0.1:{server}; proxy_set_header Host $http_host; }}
  }}
}}
"""


@dataclass
class Proxy:
    """nginx, seen from a test."""

    port: int
    log: list[str]

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, {"Host": f"{NAME}:{self.port}", **headers})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def patient() -> Iterator[None]:
    """A server that takes as long as it must to read the rest of an upload that it refuses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("captioner.web.guard.LINGER_SECONDS", PATIENCE)
        yield


@pytest.fixture(scope="module")
def proxy(patient: None, lite0: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    program = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        pytest.skip("no proxy: nginx is not installed (Debian: apt-get install nginx-light)")
    models = [Served("toy", Captioner(make_toy(lite0), device="cpu"), "soft")]
    log: list[str] = []
    folder = tmp_path_factory.mktemp("nginx")
    # nginx inherits a socket that listens already, as it does from itself when it is replaced: no port is looked for
    # that another program could take meanwhile, and a client that comes early waits.
    with listen("127.0.0.1", 0) as listener, listen("127.0.0.1", 0) as front:
        port = front.getsockname()[1]
        access = Access(hosts=(NAME, f"localhost:{port}"), root_path="/captions")
        app = make_app(models, examples=find_examples(EXAMPLES), access=access, limits=PATIENT, log=log.append)
        server = make_server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        user = "user root;" if os.geteuid() == 0 else ""  # or nginx would be another, who may not write here
        text = CONFIGURATION.format(user=user, port=port, server=listener.getsockname()[1], name=NAME)
        (folder / "nginx.conf").write_text(text)
        nginx = subprocess.Popen(
            [program, "-p", str(folder), "-c", "nginx.conf", "-e", "error.log"],
            stderr=subprocess.DEVNULL,
            pass_fds=[front.fileno()],
            env={**os.environ, "NGINX": f"{front.fileno()};"},
        )
        try:
            yield Proxy(port, log)
        finally:
            nginx.terminate()
            nginx.wait(PATIENCE)
            server.should_exit = True
            thread.join()


WAYS = ["/", "/rewritten/", "/captions/"]


@pytest.mark.parametrize("way", WAYS)
def test_captions_come_through(proxy: Proxy, way: str) -> None:
    # As the page in a browser asks: its origin is the proxy's.
    page = {"Origin": f"http://{NAME}:{proxy.port}", "Sec-Fetch-Site": "same-origin"}
    status, answer = proxy.ask("POST", f"{way}caption", CAT, **page)
    assert status == 200
    assert json.loads(answer)["text"]
    assert proxy.ask("GET", f"{way}health")[0] == 200
    status, figure = proxy.ask("POST", f"{way}figure?maximum_length=2&format=svg", CAT, **page)
    assert (status, figure[:5]) == (200, b"<?xml")


@pytest.mark.parametrize("way", WAYS)
def test_other_sites_and_names_do_not(proxy: Proxy, way: str) -> None:
    assert proxy.ask("POST", f"{way}caption", CAT, Origin="http://evil.test")[0] == 403
    # nginx, which knows one name alone, takes any; what passes the name on is refused.
    status = proxy.ask("GET", f"{way}health", Host="evil.test")[0]
    assert status == (200 if way == "/rewritten/" else 403)


def test_refusals_come_through_whole(proxy: Proxy) -> None:
    status, answer = proxy.ask("POST", "/caption", bytes(11_000_000))
    assert (status, json.loads(answer)) == (413, {"error": "the upload has more than 10 MB; send a smaller image"})
    assert proxy.ask("POST", "/caption", b"no image")[0] == 415


def test_the_log_names_the_client(proxy: Proxy) -> None:
    proxy.ask("GET", "/captions/models")
    wait_until(lambda: any(" 127.0.0.1 GET /models 200 " in line for line in proxy.log))  # after the answer


@pytest.mark.parametrize("way", WAYS)
def test_the_page_works(browser: Browser, proxy: Proxy, way: str) -> None:  # noqa: F811
    # The one name that leads a browser here.
    url = f"http://localhost:{proxy.port}{way}"
    own = f"http://localhost:{proxy.port}/"
    with watched_page(browser, url, allowed=("blob:", "data:", own)) as watched:
        page = watched.page
        page.get_by_role("button", name="coffee").click()
        page.wait_for_selector("body[data-state=answered]")
        assert page.locator(".viewer-text").count() > 0
        page.get_by_role("link", name="HTTP API").click()
        page.get_by_role("heading", name="HTTP API").wait_for()
        assert all(address.startswith((url, "blob:", "data:")) for address in watched.requests)
