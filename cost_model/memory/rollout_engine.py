"""Memory of the engine that generates samples: its weights in its own layout, and the cache of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from taylor.cost_model.job.parameters import ParameterGroups, embedding_parameters, head_parameters, layer_groups
from taylor.cost_model.memory.statics import MIB
from taylor.register.layers import AttentionSpec
from taylor.register.model import ModelSpec

WHOLE, FREE = "whole", "free"
"""What an engine's share of memory is a share of: the card's whole memory (vLLM's ``gpu_memory_utilization``), or what
is free when it starts (SGLang's ``mem_fraction_static``: sgl-project/sglang v0.5.8
python/sglang/srt/model_executor/model_runner_kv_cache_mixin.py:111-144)."""

ASLEEP_ALONE_MIB, ASLEEP_IN_GROUP_MIB = 774.0, 2440.0
"""What the process of a sleeping engine keeps of a card, by nvidia-smi: its context, and communicators where it has
several ranks (NVIDIA-NeMo/RL issue 223: vLLM at TP1 and TP2; vllm-project/vllm pull request 51485: about 1 GiB of
communicators at TP4). CUDA graphs stay too (verl 1dda039b verl/trainer/config/rollout/rollout.yaml:54-58) and come on
top: no law of their size is known."""


@dataclass(frozen=True)
class RolloutEngine:
    """The engine that generates samples, and its layout.

    Parameters
    ----------
    name : str
        ``vllm``, ``sglang``, ….
    tp, pp, dp : int
        Ranks of one engine: tensors split, layers split, attention replicated.
    experts_split : bool
        Experts are dealt to all ranks of a pipeline stage; else each is split by `tp`.
    weight_bytes : int
        Bytes of a matrix's element.
    memory_share : float
        Fraction of memory for weights and key-value cache, 0 to 1.
    share_of : str
        `WHOLE` or `FREE`.
    concurrent : int
        Most samples of one engine at once.
    cache_bytes : int
        Bytes of an element of the key-value cache.
    """

    name: str
    tp: int = 1
    pp: int = 1
    dp: int = 1
    experts_split: bool = False
    weight_bytes: int = 2
    memory_share: float = 0.5
    share_of: str = WHOLE
    concurrent: int = 256
    cache_bytes: int = 2

    @property
    def cards(self) -> int:
        """Cards of one engine."""
        return self.tp * self.pp * self.dp

    @property
    def asleep_mib(self) -> float:
        """What it keeps of a card while it sleeps, its graphs left out, MiB."""
        return ASLEEP_ALONE_MIB if self.cards == 1 else ASLEEP_IN_GROUP_MIB

    def weights_mib(self, model: ModelSpec) -> float:
        """Weights on a card, MiB; layers are spread evenly over the stages, and one of several has one of the ends."""
        split_experts = self.tp * self.dp if self.experts_split else self.tp
        layers = sum(
            count * self._layer_bytes(layer_groups(model, kind), split_experts)
            for kind, count in model.body_counts.items()
        )
        tables = head_parameters(model)
        if self.pp == 1 and not model.tied_embedding:
            tables += embedding_parameters(model)
        return float(layers / self.pp + 2 * tables / self.tp) / MIB

    def _layer_bytes(self, groups: ParameterGroups, split_experts: int) -> float:
        """A layer's weights on a card; projections to latent widths are whole on every rank.

        vllm-project/vllm b863fe5b vllm/model_executor/models/deepseek_v2.py (``DeepseekV2MLAAttention.__init__``:
        ``fused_qkv_a_proj`` with ``disable_tp``, ``kv_a_proj_with_mqa`` a ``ReplicatedLinear``), nemotron_h.py
        (``fc1_latent_proj``); sgl-project/sglang 3e4a39ee python/sglang/srt/models/deepseek_v2.py
        (``fused_qkv_a_proj_with_mqa``).
        """
        matrices = groups.split / self.tp + groups.latent + groups.routed / split_experts
        return self.weight_bytes * matrices + 2 * groups.replicated

    def pool_mib(self, memory_mib: float, resident_mib: float) -> float:
        """Weights and cache that the engine takes of a card, MiB.

        Parameters
        ----------
        memory_mib : float
            The card's whole memory.
        resident_mib : float
            What others have of it when the engine takes its part.
        """
        return self.memory_share * (memory_mib if self.share_of == WHOLE else memory_mib - resident_mib)

    def cache_mib(self, model: ModelSpec, tokens: int) -> float:
        """Keys and values that one sample keeps on a card, MiB; the states of recurrent layers are not counted.

        Parameters
        ----------
        tokens : int
            Tokens of the sample, prompt included.
        """
        layers = sum(
            count * self._kept_elements(layer.attention, tokens)
            for kind, count in model.body_counts.items()
            for layer in model.layers_of(kind)
            if layer.attention is not None
        )
        return float(layers) * self.cache_bytes / self.pp / MIB

    def _kept_elements(self, attention: AttentionSpec, tokens: int) -> float:
        """Elements of one layer on a card: latent attention keeps one vector a token, on every rank."""
        if attention.reused_kv:
            return 0.0
        kept = tokens if attention.window is None else min(tokens, attention.window)
        if attention.compression:
            kept += tokens // attention.compression
        if attention.latent is not None:
            return float(kept * (attention.latent.kv_lora_rank + attention.latent.qk_rope_head_dim))
        heads = max(1.0, attention.n_kv_heads / self.tp)
        width = attention.qk_width + (0 if attention.shared_kv else attention.v_width)
        return kept * heads * width
