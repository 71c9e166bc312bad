"""Random stages by the dry-run on fake tensors, by the analytical model, and through torch's allocator.

    python -m benchmarks.stage_agreement [--jobs 40] [--seed 0] [--frameworks megatron torchtitan mindformers mindspeed
                                         bridge-lora peft-lora sharded-lora frozen]

Each job is drawn from dense, GPT, MoE, latent and Mamba models of random sizes, with random degrees, recompute modes
and precision. Those named after LoRA train adapters of random rank beside random matrices, in the steps of
Megatron-Bridge, of peft, and of peft under FSDP; `frozen` has frozen layers, ends and routers. Of its first and its
last stage the peak is compared by either way, without runtime buffers. A table has a line a framework, with what
`dryrun.torch_stage.caching_allocator` takes of the card for the dry-run's requests, with and without expandable
segments. Stages more than 2 % apart are listed with the parts that differ and the tensors of the dry-run in those
parts, by the operator that made them; the exit code is then 1. Needs the extra ``torch``.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.accuracy_page import table
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.breakdown import StageBreakdown, stage_breakdown
from taylor.dryrun.interface import DryRun
from taylor.dryrun.torch_stage.requests import recorded_stage
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, NONE, SELECT, even_plan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register import frameworks
from taylor.register.adapters import (
    ALL_MEGATRON,
    DOWN,
    EMBEDDING,
    GATE,
    HEAD,
    JOINED_QKV,
    KEY,
    LATENTS,
    MEGATRON_TARGETS,
    MIXER_IN,
    MIXER_OUT,
    OUTPUT,
    QUERY,
    ROUTERS,
    UP,
    VALUE,
    Adapters,
)
from taylor.register.frameworks import EXPERT_ACTIVATION, LATENT_UP, NORMS
from taylor.register.frozen import with_frozen_layers
from taylor.register.layers import AttentionSpec, LayerSpec, MambaSpec, MlaSpec, MlpSpec, MoeSpec
from taylor.register.model import ModelSpec
from taylor.register.narrow_products import MXFP8, TENSORWISE

MIB = 2**20
AGREEMENT = 0.02
SHAPES = {
    "megatron": ("dense", "gpt", "moe", "latent", "hybrid"),
    "mindspeed": ("dense", "gpt", "moe", "latent", "hybrid"),
    "torchtitan": ("dense", "moe", "latent"),
    "mindformers": ("dense", "moe", "latent"),
    "bridge-lora": ("dense", "moe", "gpt", "latent", "hybrid"),
    "peft-lora": ("dense", "moe", "gpt", "latent", "hybrid"),
    "sharded-lora": ("dense", "moe", "latent"),
    "frozen": ("dense", "moe", "latent"),
}
"""Kinds of models by framework, as far as it has them."""
RULES = {
    "megatron": TrainingRules(framework=frameworks.MEGATRON, param_bytes=2, expert_tensor_parallel=False,
                              fused_norms=True, engine_layers=True),
    "mindspeed": TrainingRules(framework=frameworks.MEGATRON, param_bytes=2, expert_tensor_parallel=False,
                               fused_accumulation=False),
    "torchtitan": TrainingRules(framework=frameworks.TORCHTITAN, parameter_shard=True, gradient_shard=True,
                                expert_tensor_parallel=False),
    "mindformers": TrainingRules(framework=frameworks.MINDFORMERS, expert_tensor_parallel=False),
}  # fmt: skip
RULES |= {
    "bridge-lora": RULES["megatron"],
    "peft-lora": RULES["mindspeed"],
    "sharded-lora": RULES["torchtitan"],
    "frozen": RULES["megatron"],
}
LORA = ("bridge-lora", "peft-lora", "sharded-lora")
_APART = (QUERY, KEY, VALUE, LATENTS, OUTPUT, MIXER_IN, MIXER_OUT, GATE, UP, DOWN)
_TARGETS = {
    "bridge-lora": (ALL_MEGATRON, MEGATRON_TARGETS, (JOINED_QKV, LATENTS, OUTPUT), (JOINED_QKV,)),
    "peft-lora": (ALL_MEGATRON, MEGATRON_TARGETS, _APART, (QUERY, VALUE)),
    "sharded-lora": (_APART, (QUERY, VALUE), (LATENTS, OUTPUT, DOWN, GATE, UP)),
}


@dataclass(frozen=True)
class Compared:
    """One stage: its peak by the dry-run and by the analytical model, and what the allocator takes beside it, MiB.

    Parameters
    ----------
    categories, tensors : mapping to float
        The dry-run's peak by category, and by category and maker (`dryrun.torch_stage.requests.RecordedStage`).
    """

    name: str
    stage: int
    dry_mib: float
    closed: StageBreakdown
    categories: Mapping[str, float]
    tensors: Mapping[tuple[str, str], float]
    beside_mib: float
    beside_expandable_mib: float

    @property
    def closed_mib(self) -> float:
        """The analytical model's peak of tensors."""
        return self.closed.total - self.closed.overhead - self.closed.cached - self.closed.spare

    @property
    def error(self) -> float:
        """Of the analytical model against the dry-run."""
        return self.closed_mib / self.dry_mib - 1


