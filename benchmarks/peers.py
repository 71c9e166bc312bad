"""Other tools on the same measured runs: Megatron-LM's memory formula, Calculon and llm-analysis from copies of them.

``python -m benchmarks.fidelity FOLDER --calculon PATH --llm_analysis PATH`` prints them. Both tools run in a program of
their own, with PATH as its first folder of modules; nothing of them is part of this project. Both know GPT's layers
alone: dense, one key/value head a head, no context parallelism.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
from scipy.stats import kendalltau

from benchmarks.measured_runs import MeasuredRun
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, SELECT
from taylor.register.device import DeviceSpec
from taylor.register.frameworks import MEGATRON
from taylor.register.layers import AttentionSpec, LayerSpec
from taylor.register.model import ModelSpec

MIB = 2**20


def megatron_memory_mib(config: TrainingConfig) -> float:
    """Peak of the first stage by the formula that Megatron-LM reports before it trains, MiB.

    Megatron-LM d98e8a64 megatron/training/theoretical_memory_usage.py:12-249 (weights and optimizer, of the stage that
    holds the embedding), 252-329 (activations with sequence parallelism and selective recompute), 332-404 (all others).
    """
    model, strategy = config.model, config.strategy
    hidden, width, gates = model.hidden, model.ffn_hidden, 1.5 if model.gated_mlp else 1.0
    norm = 1 + model.norm_bias
    attention = 2 * hidden * model.n_heads * model.head_dim * (1 + model.n_kv_heads / model.n_heads)
    split = attention * model.n_layers + 2 * hidden * width * gates * model.n_dense
    whole = 2 * hidden * norm * model.n_layers + norm * hidden
    experts, expert_ways = 0.0, 1.0
    if model.moe is not None:
        moe = model.moe
        split += 2 * hidden * moe.shared_width * gates * model.n_moe
        whole += hidden * moe.n_experts * model.n_moe
        experts = 2 * hidden * moe.expert_hidden * moe.n_experts * gates * model.n_moe
        expert_ways = strategy.ep * config.rules.experts_over(strategy.tp)
    ends = 2 if strategy.pp == 1 and not model.tied_embedding else 1
    split = split / strategy.pp + ends * hidden * model.vocab
    replicas = strategy.dp * strategy.cp

    def state_bytes(ways: float) -> float:
        return 6 + 12 / ways if config.rules.parallel_optimizer else 18

    states = (split / strategy.tp + whole / strategy.pp) * state_bytes(replicas)
    expert_replicas = max(strategy.world_size / (strategy.pp * expert_ways), 1)
    states += experts / strategy.pp / expert_ways * state_bytes(expert_replicas)
    return (states + _megatron_activation_bytes(config)) / MIB


def _megatron_activation_bytes(config: TrainingConfig) -> float:
    model, strategy = config.model, config.strategy
    tokens, tp, pp = config.rules.seq_length * strategy.mbs, strategy.tp, strategy.pp
    selective = strategy.sp and _recompute(config) == SELECT
    layer = 18 + 4 * model.ffn_hidden / model.hidden if selective else 10 + 24 / tp
    total: float = tokens * model.hidden * layer * model.n_layers + (8 + model.hidden) * tokens * pp
    if strategy.vpp > 1:
        total *= 1 + (pp - 1) / (pp * strategy.vpp)
    elif pp > 1:
        total *= min(1, strategy.micro_batches / pp)
    if selective:
        head = 4 * tokens * (model.hidden + model.vocab) if pp == 1 else 0
        return (total + head) / tp
    head_bytes: float = 2 * tokens * (model.vocab / tp + model.hidden) if pp == 1 else 0
    return 1.05 * (total + head_bytes)


def _recompute(config: TrainingConfig) -> str | None:
    """Recompute of most layers: `FULL`, `SELECT` or None."""
    plan = config.plan
    if plan is None:
        return None
    counts = {mode: sum(map(sum, plan.recompute.get(mode, ()))) for mode in (FULL, SELECT)}
    mode = max(counts, key=lambda each: counts[each])
    return mode if 2 * counts[mode] > config.model.n_layers else None


MEGATRON_MFU = 0.47
"""Model FLOPs utilization by which Megatron's FLOPs become a step: its README's for H100 (d98e8a64 README.md:95)."""


def megatron_flops(model: ModelSpec, seq_length: int) -> float | None:
    """Forward and backward FLOPs a token as Megatron-LM counts them; None for layers that it has no formula for here.

    Megatron-LM d98e8a64 megatron/training/training.py:802, ``num_floating_point_operations``: causal attention as half
    of the scores whatever its window, and three times the forward.
    """
    heads = 2.0 * model.hidden * model.vocab * (1 + model.mtp_layers)
    total = heads + 2.0 * model.mtp_layers * 2 * model.hidden**2
    for kind, count in model.kind_counts.items():
        for layer in model.layers_of(kind):
            flops = _megatron_layer_flops(model, layer, seq_length)
            if flops is None:
                return None
            total += count * flops
    return 3 * total


def _megatron_layer_flops(model: ModelSpec, layer: LayerSpec, seq_length: int) -> float | None:
    """Forward FLOPs a token of one layer."""
    hidden, total = model.hidden, 0.0
    if layer.linear is not None or (layer.attention is not None and layer.attention.compression):
        return None
    if layer.attention is not None:
        total += _megatron_attention_flops(hidden, layer.attention, seq_length)
    if layer.mamba is not None:
        mamba = layer.mamba
        total += 2 * hidden * (2 * mamba.inner + 2 * mamba.n_groups * mamba.state + mamba.n_heads)
        total += 7 * mamba.inner * mamba.state + 2 * mamba.inner * hidden
    if layer.mlp is not None:
        total += 2 * (3 if layer.mlp.gated else 2) * hidden * layer.mlp.width
    if layer.moe is not None:
        moe, gates = layer.moe, 3 if layer.moe.gated else 2
        total += 2 * gates * moe.top_k * (moe.latent or hidden) * moe.expert_hidden
        total += 4 * hidden * (moe.latent or 0) + 2 * gates * hidden * moe.shared_width
    return total


def _megatron_attention_flops(hidden: int, attention: AttentionSpec, seq_length: int) -> float:
    """Forward FLOPs a token of attention with one width, or of latent attention."""
    heads, latent = attention.n_heads, attention.latent
    if latent is None:
        queries, keys = heads * attention.head_dim, attention.n_kv_heads * attention.head_dim
        return 2.0 * (hidden * (queries + 2 * keys) + queries * hidden) + 2.0 * queries * seq_length
    width, rank = latent.qk_nope_head_dim + latent.qk_rope_head_dim, latent.kv_lora_rank
    query = latent.q_lora_rank * (hidden + heads * width) if latent.q_lora_rank else hidden * heads * width
    keys = rank * (hidden + heads * (latent.qk_nope_head_dim + latent.v_head_dim)) + hidden * latent.qk_rope_head_dim
    values = heads * latent.v_head_dim
    return 2.0 * (query + keys + values * hidden) + seq_length * (heads * width + values)


def megatron_step_ms(model: ModelSpec, strategy: Strategy, rules: TrainingRules, device: DeviceSpec) -> float | None:
    """Step by Megatron-LM's FLOPs at `MEGATRON_MFU` of the device's peak in the job's precision, ms; None without."""
    flops = megatron_flops(model, rules.seq_length)
    precision = device.peak_precision(rules.gemm_precision)
    if flops is None or precision is None:
        return None
    tokens = strategy.global_batch * rules.seq_length / strategy.world_size
    return flops * tokens / (device.peak(precision) * 1e12 * MEGATRON_MFU) * 1e3


