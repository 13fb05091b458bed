"""Image captioning with visible attention, after Show, Attend and Tell (Xu et al., 2015).

The letters of every shape in this package:
    B images   N captions per image   L regions   D region features   T steps
    V words    E embedding            H hidden    K beams             S pixels on a side
"""

from __future__ import annotations

__version__ = "0.1.0"
