"""What an evaluation measures: scores of captions, how sure they are, and what attention does."""

from __future__ import annotations
