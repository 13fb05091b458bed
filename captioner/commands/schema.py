"""`captioner schema`: what the lines of JSON mean that other programs read."""

from __future__ import annotations

import argparse
import json
from typing import Any

from captioner.captioning.schema import record_schema
from captioner.commands.parser import add_command


def add_schema(commands: Any) -> None:
    """Add `captioner schema`."""
    add_command(commands, "schema", run_schema, "print the JSON Schema of caption records")


def run_schema(_: argparse.Namespace) -> int:
    """Print the schema."""
    print(json.dumps(record_schema(), indent=2))
    return 0
