"""Documents that the other commands print."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from taylor.schemas.document import Grid, Mib, Milliseconds, Part, Plain, Record, Share
from taylor.schemas.verdict import Verdict


class Error(Part):
    """Why a command ended without its answer; its exit code is that of the process."""

    schema_: Literal["taylor.error/1"] = Field(alias="schema")
    code: Literal[
        "bad_input", "illegal", "cannot_write", "infeasible", "no_solution", "outside_program", "interrupted",
        "too_much", "fault",
    ] = Field(
        description="illegal: the framework does not start the job; too_much: more time or memory than a question may "
        "take; fault: an error of Taylor itself"
    )  # fmt: skip
    exit_code: int
    message: str = Field(description="all of it in one line")
    problem: str | None = Field(description="the error as a clause")
    file: str | None
    field: str | None = Field(description="flag, or dotted path in the file")
    value: str | int | float | bool | None = Field(description="as found")
    cure: str | None = Field(description="what mends it")
    source: str | None = Field(description="the framework's file and line of the rule that is broken")


class Text(Part):
    """What a command prints that has no document of its own."""

    schema_: Literal["taylor.text/1"] = Field(alias="schema")
    lines: list[str]


class Schemas(Part):
    """What `taylor schema --json` prints."""

    schema_: Literal["taylor.schemas/1"] = Field(alias="schema")
    schemas: list[str]


class OneSchema(Part):
    """What `taylor schema NAME --json` prints; without ``--json`` it is the schema alone."""

    schema_: Literal["taylor.schema/1"] = Field(alias="schema")
    json_schema: Plain


class Dimensions(Part):
    """Degrees of a strategy; null where a table lacks one."""

    dp: int | None
    tp: int | None
    pp: int | None
    ep: int | None
    cp: int | None
    op: int | None
    sp: int | None
    vpp: int | None
    mbs: int | None
    micro_batches: int | None


class Candidate(Part):
    """Strategy that obeys the rules and fits."""

    strategy: str = Field(description="degrees in words: DP4 TP4 PP4")
    degrees: Dimensions
    step_ms: Milliseconds
    step_source: str = Field(description="solved: of a plan by a quick solve; else of a formula")
    peak_mib: Mib = Field(description="of the heaviest stage, MiB")
    peak_without_recompute_mib: Mib
    heaviest_stage: int
    recompute: str
    memory_source: str
    risk: Share | None = Field(description="that the heaviest stage runs out of memory")


class Pruned(Part):
    """Strategies that one rule, or the memory, removed."""

    rule: str
    removed: int
    example: str
    explanation: str


class Row(Part):
    """Candidate of a ranking, solved; what is not known is null."""

    strategy: str
    degrees: Dimensions
    step_ms: Milliseconds | None
    status: str | None
    reason: str | None
    solver: str | None
    certainty: str | None
    memory_source: str | None
    ratio_source: str | None
    file: str | None
    gap: float | None
    bound_ms: float | None
    free_mib: float | None
    risk: Share | None
    samples_per_second: float | None
    tokens_per_second: float | None
    tokens_per_second_per_device: float | None
    tflops_per_device: float | None
    mfu: float | None
    mfu_precision: str | None
    train_days: float | None
    epoch_hours: float | None
    run_hours: float | None
    fullest_stage: int | None
    own: bool = Field(description="the plan that was in the file")
    gain: float | None = Field(description="over the plan in the file: 0.05 is 5 % faster")
    offset: Grid | None
    layers: dict[str, Grid] | None
    recompute: dict[str, Grid] | None
    peak_memory: list[float] | None = Field(description="MiB by stage")
    memory_limit: list[float] | None = Field(description="MiB by stage")


class RankingPart(Part):
    """Ranked candidates, the fastest first, failures last."""

    model: str | None
    device: str | None
    ranks: int | None
    verdict: Verdict | None = Field(description="on the first; null where none has a plan")
    rows: list[Row]
    files: dict[str, str]


class Ranking(RankingPart):
    """What `taylor rank --json` and `taylor merge --json` print."""

    schema_: Literal["taylor.ranking/1"] = Field(alias="schema")


class LayerwisePart(Part):
    """Layer-wise search: one strategy for every layer."""

    model: str
    world: int = Field(description="ranks")
    layers: Plain | list[Any] | int
    costs: str
    status: Literal["optimal", "feasible", "infeasible", "no_solution"]
    verdict: Verdict = Field(description="on the plan; the runner-up is that of Galvatron's own search")
    step_s: float | None
    samples_a_s: float | None
    most_samples_a_s: float | None = Field(description="no plan has more")
    gap: float | None
    seconds: float
    galvatron_formula_s: float | None
    plan: Plain | None
    usable_mib: Mib | None
    stages: list[Plain]
    galvatron: Plain | None = Field(description="the plan of Galvatron's own search, on the same costs")
    tried: list[Plain]
    left_out: list[str]
    assumed: list[str]


class RefinedCandidate(Part):
    """Candidate of a ranking, refined layer by layer."""

    candidate: str
    ranked_ms: float | None
    own_ms: float | None
    own_plan: Plain | None
    own_faults: list[str]
    layers_that_differ: int | None
    reason: str
    layerwise: LayerwisePart | None


class Search(Part):
    """What `taylor search --json` prints: the chosen strategies, the fastest first."""

    schema_: Literal["taylor.search/1"] = Field(alias="schema")
    file: str
    model: str
    device: str
    world_size: int
    counts: dict[str, int] = Field(description="strategies after each step: built, legal, sensible, fitting, chosen")
    limit_mib: Mib = Field(description="MiB that a plan may take of a device")
    verdict: Verdict | None = Field(description="on the first candidate; of its heaviest stage alone")
    candidates: list[Candidate]
    pruned: list[Pruned]
    ranking: RankingPart | None = Field(description="with --full")
    refined: list[RefinedCandidate] | None = Field(description="with --full --layerwise, in the order of the ranking")
    files: dict[str, str]


class MeasuredStage(Part):
    """Memory of a stage of the strategy in a dry-run."""

    stage: int
    total_mib: Mib
    parts_mib: dict[str, float]


class ExplainedStage(MeasuredStage):
    """Memory of a stage of the strategy, by the analytical model under the most recompute."""

    alive: float = Field(description="micro-batches alive, in full passes through the stage")
    layers: dict[str, int] = Field(description="by kind")


class Explanation(Part):
    """What `taylor search --explain STRATEGY --json` prints: which rule removes a strategy, and its memory."""

    schema_: Literal["taylor.explanation/1"] = Field(alias="schema")
    reasons: list[str]
    limit_mib: Mib = Field(description="MiB that a plan may take of a device")
    stages: list[ExplainedStage] = Field(description="none where the strategy has no plan")
    measured: list[MeasuredStage] = Field(description="stages that a dry-run has measured")


class Moment(Record):
    """When a stage reaches its peak."""

    sentence: str


class Kept(Part):
    """What layers of one kind keep alive, MiB."""

    kind: str
    mode: str
    layers: int
    mib: Mib
    each_mib: Mib
    parts: dict[str, float]


class StageReasons(Part):
    """Peak of a stage, and its parts."""

    stage: int
    peak_mib: Mib
    limit_mib: Mib
    moment: Moment
    parts_mib: dict[str, float]
    kept: list[Kept]


class Lever(Part):
    """Change of the job, with the memory of the changed job."""

    name: str
    saved_mib: Mib
    largest_mib: Mib
    fits: bool
    narrows: bool = Field(description="the optimizer keeps states in lower precision")


class Reasons(Part):
    """What `taylor why-memory --json` prints."""

    schema_: Literal["taylor.reasons/1"] = Field(alias="schema")
    file: str
    stages: list[StageReasons]
    fullest: int
    levers: list[Lever]


class Comparison(Part):
    """What `taylor compare --json` prints: of each pair, the first result's figure comes first."""

    schema_: Literal["taylor.comparison/1"] = Field(alias="schema")
    names: list[str]
    verdict: str
    exceeds_error: bool | None = Field(description="false: a tie; null where the times are not both estimated")
    warnings: list[str] = Field(description="why the two are not like with like")
    differences: dict[str, list[str]]
    unit: str
    parts: dict[str, list[float]] = Field(description="parts of the step, in the unit")


