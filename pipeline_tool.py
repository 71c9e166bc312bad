"""`taylor.command_lines.pipeline_tool`, run from the checkout."""

import sys

from taylor.command_lines.pipeline_tool import main

if __name__ == "__main__":
    sys.exit(main())
