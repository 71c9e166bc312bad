"""Published measurements as cases that the cost model can be asked about.

The tables lie beside the project (``../shared/data/published``) and are not part of it. What a table
leaves out is filled in here, with where it comes from:

- Narayanan 2021 table 1: micro-batch sizes and interleaving from NVIDIA/Megatron-LM
  ``examples/sc21/run_table_1.sh``; step time from the paper's FLOP formula (eq. 3, recompute included).
- Korthikanti 2022: without its two techniques activations are recomputed in full, without sequence
  parallelism; the softmax is not fused with the GEMMs around it.
- MindFormers: widths and vocabularies that its files leave to the model's defaults.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping

import pandas as pd

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.time.work import model_flops
from taylor.pipeline.plan import FULL, SELECT
from taylor.register import frameworks
from taylor.register.model import ModelSpec
from taylor.register.registry import Registry

PUBLISHED = Path(__file__).resolve().parents[2] / "shared" / "data" / "published"

MEGATRON = TrainingRules(
    framework=frameworks.MEGATRON,
    seq_length=2048,
    parallel_optimizer=False,
    param_bytes=2,
    flash_attention=False,
    dropout=True,
    overlap_reduction=False,
)
"""Megatron-LM as the papers of 2021 and 2022 ran it: it reduced all gradients when the last backward was done."""

_NARAYANAN_MBS_VPP = {
    1.7: (16, 1), 3.6: (16, 1), 7.5: (16, 1), 18.4: (8, 1), 39.1: (4, 1),
    76.1: (2, 3), 145.6: (2, 2), 310.1: (1, 2), 529.6: (1, 3), 1008.0: (1, 1),
}  # fmt: skip

# (hidden, layers) -> (MLP width, KV heads) where the file names neither: the models' own config.json.
_WIDTHS = {(4096, 28): (13696, 2), (4096, 32): (11008, 32), (5120, 40): (13824, 40), (8192, 80): (28672, 8),
           (8192, 48): (22016, 8)}  # fmt: skip
_BAICHUAN_13B_WIDTH = 13696
_GLM_VOCAB = 65024
_910B3_PEAK = 313 / 376
"""Atlas 800T A2 carries the 910B3, the PoD the registered 910B2."""


@dataclass(frozen=True)
class Case:
    """One published step time.

    Parameters
    ----------
    recomputed : mapping of mode to share of layers
    peak_share : float
        The card's peak over the registered device's.
    """

    table: str
    name: str
    device: str
    model: ModelSpec
    strategy: Strategy
    rules: TrainingRules
    step_ms: float
    recomputed: Mapping[str, float] = field(default_factory=dict)
    peak_share: float = 1.0


def gpt(name: str, layers: int, hidden: int, heads: int, vocab: int = 51200) -> ModelSpec:
    """GPT-3's shape: biases, LayerNorm, learned positions, plain MLP of 4·hidden, tied head."""
    return ModelSpec(
        name, layers, hidden, heads, heads, hidden // heads, 4 * hidden, vocab, gated_mlp=False, tied_embedding=True,
        learned_positions=2048, norm_bias=True, attention_bias=True, output_bias=True, mlp_bias=True,
    )  # fmt: skip


def korthikanti() -> dict[str, Any]:
    """The tables of Korthikanti et al. 2022 as data."""
    data: dict[str, Any] = json.loads((PUBLISHED / "korthikanti2022.json").read_text())
    return data


def korthikanti_config(name: str) -> tuple[ModelSpec, Strategy]:
    """Model and strategy (without sequence parallelism) of one of the four models."""
    c = korthikanti()["configs"][name]
    model = gpt(name, c["layers"], c["hidden"], c["heads"], c["vocab"])
    dp = c["gpus"] // (c["tp"] * c["pp"])
    return model, Strategy(
        dp, c["tp"], c["pp"], sp=False, vpp=c["vpp"], mbs=c["mbs"], micro_batches=c["gbs"] // (dp * c["mbs"])
    )


def korthikanti_cases() -> list[Case]:
    """Table 5: iteration times with full recompute, and with sequence parallelism and selective recompute."""
    cases = []
    for name, times in korthikanti()["tab5_iteration_s"].items():
        model, strategy = korthikanti_config(name)
        for method, seconds in times.items():
            both = method == "seq+sel"
            cases.append(
                Case(
                    "Korthikanti 2022 table 5", f"{name} {method}", "a100-80g", model, strategy.replace(sp=both),
                    MEGATRON, 1e3 * seconds, {SELECT: 1.0} if both else {FULL: 1.0},
                )
            )  # fmt: skip
    return cases


