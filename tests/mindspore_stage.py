"""One pipeline stage of a small LLaMA as a single-rank MindSpore program, started like run_mindformer.py.

The training file's tensor-parallel degree slices the widths; the stage's layers are those of stage RANK_ID.
Optimizer states are left out: the stage is a forward and a backward, as one micro-batch runs it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops


class Layer(nn.Cell):
    """Attention with flash-like recompute left out, gated MLP, RMS norms; no biases."""

    def __init__(self, hidden: int, heads: int, ffn: int):
        super().__init__()
        self.heads, self.size = heads, hidden // heads
        self.norm1 = Parameter(Tensor(np.ones(hidden, np.float32)), name="norm1")
        self.norm2 = Parameter(Tensor(np.ones(hidden, np.float32)), name="norm2")
        self.qkv = nn.Dense(hidden, 3 * hidden, has_bias=False)
        self.out = nn.Dense(hidden, hidden, has_bias=False)
        self.gate = nn.Dense(hidden, ffn, has_bias=False)
        self.up = nn.Dense(hidden, ffn, has_bias=False)
        self.down = nn.Dense(ffn, hidden, has_bias=False)

    def scaled(self, x, weight):
        return x * ops.rsqrt(ops.mean(x * x, -1, True) + 1e-6) * weight

    def construct(self, x):
        q, k, v = ops.split(self.qkv(self.scaled(x, self.norm1)), x.shape[-1], axis=-1)
        q = q.reshape(x.shape[0], self.heads, self.size).swapaxes(0, 1)
        k = k.reshape(x.shape[0], self.heads, self.size).swapaxes(0, 1)
        v = v.reshape(x.shape[0], self.heads, self.size).swapaxes(0, 1)
        scores = ops.softmax(ops.matmul(q, k.swapaxes(1, 2)) / self.size**0.5, axis=-1)
        x = x + self.out(ops.matmul(scores, v).swapaxes(0, 1).reshape(x.shape))
        y = self.scaled(x, self.norm2)
        return x + self.down(ops.silu(self.gate(y)) * self.up(y))


class Stage(nn.Cell):
    """Layers one after another, the first `again` of them recomputed."""

    def __init__(self, layers: int, again: int, hidden: int, heads: int, ffn: int):
        super().__init__()
        self.layers = nn.CellList([Layer(hidden, heads, ffn) for _ in range(layers)])
        for layer in list(self.layers)[:again]:
            layer.recompute()

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.sum()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    parser.add_argument("--register_path", default="")
    shape = json.loads(Path(parser.parse_args().config).read_text())
    ms.set_context(mode=ms.GRAPH_MODE)
    stage = Stage(shape["layers"], shape["again"], shape["hidden"], shape["heads"], shape["ffn"])
    gradient = ops.GradOperation(get_by_list=True)(stage, ms.ParameterTuple(stage.trainable_params()))
    gradient(Tensor(np.ones((shape["tokens"], shape["hidden"]), np.float32)))


if __name__ == "__main__":
    main()
