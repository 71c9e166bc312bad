"""The performance launcher of Megatron-Bridge: the recipe that its options select, and the fields that they set.

Sources: NVIDIA-NeMo/Megatron-Bridge 067f987d scripts/performance/argument_parser.py (options),
utils/utils.py:67-88,461-624 (the recipe of a selection), utils/overrides.py:438-642 (``set_user_overrides``),
run_script.py:59-148 (their order), run_recipe.py:45-243 (``--use_recipes``); scripts/common/
benchmark_parallelism.py:67-145 (the batch of another number of ranks).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.parsers.bridge.recipes import Recipe, known_recipe, recipe_names

Values = dict[str, Any]


def options(words: Sequence[str], names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Options with their values, written with ``=`` or as the next word."""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names and equals:
            yield names[name], value
        elif word in names and at + 1 < len(words):
            yield names[word], words[at + 1]


_SELECTION = {
    "-mr": "stem", "--model_recipe_name": "stem", "--task": "task", "-g": "gpu", "--gpu": "gpu",
    "-c": "precision", "--compute_dtype": "precision", "-ng": "ranks", "--num_gpus": "ranks",
    "-cv": "variant", "--config_variant": "variant",
}  # fmt: skip
_USUAL_RANKS = {
    **{
        ("llama3_8b", gpu, precision): 8
        for gpu in ("b200", "gb200", "gb300", "h100")
        for precision in ("bf16", "fp8cs")
    },
    **{("llama3_8b", "gb300", precision): 8 for precision in ("fp8mx", "nvfp4")},
    **{("nemotronh_56b", gpu, "fp8cs"): 64 for gpu in ("b200", "gb300")},
    **{("qwen3_30b_a3b", gpu, precision): 8 for gpu in ("b200", "gb200", "gb300") for precision in ("bf16", "fp8cs")},
    **{("qwen3_30b_a3b", "h100", precision): 16 for precision in ("bf16", "fp8cs")},
}
"""Ranks of the recipe that stands for a pretraining by stem, GPU and precision where none has the job's number.

For all others the largest recipe does (utils/utils.py:67-88, ``_DEFAULT_GPU_COUNT_OVERRIDES``).
"""


@dataclass(frozen=True)
class Selection:
    """Selection of a recipe by the launcher's options.

    Parameters
    ----------
    stem, task, gpu, precision : str
        Parts of a recipe's name.
    ranks : str
        Devices, as the command writes them.
    variant : str
        Named variant; empty for the canonical recipe.
    library : bool
        ``--use_recipes``: the model's own recipe, not one that is tuned for a benchmark.
    """

    stem: str
    task: str = "pretrain"
    gpu: str = ""
    precision: str = "bf16"
    ranks: str = ""
    variant: str = ""
    library: bool = False

    @property
    def name(self) -> str:
        """Name of the recipe."""
        return f"{self.stem}_{self.task}_config" if self.library else self._name(self.ranks)

    def _name(self, ranks: str) -> str:
        return f"{self.stem}_{self.task}_{ranks}gpu_{self.gpu}_{self.precision.replace('_', '')}{self._suffix}_config"

    @property
    def _suffix(self) -> str:
        return "" if self.variant.lower() in ("", "v1", "v2") else f"_{self.variant.lower()}"

    def recipe(self) -> Recipe | None:
        """The recipe, else that of the same job on another number of devices; None where there is none."""
        recipe = known_recipe(self.name)
        if recipe is not None or self.library or not self.ranks.isdecimal():
            return recipe
        pattern = re.compile(re.escape(self._name("#")).replace(r"\#", r"(\d+)"))
        found = sorted(int(match[1]) for match in map(pattern.fullmatch, recipe_names()) if match)
        canonical = self.task == "pretrain" and not self._suffix
        usual = _USUAL_RANKS.get((self.stem, self.gpu, self.precision.replace("_", ""))) if canonical else None
        if usual not in found:
            usual = found[-1] if found else None
        return None if usual is None else known_recipe(self._name(str(usual)))


