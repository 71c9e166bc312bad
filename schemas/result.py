"""Result of a solve or an evaluation: the plan, its figures with their intervals, and the verdict."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from taylor.schemas.document import Grid, Mib, Milliseconds, Part, Plain, Share
from taylor.schemas.verdict import Verdict

Ends = Annotated[list[float | None], Field(min_length=2, max_length=2, description="low and high; null: no bound")]


class Model(Part):
    """Model of the job."""

    name: str
    parameters: int
    active_parameters: int
    trained_parameters: int | None = Field(default=None, description="with adapters: those that are trained")
    layers: dict[str, int] = Field(description="number of layers by kind")


class Device(Part):
    """Device of the job."""

    name: str
    memory_mib: Mib


class Degrees(Part):
    """Parallel degrees, and samples of a micro-batch."""

    dp: int
    tp: int
    pp: int
    ep: int
    cp: int
    op: int = Field(description="ranks over which the optimizer's states are sharded")
    sp: bool = Field(description="sequence parallel")
    vpp: int = Field(description="virtual stages")
    mbs: int = Field(description="samples of a micro-batch")
    micro_batches: int


class Batch(Part):
    """Samples of a step and tokens of a sample."""

    global_: int = Field(alias="global")
    micro: int
    micro_batches: int
    sequence: int


class CardMemory(Part):
    """Memory of a stage's device as its counters report it, MiB."""

    allocated_mib: float | None = Field(description="torch's max_memory_allocated")
    reserved_mib: float | None = Field(description="torch's max_memory_reserved")
    card_mib: float | None = Field(description="of the card, as nvidia-smi or npu-smi shows it")


class OwnPlan(Part):
    """Another plan of the job, evaluated."""

    step_ms: Milliseconds | None
    peak_memory: list[float] = Field(description="MiB by stage")
    fits: bool | None


class Order(Part):
    """Facts of an order of tasks that was chosen for the plan; steps in body-layer forwards."""

    bound: float
    proven: bool
    known: str
    known_step: float
    stage_of: list[int] | None = Field(default=None, description="stages of the chunks in model order, where chosen")
    placement: str | None = Field(default=None, description="loop, V or free")
    shape: str | None = Field(default=None, description="loop or V: the better one with an order of its own")
    shape_step: float | None = Field(default=None, description="its step")


class NextChange(Part):
    """Change of the job, solved again; gains of tokens a second."""

    change: str
    step_ms: Milliseconds | None
    gain: float
    gain_per_device: float
    proven: bool


class Bubble(Part):
    """Idle time as shares of the step."""

    total: float
    ideal: float
    imbalance: float
    recompute: float
    communication: float


class EncoderInsertion(Part):
    """An encoder's micro-batches in the bubbles of the language model's plan; times in body-layer forwards."""

    delay: float = Field(description="by which the language model's tasks begin later than alone")
    layers: dict[str, list[list[int]]] = Field(description="of the language model, by kind and chunk")
    recompute: dict[str, list[list[int]]]
    peak_memory: list[float] = Field(description="MiB by stage, without what the encoder's micro-batches keep")
    runs: list[tuple[int, float, int, int, int]] = Field(
        description="stage, start, micro-batch, 0 forward or 1 backward, layers of the encoder"
    )


class Alternative(Part):
    """Schedule and number of virtual stages that was tried; times in body-layer forwards."""

    name: str
    interleaves: int
    schedule: str
    status: str
    objective: float | None
    bound: float | None
    note: str
    insertion: EncoderInsertion | None = Field(default=None, description="with an encoder in the pipeline's bubbles")


class Unrestricted(Part):
    """Optimum with any recompute by chunk, where the file can only express one choice for all."""

    objective: float | None
    bound: float


class DryRunStage(Part):
    """Dry-run of the plan on one stage, MiB."""

    stage: int
    source: str
    peak_mib: float | None
    failure: str | None
    categories: dict[str, float]
    estimate: dict[str, float]


