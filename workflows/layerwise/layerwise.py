"""Layer-wise strategies from files: a job and its costs from profiles, a strategy file checked and evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.cost_model.measured.cost_table import CostProvider, CostSetting, MemorySettings
from taylor.cost_model.measured.galvatron.step import galvatron_step_s
from taylor.cost_model.measured.layer_strategy import LayerwisePlan
from taylor.layerwise.checker import LayerwiseCheck, check_plan
from taylor.layerwise.job import LayerwiseJob
from taylor.parsers.galvatron.folder import ProfileFolder, read_folders
from taylor.parsers.galvatron.global_mode import read_any_strategy
from taylor.parsers.galvatron.strategy_file import StrategyFile
from taylor.workflows.layerwise.measured_costs import CostRequest, provider_of
from taylor.workflows.showing.verdict_data import VerdictFacts, figures_fit, no_plan
from taylor.workflows.statement.options import NO_ORIGIN, Origin


@dataclass(frozen=True)
class LayerwiseRequest:
    """A job and the source of its costs.

    Parameters
    ----------
    folders : tuple of Path
        Folders of profiles.
    tokens, hidden : int
        Tokens a sample, width of the hidden states.
    limit_gb : float
        Memory of a rank, GB of 1024 MiB.
    costs : str
        ``taylor`` or ``galvatron``.
    model, time_mode, memory_mode, by_bandwidth
        As `CostRequest`.
    kv_hidden, reduce_every_micro_batch, sequence_parallel
        As `CostSetting`.
    global_buffer, whole_mib, precision
        As `LayerwiseJob`.
    by_kind : tuple of int
        Layers of each kind, in model order; empty: of one kind.
    """

    folders: tuple[Path, ...]
    tokens: int
    hidden: int
    limit_gb: float
    costs: str = "taylor"
    model: str | None = None
    time_mode: str | None = None
    memory_mode: str | None = None
    by_bandwidth: bool = False
    kv_hidden: int | None = None
    reduce_every_micro_batch: bool = False
    sequence_parallel: bool = True
    global_buffer: bool = False
    whole_mib: bool = False
    precision: str = "bf16"
    by_kind: tuple[int, ...] = ()

    def costs_text(self) -> str:
        """Costs for a file's evaluation, and the profiles behind them."""
        rules = "true rules on the measured tables" if self.costs == "taylor" else "Galvatron's own model"
        modes = {"--time_mode": self.time_mode, "--memory_mode": self.memory_mode}
        named = "".join(f" {flag} {mode}" for flag, mode in modes.items() if mode is not None)
        folders = ", ".join(map(str, self.folders))
        return f"{rules} (--costs {self.costs}{named}), profiles of {folders}"

    def job(self, world: int, layers: int, names: Sequence[str] = ()) -> LayerwiseJob:
        """Job on this number of ranks.

        Parameters
        ----------
        names : sequence of str
            Kinds of layers that have costs, in model order.

        Raises
        ------
        InputError
            When the number of layers is not given for each of them.
        """
        counts = self.by_kind or (layers,)
        if names and len(names) != len(counts):
            raise InputError(
                f"has {len(counts)} numbers, and the profiles have {len(names)} kinds of layers: {', '.join(names)}",
                field="--layers", value=",".join(map(str, counts)), cure="give the layers of each, in this order",
            )  # fmt: skip
        if sum(counts) != layers:
            raise InputError(
                f"makes {sum(counts)} layers, and the plan has {layers}", field="--layers",
                value=",".join(map(str, counts)), cure="correct it",
            )  # fmt: skip
        return LayerwiseJob(
            world, layers, self.tokens, self.hidden, self.limit_gb * 1024, precision=self.precision,
            sequence_parallel=self.sequence_parallel, reduce_every_micro_batch=self.reduce_every_micro_batch,
            kv_hidden=self.kv_hidden, global_buffer=self.global_buffer, whole_mib=self.whole_mib,
            kinds=tuple(zip(names, counts, strict=True)),
        )  # fmt: skip

    def provider(self, folder: ProfileFolder, world: int, layers: int) -> tuple[CostProvider, tuple[str, ...]]:
        """Source of costs, and its warnings.

        Raises
        ------
        InputError
            When a profile is missing.
        """
        setting = CostSetting(1, 1, 1, self.tokens, self.hidden, sequence_parallel=self.sequence_parallel)
        request = CostRequest(
            world, setting, layers, self.model, self.costs, self.time_mode, self.memory_mode, self.by_bandwidth
        )
        provider, _, warnings = provider_of(folder, folder.model(self.model), request)
        return provider, warnings


