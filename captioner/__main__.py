"""`python -m captioner` is the `captioner` command."""

from __future__ import annotations

import sys

from captioner.cli import main

sys.exit(main())
