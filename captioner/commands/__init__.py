"""The subcommands, a module each or for a few of a kind; torch is imported only by those that run it."""

from __future__ import annotations
