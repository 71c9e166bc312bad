"""Taylor: parallel-training strategies of large language models, searched, solved, proven, ranked."""

from __future__ import annotations

import os  # no module is imported here that Python has not loaded: `python -m` looks in the working folder first
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from taylor.face import *

__version__ = "0.2.0"

__all__ = [
    "EXAMPLES",
    "Device",
    "DevicePrice",
    "Found",
    "GenerationSpeed",
    "InfeasibleError",
    "InputError",
    "LayerKind",
    "LinkTier",
    "MemoryProfile",
    "Model",
    "NoSolutionError",
    "PipelinePlan",
    "PipelineProblem",
    "Planned",
    "ProgressLine",
    "Ranking",
    "Registry",
    "ScheduleSpec",
    "Size",
    "Solution",
    "SolverParams",
    "Strategy",
    "TaylorError",
    "TimeRatios",
    "TrainingConfig",
    "choose",
    "evaluate",
    "evaluate_rl",
    "rank",
    "read",
    "read_generation",
    "search",
    "size",
    "solve",
    "split_rl",
    "started",
    "write",
]

_CHECKOUT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
if all(os.path.isfile(os.path.join(_CHECKOUT, name)) for name in ("pyproject.toml", "pipeline_solver/__init__.py")):
    # In a checkout the sub-packages lie beside this folder; installed, they lie in it.
    __path__.append(_CHECKOUT)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'taylor' has no attribute {name!r}")
    # Only here, so that `import taylor` itself takes a few milliseconds.
    value = getattr(import_module("taylor.face"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
