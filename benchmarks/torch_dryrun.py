"""The stage dry-run beside the analytical model: seconds, memory of the process, and every category.

    python -m benchmarks.torch_dryrun [--modes none select full] [--stages 0 1 3]

Three jobs under Megatron's rules: LLaMA2-7B TP2 PP4 (s = 4096), LLaMA3-70B TP8 PP4 (s = 8192), and a
DeepSeek-V3 of 16 layers, four a stage, with its MTP module, TP4 PP4 EP64 (s = 4096). Then what one
layer of each kind keeps, by framework and recompute mode. Needs the extra ``torch``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from taylor.cost_model.job.strategy import Strategy, TrainingRules  # noqa: E402
from taylor.cost_model.memory.activations import activation_bytes  # noqa: E402
from taylor.cost_model.memory.breakdown import stage_breakdown  # noqa: E402
from taylor.dryrun.interface import DryRun  # noqa: E402
from taylor.dryrun.torch_stage.probe import layer_memory  # noqa: E402
from taylor.dryrun.torch_stage.run import run_stage  # noqa: E402
from taylor.parsers.training_config import TrainingConfig  # noqa: E402
from taylor.pipeline.plan import RECOMPUTE_MODES, even_plan  # noqa: E402
from taylor.pipeline.schedule import ScheduleSpec  # noqa: E402
from taylor.register import frameworks  # noqa: E402
from taylor.register.model import ModelSpec  # noqa: E402
from taylor.register.registry import Registry  # noqa: E402

MIB = 2**20
MEGATRON = TrainingRules(framework=frameworks.MEGATRON, param_bytes=2, expert_tensor_parallel=False)
TORCHTITAN = TrainingRules(
    framework=frameworks.TORCHTITAN, parameter_shard=True, gradient_shard=True, expert_tensor_parallel=False
)


def jobs() -> list[tuple[str, ModelSpec, Strategy, int]]:
    """Name, model, strategy and sequence length of the three jobs."""
    registry = Registry.load()
    return [
        ("LLaMA2-7B TP2 PP4", registry.model("llama2-7b"), Strategy(4, 2, 4, op=4, micro_batches=16), 4096),
        ("LLaMA3-70B TP8 PP4", registry.model("llama3-70b"), Strategy(4, 8, 4, op=4, micro_batches=16), 8192),
        ("DeepSeek-V3 16 layers TP4 PP4 EP64", registry.model("deepseek-v3-671b").replace(n_layers=16),
         Strategy(16, 4, 4, 64, op=16, micro_batches=16), 4096),
    ]  # fmt: skip


def stage_rows(modes: list[str], stages: list[int]) -> None:
    """Print every stage asked for: the dry-run's figure / the analytical model's, MiB."""
    for name, model, strategy, sequence in jobs():
        rules = MEGATRON.replace(seq_length=sequence)
        config = TrainingConfig(Path("job"), "megatron", model, strategy, rules, ScheduleSpec(), None)
        for mode in modes:
            plan = even_plan(model.layer_counts(), strategy.pp, strategy.vpp, recompute=mode)
            closed = stage_breakdown(model, strategy, rules, plan)
            for stage in stages:
                found = run_stage(DryRun(config, strategy, plan), stage)
                expected = closed[stage]
                print(f"{name}, {mode}, stage {stage}: {found.seconds:.1f} s, {found.max_rss_mib:.0f} MiB, "
                      f"peak {found.peak_mib:.0f} / {expected.total:.0f} "
                      f"({100 * (expected.total / found.peak_mib - 1):+.1f} %)")  # fmt: skip
                parts = [
                    f"{part} {found.categories[part]:.0f} / {value:.0f}"
                    for part, value in expected.categories().items()
                    if round(max(value, found.categories[part]))
                ]
                print("    " + ", ".join(parts))


def layer_rows(modes: list[str]) -> None:
    """Print what one layer keeps and what its backward needs beyond that, MiB."""
    print("one layer: kept by dry-run / analytical model, MiB; most in backward beyond it")
    for name, model, strategy, sequence in jobs():
        for rules in (MEGATRON, TORCHTITAN, TrainingRules()):
            for kind in [kind for kind in model.layer_counts() if kind != "mtp"]:
                for mode in modes:
                    used = rules.replace(seq_length=sequence)
                    found = layer_memory(model, kind, mode, strategy, used)
                    closed = float(activation_bytes(model, kind, mode, strategy, used))
                    off = 100 * (closed / found.kept - 1)
                    case = f"{name}, {rules.framework.name}, {kind}, {mode}"
                    figures = f"{found.kept / MIB:.1f} / {closed / MIB:.1f} ({off:+.1f} %)"
                    print(f"{case}: {figures}, backward {found.backward / MIB:.1f}")


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--modes", nargs="+", choices=RECOMPUTE_MODES, default=["none", "select", "full"])
    parser.add_argument("--stages", nargs="+", type=int, choices=range(4), default=[0, 1, 3])
    given = parser.parse_args()
    stage_rows(given.modes, given.stages)
    layer_rows(given.modes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
