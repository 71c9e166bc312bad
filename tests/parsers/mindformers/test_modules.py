"""What MindFormers' patterns mean layer by layer, against its own `LayerSetting` where a clone is available."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from benchmarks.reliability.outside import NotHere, loaded, source
from taylor.cost_model.choices.module_choices import words_of
from taylor.parsers.mindformers.modules import (
    Module,
    counts_by_word,
    matches,
    module_grids,
    modules_of,
    plan_by_module,
)
from taylor.parsers.mindformers.plan import recompute_counts
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.text.fields import Fields
from taylor.pipeline.chunks import chunk_order
from taylor.pipeline.plan import FULL, SELECT, Grid, PipelinePlan
from taylor.register.frameworks import ATTENTION_CORE, DENSE_ACTIVATION, NORMS, SHARED_ACTIVATION

CONFIG = Path(__file__).resolve().parents[3] / "config"
LLAMA, QWEN = CONFIG / "pretrain_llama3_70b.yaml", CONFIG / "pretrain_qwen3_30b_a3b.yaml"
RELEASES = {
    "r1.5.0": "mindformers/models/utils.py",
    "r1.8.0": "mindformers/parallel_core/training_graph/transformer/utils.py",
}
LEGACY = modules_of(Fields({"type": "LlamaConfig", "use_flash_attention": True}, Path("a.yaml")), mcore=False)
MCORE = modules_of(Fields({"hidden_act": "silu"}, Path("a.yaml")), mcore=True)


class Operator:
    """As a primitive: told to run again, or not."""

    def __init__(self) -> None:
        self.on = False

    def recompute(self, mode: bool = True) -> Operator:
        self.on = mode
        return self

    def add_prim_attr(self, *_: object) -> None:
        """Communication is no part of this."""


class Cell:
    """As `mindspore.nn.Cell`: all operators within, once."""

    def __init__(self) -> None:
        self._cells: dict[str, Cell] = {}
        self.told = False
        self.words: dict[str, object] = {}

    def set_comm_fusion(self, *_: object) -> None:
        """Of gradients; no part of this."""

    def recompute(self, **told: object) -> None:
        if self.told:
            raise RuntimeError("The recompute interface can be configured only once.")
        self.told, self.words = True, told
        for cell in self._cells.values():
            cell.recompute()


def layer_of(modules: dict[str, Module]) -> Cell:
    """A layer with the operators and cells of all the modules."""
    top = Cell()
    leaves = {path for module in modules.values() for path in module.paths}
    inner = {path.rpartition(".")[0] for path in leaves} | {"feed_forward", "mlp"}
    for path in sorted(leaves):
        cell = top
        steps = path.split(".")
        for depth, step in enumerate(steps, 1):
            last = depth == len(steps)
            name = ".".join(steps[:depth])
            if last and name not in inner and not name.endswith(("shared_experts", "attention")):
                setattr(cell, step, Operator())
            else:
                cell = cell._cells.setdefault(step, Cell())
    return top


def runs_again(layer: Cell, path: str) -> bool:
    steps = path.split(".")
    for step in steps[:-1]:
        layer = layer._cells[step]
    found = layer._cells.get(steps[-1]) or getattr(layer, steps[-1])
    return found.told if isinstance(found, Cell) else found.on


def setting(
    release: str, legacy: bool, offset: Any, layers: int, pp: int, vpp: int, recompute: Any, select: Any
) -> Any:
    """MindFormers' own `LayerSetting` of a release."""
    try:
        text = source("mindformers", f"refs/heads/{release}", RELEASES[release])
    except NotHere as here:
        pytest.skip(str(here))
    context = {"pipeline_interleave": vpp > 1, "pipeline_scheduler": "1f1b"}
    module = loaded(
        "layer_setting",
        text[text.index("class LayerSetting") :],
        re=re, regex_match=re.fullmatch, np=np, logger=MagicMock(), MAX_INT32=2147483647,
        is_legacy_model=lambda: legacy,
        ms=SimpleNamespace(get_auto_parallel_context=context.__getitem__),
        TransformerSwapConfig=lambda **_: SimpleNamespace(swap=False),
        TransformerRecomputeConfig=SimpleNamespace,
    )  # fmt: skip
    asked = SimpleNamespace(
        recompute=recompute, select_recompute=select, select_comm_recompute=False, select_recompute_exclude=False,
        select_comm_recompute_exclude=False, recompute_slice_activation=False, parallel_optimizer_comm_recompute=False,
        mp_comm_recompute=True,
    )  # fmt: skip
    config = SimpleNamespace(
        recompute=asked, swap=SimpleNamespace(swap=False), pipeline_stage=pp, pipeline_model_parallel_size=pp,
        gradient_aggregation_group=4, cpu_offloading=False, cpu_offloading_num_layers=None, op_swap=None,
    )  # fmt: skip
    if not legacy:
        for name, value in vars(asked).items():
            setattr(config, name, value)
    return module.LayerSetting(layers, offset, config, vpp)


