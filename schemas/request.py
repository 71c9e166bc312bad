"""Requests: what a program asks a command, with the names of the command's flags.

A request is a JSON object that ``taylor COMMAND --json --config FILE`` takes (``-`` reads it from standard input), and
for the commands of agents the arguments of the MCP tool of the same name (that of ``why-memory`` is ``explain``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from taylor.register.frameworks import WRITTEN_FROM_MODELS
from taylor.schemas.document import Part

REQUEST = "taylor.request/1"

MOST_SECONDS = 600.0
"""Longest time limit that a request may name."""

FORMS: dict[str, str] = {}
"""Patterns of texts, and what such a text is in words, for messages."""


def _form(pattern: str, words: str, shortest: int | None = None, longest: int | None = None) -> StringConstraints:
    """Constraint of a text, whose pattern messages say in words."""
    FORMS[pattern] = words
    return StringConstraints(pattern=pattern, min_length=shortest, max_length=longest)


_A_NAME = _form(r"^[^-\x00][^\x00]*$", "a name or path that begins with no dash", shortest=1, longest=300)
Name = Annotated[str, _A_NAME]
"""Name or path; it begins with no dash, so that no command takes it for a flag."""

Count = Annotated[int, Field(ge=1, le=10**6)]
Tokens = Annotated[int, Field(ge=1, le=10**7)]
Stage = Annotated[str, _form(r"^[0-9]{1,4}$", "the number of a stage")]
ByStage = Annotated[dict[Stage, Annotated[float, Field(gt=0, le=10**8)]], Field(max_length=1024)]
"""MiB by stage."""
Degree = Literal["dp", "tp", "pp", "ep", "cp", "op", "sp", "vpp", "mbs"]
Degrees = Annotated[dict[Degree, Annotated[int, Field(ge=0, le=10**6)]], Field(max_length=9)]
Names = Annotated[list[Name], Field(max_length=32)]
Counts = Annotated[list[Annotated[int, Field(ge=0, le=10**7)]], Field(max_length=64)]
_A_VARIABLE = _form(
    r"^[A-Za-z_][A-Za-z0-9_]*$", "the name of a variable: letters, digits and _, no digit first", longest=100
)
_A_VALUE = _form(r"^[^\x00]*$", "text without a null character", longest=4096)
Variables = Annotated[dict[Annotated[str, _A_VARIABLE], Annotated[str, _A_VALUE]], Field(max_length=64)]
"""Values by the variable's name."""
Seconds = Annotated[float, Field(gt=0.0, le=MOST_SECONDS)]
Margin = Annotated[str, _form(r"^[0-9.]{1,12}%?$", "MiB, or per cent as 5%")]
"""MiB, or per cent as 5%."""
_SOME_IMAGES = _form(
    r"^[0-9.]*(x[0-9]+)?$", "images a sample, patches an image or both, as 2.5, x1024 or 1.5x1024", longest=40
)
Images = Annotated[str, _SOME_IMAGES]
IMAGES_HELP = "of a model with a vision encoder: images a sample on average, and patches an image, as 2.5 or 1.5x1024"
_SOME_AUDIO = _form(r"^([0-9.]+x)?[0-9.]*$", "seconds of a clip, after clips a sample, as 30 or 2x12.5", longest=40)
AudioSeconds = Annotated[str, _SOME_AUDIO]
AUDIO_HELP = "of a model with an encoder of sound: seconds of a clip, after clips a sample on average, as 30 or 2x12.5"
_SOME_TOKENS = _form(r"^[0-9.e+]{1,20}[MBT]?$", "a number of tokens, as 300B or 2e12")
Risk = Annotated[float, Field(ge=0.0, le=0.5)]
_FRAMEWORKS = (*WRITTEN_FROM_MODELS, "json")
if TYPE_CHECKING:
    Framework = str
else:
    Framework = Literal[_FRAMEWORKS]


class Asked(Part):
    """Basis of all requests."""

    schema_: Literal["taylor.request/1"] = Field(default="taylor.request/1", alias="schema")

    def flags(self) -> dict[str, Any]:
        """The flags of the command that the request states."""
        stated = self.model_dump(exclude={"schema_", "command"}, exclude_defaults=True, mode="json")
        return {name: _flag_value(value) for name, value in stated.items()}


