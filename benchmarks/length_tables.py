"""Three published tables of sample lengths, and the plans that `taylor lengths` finds on them.

Run from the repository's root: ``python -m benchmarks.length_tables [--write FOLDER]``; ``--write`` writes each as a
CSV for ``taylor lengths --lengths``, instead of planning. The plans are of a model of LLaMA 3 8B's shape on 32 H100,
samples cut at 32,768 tokens.

- ``wikipedia``: documents by bucket, GPT-4's tokenizer (huggingface.co/datasets/seonglae/wikipedia_token, README at
  b7a46d0a; all buckets sum to its 6,458,670 examples).
- ``articles``: articles by bucket, Qwen3's tokenizer (github.com/elsayedhazemm/gemma3-pt b425a68b,
  dataset_stats_qwen.md; they sum to its 11,167 articles, and it states the mean, 3,332).
- ``longmino``: tokens by bucket of the pool from which Olmo 3's long contexts are trained, of its technical report as
  github.com/marin-community/marin 0414c442 experiments/posttrain/long_context_datasets.py states them.

Nobody publishes what lies within a bucket. It is taken as spread evenly over the logarithm of the length (assumed): the
mean of ``articles`` is printed beside the one stated. The last bucket of ``longmino`` has no upper end; it is taken as
one doubling, as the others are.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from taylor.parsers.read import config_of
from taylor.parsers.tables.lengths import SampleLengths
from taylor.workflows.solving.unlike_lengths import PACKINGS, LengthChoice, plan_lengths
from taylor.workflows.statement.options import FileJob

JOB = """torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 32768 \\
 --max-position-embeddings 32768 --micro-batch-size 1 --global-batch-size 64 --bf16 --tensor-model-parallel-size 4 \\
 --sequence-parallel --pipeline-model-parallel-size 4 --vocab-size 128256 --swiglu --disable-bias-linear \\
 --normalization RMSNorm --position-embedding-type rope --use-flash-attn --untie-embeddings-and-output-weights \\
 --attention-dropout 0 --hidden-dropout 0 --use-distributed-optimizer
"""
DEVICE = "h100-80g"
POINTS = 8
"""Lengths that stand for a bucket."""
BILLION = 1e9
ARTICLES_MEAN = 3332

WIKIPEDIA = (
    (64, 5_320_881), (1024, 693_911), (2048, 300_935), (4096, 106_221), (8192, 30_611), (16384, 4_812),
    (32768, 1_253), (65536, 46), (128_000, 0),
)  # fmt: skip
"""Lower end of a bucket, documents; the last row is the upper end. The least length is not stated (64 assumed)."""
ARTICLES = ((36, 2439), (1024, 1711), (2048, 3280), (4096, 3093), (8192, 630), (16384, 14), (23_095, 0))
LONGMINO = (
    (2**13, 144.0), (2**14, 118.0), (2**15, 138.87), (2**16, 96.0), (2**17, 60.8), (2**18, 35.1), (2**19, 21.5),
    (2**20, 26.9), (2**21, 0.0),
)  # fmt: skip
"""Lower end of a bucket, billions of tokens."""


def spread(rows: tuple[tuple[int, float], ...], *, tokens: bool = False) -> SampleLengths:
    """Samples of buckets, each spread evenly over the logarithm of the length; the counts are of `tokens` if said."""
    found: dict[int, int] = {}
    for (low, count), (high, _) in zip(rows, rows[1:], strict=False):
        lengths = low * (high / low) ** ((np.arange(POINTS) + 0.5) / POINTS)
        samples = count * BILLION / lengths.sum() if tokens else count / POINTS
        # Whole samples that sum to the bucket's.
        ends = np.round(samples * np.arange(POINTS + 1)).astype(int)
        for length, number in zip(np.round(lengths).astype(int).tolist(), np.diff(ends).tolist(), strict=True):
            if number:
                found[length] = number
    rising = sorted(found)
    counts = [found[each] for each in rising]
    return SampleLengths(np.array(rising, dtype=np.int64), np.array(counts, dtype=np.int64))


def tables() -> dict[str, SampleLengths]:
    """The three tables."""
    return {"wikipedia": spread(WIKIPEDIA), "articles": spread(ARTICLES), "longmino": spread(LONGMINO, tokens=True)}


def main() -> None:
    """Write the tables, or print each one's plan under each packing."""
    parser = argparse.ArgumentParser(description="published tables of sample lengths, and plans on them")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write each as a CSV")
    folder = parser.parse_args().write
    for name, table in tables().items():
        mean = float((table.lengths * table.counts).sum() / table.samples)
        stated = f" (stated {ARTICLES_MEAN:,}: {mean / ARTICLES_MEAN - 1:+.1%})" if name == "articles" else ""
        print(f"{name}: {table.samples:,} samples, mean {mean:,.0f} tokens{stated}")
        if folder is not None:
            rows = "".join(f"{a},{b}\n" for a, b in zip(table.lengths.tolist(), table.counts.tolist(), strict=True))
            (folder / f"{name}.csv").write_text(f"length,count\n{rows}")
            continue
        for packing in PACKINGS:
            with tempfile.TemporaryDirectory() as scratch:
                script = Path(scratch) / "job.sh"
                script.write_text(JOB)
                job = FileJob(config_of(script), device=DEVICE)
                found = plan_lengths(job, LengthChoice(table, packing), Path(scratch), gap=0.01, time_limit=30)
            against = (
                "" if found.usual_ms is None else f", {found.fresh_ms / found.usual_ms - 1:+.1%} against equal lengths"
            )
            print(
                f"  {packing:9s} {found.fresh_ms:9,.0f} ms a step{against}, gap {found.found.gap:.2%}, "
                f"{found.padding:4.0%} padding, {found.tokens_a_second:9,.0f} tokens/s, {found.cut:,} cut"
            )


if __name__ == "__main__":
    main()
