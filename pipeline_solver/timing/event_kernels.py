"""The sweeps over an event graph, compiled."""

from __future__ import annotations

from taylor.base.compiled import compiled
from taylor.pipeline_solver.timing import event_paths

longest_path = compiled(event_paths.longest_path)
walk_back = compiled(event_paths.walk_back)
task_levels = compiled(event_paths.task_levels)