class FromFile(Asked):
    """Basis of requests for a training file: what the file gets from outside."""

    env: Variables = Field(
        default={}, description="variables with which the file's script is started, as a shell's environment has them"
    )
    model_as: Name | None = Field(
        default=None,
        description="whose shape the model has that the file names, as a checkpoint of one's own: a registered model, "
        "or a config.json",
    )

    def flags(self) -> dict[str, Any]:
        """See `Asked.flags`."""
        flags = super().flags()
        return {**flags, "env": [f"{name}={value}" for name, value in self.env.items()]} if self.env else flags


class Job(FromFile):
    """Job that is planned: a training file, or a model on a number of ranks."""

    file: Name | None = Field(
        default=None,
        description="training file: MindFormers or FlagScale YAML, launch script, torchtitan TOML, …; a script's "
        "arguments after its name, as run.sh A3B 8",
    )
    model: Name | None = Field(
        default=None, description="registered model (taylor models lists them), or a Hugging Face config.json"
    )
    device: Name | None = Field(
        default=None, description="registered device; the usual one of the framework if omitted"
    )
    world_size: Count | None = Field(default=None, description="ranks; needed with a model")
    seq: Tokens | None = Field(default=None, description="with a model: tokens a sample")
    gbs: Tokens | None = Field(default=None, description="samples a step")
    fix: Degrees = Field(default={}, description="with a model: degrees that are given")
    framework: Framework | None = Field(default=None, description="with a model: whose file is written")
    software: Names = Field(default=[], description="with a model: features of the software, as --with names them")
    override: Annotated[dict[Name, Annotated[int, Field(ge=0, le=10**9)]], Field(max_length=32)] = Field(
        default={}, description="with a registered model: sizes stated otherwise, num_layers and the like"
    )
    margin: Margin | None = Field(
        default=None, description="memory that every device keeps free: MiB, or per cent as 5%"
    )
    risk: Risk | None = Field(
        default=None, description="probability that the peak may exceed the limit; 0.05 of estimated memory if omitted"
    )
    allow_illegal: Names = Field(default=[], description="legality rules of the framework that the job may break")
    measured_peak: ByStage = Field(default={}, description="of a run of the plan in the file: peak by stage, MiB")
    out_of_memory: Annotated[list[Annotated[int, Field(ge=0, le=1023)]], Field(max_length=1024)] = Field(
        default=[], description="of a run of the plan in the file: stages that ran out of memory"
    )
    peak_of: Literal["allocated", "card"] = Field(default="allocated", description="what measured_peak is")
    stage_limit: ByStage = Field(default={}, description="memory limit of single stages, MiB")
    images: Images = Field(default="", description=IMAGES_HELP)
    audio_seconds: AudioSeconds = Field(default="", description=AUDIO_HELP)

    @model_validator(mode="after")
    def _one_source(self) -> Job:
        if (self.file is None) == (self.model is None):
            raise ValueError("exactly one of file and model is needed")
        if self.model is not None and self.world_size is None:
            raise ValueError("world_size is needed with a model: name the ranks to plan for")
        if self.file is None and (self.env or self.model_as is not None):
            raise ValueError("env and model_as belong to a file: leave them out with a model")
        return self


class Planning(Job):
    """Choices of a solve or an evaluation."""

    vpp: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] | None = Field(
        default=None, description="virtual stages; auto tries what can run"
    )
    schedule: Name | None = Field(default=None, description="schedule by name, or auto")
    stage_devices: Name | None = Field(default=None, description="NAME:N,NAME:N: stages on several kinds of devices")
    recompute_modules: bool = Field(default=False, description="choose recompute by module too")
    offload: bool = Field(default=False, description="choose modules whose saved inputs lie on the host")
    lend: Name | None = Field(
        default=None, description="mirror, or pairs STAGE:LENDER: choose layers whose activations lie on another stage"
    )
    tensors: bool = Field(
        default=False, description="choose for every saved tensor whether it is kept, made again or on the host"
    )
    encoder: Literal["nested", "spread", "beside", "bubbles", "best"] = Field(
        default="nested",
        description="where an encoder is planned too, to compare with the first stage: on several of the first stages "
        "(spread), on ranks of its own (beside), in the pipeline's bubbles, or in all of them (best)",
    )
    time_limit: Seconds | None = Field(
        default=None, description="seconds for all of it; then the best plan so far comes with its proven bound"
    )
    result_json: Name | None = Field(default=None, description="file that takes the result")
    html: Name | None = Field(default=None, description="file that takes a page with the result")


