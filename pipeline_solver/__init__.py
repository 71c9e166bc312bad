"""Layers and recompute of every pipeline chunk, proven optimal.

The package solves any pipeline problem and needs no configuration file:

>>> from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
>>> from taylor.pipeline_solver.model.options import SolveOptions
>>> from taylor.pipeline_solver.solving.solve import solve
>>> body = LayerKind("body", count=10, forward=1.0, layer_mib=400.0, activation_mib={"none": 250.0, "full": 20.0})
>>> problem = PipelineProblem(
...     stages=2, interleaves=1, micro_batches=8, kinds=(body,), static_mib=(500.0, 900.0), limit_mib=(4000.0, 4000.0),
...     head_forward=0.5,
... )
>>> solution = solve(problem, SolveOptions(time_limit=60))
>>> print(solution.status, solution.termination, round(solution.objective, 3))
optimal proven 161.0
>>> solution.plan.layers["body"], solution.plan.recompute["full"]
(((5, 5),), ((3, 1),))

`print(solution)` prints the whole plan. `evaluate.evaluate` reports any given plan in the same figures, and
`checker.check` checks one in exact arithmetic, by independent simulation of the solvers' problem and order of tasks.
"""
