"""Where the names of `import taylor` come from; see `docs/api.md`."""

from taylor.api import evaluate, rank, read, search, solve, write
from taylor.base.errors import InfeasibleError, InputError, NoSolutionError, TaylorError
from taylor.base.shipped import CONFIG as EXAMPLES
from taylor.cost_model.profile import MemoryProfile, TimeRatios
from taylor.cost_model.strategy import Strategy
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.solution import Solution
from taylor.register.device import DeviceSpec as Device
from taylor.register.model import ModelSpec as Model
from taylor.register.registry import Registry
from taylor.results import Found, Planned
from taylor.workflows.rank import Ranking

__all__ = [
    "EXAMPLES",
    "Device",
    "Found",
    "InfeasibleError",
    "InputError",
    "LayerKind",
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
    "evaluate",
    "rank",
    "read",
    "search",
    "solve",
    "write",
]
