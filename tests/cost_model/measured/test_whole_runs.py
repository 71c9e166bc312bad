"""Tables made of whole runs, against runs whose layers, ends and odd larger runs are known."""

from __future__ import annotations

import itertools
import math

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.measured.fits import CURVE, LINE, NOISE, PROPORTIONAL, UNKNOWN_ERROR, MeasuredLaw
from taylor.cost_model.measured.laws import ForwardTime, ModelLaws, _forward
from taylor.cost_model.measured.profiles import (
    HETU,
    PADDLE,
    LayerMemory,
    MeasuredMemory,
    MemoryLayout,
    MemoryRun,
    MemoryTables,
    OtherMemory,
    RankMemory,
    Shape,
    TimedRun,
)
from taylor.cost_model.measured.profiles import ComputationProfile as Times
from taylor.cost_model.measured.raw import kind_names, with_layer_times, with_memory_tables

TOKENS, BATCH = 64, 8


def layout(pp: int, tp: int, dp: int, **more: bool) -> MemoryLayout:
    return MemoryLayout(pp, tp, dp, **more)


def test_a_layout_that_says_no_more_recomputes_nothing_and_splits_no_vocabulary():
    for pp, tp, dp in itertools.product((1, 2, 3), repeat=3):
        plain = layout(pp, tp, dp)
        assert (plain.recompute, plain.vocabulary_split, plain.sequence_parallel) == (False, False, False)
        assert plain.world == len(list(itertools.product(range(pp), range(tp), range(dp))))


