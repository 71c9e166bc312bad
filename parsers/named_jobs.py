"""A mixin for launchers whose files only name their model: it cannot be cut down to small runs."""

from __future__ import annotations

from pathlib import Path

from taylor.parsers.launcher import Launcher
from taylor.parsers.small_run import JobSizes, Machines, PlannedJob, ProfiledRun, RunSetting, Switch


class NamedJobs(Launcher):
    """Stands before a launcher of Megatron's flags among the bases, and takes its small runs away."""

    def job_sizes(self, path: Path) -> JobSizes:
        """See `Launcher.job_sizes`: a model that is named cannot be cut down."""
        return Launcher.job_sizes(self, path)

    def small_run(self, path: Path, run: ProfiledRun) -> str:
        """See `Launcher.small_run`."""
        return Launcher.small_run(self, path, run)

    def planned_job(self, path: Path, setting: RunSetting, job: PlannedJob) -> str:
        """See `Launcher.planned_job`."""
        return Launcher.planned_job(self, path, setting, job)

    def whole_run(self, path: Path, setting: RunSetting, job: PlannedJob, machines: Machines, iterations: int) -> str:
        """See `Launcher.whole_run`."""
        return Launcher.whole_run(self, path, setting, job, machines, iterations)

    def recompute_modules(self, path: Path) -> tuple[str, ...]:
        """See `Launcher.recompute_modules`: none."""
        return ()

    def switches(self, path: Path) -> tuple[Switch, ...]:
        """See `Launcher.switches`: none."""
        return ()
