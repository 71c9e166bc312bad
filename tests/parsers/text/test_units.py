"""Sizes with units."""

from __future__ import annotations

import pytest

from taylor.base.errors import InputError
from taylor.parsers.text.units import memory_mib


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("55GB", 56320),
        ("52.5GB", 53760),
        ("58 gb", 59392),
        ("60000MB", 60000),
        ("1TB", 2**20),
        ("2048KB", 2),
        ("1048576B", 1),
        ("64GiB", 65536),
        ("30G", 30720),
    ],
)
def test_memory_sizes_count_in_binary_units(text: str, mib: float) -> None:
    assert memory_mib(text) == mib


@pytest.mark.parametrize(
    "text",
    ["", "GB", "58", "58.5 ", "12 apples", "-1GB", "0GB", "1e3GB", "1,5GB", "nan", None, 55, "9" * 13 + "GB", "5GB x"],
)
def test_what_is_no_memory_size_is_refused(text: object) -> None:
    with pytest.raises(InputError, match="where"):
        memory_mib(text, file="f", field="where")
