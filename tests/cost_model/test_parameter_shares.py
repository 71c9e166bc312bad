"""The weights of a layer, tensor by tensor with its shape, and which of them tensor-parallel ranks split.

Shapes are those of the papers' and frameworks' modules; the product counts by formulas instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import prod

import pytest

from taylor.cost_model.job.parameters import ParameterGroups, layer_groups, layer_parameter_groups, total_parameters
from taylor.register.layers import (
    GATED_DELTA,
    KIMI_DELTA,
    LIGHTNING,
    AttentionSpec,
    IndexerSpec,
    LayerSpec,
    LinearAttentionSpec,
    MambaSpec,
    MlaSpec,
    MlpSpec,
    MoeSpec,
)
from taylor.register.model import MTP, ModelSpec

H = 97
Tensor = tuple[str, tuple[int, ...]]


def model(norm_bias: bool = False, **changes: object) -> ModelSpec:
    return ModelSpec("m", 3, H, 2, 2, 5, 11, 13, norm_bias=norm_bias, **changes)


def summed(tensors: Iterator[Tensor] | list[Tensor]) -> ParameterGroups:
    """The elements of tensors by how they are split."""
    counts = {"split": 0, "latent": 0, "replicated": 0, "routed": 0}
    for how, shape in tensors:
        counts[how] += prod(shape)
    return ParameterGroups(**counts)


def counted(layer: LayerSpec) -> ParameterGroups:
    return layer_parameter_groups(model(), layer)


def grid(**values: tuple[object, ...]) -> Iterator[dict[str, object]]:
    for chosen in itertools.product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


def head_part(heads: int, v: int, given: dict[str, object]) -> Iterator[Tensor]:
    """What follows the context, in every softmax attention."""
    rank, groups = given.get("output_rank"), given.get("output_groups", 1)
    if rank is None:
        yield "split", (heads, v, H)
    else:  # Each group's heads go to a rank of its own; all of these to the output together.
        assert isinstance(groups, int)
        yield "split", (heads, v, rank)
        yield from [("split", (rank, H))] * groups
    if given.get("output_bias"):
        yield "replicated", (H,)
    yield "split", (H, given["gate"])
    if given["sinks"]:
        yield "split", (heads,)


@pytest.mark.parametrize("bias", [False, True])
def test_plain_attention_has_projections_and_what_is_asked_for_besides(bias: bool) -> None:
    heads, groups, d = 6, 3, 7
    for given in grid(
        v_head_dim=(None, 4), output_bias=(False, True), qk_norm=(False, True), qk_norm_weights=(None, 31),
        gate=(0, 17), sinks=(False, True), shared_kv=(False, True), q_rank=(None, 19), output_rank=(None, 23),
        output_groups=(1, 2), reused_kv=(False, True),
    ):  # fmt: skip
        v = given["v_head_dim"] or d
        tensors: list[Tensor] = list(head_part(heads, v, given))
        if given["q_rank"] is None:
            tensors.append(("split", (H, heads, d)))
        else:  # Down, a norm, up.
            tensors += [("latent", (H, 19)), ("replicated", (19,)), ("split", (19, heads, d))]
        widths = [heads * d]
        if not given["reused_kv"]:
            widths.append(groups * d)
            tensors.append(("split", (H, groups, d)))
            if not given["shared_kv"]:
                widths.append(groups * v)
                tensors.append(("split", (H, groups, v)))
        tensors += [("split", (width,)) for width in widths if bias]
        if given["qk_norm"]:
            weights = [("replicated", (d,))] * 2 if given["qk_norm_weights"] is None else [("replicated", (31,))]
            tensors += weights
        layer = LayerSpec("a", AttentionSpec(heads, groups, d, bias=bias, **given), norms=0)
        assert counted(layer) == summed(tensors), given


def test_latent_attention_has_two_ranks_with_norms_and_heads_made_of_them() -> None:
    heads, kv, rope, nope, v = 6, 29, 3, 5, 4
    for given in grid(bias=(False, True), output_bias=(False, True), gate=(0, 17), sinks=(False, True)):
        for q_rank, indexed in itertools.product((None, 31), (None, 1009)):
            latent = MlaSpec(kv, rope, nope, v, q_rank)
            tensors: list[Tensor] = list(head_part(heads, v, given))
            tensors += [("latent", (H, kv)), ("latent", (H, rope)), ("replicated", (kv,))]
            tensors += [("split", (kv, heads, nope)), ("split", (kv, heads, v))]
            if q_rank is None:
                tensors.append(("split", (H, heads, nope + rope)))
            else:
                tensors += [("latent", (H, q_rank)), ("replicated", (q_rank,))]
                tensors.append(("split", (q_rank, heads, nope + rope)))
            if given["bias"]:
                tensors += [("replicated", (kv + rope,)), ("replicated", (q_rank or 0,))]
            indexer = None if indexed is None else IndexerSpec(2, 3, 4, indexed)
            tensors += [("replicated", (indexed,))] if indexed else []
            attention = AttentionSpec(heads, heads, 7, latent=latent, indexer=indexer, **given)
            assert counted(LayerSpec("a", attention, norms=0)) == summed(tensors), (given, q_rank, indexed)


def test_mamba_has_the_tensors_of_its_papers() -> None:
    inner, heads, state, groups, kernel = 30, 5, 7, 2, 4
    for given in grid(
        conv_bias=(False, True), projection_bias=(False, True), inner_norms=(False, True), gate_norm=(False, True)
    ):
        for rank in (None, 11):
            spec = MambaSpec(inner, heads, state, groups, kernel, rank, **given)
            channels = inner if rank is not None else inner + 2 * groups * state
            tensors: list[Tensor] = [("split", (channels, kernel)), ("split", (inner, H))]
            if given["conv_bias"]:
                tensors.append(("split", (channels,)))
            if rank is not None:
                inputs = 2 * inner
                tensors += [("split", (inner, rank)), ("split", (inner, state)), ("split", (inner, state))]
                tensors += [("split", (rank, inner)), ("split", (inner,))]  # The time step with its bias.
                tensors += [("split", (inner, state)), ("split", (inner,))]  # A and D.
                if given["inner_norms"]:
                    tensors += [("replicated", (rank,)), ("replicated", (state,)), ("replicated", (state,))]
            else:
                inputs = 2 * inner + 2 * groups * state + heads
                tensors += [("split", (heads,))] * 3  # A, D and the bias of the time step.
                if given["gate_norm"]:
                    tensors.append(("split", (inner,)))
            tensors.append(("split", (H, inputs)))
            if given["projection_bias"]:
                tensors += [("split", (inputs,)), ("replicated", (H,))]
            assert counted(LayerSpec("m", mamba=spec, norms=0)) == summed(tensors), (given, rank)


def test_linear_attentions_have_the_tensors_of_their_modules() -> None:
    keys, values, k, v = 3, 6, 5, 7
    for style, kernel, rank, full in itertools.product(
        (GATED_DELTA, KIMI_DELTA, LIGHTNING), (0, 4), (None, 11), (False, True)
    ):
        spec = LinearAttentionSpec(style, keys, values, k, v, kernel, rank, full)
        tensors: list[Tensor] = [("split", (H, keys, k))] * 2 + [("split", (H, values, v)), ("split", (values, v, H))]
        tensors += [("split", (keys, k, kernel))] * 2 + [("split", (values, v, kernel))]
        if style == GATED_DELTA:
            tensors += [("split", (H, values, v)), ("split", (H, values)), ("split", (H, values))]
            tensors += [("split", (values,)), ("split", (values,)), ("replicated", (v,))]
        elif style == KIMI_DELTA:
            low = v if rank is None else rank
            tensors += [("replicated", (H, low)), ("split", (low, values, k)), ("split", (values, k))]
            tensors += [("split", (H, values)), ("split", (values,)), ("replicated", (v,))]
            gate: list[Tensor] = [("replicated", (H, low)), ("split", (low, values, v))]
            tensors += [("split", (H, values, v))] if full else gate
        else:
            tensors += [("split", (H, values, v)), ("split", (values, v))]
        assert counted(LayerSpec("l", linear=spec, norms=0)) == summed(tensors), (style, kernel, rank, full)


def test_an_mlp_has_its_matrices_and_a_bias_of_each() -> None:
    for gated, bias in itertools.product((False, True), repeat=2):
        tensors: list[Tensor] = [("split", (H, 19))] * (2 if gated else 1) + [("split", (19, H))]
        if bias:
            tensors += [("split", (19,))] * (2 if gated else 1) + [("replicated", (H,))]
        assert counted(LayerSpec("d", mlp=MlpSpec(19, gated, bias), norms=0)) == summed(tensors)


def test_experts_have_a_router_and_matrices_each_and_shared_ones_are_an_mlp() -> None:
    for given in grid(
        n_shared=(0, 2), shared_hidden=(None, 23), correction_bias=(False, True), shared_gate=(False, True),
        router_bias=(False, True), expert_bias=(False, True), latent=(None, 13), gated=(False, True),
    ):  # fmt: skip
        n, width = 5, 11
        outer = given["latent"] or H
        into = 2 if given["gated"] else 1
        one: list[tuple[object, ...]] = [(outer, width)] * into + [(width, outer)]
        one += [(width,)] * into + [(outer,)] if given["expert_bias"] else []
        tensors: list[Tensor] = [("routed", shape) for shape in one] * n
        shared = given["n_shared"] * width if given["shared_hidden"] is None else 23
        tensors += [("split", (H, shared))] * into + [("split", (shared, H))]
        tensors.append(("replicated", (H, n)))
        tensors += [("replicated", (n,))] * (given["correction_bias"] + given["router_bias"])
        tensors += [("replicated", (H,))] * given["shared_gate"]
        if given["latent"]:
            tensors += [("latent", (H, 13)), ("latent", (13, H))]
        layer = LayerSpec("e", moe=MoeSpec(n, 2, width, **given), norms=0)
        assert counted(layer) == summed(tensors), given


def test_a_layer_has_a_norm_ahead_of_its_mixer_and_one_ahead_of_what_follows() -> None:
    attention, mlp = AttentionSpec(2, 2, 5), MlpSpec(19)
    for norm_bias, norms, extra in itertools.product((False, True), (None, 0, 1, 4), (0, 41)):
        for parts in ({"attention": attention}, {"mlp": mlp}, {"attention": attention, "mlp": mlp}):
            layer = LayerSpec("x", norms=norms, extra=extra, **parts)
            bare = summed([])
            for name, part in parts.items():
                bare += counted(LayerSpec("x", norms=0, **{name: part}))
            count = len(parts) if norms is None else norms
            own = [("replicated", (H,))] * count * (2 if norm_bias else 1)
            found = layer_parameter_groups(model(norm_bias), layer)
            assert found == bare + summed([*own, ("replicated", (extra,))])


def test_a_model_counts_its_tables_once_where_they_are_one_and_mtp_modules_when_asked() -> None:
    for tied, learned, mtp, norm_bias in itertools.product((False, True), (0, 17), (0, 2), (False, True)):
        spec = model(norm_bias, tied_embedding=tied, learned_positions=learned, mtp_layers=mtp, extra_parameters=43)
        norm = 2 * H if norm_bias else H
        body = 3 * layer_groups(spec, "dense").total
        tables = 13 * H + learned * H + (0 if tied else 13 * H)
        assert total_parameters(spec) == body + tables + norm + 43
        if mtp:
            module = layer_groups(spec, MTP).total
            assert module == layer_groups(spec, "dense").total + 2 * H * H + 3 * norm
            assert total_parameters(spec, with_mtp=True) == total_parameters(spec) + mtp * module
