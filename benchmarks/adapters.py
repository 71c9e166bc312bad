"""Published steps of jobs that train low-rank adapters, beside the steps predicted; none is in a fit.

Run from the repository's root: ``python -m benchmarks.adapters [--rows] [--host US]``; ``--host`` prices ``cards`` with
another cost of starting an operation on the host than H100's.

Three sets, each with its source:

- ``mlperf``: llama2_70b_lora of MLPerf Training v5.0 (mlcommons/training_results_v5.0 0fdc28f): the median
  ``train_step_time`` of result_0.txt, degrees of the config file beside it. One row a size; several submitters measured
  8 cards of B200 between 1,516 and 1,543 ms, and 8 of GB200 between 1,471 and 1,484.
- ``cards``: model verification cards of NVIDIA-NeMo/Megatron-Bridge 067f987d on text, ``peft/H100``; recipes in
  src/megatron/bridge/recipes.
- ``recipes``: LoRA rows of docs/performance-summary-archive.md:187-191 there, as ../shared/data/recipes states them.

Samples are packed to the whole sequence in every row. A flag says where attention sees one packed sequence as a whole
(MLPerf's ``return_cu_seqlen: False``); in ``cards`` it sees each sample alone, which is not counted, and their commits
pin Megatron-LM 61f31145 and 58bf14e9, which rotate each sample by itself (`TrainingRules.packed_samples`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

import pandas as pd

from benchmarks.recipes import FLAGS, NOTED, RECIPES
from benchmarks.variant_order import Variant, variant_order
from taylor.cost_model.job.strategy import GRAPHED_MIXER, Strategy, TrainingRules
from taylor.cost_model.time.step import step_ms
from taylor.parsers.megatron.read import config_from_launch
from taylor.parsers.megatron.script import Script
from taylor.parsers.text.shell_source import ShellScript
from taylor.register.adapters import JOINED_QKV, LATENTS, OUTPUT, Adapters
from taylor.register.device import DeviceSpec
from taylor.register.frameworks import ENGINE_LOSS, MEGATRON
from taylor.register.model import ModelSpec
from taylor.register.narrow_products import DELAYED
from taylor.register.registry import Registry
from taylor.workflows.statement.planned_step import planned_step_ms

_ATTENTION = (OUTPUT, JOINED_QKV)
_ONE_COPY = replace(DELAYED, weight_bytes=DELAYED.input_bytes)


@dataclass(frozen=True)
class AdapterStep:
    """One published step, and the step predicted, ms; `samples` a step on each card."""

    table: str
    name: str
    measured_ms: float
    predicted_ms: float
    job: str
    samples: float

    @property
    def error(self) -> float:
        """Predicted over published, less 1."""
        return self.predicted_ms / self.measured_ms - 1

    @property
    def variant(self) -> Variant:
        """Card-milliseconds a sample, among those of one model on one device."""
        return Variant(self.job, self.measured_ms / self.samples, self.predicted_ms / self.samples)


MLPERF = (
    ("b200", 8, 1, 8, 1527.5, "Oracle 1xBM.GPU.B200.8"),
    ("gb200", 8, 1, 8, 1471.0, "NVIDIA tyche_ngpu8"),
    ("gb200", 4, 2, 8, 2972.6, "Oracle 1xBM.GPU.GB200.4"),
    ("gb200", 16, 2, 8, 832.5, "Dell 4xXE9712x4GB200"),
    ("gb200", 32, 4, 8, 420.6, "Dell 8xXE9712x4GB200"),
    ("gb200", 36, 4, 9, 433.7, "Dell 9xXE9712x4GB200"),
    ("gb200", 64, 8, 8, 241.0, "Dell 16xXE9712x4GB200"),
    ("gb200", 72, 8, 9, 237.4, "NVIDIA tyche_ngpu72"),
    ("gb200", 144, 8, 18, 243.8, "NVIDIA tyche_ngpu144"),
    ("gb200", 512, 8, 64, 258.6, "NVIDIA tyche_ngpu512"),
    ("b200", 64, 8, 8, 255.5, "Oracle 8xBM.GPU.B200.8"),
)
"""Device, cards, CP, samples a step, median step, ms, submission.

