"""The parts of a layer: the mixer of its tokens, and the part for each token separately."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

FULL_REACH, SLIDING, CHUNKED, BOTH_WAYS = "full", "sliding", "chunked", "both"
"""Reach of a query of softmax attention: everything before it, the last `window` tokens, its own block of them; without
a causal mask, all of the sequence or of its own block."""

REACHES = (FULL_REACH, SLIDING, CHUNKED, BOTH_WAYS)

GATED_DELTA, KIMI_DELTA, LIGHTNING = "gdn", "kda", "lightning"
"""Linear attentions: gated delta net (Yang et al. 2024, arXiv:2412.06464), Kimi delta attention (Kimi Team 2025,
arXiv:2510.26692), lightning attention (Qin et al. 2024, arXiv:2401.04658)."""

STYLES = (GATED_DELTA, KIMI_DELTA, LIGHTNING)


@dataclass(frozen=True)
class MlaSpec:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434 §2.1): ranks and head sizes in elements."""

    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None


@dataclass(frozen=True)
class IndexerSpec:
    """Indexer that chooses the tokens for sparse attention (DeepSeek-V3.2, arXiv:2512.02556 §2.1).

    Parameters
    ----------
    n_heads, head_dim : int
        The indexer's query heads; its key is one head. No heads: the layer reuses an earlier layer's choice of tokens.
    top_k : int
        Tokens chosen for a query.
    parameters : int
        Parameters of one layer's indexer, whole on every rank.
    """

    n_heads: int
    head_dim: int
    top_k: int
    parameters: int

    @property
    def reused(self) -> bool:
        """Return whether the choice of tokens is an earlier layer's."""
        return self.n_heads == 0


@dataclass(frozen=True)
class AttentionSpec:
    """Softmax attention of one layer; sizes in elements.

    Parameters
    ----------
    v_head_dim : int or None
        Head size of the values where it is not `head_dim`.
    latent : MlaSpec or None
        Latent projections in place of plain ones; `n_heads` counts alone then.
    reach : str
        ``full``, ``sliding`` or ``chunked``, the latter two over `window` tokens; ``both`` without a causal mask,
        over `window` tokens where it is given.
    bias, output_bias : bool
        Biases of Q, K, V and of the output.
    qk_norm : bool
        Norms on queries and keys.
    qk_norm_weights : int or None
        Their weights together; one head of each when not given.
    gate : int
        Width of the gate on the context, projected from the input; 0 for none.
    sinks : bool
        One learned logit a head (gpt-oss).
    shared_kv : bool
        Values are the keys' projection (Gemma 4's global layers).
    q_rank, output_rank : int or None
        Low-rank projections of queries and of the output, the latter in `output_groups` groups of heads
        (DeepSeek-V4).
    indexer : IndexerSpec or None
        Sparse attention.
    compression : int
        Tokens that one further key stands for, beside those of the window (DeepSeek-V4's compressed attentions, of
        whose keys an indexer chooses `top_k`); 0 for none.
    reused_kv : bool
        Keys and values are an earlier layer's (Gemma 4's last layers).
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    v_head_dim: int | None = None
    latent: MlaSpec | None = None
    reach: str = FULL_REACH
    window: int | None = None
    bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    qk_norm_weights: int | None = None
    gate: int = 0
    sinks: bool = False
    shared_kv: bool = False
    q_rank: int | None = None
    output_rank: int | None = None
    output_groups: int = 1
    indexer: IndexerSpec | None = None
    compression: int = 0
    reused_kv: bool = False

    def __post_init__(self) -> None:
        if self.reach not in REACHES:
            raise ValueError(f"reach {self.reach!r} is none of {', '.join(REACHES)}")

    @property
    def qk_width(self) -> int:
        """Size of a head's query and key."""
        latent = self.latent
        return self.head_dim if latent is None else latent.qk_nope_head_dim + latent.qk_rope_head_dim

    @property
    def v_width(self) -> int:
        """Size of a head's value and context."""
        if self.latent is not None:
            return self.latent.v_head_dim
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    def seen(self, seq_length: int, *, causal: bool) -> float:
        """Keys that a query looks at, averaged over a sequence of this number of tokens.

        Parameters
        ----------
        causal : bool
            The kernel skips what the causal mask removes; else every key counts.
        """
        if self.compression:
            return self._near(seq_length, causal) + self._compressed(seq_length, causal)
        if self.indexer is not None and causal and self.indexer.top_k < seq_length:
            return _average_window(self.indexer.top_k, seq_length)
        return self._near(seq_length, causal)

    def _near(self, seq_length: int, causal: bool) -> float:
        if self.reach == BOTH_WAYS:
            return seq_length if self.window is None or not causal else min(self.window, seq_length)
        if self.reach == FULL_REACH or self.window is None or self.window >= seq_length or not causal:
            return seq_length * (0.5 if causal else 1.0)
        if self.reach == CHUNKED:
            return self.window / 2
        return _average_window(self.window, seq_length)

    def _compressed(self, seq_length: int, causal: bool) -> float:
        """Compressed keys that a query looks at; an indexer's choice counts once there are more than it takes."""
        far = seq_length if self.indexer is None else self.indexer.top_k * self.compression
        if not causal:
            return seq_length / self.compression
        return _average_window(min(far, seq_length), seq_length) / self.compression


