"""Small files of numbers read cell by cell: memory profiles, ratios, candidates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taylor.base.errors import InputError
from taylor.cost_model.profile import MemoryProfile
from taylor.parsers.tables.candidates import read_candidates
from taylor.parsers.tables.memory_profile import memory_profile_text, read_memory_profile
from taylor.parsers.tables.ratios import read_ratios
from taylor.pipeline.plan import FULL
from tests.conftest import ROOT

PROFILE = """{"device_limit": 55296,
 "static": {"first": 3383, "middle": 2382, "last": 8675},
 "layer": {"dense": 866, "moe": 10691},
 "activation": {"dense": {"none": 479, "select": 400, "full": 30},
                "moe":   {"none": 765, "select": 765, "full": 30}}}
"""


def test_the_contracts_profile_reads_to_its_figures(tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    file.write_text(PROFILE)
    profile = read_memory_profile(file)
    assert profile.device_limit_mib == 55296
    assert profile.static_mib(3) == (3383, 2382, 8675)
    assert profile.layer_mib == {"dense": 866, "moe": 10691}
    assert profile.activation_mib["moe"] == {"none": 765, "select": 765, "full": 30}
    assert list(profile.layer_mib) == ["dense", "moe"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (PROFILE, "", "not valid JSON"),
        (PROFILE, "[1]", "must be a JSON object"),
        (PROFILE, "[" * 100_000, "not valid JSON"),
        ('"device_limit": 55296,', "", "device_limit: is missing"),
        ("55296", "-1", "device_limit: must be a finite number"),
        ("55296", "0", "device_limit: must be above 0"),
        ("55296", "NaN", "device_limit: must be a finite number"),
        ("55296", "Infinity", "device_limit: must be a finite number"),
        ("55296", '"55296"', "device_limit: must be a finite number"),
        ("55296", "true", "device_limit: must be a finite number"),
        ("55296", "1e999", "device_limit: must be a finite number"),
        ("55296", "9" * 400, "device_limit: must be a finite number"),
        ('"first": 3383, ', "", "static.first: is missing"),
        ('"first"', '"frist": 1, "first"', "static.frist: is an unknown key"),
        ('"layer"', '"layers": {}, "layer"', "layers: is an unknown key"),
        ('"dense": 866, ', "", "layer.dense: is missing"),
        ('"moe":   {"none": 765, "select": 765, "full": 30}', '"moe": 3', "activation.moe: must be a JSON object"),
        ('"none": 479, ', "", "activation.dense.none: is missing"),
        ('"full": 30},', '"fully": 30},', "activation.dense.fully: is an unknown recompute mode"),
        ('"moe": 10691', '"moe": 1, "moe": 2', "'moe' twice"),
    ],
)
def test_a_wrong_profile_is_refused_with_the_key(tmp_path: Path, old: str, new: str, says: str) -> None:
    file = tmp_path / "m.json"
    assert old in PROFILE
    file.write_text(PROFILE.replace(old, new))
    with pytest.raises(InputError) as caught:
        read_memory_profile(file)
    assert str(file) in str(caught.value) and says in str(caught.value)


mib = st.floats(0, 1e6) | st.integers(0, 10**6).map(float)


@given(
    numbers=st.tuples(mib, mib, mib),
    limit=st.floats(1, 1e6),
    kinds=st.dictionaries(st.sampled_from(["dense", "moe", "mtp"]), st.tuples(mib, mib, mib), min_size=1),
    every_flag=st.booleans(),
)
def test_a_profile_written_reads_back_to_the_same_figures(numbers, limit, kinds, every_flag, tmp_path_factory) -> None:
    file = tmp_path_factory.mktemp("p") / "m.json"
    profile = MemoryProfile(
        limit,
        *numbers,
        {kind: values[0] for kind, values in kinds.items()},
        {kind: {"none": values[1], "full": values[2]} for kind, values in kinds.items()},
        every_flag=every_flag,
    )
    file.write_text(memory_profile_text(profile))
    back = read_memory_profile(file)
    assert back == profile and list(back.layer_mib) == list(profile.layer_mib)


HEADER = "dp,tp,pp,ep,dmratio,bfratio,re_grow_ration,hratio,moe_bw"
ROW = "16,4,16,8,0.397,1.839,1.0,1.5,21.4"


def test_ratios_read_with_either_name_of_the_last_column_and_any_order(tmp_path: Path) -> None:
    file = tmp_path / "r.csv"
    for header, row in (
        (HEADER, ROW),
        (HEADER.replace("moe_bw", "moe_fw"), ROW),
        ("moe_fw,note,ep,pp,tp,dp,hratio,re_grow_ration,bfratio,dmratio", "21.4,x,8,16,4,16,1.5,1.0,1.839,0.397"),
        ("\ufeff " + HEADER.replace(",", " , "), ROW.replace(",", " , ")),
    ):
        file.write_bytes(f"{header}\r\n\r\n{row}\r\n".encode())
        ratios = read_ratios(file)
        assert list(ratios) == [(16, 4, 16, 8)]
        found = ratios[16, 4, 16, 8]
        assert (found.dense_forward, found.backward, found.head, found.unit_ms) == (0.397, 1.839, 1.5, 21.4)
        assert found.recompute[FULL] == 1.0 and found.source == "parsed"
        assert (found.lag, found.embedding, found.tail) == (0.0, 0.0, 0.0)


def test_transfer_and_embedding_are_read_where_they_are_given(tmp_path: Path) -> None:
    file = tmp_path / "r.csv"
    second = ROW.replace("16,4,16", "8,8,16")
    file.write_text(f"{HEADER},embedding_ratio,transfer_ms\n{ROW},0.125,2.14\n{second},, \n")
    first, other = read_ratios(file).values()
    assert (first.lag, first.embedding) == (pytest.approx(0.1), 0.125)
    assert (other.lag, other.embedding) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        (HEADER, "only the header"),
        (HEADER.replace("hratio", "h") + "\n" + ROW, "hratio: has no such column"),
        (HEADER.replace(",moe_bw", "") + "\n" + ROW, "moe_bw or moe_fw: has no such column"),
        (HEADER + ",moe_fw\n" + ROW + ",1", "has this column twice"),
        (HEADER + ",dp\n" + ROW + ",1", "dp: has this column twice"),
        (f"{HEADER}\n{ROW}\n{ROW}", "row 3: gives the strategy of row 2 again"),
        (f"{HEADER}\n{ROW},7", "row 2: has 10 cells and the header 9"),
        (f"{HEADER}\n1,2\n{'x' * 200_000}", "row 2: has 2 cells and the header 9"),
        (f"{HEADER}\n{ROW}\n{'x' * 200_000}", "is not a CSV file"),
        (f"{HEADER}\n\n{ROW.replace('1.839', '')}", "row 3, column bfratio: must be a finite number"),
        (f"{HEADER}\n{ROW.replace('1.839', 'nan')}", "row 2, column bfratio: must be a finite number"),
        (f"{HEADER}\n{ROW.replace('1.839', '1e999')}", "row 2, column bfratio"),
        (f"{HEADER}\n{ROW.replace('1.839', '1_0')}", "row 2, column bfratio"),
        (f"{HEADER}\n{ROW.replace('1.839', '-1')}", "row 2, column bfratio: must be at least 0"),
        (f"{HEADER}\n{ROW.replace('21.4', '0')}", "row 2, column moe_bw: must be above 0"),
        (f"{HEADER}\n{ROW.replace('16,4,16', '16,4.5,16')}", "row 2, column tp: must be a whole number"),
        (f"{HEADER}\n{ROW.replace('16,4,16', '0,4,16')}", "row 2, column dp: must be a whole number"),
        (f"{HEADER}\n{ROW.replace('1.839', '=1+1')}", "'=1+1'"),
        (f"{HEADER},transfer_ms\n{ROW},-1", "row 2, column transfer_ms: must be at least 0"),
        (f"{HEADER},embedding_ratio\n{ROW},nan", "row 2, column embedding_ratio: must be a finite number"),
        (f"{HEADER},transfer_ms,transfer_ms\n{ROW},1,1", "transfer_ms: has this column twice"),
        (f'{HEADER}\n"{"x" * 200_000}"', "is not a CSV file"),
    ],
)
def test_a_hostile_cell_is_refused_with_its_row(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "r.csv"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read_ratios(file)
    assert str(file) in str(caught.value) and says in str(caught.value)


def test_the_examples_that_the_commands_default_to_read() -> None:
    strategies = [candidate.key for candidate in read_candidates(ROOT / "config" / "nd_result.csv")]
    assert strategies == list(read_ratios(ROOT / "config" / "profiling_result.csv"))
    for dp, tp, pp, _ in strategies:
        assert dp * tp * pp == 1024
    environment = json.loads((ROOT / "config" / "env_config.json").read_text())
    assert environment["MS_SIMULATION_LEVEL"] == "1"


def test_candidates_take_the_further_columns_that_are_there(tmp_path: Path) -> None:
    file = tmp_path / "n.csv"
    file.write_text("dp,tp,pp,ep,peakMem,op,sp,vpp,why\n8,4,4,2,51234.5,8,1,2,x\n4,4,8,2,,,False,,\n")
    first, second = read_candidates(file)
    assert (first.key, first.peak_mib) == ((8, 4, 4, 2), 51234.5)
    assert (first.op, first.sp, first.vpp, first.mbs) == (8, True, 2, None)
    assert (second.key, second.peak_mib, second.op, second.sp, second.vpp) == ((4, 4, 8, 2), None, None, False, None)
    for bad in ("8,4,x,2,1,8,1,2,x", "8,4,4,2,1,8,perhaps,2,x", "8,4,4", "8,4,4,2,inf,8,1,2,x"):
        file.write_text("dp,tp,pp,ep,peakMem,op,sp,vpp,why\n" + bad + "\n")
        with pytest.raises(InputError, match="row 2"):
            read_candidates(file)
