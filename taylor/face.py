"""Sources of the names of `import taylor`; see `docs/api.md`."""

from taylor.api import choose as choose
from taylor.api import evaluate as evaluate
from taylor.api import evaluate_rl as evaluate_rl
from taylor.api import rank as rank
from taylor.api import read as read
from taylor.api import search as search
from taylor.api import size as size
from taylor.api import solve as solve
from taylor.api import split_rl as split_rl
from taylor.api import started as started
from taylor.api import write as write
from taylor.base import shipped
from taylor.base.errors import InfeasibleError as InfeasibleError
from taylor.base.errors import InputError as InputError
from taylor.base.errors import NoSolutionError as NoSolutionError
from taylor.base.errors import TaylorError as TaylorError
from taylor.cost_model.job.strategy import Strategy as Strategy
from taylor.cost_model.profile import MemoryProfile as MemoryProfile
from taylor.cost_model.profile import TimeRatios as TimeRatios
from taylor.parsers.tables.device_prices import DevicePrice as DevicePrice
from taylor.parsers.tables.generation import GenerationSpeed as GenerationSpeed
from taylor.parsers.tables.generation import read_generation as read_generation
from taylor.parsers.training_config import TrainingConfig as TrainingConfig
from taylor.pipeline.plan import PipelinePlan as PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec as ScheduleSpec
from taylor.pipeline_solver.model.params import SolverParams as SolverParams
from taylor.pipeline_solver.model.problem import LayerKind as LayerKind
from taylor.pipeline_solver.model.problem import PipelineProblem as PipelineProblem
from taylor.pipeline_solver.model.solution import Solution as Solution
from taylor.register import device, model
from taylor.register.registry import Registry as Registry
from taylor.report.notebook import ProgressLine as ProgressLine
from taylor.results import Found as Found
from taylor.results import Planned as Planned
from taylor.workflows.ranking.rank import Ranking as Ranking
from taylor.workflows.searching.size import Size as Size

EXAMPLES = shipped.CONFIG
Device = device.DeviceSpec
LinkTier = device.LinkTier
Model = model.ModelSpec
