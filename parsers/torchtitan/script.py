"""Shell scripts that start torchtitan on a registered Python configuration, read as the TOML file that says the same.

From March 2026 on torchtitan has no TOML files: ``--module llama3 --config llama3_8b`` names a function, and options
such as ``--parallelism.tensor_parallel_degree 2`` override what it sets (pytorch/torchtitan b5bcd76c run_train.sh:29,
torchtitan/config/manager.py:44-160). The functions are in `registry.yaml`; none is ever run.
"""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from taylor.base.errors import InputError, shortened
from taylor.base.shipped import SAFE_LOADER
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.shell_words import Word
from taylor.parsers.text.spelling import likely_meant
from taylor.parsers.text.toml_edit import TomlSource, toml_text
from taylor.parsers.torchtitan.ranks import SCRIPT

MODULE, CONFIG, RANKS = "MODULE", "CONFIG", "NGPU"
USUAL = {MODULE: "llama3", CONFIG: "llama3_debugmodel"}
"""Values where nothing states them (b5bcd76c run_train.sh:31-32)."""
PROGRAMS = ("torchtitan.train", "torchtitan_train")
RECOMPUTE = "activation_checkpoint"
POLICIES = ("selective", "full", "memory-budget", "none")
"""Subcommands, as ``activation-checkpoint:none`` (torchtitan/distributed/activation_checkpoint.py:330-338)."""
FAMILIES = {
    ("kimi_k2_7", "moonlight-16b-a3b"): ("moonlight", "16b-a3b"),
    "qwen3_5": "qwen3.5",
}
"""Names of registered models where torchtitan's folder and flavour are others."""
ELSEWHERE = {
    "graph_trainer": "its graph trainer compiles and reorders a whole step, which no figure here knows",
    "torchft": "its replicas join and leave as it runs",
    "rl": "it trains a policy beside roll-outs",
    "alphabet_sort": "it trains a policy beside roll-outs",
    "dapo_math": "it trains a policy beside roll-outs",
    "search_r1": "it trains a policy beside roll-outs",
    "transformers_modeling_backend": "its model is a class of Hugging Face's that another argument names",
    "autoparallel": "a program lays it out as it starts",
    "flux": "it trains an image model",
    "kimi_k2_7": "its vision tower trains too, and no registered model has it",
    "muse_glimmer": "its model is not registered",
}
"""Reasons why configurations of a module, or a family without a registered flavour, are refused."""
_OPTION = re.compile(r"--([A-Za-z][\w\-]*(?:\.[\w\-]+)*)(=?)")
_LITERAL = re.compile(r"-?\d{1,18}")
_CONVERTERS = {
    "Float8LinearConverter": "quantize.linear.float8",
    "Float8GroupedExpertsConverter": "quantize.grouped_mm.float8",
    "MXFP8LinearConverter": "quantize.linear.mx",
    "MXFP8GroupedExpertsConverter": "quantize.grouped_mm.mx",
}
"""Converters by the name that files of TOML had (torchtitan/components/quantization/float8.py:53-75, mx.py)."""
_KEPT = {
    "training": ("dtype", "mixed_precision_param", "mixed_precision_reduce", "enable_cpu_offload"),
    "parallelism": (
        "data_parallel_replicate_degree",
        "data_parallel_shard_degree",
        "fsdp_reshard_after_forward",
        "tensor_parallel_degree",
        "pipeline_parallel_degree",
        "module_fqns_per_model_part",
        "pipeline_parallel_first_stage_less_layers",
        "pipeline_parallel_last_stage_less_layers",
        "pipeline_parallel_layers_per_stage",
        "pipeline_parallel_schedule",
        "context_parallel_degree",
        "expert_parallel_degree",
    ),
    "compile": ("enable", "components"),
}
"""Settings with the name and the meaning that they had in TOML (v0.2.2 torchtitan/config/job_config.py; b5bcd76c
torchtitan/config/configs.py)."""
TOKENS, LENGTH, STEP = "num_tokens_per_microbatch_per_dp_rank", "max_context_length", "num_tokens_per_train_step"
COUNT = "num_pp_microbatches"
DEFAULTS = {TOKENS: 16384, LENGTH: 2048, STEP: -1, COUNT: 1}
"""configs.py:38-55, 196."""


