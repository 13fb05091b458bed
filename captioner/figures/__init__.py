"""Figures of captions and of evaluations; they take a caption and an image, never a model."""

from __future__ import annotations
