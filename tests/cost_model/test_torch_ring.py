"""Memory of torch's ring attention, against torch's own function on fake tensors."""

from __future__ import annotations

from typing import Any

import pytest

from taylor.cost_model.job.strategy import GATHERED_RING, PASSED_RING, TrainingRules
from taylor.cost_model.memory.backward_workspace import torch_ring_elements

torch = pytest.importorskip("torch")

TOKENS, WIDTH = 1024, 128


def of_torch(ring: str, ranks: int, heads: int, groups: int) -> float:
    """Most that the backward holds beside its arguments, elements of 16 bits a token, on the fullest rank."""
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.tensor.experimental._context_parallel import _attention as attention
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from taylor.dryrun.torch_stage.counter import LiveCounter

    def kernel(query: Any, key: Any, value: Any, **_: Any) -> Any:
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)

    method = "ALL_GATHER" if ring == GATHERED_RING else "ALL_TO_ALL"
    before = attention._cp_options.rotate_method
    attention._cp_options.rotate_method = getattr(attention._RotateMethod, method)
    most = 0
    try:
        for rank in range(ranks):
            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
            try:
                with FakeTensorMode(), LiveCounter() as counter:
                    q, o, do = (torch.empty(1, heads, TOKENS, WIDTH, dtype=torch.bfloat16) for _ in range(3))
                    k, v = (torch.empty(1, groups, TOKENS, WIDTH, dtype=torch.bfloat16) for _ in range(2))
                    statistics = torch.empty(1, heads, TOKENS)
                    held = counter.peak = counter.total
                    attention._templated_ring_attention_backward(
                        dist.group.WORLD, 2, kernel, grad_out=do, grad_out_name="grad_out", query=q, key=k, value=v,
                        out=o, logsumexp=statistics, is_causal=True,
                    )  # fmt: skip
                    most = max(most, counter.peak - held)
            finally:
                dist.destroy_process_group()
    finally:
        attention._cp_options.rotate_method = before
    return most / 2 / TOKENS


@pytest.mark.parametrize("ring", [GATHERED_RING, PASSED_RING])
@pytest.mark.parametrize(
    ("ranks", "heads", "groups"), [(2, 16, 8), (4, 32, 8), (4, 64, 8), (8, 16, 8), (8, 32, 32), (8, 16, 2)]
)
def test_the_backward_of_torch_s_ring_holds_what_torch_s_own_function_does(
    ring: str, ranks: int, heads: int, groups: int
) -> None:
    counted = torch_ring_elements(heads * WIDTH, 2 * groups * WIDTH, ranks, TrainingRules(ring=ring))
    assert counted == pytest.approx(of_torch(ring, ranks, heads, groups), rel=0.02)
