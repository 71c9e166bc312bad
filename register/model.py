"""The shape of a language model, independent of the file it was read from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any

from taylor.pipeline.plan import RUN_MARK, kind_of
from taylor.register.layers import AttentionSpec, LayerSpec, MlaSpec, MlpSpec, MoeSpec
from taylor.register.pattern import kinds_in_order
from taylor.register.tower import TowerSpec

__all__ = ["DENSE", "MOE", "MTP", "RUN_MARK", "MlaSpec", "ModelSpec", "MoeSpec", "kind_of"]

DENSE, MOE, MTP = "dense", "moe", "mtp"
"""Names of the layer kinds of a model without a pattern, in model order: dense ones first, the MTP layer last."""


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only language model: everything its parameter count and cost depend on.

    `n_layers` counts the body layers without the MTP ones; sizes are in elements. Without a `pattern` all layers
    have the attention and the MLP that the fields here describe, or the experts of `moe` from its `first_dense` on.
    With one, `kinds` describes the layers, and the fields here the usual ones among them.

    Parameters
    ----------
    ffn_hidden : int
        Width of the dense MLP.
    gated_mlp : bool
        Three matrices (SwiGLU) instead of two.
    learned_positions : int
        Rows of a learned position embedding; 0 for rotary or none.
    norm_bias, attention_bias, output_bias, mlp_bias : bool
        Biases of the norms (LayerNorm), of Q, K, V, of the attention output, of the MLP.
    qk_norm : bool
        A norm on each head's query and key (Qwen3).
    mtp_layers : int
        Multi-token-prediction modules, each a body layer with a projection of 2·hidden to hidden.
    kinds : tuple of LayerSpec
        The kinds of layers that `pattern` names, each once.
    pattern : str
        The kind of every body layer in model order, as `register.pattern` reads it.
    mtp_kinds : tuple of str
        The layers of one MTP module; one body layer when not given.
    value_head : bool
        The head gives one value a token in place of logits: the model of a critic.
    extra_parameters : int
        Parameters beside layers, embedding and head, on the first stage: a vision encoder, an embedding's norm.
    published_parameters : int or None
        Of a registered model: the parameter count that its authors publish, without MTP modules. No part of its
        shape.
    aliases : tuple of str
        Of a registered model: other names under which models of this very shape were published.
    source : str
        Of a registered model: where its sizes are from. No part of its shape.
    tower : TowerSpec or None
        The encoder of images among `extra_parameters`, where its layers are known.
    """

    name: str
    n_layers: int
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_hidden: int
    vocab: int
    gated_mlp: bool = True
    tied_embedding: bool = False
    learned_positions: int = 0
    norm_bias: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    mla: MlaSpec | None = None
    moe: MoeSpec | None = None
    mtp_layers: int = 0
    kinds: tuple[LayerSpec, ...] = ()
    pattern: str = ""
    mtp_kinds: tuple[str, ...] = ()
    value_head: bool = False
    extra_parameters: int = 0
    published_parameters: int | None = field(default=None, compare=False)
    aliases: tuple[str, ...] = field(default=(), compare=False)
    source: str = field(default="", compare=False)
    tower: TowerSpec | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.pattern and not self.kinds:
            return
        names = [kind.name for kind in self.kinds]
        order = kinds_in_order(self.pattern) if self.pattern else ()
        if len(set(names)) != len(names):
            raise ValueError(f"model {self.name} describes a layer kind twice: {', '.join(names)}")
        if any(RUN_MARK in name or name == MTP for name in names):
            raise ValueError(f"model {self.name}: a layer kind can be called neither {MTP} nor have {RUN_MARK} in it")
        missing = sorted({*order, *self.mtp_kinds} - set(names))
        if missing:
            raise ValueError(f"model {self.name} describes no layer kind {', '.join(missing)}")
        if len(order) != self.n_layers:
            raise ValueError(f"model {self.name} has {self.n_layers} layers and its pattern names {len(order)}")

    @property
    def outputs(self) -> int:
        """Outputs of the head for a token."""
        return 1 if self.value_head else self.vocab

    @property
    def n_dense(self) -> int:
        """Body layers without experts."""
        if self.pattern:
            return sum(count for name, count in self.body_counts.items() if self.layer(name).moe is None)
        return self.n_layers if self.moe is None else min(self.moe.first_dense, self.n_layers)

    @property
    def n_moe(self) -> int:
        """Mixture-of-experts body layers, without MTP."""
        return self.n_layers - self.n_dense

    @cached_property
    def body_counts(self) -> dict[str, int]:
        """Body layers by kind, without MTP, in the order in which the kinds begin; kinds it lacks are omitted."""
        if self.pattern:
            order = kinds_in_order(self.pattern)
            return {kind: order.count(kind) for kind in dict.fromkeys(order)}
        counts = {DENSE: self.n_dense, MOE: self.n_moe}
        return {kind: count for kind, count in counts.items() if count}

    @cached_property
    def kind_counts(self) -> dict[str, int]:
        """Layers by kind, the MTP modules last."""
        return {**self.body_counts, **({MTP: self.mtp_layers} if self.mtp_layers else {})}

    @property
    def body_kind(self) -> str:
        """The kind whose layer is the unit of time: of a model with a pattern the most frequent, the first of equals;
        else ``moe`` when there are experts, ``dense`` otherwise."""
        if self.pattern:
            return max(self.body_counts, key=lambda kind: self.body_counts[kind])
        return MOE if self.n_moe else DENSE

    def layer_counts(self) -> dict[str, int]:
        """Layers by run in model order, the MTP modules last.

        A run is a stretch of equal layers and has its kind's name; the second run of a kind is ``KIND#2``
        and so on (`kind_of`). Without a `pattern` runs are kinds.
        """
        if not self.pattern:
            return dict(self.kind_counts)
        counts: dict[str, int] = {}
        times: dict[str, int] = {}
        for kind, same in groupby(kinds_in_order(self.pattern)):
            times[kind] = times.get(kind, 0) + 1
            counts[kind if times[kind] == 1 else f"{kind}{RUN_MARK}{times[kind]}"] = len(list(same))
        return {**counts, **({MTP: self.mtp_layers} if self.mtp_layers else {})}

    @property
    def reusing_runs(self) -> tuple[str, ...]:
        """Runs of body layers that attend to the tokens that a layer before them chose."""
        return tuple(
            run
            for run in self.layer_counts()
            if run != MTP
            and any(
                half.attention and half.attention.indexer and half.attention.indexer.reused
                for half in self.layers_of(run)
            )
        )

    def mtp_module(self) -> tuple[LayerSpec, ...]:
        """The layers of one MTP module, without its projection and norms."""
        kinds = self.mtp_kinds or (self.body_kind,)
        return tuple(half for kind in kinds for half in self.layer(kind).halves)

    def layers_of(self, kind: str) -> tuple[LayerSpec, ...]:
        """The layer of a kind, or of a run, and a second half of it; those of one MTP module for ``mtp``.

        Raises
        ------
        ValueError
            When the model has no layers of that kind.
        """
        return self.mtp_module() if kind_of(kind) == MTP else self.layer(kind).halves

    def layer(self, kind: str) -> LayerSpec:
        """Specification of the layers of a kind, or of a run.

        Raises
        ------
        ValueError
            When the model has no layers of that kind; ``mtp`` is none (`mtp_module`).
        """
        found = self._layers.get(kind_of(kind))
        if found is None:
            raise ValueError(f"model {self.name} has no layers of kind {kind!r}")
        return found

    @cached_property
    def _layers(self) -> dict[str, LayerSpec]:
        if self.kinds:
            return {kind.name: kind for kind in self.kinds}
        attention = AttentionSpec(
            self.n_heads,
            self.n_kv_heads,
            self.head_dim,
            latent=self.mla,
            bias=self.attention_bias,
            output_bias=self.output_bias,
            qk_norm=self.qk_norm,
        )
        dense = LayerSpec(DENSE, attention, mlp=MlpSpec(self.ffn_hidden, self.gated_mlp, self.mlp_bias))
        if self.moe is None:
            return {DENSE: dense}
        return {DENSE: dense, MOE: LayerSpec(MOE, attention, moe=replace(self.moe, gated=self.gated_mlp))}

    def replace(self, **changes: Any) -> ModelSpec:
        """A copy with some fields changed."""
        return replace(self, **changes)
