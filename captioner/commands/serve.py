"""`captioner serve`: a web page to caption images on, and an HTTP API."""

from __future__ import annotations

import argparse
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from captioner.commands.arguments import (
    add_command,
    add_device_argument,
    add_download_argument,
    add_model_argument,
    read_device,
    say,
)
from captioner.model.bundled import find_model

# The project's own photographs; they are not part of an installed package.
EXAMPLES = Path(__file__).parent.parent.parent / "data" / "examples"


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
    parser.add_argument("--examples", type=Path, metavar="DIR", help="folder of images to try (default: the project's)")


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port; choose from 0 to 65535")
    return port


def run_serve(options: argparse.Namespace) -> int:
    """Serve until interrupted."""
    if missing := [name for name in ("starlette", "uvicorn") if find_spec(name) is None]:
        raise ValueError(f"serving needs {' and '.join(missing)}: pip install 'captioner[serve]'")
    for model in options.model or [None]:
        find_model(model)  # a wrong name is known before torch is
    from captioner.web.app import make_app
    from captioner.web.guard import is_loopback
    from captioner.web.served_models import find_examples, load_models
    from captioner.web.server import address, listen, make_server

    examples = find_examples(options.examples or EXAMPLES)
    if options.examples and not examples:
        raise ValueError(f"no images in {options.examples}; --examples names a folder of images")
    with listen(options.host, options.port) as listener:
        say(f"loading {', '.join(options.model or ['the bundled models'])} ...")
        models = load_models(
            options.model or [], device=read_device(options), progress=True, allow_download=options.allow_download
        )
        local = is_loopback(listener.getsockname()[0])
        app = make_app(models, examples=examples, local=local)
        names = ", ".join(model.name for model in models)
        whom = "" if local else "; anyone who can reach this machine can use it"
        say(f"serving {names} at {address(listener)} (Ctrl-C stops it){whom}")
        with suppress(KeyboardInterrupt):  # the usual way to end a server is not a failure
            make_server(app).run(sockets=[listener])
    say("stopped")
    return 0
