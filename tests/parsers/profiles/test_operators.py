"""Operators with their shapes and types from Ascend's ``kernel_details.csv``."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.profiles.allocations import Allocation, read_allocations
from taylor.parsers.profiles.operators import Operator, OperatorSample, read_operators

HEAD = "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Input Shapes,Input Data Types,Output Shapes"


def test_shapes_and_types_are_lists_with_semicolons_and_na_is_none(tmp_path: Path) -> None:
    rows = [
        '1,aclnnMatmul_1,MatMulV2,AI_CORE,20.000,5.5,"""8,16;16,4""",DT_BF16;FLOAT,"""8,4"""',
        "N/A,HcclBarrier,N/A,AI_CPU,10.000,2,N/A,N/A,N/A",
    ]
    (tmp_path / "kernel_details.csv").write_text("\n".join([HEAD, *rows]) + "\n", encoding="utf-8")
    first, second = read_operators(tmp_path / "kernel_details.csv").samples
    assert (first.operator, first.start_ns, first.duration_ns, first.step) == (
        Operator("HcclBarrier", "AI_CPU"), 10_000, 2_000, -1,
    )  # fmt: skip
    assert second.operator == Operator("MatMulV2", "AI_CORE", ("DT_BF16", "FLOAT"), ((8, 16), (16, 4)), ((8, 4),))
    assert (second.start_ns, second.duration_ns, second.step) == (20_000, 5_500, 1)


def table(tmp_path: Path, *rows: str, head: str = HEAD) -> Path:
    file = tmp_path / "kernel_details.csv"
    file.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return file


def test_what_computes_is_told_from_what_sends(tmp_path: Path) -> None:
    rows = [
        f"1,a,{kind},{core},{at}.0,1,,,"
        for at, (kind, core) in enumerate([
            ("MatMulV2", "AI_CORE"), ("MatMulV2", "HCCL"), ("MatMulV2", "COMMUNICATION"), ("hcom_allGather_", "HCCL"),
            ("hcom_allGather_", "AI_CORE"), ("Add", ""),
        ])
    ]  # fmt: skip
    samples = read_operators(table(tmp_path, *rows)).samples
    assert [sample.operator.is_compute for sample in samples] == [True, False, False, False, False, True]


def test_rows_whose_shapes_are_no_shapes_are_counted_and_left_out(tmp_path: Path) -> None:
    rows = [
        '1,a,Add,AI_CORE,3.0,1,"8,16",FLOAT,"8"', '1,b,Add,AI_CORE,2.0,1,"8,x",FLOAT,"8"',
        '1,c,Add,AI_CORE,1.0,1,"8",FLOAT,DT_BF16', "1,d,Add,AI_CORE,0.0,1,8,16,FLOAT,8",
        f'1,e,Add,AI_CORE,4.0,1,"{2**53}",FLOAT,"8"', f'1,f,Add,AI_CORE,5.0,1,"{2**53 - 1}",FLOAT,"8"',
    ]  # fmt: skip
    found = read_operators(table(tmp_path, *rows))
    assert [sample.name for sample in found.samples] == ["a", "f"] and found.unread == 4
    assert read_operators(table(tmp_path, rows[0])).unread == 0


def test_a_step_is_a_number_of_at_most_nine_digits(tmp_path: Path) -> None:
    steps = ("7", "123456789", "1234567890", "-3", "x", "")
    rows = [f"{step},a,Add,AI_CORE,{at}.0,1,,," for at, step in enumerate(steps)]
    found = read_operators(table(tmp_path, *rows)).samples
    assert [sample.step for sample in found] == [7, 123456789, -1, -1, -1, -1]
    without = HEAD.removeprefix("Step Id,")
    alone = read_operators(table(tmp_path, "a,Add,AI_CORE,1.0,1,,,", head=without))
    assert [sample.step for sample in alone.samples] == [-1] and OperatorSample(Operator("Add"), 0, 1).step == -1


def test_tensors_that_live_and_die_within_a_profile_and_those_that_outlive_it(tmp_path: Path) -> None:
    head = "Name,Size(KB),Allocation Time(us),Release Time(us),Allocation Total Allocated(MB)"
    rows = ["b,1.5,20.5,30.25,2", "a,2,10,,0.5", "early,4,,12,1", "freed,-2,15,,1", "none,0,16,,1", "tiny,0.001,17,,1"]
    file = tmp_path / "operator_memory.csv"
    file.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    assert read_allocations(file) == (
        Allocation("a", 2 * 1024, 10_000, None, 1024 * 1024 // 2),
        Allocation("tiny", 1, 17_000, None, 1024 * 1024),
        Allocation("b", 1536, 20_500, 30_250, 2 * 1024 * 1024),
    )
    for wrong in ("b,x,20,30,2", "b,1,x,30,2", "b,1,20,x,2", "b,1,20,30,x", "b,1e400,20,30,2", "b,nan,20,30,2"):
        file.write_text("\n".join([head, rows[0], wrong]) + "\n", encoding="utf-8")
        with pytest.raises(InputError, match="row 3") as raised:
            read_allocations(file)
        assert "must be sizes and times" in str(raised.value)
