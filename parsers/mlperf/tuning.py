"""Variables of MLPerf's fine-tuning benchmark, ``llama2_70b_lora``, as Megatron's flags and low-rank adapters.

Its harnesses share the variables' names; the YAML beside a script has their defaults. NVIDIA's of 2025 trains with
NeMo 2, the earlier one and AMD's with NeMo 1. Lines are those of mlcommons/training_results_v5.1 441d65f4:
NVIDIA/benchmarks/llama2_70b_lora/implementations/nemo (train.py:315-440, conf/megatron_gpt_peft_tuning_config.yaml),
Krai/…/Cray-XD670-H200-SXM5-141GB_nX_v5.0/conf and AMD/…/MI355X_EPYC_9575F_pytorch_llama2_70b/src/conf.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from taylor.base.errors import InputError
from taylor.parsers.megatron.section_adapters import section_adapters
from taylor.parsers.mlperf.variables import NOTHING, Stated, Variables, graph_flags, narrow_flags, stated_flags
from taylor.register.adapters import Adapters

MODEL = "llama2-70b"
"""Llama2Config70B (train.py:326; NeMo 1: the checkpoint's model_config.yaml)."""
DEFAULTS = {
    "DGXNGPU": "8", "DGXNNODES": "1", "TP": "1", "PP": "1", "CP": "1", "MBS": "1", "MINIBS": "1", "SP": "False",
    "MAX_SEQLEN": "8192", "FP8": "True", "FP8_HYBRID": "True", "FP8_RECIPE": "delayed", "FP4": "False",
    "FP4_RECIPE": "nvfp4", "CP_COMM_TYPE": "a2a", "CUDA_GRAPH_SCOPE": "full_iteration", "CPU_OFFLOADING": "False",
    "CPU_OFFLOADING_NUM_LAYERS": "20", "USE_DISTRIBUTED_OPTIMIZER": "True",
}  # fmt: skip
"""Defaults of NVIDIA's YAML (lines 12-105) where none lies beside the script."""
AMD_DEFAULTS = {**DEFAULTS, "FP8": "False", "CP_COMM_TYPE": ""}
"""The same of AMD's, which has no variable for the algorithm of context parallelism."""
FIXED = {
    "FP8_HYBRID": "True", "FP8_RECIPE": "delayed", "FP4_RECIPE": "nvfp4", "USE_DISTRIBUTED_OPTIMIZER": "True",
}  # fmt: skip
"""Values that every harness has where its YAML names no variable: the two of NeMo 1 know no other recipe of FP8."""
YAML = "megatron_gpt_peft_tuning_config.yaml"
_SWITCHES = {
    "TP_COMM_OVERLAP": "tp-comm-overlap",
    "DDP_OVERLAP_GRAD_REDUCE": "overlap-grad-reduce",
    "DDP_OVERLAP_PARAM_GATHER": "overlap-param-gather",
    "OVERLAP_PARAM_GATHER_WITH_OPTIMIZER_STEP": "overlap-param-gather-with-optimizer-step",
    "FIRST_LAST_LAYERS_BF16": "first-last-layers-bf16",
}
_VALUES = {
    "RECOMPUTE_GRANULARITY": "recompute-granularity",
    "RECOMPUTE_METHOD": "recompute-method",
    "RECOMPUTE_NUM_LAYERS": "recompute-num-layers",
    "RECOMPUTE_MODULES": "recompute-modules",
    "ACG": "recompute-granularity",
    "ACM": "recompute-method",
    "ACL": "recompute-num-layers",
    "NUM_LAYERS_AT_START_IN_BF16": "num-layers-at-start-in-bf16",
    "NUM_LAYERS_AT_END_IN_BF16": "num-layers-at-end-in-bf16",
}
_OPTIMIZER = re.compile(r"^\s*name:\s*(\S*(?:mcore_distributed_optim|fused_adam)\S*)", re.M)
_AMD = re.compile(r"mi3\d\dx", re.I)
_TARGETS = ["linear_proj", "linear_qkv"]


def is_tuning(file: Path, stated: Mapping[str, str]) -> bool:
    """Return whether a configuration is of this benchmark, by its folders or by a variable that only it has."""
    words = "/".join(file.absolute().parts[-6:]).lower()
    return "lora" in words or any(name.startswith("LORA_") for name in stated)


def tuning_defaults(file: Path, harness: str, found: Mapping[str, str], stated: Mapping[str, str]) -> dict[str, str]:
    """Defaults of the harness: those of its YAML; where none is there, of round 5.1, by the maker of the device."""
    if harness:
        return {**FIXED, **found}
    return AMD_DEFAULTS if _is_amd(file, stated) else DEFAULTS


def tuning_flags(values: Variables, harness: str) -> Iterator[Stated]:
    """Flags of the job.

    The global batch is MINIBS times the replicas (YAML, ``global_batch_size``); what trains is reduced in bf16
    (train.py:435). The frozen weights are stored in the type of the GEMMs: of FP8 by ``te.fp8_model_init``
    (custom_llama.py:88-99; NeMo 1: ``fp8_params``), of FP4 where PRE_QUANTIZED_MODEL replaces them
    (custom_callbacks.py:107-137).
    """
    tp, pp, cp = (values.number(name, 1) for name in ("TP", "PP", "CP"))
    each, nodes = values.number("DGXNGPU", 8), values.number("DGXNNODES", 1)
    yield "nproc-per-node", "DGXNGPU", (str(each),)
    yield "nnodes", "DGXNNODES", (str(nodes),)
    yield "tensor-model-parallel-size", "TP", (str(tp),)
    yield "pipeline-model-parallel-size", "PP", (str(pp),)
    yield "context-parallel-size", "CP", (str(cp),)
    if values.text("VP", "1").lower() not in (*NOTHING, "1"):
        yield "num-virtual-stages-per-pipeline-rank", "VP", (values.text("VP"),)
    yield "micro-batch-size", "MBS", (str(values.number("MBS", 1)),)
    yield "global-batch-size", "MINIBS", (str(values.number("MINIBS", 1) * (each * nodes // (tp * pp) // cp)),)
    if values.on("SP") and tp > 1:
        yield "sequence-parallel", "SP", ()
    if cp > 1 and (kind := values.text("CP_COMM_TYPE")):
        yield "cp-comm-type", "CP_COMM_TYPE", (kind,)
    if values.on("USE_DISTRIBUTED_OPTIMIZER") and _shards_states(values, harness, nodes):
        yield "use-distributed-optimizer", "USE_DISTRIBUTED_OPTIMIZER", ()
    if values.on("CPU_OFFLOADING"):
        yield "cpu-offloading-num-layers", "CPU_OFFLOADING_NUM_LAYERS", (values.text("CPU_OFFLOADING_NUM_LAYERS"),)
    yield from stated_flags(values, _SWITCHES, _VALUES)
    yield from graph_flags(values, values.text("CUDA_GRAPH_SCOPE", "full"))
    yield from narrow_flags(values)
    if values.on("FP4") and values.on("PRE_QUANTIZED_MODEL"):
        yield "fp4-param-gather", "PRE_QUANTIZED_MODEL", ()
    elif values.on("FP8") and not values.on("FP4"):
        yield "fp8-param-gather", "FP8", ()


def _shards_states(values: Variables, harness: str, nodes: int) -> bool:
    """Return whether NeMo 1's ``optim.name`` is Megatron's distributed optimizer; AMD's is on several nodes alone."""
    match = _OPTIMIZER.search(harness)
    if match is None:
        return nodes > 1 or bool(harness) or not _is_amd(values.file, values.stated)
    return "mcore_distributed_optim" in match[1] and (nodes > 1 or "fused_adam" not in match[1])


def tuning_adapters(values: Variables) -> Adapters:
    """Adapters beside queries, keys and values and the attention's output, with a dropout (train.py:315-324).

    NeMo 1's YAML has its rank and dropout as variables (``lora_tuning``, target ``attention``).

    Raises
    ------
    InputError
        When the rank or the dropout is no number.
    """
    dropout = values.text("LORA_DROPOUT", "0.1")
    try:
        rate = float(dropout)
    except ValueError:
        problem, cure = "must be a number from 0 to 1", "export it as 0.1"
        raise InputError(problem, file=values.file, field="LORA_DROPOUT", value=dropout[:40], cure=cure) from None
    section = {"dim": values.number("LORA_DIM", 16), "target_modules": _TARGETS, "dropout": rate}
    return section_adapters(section, values.file, "LORA")


def transposes_again(file: Path, harness: str, stated: Mapping[str, str]) -> bool:
    """Return whether weights in FP8 keep no transposed copy: ``disable_parameter_transpose_cache`` of NeMo 1's YAML."""
    if harness:
        return re.search(r"^\s*disable_parameter_transpose_cache:\s*[Tt]rue\b", harness, re.M) is not None
    return _is_amd(file, stated)


def _is_amd(file: Path, stated: Mapping[str, str]) -> bool:
    words = "/".join((*file.absolute().parts[-3:], stated.get("MLPERF_SUBMISSION_PLATFORM", "")))
    return _AMD.search(words) is not None or "NVTE_USE_HIPBLASLT" in stated
