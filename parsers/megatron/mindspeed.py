"""Signs that a launch by Megatron's flags is MindSpeed's, Megatron-LM on Ascend devices."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from taylor.base.shipped import shipped_table
from taylor.parsers.text.flags import Flags

PROGRAMS = ("posttrain_gpt.py", "pretrain_deepseek4.py", "pretrain_vlm.py", "pretrain_sora.py")
"""Programs of MindSpeed-LLM c77308a1 and MindSpeed-MM 57069cd5 that Megatron-LM lacks."""
STARTER = "msrun"
"""Starts ranks on MindSpore, the other framework that MindSpeed runs on (MindSpeed-LLM c77308a1 examples/mindspore)."""
SPEC = "mindspeed"
"""Prefix of the module of ``--spec``: ``mindspeed_llm.tasks.models.spec.deepseek_spec``."""
VARIABLES = ("HCCL_", "ASCEND_", "PYTORCH_NPU_", "NPU_ASD_", "ACLNN_", "NPUS_PER_NODE")
"""Prefixes of variables that only the software of Ascend devices, or a script for them, knows."""
GPU_VARIABLES = ("NCCL_", "TORCH_NCCL_", "NVTE_", "CUDNN_", "CUDA_VISIBLE_DEVICES")
"""Prefixes of variables that a script for GPUs sets. Beside one, a single flag is no sign: unknown forks for
GPUs have flags of these names too (``--rope-theta``, ``--use-wandb``). MindSpeed-LLM c77308a1 sets
one in 2 of 622 scripts, beside several of its flags."""


@cache
def telltales() -> frozenset[str]:
    """The flags of MindSpeed alone; ``python -m benchmarks.mindspeed_flags`` reads them off its argument parser."""
    return frozenset(shipped_table(Path(__file__).with_name("mindspeed.yaml"))["flags"])


def sign_of_mindspeed(flags: Flags) -> str | None:
    """The first thing that tells a launch to be MindSpeed's, as the end of a sentence; None where nothing does."""
    start = flags.start
    named = [] if start.other_tool else [name for name in flags.by_name if name in telltales()]
    needed = 2 if any(name.startswith(GPU_VARIABLES) for name in start.variables) else 1
    if len(named) >= needed:
        return f"it has --{named[0]}"
    for program in start.programs:
        if program in PROGRAMS or program == STARTER:
            return f"it starts {program}"
    spec = flags.by_name.get("spec")
    if spec is not None and spec.values and spec.values[0].text.startswith(SPEC):
        return f"--spec names {spec.values[0].text}"
    for name in start.variables:
        if name.startswith(VARIABLES):
            return f"it sets {name}"
    return None


def is_mindspeed(flags: Flags) -> bool:
    """Return whether MindSpeed runs the launch."""
    return sign_of_mindspeed(flags) is not None