@cache
def registry() -> Mapping[str, Any]:
    """The shipped table of registered configurations, by module and name."""
    text = importlib.resources.files("taylor.parsers.torchtitan").joinpath("registry.yaml").read_text(encoding="utf-8")
    data: Mapping[str, Any] = yaml.load(text, Loader=SAFE_LOADER)
    return data


@dataclass(frozen=True)
class Option:
    """One option of the command.

    Parameters
    ----------
    name : str
        Dotted, its words joined by ``_``.
    word : Word
        The option's own word.
    values : tuple of Word
        Its values; of ``--name=value`` the part behind the sign.
    off : bool
        Written with ``no-``: a switch that is turned off.
    """

    name: str
    word: Word
    values: tuple[Word, ...]
    off: bool = False


@dataclass(frozen=True)
class TitanJob:
    """A job that a script starts.

    Parameters
    ----------
    script : ShellScript
    words : tuple of Word
        The command.
    module, config : str
        The registered configuration.
    world : int or None
        Ranks that the script starts; None where it does not say.
    options : tuple of Option
    """

    script: ShellScript
    words: tuple[Word, ...]
    module: str
    config: str
    world: int | None
    options: tuple[Option, ...]
    notes: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> TitanJob:
        """Read a script.

        Raises
        ------
        InputError
            When it starts no torchtitan, or starts it on a TOML file.
        """
        return cls.of(ShellScript.read(path))

    @classmethod
    def of(cls, script: ShellScript) -> TitanJob:
        """The same of a script that was read."""
        found = [command.words for command in script.commands if _program_at(command.words) is not None]
        if not found:
            cure = "give the script that starts torchtitan.train or run_train.sh"
            raise InputError("starts no training of torchtitan", file=script.file, cure=cure)
        words = found[-1]
        at = _program_at(words)
        assert at is not None
        options = _options(words[at + 1 :])
        _refuse_toml(script, options)
        by_name = {option.name: option for option in options}
        names = [
            _stated(script, words[:at], by_name.get(option), variable)
            for option, variable in (("module", MODULE), ("config", CONFIG))
        ]
        notes = list(script.notes)
        if len(found) > 1:
            notes.append(f"the script starts torchtitan {len(found)} times: the last start is read")
        if any(word.text in ("$@", "${@}", "$*") for word in words) and script.arguments is None:
            notes.append("the script takes further options from its arguments: none are assumed")
        own = tuple(each for each in options if each.name not in ("module", "config"))
        return cls(script, tuple(words), names[0], names[1], _world(script, words[:at]), own, tuple(notes))

    @property
    def file(self) -> Path:
        """The script."""
        return self.script.file

    def row(self) -> Mapping[str, Any]:
        """The registered configuration.

        Raises
        ------
        InputError
            When there is none of that name, or no figure knows what it trains.
        """
        known = registry()["modules"]
        short = self.module.removeprefix("torchtitan.models.").removesuffix(".config_registry")
        top = self.module.removeprefix("torchtitan.experiments.").partition(".")[0]
        if top in ELSEWHERE and short not in known:
            raise self._refused("--module", self.module, ELSEWHERE[top])
        if short not in known:
            cure = f"name one of {', '.join(known)}, or state the job as a TOML file of torchtitan v0.2.2"
            problem = f"is no module of torchtitan {registry()['commit']} with registered configurations"
            raise InputError(problem, file=self.file, field="--module", value=shortened(self.module, 80), cure=cure)
        rows: Mapping[str, Any] = known[short]
        if self.config not in rows:
            near = likely_meant(self.config, list(rows))
            names = near or ", ".join(rows)
            raise InputError(
                f"is no registered configuration of {short} in torchtitan {registry()['commit']}",
                file=self.file,
                field="--config",
                value=shortened(self.config, 80),
                cure=f"name {names}" if near else f"name one of {shortened(names, 600)}",
            )
        row: Mapping[str, Any] = rows[self.config]
        return row

    def _refused(self, field: str, value: str, why: str) -> InputError:
        cure = "give a configuration of llama3, qwen3, deepseek_v3 or gpt_oss"
        return InputError(
            f"is a training of torchtitan that is not read: {why}", file=self.file, field=field, value=value, cure=cure
        )

    def model_name(self, registered: Sequence[str]) -> tuple[str, str]:
        """Name and flavour of the model as a file of TOML has them.

        Raises
        ------
        InputError
            When the family is none of a language model that is registered.
        """
        row = self.row()
        family, flavour = row["family"], str(row["flavor"]).lower()
        if (family, flavour) in FAMILIES:
            return FAMILIES[family, flavour]  # type: ignore[return-value]
        if family in ELSEWHERE:
            raise self._refused("--config", self.config, ELSEWHERE[family])
        other = FAMILIES.get(family)
        if isinstance(other, str):
            if f"{other}-{flavour}" not in registered:
                raise self._refused("--config", self.config, f"no model {other}-{flavour} is registered")
            return other, flavour
        return family, flavour

    def settings(self) -> dict[str, Any]:
        """Every setting of the job by its dotted name: of the registered configuration, and the options over it."""
        row = self.row()
        merged: dict[str, Any] = {
            f"{section}.{name}": value
            for section in ("training", "parallelism", "compile")
            for name, value in row.get(section, {}).items()
        }
        for option in self.options:
            if ":" not in option.name:
                merged[option.name] = self.value(option)
        return merged

    def value(self, option: Option) -> Any:
        """The value of an option; True or False of a switch.

        Raises
        ------
        InputError
            When the script leaves it to its start.
        """
        if option.off or not option.values:
            return not option.off
        word = option.values[0]
        if word.unknown:
            at = next((char.at for char in word.chars if char.unknown and char.at is not None), 0)
            line = self.script.text.count("\n", 0, at) + 1
            raise InputError(
                f"has a value that is known only when the job starts (line {line})",
                file=self.file,
                field=f"--{option.name}",
                value=shortened(word.text, 80),
                cure=self.script.cure_of(word),
            )
        texts = [each.text for each in option.values]
        return _read_value(texts[0] if len(texts) == 1 else ",".join(texts))

    def recompute(self) -> str:
        """The policy of recompute: one of `POLICIES`.

        Raises
        ------
        InputError
            When it is one whose recomputed operations a compiler chooses.
        """
        written = str(self.row().get("recompute", "selective"))
        for option in self.options:
            if option.name.startswith(f"{RECOMPUTE}:"):
                written = option.name.partition(":")[2].replace("_", "-")
        if written not in POLICIES or written == "memory-budget":
            raise InputError(
                "is a policy whose recomputed operations the compiler chooses"
                if written == "memory-budget"
                else "is no policy",
                file=self.file,
                field="activation-checkpoint",
                value=written,
                cure="use activation-checkpoint:selective, :full or :none",
            )
        return written


