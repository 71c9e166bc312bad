"""`taylor.command_lines.parallel_tool`, run from the checkout."""

import os
import sys

try:
    if __name__ in ("__main__", "__mp_main__"):  # the second in processes that the first spawns
        # Nothing but `taylor` is imported from this folder, whatever files lie in it.
        FOLDER = os.path.dirname(os.path.abspath(__file__))
        sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != FOLDER]

        from importlib.util import module_from_spec, spec_from_file_location

        SPEC = spec_from_file_location("taylor", os.path.join(FOLDER, "taylor", "__init__.py"))
        sys.modules["taylor"] = module_from_spec(SPEC)
        SPEC.loader.exec_module(sys.modules["taylor"])

    from taylor.base.interrupts import counted_interrupts

    with counted_interrupts():
        from taylor.command_lines.parallel_tool import main

    if __name__ == "__main__":
        sys.exit(main())
except KeyboardInterrupt:  # Ctrl-C before the work: nothing was begun, so there is nothing to say
    sys.exit(130)