def is_gpt(config: TrainingConfig) -> bool:
    """Return whether Calculon and llm-analysis can state the job."""
    model = config.model
    alike = model.moe is None and not model.pattern and model.mla is None and not model.mtp_layers
    return alike and model.n_kv_heads == model.n_heads and config.strategy.cp == 1


def _calculon_case(config: TrainingConfig, device: str) -> dict[str, Any]:
    """Application, execution and system in Calculon's words."""
    model, strategy, recompute = config.model, config.strategy, _recompute(config)
    # Its MLP has two matrices; a gated one has three.
    feedforward = round(model.ffn_hidden * (1.5 if model.gated_mlp else 1))
    return {
        "system": {"a100-80g": "a100_80g", "h100-80g": "h100_80g_nvl8"}[device],
        "application": {
            "hidden": model.hidden, "feedforward": feedforward, "seq_size": config.rules.seq_length,
            "attn_heads": model.n_heads, "attn_size": model.head_dim, "num_blocks": model.n_layers,
        },
        "execution": {
            "num_procs": strategy.world_size, "tensor_par": strategy.tp, "pipeline_par": strategy.pp,
            "data_par": strategy.dp, "tensor_par_net": 0,
            "pipeline_par_net": int(strategy.tp * strategy.pp > 8), "data_par_net": int(strategy.world_size > 8),
            "batch_size": strategy.global_batch, "microbatch_size": strategy.mbs, "datatype": "float16",
            "fused_activation": True, "attention_type": "multihead",
            "activation_recompute": {FULL: "full", SELECT: "attn_only", None: "none"}[recompute],
            "pipeline_interleaving": strategy.vpp,
            "optimizer_sharding": config.rules.parallel_optimizer and strategy.dp > 1,
            "tensor_par_comm_type": "rs_ag" if strategy.sp else "ar",
            "tensor_par_overlap": "ring" if config.rules.overlap_tensor and strategy.tp > 1 else "none",
            "seq_par_ag_redo": bool(strategy.sp and recompute != FULL), "data_par_overlap": strategy.dp > 1,
            "weight_offload": False, "activations_offload": False, "optimizer_offload": False, "training": True,
        },
    }  # fmt: skip


