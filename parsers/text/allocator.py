"""Settings of torch's caching allocator that a file gives its training."""

from __future__ import annotations

import re

_SETTING = re.compile(
    r"^[^#\n]*?\bPYTORCH(?:_CUDA|_NPU|_HIP)?_ALLOC_CONF[\"']?\s*[=:]\s*(?P<value>[^\s#;][^\n#;]*)", re.MULTILINE
)
"""A line of a shell script, or of a mapping of variables, that sets them (PyTorch docs/source/notes/cuda.rst,
``PYTORCH_ALLOC_CONF``; torch_npu: ``PYTORCH_NPU_ALLOC_CONF``)."""
_EXPANDABLE = re.compile(r"\bexpandable_segments\s*:\s*(?P<on>True|False)\b", re.IGNORECASE)


def expandable_segments(text: str) -> bool:
    """Return whether a file's last setting of the allocator turns expandable segments on; torch leaves them off."""
    on = False
    for setting in _SETTING.finditer(text):
        found = _EXPANDABLE.search(setting["value"])
        on = found is not None and found["on"].lower() == "true"
    return on
