"""Runs that were measured and published elsewhere did start: the legality rules refuse none of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.legality import require_legal

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
FOLDERS = {"measured_runs": 130, "measured_runs_2026": 90, "mlperf": 10}
"""Folders of restated runs, and how many files of each are read at least."""

OTHER_RANKS = {"mixtral__mixtral_8x22b_tp2pp8ep8vpp1_release__h100_64.sh"}
"""Restated on fewer ranks than the run had: EP 8 x ETP 2 x PP 8 are 128, and the name says 64."""

OLDER_CHECKS = {"llama31__pretrain_llama31_8b_128k_ptd.sh"}
"""Run by MindSpeed-LLM 1.0.RC3, which did not check ``--sparse-mode``; from 2.2.0 on it refuses 4."""


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="the shared data are not here")
@pytest.mark.parametrize("folder", FOLDERS)
def test_no_run_that_was_measured_is_refused(folder: str) -> None:
    read, refused = 0, {}
    for file in sorted((DATA / folder).rglob("*")):
        if file.suffix not in (".sh", ".yaml", ".toml"):
            continue
        try:
            config = read_config(file)
        except InputError:
            continue
        read += 1
        try:
            require_legal(config, choose_device(config).spec)
        except InputError as error:
            refused[file.name] = str(error)
    assert read >= FOLDERS[folder]
    assert {name: why for name, why in refused.items() if name not in OTHER_RANKS | OLDER_CHECKS} == {}
