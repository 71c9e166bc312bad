"""The galvatron providers give the figures of Galvatron's own cost models."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.measured.cost_table import CostSetting, EndCost, EndCosts, cost_table, layer_activation_mib
from taylor.cost_model.measured.galvatron.hetu import HetuCosts, state_share
from taylor.cost_model.measured.galvatron.inputs import MessageLines, galvatron_inputs
from taylor.cost_model.measured.galvatron.paddle import PaddleCosts
from taylor.cost_model.measured.galvatron.step import galvatron_step_s, gather_buffer_mib
from taylor.cost_model.measured.hardware import ALL_REDUCE, ALL_TO_ALL, RankGroup
from taylor.cost_model.measured.layer_strategy import EndStrategy, LayerStrategy, even_division
from taylor.layerwise.space import SpaceLimits, batch_sizes
from taylor.parsers.galvatron.computation import read_computation
from taylor.parsers.galvatron.folder import read_folders
from taylor.parsers.galvatron.hardware import read_hardware
from taylor.parsers.galvatron.memory import read_memory
from taylor.parsers.galvatron.strategy_file import read_strategy
from tests import galvatron_cases as cases
from tests.conftest import SHARED

DATA = SHARED / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data are not here")
ZERO = {"ddp": 0, "zero2": 2, "zero3": 3}


@pytest.fixture
def known():
    return json.loads((DATA / "galvatron_tests/hetu_cases.json").read_text())


@pytest.fixture
def profiles(known, tmp_path):
    """The profiles of the known cases, read as files."""

    def written(name, data):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(data))
        return path

    def read(name):
        path = written(name, known["profiles"][name])
        return read_computation(path) if name.startswith("time") else read_memory([path])[0]

    hardware = [written(name, data) for name, data in known["profiles"]["hardware"].items()]
    return read, read_hardware(hardware)


@needs_data
def test_hetus_costs_of_every_known_row(known, profiles):
    read, hardware = profiles
    inputs = galvatron_inputs(
        read("time_sequence"), read("memory_sequence_sp"), 8192, time_mode="sequence", memory_mode="sequence"
    )
    provider = HetuCosts(inputs, hardware, {"body": 28})
    seen = 0
    asynchronous = known["train"]["async_grad_reduce"]
    for case, rows in known["uniform_strategy_costs"].items():
        batch, micro_batches = map(int, re.findall(r"\d+", case))
        for row in rows:
            strategy = LayerStrategy(
                tp=row["tp"], sp=row["sp"], dp=row["dp"], zero=ZERO[row["dp_type"]], recompute=row["ckpt"]
            )
            setting = CostSetting(
                row["pp"], batch, micro_batches, 8192, 4096, reduce_every_micro_batch=not asynchronous
            )
            layer, ends = provider.layer("body", strategy, setting), provider.ends(strategy.end, setting)
            division = even_division(28, row["pp"])
            stages = range(row["pp"])
            held = [ends.on_stage(stage, row["pp"]) for stage in stages]
            of_ends = [
                (0, 0, 0)
                if end is None
                else (end.micro_batch_s, end.tail_s, end.states_mib + end.activation_mib * setting.alive(stage))
                for stage, end in enumerate(held)
            ]
            told = {
                "layer_s_sync": layer.micro_batch_s + layer.tail_s,
                "layer_s_nosync": layer.micro_batch_s,
                "layer_states_MB": layer.states_mib,
                "layer_act_MB_per_stage": [layer.activation_mib * setting.alive(stage) for stage in stages],
                "layer_MB_per_stage": [
                    layer.states_mib + layer.activation_mib * setting.alive(stage) for stage in stages
                ],
                "embed_s_sync": [each + tail for each, tail, _ in of_ends],
                "embed_s_nosync": [each for each, _, _ in of_ends],
                "embed_MB": [provider.memory.context_mib + mib for _, _, mib in of_ends],
                "uniform_pipeline_s": galvatron_step_s([[layer] * n for n in division], ends, micro_batches),
                "pp_division": list(division),
            }
            for name, figure in told.items():
                assert figure == pytest.approx(row[name], rel=1e-9), (case, row["strategy"], name)
            seen += 1
    assert seen == 84


@needs_data
def test_what_hetus_search_says_of_the_strategies_that_it_found(known, profiles, tmp_path):
    """Step time and memory of its two results: a plan of several strategies, and a uniform one."""
    read, hardware = profiles
    inputs = galvatron_inputs(
        read("time_sequence"), read("memory_sequence_sp"), 8192, time_mode="sequence", memory_mode="sequence"
    )
    provider = HetuCosts(inputs, hardware, {"body": 28})
    for case in known["cases"]:
        path = tmp_path / "galvatron_config.json"
        path.write_text(json.dumps(case["output_config"]))
        plan = read_strategy(path).plan
        setting = CostSetting(
            plan.stages, plan.global_batch, plan.micro_batches, 8192, 4096, reduce_every_micro_batch=True
        )
        rows = [[provider.layer("body", layer, setting) for layer in plan.on_stage(0)]]
        ends = provider.ends(plan.ends, setting)
        told = re.fullmatch(
            r"Minized timecost = (\S+) Memory remaining = .* Memory cost = \[(\d+)\]", case["best_line"]
        )
        assert galvatron_step_s(rows, ends, plan.micro_batches) == pytest.approx(float(told[1]), rel=1e-9)
        # Its search counts whole MB of every layer, and what it keeps for the allocator as used.
        limit = case["memory_GB"] * 1024
        used = sum(math.ceil(row.states_mib + row.activation_mib) for row in rows[0])
        used += math.ceil(provider.memory.context_mib + ends.first.states_mib + ends.first.activation_mib)
        used += gather_buffer_mib(setting, 8, plan.ends.tp) + limit - provider.memory.usable_mib(limit)
        assert used == int(told[2])


@needs_data
def test_hetus_derived_figures_of_every_mode(known, profiles):
    read, hardware = profiles
    derived = known["derived"]
    for time_mode, memory_mode, tokens, expected in (
        ("sequence", "sequence", 8192, derived),
        ("static", "static", 4096, known["derived_static_seq4096"]),
        ("batch", "static", 4096, known["derived_batch_seq4096"]),
    ):
        memory = read("memory_sequence_sp" if memory_mode == "sequence" else "memory_static_sp")
        inputs = galvatron_inputs(
            read(f"time_{time_mode}"), memory, tokens, time_mode=time_mode, memory_mode=memory_mode
        )
        layer = expected.get("layer", expected.get("fct_layer_ms_per_sample"))[0]
        other = expected.get("other", expected.get("fct_other_ms_per_sample"))[0]
        for time, figure in ((inputs.layer["body"], layer), (inputs.other, other)):
            told = [time.slope_ms, time.start_ms] if time_mode == "batch" else time.slope_ms
            assert told == pytest.approx(figure, rel=1e-9)
        body = inputs.memory["body"]
        activation = {str(ways): mib for ways, mib in body.activation_mib.items()}
        activation["checkpoint"] = body.recomputed_mib
        assert activation == pytest.approx(expected.get("act", expected.get("act_MB_per_sample"))[0], rel=1e-9)
        assert body.parameter_mib == expected.get("param", expected.get("param_MB"))[0]
    lines = MessageLines(hardware, 8)
    for name, collective, share in (("allgather_ms", ALL_REDUCE, 0.5), ("all2all_ms", ALL_TO_ALL, 1.0)):
        for ranks, row in derived[name].items():
            line = [share * each for each in lines.line(collective, int(ranks))]
            assert line == pytest.approx(row["popt"], rel=1e-9)


@needs_data
def test_hetus_memory_of_every_way_to_shard(known, profiles):
    read, _ = profiles
    inputs = galvatron_inputs(
        read("time_static"), read("memory_static"), 4096, time_mode="static", memory_mode="static",
        sequence_parallel=False,
    )  # fmt: skip
    body = inputs.memory["body"]
    for row in known["layer_memory_run_at_HEAD"]:
        degrees = {name: int(re.search(rf"{name}_size=(\d+)", row["strategy"])[1]) for name in ("pp", "tp", "sp", "dp")}
        zero = ZERO[re.search(r"DPType\.(\w+)", row["strategy"])[1].lower()]
        stages = degrees.pop("pp")
        strategy = LayerStrategy(**degrees, zero=zero, recompute="checkpoint=True" in row["strategy"])
        setting = CostSetting(
            stages, row["gbsz"], row["chunks"], 4096, 4096, sequence_parallel=row["sequence_parallel"],
            reduce_every_micro_batch=not row["async_grad_reduce"],
            schedule="gpipe" if row["pipeline_type"] == "gpipe" else "1f1b",
        )  # fmt: skip
        states = 4 * body.parameter_mib / strategy.tp * state_share(strategy, setting)
        samples = row["gbsz"] // row["chunks"] // strategy.dp
        activation = layer_activation_mib(body, strategy, setting) * samples * setting.alive(0)
        assert states == pytest.approx(row["model_states"], rel=1e-9), row["case"]
        assert activation == pytest.approx(row["activation"], rel=1e-9), row["case"]


@needs_data
def test_hetus_batch_sizes_strategies_and_divisions(known):
    for row in known["bsz_known_answers"]:
        if "min" in row and "expect" in row:
            assert list(batch_sizes(row["min"], row["max"], row["scale"])) == row["expect"]
    limits = SpaceLimits(most_stages=8, most_tp=8, most_sp=8)
    stages = limits.stage_numbers(8, 28)
    assert sum(len(limits.layers(8 // pp)) for pp in stages) == known["n_strategies"]["layer"] == 50
    assert sum(len(limits.ends(8 // pp)) for pp in stages) == known["n_strategies"]["embedding"]
    for row in known["pp_division_even"]:
        assert list(even_division(sum(row["layers"]), row["pp"])) == row["expect"]


@pytest.fixture
def toy(tmp_path):
    found = read_folders([cases.write_folder(tmp_path / "paddle", paddle=True)])
    _, hardware = found.cluster(8)
    model = found.model(None)
    inputs = galvatron_inputs(model.computation, model.memory, 4096, time_mode="static", memory_mode="static")
    return PaddleCosts(inputs, hardware)


@pytest.mark.parametrize(
    ("zero", "micro_batches", "states"),
    [(0, 1, 14), (0, 4, 18), (2, 1, 2 + 12 / 4), (2, 4, 6 + 12 / 4), (3, 1, 14 / 4), (3, 4, 4 + 14 / 4)],
)
def test_paddles_states_are_counted_in_bytes_a_parameter(toy, zero, micro_batches, states):
    """Weights take 2 bytes, gradients that are accumulated 4 and stay whole, the optimizer 12."""
    row = toy.layer("body", LayerStrategy(tp=2, dp=4, zero=zero), CostSetting(1, 32, micro_batches, 4096, 1024))
    assert row.states_mib == pytest.approx(cases.PARAMETER_MIB / 2 / 2 * states)


def test_paddles_layer_is_its_statement_position_by_position(toy):
    setting = CostSetting(2, 32, 4, 4096, 1024)
    row = toy.layer("body", LayerStrategy(tp=2, dp=2, zero=3, recompute=True), setting)
    forward = cases.layer_ms(4096) * 4 / 2
    message = 4 * 4096 * 1024 * 2 / 2**20
    gathers = 4 * 1.5 * (0.05 + message * 1 / 150) / 2
    gradients = 2 * 1 / 2 * cases.PARAMETER_MIB / 2 / 160
    transfer = 2 * 2 * message / 150 / 24
    # As many ranks of TP as of DP: half of the backward, forward again included, hides nothing.
    half = 3 * forward / 2
    hidden = gradients * 1.2 + half - gradients if gradients < half else half * 1.2 + gradients - half
    without = 4 * forward + gathers + gradients / 2 + transfer
    assert row.micro_batch_s * 1e3 == pytest.approx(without)
    assert row.tail_s * 1e3 == pytest.approx(hidden - half)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_paddle_by_bandwidth_counts_four_ring_all_reduces_a_layer(toy, tp):
    """A ring moves 2(n - 1)/n of a message through every link (Patarasuk and Yuan 2009): two forward, two backward.

    paddle-galvatron b0bdd07 paddlenlp/experimental/galvatron/cost_model/time_cost_model.py:131-139 for layers, :329-332
    for the gather at an end.
    """
    by_bandwidth = replace(toy, by_bandwidth=True)
    setting = CostSetting(1, 32, 4, 4096, 1024)
    message = 3 * 4096 * 1024 * 2 / 2**20
    took = by_bandwidth._tensor_ms(LayerStrategy(tp=tp, dp=8 // tp), 3, setting)
    assert took == pytest.approx(4 * 2 * (tp - 1) / tp * message / toy.hardware.bandwidth(tp, True))
    # An end gathers once, (n - 1)/n of the message at the all-reduce's bandwidth: half of an all-reduce
    # (time_cost_model.py:329-332). Paddle's table holds one figure a number of ranks (profile_data_parser.py:216).
    # Where a table has one figure for neighbours and another for ranks further apart, we read the neighbours' one.
    apart = {RankGroup(tp, True): 100.0, RankGroup(tp, False): 40.0}
    measured = replace(by_bandwidth, hardware=replace(toy.hardware, all_reduce_mib_a_ms=apart))
    at_an_end = measured._end_tensor_ms(EndStrategy(tp=tp, dp=8 // tp), 3, setting)
    assert at_an_end == pytest.approx((tp - 1) / tp * message / 100.0)
    assert measured._tensor_ms(LayerStrategy(tp=tp, dp=8 // tp), 3, setting) == pytest.approx(8 * at_an_end)


def test_a_table_has_a_row_for_every_kind_and_strategy(toy):
    setting = CostSetting(1, 32, 4, 4096, 1024)
    strategies = [LayerStrategy(dp=8, zero=zero) for zero in (0, 2, 3)]
    rows = cost_table(toy, toy.kinds, strategies, setting)
    assert [(row.kind, row.strategy) for row in rows] == [("body", each) for each in strategies]


def test_a_batch_that_leaves_a_rank_nothing_is_refused(toy):
    with pytest.raises(InputError, match="take fewer micro-batches"):
        toy.ends(EndStrategy(dp=8), CostSetting(1, 32, 8, 4096, 1024))


@pytest.mark.parametrize(
    ("tails", "exposed"),
    # The last stage reduces behind the 2 s of the first one: so much less of it is seen.
    [((0.0, 0.0), 0.0), ((1.0, 0.0), 1.0), ((1.0, 5.0), 3.0), ((1.0, 2.5), 1.0), ((0.0, 1.5), 0.0)],
)
def test_galvatrons_step_ends_with_the_reduction_that_outlasts_the_others(toy, tails, exposed):
    """Two stages of 2 and 3 s: the last one's four micro-batches behind the first of the other, 2 + 4 · 3 s.

    Hetu-Galvatron cea12ff galvatron/core/cost_model/cost_model_handler.py:78-95: what a stage takes for its layers with
    their reductions (`stage_costs_reduce`), less one micro-batch of every stage up to and including itself; the
    largest, if above 0, is added to the step.
    """
    row = toy.layer("body", LayerStrategy(dp=2), CostSetting(2, 32, 16, 4096, 1024))
    rows = [
        [replace(row, forward_s=each / 3, backward_s=each * 2 / 3, tail_s=tail)]
        for each, tail in zip((2.0, 3.0), tails, strict=True)
    ]
    nothing = EndCost(0.0, 0.0, 0.0, 0.0, 0.0)
    assert galvatron_step_s(rows, EndCosts(nothing, nothing), 4) == pytest.approx(14.0 + exposed)
    # A single stage has nobody to wait for.
    assert galvatron_step_s(rows[:1], EndCosts(nothing), 4) == pytest.approx(8.0 + tails[0])


def test_a_middle_stage_that_is_slowest_is_overlooked_by_galvatrons_step(toy):
    """Known of its formula: only the first and the last stage can be its bottleneck."""
    setting = CostSetting(4, 32, 16, 4096, 1024)
    row = toy.layer("body", LayerStrategy(dp=2), setting)
    ends = toy.ends(EndStrategy(dp=2), setting)
    told = galvatron_step_s([[row], [row] * 9, [row], [row]], ends, 16)
    assert told < 16 * 9 * row.micro_batch_s
