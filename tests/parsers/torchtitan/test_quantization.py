"""Products in 8 bits as torchtitan's converters ask for them, and what they cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.memory.breakdown import memory_profile
from taylor.cost_model.time.expert_products import expert_products
from taylor.cost_model.time.product_times import dense_products
from taylor.cost_model.time.speed import Speed
from taylor.cost_model.time.step import layer_time
from taylor.cost_model.time.work import layer_work
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from taylor.register.model import DENSE, MOE
from taylor.register.narrow_products import AO_MXFP8, AO_ROWWISE_WIDE_GRADIENTS, AO_TENSORWISE, NarrowProducts
from taylor.register.registry import Registry

H100 = Registry.load().device("h100-80g")
FILE = """[model]
name = "{name}"
flavor = "{flavor}"
converters = {converters}

[training]
local_batch_size = 2
seq_len = 8192

[parallelism]
data_parallel_shard_degree = 8

{more}
"""
LINEAR = "quantize.linear.float8"


def read(
    folder: Path, converters: list[str], more: str = "", name: str = "llama3", flavor: str = "8B"
) -> TrainingConfig:
    file = folder / "t.toml"
    file.write_text(FILE.format(name=name, flavor=flavor, converters=converters, more=more))
    return read_config(file)


@pytest.mark.parametrize(
    ("converter", "more", "recipe", "gather"),
    [
        (LINEAR, "", AO_TENSORWISE, False),
        (LINEAR, f"[{LINEAR}]\nenable_fsdp_float8_all_gather = true", AO_TENSORWISE, True),
        (LINEAR, f'[{LINEAR}]\nrecipe_name = "rowwise_with_gw_hp"', AO_ROWWISE_WIDE_GRADIENTS, False),
        (LINEAR, f'[{LINEAR}]\nfilter_fqns = ["output", "attention.wk"]', AO_TENSORWISE, False),
        (LINEAR, f'[{LINEAR}]\nfilter_fqns = ["feed_forward"]', None, False),
        (LINEAR, f"[{LINEAR}]\nemulate = true", None, False),
        ("float8", "[float8]\nenable_fsdp_float8_all_gather = true", AO_TENSORWISE, True),
        ("float8", f"[{LINEAR}]\nenable_fsdp_float8_all_gather = true", AO_TENSORWISE, True),
        ("quantize.linear.mx", "", AO_MXFP8, False),
    ],
)
def test_a_converter_is_a_recipe_of_the_layers_products(
    converter: str, more: str, recipe: NarrowProducts | None, gather: bool, tmp_path: Path
) -> None:
    config = read(tmp_path, [converter], more)
    assert (config.rules.narrow, config.rules.narrow_gather) == (recipe, gather)
    named = {flag.name for flag in config.unmodelled}
    assert ("model.converters" in named) is (recipe is None)


def test_a_recipe_that_torchao_lacks_and_one_beside_8_bit_gathering_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"recipe_name: is no recipe \(found 'half'\); use one of tensorwise, rowwise"):
        read(tmp_path, [LINEAR], f'[{LINEAR}]\nrecipe_name = "half"')
    both = f'[{LINEAR}]\nrecipe_name = "tensorwise"\nenable_fsdp_float8_all_gather = true'
    with pytest.raises(InputError, match="enable_fsdp_float8_all_gather: does not go with recipe_name"):
        read(tmp_path, [LINEAR], both)


def test_8_bit_products_save_16_bits_and_take_less_time(tmp_path: Path) -> None:
    """v0.2.2 benchmarks/llama3_h100_202412_torchtitan.md, table 1: 77.0 GiB without and 76.8 with Float8."""
    plain, narrow = read(tmp_path, []), read(tmp_path, [LINEAR])
    rowwise = read(tmp_path, [LINEAR], f'[{LINEAR}]\nrecipe_name = "rowwise"')
    wide = read(tmp_path, [LINEAR], f'[{LINEAR}]\nrecipe_name = "rowwise_with_gw_hp"')
    kept = [memory_profile(c.model, c.strategy, c.rules, 8e4) for c in (plain, narrow)]
    assert kept[0].activation_mib == kept[1].activation_mib and kept[0].layer_mib == kept[1].layer_mib
    times = [layer_time(c.model, DENSE, c.strategy, c.rules, H100) for c in (plain, narrow, rowwise, wide)]
    assert times[1].forward < times[0].forward and times[1].backward < times[0].backward
    assert times[2].forward == times[3].forward and times[2].backward < times[3].backward < times[0].backward


def test_parameters_gathered_in_8_bits_take_half_the_bytes(tmp_path: Path) -> None:
    wide, narrow = (
        read(tmp_path, [LINEAR], f"[{LINEAR}]\nenable_fsdp_float8_all_gather = {on}") for on in ("false", "true")
    )
    matrices, norms = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336), 2 * 4096
    # Two layers are gathered at once; so are their buffers, for which bf16 shards, and no narrow ones, are cast first.
    casts = 2 * 2 * (matrices + norms) / wide.strategy.op
    for pools, expected in ((False, 2 * matrices), (True, 4 * matrices + casts)):
        rules = [c.rules.replace(separate_pools=pools) for c in (wide, narrow)]
        found = [memory_profile(wide.model, wide.strategy, each, 8e4).static_middle_mib for each in rules]
        assert found[0] - found[1] == pytest.approx(expected / 2**20)
    times = [layer_time(c.model, DENSE, c.strategy, c.rules, H100) for c in (wide, narrow)]
    assert times[1].forward < times[0].forward


def test_experts_stay_in_16_bits_without_a_converter_of_their_own(tmp_path: Path) -> None:
    grouped = "quantize.grouped_mm.float8"
    jobs = [
        read(tmp_path, converters, more, "deepseek_v3", "16B")
        for converters, more in (
            ([], ""),
            ([LINEAR], ""),
            ([LINEAR, grouped], f'[{grouped}]\nfqns = ["experts"]'),
        )
    ]
    assert [job.rules.narrow_experts for job in jobs] == [True, False, True]
    grouped_ms, dense_ms = [], []
    for job in jobs:
        speed = Speed.of(H100, job.rules, in_layer=True)
        grouped_ms.append(float(expert_products(job.model, MOE, job.strategy, job.rules, speed).forward))
        work = layer_work(job.model, MOE, job.strategy, job.rules)
        dense_ms.append(float(dense_products(work, job.rules, speed).forward))
    assert grouped_ms[2] < grouped_ms[1] == grouped_ms[0] and dense_ms[2] == dense_ms[1] < dense_ms[0]
