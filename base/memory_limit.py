"""Most memory that a process of Taylor's own may take on this machine."""

from __future__ import annotations

import contextlib

MOST_BYTES = "TAYLOR_SERVE_BYTES"
"""Variable with the limit of a worker process."""


def limit_memory(most_bytes: int) -> None:
    """Limit this process's private memory, where the system can; beyond it Python raises `MemoryError`.

    Address space that is only reserved, such as an arena of every thread, is not counted (``RLIMIT_DATA``).
    """
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, hard))
