"""Launches that Megatron-LM refuses with any strategy."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.workflows.statement.options import FileJob
from taylor.workflows.statement.stated_file import StatedFile
from tests.parsers.megatron.test_scripts import BASE, script_of

UNIFORM = "--recompute-granularity full\n--recompute-method uniform\n"


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ("--seq-length 8192\n--max-position-embeddings 4096\n", "--seq-length 8192"),
        ("--seq-length 4096\n--max-position-embeddings 4096\n", None),
        ("--seq-length 2048\n--decoder-seq-length 8192\n--max-position-embeddings 4096\n", "--decoder-seq-length 8192"),
    ],
)
@pytest.mark.parametrize("launcher", ["", "--use-fused-rmsnorm\n--normalization RMSNorm\n"])
def test_a_sequence_beyond_the_positions_is_refused_as_megatron_does(
    more: str, refused: str | None, launcher: str, tmp_path: Path
) -> None:
    file = script_of(tmp_path, f"{BASE}{launcher}--position-embedding-type rope\n{more}", "command")
    if refused is None:
        assert not read_config(file).misfits
        return
    says = rf"--max-position-embeddings: breaks the rule sequence-in-positions: is below {refused} \(found 4096\)"
    with pytest.raises(InputError, match=f"{says}.*write --max-position-embeddings 8192.*arguments.py:830"):
        StatedFile.read(FileJob(file))


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        (f"--mtp-num-layers 1\n{UNIFORM}--recompute-num-layers 2\n", True),
        (f"--mtp-num-layers 1\n{UNIFORM}--recompute-num-layers 1\n", False),
        (f"{UNIFORM}--recompute-num-layers 2\n", False),
        (f"--mtp-num-layers 1\n{UNIFORM.replace('uniform', 'block')}--recompute-num-layers 2\n", False),
        (f"--mtp-num-layers 1\n{UNIFORM}--recompute-num-layers 2\n--use-fused-rmsnorm\n", False),
    ],
)
def test_mtp_layers_that_run_again_by_twos_are_refused_as_megatron_does(
    more: str, refused: bool, tmp_path: Path
) -> None:
    file = script_of(tmp_path, f"{BASE}{more}", "command")
    if not refused:
        assert not read_config(file).misfits
        return
    with pytest.raises(
        InputError, match=r"--recompute-num-layers: .* must be 1 .*found 2.*multi_token_prediction.py:847"
    ):
        StatedFile.read(FileJob(file))


def test_of_several_reasons_the_first_that_megatron_meets_is_named(tmp_path: Path) -> None:
    both = f"--mtp-num-layers 1\n{UNIFORM}--recompute-num-layers 2\n--seq-length 8192\n--max-position-embeddings 4096\n"
    (misfit,) = read_config(script_of(tmp_path, BASE + both, "command")).misfits
    assert misfit.rule == "sequence-in-positions"
