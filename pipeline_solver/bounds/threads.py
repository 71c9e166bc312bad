"""Calls in threads, for compiled kernels that run without the interpreter's lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def in_order(calls: Iterable[Callable[[], Result]], workers: int, take: Callable[[Result], None]) -> None:
    """Hand the results of calls to `take` in the calls' order; up to `workers` of them run at a time.

    An exception of a call or `take` ends it: calls that have not begun are skipped. No thread remains, so that a
    process may be forked afterwards.
    """
    if workers == 1:
        for call in calls:
            take(call())
        return
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers) as threads:
        try:
            for call in calls:
                if len(waiting) == workers:
                    take(waiting.popleft().result())
                waiting.append(threads.submit(call))
            while waiting:
                take(waiting.popleft().result())
        finally:
            for future in waiting:
                future.cancel()
