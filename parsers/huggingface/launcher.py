"""Hugging Face, whose config.json describes a model; a section of its own says how it is trained."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.huggingface import job
from taylor.parsers.huggingface.model import read_model
from taylor.parsers.launcher import Launcher, Tools, UsualDevice
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.register.model import ModelSpec

NAME = "huggingface"

MAX_CONFIG_BYTES = 8 * 2**20
"""Largest config.json read; real ones hold some kilobytes."""

_MAX_DEPTH = 40


class HuggingFace(Launcher):
    """Hugging Face's config.json."""

    degree_words = {
        "dp": "taylor.parallel.dp",
        "tp": "taylor.parallel.tp",
        "pp": "taylor.parallel.pp",
        "ep": "taylor.parallel.ep",
        "cp": "taylor.parallel.cp",
        "op": "taylor.parallel.op",
        "sp": "taylor.parallel.sp",
        "vpp": "taylor.parallel.vpp",
        "mbs": "taylor.batch.micro",
        "gbs": "taylor.batch.global",
        "seq": "taylor.batch.sequence",
    }
    name = NAME
    title = "Hugging Face config.json"
    suffixes = (".json",)
    telltale = re.compile(r'"model_type"\s*:')
    plan_keys = frozenset({job.SECTION})
    suffix_decides = False
    starts_training = False
    usual_device = UsualDevice("h100-80g", "Hugging Face configurations")

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        data = read_json(path)
        model, notes = self.model_of(data, path, register_path)
        remarks = list(notes)
        section = job.section_of(data, path)
        strategy, left_open = job.read_strategy(section, remarks)
        rules = job.read_rules(section, _positions(data), remarks)
        schedule = job.read_schedule(section, strategy, rules)
        return TrainingConfig(
            path=path,
            launcher=self.name,
            model=model,
            strategy=strategy,
            rules=rules,
            schedule=schedule,
            plan=job.read_plan(section, model, strategy, schedule),
            mtp_counted=False,
            open_ranks=left_open,
            batch_follows_ranks=bool(section.data) and not section.section("batch").has("global"),
            notes=tuple(remarks),
        )

    def model_of(
        self, data: Mapping[str, Any], path: Path, register_path: Path | None
    ) -> tuple[ModelSpec, tuple[str, ...]]:
        """The model that a parsed file describes or names, and what was assumed of it.

        Raises
        ------
        InputError
            When there is no such model, or its description is wrong.
        """
        return read_model({name: value for name, value in data.items() if name != job.SECTION}, path)

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """See `Launcher.with_plan`; the strategy is written beside the plan."""
        config.refuse_other_stages(plan, f"{job.SECTION}.parallel.pp")
        strategy = config.strategy.replace(vpp=plan.interleaves)
        if micro_batches is not None:
            strategy = strategy.replace(micro_batches=micro_batches)
        text = read_text(config.path, limit_bytes=MAX_CONFIG_BYTES)
        section = job.written(config.rules, strategy, config.schedule_for(plan.interleaves), plan)
        return text, _with_section(read_json(config.path), section)

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """See `Launcher.with_strategy`; without a plan the file holds none, and nothing is what `extra` could name."""
        if extra:
            raise InputError("cannot be set in a Hugging Face configuration", file=config.path, field=next(iter(extra)))
        section = job.written(config.rules, strategy, config.schedule_for(strategy.vpp), plan)
        return _with_section(read_json(config.path), section)

    def dryrun_command(self, file: Path, original: Path, tools: Tools) -> tuple[str, ...]:
        """Nothing starts a config.json."""
        raise InputError(
            "starts no training, so no program can dry-run it",
            file=original,
            cure="use --dryrun_backend torch or estimate",
        )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file's mapping, within bounds.

    Raises
    ------
    InputError
        When it is missing, too large or too deep, no JSON, or no mapping.
    """

    def refuse(number: str) -> NoReturn:
        raise InputError("contains a number with more digits than any size has", file=path, value=number[:40])

    def whole(number: str) -> int:
        return int(number) if len(number) <= 20 else refuse(number)

    text = read_text(path, limit_bytes=MAX_CONFIG_BYTES)
    try:
        data = json.loads(text, parse_int=whole)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InputError(
            f"is not valid JSON ({place}): {error.msg}", file=path, cure="correct the syntax there"
        ) from None
    except RecursionError:
        raise InputError(f"is nested more than {_MAX_DEPTH} deep", file=path) from None
    if not isinstance(data, dict):
        raise InputError("is no configuration: it has no names and values", file=path)
    if _depth(data) > _MAX_DEPTH:
        raise InputError(f"is nested more than {_MAX_DEPTH} deep", file=path)
    return data


def _depth(value: object) -> int:
    level, depth = [value], 0
    while level and depth <= _MAX_DEPTH:
        depth += 1
        inside = [each for each in level if isinstance(each, (dict, list))]
        level = [item for each in inside for item in (each.values() if isinstance(each, dict) else each)]
    return depth


def _positions(data: Mapping[str, Any]) -> int | None:
    """Positions that the model knows, where the file says so."""
    for place in (data, data.get("text_config"), data.get("llm_config")):
        if isinstance(place, Mapping):
            for name in ("max_position_embeddings", "n_positions", "seq_length"):
                value = place.get(name)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
    return None


def _with_section(data: dict[str, Any], section: Any) -> str:
    return json.dumps({**data, job.SECTION: section}, indent=2, ensure_ascii=False) + "\n"