def selection(words: Sequence[str]) -> Selection | None:
    """The selection of a command; None where it names no recipe by parts."""
    given = dict(options(words, _SELECTION | {"--recipe": "whole"}))
    if "stem" not in given or "whole" in given:
        return None
    return Selection(**{**given, "stem": given["stem"].lower()}, library="--use_recipes" in words)


def _flag(text: str) -> bool:
    if text.lower() not in (*_ON, *_OFF):
        raise ValueError("write true or false")
    return text.lower() in _ON


def _number(text: str) -> int:
    if not re.fullmatch(r"-?\d{1,12}", text):
        raise ValueError("write a whole number")
    return int(text)


def _one_of(text: str, *words: str) -> str:
    if text not in words:
        raise ValueError(f"write {' or '.join(words)}")
    return text


def _numbered(field: str, **others: Any) -> Callable[[str], Values]:
    return lambda text: {field: _number(text), **others}


def _switch(fields: Values) -> Callable[[str], Values]:
    return lambda text: dict(fields) if _flag(text) else {}


def _tensor(text: str) -> Values:
    return {"model.tensor_model_parallel_size": _number(text), "model.sequence_parallel": _number(text) > 1}


def _dispatcher(text: str) -> Values:
    if _one_of(text, "deepep", "hybridep", "None") == "None":
        return {"model.moe_flex_dispatcher_backend": None, "model.moe_token_dispatcher_type": "alltoall"}
    return {
        "model.moe_flex_dispatcher_backend": text,
        "model.moe_token_dispatcher_type": "flex",
        "model.moe_shared_expert_overlap": False,
    }


def _capacity(text: str) -> Values:
    dropped = _flag(text)
    return {
        "model.moe_expert_capacity_factor": 1.0 if dropped else None,
        "model.moe_pad_expert_input_to_capacity": dropped,
        "model.moe_router_force_load_balancing": not dropped,
    }


def _offloaded(text: str) -> Values:
    count = _number(text)
    return {"model.cpu_offloading": True, "model.cpu_offloading_num_layers": count} if count > 0 else {}


