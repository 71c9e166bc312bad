"""`python -m taylor`: the same as the command `taylor`."""

import sys

from taylor.command_lines.main import main

if __name__ == "__main__":
    sys.exit(main())
