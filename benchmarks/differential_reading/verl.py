"""The fields of a verl script: bash runs it, Hydra composes what it starts with verl's own YAMLs.

Source: verl-project/verl b178a3cd, by file and line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.differential_reading.checkout import LINEAR, product_of, quotient, targets
from benchmarks.differential_reading.reading import NothingToRead, Reading, Value, settled, whole
from benchmarks.differential_reading.sandbox import launches

_WORD = re.compile(r"(?:\+{0,2}|~)[A-Za-z_][\w.@/]*=")
_TRAINS = re.compile(r"main_ppo|sft_trainer|fully_async_main|main_dapo")
_BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}
_SEEN_AT = "/job/"
"""Working folder of a script that runs in the sandbox: the checkout."""


def read_command(text: str, root: Path) -> list[Reading]:
    """The fields of every training that a script starts.

    Raises
    ------
    NothingToRead
        When it starts none, Hydra refuses its options, or Hydra is missing.
    """
    if find_spec("hydra") is None:
        raise NothingToRead("needs Hydra, which composes verl's options (pip install hydra-core)")
    found, reason = [], "starts no trainer of verl"
    for words in launches(text):
        program = next((file for word in words if (file := _file(word, root)) is not None), None)
        if program is None:
            continue
        try:
            found.append(_reading(_composed(words, program, root), words, program))
        except NothingToRead as error:
            reason = str(error)
    if not found:
        raise NothingToRead(reason)
    return found


def _file(word: str, root: Path) -> Path | None:
    """The Python file of a word that names a training program by module or path."""
    if not _TRAINS.search(word) or not re.fullmatch(r"[\w./]+", word):
        return None
    name = word if word.endswith(".py") else f"{word.replace('.', '/')}.py"
    path = root / name.removeprefix(_SEEN_AT).lstrip("./")
    return path if path.is_file() else None


def _composed(words: Sequence[str], program: Path, root: Path) -> Any:
    """What ``hydra.main`` of the program hands it."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    folder, name = _decorated(program)
    overrides = [word for word in words if _WORD.match(word) or re.fullmatch(r"~[\w.@/]+", word)]
    for at, word in enumerate(words):
        option, sign, value = word.partition("=")
        value = value if sign else words[at + 1] if at + 1 < len(words) else ""
        if option in ("--config-path", "--config_path", "-cp"):
            below = value.removeprefix(_SEEN_AT)
            folder = str(root / below) if below != value else str(program.parent / value)
        elif option in ("--config-name", "--config_name", "-cn"):
            name = value.removesuffix(".yaml")
    try:
        with initialize_config_dir(str(Path(program.parent / folder).resolve()), version_base=None):
            return compose(name, overrides)
    except (HydraException, OmegaConfBaseException, ValueError, OSError) as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise NothingToRead(f"is refused by Hydra: {reason}") from None


def _decorated(program: Path) -> tuple[str, str]:
    """Folder and name of the configuration that ``@hydra.main`` names, by `ast`."""
    for each in ast.walk(ast.parse(program.read_text(encoding="utf-8"))):
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "hydra.main":
            named = {word.arg: ast.literal_eval(word.value) for word in each.keywords}
            return str(named.get("config_path")), str(named.get("config_name"))
    raise NothingToRead("starts a program without a configuration of Hydra's")


