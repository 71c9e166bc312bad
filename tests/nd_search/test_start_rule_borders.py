"""Start rules of MindSpeed at their borders: each condition absent alone, each limit from both sides.

The verdicts are those of the checks in MindSpeed-LLM c77308a1 mindspeed_llm/features_manager/:
context_parallel/context_parallel_feature.py:48-56 and high_availability/high_availability.py:55-75; and MindSpeed
028de58c mindspeed/features_manager/compress_dense/compress_dense.py:19-23.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.mindspeed.cases import BASES, merged
from tests.nd_search.test_mindspeed import broken

CP, WINDOW = "--context-parallel-size 2", "window-without-context-parallel"
KEPT = "kv-cache-without-context-parallel"
ELASTIC = "--enable-elastic-training --enable-high-availability --ckpt-format torch"
SPLIT = "enable-elastic-training-needs-use-distributed-optimizer"
COMPRESSED = "compressed-activations-kept"


@pytest.mark.parametrize(
    ("rule", "base", "words", "refused"),
    [
        (WINDOW, "dense", f"{CP} --sliding-window 4095", True),
        (WINDOW, "dense", f"{CP} --sliding-window 4096", False),
        (WINDOW, "dense", "--sliding-window 4095", False),
        (WINDOW, "dense", CP, False),
        (KEPT, "dense", f"{CP} --use-kv-cache", True),
        (KEPT, "dense", "--use-kv-cache", False),
        (KEPT, "dense", CP, False),
        ("alibi-without-context-parallel", "dense", f"{CP} --position-embedding-type alibi", True),
        ("alibi-without-context-parallel", "dense", "--position-embedding-type alibi", False),
        ("alibi-without-context-parallel", "dense", CP, False),
        ("elastic-ranks", "dense", f"{ELASTIC} {CP}", True),
        ("elastic-ranks", "experts", ELASTIC, True),
        ("elastic-ranks", "experts", f"{ELASTIC} --expert-model-parallel-size 1", False),
        ("elastic-ranks", "experts", CP, False),
        (SPLIT, "dense", f"{ELASTIC} !use-distributed-optimizer", True),
        (SPLIT, "dense", ELASTIC, False),
        (SPLIT, "dense", "!use-distributed-optimizer", False),
    ],
)
def test_mindspeed_llm_refuses_just_beyond_a_border(
    rule: str, base: str, words: str, refused: bool, tmp_path: Path
) -> None:
    assert (rule in broken(tmp_path, "MindSpeed-LLM", merged(BASES[base], words))) == refused


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("--compress-dense level0 --recompute-activation-function", True),
        ("--compress-dense disable --recompute-activation-function", False),
        ("--recompute-activation-function", False),
        ("--compress-dense level0", False),
    ],
)
def test_compressed_activations_are_not_computed_again(words: str, refused: bool, tmp_path: Path) -> None:
    assert (COMPRESSED in broken(tmp_path, "MindSpeed", merged(BASES["dense"], words))) == refused
