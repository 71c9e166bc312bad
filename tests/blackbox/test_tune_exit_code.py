"""How a tune ends: with no plan not as with one, and with the file named where it is none."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taylor.base.errors import EXIT_NO_SOLUTION, EXIT_OUTSIDE_PROGRAM, InputError
from taylor.command_lines import tune as command
from taylor.command_lines.tune import _exit_code
from tests.conftest import ROOT


def tuned(*ended: str | None, best: tuple[Any, ...] | None = None, why: str = "") -> Any:
    runs = [SimpleNamespace(ended=one) for one in ended]
    return SimpleNamespace(runs=runs, searched=None if best is None else SimpleNamespace(best=best), not_searched=why)


@pytest.mark.parametrize(
    ("done", "code"),
    [
        (tuned("", "", best=("a plan",)), None),
        (tuned("", "no memory", best=("a plan",)), None),
        (tuned("exit code 1", "exit code 1"), EXIT_OUTSIDE_PROGRAM),
        (tuned("", "", best=()), EXIT_NO_SOLUTION),
        (tuned("", "", why="say --memory_gib"), EXIT_NO_SOLUTION),
    ],
)
def test_a_tune_without_a_plan_ends_with_a_code(done: Any, code: int | None) -> None:
    assert _exit_code(done, dry=False, first=True) == code


def test_a_dry_tune_and_another_node_have_no_plan_to_find() -> None:
    assert _exit_code(tuned(None, None), dry=True, first=True) is None
    assert _exit_code(tuned("", ""), dry=False, first=False) is None


def test_the_training_file_is_a_word_or_a_flag_and_a_misspelled_one_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text("torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 8 "
                                "--hidden-size 512 --num-attention-heads 8 --seq-length 8192\n")  # fmt: skip
    for words in (["train.sh"], ["--yaml_path", "train.sh"], ["--shell_path", "train.sh"]):
        assert command.run([*words, "--dry"]) is None
        assert "small runs: 10 on 2 x 8 cards" in capsys.readouterr().out
    with pytest.raises(InputError, match="no such file.*train.sh"):
        command.run(["trian.sh", "--dry"])
    with pytest.raises(InputError, match="taylor tune pretrain.sh"):
        command.run(["--dry"])


def test_recompute_by_module_has_runs_of_its_own_and_a_misspelled_dimension_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 8192"
    Path("train.sh").write_text(f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {flags}\n")
    assert command.run(["train.sh", "--dry", "--search", "tp,pp,modules"]) is None
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in ("again_none", "again_core_attn", "again_layernorm", "again_mlp"))
    written = Path("tune/again_mlp/train.sh").read_text()
    assert "--recompute-granularity selective" in written and "--recompute-modules mlp" in written
    assert "--recompute" not in Path("tune/again_none/train.sh").read_text()
    with pytest.raises(InputError, match=r"--search.*known are tp, cp, ep, pp, vpp, mbs, replicas, modules"):
        command.run(["train.sh", "--dry", "--search", "tp,module"])
    dense = "--num-experts 8 --first-k-dense-replace 1"
    Path("dense.sh").write_text(f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {flags} {dense}\n")
    assert command.run(["dense.sh", "--dry", "--search", "tp,pp,modules"]) is None
    printed = capsys.readouterr().out
    # Dense layers in front have the whole MLP, the others their experts.
    assert all(f"  {name} " in printed for name in ("again_core_attn", "again_mlp", "again_moe"))
    assert "--first-k-dense-replace 1" in Path("tune/again_mlp/dense.sh").read_text()
    shutil.copy(ROOT / "config/pretrain_deepseek3_128p.yaml", "train.yaml")
    with pytest.raises(InputError, match="this file states no recompute by module.*search degrees alone: tp,pp"):
        command.run(["train.yaml", "--nnodes", "2", "--nproc-per-node", "8", "--dry", "--search", "tp,pp,modules"])
