"""Bundled models that are loaded once for all tests of a process; a model of a folder is loaded each time."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from captioner.captioning import captioner
from captioner.captioning.captioner import Captioner
from captioner.model.bundled import bundled_models

_load = captioner.load


@cache
def _load_once(model: str | None, settings: tuple[tuple[str, Any], ...]) -> Captioner:
    loaded = _load(model, **dict(settings))
    loaded.close = lambda: None  # type: ignore[method-assign]  # the next one needs it
    return loaded


def load_bundled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands, and whoever imports `load` from now on, share the bundled models."""

    def load(model: Any = None, **settings: Any) -> Captioner:
        if model is None or model in bundled_models():
            return _load_once(model, tuple(sorted(settings.items())))
        return _load(model, **settings)

    for module in ("captioning.captioner", "captioning.collection", "evaluation.evaluate"):
        monkeypatch.setattr(f"captioner.{module}.load", load)
