"""What ``swap_config`` moves to the host, against MindFormers' own classes with a clone, and its price."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from benchmarks.reliability.outside import NotHere, loaded, source
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.statics import MIB
from taylor.parsers.mindformers.swap import CORE, LAYER, read_swap
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.pipeline.plan import FULL, NONE, PipelinePlan
from taylor.pipeline_solver.timing.evaluate import peak_memory_mib
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.statement.options import FileJob, Outputs
from tests.parsers.mindformers.test_modules import CONFIG, LEGACY, setting

MIXTRAL = CONFIG / "pretrain_mixtral_8x7b.yaml"


class Moved:
    """As a cell that is told to move what its operators give."""

    def __init__(self) -> None:
        self._cells: dict[str, Moved] = {}
        self.offloaded = False

    def offload(self, backward_prefetch: object) -> None:
        self.offloaded = True


def their_config(**swap: Any) -> Any:
    """MindFormers' own `TransformerSwapConfig`."""
    try:
        text = source("mindformers", "refs/heads/r1.5.0", "mindformers/modules/transformer/transformer.py")
    except NotHere as here:
        pytest.skip(str(here))
    start = text.index("class TransformerSwapConfig")
    body = text[start : text.index("\nclass ", start)]
    known = {"_Config": object, "Validator": MagicMock(), "logger": MagicMock()}
    return loaded("swap_config", body, **known).TransformerSwapConfig(**swap)


def random_swap(rng: np.random.Generator, layers: int) -> dict[str, Any]:
    def entries(**names: Any) -> list[dict[str, Any]]:
        return [
            {
                **names,
                "backward_prefetch": 1,
                "layers": sorted(set(map(int, rng.integers(0, layers, rng.integers(1, 5))))),
            }
            for _ in range(rng.integers(1, 3))
        ]

    swap: dict[str, Any] = {"swap": True}
    if rng.random() < 0.6:
        swap["layer_swap"] = entries() if rng.random() < 0.8 else {"backward_prefetch": 1, "layers": True}
    if rng.random() < 0.6:
        name = rng.choice([r".*\.flash_attention", r"attention\.flash_attention", r"feed_forward\.mul"])
        swap["op_swap"] = entries(op_name=str(name) if rng.random() < 0.5 else [str(name), r"ffn_norm\.norm"])
    return swap


def test_each_layer_moves_what_mindformers_moves() -> None:
    for seed in range(150):
        rng = np.random.default_rng(seed)
        layers = int(rng.integers(2, 9))
        swap = random_swap(rng, layers)
        ours = read_swap({"swap_config": swap}, layers, LEGACY)
        theirs = setting("r1.5.0", True, 0, layers, 1, 1, False, False)
        theirs.swap = their_config(**swap)
        theirs.layer_swap = theirs._initialize_swap_list(theirs.swap.layer_swap)
        theirs.op_swap = {key: theirs._initialize_swap_list(theirs.swap.op_swap[key]) for key in theirs.swap.op_swap}
        for index in range(layers):
            layer, attention, flash = Moved(), Moved(), Moved()
            layer._cells, attention._cells = {"attention": attention}, {"flash_attention": flash}
            theirs.set_swap(layer, index)
            moved = {LAYER} if layer.offloaded else {CORE} if flash.offloaded else set()
            assert (ours.words[index] if ours else set()) == moved, swap
        assert ours is None or ("swap_config.op_swap" in ours.keys) == all(
            "flash" in str(entry["op_name"]) and "norm" not in str(entry["op_name"])
            for entry in swap.get("op_swap", [])
        )


@pytest.mark.parametrize("entry", [{"swap": False}, {"swap": True, "layer_swap": [{"layers": [[0], [1]]}]}, None, 3])
def test_what_says_no_layers_moves_nothing(entry: object) -> None:
    assert read_swap({"swap_config": entry}, 4, LEGACY) is None


def swapping(folder: Path, words: str) -> Path:
    path = folder / "swap.yaml"
    text = MIXTRAL.read_text().replace("  recompute: True\n", "  recompute: [0, 8]\n", 1)
    path.write_text(text + "swap_config:\n  swap: True\n" + words)
    return path


def test_what_is_moved_is_priced_and_named_where_its_link_is_not_known(tmp_path: Path) -> None:
    """Layers 0 and 8 of Mixtral run again; of the others 1, 2 and 9 are moved: less memory, no shorter step."""
    words = "  layer_swap:\n    - backward_prefetch: 1  # soon\n      layers: [0, 1, 2, 9]\n"
    path = swapping(tmp_path, words)

    def evaluated(device: str) -> Any:
        job = FileJob(path=path, dryrun=False, check=False, device=device)
        return evaluate_file(job, Outputs(tmp_path / device))

    moved, named = evaluated("ascend-a3"), evaluated("ascend-910b")
    assert moved.plan.recompute == {FULL: ((1, 1, 0, 0),), "offload:layer": ((2, 1, 0, 0),)}
    assert {each.name for each in named.config.unmodelled} - {each.name for each in moved.config.unmodelled} == {
        "swap_config.swap", "swap_config.layer_swap",
    }  # fmt: skip
    assert named.plan.recompute == moved.plan.recompute
    assert named.solution.peak_memory_mib == pytest.approx(moved.solution.peak_memory_mib)
    assert named.problem.kinds[0].choices["offload:layer"].link_time == 0
    kept = peak_memory_mib(moved.problem, PipelinePlan(moved.plan.layers, {FULL: ((1, 1, 0, 0),)}))
    less = [a - b for a, b in zip(kept, moved.solution.peak_memory_mib, strict=True)]
    assert less[0] > less[1] > 0 and less[2:] == pytest.approx([0, 0])
    (kind,) = moved.problem.kinds
    config = moved.config
    whole = float(activation_bytes(config.model, config.model.body_kind, NONE, config.strategy, config.rules)) / MIB
    assert kind.choices["offload:layer"].host_mib == pytest.approx(whole)
    assert kind.activation_mib["offload:layer"] == pytest.approx(0, abs=1e-6)
    assert any(sentence.startswith("offload: 80%") for sentence in moved.assumed)


def test_a_plan_moves_its_layers_in_the_file_and_the_entry_keeps_its_form(tmp_path: Path) -> None:
    path = swapping(tmp_path, "  layer_swap:\n    - backward_prefetch: 1  # soon\n      layers: [0, 1, 2, 9]\n")
    config = read_config(path)
    assert (
        config.by_module is not None and launcher_of(config).with_plan(config, config.by_module)[1] == path.read_text()
    )
    grids = {FULL: ((1, 1, 0, 0),), "offload:layer": ((0, 3, 0, 1),)}
    plan = type(config.by_module)(config.by_module.layers, grids)
    _, after = launcher_of(config).with_plan(config, plan)
    assert "- backward_prefetch: 1  # soon\n      layers: [9, 10, 11, 24]\n" in after
    path.write_text(after)
    assert read_config(path).by_module == plan
