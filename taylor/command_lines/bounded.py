"""Process that answers one question of an agent: ``taylor`` within a limit of memory, ended with its parent."""

from __future__ import annotations

import os
import sys

from taylor.base.memory_limit import MOST_BYTES, limit_memory
from taylor.base.orphans import PARENT, end_with_parent
from taylor.command_lines.main import main as taylor


def main() -> int:
    """Run the command line of the arguments."""
    end_with_parent(int(os.environ[PARENT]))
    limit_memory(int(os.environ[MOST_BYTES]))
    os.nice(5)
    return taylor()


if __name__ == "__main__":
    sys.exit(main())