def random_plan(rng: np.random.Generator, modules: dict[str, Module]) -> tuple[PipelinePlan, list[tuple[str, ...]]]:
    """Layers by chunk, and counts of full recompute and of a chain of sets of modules that start together."""
    pp, vpp = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    held = rng.integers(1, 7, (vpp, pp))
    never = rng.choice(["mlp", "shared_experts"])  # one lies within the other
    order = [str(word) for word in rng.permutation([word for word in modules if word != never])]
    sizes = sorted(rng.choice(np.arange(1, len(order) + 1), int(rng.integers(1, 4)), replace=False), reverse=True)
    sets = [tuple(word for word in modules if word in order[:size]) for size in sizes]
    left = held.copy()
    grids = {}
    for name in (FULL, *("+".join(one) for one in sets)):
        grids[name] = rng.integers(0, left + 1)
        left = left - grids[name]
    frozen = {name: tuple(tuple(int(x) for x in row) for row in grid) for name, grid in grids.items()}
    return PipelinePlan({"dense": tuple(tuple(int(x) for x in row) for row in held)}, frozen), sets


@pytest.mark.parametrize("modules", [LEGACY, MCORE], ids=["legacy", "mcore"])
def test_a_plan_by_module_reads_back_from_its_patterns(modules: dict[str, Module]) -> None:
    for seed in range(200):
        plan, _ = random_plan(np.random.default_rng(seed), modules)
        named = [name for name in plan.recompute if name != FULL]
        grids = module_grids(plan, named, {name: words_of(name)[0] for name in named})
        patterns = {pattern: grid for word, grid in grids.items() for pattern in modules[word].patterns}
        back = plan_by_module(plan, counts_by_word(patterns, modules))
        used = [name for name in named if plan.uses(name)]
        assert (back is None) == (not used)
        if back is not None:
            assert {name: back.recompute[name] for name in back.recompute if name != FULL} == {
                name: plan.recompute[name] for name in used
            }


@pytest.mark.parametrize("release, legacy", [("r1.5.0", True), ("r1.8.0", True), ("r1.8.0", False)])
def test_mindformers_runs_again_what_the_plan_says(release: str, legacy: bool) -> None:
    modules = LEGACY if legacy else MCORE
    for seed in range(60):
        plan, sets = random_plan(np.random.default_rng(seed), modules)
        named = ["+".join(one) for one in sets]
        grids = module_grids(plan, named, dict(zip(named, sets, strict=True)))
        held = np.array(plan.total_layers())
        base = held.sum() // held.size
        wanted = {p: [list(row) for row in grid] for w, grid in grids.items() for p in modules[w].patterns}
        theirs = setting(
            release, legacy, (held - base).tolist(), int(held.sum()), plan.stages, plan.interleaves,
            [list(row) for row in plan.recomputed(FULL)], wanted,
        )  # fmt: skip
        number = 0
        for v, s in chunk_order(plan.stages, plan.interleaves, False):
            expected = [(FULL, modules)] * plan.recomputed(FULL)[v][s]
            expected += [
                (name, one) for name, one in zip(named, sets, strict=True) for _ in range(plan.recompute[name][v][s])
            ]
            for layer in range(held[v][s]):
                cell = layer_of(modules)
                theirs(cell, number)
                name, again = expected[layer] if layer < len(expected) else ("none", ())
                assert cell.told == (name == FULL)
                for word, module in modules.items():
                    if name != FULL and not (word == "shared_experts" and "mlp" in again):
                        assert all(runs_again(cell, path) for path in module.paths) == (word in again), (word, name)
                number += 1


@pytest.mark.parametrize("release, legacy", [("r1.5.0", True), ("r1.8.0", False)])
def test_the_usual_patterns_are_mindformers_own(release: str, legacy: bool) -> None:
    modules = LEGACY if legacy else MCORE
    theirs = setting(release, legacy, 0, 4, 1, 1, False, True).select_recompute
    ours = modules["activation"].patterns + (() if legacy else modules["shared_activation"].patterns)
    assert set(theirs) == set(ours)


def test_patterns_match_level_by_level() -> None:
    assert matches(r"feed_forward\.mul", "feed_forward.mul")
    assert matches(r".*\.norm", "ffn_norm.norm")
    assert not matches(r".*\.norm", "norm") and not matches(r"feed\.mul", "feed_forward.mul")
    assert not matches(r"feed_forward\.mu", "feed_forward.mul") and not matches(r"(\.mul", "feed_forward.mul")


def grid(*row: int) -> Grid:
    return (row,)


def test_a_module_runs_again_where_all_its_operators_do() -> None:
    grids = {r".*\.norm": grid(3, 1), r"ffn_norm\.rcast": grid(4, 4), r"feed_forward\.mul": grid(2, 2)}
    assert counts_by_word(grids, LEGACY) == {}
    grids |= {r"attention_norm\.rcast": grid(2, 9), r"feed_forward\.w1\.activation\.silu": grid(1, 2)}
    assert counts_by_word(grids, LEGACY) == {"norms": grid(2, 1), "activation": grid(1, 2)}


