"""Lets torch's profiler record memory in a training whose flags cannot ask for it.

Megatron-LM's flags record shapes and no memory (d98e8a64 megatron/training/training.py:4496-4506). Python runs a module
``sitecustomize`` of ``PYTHONPATH`` as it starts: small runs have one there that is this module's text.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = "trace_memory"
"""In the work folder of a tuning."""
_MODULE = "torch.profiler.profiler"


def with_memory(environment: Mapping[str, str], work_dir: Path) -> dict[str, str]:
    """Variables of a run whose traces record memory; the module that they name is written first."""
    from taylor.base.files import write_atomic  # The text below runs where Taylor is not.

    folder = work_dir.resolve() / FOLDER
    text = Path(__file__).read_text(encoding="utf-8")
    start = f"\n\ninstall({str(folder)!r})\n"
    write_atomic(folder / "sitecustomize.py", text + start)
    given = environment.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": os.pathsep.join([str(folder), *([given] if given else [])])}


def install(own: str) -> None:
    """Wait for the profiler to be imported, and run the ``sitecustomize`` that the one in this folder stands before."""
    sys.meta_path.insert(0, _Waiting())
    others = [place for place in sys.path if os.path.abspath(place) != os.path.abspath(own)]
    shadowed = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if shadowed is not None and shadowed.loader is not None:
        module = importlib.util.module_from_spec(shadowed)
        sys.modules["sitecustomize"] = module
        shadowed.loader.exec_module(module)


class _Waiting(importlib.abc.MetaPathFinder):
    """Finds the profiler's module once, to change it as soon as it has run."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                record_memory(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def record_memory(module: Any) -> None:
    """Let every profile of a profiler's module record memory."""
    before = module.profile.__init__

    @functools.wraps(before)
    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        before(self, *args, **{**kwargs, "profile_memory": True})

    module.profile.__init__ = begin
