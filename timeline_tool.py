"""`taylor.command_lines.timeline_tool`, run from the checkout."""

import sys

from taylor.command_lines.timeline_tool import main

if __name__ == "__main__":
    sys.exit(main())
