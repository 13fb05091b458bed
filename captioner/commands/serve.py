"""`captioner serve`: a web page to caption images on, and an HTTP API."""

from __future__ import annotations

import argparse
import re
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.commands.arguments import add_device_argument, add_download_argument, add_model_argument, read_device
from captioner.commands.messages import say
from captioner.commands.parser import add_command, positive
from captioner.files import printable
from captioner.model.bundled import find_model

if TYPE_CHECKING:
    from captioner.web.guard import Access

# The project's own photographs; they are not part of an installed package.
EXAMPLES = Path(__file__).parent.parent.parent / "data" / "examples"
_TOKEN_BYTES = 4096  # of a token's file
_SHORTEST_TOKEN = 16  # letters


def add_serve(commands: Any) -> None:
    """Add `captioner serve`."""
    parser = add_command(commands, "serve", run_serve, "serve a web page and an HTTP API that caption images")
    add_model_argument(parser, several="give several to offer a choice", default="all bundled")
    add_download_argument(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine only)"
    )
    parser.add_argument("--port", type=_port, default=8000, help="port to listen on; 0 takes any free one")
    add_device_argument(parser)
    parser.add_argument(
        "--examples", type=Path, metavar="DIR", help="folder of example images to offer (default: the project's)"
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--max-upload", type=_megabytes, default=10.0, metavar="MB", help="largest upload, in megabytes"
    )
    limits.add_argument(
        "--queue", type=positive, default=64, metavar="N", help="most images that may wait for one model"
    )
    proxy = parser.add_argument_group("behind a proxy")
    proxy.add_argument(
        "--allow-host",
        type=_host,
        action="append",
        default=[],
        metavar="NAME",
        help="also answer to this host name, with or without a port; may be given several times",
    )
    proxy.add_argument(
        "--root-path", type=_root_path, default="", metavar="PATH", help="path under which the proxy offers the server"
    )
    proxy.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="answer only to those who send the token in this file (Authorization: Bearer TOKEN)",
    )
    proxy.add_argument("--access-log", action="store_true", help="write a line per request to standard error")


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port; choose from 0 to 65535")
    return port


def _megabytes(text: str) -> float:
    if not 0.001 <= float(text) <= 500:
        raise argparse.ArgumentTypeError(f"{text} is refused; it must be from 0.001 to 500 megabytes")
    return float(text)


def _host(text: str) -> str:
    name = text.lower()
    # A name or an address, not a URL; an address of IPv6 stands in brackets where it has a port.
    if not re.fullmatch(r"[a-z0-9._-]+(:\d{1,5})?|\[[0-9a-f:.]+\](:\d{1,5})?|[0-9a-f:]*:[0-9a-f:]*:[0-9a-f.:]*", name):
        raise argparse.ArgumentTypeError(f"{text!r} is not a host name; give one such as captions.example.org")
    return name


def _root_path(text: str) -> str:
    path = text.rstrip("/")
    if path and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", path):
        raise argparse.ArgumentTypeError(f"{text!r} is not a path; give one such as /captions")
    return path


def _read_token(path: Path) -> str:
    """Return the token in a file; raise ValueError where there is none."""
    try:
        if not path.is_file():
            raise ValueError(f"{printable(str(path))} is not a file with a token")
        with path.open("rb") as file:
            token = file.read(_TOKEN_BYTES).strip().decode("ascii", "replace")
    except OSError as error:
        raise ValueError(f"cannot read {printable(str(path))}: {(error.strerror or str(error)).lower()}") from None
    if not re.fullmatch(r"[A-Za-z0-9._~+/=-]+", token) or not _SHORTEST_TOKEN <= len(token) < _TOKEN_BYTES:
        raise ValueError(
            f"{printable(str(path))} must hold one token of at least {_SHORTEST_TOKEN} letters, digits and -._~+/=; "
            "make one with: openssl rand -hex 32"
        )
    return token


def run_serve(options: argparse.Namespace) -> int:
    """Serve until interrupted."""
    if missing := [name for name in ("starlette", "uvicorn") if find_spec(name) is None]:
        raise ValueError(f"serving needs {' and '.join(missing)}: pip install 'captioner[serve]'")
    for model in options.model or [None]:
        find_model(model)  # a wrong name is known before torch is
    token = _read_token(options.token_file) if options.token_file else None
    from captioner.web.app import make_app
    from captioner.web.decoding import Decoders
    from captioner.web.guard import Access, is_loopback
    from captioner.web.served_models import find_examples, load_models
    from captioner.web.server import address, listen, make_server
    from captioner.web.service import Limits

    examples = find_examples(options.examples or EXAMPLES)
    if options.examples and not examples:
        raise ValueError(f"no images in {options.examples}; --examples names a folder of images")
    with listen(options.host, options.port) as listener:
        say(f"loading {', '.join(options.model or ['the bundled models'])} ...")
        models = load_models(
            options.model or [], device=read_device(options), progress=True, allow_download=options.allow_download
        )
        local = is_loopback(listener.getsockname()[0])
        access = Access(local, tuple(options.allow_host), token, root_path=options.root_path)
        decoders = Decoders()
        decoders.warm_up()
        app = make_app(
            models,
            examples=examples,
            access=access,
            limits=Limits.of_uploads(int(1e6 * options.max_upload)),
            waiting=options.queue,
            decoders=decoders,
            log=say if options.access_log else None,
        )
        names = ", ".join(model.name for model in models)
        say(f"serving {names} at {address(listener)}{access.root_path} (Ctrl-C stops it){_whom(access)}")
        with suppress(KeyboardInterrupt):  # the usual way to end a server is not a failure
            make_server(app).run(sockets=[listener])
    say("stopped")
    return 0


def _whom(access: Access) -> str:
    """Return who else can use the server, to end a line with."""
    if access.local:
        return ""
    return f"; anyone who can reach this machine{' and has the token' if access.token else ''} can use it"
