"""Writes the table of the cost model's constants into docs/cost_model.md: value, and source or fit.

Run from the repository's root: ``python -m benchmarks.constant_page``.

A constant of a module of `cost_model` stands in the table with what is written behind it; one without is an error. What
was fitted has the rows and the error of its fit, computed again from the published tables.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.published import all_cases
from benchmarks.published_fit import FITTED, TRANSFERRED, layer_points, step_points
from taylor.base.files import write_atomic
from taylor.cost_model.time.speed import ASSUMED_EFFICIENCY
from taylor.register import frameworks
from taylor.register.device import DeviceSpec
from taylor.register.registry import Registry

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "cost_model.md"
BEGIN = "<!-- Written by python -m benchmarks.constant_page -->"
END = "<!-- End of what is written -->"

UNITS = frozenset({"MIB", "SECONDS_AN_HOUR", "SECONDS_A_DAY", "_FP32", "_HALF_BYTES", "_WIDE_BYTES"})
"""Sizes of units and of number types."""
BOOKKEEPING = frozenset({"_BLOCK", "MOST_CHOICES", "_STANDARD"})
"""Limits of the program's own work, and what follows from another constant."""

_PUBLISHED_FIT = "fitted for each device below, or from tables of kernels; this value where a device has none"
_DEEPGEMM = "fitted to DeepGEMM's published products, dense and grouped: 16 rows, 2 % in the median, 16 % at most"
_NONE = "none assumed; only `taylor calibrate` fits it"
SHARES = {
    **dict.fromkeys(FITTED, _PUBLISHED_FIT),
    "operands": _DEEPGEMM,
    "results": _DEEPGEMM,
    "expert_operands": f"{_DEEPGEMM}; on ascend-910b from one measured ratio of a dense to a MoE layer",
    "expert_results": _DEEPGEMM,
    "softmax_flops": "none assumed; from tables of kernels, or `taylor calibrate` fits it",
    "attention_tokens": "none assumed; from tables of kernels",
    "layer_us": _NONE,
    "step_ms": _NONE,
    "tensor_shown_forward": "all of it: nothing of a forward can run beside it without a flag",
    "tensor_shown_backward": "one of two transfers runs beside a weight's gradient (Korthikanti et al. 2022 §4.2.2)",
    **dict.fromkeys(("data_shown", "data_shown_in_pipeline"), "`overlap.SLOWED_BESIDE`"),
}
"""Source of every entry of `ASSUMED_EFFICIENCY`."""


def constants() -> Iterator[tuple[str, str, str, str]]:
    """Module, name, value and source of every number that a module of `cost_model` names; the source may be empty."""
    for file in sorted((ROOT / "cost_model").glob("**/*.py")):
        if "measured" in file.parts:  # fitted, row by row
            continue
        body = ast.parse(file.read_text(encoding="utf-8")).body
        for line, behind in zip(body, [*body[1:], None], strict=True):
            if not isinstance(line, ast.Assign | ast.AnnAssign) or line.value is None or not _numbers(line.value):
                continue
            name = ast.unparse(line.targets[0] if isinstance(line, ast.Assign) else line.target).strip("()")
            if name in UNITS | BOOKKEEPING or name == "ASSUMED_EFFICIENCY":
                continue
            text = behind.value.value if isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant) else ""
            yield file.stem, name, ast.unparse(line.value), " ".join(str(text).split())


def _numbers(value: ast.expr) -> bool:
    """Return whether a value holds a number other than 0."""
    found = (each.value for each in ast.walk(value) if isinstance(each, ast.Constant))
    return any(isinstance(each, int | float) and not isinstance(each, bool) and each for each in found)


def fits() -> Iterator[tuple[DeviceSpec, int, float, float]]:
    """Every device that is fitted to published times: rows, median and largest relative error of its shares."""
    registry, cases = Registry.load(), all_cases()
    for name in dict.fromkeys(case.device for case in cases):
        device = registry.device(name)
        if device.stacks:  # from tables of kernels
            continue
        points = step_points([case for case in cases if case.device == name])
        points += layer_points() if name == "a100-80g" else []
        errors = [abs(predict(device) / published - 1) for _, predict, published in points]
        yield device, len(errors), median(errors), max(errors)


def section() -> str:
    """The tables as Markdown."""
    lines = [
        BEGIN,
        "",
        "Numbers that modules of `cost_model` name:",
        "",
        "| constant | value | source |",
        "|---|---|---|",
    ]
    lines += [
        f"| `{module}.{name}` | `{value.replace('|', '/')}` | {source.replace('``', '`').replace('|', '/')} |"
        for module, name, value, source in constants()
    ]
    lines += ["", "Shares, credits and costs that a device may register (`speed.ASSUMED_EFFICIENCY`):", ""]
    lines += ["| entry | value without | source |", "|---|---|---|"]
    lines += [f"| `{name}` | {value:g} | {SHARES[name]} |" for name, value in ASSUMED_EFFICIENCY.items()]
    lines += ["", "Registered shares, fitted to published times (`benchmarks/published_fit.py`):", ""]
    lines += ["| device | shares | software | rows | median error | largest |", "|---|---|---|---|---|---|"]
    for device, rows, middle, largest in fits():
        shares = ", ".join(f"{name} {share:g}" for name, share in device.efficiency.items())
        errors = f"{100 * middle:.1f} % | {100 * largest:.1f} %"
        lines.append(f"| `{device.name}` | {shares} | {device.stack} | {rows} | {errors} |")
    registry = Registry.load()
    tabled = [name for name in registry.device_names() if registry.device(name).stacks]
    takers = ", ".join(f"`{name}` from `{other}`" for name, other in TRANSFERRED.items())
    lines += [
        "",
        f"Taken over without rows of their own: {takers}. From tables of single kernels "
        f"(`python -m benchmarks.device_tables`): {', '.join(f'`{name}`' for name in tabled)}. "
        "What starting one operation costs on the host "
        f"(`operation_us`, {DeviceSpec.operation_us:g} µs) is fitted to 16 published steps with experts on B200 and "
        "B300 (`python -m benchmarks.published_performance --fit`), on an A100's host "
        f"({Registry.load().device('a100-80g').operation_us:g} µs), with what a step of Megatron takes beside "
        f"({frameworks.MEGATRON.step_ms:g} ms), to 16 steps that the host bounds (`python -m benchmarks.short_steps "
        "--fit`: median error 5 %, largest 29 %). Peaks, bandwidths and memory of a device have "
        "their sources in its file (`register/devices`), numbers of a framework in its record "
        "(`register/frameworks.py`).",
        "",
        END,
    ]
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with new tables."""
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    return head + section() + tail


if __name__ == "__main__":
    write_atomic(PAGE, page(PAGE.read_text(encoding="utf-8")))
