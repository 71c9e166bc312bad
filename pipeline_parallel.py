"""`taylor.command_lines.pipeline_parallel`, run from the checkout."""

import sys

from taylor.command_lines.pipeline_parallel import main

if __name__ == "__main__":
    sys.exit(main())
