"""Megatron-LM's checks of a layout as other tests state them, against its own code where a clone is available."""

from __future__ import annotations

import ast
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.reliability.outside import NotHere, loaded, source, without_imports
from taylor.parsers.megatron.recompute import stated_modules
from tests.parsers.megatron.test_entry_places import megatron_takes
from tests.parsers.megatron.test_misfits import megatron_splits
from tests.parsers.megatron.test_small_runs import PLAIN, flags_of

REVISION = "d98e8a64"


def text_of(path: str, revision: str = REVISION) -> str:
    try:
        return source("Megatron-LM", revision, f"megatron/core/{path}")
    except NotHere as here:
        pytest.skip(str(here))


def functions(path: str, *names: str) -> str:
    """Functions of a file, without what it imports."""
    kept = [node for node in ast.parse(text_of(path)).body if getattr(node, "name", None) in names]
    assert len(kept) == len(names)
    return "from __future__ import annotations\n" + ast.unparse(ast.Module(kept, []))


def takes(check: Any, *error: type[Exception]) -> bool:
    try:
        check()
    except error:
        return False
    return True


def test_a_layout_is_taken_where_megatron_s_own_check_takes_it() -> None:
    enums = loaded("own_enums", text_of("transformer/enums.py"))
    path = "transformer/pipeline_parallel_layer_layout.py"
    module = loaded("own_layout", without_imports(text_of(path), "megatron"), LayerType=enums.LayerType)
    rng, taken = np.random.default_rng(5), 0
    for _ in range(400):
        stages, chunks, mtp = int(rng.choice([2, 4])), 4 * int(rng.choice([1, 2])), int(rng.integers(0, 4))
        letters = [*"E", *"t" * 8, *"m" * mtp, *"L" * int(rng.choice([1, 1, 1, 2]))]
        for at in sorted(rng.integers(1, len(letters) + 1, chunks - 1), reverse=True):
            letters.insert(at, "|")
        if rng.random() < 0.2:
            one, other = rng.integers(1, len(letters), 2)
            letters[one], letters[other] = letters[other], letters[one]
        layout = "".join(letters)
        own = module.PipelineParallelLayerLayout(layout, stages)
        found = takes(lambda own=own, mtp=mtp: own.validate_layer_layout(8, mtp or None), AssertionError)
        assert megatron_takes(layout, stages, 8, mtp) is found, (layout, stages)
        taken += found
    assert 40 < taken < 360


def test_a_split_keeps_choices_where_megatron_s_own_check_finds_their_source() -> None:
    variant = "transformer/experimental_attention_variant/dsa.py"
    name = "_validate_dsa_index_share_pipeline_split"
    module = loaded(
        "own_split",
        functions(variant, "is_dsa_skip_topk_layer", "source_dsa_compute_layer")
        + "\n"
        + functions("models/gpt/experimental_attention_variant_module_specs.py", name).split("\n", 1)[1],
    )
    rng, kept = np.random.default_rng(6), 0
    for _ in range(400):
        every, offset = int(rng.integers(1, 6)), int(rng.integers(0, 8))
        starts = [1, *sorted(rng.choice(np.arange(2, 25), int(rng.integers(1, 4)), replace=False).tolist())]
        config = SimpleNamespace(
            experimental_attention_variant="dsa", dsa_indexer_topk_freq=every, dsa_indexer_skip_topk_offset=offset
        )
        own = all(
            takes(lambda a=a, b=b, config=config: getattr(module, name)(config, range(a - 1, b - 1)), RuntimeError)
            for a, b in itertools.pairwise([*starts, 25])
        )
        assert megatron_splits(starts, 24, every, offset) is own, (starts, every, offset)
        kept += own
    assert 40 < kept < 360


@pytest.mark.parametrize(("revision", "later"), [("core_v0.12.1", {"shared_experts"}), (REVISION, set())])
def test_modules_that_small_runs_recompute_are_allowed_by_megatron(revision: str, later: set[str]) -> None:
    tree = ast.parse(text_of("transformer/transformer_config.py", revision))
    (allowed,) = (
        ast.literal_eval(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "allowed_modules"
        and "mla_up_proj" in ast.unparse(node)
    )
    routed = {"num-experts": 8, "moe-grouped-gemm": True, "moe-shared-expert-intermediate-size": 64}
    every = {
        name
        for flags in ({}, {"multi-latent-attention": True}, routed)
        for name in stated_modules(flags_of({**PLAIN, **flags}))
    }
    assert len(every) == 7 and every - later <= allowed
