"""Recompute as ``[activation_checkpoint]`` can state it: one choice for all layers."""

from __future__ import annotations

import re
from typing import Any

from taylor.parsers.text.fields import Fields
from taylor.parsers.text.toml_edit import TomlPath
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan

SECTION = "activation_checkpoint"


def read_recompute(top: Fields, notes: list[str]) -> tuple[str | None, int]:
    """Recompute mode, and of how many layers one is recomputed."""
    section = top.section(SECTION)
    mode = section.text("mode", default="selective")
    if mode == "none":
        return None, 1
    if mode == "full":
        return FULL, 1
    if mode != "selective":
        raise section.error("mode", "must be none, selective or full", mode)
    # Every second layer by default: v0.2.2 torchtitan/config/job_config.py:655, and all releases before.
    option = str(section.raw("selective_ac_option") or "2")
    if option == "op":
        return SELECT, 1
    if not re.fullmatch(r"[1-9]\d{0,4}", option):
        raise section.error("selective_ac_option", "must be op or a whole number", option)
    if int(option) > 1:
        notes.append(f"one in {option} layers is recomputed: their number a chunk is taken, not their places")
    return FULL, int(option)


def checkpoint_entries(plan: PipelinePlan) -> dict[TomlPath, Any]:
    """The entries of a plan that `nearest_plan` leaves as it is."""
    if plan.uses(FULL):
        return {(SECTION, "mode"): "full"}
    if plan.uses(SELECT):
        return {(SECTION, "mode"): "selective", (SECTION, "selective_ac_option"): "op"}
    return {(SECTION, "mode"): "none"}