def as_toml(job: TitanJob, registered: Sequence[str]) -> TomlSource:
    """The job as the file that torchtitan v0.2.2 would read.

    Raises
    ------
    InputError
        When the registered configuration is not known, a setting is wrong, or no figure knows what it trains.
    """
    settings = job.settings()
    name, flavour = job.model_name(registered)
    sections: dict[str, dict[str, Any]] = {"model": {"name": name, "flavor": flavour}}
    for section, names in _KEPT.items():
        kept = {key: settings[f"{section}.{key}"] for key in names if settings.get(f"{section}.{key}") is not None}
        sections[section] = kept
    if isinstance(parts := sections["compile"].get("components"), str):
        sections["compile"]["components"] = parts.split(",")
    sections["training"] |= _batch(job, settings, sections["parallelism"])
    if settings.get("compile.enable_async_tensor_parallel"):
        sections["parallelism"]["enable_async_tensor_parallel"] = True
    if sections["parallelism"].get("pipeline_parallel_degree", 1) == 1:
        sections["parallelism"].pop("pipeline_parallel_schedule", None)
    policy = job.recompute()
    sections[RECOMPUTE] = {"mode": policy, **({"selective_ac_option": "op"} if policy == "selective" else {})}
    sections |= _converters(job)
    return TomlSource("\n".join(_toml_lines(job, sections)), job.file)