class Launcher(Part):
    """What can be done of a combination with one launcher."""

    launcher: str
    title: str
    suffixes: list[str]
    evaluated: bool
    solved: bool
    written: bool
    new_file: bool
    degrees: list[str]
    schedules: list[str]
    options: dict[str, int]
    reasons: list[str]


class Support(Part):
    """What `taylor support --json` prints."""

    schema_: Literal["taylor.support/1"] = Field(alias="schema")
    launchers: list[Launcher]


class ModelRecord(Record):
    """Registered model."""

    name: str
    parameters: int
    active_parameters: int
    layers: dict[str, int]
    parts: list[Plain]


class OneModel(ModelRecord):
    """What `taylor models NAME --json` prints."""

    schema_: Literal["taylor.model/1"] = Field(alias="schema")
    notes: list[str]


class Models(Part):
    """What `taylor models --json` prints."""

    schema_: Literal["taylor.models/1"] = Field(alias="schema")
    models: list[ModelRecord]


class DeviceRecord(Record):
    """Registered device."""

    name: str
    memory_mib: Mib
    peak_tflops: dict[str, float]
    links: list[Plain]


class OneDevice(DeviceRecord):
    """What `taylor devices NAME --json` prints."""

    schema_: Literal["taylor.device/1"] = Field(alias="schema")


