"""Profiles of a few kernels, entry by entry: ranks, times, steps, tasks, transfers, and what is refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taylor.base.errors import InputError
from taylor.parsers.profiles import json_stream
from taylor.parsers.profiles.ascend import ascend_rank
from taylor.parsers.profiles.json_stream import stream_events
from taylor.parsers.profiles.kernels import (
    BACKWARD_MARKER,
    COLLECTIVE,
    COMPUTE,
    FORWARD_MARKER,
    MAX_KERNEL_NS,
    RECEIVE,
    SEND,
    TRANSFER,
    KernelBuilder,
    parse_us,
)
from taylor.parsers.profiles.kineto import read_kineto
from taylor.parsers.profiles.tables import MAX_CELL, stream_rows
from taylor.parsers.profiles.transfers import Transfer, read_transfers

YEARS_285 = 9 * 10**15


def test_times_are_whole_nanoseconds_below_285_years() -> None:
    for whole, part in itertools.product((0, 7, 10**15, YEARS_285 - 1), ("", "5", "05", "123", "1239", "9999")):
        text = f"{whole}.{part}" if part else str(whole)
        assert parse_us(f" {text}\t") == whole * 1000 + int((part + "000")[:3])
    for text in (str(YEARS_285), str(10**16), f"{YEARS_285}.5", "9e15", "-9e15", "1e300", "1e", "1.2.3"):
        with pytest.raises(ValueError):
            parse_us(text)
    assert parse_us("-2.5") == -2500 and parse_us("8.9e15") == 8_900_000_000_000_000_000


def built(*kernels: tuple[int, int], kind: str = "FlashAttentionScore", **more: Any) -> Any:
    builder = KernelBuilder(Path("t.csv"))
    for number, (start, duration) in enumerate(kernels):
        builder.add(f"a_{number}", kind, start, duration, **more)
    return builder.build(3)


def test_kernels_lie_in_the_order_of_their_starts_with_what_was_said_of_them() -> None:
    builder = KernelBuilder(Path("t.csv"))
    builder.add("later-op12", "", 500, 30, step=2)
    builder.add("first", "N/A", 100, 20)
    builder.add("first_7", "Sum", 100, 40, role=SEND)
    found = builder.build(None)
    assert [found.names[at] for at in found.name] == ["first", "Sum", "later"]
    assert found.start_ns.tolist() == [100, 100, 500] and found.end_ns.tolist() == [120, 140, 530]
    assert found.step.tolist() == [-1, -1, 2] and found.role.tolist() == [COMPUTE, SEND, COMPUTE]
    assert (len(found), found.rank, found.notes) == (3, None, ())
    assert [len(each) for each in (found.task_start_ns, found.task_end_ns, found.task_marker)] == [0, 0, 0]


def test_the_commonest_names_come_first_and_equal_ones_as_they_were_met() -> None:
    builder = KernelBuilder(Path("t.csv"))
    for at, name in enumerate("abbcccddddeeeeefg"):
        builder.add(name, "", at, 1)
    found = builder.build(0)
    assert found.commonest() == [("e", 5), ("d", 4), ("c", 3), ("b", 2), ("a", 1)]
    assert found.commonest(2) == [("e", 5), ("d", 4)] and found.commonest(9)[5:] == [("f", 1), ("g", 1)]


def test_only_wanted_groups_are_kept_and_of_others_what_they_send() -> None:
    def builder() -> KernelBuilder:
        made = KernelBuilder(Path("t.csv"))
        for group, name in itertools.product((0, 1, 2), ("add", "hcom_send_1", "hcom_allReduce_2")):
            made.add(f"{name}", "", 10 * group, 1, group=group)
        return made

    assert len(builder().build(0)) == 9
    for mine, talking in itertools.product(([], [0], [0, 2]), ([], [1], [1, 2])):
        expected = 3 * len(mine) + 2 * len(set(talking) - set(mine))
        if not expected:
            with pytest.raises(InputError, match="contains no kernel"):
                builder().build(0, groups=mine, communication_groups=talking)
            continue
        found = builder().build(0, groups=mine, communication_groups=talking)
        assert len(found) == expected and np.count_nonzero(found.role == COMPUTE) == len(mine)


@pytest.mark.parametrize(("start", "duration"), [(-1, 5), (0, -1), (0, MAX_KERNEL_NS + 1)])
def test_times_that_no_kernel_has_are_refused(start: int, duration: int) -> None:
    with pytest.raises(InputError, match="is no time of a kernel"):
        built((start, duration))
    assert len(built((0, MAX_KERNEL_NS), kind="Add")) == 1
    assert built((0, 3_600 * 10**9), kind="Add").duration_ns.tolist() == [MAX_KERNEL_NS]


def test_attention_kernels_of_one_stream_may_overlap_by_a_fiftieth_of_their_time() -> None:
    for told, over in itertools.product((True, False), (0, 1, 4, 5, 40)):
        # Two kernels of 100 ns each, the second beginning `over` ns before the first ends.
        times, stream = ((0, 100), (100 - over, 100)), 4 if told else -1
        if over > 0.02 * 200:
            with pytest.raises(InputError, match="of one stream that run at once"):
                built(*times, stream=stream)
        else:
            assert len(built(*times, stream=stream)) == 2
        assert len(built(*times, stream=stream, kind="Add")) == 2
    with pytest.raises(InputError, match="attention kernels no duration"):
        built((0, 100), (200, 0))


def write(path: Path, data: object) -> Path:
    path.write_text(json.dumps(data))
    return path


def kernel(ts: float, dur: float, name: str = "add", **arguments: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "ts": ts,
        "dur": dur,
        "pid": 0,
        "args": {"device": 0, **arguments},
    }


def annotation(ts: float, dur: float, name: str, tid: int = 7) -> dict[str, Any]:
    return {"ph": "X", "cat": "gpu_user_annotation", "name": name, "ts": ts, "dur": dur, "tid": tid}


def test_a_trace_s_rank_is_told_inside_or_else_by_its_name(tmp_path: Path) -> None:
    named = {"t.json": None, "rank-3.json": 3, "Rank_12_x.json": 12, "rank7.json": 7, "ranks.json": None}
    for name, rank in named.items():
        for inside in (None, 0, 5, -1, True, "4"):
            told = {} if inside is None else {"distributedInfo": {"rank": inside}}
            found = read_kineto(write(tmp_path / name, {**told, "traceEvents": [kernel(1, 2)]}))
            assert found.rank == (inside if inside in (0, 5) and inside is not True and inside is not None else rank)


def test_steps_and_tasks_are_those_of_the_device_s_ranges(tmp_path: Path) -> None:
    events = [
        *(kernel(10.0 * at, 5.0, stream=7) for at in range(6)), kernel(3.0, 1.0, stream=9),
        annotation(10.0, 20.0, "ProfilerStep#4"), annotation(30.0, 10.0, "ProfilerStep#5", 9),
        annotation(0.0, 15.0, "## forward ##"), annotation(20.0, 15.5, "Backward"), annotation(0.0, 9.0, "forward", 9),
        annotation(1.0, 2.0, "forward_step"),
    ]  # fmt: skip
    found = read_kineto(write(tmp_path / "t.json", events))
    assert found.start_ns.tolist() == [0, 3000, 10000, 20000, 30000, 40000, 50000]
    assert found.step.tolist() == [-1, -1, 4, 4, 5, -1, -1]
    assert found.task_start_ns.tolist() == [0, 20000] and found.task_end_ns.tolist() == [15000, 35500]
    assert found.task_marker.tolist() == [FORWARD_MARKER, BACKWARD_MARKER]


def test_collectives_are_told_by_what_they_are_called(tmp_path: Path) -> None:
    names = {
        "send": SEND, "recv": RECEIVE, "allreduce": COLLECTIVE, None: COMPUTE,
    }  # fmt: skip
    for told, role in names.items():
        arguments = {} if told is None else {"Collective name": told}
        found = read_kineto(write(tmp_path / "t.json", [kernel(1, 2, "some_kernel", **arguments)]))
        assert found.role.tolist() == [role]
    both = kernel(1, 2, "ncclDevKernel_SendRecv", **{"Collective name": "other"})
    assert read_kineto(write(tmp_path / "t.json", [both])).role.tolist() == [TRANSFER]


def test_copies_count_as_kernels_and_what_runs_on_the_host_does_not(tmp_path: Path) -> None:
    events = [kernel(1, 2), {**kernel(2, 3), "cat": "gpu_memcpy", "args": None}, {**kernel(3, 3), "cat": "cpu_op"},
              {**kernel(4, 3), "ph": "B"}, {**kernel(5, 3), "cat": 7}]  # fmt: skip
    events.append({**kernel(6, 1), "cat": "GPU_MEMSET"})
    assert read_kineto(write(tmp_path / "t.json", events)).start_ns.tolist() == [1000, 2000, 6000]
    other = {**kernel(9, 1), "args": {"device": 1}}
    with pytest.raises(InputError, match="several devices"):
        read_kineto(write(tmp_path / "t.json", [kernel(1, 2), other]))
    for wrong in (None, "x", True, YEARS_285, -YEARS_285):
        with pytest.raises(InputError, match="must be a time in us"):
            read_kineto(write(tmp_path / "t.json", [{**kernel(1, 2), "ts": wrong}]))


def test_the_rank_of_an_ascend_profile_is_in_a_file_beside_it(tmp_path: Path) -> None:
    def rank(**files: object) -> int | None:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for name, data in files.items():
            write(folder / f"{name}.json", data)
        return ascend_rank(folder / "out")

    for number, stated in itertools.product((None, 0, 3), (None, 0, 3, -1, True, "3")):
        name = "profiler_info" if number is None else f"profiler_info_{number}"
        data = {} if stated is None else {"rank_id": stated}
        known = stated if stated in (0, 3) and stated is not True and not isinstance(stated, str) else None
        if known is not None and number is not None and known != number:
            with pytest.raises(InputError, match="contradicts the file's name"):
                rank(**{name: data})
        else:
            assert rank(**{name: data}) == (known if known is not None else number)
    assert rank(profiler_info_1=[1], profiler_info_x={"rank_id": 9}) == 1
    assert rank(profiler_info={"rank_id": 4}, profiler_info_4={}) == 4
    with pytest.raises(InputError, match="several ranks"):
        rank(profiler_info_1={}, profiler_info_2={})
    assert rank(profiler_metadata={}) is None


def told(elapsed: float, wait: float, **links: float) -> dict[str, Any]:
    return {
        "Communication Time Info": {"Elapse Time(ms)": elapsed, "Wait Time(ms)": wait},
        "Communication Bandwidth Info": {name: {"Transit Size(MB)": size} for name, size in links.items()},
    }


def test_transfers_have_what_was_sent_and_how_long_it_took_without_waiting(tmp_path: Path) -> None:
    steps = {
        "step1": {
            "collective": {"hcom_allReduce__0@11": told(3.5, 1.25, SDMA=2.5, HCCS=2.5, PCIE=0.0),
                           "hcom_broadcast__1@12": told(1.0, 2.0, RDMA=0.25, SDMA=0.5), "Total Op Info": {}},
            "p2p": {"hcom_send__2@13": told(0.5, 0.0)},
        },
        "step2": {"collective": {"hcom_allReduce__9@11": told(7.0, 0.5, RDMA=4.0)}},
    }  # fmt: skip
    assert read_transfers(write(tmp_path / "communication.json", steps)) == {
        "hcom_allReduce__0": Transfer("11", 2_500_000, 2_250_000.0),
        "hcom_broadcast__1": Transfer("12", 750_000, 0.0),
        "hcom_send__2": Transfer("13", 0, 500_000.0),
        "hcom_allReduce__9": Transfer("11", 4_000_000, 6_500_000.0),
    }
    for broken in (told(float("nan"), 0.0), told(float("inf"), 0.0), told(1.0, 0.0, SDMA=float("inf")), {}, 7):
        with pytest.raises(InputError, match="contains no collectives"):
            read_transfers(write(tmp_path / "c.json", {"s": {"p2p": {"a@1": broken}}}))


def rows(path: Path, text: str, **more: Any) -> list[tuple[int, list[str | None]]]:
    path.write_bytes(text.encode())
    return list(stream_rows(path, ("a", "b"), ("c",), **more))


def test_tables_are_read_by_the_names_of_their_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for end in ("\n", "\r\n", "\r"):
        assert rows(path, f"b, a,x{end}1,2,3{end}{end}4,5,6{end}")[:1] == [(2, ["2", "1", None])]
        assert rows(path, f"c,b,a{end}1,2,3{end}") == [(2, ["3", "2", "1"])]
        with pytest.raises(InputError, match="cut short: the last row has no end"):
            rows(path, f"a,b{end}1,2")
    for text, says in (
        ("", "is empty"), ("a\n1\n", "has no such column"), ("a,b,b\n1,2,3\n", "this column twice"),
        ("a,b\n1\n", "has 1 cells and the header 2"), ("a,b\n1,2\n1,2,3\n", "row 3"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=says):
            rows(path, text)
    ragged: list[int] = []
    assert rows(path, "a,b\n1\n2,3\n4,5,6\n", ragged=ragged) == [(3, ["2", "3", None])] and ragged == [2, 4]
    ragged = []
    # Without a last line end: a row that ends in a cell that nobody asks is whole, another one may be cut.
    assert rows(path, "a,b,x\n1,2,3\n4,5,6", ragged=ragged) == [(2, ["1", "2", None]), (3, ["4", "5", None])]
    assert ragged == [] and rows(path, "a,b\n1,2\n4,5", ragged=ragged) == [(2, ["1", "2", None])] and ragged == [3]
    assert rows(path, "a,b,x\n1,2,3\n4,5", ragged=ragged) == [(2, ["1", "2", None])] and ragged == [3, 3]
    assert rows(path, f"a,b\n1,{'x' * MAX_CELL}\n")[0][1][0] == "1"
    with pytest.raises(InputError, match="no CSV file|not a CSV file"):
        rows(path, f"a,b\n1,{'x' * (MAX_CELL + 1)}\n")


@pytest.mark.parametrize("chunk", [1, 5, 4096])
def test_a_trace_that_ends_inside_a_value_is_cut_short_and_any_other_fault_is_none_of_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", chunk)
    path = tmp_path / "t.json"

    def refusal(text: str) -> str:
        path.write_text(text)
        with pytest.raises(InputError) as caught:
            list(stream_events(path))
        return str(caught.value)

    for text in ('[{"a": 1', '[{"a', '[{"a": "b', '[{"a": t', '{"traceEvents": [{"a": 1}', '[{"a": {"b": [1, 2'):
        assert "is cut short" in refusal(text), text
    for text in ('[{"a": x}, {"b": 2}]', '[{"a" 1}, {"b": 22222}]', "[{1: 2}, {}, {}, {}]"):
        assert "is not JSON" in refusal(text), text
    assert "expected" in refusal('[{"a": 1} {"b": 2}]') and "after the trace" in refusal("[] x")
    assert "a list of events or an object" in refusal("7") and "no list of events" in refusal('{"a": []}')
    assert "a key expected" in refusal("{7: []}")
