"""A ranking of a folder: one model's candidates, beside the plan of the file that they were searched from."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.nd_search.emit import emit_yaml
from taylor.nd_search.options import SearchOptions
from taylor.nd_search.search import search
from taylor.parsers.read import read_config
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.workflows.ranking.candidates import rank_folder
from taylor.workflows.ranking.rank import RankOptions
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.options import DryRunOptions

CONFIG = Path(__file__).resolve().parents[2] / "config"
ESTIMATED = DryRunOptions(backend="estimate")


def options(folder: Path) -> RankOptions:
    return RankOptions(SolveOptions(time_limit=5.0), workers=1, report=False, output=folder, prove=1)


def searched(name: str, folder: Path, number: int = 2) -> Path:
    """A folder of the candidates of one of the shipped files."""
    config = read_config(CONFIG / name)
    emit_yaml(search(config, choose_device(config).spec, SearchOptions(profile_num=number)), config, folder)
    return folder


def test_a_folder_of_different_models_is_refused_and_names_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="different models, whose step times do not compare: .*llama.*;") as refused:
        rank_folder(CONFIG, options(tmp_path), dryruns=ESTIMATED)
    assert str(CONFIG) in str(refused.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["pretrain_qwen3_30b_a3b.yaml", "pretrain_llama3_70b.sh"])
def test_the_gain_is_over_the_plan_in_the_file_that_was_searched(tmp_path: Path, name: str) -> None:
    """Before, it was over the best even plan among the candidates, which no user had written."""
    table = rank_folder(searched(name, tmp_path / "files"), options(tmp_path), dryruns=ESTIMATED).table
    own = table[table["own"] == 1]
    assert [Path(file).name for file in own["file"]] == [name]
    strategy = read_config(CONFIG / name).strategy
    assert own[["dp", "tp", "pp", "ep"]].to_numpy().tolist() == [[strategy.dp, strategy.tp, strategy.pp, strategy.ep]]
    assert table[table["own"] == 0]["gain"].notna().all()


def test_a_table_of_ratios_without_a_row_of_any_candidate_is_refused(tmp_path: Path) -> None:
    ratios = tmp_path / "ratios.csv"
    ratios.write_text("dp,tp,pp,ep,dmratio,bfratio,re_grow_ration,hratio,moe_bw\n3,5,7,1,0.4,1.9,1,1.5,20\n")
    folder = searched("pretrain_qwen3_30b_a3b.yaml", tmp_path / "files")
    with pytest.raises(InputError, match="has no row of any of the 3 candidates.*3,5,7,1"):
        rank_folder(folder, options(tmp_path), dryruns=ESTIMATED, parser_result=ratios)