def run(pp: int, layers: tuple[int, ...], last: bool = False, batch: int = BATCH, tp: int = 1) -> MemoryRun:
    return MemoryRun(layout(pp, tp, 4 // pp // tp), layers, Shape(batch, (TOKENS,)), last)


def parted(odd: float, batches=(BATCH,)):
    """Runs without ZeRO on 4 ranks, without a pipeline and on two stages, each of the latter in two sizes.

    A layer has 10 MiB of parameters and leaves 3 MiB a sample; the ends have 100 and 50 MiB of states and 2 and 5 MiB
    a sample. Runs with two layers a stage have a peak that is higher by `odd`.
    """
    runs = {}
    for batch in batches:
        for layers in (1, 2):
            here = 3.0 * layers * batch / 4
            runs[run(1, (layers,), batch=batch)] = RankMemory(40.0 * layers + 150.0, here, here + 7.0 * batch / 4)
        for a_stage, last in itertools.product((1, 2), (False, True)):
            here = 3.0 * a_stage * batch / 2
            states, activation = (50.0, 5.0) if last else (100.0, 2.0)
            peak = here + activation * batch / 2 + odd * (a_stage - 1)
            runs[run(2, (2 * a_stage,), last, batch)] = RankMemory(40.0 * a_stage + states, here, peak)
    return MeasuredMemory(runs=runs)


@pytest.fixture
def _not_sharded(monkeypatch):
    monkeypatch.setattr("taylor.cost_model.measured.raw._Processing.sharded", False)


@pytest.mark.usefixtures("_not_sharded")
@pytest.mark.parametrize("odd", [-1.0, 0.0, 4.0])
def test_of_several_sizes_of_a_stage_the_smallest_tells_what_is_beside_its_layers(odd):
    table = with_memory_tables(parted(odd), HETU).table(False)
    layer = table.layer["body"][TOKENS]
    assert layer.parameter_mib == pytest.approx(10.0)
    assert layer.activation_mib == pytest.approx({1: 3.0})
    assert layer.recomputed_mib is None
    for end, states, activation in ((table.alone, 150.0, 7.0), (table.first, 100.0, 2.0), (table.last, 50.0, 5.0)):
        assert end[TOKENS].states_mib == pytest.approx({1: states})
        assert end[TOKENS].activation_mib == pytest.approx({1: activation})


@pytest.mark.usefixtures("_not_sharded")
def test_of_several_batches_the_largest_tells():
    whole = parted(0.0, (4, BATCH))
    runs = {
        each: memory if each.shape.batch == BATCH else RankMemory(*(2 * (each.layers[0] + x) for x in (1.0, 5.0, 9.0)))
        for each, memory in whole.runs.items()
    }
    assert with_memory_tables(MeasuredMemory(runs=runs), HETU).tables == with_memory_tables(parted(0.0), HETU).tables


@pytest.mark.parametrize("layers", [(1, 1), (2, 3)])
def test_of_two_kinds_each_layer_and_the_rest_are_told_apart(layers):
    """Forward times of two kinds, and of the rest."""
    base, shape = layers, Shape(4, (TOKENS, 2 * TOKENS))
    more = [(base[0] + 2, base[1]), (base[0], base[1] + 3)]
    runs = {TimedRun(each, shape): 4 * (5.0 * each[0] + 11.0 * each[1] + 13.0) for each in (base, *more)}
    # A run in which both kinds have more, and one between, tell nothing.
    runs[TimedRun((base[0] + 2, base[1] + 3), shape)] = 1.0
    runs[TimedRun((base[0] + 1, base[1]), shape)] = 1.0
    found = with_layer_times(Times(runs_ms=runs))
    assert {kind: times[shape] for kind, times in found.layer_ms.items()} == pytest.approx(
        {"encoder": 5.0, "decoder": 11.0}
    )
    assert found.other_ms[shape] == pytest.approx(13.0)
    for missing in (base, *more):
        left = {each: ms for each, ms in runs.items() if each.layers != missing}
        left = {each: ms for each, ms in left.items() if each.layers in (base, *more)}
        assert not with_layer_times(Times(runs_ms=left)).layer_ms


def test_layers_that_take_no_time_are_refused_and_a_rest_is_never_below_nothing():
    shape = Shape(1, (TOKENS,))
    for more in (9.0, 10.0):
        with pytest.raises(InputError, match="takes no longer than with 2 layers"):
            with_layer_times(Times(runs_ms={TimedRun((2,), shape): 10.0, TimedRun((4,), shape): more}))
    found = with_layer_times(Times(runs_ms={TimedRun((2,), shape): 10.0, TimedRun((4,), shape): 30.0}))
    assert found.layer_ms["body"][shape] == 10.0 and found.other_ms[shape] == 0.0


def test_kinds_are_named_by_how_many_there_are():
    assert [kind_names(count) for count in (1, 2, 3)] == [
        ("body",), ("encoder", "decoder"), ("layers of group 0", "layers of group 1", "layers of group 2"),
    ]  # fmt: skip


def fitted(points, powers=CURVE):
    return MeasuredLaw.through(points, powers, of="x", cause="tokens", unit="ms", source="p.json")


def test_the_noise_of_points_on_a_law_falls_with_how_many_tell_it_beyond_its_coefficients():
    """A line through zero has one coefficient, one with a start two, a full curve three."""
    for square, line, start in itertools.product((0.0, 3.0), (0.0, 2.0), (0.0, 5.0)):
        used = sum(each != 0 for each in (square, line, start))
        if not used:
            continue
        for count in range(2, 9):
            law = fitted({float(x): square * x * x + line * x + start for x in range(1, count + 1)})
            exact = [round(each, 6) for each in law.coefficients]
            if sum(each > 0 for each in exact) != used or sum(each > 0 for each in law.coefficients) != used:
                continue  # Rounding, or fewer points than it takes.
            assert law.noise == pytest.approx(max(NOISE, UNKNOWN_ERROR / math.sqrt(1 + max(0, count - used))), abs=1e-6)
    assert fitted({4.0: 8.0}).noise == pytest.approx(UNKNOWN_ERROR)


def test_noise_is_what_is_left_of_the_points_where_that_is_more():
    law = fitted({1.0: 1.0, 2.0: 3.0, 3.0: 2.5, 4.0: 5.5, 5.0: 4.0}, PROPORTIONAL)
    slope = law.at(10.0) / 10
    left = max(abs(slope * x / y - 1) for x, y in law.points.items())
    assert law.residuals == pytest.approx({x: slope * x / y - 1 for x, y in law.points.items()})
    assert law.noise == pytest.approx(left * math.sqrt(5 / 4)) and law.noise > UNKNOWN_ERROR


def laws_of(first: dict[int, tuple[float, float]], rules=HETU) -> ModelLaws:
    ends = {length: OtherMemory({1: 4.0 * length, 2: 3.0}, {1: one, 2: two}) for length, (one, two) in first.items()}
    layer = {"body": {64: LayerMemory(7.0, {1: 5.0}, None)}}
    memory = MeasuredMemory(tables={True: MemoryTables(layer, {}, ends, {})})
    times = Times(layer_ms={"body": {Shape(1, (64,)): 1.0}}, other_ms={Shape(1, (64,)): 1.0})
    return ModelLaws.of(times, memory, rules, sequence_parallel=True)


def test_ends_without_activations_have_none_at_other_lengths_and_others_follow_what_they_have():
    found = laws_of({64: (0.0, 0.0), 128: (0.0, 6.0), 256: (0.0, 12.0)}).end_memory("first", 512)
    assert found.activation_mib == pytest.approx({1: 0.0, 2: 24.0})
    assert found.states_mib == {1: 4.0 * 256, 2: 3.0}
    known = laws_of({64: (0.0, 3.0), 128: (1.0, 6.0)}, PADDLE).end_memory("first", 128)
    assert known.activation_mib == {1: 1.0, 2: 6.0} and known.states_mib == {1: 512.0, 2: 3.0}
    with pytest.raises(InputError, match="other_memory_pp_on_last"):
        laws_of({64: (0.0, 0.0)}).end_memory("last", 64)
    with pytest.raises(InputError, match="other_memory_pp_off.*profile runs without a pipeline"):
        laws_of({64: (0.0, 0.0)}).end_memory("alone", 64)


def test_what_a_batch_saves_at_one_length_is_saved_at_every_length():
    times = {Shape(batch, (tokens,)): ms for batch, tokens, ms in [
        (1, 64, 10.0), (1, 128, 20.0), (1, 256, 40.0), (2, 64, 8.0), (2, 128, 16.0), (4, 128, 14.0), (8, 128, 13.0),
    ]}  # fmt: skip
    law = _forward(times, LINE, "x", "p.json")
    assert law.batch == 1 and law.by_batch is not None and law.by_batch.cause == "samples"
    assert law.by_batch.points == {1: 20.0, 2: 32.0, 4: 56.0, 8: 104.0}
    for batch, ms in law.by_batch.points.items():
        for tokens in (64, 128, 256):
            assert law.ms(batch, tokens) == pytest.approx(10.0 * tokens / 64 * ms / 20.0)
    few = {shape: ms for shape, ms in times.items() if shape.batch < 4}
    alone = _forward(few, LINE, "x", "p.json")
    assert alone.by_batch is None and alone.ms(3, 128) == pytest.approx(60.0)
    more = _forward({shape: ms for shape, ms in times.items() if shape.batch > 1}, LINE, "x", "p.json")
    assert more.batch == 2


def test_attention_has_the_part_that_grows_with_the_square():
    law = ForwardTime(fitted({x: 3.0 * x * x + 2.0 * x for x in (1.0, 2.0, 3.0, 4.0)}), None, 1)
    for samples, tokens in itertools.product((1, 2.5), (2, 8)):
        assert law.attention_ms(samples, tokens) == pytest.approx(samples * 3.0 * tokens**2, rel=1e-6)