_CALCULON = """
import json, logging, sys
from pathlib import Path
import calculon
from calculon.llm import Llm
from calculon.system import System
from calculon.io import read_json_file
folder, predicted = Path(sys.argv[1]) / "systems", []
for case in json.load(sys.stdin):
    try:
        model = Llm(Llm.Application(case["application"]), logging.getLogger("calculon"))
        system = read_json_file(str(folder / (case["system"] + ".json")))
        # It keeps attention's scores and refuses jobs that ran without them: its time alone is asked.
        system["mem1"]["GiB"] = 10**6
        system = System(system)
        model.compile(system, Llm.Execution.from_json(case["execution"]))
        model.run(system)
        predicted.append(1e3 * model.get_total_time())
    except (AssertionError, Llm.Error) as error:
        predicted.append(str(error) or type(error).__name__)
json.dump(predicted, sys.stdout)
"""


def _llm_analysis_case(config: TrainingConfig, device: str) -> dict[str, Any]:
    """A job in llm-analysis's words."""
    model, strategy, recompute = config.model, config.strategy, _recompute(config)
    return {
        "gpu": {"a100-80g": "a100-sxm-80gb", "h100-80g": "h100-sxm-80gb"}[device],
        "model": {
            "name": model.name or "model", "num_layers": model.n_layers, "n_head": model.n_heads,
            "hidden_dim": model.hidden, "vocab_size": model.vocab, "max_seq_len": config.rules.seq_length,
            "num_key_value_heads": model.n_kv_heads, "ffn_embed_dim": model.ffn_hidden,
            "mlp_gated_linear_units": model.gated_mlp,
        },
        "parallelism": {"tp_size": strategy.tp, "pp_size": strategy.pp, "dp_size": strategy.dp},
        "training": {
            "batch_size_per_gpu": strategy.mbs, "gradient_accumulation_steps": strategy.micro_batches,
            "global_batch_size": strategy.global_batch, "seq_len": config.rules.seq_length,
            "total_num_tokens": strategy.global_batch * config.rules.seq_length,
            "flash_attn": config.rules.flash_attention,
        },
        "recompute": {FULL: "FULL", SELECT: "ATTN_COMPUTE", None: "NONE"}[recompute],
        "zero": "STAGE_1" if config.rules.parallel_optimizer and strategy.dp > 1 else "NONE",
    }  # fmt: skip


_LLM_ANALYSIS = """
import json, logging, sys
from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
from llm_analysis.config import (
    ModelConfig, ParallelismConfig, get_dtype_config_by_name, get_gpu_config_by_name
)
logging.disable(logging.CRITICAL)
out, sys.stdout, predicted = sys.stdout, sys.stderr, []
for case in json.load(sys.stdin):
    try:
        analysis = LLMAnalysis(
            ModelConfig(**case["model"]), get_gpu_config_by_name(case["gpu"]),
            get_dtype_config_by_name("w16a16e16"), ParallelismConfig(**case["parallelism"]),
        )
        found = analysis.training(
            **case["training"], activation_recomputation=ActivationRecomputation[case["recompute"]],
            ds_zero=DSZeRO[case["zero"]],
        )
        predicted.append(1e3 * found["latency_per_iter"])
    except (AssertionError, ValueError, KeyError, TypeError) as error:
        predicted.append(str(error) or type(error).__name__)
json.dump(predicted, out)
"""


