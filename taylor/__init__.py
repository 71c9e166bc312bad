"""Taylor: parallel-training strategies of large language models, searched, solved, proven, ranked."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taylor.face import *

__version__ = "0.1.0"

__all__ = [
    "EXAMPLES",
    "Device",
    "Found",
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
    "Ranking",
    "Registry",
    "ScheduleSpec",
    "Solution",
    "Strategy",
    "TaylorError",
    "TimeRatios",
    "TrainingConfig",
    "choose",
    "evaluate",
    "rank",
    "read",
    "search",
    "solve",
    "write",
]

_CHECKOUT = Path(__file__).resolve().parent.parent
if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "pipeline_solver" / "__init__.py").is_file():
    # In a checkout the sub-packages lie beside this folder; installed, they lie in it.
    __path__.append(str(_CHECKOUT))


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'taylor' has no attribute {name!r}")
    # Only here, so that `import taylor` itself takes a few milliseconds.
    value = getattr(import_module("taylor.face"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
