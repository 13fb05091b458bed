"""The page that tells what an evaluation found, part by part."""

from __future__ import annotations
