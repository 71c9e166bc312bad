"""Low-rank adapters beside frozen matrices (LoRA, Hu et al. 2021, arXiv:2106.09685; QLoRA, arXiv:2305.14314).

An adapter of rank r beside a matrix of `in` columns and `out` rows is a matrix A of r x in and a matrix B of out x r;
their product is added to the matrix's own. They alone train: the frozen matrices need no gradients and no optimizer
states, their backward makes the input's gradient alone, and they save no input.

Sources: Megatron-Bridge 067f987d src/megatron/bridge/peft/lora.py:92-160, lora_layers.py:60-92, utils.py:923-1280;
peft 5d602fdb src/peft/tuners/lora/tp_layer.py:95-260; MindSpeed-LLM c77308a1
mindspeed_llm/features_manager/finetune/lora.py:12-30.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Collection

from taylor.base.errors import InputError

JOINED_QKV, LATENTS, OUTPUT, MIXER_IN, MIXER_OUT = "qkv", "latents", "output", "mixer in", "mixer out"
JOINED_UP, DOWN = "gate and up", "down"
QUERY, KEY, VALUE, GATE, UP = "query", "key", "value", "gate", "up"
TARGETS = (JOINED_QKV, LATENTS, OUTPUT, MIXER_IN, MIXER_OUT, JOINED_UP, DOWN, QUERY, KEY, VALUE, GATE, UP)
"""Matrices that an adapter can stand beside: queries, keys and values as one matrix or each alone, the projections to
and from latents, the output's, those into and out of a mixer without softmax, gate and up as one or each alone, down.
MLP, shared and routed experts alike."""

EMBEDDING, HEAD, BESIDE, ROUTERS = "embedding", "head", "beside", "routers"
"""Parts of a model that are frozen or trained by themselves: its ends, what `ModelSpec.extra_parameters` counts, as a
vision tower, and the experts' routers with the gates of shared experts."""
SAVED_NAMES = {
    "embed_tokens": EMBEDDING,
    "wte": EMBEDDING,
    "word_embeddings": EMBEDDING,
    "tok_embeddings": EMBEDDING,
    "lm_head": HEAD,
    "output_layer": HEAD,
    "all-embedding": EMBEDDING,
}
"""Modules that can train whole beside adapters, by their names in models of Hugging Face and Megatron."""

TARGET_NAMES = {
    "linear_qkv": (JOINED_QKV,),
    "linear_proj": (OUTPUT,),
    "linear_fc1": (JOINED_UP,),
    "linear_fc2": (DOWN,),
    "linear_q_proj": (LATENTS,),
    "linear_q_down_proj": (LATENTS,),
    "linear_q_up_proj": (LATENTS,),
    "linear_kv_down_proj": (LATENTS,),
    "linear_kv_up_proj": (LATENTS,),
    "in_proj": (MIXER_IN,),
    "out_proj": (MIXER_OUT,),
    "q_proj": (QUERY,),
    "k_proj": (KEY,),
    "v_proj": (VALUE,),
    "o_proj": (OUTPUT,),
    "gate_proj": (GATE,),
    "up_proj": (UP,),
    "down_proj": (DOWN,),
    "c_attn": (JOINED_QKV,),
    "c_fc": (JOINED_UP,),
    "c_proj": (OUTPUT, DOWN),
    "qkv_proj": (JOINED_QKV,),
    "gate_up_proj": (JOINED_UP,),
    "fc1": (JOINED_UP,),
    "fc2": (DOWN,),
    "w1": (GATE,),
    "w2": (DOWN,),
    "w3": (UP,),
    "Wqkv": (JOINED_QKV,),
    "query_key_value": (JOINED_QKV,),
    "dense": (OUTPUT,),
    "dense_h_to_4h": (JOINED_UP,),
    "dense_4h_to_h": (DOWN,),
    "in_proj_qkvz": (MIXER_IN,),
    "in_proj_ba": (),
    "x_proj": (),
    "dt_proj": (),
    "gate": (),
    "all-router": (),
    "router": (),
    "shared_expert_gate": (),
}
"""Targets by the names of Megatron-LM's and Hugging Face's modules. Latent attention's projections count together: a
file that names one of them and not all gets an adapter beside each. Adapters of a router and of small
projections, of a few thousand parameters, are not counted."""

MEGATRON_TARGETS = tuple(sorted((JOINED_QKV, OUTPUT, JOINED_UP, DOWN)))
"""Megatron-Bridge's default (lora.py:145): every name stands for a matrix that a layer may lack."""
ALL_MEGATRON = tuple(sorted((*MEGATRON_TARGETS, LATENTS, MIXER_IN, MIXER_OUT)))
ALL_HUGGING_FACE = tuple(sorted((QUERY, KEY, VALUE, LATENTS, OUTPUT, MIXER_IN, MIXER_OUT, GATE, UP, DOWN)))
"""All linear modules of a layer but the router, in a model of Megatron's and of Hugging Face's."""


