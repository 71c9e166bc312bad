"""`taylor.command_lines.pipeline_parallel`, run from the checkout."""

import sys

try:
    from taylor.base.interrupts import counted_interrupts

    with counted_interrupts():
        from taylor.command_lines.pipeline_parallel import main

    if __name__ == "__main__":
        sys.exit(main())
except KeyboardInterrupt:  # Ctrl-C before the work: nothing was begun, so there is nothing to say
    sys.exit(130)
