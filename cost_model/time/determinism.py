"""Extra time of a job that repeats exactly (`TrainingRules.deterministic`); scalars and arrays alike.

Megatron's ``--deterministic-mode`` calls ``torch.use_deterministic_algorithms(True)`` and lets transformer engine take
such attention kernels alone (Megatron-LM d98e8a64 megatron/training/determinism.py:103-150). Two things cost time.

*Memory is filled before it is written.* torch fills what ``torch.empty`` and its kin give (``torch.utils.deterministic.
fill_uninitialized_memory``, on by default, which nothing in Megatron or transformer engine turns off), so every result
that a library asks for by them is written once more: GEMMs, norms and attention of transformer engine
(TransformerEngine d0067d0 transformer_engine/pytorch/csrc/common.cpp:296-324), what is gathered and scattered, casts.
torch's own pointwise operations and compiled ones allocate otherwise, at no cost.

*Attention's backward adds up the queries' gradient in one order.* The method depends on the card, see
`attention_backward_ms`.
"""

from __future__ import annotations

import numpy as np

from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.cost_model.memory.activations import micro_batch_tokens
from taylor.cost_model.time.speed import Speed
from taylor.register.device import DeviceSpec
from taylor.register.layers import AttentionSpec
from taylor.register.model import ModelSpec

AMPERE_PROCESSORS = 108
"""Multiprocessors of an A100, the one registered card of its generation (NVIDIA A100 datasheet, 6912 cores of 64 a
multiprocessor)."""

_FP32 = 4
_WORKSPACE_BYTES = 2
"""An element of the workspace that holds the scores' gradient (cudnn-frontend, see `attention_backward_ms`)."""


def attention_backward_ms(
    model: ModelSpec,
    kind: str,
    degrees: Degrees,
    rules: TrainingRules,
    device: DeviceSpec,
    speed: Speed,
    usual: Quantity,
) -> Quantity:
    """Time of the attention kernels' backward in a layer of a kind, ms.

    Transformer engine takes cuDNN's kernel from Hopper on and FlashAttention 2 before (TransformerEngine d0067d0
    transformer_engine/pytorch/attention/dot_product_attention/utils.py:1551-1565, 1640-1645).

    *Hopper*: cuDNN writes the scores' gradient to a workspace of 2 bytes a score, masked ones included, and multiplies
    it by the keys in a separate kernel (cudnn-frontend 3929da2
    include/cudnn_frontend/node/scaled_dot_product_flash_attention.h:1481-1487, 1912-1953). The workspace is filled
    whole, and written and read where nothing is masked.

    *Ampere*: FlashAttention 2 gives every head of every sample ceil(multiprocessors / (samples · heads)) blocks instead
    of one for every tile of keys, each with a copy of the gradient of its own, zeroed first and added up last
    (flash-attention 073afd5 csrc/flash_attn/src/flash_bwd_launch_template.h:72-77; csrc/flash_attn/flash_api.cpp,
    ``nsplits``). One block fits a multiprocessor, so the last of them run beside few others.

    Other cards: as without.

    Parameters
    ----------
    usual : ms
        Time of the same kernels in any order.
    """
    attentions = [layer.attention for layer in model.layers_of(kind) if layer.attention is not None]
    if not (rules.deterministic and rules.flash_attention and attentions):
        return usual
    peaks = device.peak_tflops
    if "tf32" not in peaks or "fp4" in peaks:
        return usual
    if "fp8" in peaks:
        return usual + speed.bytes(sum(workspace_traffic(each, degrees, rules) for each in attentions))
    splits = [ordered_splits(each, degrees) for each in attentions]
    slower = sum(idle_factor(each, split, degrees) for each, split in zip(attentions, splits, strict=True))
    tokens = micro_batch_tokens(degrees, rules)
    copies = sum(
        2 * _FP32 * (split - 1) * tokens * each.n_heads * each.qk_width / degrees.tp
        for each, split in zip(attentions, splits, strict=True)
    )
    return usual * slower / len(attentions) + speed.bytes(copies)


def workspace_traffic(attention: AttentionSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Bytes that a micro-batch moves over the workspace of cuDNN's ordered backward in one layer."""
    rows = micro_batch_tokens(degrees, rules) * attention.n_heads / degrees.tp
    kept = attention.seen(rules.seq_length, causal=True)
    return _WORKSPACE_BYTES * rows * (rules.seq_length + 2 * kept)


def ordered_splits(attention: AttentionSpec, degrees: Degrees) -> Quantity:
    """Blocks a head and sample of FlashAttention 2's ordered backward on Ampere."""
    return np.ceil(AMPERE_PROCESSORS / (degrees.mbs * attention.n_heads / degrees.tp))


def idle_factor(attention: AttentionSpec, splits: Quantity, degrees: Degrees) -> Quantity:
    """Rounds in which a number of blocks run, over those of full multiprocessors."""
    blocks = splits * degrees.mbs * attention.n_heads / degrees.tp
    return np.ceil(blocks / AMPERE_PROCESSORS) * AMPERE_PROCESSORS / blocks
