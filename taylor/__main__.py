"""`python -m taylor`: the same as the command `taylor`."""

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", sys.flags.isolated):
    del sys.path[0]  # the working folder: nothing is imported from it

from taylor.command_lines.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
