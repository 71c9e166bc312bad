"""Operators with their shapes and types from Ascend's ``kernel_details.csv``."""

from __future__ import annotations

from pathlib import Path

from taylor.parsers.profiles.operators import Operator, read_operators

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
