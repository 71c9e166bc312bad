"""Other parameters of the solver for one test."""

from __future__ import annotations

import pytest

from taylor.pipeline_solver.model.params import DEFAULT_PARAMS


def set_parameter(monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> None:
    """Change a default (``tree.samples``) for one test, where no options reach the code that is tested."""
    part, field = name.split(".")
    record = vars(getattr(DEFAULT_PARAMS, part))
    assert field in record, name
    monkeypatch.setitem(record, field, value)
