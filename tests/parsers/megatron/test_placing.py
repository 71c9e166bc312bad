"""Where flags put layers, chunk by chunk, and what flags are made to say it: tables and plain statements by hand."""

from __future__ import annotations

import itertools

import pytest

from taylor.base.errors import InputError
from taylor.parsers.megatron import kinds
from taylor.parsers.megatron.kinds import kind_flags, starts_with
from taylor.parsers.megatron.layout import (
    LayoutProblem,
    Placement,
    ends_placement,
    even_placement,
    expand_layout,
    layout_text,
)
from taylor.parsers.megatron.own_plan import read_schedule
from taylor.parsers.megatron.placing import interleave_flag, placing_flags, with_noops
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.model import DENSE, MOE, MTP, ModelSpec, MoeSpec
from tests.parsers.megatron.test_flag_words import flags


def plain(*rows: tuple[int, ...]) -> PipelinePlan:
    return PipelinePlan({DENSE: rows}, {})


def test_zero_bubbles_own_flags_bound_how_much_waits() -> None:
    def named(words: str) -> tuple[str, int]:
        spec, interleaves = read_schedule(flags(f"--num-layers 8 --pipeline-model-parallel-size 4 {words}"))
        return spec.name, interleaves

    pending = "--enable-zero-bubble --zero-bubble-max-pending-backward"
    assert named("") == ("1f1b", 1) and named("--enable-zero-bubble") == ("zb-h1", 1)
    for count, name in (("auto", "zb-h1"), (4, "zb-h1"), (6, "zb-h1"), (7, "zb-h2"), (8, "zb-h2"), (10**6, "zb-h2")):
        assert named(f"{pending} {count}") == (name, 1)
    for count in (3, 1):
        with pytest.raises(InputError, match="less than the 4 stages"):
            named(f"{pending} {count}")
    for count in (0, 10**6 + 1):
        with pytest.raises(InputError, match="from 1 to 1000000"):
            named(f"{pending} {count}")
    for words in ("--num-layers-per-virtual-pipeline-stage 1", "--num-virtual-stages-per-pipeline-rank 2"):
        with pytest.raises(InputError, match="has no virtual stages"):
            named(f"--enable-zero-bubble {words}")
    with pytest.raises(InputError, match="two stages or more"):
        read_schedule(flags("--num-layers 8 --enable-zero-bubble"))
    read_schedule(flags("--num-layers 8 --enable-zero-bubble --pipeline-model-parallel-size 2"))
    for name in ("zero-bubble-v-schedule", "enable-1f1b-v"):
        with pytest.raises(InputError, match="as training starts"):
            named(f"--{name}")


def test_chunks_a_stage_are_what_the_flags_count() -> None:
    def interleaves(words: str) -> int:
        return read_schedule(flags(f"--num-layers 12 --pipeline-model-parallel-size 2 {words}"))[1]

    assert interleaves("--num-virtual-stages-per-pipeline-rank 3") == 3
    for each, chunks in ((1, 6), (2, 3), (3, 2), (6, 1)):
        assert interleaves(f"--num-layers-per-virtual-pipeline-stage {each}") == chunks
    with pytest.raises(InputError, match="must divide the 12 layers of 2 stages"):
        interleaves("--num-layers-per-virtual-pipeline-stage 4")
    assert interleaves('--pipeline-model-parallel-layout "Et*3|(ttt|)*2,t*3L"') == 2
    with pytest.raises(InputError, match="names 3 chunks for 2 stages"):
        interleaves('--pipeline-model-parallel-layout "Et*4|t*4|t*4L"')
    for words, spread in (
        ("--account-for-embedding-in-pipeline-split", 13),
        ("--account-for-loss-in-pipeline-split", 13),
    ):
        with pytest.raises(InputError, match=f"must divide the {spread} layers"):
            interleaves(f"--num-layers-per-virtual-pipeline-stage 6 {words}")


