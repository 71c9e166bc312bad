"""Scripts that start another launcher's program are refused with the file to give and what they set."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.launch_scripts import refuse_launch_of_other


def refused(tmp_path: Path, text: str, name: str = "start.sh") -> str:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(InputError) as raised:
        refuse_launch_of_other(file)
    return str(raised.value)


@pytest.mark.parametrize("name", ["start.sh", "START.SH"])
def test_the_last_configuration_named_is_the_one_to_give(tmp_path: Path, name: str) -> None:
    told = refused(tmp_path, "python tools/run_mindformer.py --config a.yaml --use x --config=b.yaml\n", name)
    assert "starts run_mindformer.py on b.yaml; give that file with -yaml (parallel_tool.py: --yaml_path)" in told
    assert "low_mem" not in told


def test_a_program_without_a_configuration_is_told_by_its_kind_of_file(tmp_path: Path) -> None:
    for words in ("", "--config"):
        told = refused(tmp_path, f"msrun python run_mindformer.py {words}\n")
        assert "starts run_mindformer.py on its MindFormers YAML" in told


@pytest.mark.parametrize(("value", "switch"), [("1", "y"), ("2", "y"), ("0", "n")])
def test_a_variable_that_chooses_the_order_of_interleaving_is_named(tmp_path: Path, value: str, switch: str) -> None:
    text = f"export ENABLE_LESS_MEM_VPP={value}\npython run_mindformer.py --config a.yaml\n"
    assert f"and -low_mem {switch}, for the script sets ENABLE_LESS_MEM_VPP={value}" in refused(tmp_path, text)
    empty = "ENABLE_LESS_MEM_VPP=()\npython run_mindformer.py --config a.yaml\n"
    assert "low_mem" not in refused(tmp_path, empty)


def test_other_scripts_and_other_files_are_let_through(tmp_path: Path) -> None:
    for name, text in (
        ("a.sh", "python pretrain_gpt.py --config run_mindformer\n"), ("a.yaml", "run_mindformer.py --config a.yaml\n"),
        ("a.txt", "python run_mindformer.py\n"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
        refuse_launch_of_other(tmp_path / name)