@dataclass(frozen=True)
class Adapters:
    """Low-rank adapters of a job.

    Parameters
    ----------
    rank : int
        Inner width r, at least 1; 0 where nothing trains beside the frozen matrices (`FROZEN`).
    targets : tuple of str
        Names of `TARGETS`, in order; none under rank 0.
    dropout : bool
        Each adapter's input passes a dropout: a copy of it and its mask are kept.
    base_bytes : float or None
        Bytes a frozen parameter of a layer's matrices with its scales (QLoRA); None: the compute type.
    gathers : bool
        Both matrices are split over TP and what they make is gathered (Megatron-Bridge's ``ParallelLinearAdapter``).
        Off: the one whose side is not split over TP is whole on every rank (peft's ``LoraParallelLinear``).
    shared_by_experts : bool
        The routed experts of a rank share one adapter (Megatron-Bridge's ``share_expert_adapters``). Off: one each.
    beside_experts : bool
        Routed experts have adapters. Off (Hugging Face's joined experts, which are no linear modules): they are frozen
        alone.
    saved : tuple of str
        ``EMBEDDING`` or ``HEAD``, or both: a copy of it trains whole, and computes, beside the frozen one, one for each
        though the model ties them (peft 0.21.2 peft/utils/other.py:598-653, ``ModulesToSaveWrapper``).
    decomposed : bool
        A trained magnitude a row scales the matrix and its adapter together (DoRA, Liu et al. 2024, arXiv:2402.09353;
        peft 0.21.2 peft/tuners/lora/dora.py:62-166, variants.py, ``DoraLinearVariant``; under `gathers`
        Megatron-Bridge's, 067f987d src/megatron/bridge/peft/dora_layers.py).
    """

    rank: int
    targets: tuple[str, ...] = MEGATRON_TARGETS
    dropout: bool = False
    base_bytes: float | None = None
    gathers: bool = False
    shared_by_experts: bool = False
    beside_experts: bool = True
    saved: tuple[str, ...] = ()
    decomposed: bool = False

    def __post_init__(self) -> None:
        if self.rank < bool(self.targets):
            raise ValueError(f"an adapter's rank is at least 1, not {self.rank}")
        unknown = sorted(set(self.targets) - set(TARGETS))
        if unknown or (self.rank and not self.targets):
            raise ValueError(f"targets are names of register.adapters.TARGETS, not {unknown or 'none'}")
        if not set(self.saved) <= {EMBEDDING, HEAD}:
            raise ValueError(f"an embedding and a head can be saved, not {self.saved}")

    def reaches(self, *targets: str) -> bool:
        """Return whether one of the matrices has an adapter."""
        return not set(targets).isdisjoint(self.targets)


FROZEN = Adapters(0, ())
"""Nothing trains: a part whose weights are frozen in a job that trains others whole."""

_SEVERAL = re.compile(r"\(([a-z0-9]+(?:\|[a-z0-9]+){0,15})\)_proj\$?\Z")


def _spelled(name: str) -> list[str]:
    """Last parts of the modules that a name stands for: ``layers.[0-9]+.(mlp|self_attn).(up|down)_proj`` for two."""
    several = _SEVERAL.search(name[-200:])
    return [f"{part}_proj" for part in several[1].split("|")] if several else [name.rsplit(".", 1)[-1]]


def saved_ends(names: Collection[str], **where: Any) -> tuple[str, ...]:
    """Embedding and head, where a copy of them trains whole (peft's ``modules_to_save``).

    Parameters
    ----------
    names : collection of str
        Modules as the file has them; the last part of a dotted name counts.
    where : Any
        Place of the names, for `InputError`.

    Raises
    ------
    InputError
        When another module trains so.
    """
    found: set[str] = set()
    for name in names:
        end = SAVED_NAMES.get(name.rsplit(".", 1)[-1])
        if end is None:
            problem = (
                "trains a module whole beside the adapters that is neither embedding nor head, which is not modelled"
            )
            cure = f"leave it out; modelled are {', '.join(SAVED_NAMES)}"
            raise InputError(problem, value=name[:60], cure=cure, **where)
        found.add(end)
    return tuple(sorted(found))


def named_targets(names: Collection[str], everything: Collection[str] | None, **where: Any) -> tuple[str, ...]:
    """Targets that a file names.

    Parameters
    ----------
    names : collection of str
        As the file has them; the last part of a dotted name counts.
    everything : collection of str or None
        What ``all-linear`` and ``all`` stand for; None: the tool does not know these words.
    where : Any
        Place of the names, for `InputError`.

    Raises
    ------
    InputError
        When a name is unknown.
    """
    found: set[str] = set()
    for name in names:
        if everything is not None and name in ("all-linear", "all"):
            found |= set(everything)
            continue
        for last in _spelled(name):
            if last not in TARGET_NAMES:
                known = ", ".join(TARGET_NAMES)
                problem = f"names the module {name!r}, beside which no adapter is modelled (known: {known})"
                raise InputError(problem, **where)
            found |= set(TARGET_NAMES[last])
    return tuple(sorted(found))