def test_layouts_are_expanded_letter_by_letter() -> None:
    assert expand_layout("Et*3|(tt|)*2,m|L") == ["Ettt", "tt", "tt", "m", "L"]
    assert expand_layout("E t, t |((t|)*2,t|)*2 L") == ["Ett", "t", "t", "t", "t", "t", "t", "L"]
    for text, told in (
        ("tE|L", "must start with E"), ("EE|L", "must start with E"), ("t|L", "must start with E"),
        ("Et|tEL", "must start with E"), ("E|Lt", "must end with L"), ("E|LL", "has L 2 times"),
        ("EtL|t", "must end with L"), ("E|t", "must end with L"), ("Emt|L", "in this order"), ("Etx|L", "contains 'x'"),
    ):  # fmt: skip
        with pytest.raises(LayoutProblem, match=told):
            expand_layout(text)
    longest = 100_000
    assert len(expand_layout("E" + "(" + "t" * 9 + "|)*9999" + "L")[0]) == 10
    for text in ("E(" + "t" * 50 + ")*2001L", "E" + "t*9999" * 11 + "L"):
        with pytest.raises(LayoutProblem, match="too long"):
            expand_layout(text)
    expand_layout("E(" + "t" * 50 + ")*1999L")
    assert len("".join(expand_layout("E" + "t*9999" * 10 + "t" * 8 + "L"))) == longest
    with pytest.raises(LayoutProblem, match="too long"):
        expand_layout("E" + "t*9999" * 10 + "t" * 9 + "L")
    expand_layout("E(" + "t" * 100 + ")*999L")
    expand_layout("E" + "(t)*1" * 49 + "L")


def test_a_plan_as_a_layout_expands_to_its_layers() -> None:
    for sizes, mtp in (
        (((1, 4), (5, 9)), None), (((2, 2, 2), (2, 2, 1)), ((0, 0, 0), (0, 0, 1))),
        (((0, 3, 3, 3, 3), (3, 3, 3, 0, 0)), None), (((4,), (0,)), ((0,), (2,))),
    ):  # fmt: skip
        layers = {DENSE: sizes} | ({} if mtp is None else {MTP: mtp})
        text = layout_text(PipelinePlan(layers, {}))
        chunks = [
            "t" * count + "m" * (0 if mtp is None else mtp[v][s])
            for v, row in enumerate(sizes)
            for s, count in enumerate(row)
        ]
        chunks[0], chunks[-1] = "E" + chunks[0], chunks[-1] + "L"
        assert expand_layout(text) == chunks
    assert layout_text(plain((4, 5, 6))) == "Etttt|t*5|t*6L"
    assert layout_text(plain((1, 2, 2, 2, 1))) == "Et|(tt|)*3,tL"
    assert layout_text(plain((1, 2, 2, 1))) == "Et|tt|tt|tL"


def test_positions_hold_layers_but_where_they_are_empty() -> None:
    place = Placement((3, 2, 4), frozenset({0, 2, 4, 8}))
    real = [[at not in place.noops for at in row] for row in ((0, 1, 2), (3, 4), (5, 6, 7, 8))]
    assert place.sizes() == [sum(row) for row in real]
    for chunk, row in enumerate(real):
        for count in range(6):
            assert place.real_among_first(chunk, count) == sum(row[:count])
    assert even_placement(12, 4, frozenset()).slots == (3,) * 4
    with pytest.raises(LayoutProblem, match="do not divide"):
        even_placement(13, 4, frozenset())