CP of Dell's runs of 16 to 64 cards, whose configuration is not among the files, is that of NVIDIA's and Oracle's runs
with the same peak memory: 134 GB with 2, 82 GB with 8; 99.6 GB lies between."""

CARDS = (
    ("qwen3-8b", 1, 1, 32, 8, _ATTENTION, 7774.79, "qwen/h100/qwen3.py:1630"),
    ("moonlight-16b-a3b", 4, 4, 32, 8, (LATENTS, OUTPUT), 3822.84, "moonlight/h100/moonlight_16b.py:846"),
    ("gpt-oss-120b", 8, 8, 128, 32, Adapters(1).targets, 11509.1, "gpt_oss/h100/gpt_oss.py:767"),
)
"""Model, cards, EP, packs of 2,048 tokens a step, rank, targets, step, ms, recipe."""

SAMPLES = 21.55 / 8192
"""Samples a token in the packs of Tulu 3, train[:10000]: "averages 21.550 source sequences per pack" of 8,192 tokens
(moonlight-16b-a3b/card.yaml:225), "83.333 source sequences per pack" of 32,768 (gpt-oss-20b/card.yaml:308)."""


def adapter_steps(registry: Registry, host_us: float | None = None) -> Iterator[AdapterStep]:
    """Every published step with its prediction; the ``recipes`` only where their folder is there."""
    model = registry.model("llama2-70b")
    for device, cards, cp, batch, measured, name in MLPERF:
        dp = cards // cp
        strategy = Strategy(dp, 1, 1, cp=cp, op=dp * cp, sp=False, micro_batches=batch // dp)
        # fp8 parameters, ``cp_comm_type: a2a``, LoRA of rank 16 with dropout 0.1 (conf/megatron_gpt_peft_tuning_config
        # .yaml, train.py:201-209).
        rules = _rules(8192, Adapters(16, _ATTENTION, dropout=True, gathers=True)).replace(
            narrow=_ONE_COPY,
            narrow_weights=True,
            ulysses_degree=None,
            # MCORE_CUDA_GRAPH=1 in every configuration file but those without context parallelism.
            graphed=(GRAPHED_MIXER,) if cp > 1 else (),
        )
        yield _step("mlperf", name, measured, model, strategy, rules, registry.device(device))
    card = registry.device("h100-80g")
    card = card if host_us is None else replace(card, operation_us=host_us)
    for known, cards, ep, batch, rank, targets, measured, _ in CARDS:
        strategy = Strategy(cards, 1, 1, ep, op=cards, sp=False, micro_batches=batch // cards)
        rules = _rules(2048, Adapters(rank, targets, gathers=True, shared_by_experts=True))
        # No recipe of these turns on the kernel that rotates (`apply_rope_fusion`).
        rules = rules.replace(packed_samples=2048 * SAMPLES, rotated_apart=1.0)
        yield _step("cards", known, measured, registry.model(known), strategy, rules, card)
    yield from _recipes(registry)


def _rules(seq_length: int, adapters: Adapters) -> TrainingRules:
    return TrainingRules(
        framework=MEGATRON,
        seq_length=seq_length,
        param_bytes=2,
        fused_norms=True,
        engine_layers=True,
        expert_tensor_parallel=False,
        loss_kernel=ENGINE_LOSS,
        adapters=adapters,
    )


def _step(
    table: str,
    name: str,
    measured: float,
    model: ModelSpec,
    strategy: Strategy,
    rules: TrainingRules,
    device: DeviceSpec,
) -> AdapterStep:
    predicted = float(step_ms(model, strategy, rules, device, balanced=True))
    samples = strategy.global_batch / strategy.world_size
    job = f"{table} {model.name} {device.name}"
    return AdapterStep(table, f"{name}, {device.name} x {strategy.world_size}", measured, predicted, job, samples)


def _recipes(registry: Registry) -> Iterator[AdapterStep]:
    """Rank 16 beside queries, keys and values (perf_recipes/llama/h100/llama3.py:451-480)."""
    if not RECIPES.is_dir():
        return
    adapters = Adapters(16, (JOINED_QKV,), gathers=True, shared_by_experts=True)
    for cells in pd.read_csv(RECIPES / "recipes.csv", keep_default_na=False).to_dict("records"):
        row = {str(name): str(value) for name, value in cells.items()}
        if not row["step_ms"] or not row["script"].endswith("_peft.sh"):
            continue
        path = RECIPES / "scripts" / row["script"]
        noted = [flags for words, flags in NOTED.items() if words in row["memory_notes"]]
        flags = " ".join([FLAGS[row["precision"]], *noted, "--tp-comm-overlap"])
        config = config_from_launch(Script(ShellScript(f"{path.read_text().rstrip()} {flags}\n", path)))
        config = config.replace(rules=config.rules.replace(adapters=adapters))
        predicted = planned_step_ms(config, registry.device(row["system"]))
        samples = config.strategy.global_batch / config.strategy.world_size
        name, job = f"{row['script']}, {row['precision']}", f"recipes {config.model.name} {row['system']}"
        yield AdapterStep("recipes", name, float(row["step_ms"]), predicted, job, samples)


def summary(steps: list[AdapterStep]) -> str:
    """Rows, median and largest error and bias, of each set and of all."""
    lines = []
    for table in dict.fromkeys(["all", *(each.table for each in steps)]):
        errors = [each.error for each in steps if table in ("all", each.table)]
        sizes = [abs(error) for error in errors]
        lines.append(
            f"{table:8s} {len(errors):3d} rows: median error {median(sizes):6.1%}, largest {max(sizes):6.1%}, "
            f"bias {median(errors):+6.1%}"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the sets, and every row when asked to."""
    parser = argparse.ArgumentParser(description="published steps of jobs that train adapters")
    parser.add_argument("--rows", action="store_true", help="print every row too")
    parser.add_argument("--host", type=float, metavar="US", help="cost of an operation on the hosts of the cards, us")
    options = parser.parse_args()
    steps = list(adapter_steps(Registry.load(), options.host))
    for each in steps if options.rows else ():
        print(f"{each.table:8s} {each.name:80s} {each.measured_ms:9,.1f} {each.predicted_ms:9,.1f} {each.error:+7.1%}")
    print(summary(steps))
    for table in dict.fromkeys(each.table for each in steps):
        print(f"{table:8s} {variant_order(each.variant for each in steps if each.table == table)}")


if __name__ == "__main__":
    main()