class Result(Part):
    """What `taylor solve --json` prints and ``--result_json`` writes. Times are ms, or body-layer forwards."""

    schema_: Literal["taylor.result/1"] = Field(alias="schema")
    # The job; a problem of one's own in Python has none.
    model: Model | None = None
    device: Device | None = None
    stage_devices: list[str] | None = Field(default=None, description="device of each stage, where they differ")
    strategy: Degrees | None = None
    batch: Batch | None = None
    measured_memory: Plain | None = Field(default=None, description="what a run showed of the memory model")
    assumed: list[str] = Field(default=[], description="a sentence for each value that no input gave")
    step_ms: Milliseconds | None = None
    step_interval_ms: Ends | None = Field(default=None, description="nine of ten real steps lie in it")
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    tokens_per_second_per_device: float | None = None
    tflops_per_device: float | None = None
    mfu: float | None = None
    mfu_precision: str | None = Field(default=None, description="precision whose peak the MFU is taken of")
    train_days: float | None = None
    epoch_hours: float | None = Field(default=None, description="every sample of the data set once, by --samples")
    run_hours: float | None = Field(default=None, description="all steps or samples that the file states")
    card_memory: list[CardMemory] | None = Field(default=None, description="by stage")
    risk: Share | None = Field(default=None, description="that the intervals are stated with")
    planned_risk: Share | None = Field(default=None, description="that the plan was solved for")
    peak_error: list[float] | None = Field(default=None, description="known error of the peaks: below, above, typical")
    verdict: Verdict | None = None
    own_plan: OwnPlan | None = Field(default=None, description="the plan in the file")
    even_split: OwnPlan | None = Field(default=None, description="evenly spread layers, where devices differ")
    order: Order | None = None
    what_next: list[NextChange] | None = Field(default=None, description="changes that would gain most, best first")
    # The solution.
    status: Literal["optimal", "feasible", "over_limit", "infeasible", "no_solution", "cut_off"]
    termination: str | None
    objective: float | None = Field(description="step in body-layer forwards")
    bound: float | None = Field(description="no plan takes less, body-layer forwards")
    gap: float | None = Field(description="relative gap of the proof; null where nothing was solved")
    unit_ms: float | None = Field(description="one body layer's forward, ms")
    solve_seconds: float
    solver: str
    schedule: str
    stages: int
    interleaves: int
    micro_batches: int
    offset: Grid | None = Field(description="layers of a chunk less those of the even split")
    layers: dict[str, Grid] = Field(description="by kind")
    recompute: dict[str, Grid] = Field(description="recomputed layers by mode")
    peak_memory: list[float] = Field(description="MiB by stage, allocated")
    peak_memory_interval: list[Ends] = Field(description="MiB by stage")
    memory_limit: list[float] = Field(description="MiB by stage: what a plan may take")
    memory_source: str | None
    unmodelled: list[str] = Field(description="sentences; the verdict has them as entries")
    bubble: Bubble | None
    dryrun: list[DryRunStage] | None = None
    host_memory: list[float] | None = Field(default=None, description="MiB by stage on the host")
    host_link: list[float] | None = Field(default=None, description="share of the step that the link to it is busy")
    lent_memory: list[float] | None = Field(default=None, description="MiB by stage on its lender")
    lent_link: list[float] | None = Field(default=None, description="share of the step that the link to it is busy")
    message: str
    params: Plain | None = Field(default=None, description="parameters of the solver that are not the defaults")
    unrestricted: Unrestricted | None = None
    unlent: Unrestricted | None = Field(default=None, description="the best step without lending")
    mtp_among_layers: int | None = None
    alternatives: list[Alternative]
    problem: dict[str, Any] | None = Field(
        default=None, description="the pipeline problem, which taylor compare and -extract read; MCP leaves it out"
    )
    files: dict[str, str] = Field(description="path of every file written, by role")
