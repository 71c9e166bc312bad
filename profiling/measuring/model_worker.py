"""One rank of a run of built-in layers: ``python -m taylor.profiling.measuring.model_worker FOLDER``.

Reads ``run.json`` there, keeps the time or memory of a few decoder layers with embedding and head where it says, one
run after the other, and writes ``answer.json`` at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from taylor.base.kept import write_kept
from taylor.profiling.measuring.model_plan import ACTIVATION, COMPUTATION, PEAK, STATES, ModelPlan, ModelRun
from taylor.profiling.measuring.samples import Kept, TimedSample, settle
from taylor.profiling.measuring.torch_device import TorchDevice

RUN, ANSWER = "run.json", "answer.json"
MIB = 2**20


def build(plan: ModelPlan, run: ModelRun, on: TorchDevice) -> Any:
    """The model of a run: embedding, decoder layers split over TP, norm, head."""
    torch = on.torch
    nn, functional, dist = torch.nn, torch.nn.functional, torch.distributed

    class EnterShards(torch.autograd.Function):  # type: ignore[misc, name-defined]
        """The input is the same on all ranks of TP; its gradients are summed."""

        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return x

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            if run.tp > 1:
                gradient = gradient.contiguous()
                dist.all_reduce(gradient)
            return gradient

    class LeaveShards(torch.autograd.Function):  # type: ignore[misc, name-defined]
        """The outputs of the ranks of TP are summed; their gradient goes to all of them."""

        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            if run.tp > 1:
                x = x.contiguous()
                dist.all_reduce(x)
            return x

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return gradient

    heads, wide = plan.heads // run.tp, plan.ffn // run.tp
    head_dim = plan.hidden // plan.heads

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        """Attention and a gated MLP, each behind a norm."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.RMSNorm(plan.hidden), nn.RMSNorm(plan.hidden)
            self.qkv = nn.Linear(plan.hidden, 3 * heads * head_dim, bias=False)
            self.out = nn.Linear(heads * head_dim, plan.hidden, bias=False)
            self.up = nn.Linear(plan.hidden, 2 * wide, bias=False)
            self.down = nn.Linear(wide, plan.hidden, bias=False)

        def forward(self, x: Any) -> Any:
            b, s, _ = x.shape
            q, k, v = self.qkv(EnterShards.apply(self.first(x))).view(b, s, 3, heads, head_dim).permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + LeaveShards.apply(self.out(seen.transpose(1, 2).reshape(b, s, heads * head_dim)))
            gate, up = self.up(EnterShards.apply(self.second(x))).chunk(2, dim=-1)
            return x + LeaveShards.apply(self.down(functional.silu(gate) * up))

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        """Embedding, layers, norm and head with its loss."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(plan.vocab, plan.hidden)
            self.layers = nn.ModuleList(Layer() for _ in range(sum(run.layers)))
            self.norm = nn.RMSNorm(plan.hidden)
            self.head = nn.Linear(plan.hidden, plan.vocab, bias=False)

        def forward(self, tokens: Any) -> Any:
            from torch.utils.checkpoint import checkpoint

            x = self.embedding(tokens)
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False) if run.recomputed else layer(x)
            logits = self.head(self.norm(x))
            return functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())

    torch.manual_seed(0)
    return Model().to(on.device)


def measure(plan: ModelPlan, run: ModelRun, on: TorchDevice) -> dict[str, TimedSample]:
    """Forward of a computation profile, ms; memory of a memory profile, MiB."""
    torch = on.torch
    model = build(plan, run, on)
    tokens = torch.randint(0, plan.vocab, (run.batch, run.length), device=on.device)
    low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(plan.precision)

    def forward() -> Any:
        with torch.autocast(on.device.type, dtype=low, enabled=low is not None):
            return model(tokens)

    if plan.kind == COMPUTATION:

        def once() -> float:
            on.wait()
            began = time.perf_counter()
            with torch.no_grad():
                forward()
            on.wait()
            return 1e3 * (time.perf_counter() - began)

        return {run.key: settle(once, plan.repeats, plan.attempts, on.memory_free())}
    found = _memory(model, forward, on)
    return {f"{run.key} {name}": TimedSample(value, 0.0, 1) for name, value in found.items()}


def _memory(model: Any, forward: Callable[[], Any], on: TorchDevice) -> dict[str, float]:
    """States after a step, what a forward leaves for its backward, and the peak; MiB.

    A GPU's own counts; on a processor the bytes of the tensors themselves, each storage once.
    """
    torch = on.torch
    optimizer = torch.optim.Adam(model.parameters())
    forward().backward()
    optimizer.step()
    tensors = [*model.parameters(), *(one.grad for one in model.parameters())]
    tensors += [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    states = sum(one.untyped_storage().nbytes() for one in tensors if one is not None)
    if on.module is not None:
        on.wait()
        before = on.module.memory_allocated()
        on.module.reset_peak_memory_stats()
        loss = forward()
        on.wait()
        kept = on.module.memory_allocated() - before
        loss.backward()
        on.wait()
        peak = on.module.max_memory_allocated() - before
        return {STATES: states / MIB, ACTIVATION: kept / MIB, PEAK: peak / MIB}
    own = {one.untyped_storage().data_ptr() for one in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = forward()
    kept = sum(saved.values())
    del loss
    return {STATES: states / MIB, ACTIVATION: kept / MIB, PEAK: kept / MIB}


def main(folder: Path) -> None:
    """Measure some runs of one tensor parallel degree, in order, up to one that does not fit the memory."""
    asked = json.loads((folder / RUN).read_text(encoding="utf-8"))
    plan = ModelPlan(**(asked["plan"] | {name: tuple(asked["plan"][name]) for name in ("batches", "lengths")}))
    runs = [ModelRun(**{**one, "layers": tuple(one["layers"])}) for one in asked["runs"]]
    kept = Kept(Path(asked["kept"]), asked["facts"])
    on = TorchDevice.here(int(os.environ.get("LOCAL_RANK", "0")))
    first, several = int(os.environ.get("RANK", "0")) == 0, runs[0].tp > 1
    dist = on.torch.distributed
    if several:
        dist.init_process_group(on.backend)
    said: dict[str, Any] = {"facts": on.facts}
    for run in runs:
        try:
            found = measure(plan, run, on)
        except on.torch.OutOfMemoryError as error:
            said["out_of_memory"] = str(error)[:500]
            break
        if first:
            kept.keep_all(found)
            print(f"{run.key}: measured", flush=True)
    if first:
        write_kept(folder / ANSWER, said)
    if several and "out_of_memory" not in said:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
