"""Workspaces of the libraries that multiply matrices: torch's allocator counts them, and no tensor of a model is."""

from __future__ import annotations

from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees
from taylor.cost_model.memory.breakdown import StageBreakdown
from taylor.cost_model.memory.communicators import communication_mib
from taylor.cost_model.memory.fragmentation import MIB, one_pool_bytes
from taylor.register.device import DeviceSpec
from taylor.register.model import ModelSpec

_HANDLES = 2
"""torch keeps one workspace a handle, and a handle a thread: the script's and autograd's (PyTorch
aten/src/ATen/cuda/CublasHandlePool.cpp, ``getCurrentCUDABlasHandle``)."""

_TORCH_MIB, _TORCH_WIDE_MIB = 8.125, 32.0
"""Workspace of a handle: ``:4096:2:16:8``, and ``:4096:8`` from Hopper on (CublasHandlePool.cpp,
``parseChosenWorkspaceSize``) and where the job is deterministic (Megatron-LM d98e8a64
megatron/training/determinism.py:30)."""

_TE_MIB, _TE_WIDE_MIB, _TE_STREAMS = 4.0, 32.0, 4
"""TransformerEngine d0067d0 transformer_engine/pytorch/cpp_extensions/gemm.py:40 (wide from Hopper on): one, and one
more a stream of its grouped GEMMs (transformer_engine/common/util/multi_stream.cpp, ``num_compute_streams``)."""


def workspaces_mib(model: ModelSpec, rules: TrainingRules, device: DeviceSpec) -> float:
    """Workspaces on one device, MiB; 0 where the libraries are others than NVIDIA's.

    They are part of `statics.overhead_mib`.
    """
    if "tf32" not in device.peak_tflops:
        return 0.0
    wide = "fp8" in device.peak_tflops
    result = _HANDLES * (_TORCH_WIDE_MIB if wide or rules.deterministic else _TORCH_MIB)
    if rules.engine_layers:
        result += (_TE_WIDE_MIB if wide else _TE_MIB) * (1 + (_TE_STREAMS if model.n_moe else 0))
    return result


def allocated_mib(stage: StageBreakdown, model: ModelSpec, rules: TrainingRules, device: DeviceSpec) -> float:
    """torch's peak of allocated memory on a stage: no context and no communication buffers, MiB."""
    return stage.total - stage.overhead - stage.cached - stage.spare + workspaces_mib(model, rules, device)


def reserved_mib(stage: StageBreakdown, model: ModelSpec, rules: TrainingRules, device: DeviceSpec) -> float | None:
    """torch's peak of reserved memory on a stage, MiB; None where it is not modelled.

    With pools of several streams it is that of `cost_model.memory.reserved`, else that of
    `cost_model.memory.fragmentation`. What a card must provide is this and the overhead outside the allocator: the CUDA
    context and NCCL's buffers.
    """
    if rules.separate_pools:
        return stage.total - stage.overhead + workspaces_mib(model, rules, device)
    if rules.expandable_segments is None:
        return None
    allocated = allocated_mib(stage, model, rules, device)
    sizes = (each * MIB for each in (allocated, stage.logits, stage.weights, stage.gradients))
    # Frozen weights have no gradients, and stay where they were built.
    joined = rules.parallel_optimizer and rules.framework.states.keeps_weights_whole and rules.adapters is None
    return float(one_pool_bytes(*sizes, expandable=rules.expandable_segments, joined=joined)) / MIB


def outside_mib(
    stage: StageBreakdown, model: ModelSpec, degrees: Degrees, rules: TrainingRules, device: DeviceSpec
) -> float:
    """Memory of a stage's card outside torch's allocator, MiB: the context and the buffers of communication.

    It is the rest of `statics.overhead_mib`, or all communicators' buffers where these alone are more.
    """
    known = float(communication_mib(model, degrees, rules, device))
    return max(stage.overhead - workspaces_mib(model, rules, device), known)