def narayanan_cases() -> list[Case]:
    """Table 1: weak scaling from 1.7 B to 1 T, full recompute."""
    cases = []
    for row in pd.read_csv(PUBLISHED / "narayanan2021_table1.csv").itertuples():
        mbs, vpp = _NARAYANAN_MBS_VPP[float(str(row.params_B))]
        layers, hidden, heads, tp, pp, gpus, gbs = (
            int(str(v)) for v in (row.layers, row.hidden, row.heads, row.tp, row.pp, row.gpus, row.gbs)
        )
        s, vocab = 2048, 51200
        flops = 96 * gbs * s * layers * hidden**2 * (1 + s / (6 * hidden) + vocab / (16 * layers * hidden))
        dp = gpus // (tp * pp)
        strategy = Strategy(dp, tp, pp, sp=False, vpp=vpp, mbs=mbs, micro_batches=gbs // (dp * mbs))
        step = 1e3 * flops / (float(str(row.TFLOPs_gpu)) * 1e12 * gpus)
        cases.append(
            Case("Narayanan 2021 table 1", f"{row.params_B} B", "a100-80g", gpt("gpt", layers, hidden, heads), strategy,
                 MEGATRON, step, {FULL: 1.0})
        )  # fmt: skip
    return cases


def mindformers_cases() -> list[Case]:
    """Throughput tables of MindFormers' own documents, each joined with its configuration file."""
    cases = []
    for row in pd.read_csv(PUBLISHED / "mindformers_ascend_performance.csv").to_dict("records"):
        model = _mindformers_model(row)
        dp, tp, pp = int(row["dp"]), int(row["mp"]), int(row["pp"])
        mbs, m = int(row["bs"]), int(row["mb"]) if pp > 1 else 1
        # Interleaved copies are micro-batches that a rank runs beside each other.
        m *= int(row["mb_interleave"])
        strategy = Strategy(dp, tp, pp, op=dp if row["opt_shard"] else 1, sp=row["seq_par"] is True or
                            row["seq_par"] == "True", mbs=mbs, micro_batches=m)  # fmt: skip
        tokens = dp * mbs * m * int(row["seq"])
        rules = TrainingRules(
            seq_length=int(row["seq"]), parallel_optimizer=bool(row["opt_shard"]), dropout=model.learned_positions > 0
        )
        full, select = _share(row["recompute"], model), _share(row["select"], model)
        a2 = "800T" in str(row["device"])
        cases.append(
            Case(
                "MindFormers on Ascend 910B", f"{Path(row['yaml']).stem}{' (800T)' if a2 else ''}", "ascend-910b",
                model, strategy, rules, 1e3 * tokens / (row["tok_s_p"] * strategy.world_size),
                {FULL: full, SELECT: min(select, 1 - full)}, _910B3_PEAK if a2 else 1.0,
            )
        )  # fmt: skip
    return cases


def llama3_cases() -> list[Case]:
    """Training of LLaMA3-405B on H100 (Grattafiori et al. 2024, arXiv:2407.21783 table 4): speed a card.

    Speed is over the model's own FLOPs, attention counted causally. The paper runs interleaved
    without naming the number of chunks: 8, a layer each, as its memory figures suggest. Gradients are reduced
    asynchronously (§3.3.2); the exposed part is not stated, and all of it is counted here.
    """
    model, cases = Registry.load().model("llama3-405b"), []
    rows = ((1, 64, 32, 8192, 430), (1, 128, 16, 8192, 400), (16, 8, 16, 131072, 380))
    for cp, dp, micro_batches, seq, tflops in rows:
        strategy = Strategy(dp, 8, 16, cp=cp, op=dp * cp, vpp=8, micro_batches=micro_batches)
        rules = TrainingRules(
            framework=frameworks.MEGATRON, param_bytes=2, gradient_shard=True, seq_length=seq, overlap_reduction=False
        )
        flops = model_flops(model, seq, causal=True) * strategy.global_batch * seq
        step = flops / (tflops * strategy.world_size) / 1e9
        name = f"405B on {strategy.world_size}, s {seq}"
        cases.append(Case("LLaMA 3 2024 table 4", name, "h100-80g", model, strategy, rules, step))
    return cases


def all_cases() -> list[Case]:
    """Every published step time."""
    return [*korthikanti_cases(), *narayanan_cases(), *llama3_cases(), *mindformers_cases()]


def _mindformers_model(row: Mapping[Any, Any]) -> ModelSpec:
    hidden, layers = int(row["hidden"]), int(row["layers"])
    if "gpt2" in str(row["yaml"]):
        return gpt("gpt2", layers, hidden, int(row["heads"]), int(row["vocab"]))
    width, kv = _WIDTHS.get((hidden, layers), (0, 0))
    if "baichuan2_13b" in str(row["yaml"]):
        width = _BAICHUAN_13B_WIDTH
    heads = 32 if pd.isna(row["heads"]) else int(row["heads"])
    if not pd.isna(row["inter"]):
        width, kv = int(row["inter"]), heads
    if not pd.isna(row["kv"]):
        kv = int(row["kv"])
    vocab = _GLM_VOCAB if pd.isna(row["vocab"]) else int(row["vocab"])
    return ModelSpec(Path(str(row["yaml"])).stem, layers, hidden, heads, kv, hidden // heads, width, vocab)


def _share(value: Any, model: ModelSpec) -> float:
    """Fraction of layers that a recompute entry (a bool, or a list of counts a stage) names."""
    parsed = ast.literal_eval(str(value)) if isinstance(value, str) else value
    if isinstance(parsed, list):
        return min(1.0, sum(parsed) / model.n_layers)
    return 1.0 if parsed is True else 0.0
