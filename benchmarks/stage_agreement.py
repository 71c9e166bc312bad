"""Random stages by the dry-run on fake tensors, by the analytical model, and through torch's allocator.

    python -m benchmarks.stage_agreement [--jobs 40] [--seed 0] [--frameworks megatron torchtitan mindformers mindspeed]

Each job is drawn from dense, GPT, MoE, latent and Mamba models of random sizes, with random degrees, recompute modes
and precision. Of its first and its last stage the table has the peak by either way, without runtime buffers, and what
`dryrun.torch_stage.caching_allocator` takes of the card for the dry-run's requests, with and without expandable
segments. Needs the extra ``torch``. The exit code is 1 where the two peaks of a stage are more than 2 % apart.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from taylor.cost_model.memory import StageBreakdown, stage_breakdown
from taylor.cost_model.strategy import Strategy, TrainingRules
from taylor.dryrun.interface import DryRun
from taylor.dryrun.torch_stage.requests import recorded_stage
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, NONE, SELECT, even_plan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register import frameworks
from taylor.register.frameworks import EXPERT_ACTIVATION, LATENT_UP, NORMS
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


@dataclass(frozen=True)
class Compared:
    """One stage: its peak by the dry-run and by the analytical model, and what the allocator takes beside it, MiB."""

    name: str
    stage: int
    dry_mib: float
    closed: StageBreakdown
    categories: dict[str, float]
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


def _rules(draw: random.Random, framework: str, shape: str) -> TrainingRules:
    rules = RULES[framework].replace(seq_length=draw.choice((2048, 4096, 8192)))
    if framework == "megatron":
        if draw.random() < 0.3:
            rules = rules.replace(narrow=draw.choice((TENSORWISE, MXFP8)))
        if draw.random() < 0.5:
            rules = rules.replace(selective=(NORMS, LATENT_UP, EXPERT_ACTIVATION))
    if framework in ("megatron", "mindspeed") and shape == "gpt":
        rules = rules.replace(dropout=draw.random() < 0.5, flash_attention=draw.random() < 0.5)
    return rules


def jobs(framework: str, count: int, seed: int) -> Iterator[tuple[str, DryRun]]:
    """Random jobs of one framework."""
    draw = random.Random(f"{seed} {framework}")
    for number in range(count):
        shape = SHAPES[framework][number % len(SHAPES[framework])]
        model, rules = _model(draw, shape), _rules(draw, framework, shape)
        if framework == "torchtitan":
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
        spec = ScheduleSpec() if vpp == 1 else ScheduleSpec(rules.framework.interleaved_schedule)
        plan = even_plan(model.layer_counts(), pp, vpp, recompute=mode)
        config = TrainingConfig(Path("job"), framework, model, strategy, rules, spec, None)
        narrow = f" {rules.narrow.name}" if rules.narrow else ""
        scores = "" if rules.flash_attention else " scores"
        name = f"{number} {shape} {strategy.name} cp{cp} vpp{vpp} mbs{strategy.mbs} s{rules.seq_length} {mode}"
        yield f"{name}{narrow}{scores}", DryRun(config, strategy, plan)


def compared(name: str, run: DryRun) -> Iterator[Compared]:
    """The first and the last stage of a job."""
    config, strategy = run.config, run.strategy
    closed = stage_breakdown(config.model, strategy, config.rules, run.plan, config.schedule)
    for stage in sorted({0, strategy.pp - 1}):
        recorded = recorded_stage(run, stage)
        beside = [recorded.reserved_mib(expandable=way) - recorded.peak_mib for way in (False, True)]
        yield Compared(name, stage, recorded.peak_mib, closed[stage], dict(recorded.at_peak_mib), *beside)


def main() -> int:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frameworks", nargs="*", default=list(RULES))
    parser.add_argument("--rows", action="store_true", help="print the parts of every stage that is far off")
    asked = parser.parse_args()
    worst = 0.0
    for framework in asked.frameworks:
        found: list[Compared] = []
        for name, run in jobs(framework, asked.jobs, asked.seed):
            for one in compared(name, run):
                found.append(one)
                far = abs(one.error) > AGREEMENT
                if asked.rows or far:
                    print(f"{framework:12}{one.name} stage {one.stage}: dry-run {one.dry_mib:,.0f} MiB, "
                          f"analytical {100 * one.error:+.1f} %, allocator +{one.beside_mib:,.0f}, expandable "
                          f"+{one.beside_expandable_mib:,.0f} MiB", flush=True)  # fmt: skip
                if far:
                    print(f"    {_parts(one)}", flush=True)
        errors = [one.error for one in found]
        worst = max([worst, *map(abs, errors)])
        print(f"{framework}: {len(found)} stages, median {100 * median(map(abs, errors)):.2f} %, largest "
              f"{100 * max(errors, key=abs):+.1f} %, {sum(abs(e) > AGREEMENT for e in errors)} above "
              f"{100 * AGREEMENT:.0f} %; the allocator takes {_shares(found)}", flush=True)  # fmt: skip
    return int(worst > AGREEMENT)


def _shares(found: list[Compared]) -> str:
    """Median and largest of what the allocator takes beside the tensors."""
    ways = {
        "without expandable segments": [one.beside_mib / one.dry_mib for one in found],
        "with them": [one.beside_expandable_mib / one.dry_mib for one in found],
    }
    return ", ".join(
        f"{100 * median(shares):.1f} % (at most {100 * max(shares):.1f} %) more {name}" for name, shares in ways.items()
    )


def _parts(one: Compared) -> str:
    """Every part that differs, dry-run / analytical model."""
    closed = one.closed.categories()
    names = [name for name in {**closed, **one.categories} if name not in ("overhead", "cached")]
    pairs = {name: (one.categories.get(name, 0.0), closed.get(name, 0.0)) for name in names}
    return ", ".join(f"{name} {dry:,.0f} / {mib:,.0f}" for name, (dry, mib) in pairs.items() if abs(dry - mib) > 2)


if __name__ == "__main__":
    raise SystemExit(main())
