"""Writes docs/support.md: launchers, models and devices, and what can be done with each.

Run from the repository's root: ``python -m benchmarks.support_page``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from taylor.base.files import write_atomic
from taylor.parsers.new_files import NEW_FILES
from taylor.register.device import PRECISIONS, DeviceSpec
from taylor.register.registry import Registry
from taylor.report.support import COLUMNS, support_cells
from taylor.workflows.showing.support import Question, cannot_state, support

PAGE = Path(__file__).resolve().parents[1] / "docs" / "support.md"
_INTRO = """# What is supported

Written by `python -m benchmarks.support_page` from the registry of launchers, their tables of options, the frameworks'
records and the registered models and devices. `taylor support` answers for one combination:

```sh
taylor support --model qwen3-30b-a3b --device h100-80g --launcher megatron --precision fp8 --feature cp
```

`--feature` takes a degree (`cp`), a schedule (`zbv`), software by its plain name (`cuda-graphs`) or any option of a
launcher's table, and may be repeated; `--json` prints the answers for programs.

## Launchers

«evaluated»: a file's job is priced. «solved»: its plan is computed. «written»: the plan is written into a file. «from a
model»: the file is made of a model alone. The last columns list the degrees that its files state, and the rows of its
table of options ([flags.md](flags.md)): read, without effect, with a cost that no figure includes.
"""
_MODELS = """## Models

Every registered model is evaluated and solved by its name, and its plan is written as JSON. A column says whether a
file of that framework is made of the model alone: the file is made, read back and compared layer by layer. A launcher
that passes a framework's options on goes by that framework's column.
"""
_DEVICES = """## Devices

Peak in each precision, TFLOP/s. Where a precision of 16 bits or less has none, GEMMs count at the peak of 16 bits.
"""


def page() -> str:
    """The whole page as Markdown."""
    registry = Registry.load()
    launchers = [support_cells(answer.to_dict()) for answer in support(Question())]
    models, notes = _model_rows(registry)
    devices = [(name, *_peaks(registry.device(name))) for name in registry.device_names()]
    parts = [_INTRO, _table(COLUMNS, launchers), _MODELS, _table(("model", *NEW_FILES), models), notes, _DEVICES]
    return "\n".join([*parts, _table(("device", *PRECISIONS), devices)])


def _peaks(device: DeviceSpec) -> list[str]:
    return [f"{device.peak_tflops[each]:g}" if each in device.peak_tflops else "" for each in PRECISIONS]


def _model_rows(registry: Registry) -> tuple[list[tuple[str, ...]], str]:
    """Rows of the models, with a number for each distinct reason, and the reasons by number."""
    reasons: dict[str, int] = {}
    rows = []
    for name in registry.model_names():
        model = registry.model(name)
        found = [cannot_state(new, model) for new in NEW_FILES.values()]
        texts = [None if each is None else _shared(each.replace(name, "the model")) for each in found]
        rows.append((name, *("yes" if each is None else f"no ({_number(reasons, each)})" for each in texts)))
    return rows, "\n".join(f"{number}. {reason}" for reason, number in reasons.items()) + "\n"


def _shared(reason: str) -> str:
    """A reason without the size in which models differ."""
    return re.sub(r"^extra parameters \d+ would become 0", "parameters beside layers, embedding and head", reason)


def _number(reasons: dict[str, int], reason: str) -> int:
    return reasons.setdefault(reason, len(reasons) + 1)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    write_atomic(PAGE, page())


if __name__ == "__main__":
    main()