def _average_window(window: int, seq_length: int) -> float:
    """Keys in a causal window of this number of tokens, averaged: the first queries see fewer."""
    return window - window * window / (2 * seq_length)


@dataclass(frozen=True)
class MambaSpec:
    """A Mamba layer's mixer; sizes in elements.

    Parameters
    ----------
    inner : int
        Width of the inner stream, heads times head size.
    n_heads : int
        Heads of Mamba-2; with `dt_rank` given (Mamba-1) every channel is one.
    state : int
        Size of a channel's state.
    n_groups : int
        Groups with common B and C (Mamba-2).
    conv_kernel : int
        Taps of the causal convolution.
    dt_rank : int or None
        Rank of the time step's projection: Mamba-1 (Gu & Dao 2023, arXiv:2312.00752); none for Mamba-2
        (Dao & Gu 2024, arXiv:2405.21060).
    conv_bias, projection_bias : bool
        Biases of the convolution and of the projections.
    inner_norms : bool
        Norms on time step, B and C (Jamba).
    gate_norm : bool
        A gated norm on the inner stream (Mamba-2).
    """

    inner: int
    n_heads: int
    state: int
    n_groups: int = 1
    conv_kernel: int = 4
    dt_rank: int | None = None
    conv_bias: bool = True
    projection_bias: bool = False
    inner_norms: bool = False
    gate_norm: bool = True

    @property
    def conv_width(self) -> int:
        """Channels that the convolution runs over: the inner stream, with B and C in Mamba-2."""
        return self.inner + (0 if self.dt_rank is not None else 2 * self.n_groups * self.state)


@dataclass(frozen=True)
class LinearAttentionSpec:
    """Linear attention of one layer; sizes in elements.

    Parameters
    ----------
    style : str
        ``gdn``, ``kda`` or ``lightning``.
    key_heads, value_heads : int
        Heads of queries and keys, and of values.
    key_head_dim, value_head_dim : int
        Their sizes.
    conv_kernel : int
        Taps of the short convolutions; 0 for none.
    gate_rank : int or None
        Rank of the decay's and the gate's projections (``kda``), see `low_rank`.
    full_gate : bool
        The gate's projection is of full rank (Kimi K3).
    full_decay : bool
        The decay's projection is of full rank (Ling 3).
    """

    style: str
    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int = 4
    gate_rank: int | None = None
    full_gate: bool = False
    full_decay: bool = False

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise ValueError(f"style {self.style!r} is none of {', '.join(STYLES)}")

    @property
    def key_width(self) -> int:
        """Width of the queries, and of the keys."""
        return self.key_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """Width of the values, of the gate and of the context."""
        return self.value_heads * self.value_head_dim

    @property
    def decay_width(self) -> int:
        """Width of queries, or keys, repeated for every head of values; of the decays where every channel has one."""
        return self.value_heads * self.key_head_dim

    @property
    def low_rank(self) -> int:
        """Rank of the decay's and the gate's projections (``kda``); one value head where nothing else is said.

        fla-org/flash-linear-attention bc3b101d fla/layers/kda.py, ``f_proj`` and ``g_proj``.
        """
        return self.value_head_dim if self.gate_rank is None else self.gate_rank

    @property
    def low_ranks(self) -> int:
        """Projections of low rank out of the decay's and the gate's (``kda``)."""
        return 2 - self.full_gate - self.full_decay


@dataclass(frozen=True)
class MlpSpec:
    """A dense MLP: its width, whether it has a gate (three matrices), whether it has biases."""

    width: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True)