class Devices(Part):
    """What `taylor devices --json` prints."""

    schema_: Literal["taylor.devices/1"] = Field(alias="schema")
    devices: list[DeviceRecord]


class RuleRecord(Part):
    """Rule that a strategy must obey."""

    name: str
    kind: str
    frameworks: list[str]
    condition: str
    sources: list[str]
    cure: str


class OneRule(RuleRecord):
    """What `taylor rules NAME --json` prints."""

    schema_: Literal["taylor.rule/1"] = Field(alias="schema")


class Rules(Part):
    """What `taylor rules --json` prints."""

    schema_: Literal["taylor.rules/1"] = Field(alias="schema")
    rules: list[RuleRecord]


class StoredPlan(Part):
    """Plan of a run that is remembered."""

    number: int
    strategy: str
    status: str
    step_ms: float | None
    gap: float | None
    mfu: float | None
    peak_mib: float | None
    name: str
    measured_ms: float | None
    measured_mib: float | None


class RunRecord(Part):
    """Run that is remembered."""

    id: str
    at: str = Field(description="UTC")
    command: str
    file: str
    model: str
    device: str
    ranks: int
    version: str
    count: int
    plans: list[StoredPlan]


class OneRun(RunRecord):
    """What `taylor history ID --json` prints."""

    schema_: Literal["taylor.run/1"] = Field(alias="schema")


class Runs(Part):
    """What `taylor history --json` prints."""

    schema_: Literal["taylor.runs/1"] = Field(alias="schema")
    runs: list[RunRecord]


class LengthPlan(Part):
    """Plan for samples of unlike lengths."""

    layers: dict[str, Grid]
    recompute: dict[str, Grid]


class Lengths(Part):
    """What `taylor lengths --json` prints."""

    schema_: Literal["taylor.lengths/1"] = Field(alias="schema")
    file: str
    verdict: Verdict = Field(description="on the plan; the baseline is the plan for equal lengths")
    packing: str
    order: str
    scenarios: int
    mean_step_ms: float | None
    lower_bound_ms: float
    gap: float | None
    fresh_mean_step_ms: float
    fresh_90_percent_ms: float
    fresh_mean_step_of_equal_lengths_plan_ms: float | None
    fresh_mean_step_in_other_order_ms: float
    tokens_per_second: float
    samples_per_second: float
    epoch_hours: float
    padding: float
    samples_cut: int
    plan: LengthPlan | None
    written: str | None