@dataclass(frozen=True)
class Peer:
    """A tool that runs from a copy of it."""

    name: str
    program: str
    case: Callable[[TrainingConfig, str], dict[str, Any]]

    def steps_ms(self, folder: Path, runs: Sequence[tuple[TrainingConfig, str]]) -> list[float | str]:
        """Step of every run, ms, or why it has none.

        Raises
        ------
        ValueError
            When the copy does not run.
        """
        cases = [self.case(config, device) for config, device in runs]
        paths = [str(folder.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            [sys.executable, "-c", self.program, str(folder.resolve())],
            input=json.dumps(cases), capture_output=True, text=True, timeout=600,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise ValueError(f"{folder}: this copy of {self.name} does not run: {last}; give the folder of its sources")
        return [predicted if isinstance(predicted, str) else float(predicted) for predicted in json.loads(done.stdout)]


CALCULON = Peer("Calculon", _CALCULON, _calculon_case)
LLM_ANALYSIS = Peer("llm-analysis", _LLM_ANALYSIS, _llm_analysis_case)
DEVICES = ("a100-80g", "h100-80g")


@dataclass(frozen=True)
class Beside:
    """One measured figure, what this project tells of it and what a peer does."""

    group: str
    file: str
    measured: float
    predicted: float
    peer: float


def memory_beside(runs: Iterable[MeasuredRun]) -> list[Beside]:
    """Measured peaks under Megatron-LM, this project's and its own formula's, MiB."""
    return [
        Beside(run.group, run.file, run.measured_mib, run.allocated_mib, megatron_memory_mib(run.config))
        for run in runs
        if run.measured_mib is not None and run.config is not None and run.config.rules.framework == MEGATRON
    ]


def steps_beside(runs: Iterable[MeasuredRun], peer: Peer, folder: Path) -> tuple[list[Beside], Mapping[str, str]]:
    """Measured steps of GPT jobs, ms, and why a peer has none of a file."""
    mine = [
        (run, run.config)
        for run in runs
        if run.measured_ms is not None and run.config is not None and run.device in DEVICES and is_gpt(run.config)
    ]
    predicted = peer.steps_ms(folder, [(config, run.device) for run, config in mine])
    rows = [
        Beside(run.group, run.file, run.measured_ms or math.nan, run.predicted_ms or math.nan, found)
        for (run, _), found in zip(mine, predicted, strict=True)
        if not isinstance(found, str)
    ]
    return rows, {run.file: found for (run, _), found in zip(mine, predicted, strict=True) if isinstance(found, str)}


def summary(rows: Sequence[Beside], peer: str) -> pd.DataFrame:
    """One line a set and one for all: median and largest error of both in %, raw and after one scale a set, Kendall."""
    figures: dict[str, Callable[[Beside], float]] = {"Taylor": lambda row: row.predicted, peer: lambda row: row.peer}
    lines = []
    for name in [*dict.fromkeys(row.group for row in rows), "all"]:
        mine = [row for row in rows if name in (row.group, "all")]
        line: dict[str, Any] = {"set": name, "rows": len(mine)}
        for who, figure in figures.items():
            scales = {
                group: median(row.measured / figure(row) for row in rows if row.group == group)
                for group in {row.group for row in mine}
            }
            errors = [abs(figure(row) / row.measured - 1) for row in mine]
            scaled = [abs(figure(row) * scales[row.group] / row.measured - 1) for row in mine]
            line[f"{who}: median %"] = 100 * median(errors)
            line[f"{who}: largest %"] = 100 * max(errors)
            line[f"{who}: scaled %"] = 100 * median(scaled)
            if name != "all" and len(mine) > 2:
                tau = kendalltau([figure(row) for row in mine], [row.measured for row in mine]).statistic
                line[f"{who}: Kendall"] = float(tau)
        lines.append(line)
    return pd.DataFrame(lines)
