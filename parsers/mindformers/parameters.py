"""Parameters of a MindFormers network one by one, as its classes have them: its logs list none with their sizes.

Sources: fd4deebc mindformers/parallel_core/training_graph (core models: base_models/gpt/gpt_layer_specs.py:57-147,
transformer/attention.py:480-491, multi_latent_attention.py:399-447, 596-650, mlp.py:91-116, moe/ffn.py:65-80,
moe/router.py:55-56) and mindformers/models/llama (old classes: llama_transformer.py:232-303, 859-862,
llama_layer.py:359-405).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import ParameterGroups, layer_parameter_groups, norm_parameters
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.memory.statics import embedding_groups, head_groups
from taylor.parsers.mindformers.model_section import model_section
from taylor.parsers.mindformers.read import config_from_source
from taylor.parsers.text.fields import Fields
from taylor.parsers.text.yaml_source import YamlSource
from taylor.register.layers import AttentionSpec, LayerSpec, MoeSpec
from taylor.register.model import ModelSpec

Tensors = dict[str, ParameterGroups]


def rank_parameters(source: YamlSource) -> dict[str, dict[str, int]]:
    """Elements on a rank by block (embedding, dense, layer, head) and name; see `Launcher.rank_parameters`.

    Raises
    ------
    InputError
        When the network has parameters that are not known one by one.
    """
    config = config_from_source(source)
    model, rules, strategy = config.model, config.rules, config.strategy
    if model.mtp_layers:
        cure = "plan it with taylor search, which knows its layers"
        raise InputError(
            "has MTP layers, which small runs cannot distinguish from the head", file=source.file, cure=cure
        )
    section, _, mcore = model_section(Fields(source.data, source.file), [])
    joined = section.raw("mla_qkv_concat" if mcore else "qkv_concat")
    names = _CoreNames(joined is not False) if mcore else _OldNames(joined is True)
    found = {"embedding": _on_rank({"embedding": embedding_groups(model, strategy, rules)}, strategy, rules)}
    kinds = list(model.body_counts)
    for kind in kinds:
        layers = model.layers_of(kind)
        tensors = names.layer(model, layers[0])
        if len(layers) > 1 or _total(tensors) != layer_parameter_groups(model, layers[0]):
            cure = "plan it with taylor search, which counts parameters by layer"
            raise InputError("has parameters that are not known one by one", file=source.file, value=kind, cure=cure)
        block = "dense" if len(kinds) > 1 and kind == kinds[0] else "layer"
        found[block] = _on_rank(tensors, strategy, rules)
    head = head_groups(model, strategy, rules)
    norm = _whole(norm_parameters(model))
    table = ParameterGroups(split=head.split, replicated=head.replicated - model.hidden)
    head_tensors = {"norm": norm} if model.tied_embedding else {"norm": norm, "output": table}
    found["head"] = _on_rank(head_tensors, strategy, rules)
    return found


def _total(tensors: Tensors) -> ParameterGroups:
    return sum(tensors.values(), ParameterGroups())


def _on_rank(tensors: Mapping[str, ParameterGroups], degrees: Any, rules: TrainingRules) -> dict[str, int]:
    latent_ways = degrees.tp if rules.framework.states.splits_latent_projections else 1
    expert_ways = degrees.ep * int(rules.experts_over(degrees.tp))
    return {
        name: int(each.split) // degrees.tp
        + int(each.latent) // latent_ways
        + int(each.replicated)
        + int(each.routed) // expert_ways
        for name, each in tensors.items()
    }


def _split(size: int) -> ParameterGroups:
    return ParameterGroups(split=size)


def _whole(size: int) -> ParameterGroups:
    return ParameterGroups(replicated=size)


def _there(tensors: Tensors) -> Tensors:
    return {name: each for name, each in tensors.items() if each.total}


class _Names:
    """Parameters of a layer by their names.

    Parameters
    ----------
    joined, joined_experts : bool
        Projections of one input are one matrix: in attention and MLPs, in routed experts.
    """

    def __init__(self, *, joined: bool, joined_experts: bool) -> None:
        self.joined, self.joined_experts = joined, joined_experts

    def layer(self, model: ModelSpec, layer: LayerSpec) -> Tensors:
        """Those of a layer of attention and an MLP or experts."""
        norm = _whole(norm_parameters(model))
        found: Tensors = {f"norm {at}": norm for at in range(layer.norm_count)}
        if layer.attention is not None:
            found |= self.attention(model.hidden, layer.attention)
        if layer.mlp is not None:
            found |= self.mlp("mlp", model.hidden, layer.mlp.width, gated=layer.mlp.gated, bias=layer.mlp.bias)
        if layer.moe is not None:
            found |= self.experts(model.hidden, layer.moe)
        return _there(found)

    def attention(self, hidden: int, one: AttentionSpec) -> Tensors:
        """Projections of queries, keys and values, and of the context; norms of queries and keys."""
        parts = {
            "q": one.n_heads * one.head_dim,
            "k": one.n_kv_heads * one.head_dim,
            "v": one.n_kv_heads * one.v_width,
        }
        parts = {"qkv": sum(parts.values())} if self.joined else parts
        found = {f"{name}.weight": _split(hidden * width) for name, width in parts.items()}
        if one.bias:
            found |= {f"{name}.bias": _split(width) for name, width in parts.items()}
        found["proj.weight"] = _split(one.n_heads * one.v_width * hidden)
        if one.output_bias:
            found["proj.bias"] = _whole(hidden)
        if one.qk_norm:
            found |= {f"{name} norm": _whole(one.head_dim) for name in ("q", "k")}
        return found

    def mlp(self, name: str, hidden: int, width: int, *, gated: bool, bias: bool) -> Tensors:
        """An MLP, which a shared expert is too."""
        inward = {"fc1": (1 + gated) * width} if self.joined else {"w1": width, **({"w3": width} if gated else {})}
        found = {f"{name}.{one}.weight": _split(hidden * outer) for one, outer in inward.items()}
        found[f"{name}.fc2.weight"] = _split(width * hidden)
        if bias:
            found |= {f"{name}.{one}.bias": _split(outer) for one, outer in inward.items()}
            found[f"{name}.fc2.bias"] = _whole(hidden)
        return found

    def experts(self, hidden: int, moe: MoeSpec) -> Tensors:
        """Router, routed and shared experts."""
        inner = moe.n_experts * moe.expert_hidden * hidden
        found = {
            "router.weight": _whole(moe.router_rows * hidden),
            "router.bias": _whole(moe.router_rows if moe.correction_bias else 0),
            "shared gate": _whole(hidden if moe.shared_gate else 0),
        }
        sizes = {"w1": 2 * inner, "w2": inner} if self.joined_experts else dict.fromkeys(("w1", "w2", "w3"), inner)
        found |= {f"experts.{name}": ParameterGroups(routed=size) for name, size in sizes.items()}
        return found | self.mlp("shared", hidden, moe.shared_width, gated=moe.gated, bias=False)


class _CoreNames(_Names):
    """Core models: what one input is multiplied with is one matrix, of latent attention where the file says so."""

    def __init__(self, latent_joined: bool) -> None:
        super().__init__(joined=True, joined_experts=True)
        self.latent_joined = latent_joined

    def attention(self, hidden: int, one: AttentionSpec) -> Tensors:
        """As of the base; latent attention's down projections are whole on every rank of TP."""
        mla = one.latent
        if mla is None:
            return super().attention(hidden, one)
        rank, keys = mla.q_lora_rank or 0, mla.kv_lora_rank + mla.qk_rope_head_dim
        down = {"qkv": rank + keys} if self.latent_joined else {"q down": rank, "kv down": keys}
        return {
            **{name: ParameterGroups(latent=hidden * width) for name, width in down.items()},
            "q up": _split((rank or hidden) * one.n_heads * one.qk_width),
            "kv up": _split(mla.kv_lora_rank * one.n_heads * (mla.qk_nope_head_dim + mla.v_head_dim)),
            "proj": _split(one.n_heads * one.v_width * hidden),
            "q norm": _whole(rank),
            "kv norm": _whole(mla.kv_lora_rank),
        }


class _OldNames(_Names):
    """Old classes: three matrices of attention and three of an MLP, unless the file joins those of one input."""

    def __init__(self, joined: bool) -> None:
        super().__init__(joined=joined, joined_experts=False)

    def attention(self, hidden: int, one: AttentionSpec) -> Tensors:
        """As of the base; research/deepseek3 has seven matrices of latent attention, which are not listed here."""
        return {} if one.latent is not None else super().attention(hidden, one)