def test_what_a_model_lacks_is_not_offered() -> None:
    def words(mcore: bool, **keys: object) -> set[str]:
        return set(modules_of(Fields(keys, Path("a.yaml")), mcore=mcore))

    assert words(False, type="GPT2Config") == set()
    assert "core_attention" not in words(False, type="LlamaConfig")
    assert "norms" not in words(True, hidden_act="silu", fp32_residual_connection=True)
    assert "norms" not in words(True, hidden_act="silu", fused_norm=False)
    assert "activation" not in words(True, hidden_act="swiglu", bias_swiglu_fusion=True)


def with_select(folder: Path, file: Path, entry: str) -> Path:
    text = re.sub(r"^  select_recompute:.*$", lambda _: f"  select_recompute: {entry}", file.read_text(), flags=re.M)
    (folder / file.name).write_text(text)
    return folder / file.name


def test_a_file_that_names_operators_is_read_by_module(tmp_path: Path) -> None:
    usual = r"{'feed_forward\.mul': [9,8,6,4,2,0,0,0], 'feed_forward\.w1\.activation\.silu': [9,8,6,4,2,0,0,0]}"
    config = read_config(with_select(tmp_path, LLAMA, usual))
    assert config.by_module is None and config.rules.recomputed_parts == (DENSE_ACTIVATION,)
    both = (
        usual[:-1] + r", '.*_norm\.(norm|rcast)': [4,0,0,0,0,0,0,0], 'attention\.flash_attention': [3,0,0,0,0,0,0,0]}"
    )
    config = read_config(with_select(tmp_path, LLAMA, both))
    assert set(config.rules.recomputed_parts) == {NORMS, ATTENTION_CORE, DENSE_ACTIVATION}
    assert config.plan is not None and config.plan.recomputed(SELECT) == ((7, 8, 6, 4, 2, 0, 0, 0),)
    assert config.by_module is not None and config.by_module.recompute == {
        FULL: ((2, 0, 0, 0, 0, 0, 0, 0),),
        "norms+core_attention+activation": ((1, 0, 0, 0, 0, 0, 0, 0),),
        "norms+activation": ((1, 0, 0, 0, 0, 0, 0, 0),),
        "activation": ((5, 8, 6, 4, 2, 0, 0, 0),),
    }
    shared = r"['mlp\.shared_experts\.mul', 'mlp\.shared_experts\.activation_func\.silu', 'mlp\.mul']"
    config = read_config(with_select(tmp_path, QWEN, shared))
    assert config.rules.recomputed_parts == (SHARED_ACTIVATION,) and config.by_module is not None


@pytest.mark.parametrize("swap", [False, True])
def test_a_plan_by_module_is_written_as_patterns_and_nothing_else_changes(tmp_path: Path, swap: bool) -> None:
    file = with_select(tmp_path, LLAMA, "[10, 8, 6, 4, 2, 0, 0, 0]")
    if swap:
        text = re.sub(r"^  (select_|select_comm_)?recompute:.*$", r"  \1recompute: []", file.read_text(), flags=re.M)
        file.write_text(text + "swap_config:\n  swap: True\n  layer_swap: []\n")
    config = read_config(file)
    assert config.plan is not None
    recompute = {
        FULL: ((2, 0, 0, 0, 0, 0, 0, 0),),
        "norms+activation": ((1, 0, 0, 0, 0, 0, 0, 0),),
        "norms": ((0, 3, 0, 0, 0, 0, 0, 0),),
    }
    plan = PipelinePlan(config.plan.layers, recompute)
    before, after = launcher_of(config).with_plan(config, plan)
    file.write_text(after)
    back = read_config(file)
    assert back.by_module == plan and back.plan is not None and back.plan.layers == plan.layers
    changed = {line for line in after.splitlines() if line not in before.splitlines()}
    assert all("recompute:" in line for line in changed) and len(changed) == 1 + swap
    assert launcher_of(back).with_plan(back, plan)[1] == after
    bare = PipelinePlan(plan.layers, {FULL: recompute[FULL], "norms": ((0,) * 8,)})
    assert "select_recompute: False" in launcher_of(back).with_plan(back, bare)[1]


def test_counts_that_do_not_shrink_along_a_chunk_are_refused() -> None:
    plan = PipelinePlan({"dense": grid(4)}, {"norms": grid(1), "activation": grid(1)})
    with pytest.raises(ValueError, match="do not shrink"):
        module_grids(plan, ["norms", "activation"], {"norms": ["norms"], "activation": ["activation"]})
    assert recompute_counts([[1]], grid(4), "select_recompute", [(0, 0)]) == grid(1)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("whole", [True, [4]])
def test_a_decoder_layer_is_told_of_the_slices_alone_and_only_where_every_layer_runs_again(
    release: str, whole: Any
) -> None:
    own = setting(release, legacy=release == "r1.5.0", offset=0, layers=4, pp=1, vpp=1, recompute=whole, select=False)
    layer = layer_of(LEGACY)
    own(layer, 0)
    assert layer.told and set(layer.words) == ({"recompute_slice_activation"} if whole is True else set())
