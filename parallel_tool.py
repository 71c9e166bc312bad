"""`taylor.command_lines.parallel_tool`, run from the checkout."""

import sys

try:
    from taylor.command_lines.parallel_tool import main
except KeyboardInterrupt:  # Ctrl-C while it loads: nothing was begun, so there is nothing to say
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
