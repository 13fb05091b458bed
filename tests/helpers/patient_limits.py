"""Limits for servers under test that no good request meets, on however busy a machine."""

from __future__ import annotations

from captioner.web.service import Limits
from helpers.holding import PATIENCE

PATIENT = Limits(upload_seconds=PATIENCE, answer_seconds=PATIENCE)