@dataclass(frozen=True)
class CheckedFile:
    """Checked strategy file.

    Parameters
    ----------
    file : StrategyFile
    found : LayerwiseCheck
    formula_s : float or None
        Step by Galvatron's formula, s; None where the plan is inconsistent.
    memory : MemorySettings
    warnings : tuple of str
    costs : str
        Costs that it was evaluated with.
    """

    file: StrategyFile
    found: LayerwiseCheck
    formula_s: float | None
    memory: MemorySettings
    warnings: tuple[str, ...] = ()
    costs: str = ""

    @property
    def plan(self) -> LayerwisePlan:
        """Plan in the file."""
        return self.file.plan

    def verdict_dict(self, origin: Origin = NO_ORIGIN) -> dict[str, Any]:
        """Verdict on the memory of the plan; a plan that is none for another reason is unknown to fit."""
        if self.found.stages:
            peaks = [stage.peak_mib for stage in self.found.stages]
            solution, fit = figures_fit(peaks, [self.found.usable_mib] * len(peaks))
        else:
            solution, fit = no_plan(" ".join(self.found.faults), proven=False)
        step_ms = 1e3 * self.found.step_s if self.formula_s is not None else None
        facts = VerdictFacts(
            None, None, fit, solution, None, step_ms, False, origin=origin, framework="galvatron"
        )  # fmt: skip
        return facts.to_dict()

    def to_dict(self, origin: Origin = NO_ORIGIN) -> Mapping[str, Any]:
        """Check as plain data."""
        whole = self.formula_s is not None
        return {
            "verdict": self.verdict_dict(origin),
            "step_s": self.found.step_s if whole else None,
            "samples_a_s": self.plan.global_batch / self.found.step_s if whole else None,
            "galvatron_formula_s": self.formula_s,
            "usable_mib": self.found.usable_mib,
            "stages": [asdict(stage) for stage in self.found.stages],
            "costs": self.costs,
            "faults": list(self.found.faults),
            "notes": [*self.file.notes, *self.warnings],
        }


def check_file(path: Path, request: LayerwiseRequest, world: int | None = None) -> CheckedFile:
    """Evaluate a strategy file, a user's own or a rival's, and check its memory.

    Parameters
    ----------
    world : int, optional
        Ranks, where the file does not state them.

    Raises
    ------
    InputError
        When the file or a profile cannot be used.
    """
    file = read_any_strategy(path, world)
    plan = file.plan
    folder = read_folders(list(request.folders))
    provider, warnings = request.provider(folder, plan.world, len(plan.layers))
    job = request.job(plan.world, len(plan.layers), provider.kinds)
    try:
        found = check_plan(job, plan, provider)
        formula = None if not found.stages else plan_formula_s(job, plan, provider)
    except InputError as error:
        raise InputError(f"cannot be priced: {error}", file=path) from error
    return CheckedFile(file, found, formula, provider.memory, warnings, request.costs_text())


def plan_formula_s(job: LayerwiseJob, plan: LayerwisePlan, provider: CostProvider) -> float | None:
    """Step of a plan by Galvatron's formula, s; None with several virtual stages, which it does not know."""
    if plan.interleaves > 1:
        return None
    setting = CostSetting(
        plan.stages, plan.global_batch, plan.micro_batches, job.tokens, job.hidden, job.precision,
        job.sequence_parallel, job.reduce_every_micro_batch, plan.schedule, job.kv_hidden,
    )  # fmt: skip
    every = [provider.layer(*each, setting) for each in zip(job.kind_of, plan.layers, strict=True)]
    starts = [sum(plan.division[:s]) for s in range(plan.stages + 1)]
    rows = [every[start:end] for start, end in zip(starts[:-1], starts[1:], strict=True)]
    return galvatron_step_s(rows, provider.ends(plan.ends, setting), plan.micro_batches)
