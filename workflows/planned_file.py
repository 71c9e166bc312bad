"""A configuration file with its plan, solved or evaluated, and the files that show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from taylor.base.files import printable, write_atomic
from taylor.cost_model.profile import MemoryProfile
from taylor.dryrun.interface import DryRunResult
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.problem import PipelineProblem
from taylor.pipeline_solver.result import Result
from taylor.pipeline_solver.solution import Solution
from taylor.register.model import MTP
from taylor.workflows.alternatives import Alternative
from taylor.workflows.dryrun_result import dryrun_dict, stage_memories
from taylor.workflows.export import export_texts, store_exports
from taylor.workflows.options import Export, Outputs
from taylor.workflows.problem import plan_in_terms_of

History = Sequence[tuple[float, float | None, float | None]]
"""How a solve went: seconds, best step time and proven bound in body-layer forward times."""


@dataclass(frozen=True)
class PlannedFile:
    """A configuration with its problem and solution.

    Parameters
    ----------
    config : TrainingConfig
        As it was read.
    memory : MemoryProfile
        What the problem rests on.
    alternatives : tuple of Alternative
        Interleaves and schedules that were tried, where the tool chose among several.
    dryrun : DryRunResult or None
        The dry-run of the solution's plan, where the check made one.
    files : dict
        Path of every file written, by role.
    exports : sequence of (Export, str)
        The plan in the words of other launchers.
    """

    config: TrainingConfig
    memory: MemoryProfile
    problem: PipelineProblem
    solution: Solution
    alternatives: tuple[Alternative, ...] = ()
    dryrun: DryRunResult | None = None
    files: dict[str, str] = field(default_factory=dict)
    exports: Sequence[tuple[Export, str]] = ()

    @property
    def name(self) -> str:
        """What its files and drawings are called."""
        return printable(self.config.path.stem)

    @property
    def plan(self) -> PipelinePlan:
        """The plan; a planned file has one."""
        assert self.solution.plan is not None
        return self.solution.plan

    @property
    def mtp_among_layers(self) -> int:
        """MTP layers that the problem counts with the kind before them."""
        return 0 if any(kind.name == MTP for kind in self.problem.kinds) else self.config.model.mtp_layers

    def own_plan(self) -> dict[str, PipelinePlan]:
        """The file's own plan, by its name on a page; empty where it has another shape than the solved one, or a
        recompute mode whose costs the problem does not know."""
        plan, problem = self.config.plan, self.problem
        if plan is None or (plan.interleaves, plan.stages) != (problem.interleaves, problem.stages):
            return {}
        if any(plan.uses(mode) for mode in plan.recompute if mode not in problem.recompute_ratio):
            return {}
        return {"as in the file": plan_in_terms_of(self.problem, plan)}

    def result(self) -> Result:
        """The result that files, pages and tables show."""
        return Result(
            self.problem,
            self.solution,
            memory_source=self.memory.source,
            mtp_layers=self.mtp_among_layers,
            dryrun=None if self.dryrun is None else dryrun_dict(self.dryrun),
            alternatives=[one.to_dict() for one in self.alternatives],
            unmodelled=[flag.sentence for flag in self.config.unmodelled],
            files=self.files,
        )

    def with_exports(self, exports: Sequence[Export]) -> PlannedFile:
        """The same with the texts of what is to be exported.

        Raises
        ------
        InputError
            When a form cannot say the plan.
        """
        return replace(self, exports=export_texts(exports, self.problem, self.plan, self.mtp_among_layers))


def write_drawings(
    planned: PlannedFile, outputs: Outputs, *, beside: dict[str, PipelinePlan] | None = None, history: History = ()
) -> dict[str, str]:
    """Write the trace, the page and the picture that were asked for; returns their paths by role.

    Parameters
    ----------
    beside : mapping of name to PipelinePlan, optional
        Plans to lay beside this one on the page.
    history : sequence of (seconds, objective, bound)
        How the solve went, for the page.
    """
    views = {"trace": outputs.trace, "html": outputs.html, "picture": outputs.picture}
    asked = {role: str(path) for role, path in views.items() if path is not None}
    if asked:
        from taylor.report.outputs import write_views

        problem, solution, dryrun = planned.problem, planned.solution, stage_memories(planned.dryrun)
        write_views(problem, solution, title=planned.name, trace=outputs.trace, picture=outputs.picture, dryrun=dryrun)
        if outputs.html is not None:
            write_views(
                problem,
                solution,
                title=planned.name,
                html=outputs.html,
                others=beside,
                dryrun=dryrun,
                progress=history,
            )
    return asked


def store_result(planned: PlannedFile, files: dict[str, str], outputs: Outputs) -> PlannedFile:
    """Write the exports that have a file and the result's JSON; returns the planned file with all its `files`.

    Parameters
    ----------
    files : dict
        What was written before, by role.
    """
    files = files | store_exports(planned.exports)
    if outputs.result_json is None:
        return replace(planned, files=files)
    done = replace(planned, files=files | {"result": str(outputs.result_json)})
    write_atomic(outputs.result_json, done.result().to_json())
    return done