def _reading(config: Any, words: Sequence[str], program: Path) -> Reading:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    def value(*names: str) -> Any:
        """The first of some options that is stated; None where it is null or stays open."""
        for name in names:
            try:
                found = OmegaConf.select(config, name)
            except OmegaConfBaseException:
                continue
            if found is not None:
                return OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
        return None

    rolls_out = value("actor_rollout_ref.actor") is not None
    actor, model = ("actor_rollout_ref.actor", "actor_rollout_ref.model") if rolls_out else ("", "model")
    kind = str(value(f"{actor}.strategy" if rolls_out else "engine.strategy"))
    ranks = product_of(whole(value("trainer.nnodes")), whole(value("trainer.n_gpus_per_node")))
    if program.name == "sft_trainer.py":  # torchrun starts it.
        ranks = product_of(_torchrun(words, "nnodes"), _torchrun(words, "nproc_per_node"))
    part = (f"{actor}.megatron" if kind == "megatron" else f"{actor}.fsdp_config") if rolls_out else "engine"
    if rolls_out:
        # verl/trainer/ppo/ray_trainer.py:1352 (samples of a step), workers/config/actor.py (micro-batch).
        lengths = whole(value("data.max_prompt_length")), whole(value("data.max_response_length"))
        length = None if None in lengths else sum(each for each in lengths if each is not None)
        batch = product_of(whole(value(f"{actor}.ppo_mini_batch_size")), whole(value("actor_rollout_ref.rollout.n")))
        packed, mbs = value(f"{actor}.use_dynamic_bsz"), value(f"{actor}.ppo_micro_batch_size_per_gpu")
    else:
        length, batch = whole(value("data.max_length")), whole(value("data.train_batch_size"))
        packed, mbs = value("data.use_dynamic_bsz"), value("data.micro_batch_size_per_gpu")
    shared: dict[str, Value | None] = {
        "ranks": ranks,
        "sequence": length,
        "batch": batch,
        "mbs": None if packed else whole(mbs),
        "compute_bytes": _BYTES.get(str(value(f"{part}.dtype"))),
    }
    if kind == "megatron":
        return settled(shared | _megatron(value, part, model, ranks))
    if kind in ("fsdp", "fsdp2"):
        # verl/workers/config/actor.py:330: the older name comes first where it is more than 1.
        older = whole(value(f"{actor}.ulysses_sequence_parallel_size")) if rolls_out else 1
        cp = older if older and older > 1 else whole(value(f"{part}.ulysses_sequence_parallel_size"))
        return settled(shared | _fsdp(value, part, model, ranks, cp))
    raise NothingToRead(f"trains by {kind}")


def _torchrun(words: Sequence[str], name: str) -> int | None:
    for at, word in enumerate(words):
        option, sign, stated = word.lstrip("-").partition("=")
        if word.startswith("--") and option.replace("-", "_") == name:
            return whole(stated if sign else words[at + 1])
    return 1 if name == "nnodes" else None


def _megatron(value: Any, part: str, model: str, ranks: int | None) -> dict[str, Value | None]:
    """verl/trainer/config/engine/megatron.yaml, model/hf_model.yaml (``lora``)."""
    tp, pp, cp, ep = (
        whole(value(f"{part}.{name}_parallel_size"))
        for name in ("tensor_model", "pipeline_model", "context", "expert_model")
    )
    rank = whole(value(f"{model}.lora.rank")) or 0
    etp = whole(value(f"{part}.expert_tensor_parallel_size")) or tp
    if ranks is not None and any(
        (unit := product_of(*each)) and ranks % unit for each in ((tp, pp, cp), (ep, etp, pp))
    ):
        # Megatron-LM core/parallel_state.py, initialize_model_parallel: it starts with other ranks only.
        ranks = None
    return {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": ep,
        "ranks": ranks,
        "vpp": whole(value(f"{part}.virtual_pipeline_model_parallel_size")) or 1,
        "dp": quotient(ranks, tp, pp, cp),
        "recompute": str(value(f"{part}.override_transformer_config.recompute_granularity") or "none"),
        "sharded_optimizer": bool(value(f"{part}.use_distributed_optimizer")),
        "adapter_rank": rank,
        "adapter_targets": None
        if not rank or value(f"{model}.lora.exclude_modules")
        else targets(value(f"{model}.lora.target_modules")),
    }


def _fsdp(value: Any, part: str, model: str, ranks: int | None, cp: int | None) -> dict[str, Value | None]:
    """verl/trainer/config/engine/fsdp.yaml, model/hf_model.yaml; workers/engine/fsdp/transformer_impl.py."""
    size = whole(value(f"{part}.fsdp_size"))
    shards = None if size is None else ranks if ranks is None or size < 0 or size >= ranks else size
    rank = whole(value(f"{model}.lora_rank")) or 0
    excluded = value(f"{model}.exclude_modules")
    return {
        "tp": 1,
        "pp": 1,
        "cp": cp,
        "dp": quotient(ranks, cp),
        "recompute": "full" if value(f"{model}.enable_gradient_checkpointing") else "none",
        "zero": None if shards is None else 3 if shards > 1 else 0,
        "weight_bytes": None if rank else _BYTES.get(str(value(f"{part}.model_dtype"))),
        "adapter_rank": rank,
        "adapter_targets": None if not rank or excluded else targets(value(f"{model}.target_modules"), LINEAR),
    }
