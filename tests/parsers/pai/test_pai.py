"""Scripts of Pai-Megatron-Patch: their positional arguments, from the command, from an example, or missing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.pai.script import PaiScript
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.text.shell_start import ShellStart, started
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import FULL, PipelinePlan, as_grid
from tests.parsers.pai.files import ARGUMENTS, NEXT, README, SCRIPT


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "run_mcore.sh"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


def flags_under_bash(script: Path, arguments: str) -> list[str]:
    """The words with which bash starts the program, by a ``torchrun`` that only prints them."""
    stub = script.parent / "torchrun"
    stub.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    environment = {"PATH": f"{script.parent}:/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", str(script), *arguments.split()], capture_output=True, text=True, env=environment, check=True
    )
    return done.stdout.splitlines()[1:]  # The first line is the script's own echo.


@pytest.mark.parametrize("arguments", [ARGUMENTS, "dsw 1.7B 1 16 4096 1 2 true none 293"])
def test_a_script_is_read_with_its_arguments_as_bash_runs_it(script: Path, arguments: str) -> None:
    with started(ShellStart(tuple(arguments.split()))):
        flags = PaiScript.read(script).flags
    ran = [word.replace("_", "-") for word in flags_under_bash(script, arguments) if word.startswith("--")]
    added = {"ffn-hidden-size", "padded-vocab-size"}
    assert {f"--{flag.name}" for flag in flags.flags if flag.name not in added} == set(ran)


def test_the_example_of_a_readme_stands_for_arguments_that_nobody_states(script: Path) -> None:
    (script.parent / "README.md").write_text(README, encoding="utf-8")
    config = read_config(script)
    assert config.launcher == "pai" and config.model is not None
    assert (config.strategy.tp, config.strategy.pp, config.strategy.dp, config.strategy.mbs) == (2, 4, 1, 2)
    assert (config.model.n_layers, config.model.ffn_hidden, config.model.vocab) == (36, 6144, 151643 + 293)
    assert any("README.md, line 5" in note for note in config.notes)
    with started(ShellStart(tuple(ARGUMENTS.replace("dsw 4B", "dsw 1.7B").split()))):
        stated = read_config(script)
    assert stated.model is not None and stated.model.n_layers == 28


def test_an_example_of_another_version_is_not_taken_and_the_missing_positions_are_named(script: Path) -> None:
    with pytest.raises(
        InputError, match=r"no comment and no README.*1 ENV \(line 3\).*10 EXTRA_VOCAB_SIZE \(line 22\)"
    ):
        read_config(script)
    (script.parent / "README.md").write_text(README.replace(" 293", " 293 /mnt/logs"), encoding="utf-8")
    with pytest.raises(InputError, match=r"takes 10 arguments.*README.md, line 5 states 11"):
        read_config(script)


def test_a_plan_is_written_into_the_script_and_read_again_with_the_same_arguments(script: Path) -> None:
    (script.parent / "README.md").write_text(README, encoding="utf-8")
    config = read_config(script)
    plan = PipelinePlan({"body": as_grid([[10, 9, 9, 8]])}, {FULL: as_grid([[2, 2, 2, 2]])})
    assert config.plan is not None
    kind = next(iter(config.plan.layers))
    plan, _ = launcher_of(config).nearest_plan(PipelinePlan({kind: as_grid([[10, 9, 9, 8]])}, plan.recompute))
    write_plan(config, plan)
    reread = read_config(script)
    assert reread.plan is not None and reread.plan.layers == plan.layers
    assert reread.strategy == config.strategy


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--transformer-type huggingface", "layers of Hugging Face"),
        ("--freeze-llm", "freezes the language model"),
    ],
)
def test_a_job_without_layers_of_megatron_is_refused_truly(script: Path, line: str, reason: str) -> None:
    script.write_text(SCRIPT.replace("--swiglu", f"{line} --swiglu"), encoding="utf-8")
    with started(ShellStart(tuple(ARGUMENTS.split()))), pytest.raises(InputError, match=reason):
        read_config(script)


@pytest.mark.parametrize(
    ("program", "kinds"),
    [
        ("pretrain_qwen3_next.py", ["gdn", "moe", "attn", "moe#2"]),
        ("pretrain_mamba.py", ["mamba", "dense", "attn", "dense#2"]),
    ],
)
def test_the_letters_of_a_hybrid_pattern_are_those_of_the_program_that_is_started(
    tmp_path: Path, program: str, kinds: list[str]
) -> None:
    path = tmp_path / "run_mcore.sh"
    path.write_text(NEXT.replace("PROGRAM", program), encoding="utf-8")
    config = read_config(path)
    assert config.launcher == "pai" and config.plan is not None and list(config.plan.layers) == kinds


def test_no_plan_is_written_where_letters_stand_for_layers_of_the_patch(tmp_path: Path) -> None:
    path = tmp_path / "run_mcore.sh"
    path.write_text(NEXT.replace("PROGRAM", "pretrain_qwen3_next.py"), encoding="utf-8")
    config = read_config(path)
    assert config.model is not None and config.model.moe is not None and config.model.moe.shared_gate
    assert config.plan is not None
    with pytest.raises(InputError, match="no plan is written into it"):
        launcher_of(config).can_write(config, config.schedule)
