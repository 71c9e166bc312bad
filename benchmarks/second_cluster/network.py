"""Hidden networks as programs: attention by ring or Ulysses, dense layers, layers with experts, own modules."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from benchmarks.second_cluster.program import Backward, Rank, Tensor
from taylor.parsers.small_run import RunSetting

Layer = Callable[[Rank, Tensor], Tensor]
LAYER0 = "module.decoder.layers.0."


@dataclass(frozen=True)
class Design:
    """A network's numbers and habits.

    Parameters
    ----------
    ring : bool
        Context parallelism by ring attention; else by exchanging heads.
    split_experts : bool
        TP splits experts too.
    gate : int
        Width of a module of the user's own; 0 for none.
    swapped : bool
        Query, key and value are projected in another order under TP.
    """

    seed: int
    width: int
    heads: int
    groups: int
    inner: int
    vocabulary: int
    experts: int
    top_k: int
    expert_inner: int
    shared: int
    ring: bool
    split_experts: bool
    gate: int
    swapped: bool
    layers: int
    dense: int

    @property
    def kv_width(self) -> int:
        """Width of all keys."""
        return self.width // self.heads * self.groups

    def parameters(self, block: str, run: RunSetting) -> dict[str, int]:
        """Elements of a block's parameters on a rank."""
        tp, width = run.tp, self.width
        if block == "embedding":
            return {"module.embedding.word_embeddings.weight": self.padded(run) * width}
        if block == "head":
            return {
                "module.decoder.final_layernorm.weight": width,
                "module.output_layer.weight": self.padded(run) * width,
            }
        found = {
            "input_layernorm.weight": width,
            "self_attention.linear_q.weight": width * width // tp,
            "self_attention.linear_k.weight": width * self.kv_width // tp,
            "self_attention.linear_v.weight": width * self.kv_width // tp,
            "self_attention.linear_proj.weight": width * width // tp,
            "pre_mlp_layernorm.weight": width,
        }
        if self.gate:
            found |= {"my_gate.down.weight": width * self.gate, "my_gate.up.weight": width * self.gate}
        if block == "dense" or self.experts == 1:
            found |= {"mlp.linear_fc1.weight": 2 * width * self.inner // tp}
            found |= {"mlp.linear_fc2.weight": width * self.inner // tp}
        else:
            local = run.experts // run.ep
            split = tp if self.split_experts else 1
            found |= {"mlp.router.weight": width * run.experts}
            found |= {"mlp.shared_experts.linear_fc1.weight": 2 * width * self.shared // tp}
            found |= {"mlp.shared_experts.linear_fc2.weight": width * self.shared // tp}
            found |= {"mlp.experts.weight1": local * 2 * width * self.expert_inner // split}
            found |= {"mlp.experts.weight2": local * width * self.expert_inner // split}
        return {LAYER0 + name: size for name, size in found.items()}

    def padded(self, run: RunSetting) -> int:
        """Rows of the vocabulary on a rank."""
        return math.ceil(self.vocabulary / (128 * run.tp)) * 128

    # Pieces ---------------------------------------------------------------------------------------------------------

    def norm(self, rank: Rank, x: Tensor, name: str) -> Tensor:
        """RMSNorm, which keeps its input and a number a row."""
        out = rank.kernel("RmsNorm", [x, (self.width,)], x.shape, name="npu::npu_rms_norm")
        scale = rank.empty((x.shape[0],), "FLOAT", "npu::npu_rms_norm")

        def backward(gradient: Tensor) -> Tensor:
            found = rank.kernel("RmsNormGrad", [gradient, x, scale, (self.width,)], x.shape)
            rank.ready(name)
            return found

        rank.record(backward)
        return out

    def linear(self, rank: Rank, x: Tensor, outer: int, name: str, last: bool = True) -> Tensor:
        """A product with a weight, whose gradient is added where it is kept."""
        rows, inner = x.shape
        out = rank.kernel("MatMulV2", [x, (inner, outer)], (rows, outer), name="aten::mm")

        def backward(gradient: Tensor) -> Tensor:
            found = rank.kernel("MatMulV2", [gradient, (outer, inner)], (rows, inner), name="aten::mm")
            rank.in_place("MatMulV2AddFp32", [(outer, rows), x], (outer, inner), "FLOAT")
            if last:
                rank.ready(name)
            return found

        rank.record(backward)
        return out

    def column(self, rank: Rank, x: Tensor, outer: int, name: str) -> Tensor:
        """A linear layer split by columns: its input is gathered, in the backward pass beside the gradient."""
        full = rank.gathered(x, "tp")
        rows, inner = full.shape
        out = rank.kernel("MatMulV2", [full, (inner, outer)], (rows, outer), name="aten::mm")
        if full is not x:
            del full

        def backward(gradient: Tensor) -> Tensor:
            again = rank.gathered(x, "tp", beside=True)
            found = rank.kernel("MatMulV2", [gradient, (outer, inner)], (rows, inner), name="aten::mm")
            if again is not x:
                rank.wait()
            shard = rank.scattered(found, "tp", beside=True)
            rank.in_place("MatMulV2AddFp32", [(outer, rows), again], (outer, inner), "FLOAT")
            if shard is not found:
                rank.wait()
            rank.ready(name)
            return shard

        rank.record(backward)
        return out

    def row(self, rank: Rank, x: Tensor, name: str) -> Tensor:
        """A linear layer split by rows, whose output is summed."""
        out = self.linear(rank, x, self.width, name)
        rank.record(lambda gradient: rank.gathered(gradient, "tp"))
        return rank.scattered(out, "tp")

    def swiglu(self, rank: Rank, x: Tensor) -> Tensor:
        """A gate."""
        out = rank.kernel("SwiGlu", [x], (*x.shape[:-1], x.shape[-1] // 2), name="npu::npu_swiglu")
        rank.record(lambda gradient: rank.kernel("SwiGluGrad", [gradient, x], x.shape))
        return out

    # Attention ------------------------------------------------------------------------------------------------------

    def attention(self, rank: Rank, x: Tensor) -> Tensor:
        """Norm, projections, attention over the whole sequence, projection."""
        run = rank.run
        wide, narrow = self.width // run.tp, self.kv_width // run.tp
        h = self.norm(rank, x, LAYER0 + "input_layernorm.weight")
        full = rank.gathered(h, "tp")
        rows = full.shape[0]
        at = LAYER0 + "self_attention.linear_"
        order = (("k", narrow), ("v", narrow), ("q", wide))
        order = order if run.tp > 1 and self.swapped else (order[2], *order[:2])
        parts: dict[str, Tensor] = {}
        for name, outer in order:
            parts[name] = rank.kernel("MatMulV2", [full, (self.width, outer)], (rows, outer), name="aten::mm")
        if run.tp == 1:
            del h

        def projected(gradients: dict[str, Tensor]) -> Tensor:
            again = rank.gathered(h, "tp", beside=True) if run.tp > 1 else full
            total: Tensor | None = None
            for name, outer in reversed(order):
                mine = gradients.pop(name)
                found = rank.kernel("MatMulV2", [mine, (outer, self.width)], (rows, self.width), name="aten::mm")
                if name == order[-1][0] and run.tp > 1:
                    rank.wait()
                rank.in_place("MatMulV2AddFp32", [(outer, rows), again], (outer, self.width), "FLOAT")
                rank.ready(f"{at}{name}.weight")
                del mine
                total = found if total is None else rank.kernel("Add", [total, found], found.shape)
                del found
            assert total is not None
            return rank.scattered(total, "tp")

        if run.tp > 1:
            del full
        query, key, value = parts.pop("q"), parts.pop("k"), parts.pop("v")
        for one, outer in (("q", wide), ("k", narrow)):
            turning = {"q": query, "k": key}[one]
            turned = rank.kernel("RotaryPositionEmbedding", [turning, (rows // run.mbs, 128)], (rows, outer))
            if one == "q":
                query = turned
            else:
                key = turned
            del turning, turned
        attend = self._ring if self.ring and run.cp > 1 else self._heads
        out, core = attend(rank, query, key, value)
        if rank.runs_again("core_attn"):
            core = _once_more(attend, rank, query, key, value)
        del query, key, value

        def backward(gradient: Tensor) -> Tensor:
            gradients = core(gradient)
            del gradient
            for one in ("k", "q"):
                turning = gradients.pop(one)
                inputs: list[Tensor | tuple[int, ...]] = [turning, (rows // run.mbs, 128)]
                gradients[one] = rank.kernel("RotaryPositionEmbeddingGrad", inputs, turning.shape)
                del turning
            return projected(gradients)

        rank.record(backward)
        return self.row(rank, out, at + "proj.weight")

    def _flash(self, rank: Rank, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        out = rank.kernel("FlashAttentionScore", [query, key, value], query.shape, name="npu::npu_fusion_attention")
        sums = rank.empty((query.shape[0], self.heads // rank.run.tp, 8), "FLOAT", "npu::npu_fusion_attention")
        return out, sums

    def _heads(
        self, rank: Rank, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Callable[[Tensor], dict[str, Tensor]]]:
        """Attention with heads exchanged over CP (Ulysses), or of one rank."""
        cp = rank.run.cp
        moved = []
        for one in (query, key, value):
            shape = (one.shape[0] * cp, one.shape[1] // cp)
            moved.append(rank.exchanged(one, "cp", shape) if cp > 1 else one)
        q, k, v = moved
        del query, key, value, moved, one
        own, sums = self._flash(rank, q, k, v)
        back = (own.shape[0] // cp, own.shape[1] * cp)
        out = rank.exchanged(own, "cp", back) if cp > 1 else own

        def backward(gradient: Tensor) -> dict[str, Tensor]:
            mine = rank.exchanged(gradient, "cp", own.shape) if cp > 1 else gradient
            del gradient
            dq = rank.kernel("FlashAttentionScoreGrad", [q, k, v, mine, own, sums], q.shape)
            dk, dv = rank.empty(k.shape), rank.empty(v.shape)
            del mine
            found = {"q": dq, "k": dk, "v": dv}
            if cp > 1:
                for name, one in list(found.items()):
                    found[name] = rank.exchanged(one, "cp", (one.shape[0] // cp, one.shape[1] * cp))
                    del one
            return found

        return out, backward

    def _ring(
        self, rank: Rank, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Callable[[Tensor], dict[str, Tensor]]]:
        """Attention over keys and values that go round: the first rank's own first, then half its queries with each."""
        cp, rows = rank.run.cp, query.shape[0]
        kv = rank.kernel("ConcatD", [key, value], (2, *key.shape), name="aten::cat")
        size, half = 2 * kv.shape[0] * kv.shape[1] * kv.shape[2], (rows // 2, query.shape[1])
        del key, value
        now, out, sums = kv, None, None
        for turn in range(cp):
            received = None
            if turn < cp - 1:
                received = rank.empty(kv.shape, name="aten::empty")
                rank.exchange("send", "cp", size, beside=True)
                rank.exchange("receive", "cp", size, beside=True)
            if turn == 0:
                out, sums = self._flash(rank, query, now, now)
            else:
                assert out is not None and sums is not None
                part, mine = self._flash(rank, query.view(*half), now, now)
                fresh = rank.kernel("RingAttentionUpdate", [out, sums, part, mine], out.shape)
                rank.in_place("StridedSlice", [fresh], half)
                out = fresh
                del part, mine, fresh
            if received is not None:
                rank.wait()
                now = received
            del received
        last = now
        assert out is not None and sums is not None
        own, kept = out, sums

        def backward(gradient: Tensor) -> dict[str, Tensor]:
            dq = rank.kernel("ZerosLike", [query], query.shape)
            around, sent = last, rank.kernel("ZerosLike", [last], last.shape)
            for turn in range(cp):
                received = arrived = None
                if turn < cp - 1:
                    received = rank.empty(kv.shape, name="aten::empty")
                    rank.exchange("send", "cp", size, beside=True)
                    rank.exchange("receive", "cp", size, beside=True)
                    inputs = [query.view(*half), around, around, gradient.view(*half), own, kept]
                    part = rank.kernel("FlashAttentionScoreGrad", inputs, half)
                else:
                    inputs = [query, around, around, gradient, own, kept]
                    part = rank.kernel("FlashAttentionScoreGrad", inputs, query.shape)
                del inputs
                dkv = rank.empty(kv.shape)
                rank.in_place("AddInplace", [dq, part], part.shape)
                rank.in_place("AddInplace", [sent, dkv], dkv.shape)
                del part, dkv
                if received is not None:
                    rank.wait()
                    around = received
                    arrived = rank.empty(kv.shape)
                    rank.exchange("send", "cp", size)
                    rank.exchange("receive", "cp", size)
                    sent = arrived
                del received, arrived
            del gradient
            dk = rank.kernel("Slice", [sent], kv.shape[1:])
            dv = rank.kernel("Slice", [sent], kv.shape[1:])
            return {"q": dq, "k": dk, "v": dv}

        return own, backward

    # Blocks ---------------------------------------------------------------------------------------------------------

    def embedding(self, rank: Rank, x: Tensor) -> Tensor:
        """Words to vectors; under TP only some of the words are on a rank."""
        run = rank.run
        rows = run.seq * run.mbs // run.cp
        tokens = (rows,)
        if run.tp > 1:
            mask = rank.kernel("Less", [tokens], tokens, "BOOL")
            inner = rank.kernel("MaskedFill", [tokens, mask], tokens, "INT64")
            del mask, inner
        out = rank.kernel(
            "GatherV2", [(self.padded(run), self.width), tokens], (rows, self.width), name="aten::embedding"
        )

        def backward(gradient: Tensor) -> Tensor:
            rank.in_place("EmbeddingDenseGrad", [gradient, tokens], (self.padded(run), self.width))
            rank.ready("module.embedding.word_embeddings.weight")
            return gradient

        rank.record(backward)
        rank.record(lambda gradient: rank.gathered(gradient, "tp"))
        if run.tp > 1:
            out = rank.scattered(out, "tp")
        dropped = rank.kernel("DropOutDoMask", [out], out.shape, name="aten::dropout")
        del out
        rank.record(lambda gradient: rank.kernel("DropOutDoMaskGrad", [gradient], gradient.shape))
        return dropped

    def layer(self, rank: Rank, x: Tensor) -> Tensor:
        """A layer of the body."""
        return self._layer(rank, x, self.experts > 1)

    def dense_layer(self, rank: Rank, x: Tensor) -> Tensor:
        """A layer without experts in front of those with experts."""
        return self._layer(rank, x, False)

    def _layer(self, rank: Rank, x: Tensor, experts: bool) -> Tensor:
        x = self._residual(rank, x, self.attention)
        if self.gate:
            x = self._residual(rank, x, self._gate)
        return self._residual(rank, x, self._experts if experts else self._mlp)

    def _residual(self, rank: Rank, x: Tensor, inner: Layer) -> Tensor:
        """Input plus what a part makes of it."""
        earlier: list[Tensor] = []

        def split(gradient: Tensor) -> Tensor:
            total = rank.kernel("Add", [gradient, earlier[0]], gradient.shape)
            earlier.clear()
            return total

        rank.record(split)
        out = inner(rank, x)

        def join(gradient: Tensor) -> Tensor:
            earlier.append(gradient)
            return gradient

        rank.record(join)
        return rank.kernel("Add", [x, out], x.shape)

    def _gate(self, rank: Rank, x: Tensor) -> Tensor:
        h = self.linear(rank, x, self.gate, LAYER0 + "my_gate.down.weight")
        s = rank.kernel("MyGate", [h], h.shape, name="my::gate")
        rank.record(lambda gradient: rank.kernel("MyGateGrad", [gradient, h], h.shape))
        return self.linear(rank, s, self.width, LAYER0 + "my_gate.up.weight")

    def _mlp(self, rank: Rank, x: Tensor) -> Tensor:
        h = self.norm(rank, x, LAYER0 + "pre_mlp_layernorm.weight")
        return rank.checkpointed("mlp", self._gated, h)

    def _gated(self, rank: Rank, h: Tensor) -> Tensor:
        h = self.column(rank, h, 2 * self.inner // rank.run.tp, LAYER0 + "mlp.linear_fc1.weight")
        h = self.swiglu(rank, h)
        return self.row(rank, h, LAYER0 + "mlp.linear_fc2.weight")

    def _experts(self, rank: Rank, x: Tensor) -> Tensor:
        h = self.norm(rank, x, LAYER0 + "pre_mlp_layernorm.weight")
        return rank.checkpointed("moe", self._routed, h)

    def _routed(self, rank: Rank, h: Tensor) -> Tensor:
        run, width = rank.run, self.width
        rows = h.shape[0]
        logits = rank.kernel("MatMulV3", [h, (width, run.experts)], (rows, run.experts), "FLOAT", "aten::mm")
        chosen = rank.kernel("TopKV2", [logits], (rows, self.top_k), "INT64")
        tokens = rank.kernel(
            "MoeTokenPermute", [h, chosen], (rows * self.top_k, width), name="npu::npu_moe_token_permute"
        )
        sent = rank.exchanged(tokens, "ep")
        del tokens
        if run.ep > 1 and run.experts > run.ep:
            sent = rank.kernel("MoeSortChunks", [sent], sent.shape)
        split = self.split_experts and run.tp > 1
        given = rank.gathered(sent, "tp") if split else sent
        del sent
        count, local, part = given.shape[0], run.experts // run.ep, run.tp if split else 1
        inner = self.expert_inner // part
        up = rank.kernel("GroupedMatmul", [given, (local, width, 2 * inner)], (count, 2 * inner), name="npu::npu_gmm")
        gated = rank.kernel("SwiGlu", [up], (count, inner), name="npu::npu_swiglu")
        saved = [] if rank.runs_again("moe_act") else [gated]
        down = rank.kernel("GroupedMatmul", [gated, (local, inner, width)], (count, width), name="npu::npu_gmm")
        back = rank.scattered(down, "tp") if split else down
        del down, gated
        if run.ep > 1 and run.experts > run.ep:
            back = rank.kernel("MoeSortChunks", [back], back.shape)
        home = rank.exchanged(back, "ep")
        del back
        routed = rank.kernel("MoeTokenUnpermute", [home, chosen], (rows, width), name="npu::npu_moe_token_unpermute")
        kept: list[Tensor] = []

        def backward(gradient: Tensor) -> Tensor:
            kept.append(gradient)
            g = rank.kernel("MoeTokenUnpermuteGrad", [gradient, home, chosen], home.shape)
            g = rank.exchanged(g, "ep")
            if run.ep > 1 and run.experts > run.ep:
                g = rank.kernel("MoeSortChunks", [g], g.shape)
            g = rank.gathered(g, "tp") if split else g
            if not saved:
                # As soon as the gradient of the second product's output is there (Megatron-LM d98e8a64
                # megatron/core/transformer/moe/experts.py:1019-1030, ``discard_output_and_register_recompute``).
                saved.append(rank.kernel("SwiGlu", [up], (count, inner), name="npu::npu_swiglu"))
            d = rank.kernel("GroupedMatmul", [g, (local, width, inner)], (count, inner), name="npu::npu_gmm")
            rank.in_place("GroupedMatmulAdd", [saved[0], g], (local, inner, width), "FLOAT")
            rank.ready(LAYER0 + "mlp.experts.weight2")
            del g
            d = rank.kernel("SwiGluGrad", [d, up], up.shape)
            e = rank.kernel("GroupedMatmul", [d, (local, 2 * inner, width)], (count, width), name="npu::npu_gmm")
            rank.in_place("GroupedMatmulAdd", [given, d], (local, width, 2 * inner), "FLOAT")
            rank.ready(LAYER0 + "mlp.experts.weight1")
            del d
            e = rank.scattered(e, "tp") if split else e
            if run.ep > 1 and run.experts > run.ep:
                e = rank.kernel("MoeSortChunks", [e], e.shape)
            e = rank.exchanged(e, "ep")
            f = rank.kernel("MoeTokenPermuteGrad", [e, chosen], (rows, width))
            del e
            r = rank.kernel("MatMulV3", [(rows, run.experts), (run.experts, width)], (rows, width), "FLOAT", "aten::mm")
            rank.in_place("MatMulV2AddFp32", [(run.experts, rows), h], (run.experts, width), "FLOAT")
            rank.ready(LAYER0 + "mlp.router.weight")
            f = rank.kernel("Add", [f, r], f.shape)
            del r
            return rank.kernel("Add", [f, shared_gradient.pop()], f.shape)

        shared_gradient: list[Tensor] = []
        inner_tape: list[Backward] | None = None
        outer = rank.tape
        if outer is not None:
            rank.tape = inner_tape = []
        s = self.column(rank, h, 2 * self.shared // run.tp, LAYER0 + "mlp.shared_experts.linear_fc1.weight")
        s = self.swiglu(rank, s)
        s = self.row(rank, s, LAYER0 + "mlp.shared_experts.linear_fc2.weight")
        rank.tape = outer
        if inner_tape is not None:
            own = inner_tape

            def shared(gradient: Tensor) -> Tensor:
                found = gradient
                while own:
                    found = own.pop()(found)
                shared_gradient.append(found)
                return gradient

            rank.record(backward)
            rank.record(shared)
        return rank.kernel("Add", [routed, s], routed.shape)

    def head(self, rank: Rank, x: Tensor) -> Tensor:
        """Final norm, logits and the loss over a vocabulary split by TP."""
        run = rank.run
        h = self.norm(rank, x, "module.decoder.final_layernorm.weight")
        logits = self.column(rank, h, self.padded(run), "module.output_layer.weight")
        del h
        wide = rank.kernel("Cast", [logits], logits.shape, "FLOAT", "aten::to")
        del logits
        rows = wide.shape[0]
        largest = rank.kernel("ReduceMax", [wide], (rows,), "FLOAT")
        if run.tp > 1:
            rank.exchange("allReduce", "tp", 4 * rows)
        rank.in_place("SubInplace", [wide, largest], wide.shape, "FLOAT")
        del largest
        powers = rank.kernel("Exp", [wide], wide.shape, "FLOAT")
        del wide
        sums = rank.kernel("ReduceSum", [powers], (rows,), "FLOAT")
        if run.tp > 1:
            rank.exchange("allReduce", "tp", 4 * rows)
        rank.in_place("DivInplace", [powers, sums], powers.shape, "FLOAT")
        del sums
        loss = rank.kernel("Log", [(rows,)], (rows,), "FLOAT")

        def backward(gradient: Tensor) -> Tensor:
            del gradient
            narrow = rank.kernel("Cast", [powers], powers.shape, "DT_BF16", "aten::to")
            return narrow

        rank.record(backward)
        return loss


def _once_more(
    attend: Callable[..., Any], rank: Rank, query: Tensor, key: Tensor, value: Tensor
) -> Callable[[Tensor], dict[str, Tensor]]:
    """Backward pass of attention that runs again before it.

    Its query, key and value are kept (Megatron-LM d98e8a64 megatron/core/transformer/attention.py:446, 1555).
    """
    given = [query, key, value]

    def backward(gradient: Tensor) -> dict[str, Tensor]:
        return cast(dict[str, Tensor], attend(rank, *given)[1](gradient))

    return backward


def hidden_design(seed: int) -> Design:
    """A network of its own for each seed; of ten five have experts, six run ring attention."""
    draw = random.Random(f"design {seed}")
    heads = draw.choice((32, 40, 48, 64))
    experts = draw.choice((16, 32, 64)) if seed % 2 else 1
    width = 128 * heads
    return Design(
        seed,
        width,
        heads,
        8,
        256 * draw.randint(36, 80),
        1000 * draw.randint(30, 150) + draw.randint(1, 900),
        experts,
        draw.choice((2, 4)),
        256 * draw.randint(6, 14),
        256 * draw.randint(8, 16),
        draw.random() < 0.6,
        draw.random() < 0.5,
        64 * draw.randint(2, 20) if draw.random() < 0.5 else 0,
        draw.random() < 0.4,
        8 * draw.randint(3, 7),
        draw.randint(1, 3) if experts > 1 and draw.random() < 0.5 else 0,
    )