def _batch(job: TitanJob, settings: Mapping[str, Any], parallel: dict[str, Any]) -> dict[str, Any]:
    """Length, local and global batch of tokens a micro-batch and a step (b5bcd76c torchtitan/trainer.py:409-428).

    A micro-batch is filled with samples up to its tokens; one shorter than the longest sample cuts it.
    """

    def number(name: str, section: str, *others: str) -> int:
        value = next((settings[each] for each in others if each in settings), None)
        value = settings.get(f"{section}.{name}", DEFAULTS.get(name)) if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not (0 < value < 2**40 or value == -1):
            raise InputError("must be a whole number", file=job.file, field=f"--{section}.{name}", value=value)
        return value

    length = number(LENGTH, "training", "training.seq_len")
    stages = parallel.get("pipeline_parallel_degree", 1)
    rounds = number(COUNT, "parallelism") if isinstance(stages, int) and stages > 1 else 1
    tokens = number(TOKENS, "training")
    if "training.local_batch_size" in settings:  # Releases from March to June 2026.
        tokens, rounds = number("local_batch_size", "training") * length, 1
    elif tokens < length:
        length = tokens
    elif tokens % length:
        raise InputError(
            f"is no multiple of the {length} tokens of the longest sample, so that no whole number fits",
            file=job.file, field=f"--training.{TOKENS}", value=tokens, cure=f"write {tokens // length * length}",
        )  # fmt: skip
    samples = tokens // length
    batch = {"seq_len": length, "local_batch_size": samples * rounds}
    if isinstance(stages, int) and stages > 1 and "training.local_batch_size" not in settings:
        parallel["pipeline_parallel_microbatch_size"] = samples
    if "training.global_batch_size" in settings:
        batch["global_batch_size"] = number("global_batch_size", "training")
    elif (step := number(STEP, "training")) > 0:
        if step % length:
            problem = f"is no multiple of the {length} tokens of a sample"
            raise InputError(problem, file=job.file, field=f"--training.{STEP}", value=step)
        batch["global_batch_size"] = step // length
    return batch


def _converters(job: TitanJob) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    names: list[str] = []
    for each in job.row().get("converters", ()):
        if each["name"] == "LoRAConverter":
            raise job._refused("--config", job.config, "it trains low-rank adapters beside frozen weights")
        name = _CONVERTERS.get(each["name"])
        if name is None:
            continue
        names.append(name)
        section: dict[str, Any] = {"fqns": ["experts"]} if "grouped" in name else {}
        if name == "quantize.linear.float8":
            filters = [str(word).replace("lm_head", "output") for word in each.get("filter_fqns", [])]
            section = {"recipe_name": each.get("recipe_name", "rowwise"), "filter_fqns": filters}
            if each.get("emulate") is True:
                section["emulate"] = True
        found[name] = section
    return {**({"model.": {"converters": names}} if names else {}), **found}


