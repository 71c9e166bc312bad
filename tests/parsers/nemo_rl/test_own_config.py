"""Files that inherit others, composed by both readers and by NeMo RL's own function; skipped without a clone of it."""

from __future__ import annotations

import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.differential_reading.nemo_rl import composed
from benchmarks.reliability.outside import NotHere, loaded, source
from taylor.parsers.nemo_rl.experiment import RlExperiment

NAMES = ("policy", "a", "b", "c")


def section(draw: random.Random, depth: int) -> dict[str, Any]:
    """Values and sections; some sections, at any depth, say that they drop what stands below them."""
    found: dict[str, Any] = {}
    for name in NAMES:
        if depth and draw.random() < 0.6:
            found[name] = section(draw, depth - 1)
        elif draw.random() < 0.7:
            found[name] = draw.choice([1, "text", None, True, "???"])
    if draw.random() < 0.3:
        found["_override_"] = draw.choice([True, True, False])
    return found


def test_files_inherit_as_nemo_rl_s_own_function_composes_them(tmp_path: Path) -> None:
    try:
        text = source("RL", "7ea279ab", "nemo_rl/utils/config.py")
    except NotHere as here:
        pytest.skip(str(here))
    if find_spec("hydra") is None:
        pytest.skip("Hydra, which NeMo RL's function needs, is not installed")
    from omegaconf import OmegaConf

    own, draw, overridden = loaded("own_config", text), random.Random(7), 0
    for _ in range(120):
        levels = [section(draw, 3) for _ in range(3)]
        for at, level in enumerate(levels):
            level.pop("_override_", None)
            level["policy"] = section(draw, 2)
            if at:
                level["defaults"] = f"{at - 1}.yaml" if draw.random() < 0.5 else [f"{at - 1}.yaml"]
            (tmp_path / f"{at}.yaml").write_text(yaml.safe_dump(level), encoding="utf-8")
            overridden += "_override_" in level["policy"]
        last = tmp_path / "2.yaml"
        theirs = OmegaConf.to_container(own.load_config_with_inheritance(last))
        assert without_marks(RlExperiment.read(last).data) == without_marks(theirs), levels
        assert without_marks(composed(last)) == without_marks(missing_as_none(theirs)), levels
    assert overridden > 60


def without_marks(data: Any) -> Any:
    """The same without the words that say what is dropped, which are no options."""
    if not isinstance(data, dict):
        return data
    return {name: without_marks(each) for name, each in data.items() if name != "_override_"}


def missing_as_none(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: missing_as_none(each) for name, each in data.items()}
    return None if data == "???" else data
