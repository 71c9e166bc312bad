"""The verdict of every result: does the plan fit, how sure is that, what would cure it, is it better than others."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from taylor.schemas.document import Mib, Milliseconds, Part, Share


class TightStage(Part):
    """Stage whose peak exceeds its limit, or may with the risk that the result states."""

    stage: int = Field(ge=0)
    peak_mib: Mib
    limit_mib: Mib = Field(description="MiB; what a plan may take of the device")
    free_mib: Mib = Field(description="limit less peak, MiB; negative where the peak is above")
    risk: Share | None = Field(description="probability that it runs out of memory; null where no error is known")


class Change(Part):
    """Smallest single change of the job that makes it fit."""

    name: str = Field(description="the change in words")
    saved_mib: Mib = Field(description="MiB less on the fullest stage")
    largest_mib: Mib = Field(description="largest peak of all stages after the change, MiB")


class Against(Part):
    """Another plan under the same memory and times."""

    name: str
    step_ms: Milliseconds
    gain: float = Field(description="its step over this plan's, less 1: 0.05 where this plan is 5 % faster")
    tie: bool = Field(description="the difference is within the model's error, so the order is not certain")


class Software(Part):
    """Software that the figures are of."""

    framework: str | None
    stack: str | None = Field(description="generation of the software that the device's speeds were measured with")
    assumed: list[str] = Field(description="features that no input states")


class Unmodelled(Part):
    """Flag of the job whose effect is in no figure."""

    name: str = Field(description="as the file writes it")
    value: str | None
    known: bool = Field(description="the launcher's table of flags has it")
    memory: str | None = Field(description="direction of its effect on memory, where known: more, less, either")
    time: str | None = Field(description="direction of its effect on the step, where known")
    sentence: str


class Verdict(Part):
    """Answer of a result."""

    fit: Literal["fits", "exceeds the risk", "does not fit", "unknown"] = Field(
        description="exceeds the risk: within the memory of every device, with more risk than the job may have"
    )
    probability: Share | None = Field(description="that the plan fits; null where no error of the memory is known")
    risk: Share | None = Field(description="that the stage with the highest one runs out of memory")
    likely: bool = Field(description="the interval of a peak crosses the device's memory")
    sentence: str = Field(description="answer, reason and cure in one line")
    reason: str
    cure: str = Field(description="what would make it fit, in words; empty where nothing is needed")
    shortage_mib: list[float] = Field(description="excess of each stage's predicted peak over its limit, MiB")
    tight_stages: list[TightStage]
    smallest_change: Change | None = Field(description="null where it fits, or where no single change is known")
    baseline: Against | None = Field(description="the plan in the file")
    runner_up: Against | None = Field(description="the next best strategy or schedule that was solved")
    software: Software
    unmodelled: list[Unmodelled]
    version: str = Field(description="of Taylor")
    command: str | None = Field(description="command line that made the result")
