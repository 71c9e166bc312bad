"""Facts of a job that are known before planning: the first lines of a command, and part of a result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taylor.base.console import log
from taylor.cost_model.job.adapters import trained_parameters
from taylor.cost_model.job.length import UNSTATED, TrainingLength
from taylor.cost_model.job.parameters import active_parameters, total_parameters
from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.profile import MemorySource
from taylor.cost_model.time.throughput import Throughput, throughput
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.register.model import DENSE, MOE, MTP, ModelSpec
from taylor.register.registry import Registry
from taylor.workflows.statement.devices import ChosenDevice
from taylor.workflows.statement.measured_run import LearnedMemory
from taylor.workflows.statement.stage_devices import OnStages
from taylor.workflows.statement.time_ratios import SettledRatios

LISTED_FLAGS = 60
"""Most flags that the log names; real files have up to some twenty that no figure takes into account."""

KIND_WORDS = {DENSE: "dense", MOE: "MoE", MTP: "MTP"}


@dataclass(frozen=True)
class JobFacts:
    """A job as it was read, and the assumptions made.

    Parameters
    ----------
    config : TrainingConfig
        With the virtual stages and the schedule that are planned for.
    device : ChosenDevice
    ratios : SettledRatios or None
        None where every candidate has its own.
    length : TrainingLength
        Length of the training, as far as it is stated.
    stages : OnStages or None
        Devices of the stages, where not all lie on `device`.
    further : tuple of str
        Further sentences on assumptions.
    learned : LearnedMemory or None
        Correction of the memory by what was measured of the job.
    """

    config: TrainingConfig
    device: ChosenDevice
    ratios: SettledRatios | None = None
    length: TrainingLength = UNSTATED
    stages: OnStages | None = None
    further: tuple[str, ...] = ()
    learned: LearnedMemory | None = None

    def head(self, register_path: Path | None = None) -> list[str]:
        """First lines of a command that plans this very job."""
        lines = [f"{self.config.path}: {self.model_line(register_path)}", self.strategy_line(), self.device_line()]
        if self.stages is not None:
            return [*lines, *self.stages.ratio_lines, *self.further]
        return (
            [*lines, *self.further]
            if self.ratios is None
            else [*lines, f"time ratios {self.ratios.described}", *self.further]
        )

    def model_line(self, register_path: Path | None = None) -> str:
        """Kind of file, model, parameters beside the published count, layers by kind."""
        model = self.config.model
        size = parameters_text(model)
        published = Registry.load(register_path).published_like(model)
        if published is not None and published.published_parameters is not None:
            size += f" (published for {published.name}: {_billions(published.published_parameters)})"
        trained, adapters = trained_parameters(model, self.config.rules), self.config.rules.adapters
        if adapters is not None:
            size += f", {_billions(trained)} of them train in adapters of rank {adapters.rank}"
        elif trained != total_parameters(model):
            size += f", {_billions(trained)} of them train"
        layers = " + ".join(f"{count} {KIND_WORDS.get(kind, kind)}" for kind, count in model.kind_counts.items())
        return f"{launcher_of(self.config).title}, {model.name}, {size}, {layers} layers"

    def strategy_line(self) -> str:
        """Degrees, schedule, batch, sequence, precision."""
        config, strategy = self.config, self.config.strategy
        assumed = "" if config.open_ranks is None else " (assumed; --world_size names others)"
        return (
            f"strategy {degrees_text(strategy)} on {strategy.world_size:,} ranks{assumed}, {config.schedule.name}; "
            f"batch {strategy.global_batch:,} = DP {strategy.dp:,} x {strategy.micro_batches:,} micro-batches of "
            f"{strategy.mbs}; {self.tokens_text()}"
        )

    def tokens_text(self) -> str:
        """Sequence, and bits of computing and of stored parameters."""
        rules = self.config.rules
        return (
            f"sequences of {rules.seq_length:,} tokens; computing in {8 * rules.compute_bytes} bits, parameters in "
            f"{8 * rules.param_bytes}"
        )

    def device_line(self) -> str:
        """Device with its memory, and the limit that applies."""
        described = self.device.assumption or f"device {self.device.described}"
        by = "what the device offers" if self.config.device_limit_mib is None else "by the file"
        if self.config.limited_by_buffers(self.device.spec):
            by = "what the buffers of communication leave"
        kept = self.config.margin.described(self.config.memory_error(MemorySource.ESTIMATE))
        margin = f" less a margin of {kept}" if kept else ""
        limit = self.config.memory_limit_mib(self.device.spec)
        if self.stages is not None:
            return f"{self.stages.described}; memory limit of each {by}{margin}"
        return f"{described}; memory limit {limit:,.0f} MiB, {by}{margin}"

    @property
    def assumptions(self) -> list[str]:
        """Sentence for each value that no input gave."""
        sentences = [self.device.assumption, *self.config.notes, *self.further]
        if self.stages is not None:
            sentences += self.stages.assumptions
        elif self.ratios is not None:
            sentences += self.ratios.assumptions
        return [sentence for sentence in sentences if sentence]

    def throughput(self, step_ms: float) -> Throughput:
        """Performance of the job at a step time."""
        config, device = self.config, self.device.spec
        if self.stages is not None:
            device = self.stages.average(device, config.rules.gemm_precision)
        return throughput(config.model, config.strategy, config.rules, device, step_ms, self.length)

    def to_dict(self) -> dict[str, Any]:
        """Model, device, strategy and batch as plain data."""
        model, strategy = self.config.model, self.config.strategy
        trained = trained_parameters(model, self.config.rules)
        return {
            "model": {
                "name": model.name,
                "parameters": total_parameters(model),
                "active_parameters": active_parameters(model),
                **({} if trained == total_parameters(model) else {"trained_parameters": trained}),
                "layers": model.kind_counts,
            },
            "device": {"name": self.device.spec.name, "memory_mib": self.device.spec.memory_mib},
            **({} if self.stages is None else {"stage_devices": [spec.name for spec in self.stages.specs]}),
            "strategy": strategy.degrees(),
            "batch": {
                "global": strategy.global_batch,
                "micro": strategy.mbs,
                "micro_batches": strategy.micro_batches,
                "sequence": self.config.rules.seq_length,
            },
            **({} if self.learned is None else {"measured_memory": self.learned.to_dict()}),
        }


def log_head(lines: Sequence[str]) -> None:
    """Log the first lines of a command."""
    for line in lines:
        log.info("%s", line)


def log_misspelled(configs: Sequence[TrainingConfig]) -> None:
    """Log the names in files that are one letter from a known one: the job does not contain what they request.

    A command logs them before all else; `log_notes` does not repeat them.
    """
    found = (f"{one.path.name}: {flag.sentence}" for one in configs for flag in one.unmodelled if flag.meant)
    for line in list(dict.fromkeys(found))[:LISTED_FLAGS]:
        log.warning("%s", line)


def log_notes(config: TrainingConfig) -> None:
    """Log what a reader assumed or found odd, and the flags that no figure takes into account."""
    name = config.path.name
    for note in config.notes:
        log.warning("%s: %s", name, note)
    log_unmodelled(name, [flag.sentence for flag in config.unmodelled if flag.meant is None])


def log_unmodelled(where: str, sentences: Sequence[str]) -> None:
    """Log the flags that no figure takes into account, a line each; at most a few for a file of odd flags only.

    Parameters
    ----------
    where : str
        Whose flags they are.
    sentences : sequence of str
        One a flag.
    """
    if not sentences:
        return
    listed = "".join(f"\n          {sentence}" for sentence in sentences[:LISTED_FLAGS])
    further = len(sentences) - LISTED_FLAGS
    more = f"\n          and {further} more" if further > 0 else ""
    log.warning("%s: what these ask for is not in the figures:%s%s", where, listed, more)


def parameters_text(model: ModelSpec) -> str:
    """Parameters, and the active ones of a token where experts make a difference; without MTP modules."""
    total, active = total_parameters(model), active_parameters(model)
    return f"{_billions(total)} parameters" + (f", {_billions(active)} active" if active != total else "")


def degrees_text(strategy: Strategy) -> str:
    """Degrees as tables write them, without those of 1 other than DP, TP and PP."""
    parts = [f"DP{strategy.dp} TP{strategy.tp} PP{strategy.pp}"]
    parts += [
        f"{name.upper()}{getattr(strategy, name)}" for name in ("ep", "cp", "vpp", "mbs") if getattr(strategy, name) > 1
    ]
    split = f", distributed optimizer OP{strategy.op}" if strategy.op > 1 else ""
    return " ".join(parts) + (", sequence parallel" if strategy.sp and strategy.tp > 1 else "") + split


def _billions(count: int) -> str:
    return f"{count / 1e9:,.1f} B" if count >= 10**9 else f"{count / 1e6:,.1f} M"