def _model(draw: random.Random, shape: str) -> ModelSpec:
    head_dim = draw.choice((64, 128))
    heads = draw.choice((16, 32, 64))
    hidden = draw.choice((2048, 4096, 5120)) if heads > 16 else 2048
    groups = draw.choice((8, heads))
    vocab = draw.choice((32000, 128256, 151936))
    layers = draw.choice((8, 16))
    model = ModelSpec(shape, layers, hidden, heads, groups, head_dim, draw.choice((2, 3, 4)) * hidden, vocab)
    if shape == "dense":
        return model.replace(tied_embedding=draw.random() < 0.25)
    if shape == "gpt":
        return model.replace(n_kv_heads=heads, gated_mlp=False, tied_embedding=True, learned_positions=8192)
    experts = MoeSpec(64, draw.choice((2, 6, 8)), draw.choice((512, 1024, 1536)), n_shared=draw.choice((0, 1)))
    if shape == "hybrid":
        kinds = (
            LayerSpec("mamba", mamba=MambaSpec(2 * hidden, 2 * hidden // 64, 128, n_groups=8)),
            LayerSpec("moe", moe=experts),
            LayerSpec("mlp", mlp=MlpSpec(4 * hidden, gated=False)),
            LayerSpec("attn", AttentionSpec(heads, 8, head_dim)),
        )
        return model.replace(kinds=kinds, pattern=f"{layers // 4} x (1 mamba, 1 moe, 1 attn, 1 mlp)")
    moe = MoeSpec(
        experts.n_experts, experts.top_k, experts.expert_hidden, n_shared=experts.n_shared, first_dense=layers // 8
    )
    if shape == "moe":
        return model.replace(moe=moe)
    latent = MlaSpec(512, 64, 128, 128, q_lora_rank=draw.choice((None, 1536)))
    return model.replace(n_kv_heads=heads, head_dim=192, mla=latent, moe=moe, mtp_layers=draw.choice((0, 1)))


def _adapters(draw: random.Random, framework: str) -> Adapters:
    gathers, own = framework == "bridge-lora", draw.random()
    return Adapters(
        draw.choice((8, 16, 64)),
        draw.choice(_TARGETS[framework]),
        dropout=draw.random() < 0.3,
        base_bytes=0.5 + 4 / 64 if not gathers and own < 0.25 else None,
        gathers=gathers,
        shared_by_experts=gathers,
        beside_experts=gathers or own < 0.6,
        saved=draw.choice(((), (), (EMBEDDING, HEAD))) if framework == "peft-lora" else (),
    )


def _partly_frozen(draw: random.Random, model: ModelSpec, rules: TrainingRules) -> tuple[ModelSpec, TrainingRules]:
    """The job with frozen parts: layers in front or drawn one by one, ends, routers."""
    parts = tuple(part for part in (EMBEDDING, HEAD, ROUTERS) if draw.random() < 0.5)
    count = model.n_layers // 2
    trains = [place >= count for place in range(model.n_layers)]
    if draw.random() < 0.5:
        trains = [draw.random() < 0.5 for _ in range(model.n_layers - 1)] + [True]
    model = model.replace(mtp_layers=0)
    return with_frozen_layers(model, trains, below=EMBEDDING not in parts), rules.replace(frozen=parts)


def _rules(draw: random.Random, framework: str, shape: str) -> TrainingRules:
    rules = RULES[framework].replace(seq_length=draw.choice((2048, 4096, 8192)))
    if framework == "megatron":
        if draw.random() < 0.3:
            rules = rules.replace(narrow=draw.choice((TENSORWISE, MXFP8)))
        if draw.random() < 0.5:
            rules = rules.replace(selective=(NORMS, LATENT_UP, EXPERT_ACTIVATION))
    if framework in ("megatron", "mindspeed") and shape == "gpt":
        rules = rules.replace(dropout=draw.random() < 0.5, flash_attention=draw.random() < 0.5)
    if framework in LORA:
        rules = rules.replace(adapters=_adapters(draw, framework))
    return rules


def jobs(framework: str, count: int, seed: int) -> Iterator[tuple[str, DryRun]]:
    """Random jobs of one framework."""
    draw = random.Random(f"{seed} {framework}")
    for number in range(count):
        shape = SHAPES[framework][number % len(SHAPES[framework])]
        model, rules = _model(draw, shape), _rules(draw, framework, shape)
        if framework == "frozen":
            model, rules = _partly_frozen(draw, model, rules)
        if rules.framework is frameworks.TORCHTITAN:
            model = model.replace(mtp_layers=0)
        tp, cp, pp = draw.choice((1, 2, 4, 8)), draw.choice((1, 1, 2)), draw.choice((1, 2, 4))
        dp = draw.choice((8, 16))
        vpp = 2 if pp > 1 and model.n_layers % (2 * pp) == 0 and not model.mtp_layers and draw.random() < 0.3 else 1
        if rules.dropout or not rules.flash_attention:
            cp = 1
        strategy = Strategy(
            dp, tp, pp, ep=draw.choice((2, 8)) if model.n_moe else 1, op=dp * cp, cp=cp, sp=tp > 1, vpp=vpp,
            mbs=draw.choice((1, 1, 2)), micro_batches=draw.choice((1, 8)) if pp == 1 else 8,
        )  # fmt: skip
        mode = draw.choice((NONE, NONE, SELECT, FULL))
        if framework == "sharded-lora" and mode == SELECT:
            mode = FULL  # recompute by operator counts no adapters
        spec = ScheduleSpec() if vpp == 1 else ScheduleSpec(rules.framework.interleaved_schedule)
        plan = even_plan(model.layer_counts(), pp, vpp, recompute=mode)
        config = TrainingConfig(Path("job"), framework, model, strategy, rules, spec, None)
        narrow = f" {rules.narrow.name}" if rules.narrow else ""
        scores = "" if rules.flash_attention else " scores"
        if rules.adapters is not None:
            scores += f" r{rules.adapters.rank} {','.join(rules.adapters.targets)}"
            scores += " dropout" * rules.adapters.dropout + " four bits" * (rules.adapters.base_bytes is not None)
        scores += " frozen " + ",".join(rules.frozen) if framework == "frozen" else ""
        name = f"{number} {shape} {strategy.name} cp{cp} vpp{vpp} mbs{strategy.mbs} s{rules.seq_length} {mode}"
        yield f"{name}{narrow}{scores}", DryRun(config, strategy, plan)


def compared(name: str, run: DryRun) -> Iterator[Compared]:
    """The first and the last stage of a job."""
    config, strategy = run.config, run.strategy
    closed = stage_breakdown(config.model, strategy, config.rules, run.plan, config.schedule)
    for stage in sorted({0, strategy.pp - 1}):
        recorded = recorded_stage(run, stage)
        beside = [recorded.reserved_mib(expandable=way) - recorded.peak_mib for way in (False, True)]
        yield Compared(
            name, stage, recorded.peak_mib, closed[stage], recorded.at_peak_mib, recorded.tensors_mib, *beside
        )


def main() -> int:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frameworks", nargs="*", default=list(RULES), choices=list(RULES))
    parser.add_argument("--rows", action="store_true", help="print the parts of every stage")
    asked = parser.parse_args()
    found: dict[str, list[Compared]] = {framework: [] for framework in asked.frameworks}
    for framework, rows in found.items():
        for name, run in jobs(framework, asked.jobs, asked.seed):
            for one in compared(name, run):
                rows.append(one)
                if asked.rows or abs(one.error) > AGREEMENT:
                    print("\n".join(_explained(framework, one)), flush=True)
    print("\n".join(table(_HEAD, [_line(framework, rows) for framework, rows in found.items() if rows])))
    return int(any(abs(one.error) > AGREEMENT for rows in found.values() for one in rows))


_HEAD = (
    "framework", "stages", "median %", "largest %", f"above {100 * AGREEMENT:.0f} %",
    "allocator % (at most)", "with expandable segments %",
)  # fmt: skip


def _line(framework: str, rows: Sequence[Compared]) -> list[str]:
    errors = [100 * one.error for one in rows]
    shares = [
        [100 * beside / one.dry_mib for one, beside in zip(rows, extra, strict=True)]
        for extra in ([one.beside_mib for one in rows], [one.beside_expandable_mib for one in rows])
    ]
    return [
        framework, str(len(rows)), f"{median(map(abs, errors)):.2f}", f"{max(errors, key=abs):+.1f}",
        str(sum(abs(error) > 100 * AGREEMENT for error in errors)),
        *(f"+{median(share):.1f} (+{max(share):.1f})" for share in shares),
    ]  # fmt: skip


def _explained(framework: str, one: Compared) -> Iterator[str]:
    """A stage with its parts that differ, and the dry-run's tensors in them."""
    error = 100 * one.error
    yield f"{framework} {one.name}, stage {one.stage}: dry-run {one.dry_mib:,.0f} MiB, analytical {error:+.1f} %"
    closed = one.closed.categories()
    for part in dict.fromkeys([*closed, *one.categories]):
        dry, mib = one.categories.get(part, 0.0), closed.get(part, 0.0)
        if part in ("overhead", "cached") or abs(dry - mib) <= _SMALL_MIB:
            continue
        tensors = sorted(((size, maker) for (of, maker), size in one.tensors.items() if of == part), reverse=True)
        named = ", ".join(f"{maker} {size:,.0f}" for size, maker in tensors if size > _SMALL_MIB)
        yield f"    {part}: dry-run {dry:,.0f} MiB ({named}), analytical {mib:,.0f} for all plans"
    yield f"    of the analytical parts this plan never needs {one.closed.spare:,.0f} MiB"


_SMALL_MIB = 2.0
"""Differences and tensors that are not listed."""


if __name__ == "__main__":
    raise SystemExit(main())
