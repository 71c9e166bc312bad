"""A registered model as a configuration: a JSON file that names it, and the same section on how it is trained."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.base.near import did_you_mean
from taylor.parsers.huggingface import job
from taylor.parsers.huggingface.launcher import HuggingFace
from taylor.parsers.launcher import UsualDevice
from taylor.register.model import ModelSpec
from taylor.register.overrides import overridden
from taylor.register.registry import Registry

FIELD, OVERRIDE = "registered_model", "override"


class RegisteredModel(HuggingFace):
    """A file that names a model of the register::

    {"registered_model": "llama3-70b", "taylor": {"parallel": {"dp": 8, "tp": 8}, "batch": {"global": 512}}}
    """

    name = "registered"
    title = "registered model"
    telltale = re.compile(rf'"{FIELD}"\s*:')
    usual_device = UsualDevice("h100-80g", "registered models")

    def model_of(
        self, data: Mapping[str, Any], path: Path, register_path: Path | None
    ) -> tuple[ModelSpec, tuple[str, ...]]:
        """See `HuggingFace.model_of`; the user's folder of registrations goes before the built-in ones."""
        for entry in data:
            if entry not in (FIELD, OVERRIDE, job.SECTION):
                cure = did_you_mean(str(entry), (FIELD, OVERRIDE, job.SECTION))
                raise InputError("is no known field beside a registered model", file=path, field=str(entry), cure=cure)
        name = data.get(FIELD)
        if not isinstance(name, str):
            raise InputError("must be a model's name", file=path, field=FIELD, value=name)
        sizes = data.get(OVERRIDE, {})
        if not isinstance(sizes, dict):
            raise InputError("must be a section of sizes", file=path, field=OVERRIDE, value=sizes)
        try:
            model = Registry.load(register_path).model(name)
        except InputError as error:
            if error.file is not None:
                raise
            raise InputError(error.problem, file=path, field=FIELD, value=name, cure=error.cure) from None
        return overridden(model, sizes), ()


def naming(model: str, sizes: Mapping[str, int] | None = None) -> str:
    """The text of a file that names a registered model and the sizes stated otherwise, and nothing of its training."""
    named = {FIELD: model, **({OVERRIDE: dict(sizes)} if sizes else {})}
    return json.dumps(named, indent=2, ensure_ascii=False) + "\n"