class Solve(Planning):
    """Find the fastest plan within the memory; the answer is a `taylor.result/1`."""

    command: Literal["solve"] = "solve"
    gap: Annotated[float, Field(ge=0.0, lt=1.0)] | None = Field(
        default=None, description="stop once the plan is proven to this relative gap"
    )
    select: bool = Field(default=False, description="choose selective recompute beside full recompute")
    o: Name | None = Field(default=None, description="file that takes the planned configuration")


class Evaluate(Planning):
    """Figures of the plan in a file, or of an even plan of a model's fastest strategy.

    The answer is a `taylor.result/1`; `fix` names the degrees that are not searched.
    """

    command: Literal["evaluate"] = "evaluate"

    def flags(self) -> dict[str, Any]:
        """The flags of ``taylor solve``, which solves nothing then."""
        return {**super().flags(), "evaluate": True}


class Search(Job):
    """Strategies that obey the rules and fit, the fastest first; the answer is a `taylor.search/1`.

    With `explain` it is a `taylor.explanation/1`.
    """

    command: Literal["search"] = "search"
    search: Annotated[list[Degree], Field(max_length=9)] = Field(default=[], description="dimensions searched")
    max_expert_parallel: Count | None = None
    recompute: Literal["best", "none", "full"] = Field(default="best", description="assumed for the peaks")
    profile_num: Annotated[int, Field(ge=1, le=200)] = Field(default=20, description="strategies listed")
    full: bool = Field(default=False, description="solve them and rank them, too")
    time_limit: Seconds | None = Field(
        default=None, description="with full: seconds for one solve; of an agent's question, for all of them"
    )
    explain: Name | None = Field(default=None, description="DPx_TPx_PPx_EPx: say which rule removes this strategy")


class Size(Asked):
    """How many devices a training takes: the least, those in time, speed by number; the answer is a `taylor.size/1`."""

    command: Literal["size"] = "size"
    model: Name = Field(description="registered model, or a Hugging Face config.json")
    device: Annotated[list[Name], Field(max_length=8)] = Field(default=[], description="registered devices to compare")
    tokens: Annotated[str, _SOME_TOKENS] | None = Field(
        default=None, description="of the whole training, as 1.5T or 300B"
    )
    days: Annotated[float, Field(gt=0.0, le=10**5)] | None = Field(default=None, description="deadline; needs tokens")
    seq: Tokens | None = None
    gbs: Tokens | None = None
    fix: Degrees = {}
    framework: Framework | None = None
    software: Names = []
    override: Annotated[dict[Name, Annotated[int, Field(ge=0, le=10**9)]], Field(max_length=32)] = {}
    min_devices: Count = Field(default=8, description="first of the curve")
    max_devices: Count = Field(default=16384, description="last of the curve, which doubles from the first")
    prices: Name | None = Field(default=None, description="CSV of device,watts,price_per_hour")
    margin: Margin | None = Field(default=None, description="memory that every device keeps free")
    risk: Risk | None = Field(default=None, description="probability that a peak may exceed the limit; 0.05 if omitted")
    allow_illegal: Names = Field(default=[], description="legality rules of the framework that the job may break")
    images: Images = Field(default="", description=IMAGES_HELP)
    audio_seconds: AudioSeconds = Field(default="", description=AUDIO_HELP)
    time_limit: Seconds | None = Field(default=None, description="seconds after which no further solve begins")


class Explain(FromFile):
    """Why a plan needs its memory, and what lowers it; the answer is a `taylor.reasons/1`."""

    command: Literal["why-memory"] = "why-memory"
    file: Name = Field(description="training file with the plan")
    stage: Annotated[int, Field(ge=0, le=1023)] | None = Field(default=None, description="the fullest if omitted")
    device: Name | None = None
    world_size: Count | None = None
    measured_peak: ByStage = {}
    out_of_memory: Annotated[list[Annotated[int, Field(ge=0, le=1023)]], Field(max_length=1024)] = []
    peak_of: Literal["allocated", "card"] = "allocated"
    stage_limit: ByStage = {}
    images: Images = Field(default="", description=IMAGES_HELP)
    audio_seconds: AudioSeconds = Field(default="", description=AUDIO_HELP)


