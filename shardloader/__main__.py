"""`python -m shardloader` is the command `shardloader`."""

from __future__ import annotations

import sys

from shardloader.cli import main

if __name__ == "__main__":
    sys.exit(main())
