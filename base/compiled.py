"""Kernels compiled to machine code, and cached where this machine has a place for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numba
from numba.core import config
from numba.extending import register_jitable

from taylor.base.console import log

_NO_FILE = "/nowhere/.numba_config.yaml"


def _forget_working_folder() -> None:
    """Undo what a file of the working folder tells numba, and let it read none later.

    Such a file can name the folder of the compiled code, from which numba unpickles (numba/core/config.py, 0.62:
    ``_config_fname = '.numba_config.yaml'``). The user's environment still counts.
    """
    config._config_fname = _NO_FILE
    config._env_reloader.reset()  # type: ignore[no-untyped-call]


_forget_working_folder()

NO_C_WRAPPER: dict[str, Any] = {"no_cfunc_wrapper": True}
"""Leaves out each kernel's entry for C callers, which nothing uses: an eighth of the compilation."""


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call; it runs without the interpreter's lock.

    The machine code is kept beside the source or in the user's cache. Where neither can be written, as in a container
    whose user has no home, it is compiled again in every process.
    """
    try:
        return numba.njit(cache=True, nogil=True, **NO_C_WRAPPER)(function)
    except RuntimeError:  # numba found no folder to keep it in
        return numba.njit(nogil=True, **NO_C_WRAPPER)(function)


def kernel_part(function: Callable[..., Any]) -> Any:
    """Compile a function into each kernel that calls it; called from Python, it runs as Python.

    A part has no wrapper for the interpreter, which for tuples of twenty arrays takes longer to compile than the part.
    """
    return register_jitable(**NO_C_WRAPPER)(function)


@kernel_part
def overwrite(values, new, count):  # type: ignore[no-untyped-def]
    """Overwrite the first `count` elements of an array; the assignment of a slice takes seconds to compile."""
    for i in range(count):
        values[i] = new[i]


def announce_compilation(kernels: Sequence[Any]) -> None:
    """Log that kernels are being compiled, when no earlier run has saved them on the disk.

    With ``NUMBA_DISABLE_JIT`` set nothing is: the kernels are the functions themselves, which run some hundred times
    slower.
    """
    if not all(hasattr(kernel, "stats") for kernel in kernels):
        log.warning("the solver's kernels run as plain Python: NUMBA_DISABLE_JIT is set, and a solve takes much longer")
        return
    folders = [kernel.stats.cache_path for kernel in kernels]
    if None in folders:
        log.warning(
            "compiling the solver's kernels: about a minute in every process, as there is no folder to keep them "
            "in; NUMBA_CACHE_DIR names one"
        )
    elif not all(_is_kept(kernel, Path(folder)) for kernel, folder in zip(kernels, folders, strict=True)):
        log.warning("compiling the solver's kernels: once, about a minute; later runs find them on the disk")


def are_kept(kernels: Sequence[Any]) -> bool | None:
    """Return whether all kernels are compiled, here or on the disk; None where nothing is compiled or kept."""
    if not all(hasattr(kernel, "stats") for kernel in kernels):
        return None
    missing = [kernel for kernel in kernels if not kernel.overloads]
    if any(kernel.stats.cache_path is None for kernel in missing):
        return None
    return all(_is_kept(kernel, Path(kernel.stats.cache_path)) for kernel in missing)


def _is_kept(kernel: Any, folder: Path) -> bool:
    """Return whether a kernel's machine code is on the disk, and not older than its source."""
    module = kernel.py_func.__module__.split(".")[-1]
    written = Path(kernel.py_func.__code__.co_filename).stat().st_mtime
    return any(one.stat().st_mtime >= written for one in folder.glob(f"{module}.{kernel.py_func.__name__}-*.nbi"))