class Support(Asked):
    """What can be evaluated, solved and written of a combination; the answer is a `taylor.support/1`."""

    command: Literal["support"] = "support"
    model: Name | None = None
    device: Name | None = None
    launcher: Name | None = None
    precision: Literal["bf16", "fp16", "fp8", "fp4", "tf32", "fp32"] | None = None
    feature: Names = Field(default=[], description="degrees, schedules, software or options of a launcher")


class Compare(Asked):
    """Two results beside each other; the answer is a `taylor.comparison/1`."""

    command: Literal["compare"] = "compare"
    first: Name = Field(description="a result: its file, or its name in this session")
    second: Name = Field(description="another one")


class Rank(FromFile):
    """Many strategies solved and compared; the answer is a `taylor.ranking/1`."""

    command: Literal["rank"] = "rank"
    yaml_path: Name | None = Field(default=None, description="folder of candidate files, as a search writes them")
    model: Name | None = Field(default=None, description="in place of a folder: its quickest strategies are ranked")
    device: Name | None = None
    world_size: Count | None = Field(default=None, description="ranks; needed with a model")
    seq: Tokens | None = Field(default=None, description="with a model: tokens a sample")
    gbs: Tokens | None = Field(default=None, description="samples a step")
    fix: Degrees = Field(default={}, description="with a model: degrees that are given")
    framework: Framework | None = Field(default=None, description="with a model: whose files are written")
    software: Names = Field(default=[], description="with a model: features of the software")
    override: Annotated[dict[Name, Annotated[int, Field(ge=0, le=10**9)]], Field(max_length=32)] = {}
    margin: Margin | None = None
    risk: Risk | None = None
    allow_illegal: Names = []
    stage_limit: ByStage = {}
    images: Images = Field(default="", description=IMAGES_HELP)
    audio_seconds: AudioSeconds = Field(default="", description=AUDIO_HELP)
    prove: Count | Literal["all"] = Field(default=5, description="candidates that are solved to their proof")
    gap: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    time_limit: Seconds | None = Field(default=None, description="of one solve")
    report: Name | None = Field(default=None, description="file that takes a page, or on, or off")
    output_path: Name | None = Field(default=None, description="folder of the table and the run's files")

    @model_validator(mode="after")
    def _one_source(self) -> Rank:
        if (self.yaml_path is None) == (self.model is None):
            raise ValueError("exactly one of yaml_path and model is needed")
        if self.model is not None and (self.env or self.model_as is not None):
            raise ValueError("env and model_as belong to files: leave them out with a model")
        return self


class Lengths(FromFile):
    """Plan of a training whose samples differ in length; the answer is a `taylor.lengths/1`."""

    command: Literal["lengths"] = "lengths"
    file: Name = Field(description="training file")
    lengths: Name = Field(description="CSV of length,count: tokens, and samples of that length")
    packing: Literal["padded", "packed", "balanced"] = "padded"
    order: Literal["drawn", "largest"] = Field(default="drawn", description="of a step's micro-batches")
    scenarios: Annotated[int, Field(ge=1, le=10**4)] = Field(default=32, description="steps that are sampled")
    seed: Annotated[int, Field(ge=0, le=2**31)] = 0
    gap: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    time_limit: Annotated[int, Field(ge=1, le=int(MOST_SECONDS))] | None = None
    device: Name | None = None
    world_size: Count | None = None
    o: Name | None = Field(default=None, description="file that takes the planned configuration")


class Reinforcement(FromFile):
    """Iteration of reinforcement learning by phase; the answer is a `taylor.rl/1`."""

    command: Literal["rl"] = "rl"
    file: Name = Field(description="script of verl or slime, YAML of NeMo RL")
    generation: Name | None = Field(default=None, description="measured speed of one engine: tokens_per_s=N,alone=N")
    generation_table: Name | None = Field(default=None, description="CSV of concurrent,tokens_per_s: the same")
    mean_prompt: Tokens | None = None
    mean_answer: Tokens | None = None
    split: bool = Field(default=False, description="find the best split into training and roll-out cards")
    cards: Count | None = None
    time_limit: Seconds | None = Field(default=None, description="of the split")
    iterations: Count | None = None
    samples: Count | None = Field(default=None, description="prompts of the data set, for the hours of an epoch")
    device: Name | None = None
    world_size: Count | None = None

    @model_validator(mode="after")
    def _one_speed(self) -> Reinforcement:
        if (self.generation is None) == (self.generation_table is None):
            raise ValueError("exactly one of generation and generation_table is needed")
        return self