class MoeSpec:
    """Mixture of experts.

    Parameters
    ----------
    n_experts, top_k : int
        Routed experts, and how many of them a token visits.
    expert_hidden : int
        Width of one routed expert's MLP.
    n_shared : int
        Shared experts, each `expert_hidden` wide unless `shared_hidden` (the total width) is given.
    first_dense : int
        Dense layers at the front of a model without a `pattern`.
    correction_bias : bool
        The router has one bias an expert (loss-free balancing).
    shared_gate : bool
        The shared expert has a gate vector (Qwen2-MoE).
    router_bias, expert_bias : bool
        Biases of the router's GEMM and of the experts' GEMMs (gpt-oss).
    latent : int or None
        Width of the experts' input and output where tokens are projected to it and back (Nemotron 3).
    gated : bool
        Three matrices an expert (SwiGLU) instead of two; a model without a `pattern` says it itself.
    n_empty : int
        Further experts that hold nothing and return their input (LongCat-Flash, arXiv:2509.01322 §2.1): rows of the
        router, among which a token's `top_k` are, too.
    n_groups, top_groups : int
        Equal groups that the experts form, and how many of them a token's experts lie in (DeepSeek-V3,
        arXiv:2412.19437 §2.1.2); 1 and 1 where all are free.
    """

    n_experts: int
    top_k: int
    expert_hidden: int
    n_shared: int = 0
    shared_hidden: int | None = None
    first_dense: int = 0
    correction_bias: bool = False
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    latent: int | None = None
    gated: bool = True
    n_empty: int = 0
    n_groups: int = 1
    top_groups: int = 1

    @property
    def router_rows(self) -> int:
        """Experts that the router chooses from."""
        return self.n_experts + self.n_empty

    @property
    def visited(self) -> float:
        """Experts that hold something and that a token visits, where all experts are chosen equally often."""
        return self.top_k if not self.n_empty else self.top_k * self.n_experts / self.router_rows

    @property
    def shared_width(self) -> int:
        """Total width of the shared experts' MLP; 0 without any."""
        return self.shared_hidden if self.shared_hidden is not None else self.n_shared * self.expert_hidden


Mixer = AttentionSpec | MambaSpec | LinearAttentionSpec


PASSED, UNREACHED = "passed", "unreached"
"""Layers whose weights are frozen: a gradient passes through to something that trains below them, or none does."""


@dataclass(frozen=True)
class LayerSpec:
    """One kind of layer: at most one mixer, and an MLP, experts, both, or neither.

    Parameters
    ----------
    name : str
        The kind's name, such as ``attn+dense``, ``gdn+moe`` or ``mamba``.
    attention, mamba, linear : spec or None
        The mixer; at most one is given.
    mlp, moe : spec or None
        The part that works on each token by itself; a layer with both runs them in parallel.
    norms : int or None
        Norms as wide as the model; one in front of the mixer and one in front of MLP or experts when not given.
    extra : int
        Parameters that no other field counts, whole on every rank.
    then : LayerSpec or None
        Second half of a layer with two mixers (LongCat-Flash): it works on the first half's result, on the same
        stage, and full recompute takes both halves together.
    frozen : str
        ``PASSED`` or ``UNREACHED`` where the layer's weights do not train (`register.frozen`); empty where they do.

    Raises
    ------
    ValueError
        When there are two mixers, or nothing at all.
    """

    name: str
    attention: AttentionSpec | None = None
    mamba: MambaSpec | None = None
    linear: LinearAttentionSpec | None = None
    mlp: MlpSpec | None = None
    moe: MoeSpec | None = None
    norms: int | None = None
    extra: int = 0
    then: LayerSpec | None = None
    frozen: str = ""

    def __post_init__(self) -> None:
        mixers = [each for each in (self.attention, self.mamba, self.linear) if each is not None]
        if len(mixers) > 1:
            raise ValueError(f"layer kind {self.name} has {len(mixers)} mixers, at most one can be")
        if not mixers and self.mlp is None and self.moe is None and not self.extra:
            raise ValueError(f"layer kind {self.name} has no module")

    @property
    def mixer(self) -> Mixer | None:
        """The layer's mixer of tokens; None where nothing does."""
        return self.attention or self.mamba or self.linear

    @property
    def recurrent(self) -> MambaSpec | LinearAttentionSpec | None:
        """The layer's mixer where it is one without softmax."""
        return self.mamba or self.linear

    @property
    def has_block(self) -> bool:
        """Return whether the layer has an MLP or experts."""
        return self.mlp is not None or self.moe is not None

    @property
    def norm_count(self) -> int:
        """Norms as wide as the model."""
        return self.norms if self.norms is not None else (self.mixer is not None) + self.has_block

    @property
    def halves(self) -> tuple[LayerSpec, ...]:
        """The layer without what comes behind it, and that."""
        return (self,) if self.then is None else (self.replace(then=None), *self.then.halves)

    def replace(self, **changes: Any) -> LayerSpec:
        """A copy with some fields changed."""
        return replace(self, **changes)
