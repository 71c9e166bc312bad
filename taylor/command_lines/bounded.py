"""Process that answers one question of an agent: ``taylor`` within a limit of memory, ended with its parent."""

from __future__ import annotations

import os
import sys

from taylor.base.memory_limit import limit_memory
from taylor.base.orphans import end_with_parent
from taylor.command_lines.main import main as taylor

PARENT, MOST_BYTES = "TAYLOR_SERVE_PARENT", "TAYLOR_SERVE_BYTES"
"""Variables with the number of the parent, and the limit."""


def main() -> int:
    """Run the command line of the arguments."""
    end_with_parent(int(os.environ[PARENT]))
    limit_memory(int(os.environ[MOST_BYTES]))
    os.nice(5)
    return taylor()


if __name__ == "__main__":
    sys.exit(main())
