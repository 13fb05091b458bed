"""How many cases generators of tests make: the first few in every run, more of them where they are asked for."""

from __future__ import annotations

import os

MORE = int(os.environ.get("CAPTIONER_TEST_CASES", "1"))  # times as many; each follows from its number alone
