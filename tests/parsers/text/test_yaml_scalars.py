"""Scalars of YAML that its library cannot read, or that are beyond all bounds, are refused by their place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from taylor.base.errors import InputError
from taylor.base.shipped import SAFE_LOADER
from taylor.parsers.text.yaml_source import YamlSource

BAD = {
    "base 60, too large to print": "1" + ":00" * 30,
    "base 60, too long": "1" + ":00" * 100_000,
    "base 60 with a fraction": "1" + ":00" * 30 + ".5" + "0" * 100,
    "100,000 digits": "9" * 100_000,
    "100,000 hexadecimal digits": "0x" + "f" * 100_000,
    "100,000 binary digits": "0b" + "1" * 100_000,
    "beyond 64 bits": str(2**63),
    "no digit": "0x_",
    "no such month": "2001-13-45",
    "no timestamp": "!!timestamp x",
    "no truth value": "!!bool maybe",
    "no number": "!!int x",
    "no fraction": "!!float x",
    "a list as a number": "!!int [1]",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_a_bad_scalar_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(InputError, match="job.yaml: is not valid YAML at line 2") as caught:
        YamlSource(f"good: 1\nbad: {text}\n", Path("job.yaml"))
    assert len(str(caught.value)) < 300
    with pytest.raises(yaml.YAMLError):
        yaml.load(f"bad: {text}", Loader=SAFE_LOADER)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1:30", 90), ("1:30.5", 90.5), ("-17", -17), ("0x10", 16), ("1e3", "1e3"), ("1.5e+3", 1500.0), ("yes", True)],
)
def test_a_good_scalar_is_what_the_library_reads(text: str, value: object) -> None:
    for found in (YamlSource(f"a: {text}\n", Path("job.yaml")).data["a"], yaml.load(f"a: {text}", SAFE_LOADER)["a"]):
        assert (found, type(found)) == (value, type(value)) == (yaml.safe_load(text), type(value))
