"""Plans and strategies written into a script that starts a training of OLMo-core: overrides of its command.

An override changes what the training script's functions set, in the order of the command; below a section that is null
nothing can be set (allenai/OLMo-core fa6c5014 src/olmo_core/config.py:197-226, 330-345).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.olmo.read import SCHEDULES
from taylor.parsers.olmo.script import OlmoJob
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.shell_words import Word
from taylor.parsers.training_config import TrainingConfig, body_layers
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan, values_in_order

MODULE = "train_module"
PLAN_KEYS = frozenset({"split_points", "mode", "ac_config", "global_batch_size", "rank_microbatch_size", "pp_config"})
"""Parts of the overrides that a plan may change."""


def plan_overrides(config: TrainingConfig, plan: PipelinePlan) -> dict[str, Any]:
    """Overrides of the layers of each model part, and of recompute.

    Raises
    ------
    InputError
        When a layer has a recompute that no override says.
    """
    wanted: dict[str, Any] = {}
    v_shape = config.schedule_for(plan.interleaves).v_shape
    sizes = values_in_order(body_layers(plan), v_shape)
    own = config.plan
    if own is None or body_layers(own) != body_layers(plan):
        if plan.stages == 1:
            raise InputError("has other layers than the model", file=config.path, field="split_points")
        wanted[f"{MODULE}.pp_config.split_points"] = [sum(sizes[:at]) for at in range(1, len(sizes))]
    modes = {mode: plan.recomputed(mode) for mode in (FULL, SELECT)}
    if own is None or any(own.recomputed(mode) != grid for mode, grid in modes.items()):
        if plan.uses(FULL):
            wanted[f"{MODULE}.ac_config"] = {"mode": "full"}
        elif plan.uses(SELECT):
            wanted[f"{MODULE}.ac_config"] = {"mode": "selected_ops"}
        else:
            wanted[f"{MODULE}.ac_config"] = None
    return wanted


def batch_overrides(config: TrainingConfig, strategy: Strategy) -> dict[str, Any]:
    """Overrides of micro-batch and batch, in tokens."""
    length = config.rules.seq_length
    wanted: dict[str, Any] = {}
    if strategy.mbs != config.strategy.mbs:
        wanted[f"{MODULE}.rank_microbatch_size"] = strategy.mbs * length
    if strategy.global_batch != config.strategy.global_batch:
        wanted["data_loader.global_batch_size"] = strategy.global_batch * length
    return wanted


def strategy_overrides(config: TrainingConfig, strategy: Strategy) -> dict[str, Any]:
    """Overrides of the degrees.

    Raises
    ------
    InputError
        When OLMo-core cannot run the strategy.
    """
    own = config.strategy
    wanted: dict[str, Any] = {}
    for kind in ("tp", "cp", "pp"):
        value, before = getattr(strategy, kind), getattr(own, kind)
        if value != before:
            wanted[f"{MODULE}.{kind}_config"] = None if value == 1 else _section(kind, value)
            if value > 1 and before > 1:
                wanted[f"{MODULE}.{kind}_config.degree"] = value
                del wanted[f"{MODULE}.{kind}_config"]
    schedule = config.schedule_for(strategy.vpp)
    if strategy.pp > 1:
        names = {name: called for called, name in SCHEDULES.items()}
        if schedule.name not in names:
            raise InputError("is no schedule of OLMo-core", file=config.path, field="pp_config", value=schedule.name)
        wanted[f"{MODULE}.pp_config.schedule"] = names[schedule.name]
    if strategy.op % strategy.cp or strategy.dp % (strategy.op // strategy.cp):
        problem = f"cannot be split {strategy.op} ways over {strategy.dp} x {strategy.cp} replicas"
        raise InputError(problem, file=config.path, field="dp_config.shard_degree")
    shard = strategy.op // strategy.cp
    if (shard, strategy.dp) != (own.op // own.cp, own.dp):
        wanted[f"{MODULE}.dp_config.name"] = "fsdp" if shard == strategy.dp else "hsdp"
        if shard != strategy.dp:
            wanted[f"{MODULE}.dp_config.shard_degree"] = shard
    if strategy.ep != own.ep:
        raise InputError(
            "is the shard degree of HSDP in OLMo-core, and is not changed here", file=config.path,
            field="ep_config.degree", value=strategy.ep,
        )  # fmt: skip
    return wanted


def _section(kind: str, value: int) -> dict[str, Any]:
    return {"degree": value, **({"ring": {"load_balancer": "zig_zag"}} if kind == "cp" else {})}


def written(job: OlmoJob, wanted: Mapping[str, Any], world: int | None = None) -> ShellScript:
    """The script with overrides in its command, and another number of ranks.

    Raises
    ------
    InputError
        When a value is put together from several places.
    """
    script = job.script
    for name, value in wanted.items():
        script = _with_override(OlmoJob.of(script), name, _text(value))
    ranks = OlmoJob.of(script).ranks
    if world is not None and ranks.stated and world != ranks.nodes * ranks.per_node:
        script = _with_ranks(OlmoJob.of(script), world)
    return script


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "'{" + ", ".join(f"{key}: {_text(item).strip(chr(39))}" for key, item in value.items()) + "}'"
    if isinstance(value, list):
        return "'[" + ",".join(map(str, value)) + "]'"
    return str(value)


def _with_override(job: OlmoJob, name: str, text: str) -> ShellScript:
    found = next((each for each in reversed(job.overrides) if each.name == name), None)
    if found is not None:
        return _spliced(job, found.value, text, name)
    whole = job.script.text
    ends = [char.at + 1 for word in job.words for char in word.chars if char.at is not None and char.via is None]
    if not ends:
        raise InputError("has no place for an override in its command", file=job.file, field=f"--{name}")
    end = max(ends)
    end += whole[end : end + 1] in ("'", '"')
    return ShellScript(f"{whole[:end]} --{name}={text}{whole[end:]}", job.file)


def _with_ranks(job: OlmoJob, world: int) -> ShellScript:
    nodes = job.ranks.nodes
    for at, word in enumerate(job.words):
        if word.text.replace("-", "_").startswith("__nproc_per_node") and world % nodes == 0:
            value = word.part(word.text.index("=") + 1) if "=" in word.text else job.words[at + 1]
            return _spliced(job, value, str(world // nodes), "nproc-per-node")
    raise InputError(
        "has its number of ranks where it cannot be changed", file=job.file, field="nproc-per-node", value=world
    )


def _spliced(job: OlmoJob, word: Word, text: str, name: str) -> ShellScript:
    span = word.span()
    if span is None:
        raise InputError(
            "has a value put together from several places", file=job.file, field=f"--{name}", value=word.text[:80],
            cure="write the value out",
        )  # fmt: skip
    quoted = job.script.text[span[0] - 1 : span[0]] in ("'", '"') and text.startswith("'")
    new = text[1:-1] if quoted else text
    return ShellScript(job.script.text[: span[0]] + new + job.script.text[span[1] :], job.file)
