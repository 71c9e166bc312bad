"""Layers of DeepSeek-V4: one shared key and value, low-rank projections, compressed attention, residual streams.

Parameters by name: transformers 5.23.0 models/deepseek_v4/modeling_deepseek_v4.py; Ascend/MindSpeed-LLM c77308a1
mindspeed_llm/tasks/models/transformer/deepseek4/csa.py:119-270 builds the same projections.
"""

from __future__ import annotations

from dataclasses import dataclass

from taylor.register.layers import SLIDING, AttentionSpec, IndexerSpec, LayerSpec, MoeSpec

WINDOW, SPARSE, HEAVY = "mqa-sliding", "csa", "hca"
RATIOS = {0: WINDOW, 4: SPARSE, 128: HEAVY}
"""Meaning of ``compress_ratios``, and the usual rates: configuration_deepseek_v4.py,
_COMPRESS_RATIO_TO_LAYER_TYPE and DeepseekV4Config.default_compress_rates."""


@dataclass(frozen=True)
class CompressedLayers:
    """Sizes that all layers of such a model share.

    Parameters
    ----------
    hidden, heads, head_dim, window : int
    q_rank, output_rank, output_groups : int
        Ranks of the projections of queries and of the output, which is projected in groups.
    index_heads, index_dim, index_top : int
        The indexer of sparse layers.
    streams : int
        Residual streams; 0 where the layers add to one as usual.
    """

    hidden: int
    heads: int
    head_dim: int
    window: int
    q_rank: int
    output_rank: int
    output_groups: int
    index_heads: int
    index_dim: int
    index_top: int
    streams: int

    @property
    def extra_parameters(self) -> int:
        """Parameters that join the streams behind the last layer."""
        return self.streams * self.streams * self.hidden + self.streams + 1 if self.streams else 0

    def layer(self, name: str, kind: str, rate: int, moe: MoeSpec) -> LayerSpec:
        """A layer of a kind that compresses n tokens to a key."""
        compressor = self._compressor(self.head_dim, rate, 2 if kind == SPARSE else 1) if rate else 0
        attention = AttentionSpec(
            self.heads,
            1,
            self.head_dim,
            reach=SLIDING,
            window=self.window,
            qk_norm=True,
            qk_norm_weights=self.head_dim,
            sinks=True,
            shared_kv=True,
            q_rank=self.q_rank,
            output_rank=self.output_rank,
            output_groups=self.output_groups,
            indexer=self._indexer(rate) if kind == SPARSE else None,
            compression=rate,
        )
        # Around attention and around the experts: how the streams are collapsed, expanded and mixed.
        mixes = (2 + self.streams) * self.streams
        connections = 2 * (mixes * (self.streams * self.hidden + 1) + 3) if self.streams else 0
        return LayerSpec(name, attention, moe=moe, extra=compressor + connections)

    def _compressor(self, size: int, rate: int, series: int) -> int:
        """Keys and weights of every token in n series, a bias a place in the window, a norm."""
        return series * size * (2 * self.hidden + rate) + size

    def _indexer(self, rate: int) -> IndexerSpec:
        heads, size = self.index_heads, self.index_dim
        parameters = self._compressor(size, rate, 2) + self.q_rank * heads * size + self.hidden * heads
        return IndexerSpec(heads, size, self.index_top, parameters)
