"""Layouts of MLPerf Training's language models, in the form of `benchmarks.recipes`.

LLaMA 3.1 405B: the restated scripts of round 5.0 beside the published recipes. DeepSeek-V3: the variables of NVIDIA's
six submissions to round 6.0 (Richardyu114/training_results_v6.0 eabf23a0
NVIDIA/benchmarks/deepseekv3_671b/implementations, ``config_*.sh``; read by ``conf/model/671b.yaml`` and ``pretrain.py``
there), on the published recipe of the same model, degrees and layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from taylor.parsers.megatron.read import config_from_launch
from taylor.parsers.megatron.script import Script
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.training_config import TrainingConfig

_BASE = "deepseek_v3_gb200_256gpu_tp1pp4cp1vp4ep64_gbs4096mbs1s4096.sh"
_COMMON = (
    "--expert-model-parallel-size 32 --fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather --grad-reduce-in-bf16 "
    "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep --overlap-moe-expert-parallel-comm "
    "--delay-wgrad-compute --use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 "
    "--main-grads-dtype bf16 --cuda-graph-impl full_iteration"
)
"""``config_common_mxfp8.sh``, the knobs that all six files share, and pretrain.py:213-240; the optimizer as
Megatron-Bridge's recipe sets it (067f987d src/megatron/bridge/recipes/deepseek/h100/deepseek_v3.py:378-382)."""
_OTHERS = ("--recompute-", "--moe-router-force-load-balancing")
"""Flags of the published recipe that the submissions leave out: their data is real, their recompute their own."""


@dataclass(frozen=True)
class Submission:
    """A DeepSeek-V3 submission: ``DGXNNODES`` times ``DGXNGPU`` cards, ``MINIBS``, ``TENSOR_MODEL_PARALLEL``."""

    device: str
    cards: int
    tp: int
    micro_batches: int
    recompute: str

    @property
    def name(self) -> str:
        """Name in the page of recipes."""
        degrees = f"tp{self.tp}pp4vp4ep32_m{self.micro_batches}"
        return f"mlperf_v6.0_deepseek_v3_{self.device.split('-')[0]}_{self.cards}gpu_{degrees}"

    def flags(self) -> str:
        """Its flags; each overrides the recipe's."""
        batch = self.micro_batches * self.cards // (4 * self.tp)
        kept = f"--recompute-granularity selective --recompute-modules {self.recompute}" if self.recompute else ""
        return (
            f"--tensor-model-parallel-size {self.tp} {'--sequence-parallel ' * (self.tp > 1)}"
            f"--global-batch-size {batch} {_COMMON} {kept}"
        )


SUBMISSIONS = (
    Submission("gb300-nvl72", 256, 1, 240, ""),
    Submission("gb300-nvl72", 512, 1, 120, ""),
    Submission("gb200-nvl72", 512, 2, 240, "mlp"),
    Submission("gb200-nvl72", 2048, 2, 60, "mlp"),
    Submission("gb200-nvl72", 4096, 2, 32, "mlp"),
    Submission("gb200-nvl72", 8192, 2, 16, "mlp"),
)


def mlperf_configs(recipes: Path) -> Iterator[tuple[dict[str, Any], TrainingConfig]]:
    """Each submission's row (``script``, ``system``) and its configuration; `recipes` as in `benchmarks.recipes`."""
    mlperf = recipes.parent / "mlperf"
    for cells in pd.read_csv(mlperf / "measured.csv").to_dict("records"):
        path = mlperf / str(cells["file"])
        yield {"script": f"mlperf_{path.name}", "system": cells["device"]}, _read(path.read_text(), path)
    base = recipes / "scripts" / _BASE
    lines = [line for line in base.read_text().splitlines() if not line.strip().startswith(_OTHERS)]
    launch = "\n".join(lines).rstrip(" \\")
    for one in SUBMISSIONS:
        text = launch.replace("--nnodes 64", f"--nnodes {one.cards // 4}")
        yield {"script": one.name, "system": one.device}, _read(f"{text} {one.flags()}\n", base)


def _read(text: str, path: Path) -> TrainingConfig:
    return config_from_launch(Script(ShellScript(text, path)))
