"""State of a call of branch and cut: its best plan, its end, and the figures of its trees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.heuristics.first_plans import FirstPlans
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import Termination
from taylor.pipeline_solver.timing.durations import chunk_durations
from taylor.pipeline_solver.timing.event_graph import EventGraph
from taylor.pipeline_solver.tree.tree_search import Search


class BestPlan:
    """The best plan of a call, whoever found it: the caller, the local searches, or the present tree.

    Parameters
    ----------
    first : FirstPlans or None
        The local searches.
    search : Search or None
        The present tree.
    """

    def __init__(self, problem: PipelineProblem, graph: EventGraph) -> None:
        self.problem, self.graph = problem, graph
        self.first: FirstPlans | None = None
        self.search: Search | None = None
        self._known: tuple[float, PipelinePlan | None] = (np.inf, None)

    @property
    def time(self) -> float:
        """Its step time; inf before there is a plan."""
        local = self.first.time if self.first is not None and self.first.plan is not None else np.inf
        searched = self.search.plans.best_time if self.search is not None else np.inf
        return float(min(self._known[0], local, searched))

    def plan(self) -> PipelinePlan | None:
        """The plan; None before there is one."""
        time, search = self.time, self.search
        if self._known[0] > time:
            if search is not None and search.plans.best is not None and search.plans.best_time <= time:
                self._known = time, search.plan_of(search.plans.best)
            elif self.first is not None:
                self._known = time, self.first.plan
        return self._known[1]

    def leave_tree(self) -> Search | None:
        """Keep the plan of the present tree, which another one replaces; return that tree."""
        self.plan()
        search, self.search = self.search, None
        return search

    def know(self, plan: PipelinePlan | None) -> None:
        """Take a known plan."""
        if plan is not None:
            self._known = float(self.graph.longest_path(chunk_durations(self.problem, plan))), plan


@dataclass
class Outcome:
    """How a call ends.

    Parameters
    ----------
    infeasible : bool
        There is no plan.
    finished : bool
        All trees were searched to the end.
    hand_over, crowded : bool
        The compact MILP takes over; because columns are too many to list.
    stopped : Termination or None
        A limit or the user ended it.
    """

    infeasible: bool = False
    finished: bool = False
    hand_over: bool = False
    crowded: bool = False
    stopped: Termination | None = None


@dataclass
class Account:
    """Figures of the trees: most columns of one, nodes, LPs and rounds of all, seconds of the present one."""

    columns: int = 0
    nodes: int = 0
    lp_solves: int = 0
    rounds: int = 0
    tree_seconds: float = 0.0

    def add(self, search: Search) -> None:
        """Add a tree that ends."""
        self.nodes += search.nodes
        self.lp_solves += search.lp_solves()

    def statistics(self, cuts: int) -> dict[str, float]:
        """The solution's statistics; with path cuts those of trees."""
        if not cuts:
            return {"rounds": self.rounds}
        counts = {"columns": self.columns, "nodes": self.nodes, "lp_solves": self.lp_solves}
        return {"rounds": self.rounds, **counts, "cuts": cuts}
