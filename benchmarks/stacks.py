"""The software generation of a published run by the date in its source: the newest stack that is not younger.

A date is a container's tag (``container 24.07``, ``ngc25.04``, ``v24.11.1``) or a month of a year (``2025-09``,
``202412``). A source without a date is taken for new software.
"""

from __future__ import annotations

import re

from taylor.register.device import DeviceSpec

_TAGS = (r"(?:container |ngc|readmes v)(?P<year>2\d)\.(?P<month>[01]\d)", r"20(?P<year>2\d)-?(?P<month>[01]\d)(?!\d)")

TORCH_ATTENTION = "flash-attention-2"
CUDNN_IN_TORCHTITAN = "2025-10"
"""Month from which torchtitan prefers cuDNN on every card; before, only on Blackwell, FlashAttention elsewhere
(pytorch/torchtitan 6a3a9da95 of 2025-10-09, 3b85aa31f of 2025-05-14, torchtitan/models/attention.py)."""


UNDATED = {"Megatron-LM README H100": "2024-07"}
"""Sources whose names have no date: Megatron-LM f2e5db402c of 2024-07-15, «New scaling figures on H100 GPUs»."""


def date_of(source: str) -> str | None:
    """Year and month that a source states, ``2024-09``."""
    for begins, date in UNDATED.items():
        if source.startswith(begins):
            return date
    found = next((match for tag in _TAGS if (match := re.search(tag, source))), None)
    return None if found is None else f"20{found['year']}-{found['month']}"


def dated(device: DeviceSpec, source: str) -> DeviceSpec:
    """A device with the stack of a run's source; the newest where the source has no date."""
    date = date_of(source)
    if date is None or not device.stacks:
        return device
    oldest = device.stacks[-1]
    chosen = next((stack for stack in device.stacks if stack.date <= date), oldest)
    hopper = "fp4" not in device.peak_tflops
    if "torchtitan" in source and hopper and date < CUDNN_IN_TORCHTITAN:
        chosen = next((stack for stack in device.stacks if stack.name == TORCH_ATTENTION), chosen)
    return device.with_stack(chosen.name)
