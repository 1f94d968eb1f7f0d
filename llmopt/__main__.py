"""``python -m llmopt``: the same as the command ``llmopt``."""

from __future__ import annotations

import sys

from llmopt.cli import main

if __name__ == "__main__":
    sys.exit(main())
