"""Step time of a configuration by the plan in its file on the event graph: the one path where a plan is known."""

from __future__ import annotations

from taylor.cost_model.profile import MemorySource
from taylor.cost_model.time.step import estimate_ratios
from taylor.dryrun.estimate import estimate_memory
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline_solver.timing.evaluate import step_time
from taylor.register.device import DeviceSpec
from taylor.workflows.statement.problem import build_problem, plan_in_terms_of
from taylor.workflows.statement.towers import with_tower


def planned_step_ms(config: TrainingConfig, device: DeviceSpec) -> float:
    """Time of one step by the plan in the file, else the even one, ms.

    The analytical model gives the times of layers, embedding and head (`estimate_ratios`), the event graph the step
    that follows, as in evaluating or solving the file. `cost_model.time.step.step_ms` knows no plan and only orders
    strategies.

    Raises
    ------
    InputError
        When the plan cannot be stated as a pipeline problem.
    """
    plan = config.plan or config.even_plan(config.strategy)
    ratios = estimate_ratios(config.model, config.strategy, config.rules, device)
    problem = build_problem(config, estimate_memory(config, device), ratios, device=device)
    problem = with_tower(problem, config, device, MemorySource.ESTIMATE)
    assert ratios.unit_ms is not None
    return step_time(problem, plan_in_terms_of(problem, plan)) * ratios.unit_ms
