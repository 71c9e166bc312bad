"""Queries and keys of a pack that are rotated sample by sample: torch's own operations, and what a step takes."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.reliability.outside import NotHere, loaded, source
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.time.host_operations import LATENT_SAMPLE_ROTATION, PACK_ROTATION, SAMPLE_ROTATION, Operations
from taylor.cost_model.time.step import layer_time
from taylor.pipeline.plan import FULL
from taylor.register.frameworks import MEGATRON
from taylor.register.registry import Registry

ROPE = "megatron/core/models/common/embeddings/rope_utils.py"


class _Group:
    """A context-parallel group of one rank."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


class _Started(TorchDispatchMode):  # type: ignore[misc]
    """Number of torch's operations, views included."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def own_steps(x: Tensor, starts: Tensor, angles: Tensor, *, joins_pairs: bool) -> Tensor:
    """The steps of Megatron-LM's function at 61f31145, written again."""
    lengths = ((starts[1:] - starts[:-1]) // 1).tolist()
    samples = torch.split(x, lengths)
    assert angles.size(0) != int(starts[-1].item())
    whole, at = torch.empty_like(x), 0
    for sample in samples:
        own = angles[0 : 0 + sample.size(0)]
        part = sample.unsqueeze(1)
        width = own.shape[-1]
        turned, still = part[..., :width], part[..., width:]
        if joins_pairs:
            turned = torch.cat((turned[..., 0::2], turned[..., 1::2]), dim=-1)
        cosines, sines = (torch.cos(own) * 1.0).to(x.dtype), (torch.sin(own) * 1.0).to(x.dtype)
        left, right = torch.chunk(turned, 2, dim=-1)
        turned = turned * cosines + torch.cat((-right, left), dim=-1) * sines
        whole.narrow(0, at, sample.size(0)).copy_(torch.cat((turned, still), dim=-1).squeeze(1))
        at += sample.size(0)
    return whole


def megatron_s_own(x: Tensor, starts: Tensor, angles: Tensor, *, joins_pairs: bool) -> Tensor:
    try:
        text = source("Megatron-LM", "61f31145", ROPE)
    except NotHere as here:
        pytest.skip(str(here))
    names = (
        "_rotate_half",
        "_apply_rotary_pos_emb_bshd",
        "_get_thd_freqs_on_this_cp_rank",
        "_apply_rotary_pos_emb_thd",
    )
    own = [node for node in ast.parse(text).body if getattr(node, "name", None) in names]
    code = "from typing import Optional\n" + "\n".join(map(ast.unparse, own))
    module = loaded("own_rope", code, torch=torch, Tensor=Tensor, warnings=None)
    rotated: Tensor = module._apply_rotary_pos_emb_thd(
        x, starts, angles, mla_rotary_interleaved=joins_pairs, cp_group=_Group()
    )
    return rotated


def counted(rotate: Callable[..., Tensor], samples: int, *, joins_pairs: bool) -> tuple[int, int]:
    """Operations forward and backward of queries and keys together."""
    x = torch.randn(8 * samples, 2, 16, dtype=torch.bfloat16, requires_grad=True) * 1
    starts, angles = (8 * torch.arange(samples + 1)).int(), torch.randn(9, 1, 1, 16)
    with _Started() as ahead:
        y = rotate(x, starts, angles, joins_pairs=joins_pairs)
    with _Started() as back:
        y.backward(torch.ones_like(y))
    return 2 * ahead.count, 2 * back.count


@pytest.mark.parametrize("rotate", [own_steps, megatron_s_own])
@pytest.mark.parametrize("joins_pairs", [False, True], ids=["plain", "latent"])
def test_a_pack_and_each_of_its_samples_start_what_torch_counts(
    rotate: Callable[..., Tensor], joins_pairs: bool
) -> None:
    few, many = (counted(rotate, samples, joins_pairs=joins_pairs) for samples in (4, 12))
    each: Operations = LATENT_SAMPLE_ROTATION if joins_pairs else SAMPLE_ROTATION
    assert [(b - a) / 8 for a, b in zip(few, many, strict=True)] == [each.forward, each.backward]
    beside = few[0] - 4 * each.forward, few[1] - 4 * each.backward
    assert beside == (PACK_ROTATION.forward, PACK_ROTATION.backward)


def test_a_pack_of_many_samples_takes_longer_where_they_are_rotated_one_by_one() -> None:
    """Not so where one kernel rotates them, and by less where attention is a small part of the host's work."""
    registry = Registry.load()
    model, device = registry.model("qwen3-8b"), registry.device("h100-80g")
    rules = TrainingRules(framework=MEGATRON, seq_length=2048, param_bytes=2, fused_norms=True)
    times = [
        layer_time(model, "dense", Strategy(1, 1, 1, sp=False), rules.replace(packed_samples=samples), device)
        for samples in (0.0, 2.0, 5.4)
    ]
    steps = [float(one.forward + one.backward) for one in times]
    assert steps == sorted(set(steps))
    # The host waits for the samples' lengths in every forward, the one that runs again among them.
    assert float(times[2].forward - times[1].forward) == pytest.approx(3.4 * SAMPLE_ROTATION.forward * 8e-3)
    assert float(times[2].recompute[FULL]) >= float(times[2].forward)
