"""Shards of a ranking: each a share of the candidates, joined the table of one run; what does not belong is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.reliability.outputs import without_times
from taylor.base.errors import InputError
from taylor.command_lines import main
from taylor.workflows.ranking import shards
from taylor.workflows.ranking.shard import Shard
from taylor.workflows.ranking.shards import join_shards
from tests.conftest import ROOT

pytestmark = pytest.mark.slow  # its fixtures take ten seconds and more

FLAGS = {"prove": "all"}


@pytest.fixture(scope="module")
def ranked(tmp_path_factory):
    """Four candidates, ranked at once and in three shards."""
    place = tmp_path_factory.mktemp("ranked")
    taylor = ["search", "--yaml_path", str(ROOT / "config/pretrain_llama2_7b.yaml"), "--profile_num", "4"]
    main.run([*taylor, "--output_path", str(place / "nd")])
    candidates = place / "dryrun_yaml"
    rank = ["--yaml_path", str(candidates), "--prove", "all", "--workers", "1", "--report", "off", "--store", "none"]
    main.run(["rank", *rank, "--output_path", str(place / "one")])
    for number in (1, 2, 3):
        main.run(["rank", *rank, "--shard", f"{number}/3", "--output_path", str(place / f"s{number}")])
    return place, rank


def table(folder: Path) -> bytes:
    """The table of the latest run, without times and without the run's own name."""
    path = sorted(folder.glob("test_result_*.csv"))[-1]
    text = path.read_text().replace(path.stem.removeprefix("test_result_"), "RUN").replace(str(folder), "FOLDER")
    return without_times("a.csv", text.encode())


def test_joined_shards_are_the_table_of_one_run(ranked, capsys, caplog):
    place, rank = ranked
    folders = [str(place / f"s{number}") for number in (3, 1, 2)]
    main.run(["merge", *folders, *rank, "--output_path", str(place / "joined")])
    assert table(place / "joined") == table(place / "one")
    assert caplog.text.count("found again") == 0 or "solving" not in caplog.text
    kept = {path.name for path in (place / "one" / "solved").glob("*.json") if not path.name.endswith(".files.json")}
    assert kept <= {path.name for path in (place / "joined" / "solved").iterdir()}


def test_shards_of_one_folder_need_no_merge(ranked):
    place, rank = ranked
    sizes = [len(table(place / f"s{number}").splitlines()) for number in (1, 2, 3)]
    assert sum(sizes) > len(table(place / "one").splitlines())  # each has a head and a row of its own plan
    assert Shard(2, 3).share([Path(name) for name in "abcde"]) == [Path("b"), Path("e")]


def test_what_does_not_belong_together_is_named(ranked, tmp_path):
    place, rank = ranked
    one, two, three = (place / f"s{number}" for number in (1, 2, 3))
    candidates = place / "dryrun_yaml"
    with pytest.raises(InputError, match="have no shard 2 of 3.*--shard 2/3"):
        join_shards([one, three], candidates, FLAGS, tmp_path)
    with pytest.raises(InputError, match="--prove: was ranked with all.*the default"):
        join_shards([one, two, three], candidates, {}, tmp_path)
    with pytest.raises(InputError, match="has no shard"):
        join_shards([candidates], candidates, FLAGS, tmp_path)
    with pytest.raises(InputError, match="nowhere: no such folder"):
        join_shards([tmp_path / "nowhere"], candidates, FLAGS, tmp_path)
    with pytest.raises(InputError, match="are more shards than the 2 candidates"):
        Shard(1, 3).share([Path("a"), Path("b")])
    other = shutil.copytree(candidates, tmp_path / "other")
    changed = sorted(other.glob("*.yaml"))[0]
    changed.write_text(changed.read_text() + "\n# changed\n")
    with pytest.raises(InputError, match=f"other candidates: {changed.name}"):
        join_shards([one, two, three], other, FLAGS, tmp_path)
    assert not (tmp_path / "solved").exists()


def test_a_record_of_other_code_or_that_was_touched_is_refused(ranked, tmp_path, monkeypatch):
    place, rank = ranked
    folder = shutil.copytree(place / "s1", tmp_path / "s1")
    with monkeypatch.context() as patched:
        patched.setattr(shards, "code_hash", lambda: "other")
        with pytest.raises(InputError, match="by other code"):
            join_shards([folder], place / "dryrun_yaml", FLAGS, tmp_path)
    record = folder / "shard_1_of_3.json"
    record.write_text(record.read_text().replace('"of": 3', '"of": 1'))
    with pytest.raises(InputError, match="is not as it was written"):
        join_shards([folder], place / "dryrun_yaml", FLAGS, tmp_path)
    shards.write_kept(record, json.loads('{"shard": "x"}'))
    with pytest.raises(InputError, match="is no record of a shard"):
        join_shards([folder], place / "dryrun_yaml", FLAGS, tmp_path)


def test_links_in_a_shards_folder_are_passed_over(ranked, tmp_path):
    place, rank = ranked
    folders = [shutil.copytree(place / f"s{number}", tmp_path / f"s{number}") for number in (1, 2, 3)]
    (folders[0] / "solved" / "link.json").symlink_to("/etc/passwd")
    assert join_shards(folders, place / "dryrun_yaml", FLAGS, tmp_path / "out") == 3
    assert not (tmp_path / "out" / "solved" / "link.json").exists()


@pytest.mark.parametrize("words", ["0/3", "4/3", "2", "a/b", "1/0"])
def test_a_shard_is_two_numbers(words):
    with pytest.raises(InputError, match="is no shard: the second of eight is 2/8"):
        main.run(["rank", "--shard", words])


def test_a_models_own_strategies_are_in_no_shards():
    with pytest.raises(InputError, match="--shard: has no effect with --model"):
        main.run(["rank", "--model", "llama2-7b", "--world_size", "8", "--shard", "1/2"])
