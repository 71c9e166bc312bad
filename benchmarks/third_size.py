"""A third size of operators of which two were measured, by the operator base, beside published times of kernels.

    python -m benchmarks.third_size AICONFIGURATOR [--families 40]

AICONFIGURATOR is a git directory of github.com/ai-dynamo/aiconfigurator (used: that of `benchmarks.device_tables`),
whose Parquet files need pyarrow. A base holds two numbers of rows of GEMMs with weights of 512 to 65,536 (or two
lengths of causal attention with heads of 128); it estimates a third one, between them, twice as large, or four times.
Printed are the median and the largest error by card and kind, with the sibling's part (`operator_speed.SIBLING`) and
by the line alone.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from benchmarks.device_tables import DATA, stored
from taylor.blackbox.operator_base import OperatorTime
from taylor.blackbox.operator_speed import OperatorSpeeds
from taylor.parsers.profiles.operators import Operator

GEMMS = ("h200_sxm/gemm/vllm/0.22.0", "h100_sxm/gemm/vllm/0.24.0", "b200_sxm/gemm/vllm/0.22.0",
         "l40s/gemm/trtllm/1.3.0rc15")  # fmt: skip
ATTENTION = ("h200_sxm/attention/vllm/0.22.0", "b200_sxm/attention/trtllm/1.3.0rc15")
SIZES = ((1024, 4096, 2048), (4096, 16384, 8192), (1024, 2048, 4096), (2048, 4096, 8192), (4096, 8192, 16384),
         (1024, 4096, 16384))  # fmt: skip
"""Two measured sizes, and the third."""
LEAST_WEIGHTS, HEAD = 512, 128
Family = Mapping[int, tuple[Operator, float]]
"""An operator and its time in ms, by the size that varies."""


def gemm_families(rows: Iterable[Any]) -> list[Family]:
    """GEMMs in bf16 by their weights."""
    found: dict[tuple[int, int], dict[int, tuple[Operator, float]]] = {}
    for row in rows:
        if row.gemm_dtype == "bfloat16" and min(row.n, row.k) >= LEAST_WEIGHTS:
            m, n, k = int(row.m), int(row.n), int(row.k)
            operator = Operator("MatMul", "cube", ("DT_BF16",) * 2, ((m, k), (k, n)), ((m, n),))
            found.setdefault((n, k), {})[m] = (operator, row.latency)
    return list(found.values())


def attention_families(rows: Iterable[Any]) -> list[Family]:
    """Causal attention in bf16 by sequences and heads."""
    found: dict[tuple[int, ...], dict[int, tuple[Operator, float]]] = {}
    for row in rows:
        if row.window_size == 0 and row.kv_cache_dtype == "bfloat16" and row.head_dim == HEAD:
            batch, length, heads, groups = map(int, (row.batch_size, row.isl, row.num_heads, row.num_key_value_heads))
            query, key = (batch, length, heads * HEAD), (batch, length, (groups or heads) * HEAD)
            operator = Operator("Attention", "mixed", ("DT_BF16",) * 3, (query, key, key), (query,))
            found.setdefault((batch, heads, groups), {})[length] = (operator, row.latency)
    return [one for one in found.values() if max(one) >= SIZES[1][2]]


def errors(families: Iterable[Family], sizes: tuple[int, int, int]) -> tuple[list[float], list[float]]:
    """Relative errors of the third size, by the base and by its line alone."""
    those = [one for one in families if all(size in one for size in sizes)]
    known = [one[size] for one in those for size in sizes[:2]]
    speeds = OperatorSpeeds({one: OperatorTime(ms * 1e6, 0.0, 1, "", "") for one, ms in known})
    by_base, by_line = [], []
    for one in those:
        operator, ms = one[sizes[2]]
        estimate = speeds.estimate(operator)
        assert estimate is not None and not estimate.exact
        by_base.append(abs(estimate.ns / 1e6 / ms - 1))
        by_line.append(abs(speeds.lines["type", operator.type].at(operator) / 1e6 / ms - 1))
    return by_base, by_line


def main() -> int:
    """Print the errors of each card and kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("aiconfigurator", type=Path)
    parser.add_argument("--families", type=int, default=40)
    args = parser.parse_args()
    draw = random.Random(0)
    for kind, folders, file, families_of in (
        ("GEMM", GEMMS, "gemm_perf", gemm_families),
        ("attention", ATTENTION, "context_attention_perf", attention_families),
    ):
        for folder in folders:
            table = pd.read_parquet(io.BytesIO(stored(args.aiconfigurator, f"{DATA}/{folder}/{file}.parquet")))
            families = families_of(table.itertuples(index=False))
            families = draw.sample(families, min(args.families, len(families)))
            every = [errors(families, sizes) for sizes in SIZES]
            for sizes, (base, line) in zip(SIZES, every, strict=True):
                print(f"  {folder.split('/')[0]} {kind}: {sizes[0]} and {sizes[1]}, then {sizes[2]} ({len(base)}): "
                      f"median {median(base):.1%}, largest {max(base):.0%}; line {median(line):.1%}")  # fmt: skip
            base, line = ([each for one in every for each in one[at]] for at in (0, 1))
            within = sum(each <= 0.05 for each in base)
            print(f"{folder.split('/')[0]} {kind}: median {median(base):.1%}, largest {max(base):.0%}, within 5 % "
                  f"{within} of {len(base)}; by the line {median(line):.1%}, {max(line):.0%}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
