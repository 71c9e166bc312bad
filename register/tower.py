"""The shape of an encoder of images or sound beside a language model: its layers, and what makes their input."""

from __future__ import annotations

from dataclasses import dataclass

VISION = "vision"
"""Kind of the layers of an encoder, as plans name it."""
AUDIO = "audio"
"""Kind of an encoder of sound (`TowerSpec.kind`)."""
EMBEDDING = "embedding"
"""Kind that stands for the embedding, where an encoder in front of it leaves it no place on the first chunk."""
IN_FRONT = (VISION, EMBEDDING)
"""Kinds in plans in front of the language model's layers, of which no file counts any among these."""


@dataclass(frozen=True)
class TowerSpec:
    """A transformer over patches of images or moments of sound, with what embeds them and the projector to the language
    model; sizes in elements.

    Parameters
    ----------
    n_layers, hidden, n_heads, head_dim, ffn_hidden : int
        Of its layers; all heads have keys and values of their own.
    gated_mlp, norm_bias, bias : bool
        Three matrices in the MLP; biases of the norms; biases of all GEMMs of a layer.
    window : int or None
        Patches of a window of attention; None where every patch of an image attends to all others.
    full_layers : int
        With a window, layers that attend to the whole image nevertheless.
    merged : int
        Patches that become one token of the language model.
    ends_parameters : int
        Parameters outside the layers: patch embedding, positions, norms, projector.
    ends_products : float
        Multiply-adds a patch of the GEMMs among these.
    kind : str
        `VISION`, or `AUDIO`: its patches are moments of sound then.
    patches_per_s : int
        Of an encoder of sound: moments a second.
    padded : int
        Of an encoder of sound: moments that every clip is filled up to; 0 for none.
    """

    n_layers: int
    hidden: int
    n_heads: int
    head_dim: int
    ffn_hidden: int
    gated_mlp: bool = False
    norm_bias: bool = True
    bias: bool = True
    window: int | None = None
    full_layers: int = 0
    merged: int = 4
    ends_parameters: int = 0
    ends_products: float = 0.0
    kind: str = VISION
    patches_per_s: int = 0
    padded: int = 0

    @property
    def layer_products(self) -> int:
        """Multiply-adds a patch of the GEMMs of one layer: the elements of their matrices."""
        inner = self.n_heads * self.head_dim
        return self.hidden * (4 * inner + (3 if self.gated_mlp else 2) * self.ffn_hidden)

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        inner, wide = self.n_heads * self.head_dim, self.ffn_hidden
        biases = (3 * inner + self.hidden + (2 if self.gated_mlp else 1) * wide + self.hidden) * self.bias
        return self.layer_products + biases + 2 * self.hidden * (1 + self.norm_bias)

    @property
    def parameters(self) -> int:
        """Parameters of all of it."""
        return self.n_layers * self.layer_parameters + self.ends_parameters