class SizePoint(Part):
    """A training on one number of devices; what is not known is null."""

    devices: int
    strategy: Plain | None = Field(description="null where nothing fits")
    step_ms: float | None
    step_interval_ms: list[float] | None
    tokens_per_second: float | None
    tokens_per_second_per_device: float | None
    kept: float | None = Field(description="share of the speed of a device at the fewest devices")
    efficiency: float | None
    days: float | None
    device_hours: float | None
    energy_mwh: float | None
    price: float | None
    days_interval: list[float] | None
    lacks: Literal["memory", "rules", "time", ""] = Field(description="what it lacks; empty where it has a plan")
    reason: str | None


class DeviceSize(Part):
    """Sizes of a training on one kind of device."""

    device: str
    memory_mib: Mib
    framework: str | None
    verdict: Verdict = Field(description="on the least number of devices; without one, on the largest of the curve")
    least: SizePoint | None = Field(description="fewest devices on which it fits")
    in_time: SizePoint | None
    surely_in_time: SizePoint | None
    knee: Plain | None
    watts: float | None
    price_per_hour: float | None
    currency: str | None
    assumed: list[str]
    curve: list[SizePoint]


class Size(Part):
    """What `taylor size --json` prints."""

    schema_: Literal["taylor.size/1"] = Field(alias="schema")
    model: str
    sequence: int
    global_batch: int
    tokens: float | None
    deadline_days: float | None
    devices: list[DeviceSize]


class Doctor(Part):
    """What `taylor doctor --json` prints."""

    schema_: Literal["taylor.doctor/1"] = Field(alias="schema")
    version: str
    python: str
    platform: str
    location: str
    installed: bool
    packages: list[Plain]
    kernels: bool | None
    kernel_folder: str | None
    solvers: list[Plain]
    extras: list[Plain]
    plugins: list[Plain]


class Phases(Record):
    """What `taylor rl --json` prints: an iteration of reinforcement learning by phase."""

    schema_: Literal["taylor.rl/1"] = Field(alias="schema")
    file: str
    model: str
    device: str
    strategy: str
    phases: list[Plain]
    iteration_ms: float
    verdict: Verdict = Field(description="on all phases; a stage is the fullest of its phase")
    split: Plain | None


class Layerwise(LayerwisePart):
    """What `taylor layerwise --json` prints and its ``--result_json`` writes."""

    schema_: Literal["taylor.layerwise/1"] = Field(alias="schema")
    files: dict[str, str]


class Refined(Part):
    """The file ``layerwise.json`` of `taylor search --full --layerwise`."""

    schema_: Literal["taylor.refined/1"] = Field(alias="schema")
    candidates: list[RefinedCandidate]


class Check(Part):
    """What `taylor check --json` prints."""

    schema_: Literal["taylor.check/1"] = Field(alias="schema")
    verdict: Verdict = Field(description="on the memory; faults has all that is wrong")
    step_s: float | None
    samples_a_s: float | None
    galvatron_formula_s: float | None
    usable_mib: Mib | None
    stages: list[Plain]
    costs: str
    faults: list[str] = Field(description="why the plan fails the check; empty where it passes")
    notes: list[str]


class Calibration(Record):
    """What `taylor calibrate --json` prints."""

    schema_: Literal["taylor.calibration/1"] = Field(alias="schema")
    file: str | None


class Profiles(Record):
    """What `taylor galvatron FOLDER --json` prints."""

    schema_: Literal["taylor.profiles/1"] = Field(alias="schema")


class Costs(Record):
    """What `taylor galvatron --json` prints of a job's costs."""

    schema_: Literal["taylor.costs/1"] = Field(alias="schema")


class Tuner(Record):
    """What `taylor galvatron --json` prints of a file of Paddle's auto tuner."""

    schema_: Literal["taylor.tuner/1"] = Field(alias="schema")


class Statics(Part):
    """What a stage holds in addition to its layers, MiB."""

    first: Mib
    middle: Mib
    last: Mib


class Alive(Part):
    """What one micro-batch leaves alive in a layer, MiB by recompute mode."""

    none: Mib
    full: Mib
    select: Mib | None = None


class MemoryFile(Part):
    """Memory profile, which ``-memory`` reads; its file has no key for the version."""

    device_limit: Mib
    static: Statics
    layer: dict[str, float] = Field(description="weights, gradients and optimizer states of one layer, MiB by kind")
    activation: dict[str, Alive]
    every_flag: bool | None = None