def test_ends_take_what_they_say_and_the_rest_is_even() -> None:
    for stages, interleaves, first, last, layers in itertools.product(
        (1, 2, 3, 4), (1, 2), (None, 0, 2, 3), (None, 0, 2, 4), range(13)
    ):
        given = (first is not None) + (last is not None)
        rest, between = layers - (first or 0) - (last or 0), stages - given
        fits = between >= 0 and rest >= 0 and (rest == 0 if between == 0 else rest % between == 0)
        each = rest // between if fits and between else 0
        row = ([] if first is None else [first]) + [each] * between + ([] if last is None else [last])
        fits = fits and all(count % interleaves == 0 for count in row)
        if fits:
            slots = ends_placement(layers, stages, interleaves, first, last).slots
            assert list(slots) == [count // interleaves for count in row] * interleaves
        else:
            with pytest.raises(LayoutProblem):
                ends_placement(layers, stages, interleaves, first, last)
    with pytest.raises(LayoutProblem, match="there is one stage"):
        ends_placement(4, 1, 1, 2, 2)


def test_chunks_are_counted_by_the_flag_that_the_script_has() -> None:
    per_chunk, per_rank = "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank"
    for words, interleaves, each, wanted in (
        ("", 1, 4, {}), ("", 2, 4, {per_rank: "2"}), (f"--{per_chunk} 3", 2, 4, {per_chunk: "4"}),
        (f"--{per_chunk} 3", 2, None, {per_rank: "2"}), (f"--{per_chunk} 3", 1, 4, {}),
    ):  # fmt: skip
        assert interleave_flag(flags(words), interleaves, each) == wanted


def test_spare_positions_are_named_by_their_number() -> None:
    rows = ([0, None, 1], [None, None, 0], [0, 1, 2])
    assert with_noops(rows, None) == {"num-layers": "9", "noop-layers": "1,3,4"}
    assert with_noops(rows, "per") == {"num-layers": "9", "noop-layers": "1,3,4", "per": "3"}
    assert with_noops(([0, 1], [0, 1]), None) == {"num-layers": "4"}


def test_kinds_are_said_as_dense_layers_first_or_as_a_list() -> None:
    first, pattern = "first-k-dense-replace", "moe-layer-freq"
    for words, wanted, mindspeed, said in (
        ("", [True, True], False, {}), ("", [True, None], True, {}), (f"--{first} 1", [False, True], True, {}),
        (f"--{first} 1", [None, True], True, {}), (f"--{pattern} [0,1]", [False, True], False, {}),
        ("", [False, True, True], False, {pattern: "([0]*1+[1]*2)"}),
        ("", [False, False, True], True, {first: "2", pattern: "1"}),
        (f"--{first} 1", [True, True], True, {first: "0", pattern: "1"}),
        (f"--{first} 1", [False, False, True], False, {first: "2", pattern: "1"}),
        (f"--{pattern} [0,1]", [True, True], False, {pattern: "([0]*0+[1]*2)"}),
        (f"--{pattern} [0,1,1]", [False, False, True], True, {pattern: "([0]*2+[1]*1)"}),
        ("", [None, False, True], True, {first: "2", pattern: "1"}),
    ):  # fmt: skip
        assert kind_flags(flags(f"--num-layers {len(wanted)} {words}"), wanted, mindspeed) == said, (words, wanted)
    mixed = kind_flags(flags("--num-layers 3 --first-k-dense-replace 1"), [True, False, True], True)
    assert mixed[first] is False and mixed[pattern] != "1"
    assert first not in kind_flags(flags("--num-layers 3"), [True, False, True], True)


def test_dense_layers_fill_no_stage_of_several() -> None:
    for dense, positions, stages in itertools.product(range(6), (4, 8, 9), (1, 2, 4)):
        assert starts_with(dense, positions, stages) == (dense == 0 or stages == 1 or dense < positions // stages)


def test_a_list_of_stages_numbers_positions_as_if_they_were_even() -> None:
    words = "--num-layers 6 --num-layer-list"
    assert list(kinds.tested_positions(flags(f"{words} 2,4"), 6)) == [0, 1, 3, 4, 5, 6]
    assert list(kinds.tested_positions(flags(f"{words} 3,1,2"), 6)) == [0, 1, 2, 2, 4, 5]
    assert list(kinds.tested_positions(flags(f"{words} 2,3"), 6)) == list(range(6))
    assert list(kinds.tested_positions(flags("--num-layers 6"), 6)) == list(range(6))


MODEL = ModelSpec("toy", 12, 64, 8, 8, 8, 128, 1000)
ROUTED = MODEL.replace(moe=MoeSpec(8, 2, 32, first_dense=2))
MINDSPEED = "--use-fused-rmsnorm"
FIRST, LAST = "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"
LAYOUT, LIST, NOOPS = "pipeline-model-parallel-layout", "num-layer-list", "noop-layers"
PER_CHUNK, PER_RANK = "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank"


def placed(words: str, plan: PipelinePlan, model: ModelSpec = MODEL, schedule: str = "1f1b") -> dict[str, object]:
    stages = f"--pipeline-model-parallel-size {plan.stages}"
    return placing_flags(flags(f"--num-layers 12 {stages} {words}"), model, plan, ScheduleSpec(schedule))


def test_stages_are_placed_by_their_ends_where_those_between_are_even_and_by_a_layout_where_not() -> None:
    for sizes in itertools.product(range(1, 5), repeat=3):
        first, between, last = sizes
        wanted = {} if first == between else {FIRST: str(first)}
        wanted |= {} if last == between else {LAST: str(last)}
        assert placed("", plain(sizes)) == {"num-layers": str(sum(sizes)), **wanted}
    for sizes, text in (((1, 2), "Et|ttL"), ((1, 2, 3, 1), "Et|tt|ttt|tL"), ((1, 2, 4, 1), "Et|tt|tttt|tL")):
        assert placed("", plain(sizes)) == {"num-layers": str(sum(sizes)), LAYOUT: text}
    assert placed("", plain((3, 3))) == {"num-layers": "6"} == placed("", plain((6,)))
    assert placed("", plain((3, 3), (3, 3))) == {"num-layers": "12", PER_RANK: "2"}
    assert placed(f"--{PER_CHUNK} 2", plain((3, 3), (3, 3))) == {"num-layers": "12", PER_CHUNK: "3"}
    assert placed("", plain((1, 3, 2), (1, 3, 2))) == {"num-layers": "12", FIRST: "2", LAST: "4", PER_RANK: "2"}
    assert placed(f'--{LAYOUT} "Et|tL"', plain((3, 3))) == {"num-layers": "6", LAYOUT: "Ettt|tttL"}
    assert placed(f"--{FIRST} 2", plain((3, 3))) == {"num-layers": "6", FIRST: False}


def test_mindspeed_is_told_of_unlike_stages_by_a_list_or_by_empty_positions() -> None:
    assert placed(MINDSPEED, plain((1, 2))) == {"num-layers": "3", LIST: "1,2"}
    assert placed(MINDSPEED, plain((3, 3))) == {"num-layers": "6"}
    assert placed(f"{MINDSPEED} --{LIST} 5,7", plain((3, 3))) == {"num-layers": "6", LIST: "3,3"}
    assert placed(f"{MINDSPEED} --{NOOPS} 0", plain((1, 2))) == {
        "num-layers": "12", NOOPS: "1,2,3,4,5,8,9,10,11",
    }  # fmt: skip
    two = placed(MINDSPEED, plain((2, 3), (3, 2)))
    assert two == {"num-layers": "12", NOOPS: "2,11", PER_CHUNK: "3"}
    wide = placed(MINDSPEED, plain((1, 2), (2, 1)))
    assert wide == {"num-layers": "12", NOOPS: "1,2,5,8,10,11", PER_CHUNK: "3"}


def test_dense_layers_in_front_leave_the_first_stage_room_for_one_with_experts() -> None:
    """MindSpeed-LLM does not start where they fill it; positions that are empty count."""
    words = f"{MINDSPEED} --first-k-dense-replace 2"
    one = PipelinePlan({DENSE: ((2, 0),), MOE: ((1, 3),)}, {})
    assert placed(words, one, ROUTED) == {"num-layers": "6"}
    full = PipelinePlan({DENSE: ((2, 0),), MOE: ((0, 2),)}, {})
    assert placed(words, full, ROUTED) == {"num-layers": "6", NOOPS: "2,5"}
    both = PipelinePlan({DENSE: ((1, 1),), MOE: ((0, 2),)}, {})
    with pytest.raises(InputError, match="dense layers fill the first stage"):
        placed(words, both, ROUTED)


def test_v_schedules_and_zero_bubbles_flags_come_and_go_with_the_schedule() -> None:
    v, detach = "schedules-method", "dualpipev-dw-detach"
    told = placed(MINDSPEED, plain((3, 3), (3, 3)), schedule="dualpipev")
    assert told == {"num-layers": "12", v: "dualpipev", detach: not ScheduleSpec("dualpipev").whole_drain}
    assert v not in placed(f"{MINDSPEED} --{v} dualpipev", plain((3, 3), (3, 3)), schedule="dualpipev")
    gone = placed(f"{MINDSPEED} --{v} dualpipev", plain((3, 3)))
    assert gone[v] is False and gone[detach] is False
    own, pending = "enable-zero-bubble", "zero-bubble-max-pending-backward"
    for words, schedule, wanted in (
        ("", "zb-h1", {own: True, pending: "2"}), ("", "zb-h2", {own: True, pending: "4"}), ("", "1f1b", {}),
        (f"--{own}", "zb-h1", {}), (f"--{own}", "zb-h2", {own: True, pending: "4"}), (f"--{own}", "1f1b", {own: False}),
        (f"--{own} --{pending} 2", "zb-h1", {own: True, pending: "2"}),
        (f"--{own} --{pending} 2", "1f1b", {own: False, pending: False}),
    ):  # fmt: skip
        assert placed(words, plain((3, 3)), schedule=schedule) == {"num-layers": "6", **wanted}
    for schedule in ("zb-h1", "zb-h2"):
        with pytest.raises(InputError, match="spreads layers evenly"):
            placed("", plain((2, 4)), schedule=schedule)
    placed(f"--{own}", plain((2, 4)))
