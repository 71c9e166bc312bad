"""Plans and strategies written into a script that starts torchtitan by name: options of its command.

Options say what the TOML file of `script.as_toml` would; a new one goes behind the command's last word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from taylor.base.errors import InputError
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.shell_words import Word
from taylor.parsers.text.toml_edit import TomlSource
from taylor.parsers.torchtitan.script import COUNT, LENGTH, RANKS, RECOMPUTE, STEP, TOKENS, Option, TitanJob

PLAN_OPTIONS = frozenset(
    {
        "module_fqns_per_model_part",
        "pipeline_parallel_layers_per_stage",
        "pipeline_parallel_schedule",
        COUNT,
        TOKENS,
        STEP,
        "activation",
        "activation-checkpoint",
    }
)
"""Last part of the options that a plan may change."""
_BATCH = ("local_batch_size", "global_batch_size", "pipeline_parallel_microbatch_size")


def edited(job: TitanJob, before: TomlSource, after: TomlSource, world: int | None = None) -> TitanJob:
    """The job with what differs between two TOML files in its command.

    Parameters
    ----------
    world : int, optional
        Ranks that it starts then; as many as before when left out.

    Raises
    ------
    InputError
        When a value cannot be changed without changing another.
    """
    wanted = _options_of(job, before, after)
    policy = after.data.get(RECOMPUTE, {}).get("mode")
    script = job.script
    for name, value in wanted.items():
        script = _with_option(script, name, _text(value))
    if policy != before.data.get(RECOMPUTE, {}).get("mode"):
        script = _with_policy(script, str(policy))
    if world is not None and job.world not in (None, world):
        script = _with_ranks(script, world)
    done = TitanJob.of(script)
    _verify(job, done, wanted)
    return done


def _options_of(job: TitanJob, before: TomlSource, after: TomlSource) -> dict[str, Any]:
    """The options that say what differs, but for recompute."""
    wanted: dict[str, Any] = {}
    for section in ("parallelism", "training", "compile"):
        old, new = before.data.get(section, {}), after.data.get(section, {})
        for key in dict.fromkeys((*old, *new)):
            if key not in _BATCH and old.get(key) != new.get(key):
                wanted[f"{section}.{key}"] = new.get(key)
    training, parallel = after.data["training"], after.data.get("parallelism", {})
    sizes = [source.data.get(place, {}).get(key) for source in (before, after)
             for place, key in (("training", "local_batch_size"), ("training", "global_batch_size"),
                                ("training", "seq_len"), ("parallelism", "pipeline_parallel_microbatch_size"),
                                ("parallelism", "pipeline_parallel_degree"))]  # fmt: skip
    if sizes[: len(sizes) // 2] == sizes[len(sizes) // 2 :]:
        return wanted
    length, local = int(training["seq_len"]), int(training["local_batch_size"])
    stages = int(parallel.get("pipeline_parallel_degree", 1))
    samples = int(parallel.get("pipeline_parallel_microbatch_size", 1)) if stages > 1 else local
    sized: dict[str, Any] = {f"training.{TOKENS}": samples * length}
    if stages > 1:
        sized[f"parallelism.{COUNT}"] = local // samples
    total = training.get("global_batch_size")
    sized[f"training.{STEP}"] = -1 if total is None else int(total) * length
    has = job.settings()
    usual = {f"training.{STEP}": -1, f"training.{LENGTH}": None}
    wanted |= {name: value for name, value in sized.items() if has.get(name, usual.get(name)) != value}
    return wanted


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, (list, dict)):
        return "'" + json.dumps(value, separators=(",", ":")) + "'"
    return str(value)


def _with_option(script: ShellScript, name: str, text: str) -> ShellScript:
    job = TitanJob.of(script)
    found = next((each for each in reversed(job.options) if each.name == name), None)
    if found is None:
        return _appended(job, f"--{name} {text}")
    if len(found.values) != 1:
        raise _fixed(job, found)
    return _spliced(job, found.values[0], text, name)


def _with_policy(script: ShellScript, policy: str) -> ShellScript:
    job = TitanJob.of(script)
    found = next((each for each in reversed(job.options) if each.name.startswith(f"{RECOMPUTE}:")), None)
    text = f"activation-checkpoint:{policy}"
    return _appended(job, text) if found is None else _spliced(job, found.word, text, RECOMPUTE)


def _with_ranks(script: ShellScript, world: int) -> ShellScript:
    """The script that starts another number of ranks, on as many nodes."""
    job = TitanJob.of(script)
    for at, word in enumerate(job.words):
        if word.text.startswith(("--nproc_per_node", "--nproc-per-node")):
            value = word.part(word.text.index("=") + 1) if "=" in word.text else job.words[at + 1]
            nodes = (job.world or 1) // max(1, int(value.text)) or 1
            if world % nodes:
                break
            return _spliced(job, value, str(world // nodes), "nproc_per_node")
        if word.text.startswith(f"{RANKS}="):
            return _spliced(job, word.part(len(RANKS) + 1), str(world), RANKS)
    variable = script.variables.get(RANKS)
    if variable is not None and variable.words:
        return _spliced(job, variable.words[0], str(world), RANKS)
    raise InputError(
        "has its number of ranks where it cannot be changed", file=job.file, field=RANKS, value=world,
        cure=f"set {RANKS} before run_train.sh, or --nproc_per_node",
    )  # fmt: skip


def _spliced(job: TitanJob, word: Word, text: str, name: str) -> ShellScript:
    span = word.span()
    if span is None:
        raise InputError(
            "has a value put together from several places", file=job.file, field=name, value=word.text[:80],
            cure="write the value out",
        )  # fmt: skip
    start, end = span
    quoted = job.script.text[start - 1 : start] in ("'", '"') and text.startswith("'")
    written = text[1:-1] if quoted else text
    return ShellScript(job.script.text[:start] + written + job.script.text[end:], job.script.file)


def _appended(job: TitanJob, text: str) -> ShellScript:
    """The script with words behind the last word of the command that stands in it."""
    whole = job.script.text
    ends = [char.at + 1 for word in job.words for char in word.chars if char.at is not None and char.via is None]
    if not ends:
        raise InputError("has no place for an option in its command", file=job.file, cure="write the command out")
    end = max(ends)
    end += whole[end : end + 1] in ("'", '"')
    return ShellScript(f"{whole[:end]} {text}{whole[end:]}", job.script.file)


def _fixed(job: TitanJob, option: Option) -> InputError:
    return InputError(
        "is written in a way that cannot be changed here", file=job.file, field=f"--{option.name}",
        value=option.word.text[:80], cure="write one value behind it",
    )  # fmt: skip


def _verify(before: TitanJob, after: TitanJob, wanted: Mapping[str, Any]) -> None:
    """Refuse an edit that changes more than it should, as of a variable that stands in several places."""
    old, new = before.settings(), after.settings()
    changed = {name for name in {*old, *new} if old.get(name) != new.get(name)} - set(wanted)
    if changed or (before.module, before.config) != (after.module, after.config):
        name = min(changed, default="config")
        raise InputError(
            "would change with another value: both come from one variable", file=before.file, field=f"--{name}",
            cure="write the value out",
        )  # fmt: skip
