"""Published training recipes in their own precision: does the plan as written fit, and how long does a step take.

    python -m benchmarks.recipes [FOLDER] [--rows]

FOLDER (``../shared/data/recipes``) holds launch scripts written for bf16 and ``recipes.csv``, one published figure a
row with the precision that it was measured in. Each script is read with the flags of that precision (`FLAGS`), with
parameters gathered in it as Megatron-Bridge's mixed-precision recipes set (067f987d
src/megatron/bridge/training/mixed_precision.py), and with what the row's notes say (`NOTED`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from benchmarks.published_performance import DISPATCHED_BY_NODE
from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.parsers.megatron.read import config_from_launch
from taylor.parsers.megatron.script import Script
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.training_config import TrainingConfig
from taylor.register.registry import Registry
from taylor.workflows.statement.planned_step import planned_step_ms

RECIPES = Path(__file__).resolve().parents[2] / "shared" / "data" / "recipes"
_TENSORWISE = "--fp8-format hybrid --fp8-recipe tensorwise --fp8-param-gather"
_MXFP8 = "--fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather"
FLAGS = {
    "FP8": _TENSORWISE, "FP8-CS": _TENSORWISE, "MXFP8": _MXFP8, "FP8-MX": _MXFP8,
    "NVFP4": "--fp4-format e2m1 --fp4-param-gather", "BF16": "",
}  # fmt: skip
"""Flags of a precision as the table of recipes writes it."""


_TE_GRAPH = "--cuda-graph-impl transformer_engine --cuda-graph-modules"
_FLEX = "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend"
NOTED = {
    "gradients reduced in bf16": "--grad-reduce-in-bf16",
    "EP all-to-all overlap": "--overlap-moe-expert-parallel-comm",
    "dispatcher deepep": f"{_FLEX} deepep",
    "dispatcher hybridep": f"{_FLEX} hybridep",
    "CUDA graph full_iteration": "--cuda-graph-impl full_iteration",
    "CUDA graph transformer_engine attn+moe_router+moe_preprocess": f"{_TE_GRAPH} attn moe_router moe_preprocess",
}
"""Flags of what the table's notes on a recipe say, as far as figures depend on it."""


@dataclass(frozen=True)
class Recipe:
    """One published figure: the heaviest stage and the device's limit, MiB; the step predicted and published, ms."""

    script: str
    precision: str
    peak_mib: float
    limit_mib: float
    predicted_ms: float
    published_ms: float

    @property
    def over(self) -> bool:
        """It ran, and is said not to fit."""
        return self.peak_mib > self.limit_mib

    @property
    def ratio(self) -> float:
        """Step time predicted over published."""
        return self.predicted_ms / self.published_ms


def recipe_configs(folder: Path, *, narrow: bool = True) -> Iterator[tuple[dict[str, Any], TrainingConfig]]:
    """Each row of the table with its script as it was run, read; `narrow` as in `recipes`."""
    for cells in pd.read_csv(folder / "recipes.csv", keep_default_na=False).to_dict("records"):
        row: dict[str, Any] = {str(name): value for name, value in cells.items()}
        if not row["step_ms"] or row["script"].endswith("_peft.sh"):
            continue
        path = folder / "scripts" / row["script"]
        noted = [flags for words, flags in NOTED.items() if words in row["memory_notes"]]
        if row["model"] in DISPATCHED_BY_NODE:
            noted.append(NOTED["dispatcher hybridep"])
        flags = " ".join([FLAGS[row["precision"]] if narrow else "", *noted])
        yield row, config_from_launch(Script(ShellScript(f"{path.read_text().rstrip()} {flags}\n", path)))


def recipes(folder: Path, *, narrow: bool = True) -> list[Recipe]:
    """Every figure of pre-training or full fine-tuning; LoRA, which flags cannot say, is left out.

    Parameters
    ----------
    narrow : bool
        Off: every script in bf16, as it is written.
    """
    registry, found = Registry.load(), []
    for row, config in recipe_configs(folder, narrow=narrow):
        plan = config.plan or config.even_plan(config.strategy)
        stages = stage_breakdown(config.model, config.strategy, config.rules, plan, config.schedule)
        device = registry.device(row["system"])
        predicted = planned_step_ms(config, device)
        peak, limit = max(stage.total for stage in stages), config.memory_limit_mib(device)
        found.append(Recipe(row["script"], row["precision"], peak, limit, predicted, float(row["step_ms"])))
    return found


def summary(rows: Iterable[Recipe]) -> str:
    """Scripts that do not fit, and how far step times are from the published ones."""
    every = list(rows)
    scripts = {row.script for row in every}
    over = {row.script for row in every if row.over}
    ratios = [row.ratio for row in every]
    return (
        f"{len(over)} of {len(scripts)} scripts do not fit; step time over published: median {median(ratios):.2f}, "
        f"median error {100 * median(abs(ratio - 1) for ratio in ratios):.0f} % of {len(every)} figures"
    )


def main() -> None:
    """Print the summary in bf16 and in the precision of each figure, and every row when asked to."""
    parser = argparse.ArgumentParser(description="published recipes in their own precision")
    parser.add_argument("folder", type=Path, nargs="?", default=RECIPES)
    parser.add_argument("--rows", action="store_true", help="print every figure too")
    options = parser.parse_args()
    found = recipes(options.folder)
    for row in found if options.rows else ():
        verdict = "does not fit" if row.over else ""
        print(
            f"{row.script:75s} {row.precision:6s} {row.peak_mib:9,.0f} {row.limit_mib:9,.0f} {row.predicted_ms:9,.0f} "
            f"{row.published_ms:9,.0f} {row.ratio:5.2f} {verdict}"
        )
    print(f"as written, bf16: {summary(recipes(options.folder, narrow=False))}")
    print(f"in its precision: {summary(found)}")


if __name__ == "__main__":
    main()
