"""nanotron's YAML: degrees, model, where blocks lie, what is refused, plans written back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import total_parameters
from taylor.nd_search.stated import broken_rules
from taylor.parsers.nanotron.places import layers_of_stages, stages_of_blocks
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.workflows.statement.devices import choose_device
from tests.parsers.nanotron.files import LLAMA, MOE

SOURCES = Path(os.environ.get("TAYLOR_CHECKOUTS", "checkouts")) / "huggingface+nanotron"
"""A checkout of nanotron, for the test that runs its own loop."""
Writer = Callable[[str], Path]


@pytest.fixture
def file(tmp_path: Path) -> Writer:
    def write(text: str) -> Path:
        path = tmp_path / "job.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_degrees_batch_and_precision_are_those_of_the_file(file: Writer) -> None:
    config = read_config(file(LLAMA))
    strategy, rules = config.strategy, config.rules
    assert config.launcher == "nanotron" and config.schedule.name == "1f1b"
    assert (strategy.dp, strategy.tp, strategy.pp, strategy.cp, strategy.ep) == (2, 2, 4, 1, 1)
    assert (strategy.world_size, strategy.global_batch, rules.seq_length) == (16, 16, 8192)
    assert strategy.sp and strategy.op == 2 and rules.parallel_optimizer
    assert (rules.param_bytes, rules.gradient_bytes, rules.optimizer_bytes) == (2, 4, 12)


def test_llama_has_the_parameters_that_meta_publishes(file: Writer) -> None:
    assert total_parameters(read_config(file(LLAMA)).model) == 8_030_261_248


def test_defaults_of_nanotron_count_where_the_file_says_nothing(file: Writer) -> None:
    """parallelism_config.py:43-49 of 2411b022: all forwards first, and all-reduce."""
    text = LLAMA.replace("  pp_engine: 1f1b\n", "").replace("  tp_mode: REDUCE_SCATTER\n", "")
    config = read_config(file(text))
    assert config.schedule.name == "gpipe" and not config.strategy.sp


def test_gradients_without_an_accumulator_are_of_the_weights_type(file: Writer) -> None:
    rules = read_config(file(MOE)).rules
    assert (rules.param_bytes, rules.gradient_bytes, rules.optimizer_bytes) == (2, 2, 4)


def test_experts_are_in_all_layers_or_in_those_that_are_listed(file: Writer) -> None:
    every = read_config(file(MOE)).model
    assert every.moe is not None and every.n_moe == 12 and every.moe.expert_hidden == 1408
    assert every.moe.shared_hidden == 5632 and every.moe.shared_gate
    some = read_config(file(MOE.replace("      top_k: 1\n", "      top_k: 1\n      layers: [1, 3]\n"))).model
    assert some.layer_counts() == {"dense": 1, "dense+moe": 1, "dense#2": 1, "dense+moe#2": 1, "dense#3": 8}


def test_the_block_that_passes_a_stages_share_stays_on_it() -> None:
    # Worked out by hand: shares of 10, 20, 30; sums 0 7 14 21 28 30.
    assert stages_of_blocks([0, 7, 7, 7, 7, 2], 3) == [0, 0, 0, 1, 2, 2]
    # 24 layers do not pass the half of 48, the 25th does.
    assert layers_of_stages(1.0, 0.0, 48, 2) == [25, 23]


def test_stages_that_get_no_block_settle_no_plan() -> None:
    with pytest.raises(ValueError, match="head on stage 0"):
        layers_of_stages(1.0, 10.0, 1, 2)


def test_more_stages_than_blocks_settle_no_plan_at_once(file: Writer) -> None:
    config = read_config(file(LLAMA.replace("pp: 4", "pp: 1000000")))
    assert config.plan is None and any("more than the 32 layers" in note for note in config.notes)


def test_nanotrons_own_loop_deals_the_layers_alike(file: Writer) -> None:
    """The lines of build_model itself, run on blocks that are no torch modules."""
    base = SOURCES / "src" / "nanotron" / "models" / "base.py"
    if not base.is_file():
        pytest.skip("TAYLOR_CHECKOUTS has no nanotron")
    import numpy as np

    shown = base.read_text(encoding="utf-8").splitlines()
    first = next(at for at, line in enumerate(shown) if "thresholds = [" in line)
    last = next(at for at, line in enumerate(shown) if "model.input_pp_rank = target_pp_ranks" in line)
    loop = "\n".join(line[8:] for line in shown[first:last])

    class Block:
        rank = -1

        def build_and_set_rank(self, rank: int) -> None:
            self.rank = rank

    for layer, head, layers, stages in [
        (7.0, 3.0, 32, 4),
        (1.0, 0.0, 48, 2),
        (218.0, 525.0, 32, 8),
        (5.0, 80.0, 30, 3),
    ]:
        blocks = [Block() for _ in range(layers + 3)]
        sums = np.cumsum([0.0, *[layer] * layers, 0.0, head])
        names = {"block_cumulative_costs": sums, "pp_size": stages, "pipeline_blocks": blocks}
        exec(loop, {**names, "target_pp_ranks": list(range(stages))})
        ranks = [block.rank for block in blocks]
        assert stages_of_blocks([0.0, *[layer] * layers, 0.0, head], stages) == ranks


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (("expert_parallel_size: 1", "expert_parallel_size: 2"), "expert_parallel_size"),
        (("is_llama_config", "is_llamoe_config"), "is_llamoe_config"),
        (("is_llama_config", "is_starcoder2_config"), "is_starcoder2_config"),
        (("pp_engine: 1f1b", "pp_engine: zbv"), "pp_engine"),
        (("hidden_size: 4096", "hidden_size: 4000"), "model.model_config"),
        (("dtype: bfloat16", "dtype: int8"), "model.dtype"),
        (("  tp: 2\n", ""), "parallelism.tp"),
    ],
)
def test_what_cannot_start_or_is_unknown_is_refused_by_its_key(
    file: Writer, change: tuple[str, str], field: str
) -> None:
    text = LLAMA.replace("hidden_size: 4096", "hidden_size: 4000 ") if field == "model.model_config" else LLAMA
    text = text.replace("num_attention_heads: 32", "num_attention_heads: 33") if field == "model.model_config" else text
    with pytest.raises(InputError, match=field):
        read_config(file(text.replace(*change)))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (("num_key_value_heads: 8", "num_key_value_heads: 1"), "kv-groups-by-tp"),
        (("intermediate_size: 14336", "intermediate_size: 14335"), "ffn-by-tp"),
        (("batch_accumulation_per_replica: 8", "batch_accumulation_per_replica: 2"), "micro-batches-fill-warm-up"),
    ],
)
def test_what_nanotron_asserts_starts_no_job(file: Writer, change: tuple[str, str], rule: str) -> None:
    """models/llama.py:352, parallel/tensor_parallel/nn.py:63, parallel/pipeline_parallel/engine.py:252."""
    config = read_config(file(LLAMA.replace(*change)))
    device = choose_device(config).spec
    assert LLAMA.count(change[0]) == 1
    assert [found.name for found in broken_rules(config, device)] == [rule]
    assert not broken_rules(read_config(file(LLAMA)), device)


def test_recompute_and_batch_are_written_and_nothing_else_changes(file: Writer) -> None:
    path = file(LLAMA)
    config = read_config(path)
    assert config.plan is not None
    body = config.plan.total_layers()
    write_plan(config, PipelinePlan(config.plan.layers, {FULL: body}), micro_batches=16)
    after = path.read_text(encoding="utf-8")
    expected = LLAMA.replace("batch_accumulation_per_replica: 8", "batch_accumulation_per_replica: 16")
    assert after == expected.replace("  pp_engine: 1f1b\n", "  pp_engine: 1f1b\n  recompute_layer: True\n")


def test_layers_on_other_stages_cannot_be_written(file: Writer) -> None:
    config = read_config(file(LLAMA))
    assert config.plan is not None
    sizes = list(config.plan.layers["dense"][0])
    sizes[0], sizes[-1] = sizes[0] - 1, sizes[-1] + 1
    with pytest.raises(InputError, match="deals blocks by their cost"):
        write_plan(config, PipelinePlan({"dense": (tuple(sizes),)}, {}))


def test_degrees_are_written_with_the_comments_beside_them(file: Writer) -> None:
    path = file(LLAMA)
    config = read_config(path)
    wanted = config.strategy.replace(dp=1, tp=4, pp=2, op=1, mbs=2, micro_batches=4)
    path.write_text(launcher_of(config).with_strategy(config, wanted, None, {}), encoding="utf-8")
    again = read_config(path)
    assert again.strategy == wanted and "pp: 2   # stages" in path.read_text(encoding="utf-8")