def _toml_lines(job: TitanJob, sections: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    model = {**sections["model"], **sections.get("model.", {})}
    for table, entries in {**sections, "model": model}.items():
        if table == "model.":
            continue
        yield f"[{table}]"
        for key, value in entries.items():
            try:
                yield f"{key} = {toml_text(value)}"
            except (TypeError, ValueError):
                raise InputError(
                    "contains what torchtitan cannot read", file=job.file, field=f"{table}.{key}"
                ) from None


def _program_at(words: Sequence[Word]) -> int | None:
    """Place of the program in a command; None where it starts another."""
    if words and words[0].text in ("echo", "printf"):
        return None
    for at, word in enumerate(words):
        name = word.text.rpartition("/")[2]
        if name == SCRIPT or name in PROGRAMS:
            return at
    return None


def _options(words: Sequence[Word]) -> list[Option]:
    options: list[Option] = []
    for word in words:
        match = _OPTION.match(word.text)
        if match and (match[2] or match.end() == len(word.text)):
            parts = match[1].replace("-", "_").split(".")
            off = parts[-1].startswith("no_")
            parts[-1] = parts[-1].removeprefix("no_") if off else parts[-1]
            values = (word.part(match.end()),) if match[2] else ()
            options.append(Option(".".join(parts), word, values, off))
        elif re.fullmatch(r"activation[-_]checkpoint:[\w-]+", word.text):
            options.append(Option(f"{RECOMPUTE}:{word.text.partition(':')[2]}", word, ()))
        elif options and not (options[-1].off or "=" in options[-1].word.text or ":" in options[-1].name):
            last = options[-1]
            if word.text not in ("$@", "${@}", "$*"):
                options[-1] = Option(last.name, last.word, (*last.values, word), last.off)
    return options


def _refuse_toml(script: ShellScript, options: Sequence[Option]) -> None:
    named = next((each for each in options if each.name == "job.config_file"), None)
    variable = script.variables.get("CONFIG_FILE")
    if named is None and variable is None:
        return
    text = named.values[0].text if named is not None and named.values else variable.texts()[0] if variable else ""
    raise InputError(
        "starts torchtitan on its TOML file, which is the one to give",
        file=script.file,
        field="--job.config_file",
        value=shortened(text, 120),
        cure="give that file in its place",
    )


def _stated(script: ShellScript, before: Sequence[Word], option: Option | None, variable: str) -> str:
    """The value of an option, of a variable that the script or the command sets, or the usual one."""
    word: Word | None = option.values[0] if option is not None and option.values else None
    if word is None:
        found = next((each for each in before if each.text.startswith(f"{variable}=")), None)
        if found is not None:
            word = found.part(len(variable) + 1)
        elif variable in script.variables and script.variables[variable].words:
            word = script.variables[variable].words[0]
        elif variable in script.outside and script.outside[variable].words:
            word = script.outside[variable].words[0]
    if word is None:
        return USUAL[variable]
    if word.unknown:
        raise InputError(
            "has a value that is known only when the job starts",
            file=script.file,
            field=f"--{variable.lower()}",
            value=shortened(word.text, 80),
            cure=f"write it out, or give --env {variable}=VALUE",
        )
    return word.text


def _world(script: ShellScript, before: Sequence[Word]) -> int | None:
    """Ranks that the script starts: of ``torchrun``, or ``NGPU`` of run_train.sh; None where it does not say."""
    options = {each.name: each for each in _options(before)}

    def number(word: Word | None) -> int | None:
        return int(word.text) if word is not None and not word.unknown and _LITERAL.fullmatch(word.text) else None

    each = options.get("nproc_per_node")
    if each is not None and each.values:
        per_node, nodes = number(each.values[0]), options.get("nnodes")
        count = 1 if nodes is None or not nodes.values else number(nodes.values[0])
        return None if per_node is None or count is None or per_node * count < 1 else per_node * count
    for word in before:
        if word.text.startswith(f"{RANKS}="):
            return number(word.part(len(RANKS) + 1))
    variable = script.variables.get(RANKS) or script.outside.get(RANKS)
    return number(variable.words[0]) if variable is not None and variable.words else None


def _read_value(text: str) -> Any:
    """A value as tyro takes it: a number, a truth, a list, or a text."""
    if text in ("True", "true"):
        return True
    if text in ("False", "false"):
        return False
    if text in ("None", "null"):
        return None
    if _LITERAL.fullmatch(text):
        return int(text)
    if text.startswith("["):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return text
        return value if isinstance(value, list) else text
    return text