_ON, _OFF = ("true", "1", "t", "yes", "y"), ("false", "0", "f", "no", "n")
_GRAPH_SCOPES = ("full_iteration", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba")
_SHARDED = {
    "ddp.use_megatron_fsdp": True,
    "ddp.data_parallel_sharding_strategy": "optim_grads_params",
    "ddp.keep_fp8_transpose_cache": False,
    "model.gradient_accumulation_fusion": True,
}
_OVERLAPPED = {
    "comm_overlap.overlap_moe_expert_parallel_comm": True,
    "comm_overlap.delay_wgrad_compute": True,
    "model.moe_shared_expert_overlap": False,
}
_DETERMINISTIC = {
    "model.deterministic_mode": True,
    "model.cross_entropy_loss_fusion": False,
    "comm_overlap.tp_comm_overlap": False,
}
_BOTH: dict[tuple[str, ...], Callable[[str], Values]] = {
    ("-gb", "--global_batch_size"): _numbered("train.global_batch_size"),
    ("-mb", "--micro_batch_size"): _numbered("train.micro_batch_size"),
    ("-sl", "--seq_length"): _numbered("model.seq_length"),
    ("-pp", "--pipeline_model_parallel_size"): _numbered("model.pipeline_model_parallel_size"),
    ("-cp", "--context_parallel_size"): _numbered("model.context_parallel_size"),
    ("-vp", "--virtual_pipeline_model_parallel_size"): _numbered("model.virtual_pipeline_model_parallel_size"),
    ("-ep", "--expert_model_parallel_size"): _numbered("model.expert_model_parallel_size"),
    ("-et", "--expert_tensor_parallel_size"): _numbered("model.expert_tensor_parallel_size"),
    ("--moe_flex_dispatcher_backend",): _dispatcher,
    ("--nccl_ub",): _switch({"ddp.nccl_ub": True}),
}
"""Options that both kinds of recipe follow."""
_FLAT: dict[tuple[str, ...], Callable[[str], Values]] = {
    ("-tp", "--tensor_model_parallel_size"): _tensor,
    ("--hidden_size",): _numbered("model.hidden_size"),
    ("--num_layers",): _numbered("model.num_layers"),
    ("--num_moe_experts",): _numbered("model.num_moe_experts"),
    ("--pipeline_model_parallel_layout",): lambda text: {"model.pipeline_model_parallel_layout": text},
    ("--use_megatron_fsdp",): _switch(_SHARDED),
    ("--cuda_graph_impl",): lambda text: {
        "model.cuda_graph_impl": _one_of(text, "none", "local", "transformer_engine")
    },
    ("--cuda_graph_scope",): lambda text: {
        "model.cuda_graph_scope": [_one_of(part, *_GRAPH_SCOPES) for part in text.split(",")]
    },
    ("--moe_a2a_overlap",): _switch(_OVERLAPPED),
    ("-rl", "--recompute_num_layers"): _numbered(
        "model.recompute_num_layers", **{"model.recompute_granularity": "full", "model.recompute_method": "block"}
    ),
    ("--recompute_modules",): lambda text: {
        "model.recompute_modules": text.split(","),
        "model.recompute_granularity": "selective",
    },
    ("-ol", "--activation_offload_layers"): _offloaded,
    ("--use_tokendrop",): _capacity,
}
"""Options that a flat performance recipe alone follows."""
_LIBRARY: dict[tuple[str, ...], Callable[[str], Values]] = {
    ("-tp", "--tensor_model_parallel_size"): _numbered("model.tensor_model_parallel_size")
}
_REFUSED = {"--first_k_dense_replace": "model.moe_layer_freq"}
SETTING = frozenset(name for each in (_BOTH, _FLAT) for names in each for name in names) | {
    *_REFUSED,
    "--deterministic",
}
"""Options that change the job."""
WITHOUT_EFFECT = frozenset(
    {
        "--domain", "-m", "--model_family_name", "--use_recipes", "-nh", "--nemo_home", "--detach", "--max_retries",
        "-d", "--dryrun", "-ms", "--max_steps", "--distributed_timeout_minutes", "--lr", "--min_lr", "--warmup_iters",
        "--pretrained_checkpoint", "--save_dir", "--load_dir", "--save_interval", "--most_recent_k", "--data",
        "--dataset_paths", "--dataset_root", "--index_mapping_dir", "--dataset_name", "--packed_sequence",
        "--head_only", "--diffusion_dataset_path", "--tokenizer_type", "--tokenizer_model", "--vocab_size", "-hf",
        "--hf_token", "--offline", "-a", "--account", "-p", "--partition", "-t", "--time_limit", "--preempt_time",
        "-i", "--container_image", "-cm", "--custom_mounts", "-ce", "--custom_env_vars", "--env", "-cs",
        "--custom_srun_args", "-cb", "--custom_bash_cmds", "--gres", "--additional_slurm_params", "--packager",
        "--enable_pct_binding", "--csp", "--optimizer_type", "-vb", "--enable_vboost", "-lgc", "--lock_gpu_freq",
        "-lmc", "--peak_mem_clk", "-en", "--enable_nsys", "--export_nsys_sqlite", "-pyp", "--pytorch_profiler",
        "--profiling_start_step", "--profiling_stop_step", "-mh", "--record_memory_history",
        "--profiling_gpu_metrics", "--profiling_ranks", "--nsys_trace", "--nsys_extra_args", "-wdk", "--wandb_key",
        "-wdp", "--wandb_project_name", "-wde", "--wandb_entity_name", "-wdj", "--wandb_experiment_name", "-wds",
        "--wandb_save_dir", "-l", "--log_dir", "-E", "--c4_root", "--c4_train_shards", "--save_config_filepath",
        "--list_config_variants", "--dump_env",
    }
)  # fmt: skip
"""Options of the launcher that change neither memory, time nor placement."""
KNOWN = SETTING | WITHOUT_EFFECT | {*_SELECTION, "-gn", "--gpus_per_node"}
"""Every option that is followed, or is known to change nothing."""


def spelled_out(words: Sequence[str]) -> list[str]:
    """A command with the launcher's long options written out: its parser takes the beginning of a name for the name."""
    found = []
    for word in words:
        name, equals, value = word.partition("=")
        if name.startswith("--") and name not in KNOWN:
            begun = [known for known in KNOWN if known.startswith(name)]
            name = begun[0] if len(begun) == 1 else name
        found.append(f"{name}{equals}{value}")
    return found


def fields_of(words: Sequence[str], chosen: Selection, recipe: Recipe, file: Path) -> Values:
    """Fields that the options of the launcher set.

    Raises
    ------
    InputError
        When the launcher refuses a value, or an option's effect is not stated by any text.
    """
    applied = {**_BOTH, **(_LIBRARY if chosen.library else _FLAT)}
    setters = {name: setter for names, setter in applied.items() for name in names}
    found: Values = {}
    for name, text in options(words, {name: name for name in (*setters, *_REFUSED)}):
        if name in _REFUSED:
            field = _REFUSED[name]
            cure = f"leave it out, or write {field}=VALUE and the sizes of a model of your own"
            raise InputError("changes which layers have experts", file=file, field=name, value=text, cure=cure)
        if text == "None" and name != "--moe_flex_dispatcher_backend":
            found |= dict.fromkeys(setters[name]("1"))
            continue
        try:
            found |= setters[name](text)
        except ValueError as cure:
            raise InputError("is refused by the launcher", file=file, field=name, value=text, cure=str(cure)) from None
    if "--deterministic" in words and not chosen.library:
        found |= _DETERMINISTIC
    if not chosen.library and chosen.precision == "bf16" and _is_adam(recipe):
        found["optimizer.use_precision_aware_optimizer"] = True
    return found


def is_benchmark(recipe: Recipe) -> bool:
    """Return whether a recipe is tuned for a number of devices, which its name states."""
    return recipe.source.startswith("perf_recipes/") and recipe.ranks is not None


def benchmark_defaults(recipe: Recipe, own: Mapping[str, Any]) -> Values:
    """Fields that scripts/training/run_recipe.py:377-394 sets in a benchmark's recipe where the command does not."""
    field = "optimizer.use_precision_aware_optimizer"
    wanted = is_benchmark(recipe) and "_bf16" in recipe.name and _is_adam(recipe) and field not in own
    return {field: True} if wanted else {}


def _is_adam(recipe: Recipe) -> bool:
    return recipe.options.get("optimizer.optimizer") in (None, "adam")


def scaled_batch(recipe: Recipe, fields: Mapping[str, Any], ranks: int, file: Path) -> int | None:
    """Samples a step with other data parallelism: as many of each rank of it; None where it is the recipe's own.

    Parameters
    ----------
    ranks : int
        Devices of the job.

    Raises
    ------
    InputError
        When that is no whole number of samples.
    """
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    own = base = 1
    for name in names:
        own *= int(fields.get(f"model.{name}") or 1)
        base *= int(recipe.options.get(f"model.{name}") or 1)
    batch, copies, before = recipe.options.get("train.global_batch_size"), ranks // own, (recipe.ranks or 0) // base
    if not isinstance(batch, int) or not before or copies == before:
        return None
    scaled, rest = divmod(batch * copies, before)
    if rest or not scaled:
        problem = f"leaves no whole batch: {recipe.name} has {batch} samples for data parallel {before}"
        cure = "state the samples of a step (-gb)"
        raise InputError(problem, file=file, field="data parallel", value=copies, cure=cure)
    return scaled