class Layerwise(Asked):
    """One strategy for every layer; the answer is a `taylor.layerwise/1`."""

    command: Literal["layerwise"] = "layerwise"
    paths: Names = Field(default=[], description="folders with Galvatron's profiles")
    costs: Literal["taylor", "galvatron", "estimate"] | None = Field(
        default=None, description="estimate: of a registered model and device, without profiles"
    )
    model: Name | None = None
    device: Name | None = None
    world_size: Count | None = None
    layers: Counts = Field(default=[], description="by kind")
    hidden: Counts = Field(default=[], description="width of the hidden states by kind")
    seq: Counts = Field(default=[], description="tokens a sample by kind")
    memory: Annotated[float, Field(gt=0.0, le=10**5)] | None = Field(default=None, description="of a rank, GB")
    gbs: Count | None = None
    micro_batches: Counts = []
    pp: Counts = []
    vpp: Counts = []
    rival: bool | None = Field(default=None, description="compare with Galvatron's own search")
    gap: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    time_limit: Seconds | None = None
    output_config_path: Name | None = Field(default=None, description="folder or file of the strategy")
    result_json: Name | None = None
    html: Name | None = None


class Check(Asked):
    """A layer-wise strategy file evaluated and checked; the answer is a `taylor.check/1`."""

    command: Literal["check"] = "check"
    file: Name = Field(description="galvatron_config_*.json or fine_grained_config.json")
    profiles: Annotated[list[Name], Field(min_length=1, max_length=32)] = Field(description="folders with profiles")
    model: Name | None = Field(default=None, description="where a folder has several")
    hidden: Count
    seq: Tokens
    memory: Annotated[float, Field(gt=0.0, le=10**5)] = Field(description="of a rank, GB")
    layers: Counts = []
    costs: Literal["taylor", "galvatron"] = "taylor"
    world_size: Count | None = None


class Models(Asked):
    """Registered models, or one by name; the answer is a `taylor.models/1` or a `taylor.model/1`."""

    command: Literal["models"] = "models"
    name: Name | None = None


class Devices(Asked):
    """Registered devices, or one by name; the answer is a `taylor.devices/1` or a `taylor.device/1`."""

    command: Literal["devices"] = "devices"
    name: Name | None = None


class Rules(Asked):
    """Rules that strategies must obey, or one by name; the answer is a `taylor.rules/1` or a `taylor.rule/1`."""

    command: Literal["rules"] = "rules"
    name: Name | None = None


class History(Asked):
    """Runs that are remembered, or one by its name; the answer is a `taylor.runs/1` or a `taylor.run/1`."""

    command: Literal["history"] = "history"
    run: Name | None = None
    store: Name | None = None
    model: Name | None = None
    device: Name | None = None


Request = Annotated[
    Solve | Evaluate | Search | Size | Explain | Support | Compare | Rank | Lengths | Reinforcement | Layerwise | Check
    | Models | Devices | Rules | History,
    Field(discriminator="command"),
]  # fmt: skip
"""A request of any command."""

BY_COMMAND: dict[str, type[Asked]] = {
    "solve": Solve,
    "evaluate": Evaluate,
    "search": Search,
    "size": Size,
    "why-memory": Explain,
    "support": Support,
    "compare": Compare,
    "rank": Rank,
    "lengths": Lengths,
    "rl": Reinforcement,
    "layerwise": Layerwise,
    "check": Check,
    "models": Models,
    "devices": Devices,
    "rules": Rules,
    "history": History,
}
"""Model of each command's requests."""


def _flag_value(value: Any) -> Any:
    """A value as the JSON of flags holds it."""
    if not isinstance(value, dict):
        return value
    return ",".join(f"{key}={each!r}" for key, each in value.items())
