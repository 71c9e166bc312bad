"""Galvatron's profiles are read in both dialects, and what is missing or contradicts itself is named."""

from __future__ import annotations

import json

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.measured.profiles import Shape
from taylor.parsers.galvatron.computation import read_computation
from taylor.parsers.galvatron.folder import Cluster, read_folders
from taylor.parsers.galvatron.hardware import read_hardware
from taylor.parsers.galvatron.memory import read_memory
from tests import galvatron_cases as cases
from tests.conftest import SHARED

DATA = SHARED / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data are not here")


@pytest.fixture
def written(tmp_path):
    def write(data, name="profile.json"):
        path = tmp_path / name
        path.write_text(json.dumps(data))
        return path

    return write


@pytest.mark.parametrize("bracket", [True, False])
def test_raw_times_of_both_spellings_become_the_law_that_made_them(written, bracket):
    profile = read_computation(written(cases.computation(batches=(1, 2), bracket=bracket)))
    for tokens in (2048, 4096, 8192):
        for batch in (1, 2):
            shape = Shape(batch, (tokens,))
            assert profile.layer_ms["body"][shape] == pytest.approx(cases.layer_ms(tokens))
            assert profile.other_ms[shape] == pytest.approx(cases.REST_MS * tokens)


@pytest.mark.parametrize("paddle", [False, True])
def test_raw_memory_of_both_profilers_becomes_what_made_it(written, paddle):
    profile, rules = read_memory([written(cases.memory(paddle=paddle))])
    assert rules.name == ("paddle" if paddle else "hetu")
    layer = profile.table(True).layer["body"][4096]
    assert layer.parameter_mib == pytest.approx(cases.PARAMETER_MIB)
    for ways in (1, 2, 4, 8):
        assert layer.activation_mib[ways] == pytest.approx(cases.ACTIVATION_MIB_A_TOKEN * 4096 / ways)
        first = profile.table(True).first[4096].states_mib
        if ways < 8:
            assert first[ways] == pytest.approx(rules.states_of_parameters * cases.VOCABULARY_MIB / ways)
    assert layer.recomputed_mib == pytest.approx(cases.RECOMPUTED_MIB_A_TOKEN * 4096)


def test_an_encoder_and_a_decoder_are_told_apart_by_their_own_runs(written):
    runs = {f"layernum[{a},{b}]_bsz1_seq[512,256]": 3.0 * a + 5.0 * b + 7.0 for a, b in ((2, 2), (4, 2), (2, 4))}
    profile = read_computation(written(runs))
    shape = Shape(1, (512, 256))
    assert profile.layer_ms["encoder"][shape] == pytest.approx(3.0)
    assert profile.layer_ms["decoder"][shape] == pytest.approx(5.0)
    assert profile.other_ms[shape] == pytest.approx(7.0)


def test_a_folder_tells_clusters_models_and_strategies(tmp_path):
    folder = cases.write_folder(tmp_path / "profiles")
    (folder / "galvatron_config_toy.json").write_text(json.dumps(cases.STRATEGY))
    (folder / "notes.json").write_text("{}")
    found = read_folders([folder])
    assert list(found.hardware) == [Cluster(1, 8)]
    assert found.hardware[Cluster(1, 8)].missing() == ()
    assert found.model(None).name == "bf16_toy"
    assert [one.plan.division for one in found.strategies.values()] == [(2, 4)]


def test_hardware_without_the_word_consecutive_serves_both_kinds_of_groups(tmp_path):
    files = cases.hardware(consecutive=False)
    path = tmp_path / "allreduce_bandwidth_1nodes_8gpus_per_node.json"
    path.write_text(json.dumps(files[path.name]))
    profile = read_hardware([path])
    assert profile.bandwidth(4, True) == profile.bandwidth(4, False) == 160.0


def refused(act, *words):
    with pytest.raises(InputError) as raised:
        act()
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_two_spellings_of_one_run_may_not_contradict_each_other(written):
    data = {"layernum[2]_bsz1_seq512": 3.0, "layernum2_bsz1_seq512": 4.0}
    refused(lambda: read_computation(written(data)), "profile.json", "layernum2_bsz1_seq512", "contradicts 3.0")


def test_a_table_that_its_raw_runs_contradict_is_refused(written):
    data = cases.computation() | {"layertype_0_bsz1_seq4096": 99.0}
    refused(lambda: read_computation(written(data)), "layertype_0_bsz1_seq4096", "process the raw runs again")


def test_more_layers_that_take_less_time_are_refused(written):
    data = {"layernum2_bsz1_seq512": 3.0, "layernum4_bsz1_seq512": 2.0}
    refused(lambda: read_computation(written(data)), "layernum[4]_bsz1_seq512", "measure both runs again")


def test_a_missing_end_of_the_pipeline_is_named_with_its_need(written):
    data = cases.memory()
    del data["2_2_2_sp"]["layernum[2]_bsz8_seq4096_rank7_ms"]
    refused(
        lambda: read_memory([written(data)]), "2_2_2_sp.layernum[2]_bsz8_seq4096_rank7_ms", "is missing", "needs it"
    )


def test_runs_without_a_pipeline_make_tables_for_jobs_without_one(written):
    data = {
        group: {key: value for key, value in runs.items() if "rank0" in key}
        for group, runs in cases.memory().items()
        if group.startswith("1_")
    }
    profile, _ = read_memory([written(data)])
    tables = profile.table(True)
    assert tables.layer["body"][4096].parameter_mib == pytest.approx(cases.PARAMETER_MIB)
    assert tables.alone[4096].states_mib[1] == pytest.approx(4 * 2 * cases.VOCABULARY_MIB)
    assert not tables.first and not tables.last


def test_runs_whose_states_are_whole_on_every_rank_are_told_by_their_split(written):
    data = {}
    for tp in (1, 2, 4):
        runs = data[f"1_{tp}_{4 // tp}"] = {}
        for layers in (1, 2):
            key = f"layernum[{layers}]_bsz4_seq512_rank0"
            states = 4 * (layers * cases.PARAMETER_MIB / tp + cases.VOCABULARY_MIB)
            runs |= {f"{key}_ms": states, f"{key}_act": 8.0 * layers / tp, f"{key}_act_peak": 50.0}
    profile, _ = read_memory([written(data)])
    tables = profile.table(False)
    assert tables.layer["body"][512].parameter_mib == pytest.approx(cases.PARAMETER_MIB)
    assert tables.alone[512].states_mib[1] == pytest.approx(4 * cases.VOCABULARY_MIB)


def test_a_table_without_its_ends_is_refused(written):
    data = {"layertype_0_sp": {"512": {"parameter_size": 1.0, "tp_activation_per_bsz_dict": {"1": 2.0}}}}
    refused(lambda: read_memory([written(data)]), "other_memory_pp_off_sp.512", "the stages' memory needs it")


def test_what_a_cluster_did_not_measure_is_named_when_it_is_needed(written):
    profile = read_hardware([written({"allreduce_size_8_consec_1": 150.0}, "allreduce_bandwidth_x.json")])
    refused(lambda: profile.bandwidth(2, False), "allreduce_size_2_consec_0", "the reduction of gradients needs it")
    refused(lambda: profile.transfer(2), "pp_size_2", "stages need it")
    refused(profile.slowdown, "overlap_coe", "needs it")


@pytest.mark.parametrize("value", [None, "fast", -1, 0, True, float("nan"), float("inf"), [], {}, 10**400])
def test_no_figure_but_a_positive_number_passes(written, value):
    text = json.dumps({"pp_size_2": value})
    path = written({})
    path.write_text(text)
    refused(lambda: read_hardware([path]), "profile.json: pp_size_2" if value != 10**400 else "digits")


@needs_data
@pytest.mark.parametrize("folder", ["galvatron_profiles", "paddle_galvatron/configs"])
def test_published_profiles_are_read_whole(folder):
    found = read_folders([DATA / folder])
    model = found.model(None)
    assert model.memory is not None and model.memory.table(True).layer["body"]
    assert found.hardware and found.strategies


@needs_data
def test_every_published_file_is_read_by_its_name():
    files = [*(DATA / "galvatron_profiles").glob("*.json"), *(DATA / "paddle_galvatron").rglob("*.json")]
    assert len(files) > 20
    for file in files:
        assert read_folders([file])


def test_all_to_all_times_of_no_cluster_serve_one_without_its_own(tmp_path, caplog):
    times = {f"all2all_size_8_{2**size}MB_time": 0.1 + 0.01 * 2**size for size in range(10)}
    (tmp_path / "profile_all2all.json").write_text(json.dumps(times))
    (tmp_path / "allreduce_bandwidth_1nodes_8gpus_per_node.json").write_text('{"allreduce_size_8": 100}')
    [found] = read_folders([tmp_path]).hardware.values()
    assert found.all_to_all[8].ms_of_mib == {2**size: 0.1 + 0.01 * 2**size for size in range(10)}
    own = {name: 2 * time for name, time in times.items()}
    (tmp_path / "sp_time_1nodes_8gpus_per_node.json").write_text(json.dumps(own))
    [found] = read_folders([tmp_path]).hardware.values()
    assert found.all_to_all[8].ms_of_mib[1] == own["all2all_size_8_1MB_time"]
    assert "is ignored" in caplog.text
    (tmp_path / "profile_all2all.json").write_text('{"all2all_size_8_2MB_time": -1}')
    with pytest.raises(InputError, match="all2all_size_8_2MB_time"):
        read_folders([tmp_path])


def flat(tree, at=""):
    if not isinstance(tree, dict):
        return {at: tree}
    return {key: value for name, sub in tree.items() for key, value in flat(sub, f"{at}/{name}").items()}


def told_tables(profile, split):
    """A memory profile's tables in the names of the files."""
    suffix = "_sp" * split
    tables = profile.table(split)
    told = {}
    for tokens, layer in tables.layer["body"].items():
        activation = {str(ways): mib for ways, mib in layer.activation_mib.items()}
        entry = {"parameter_size": layer.parameter_mib, "tp_activation_per_bsz_dict": activation}
        activation["checkpoint"] = layer.recomputed_mib
        told.setdefault(f"layertype_0{suffix}", {})[str(tokens)] = entry
    for name, ends in (("pp_off", tables.alone), ("pp_on_first", tables.first), ("pp_on_last", tables.last)):
        for tokens, end in ends.items():
            told.setdefault(f"other_memory_{name}{suffix}", {})[str(tokens)] = {
                "model_states": {str(ways): mib for ways, mib in end.states_mib.items()},
                "activation": {str(ways): mib for ways, mib in end.activation_mib.items()},
            }
    return told


@needs_data
@pytest.mark.parametrize("mode", ["static", "batch", "sequence"])
def test_raw_times_become_the_tables_of_galvatrons_own_test(written, mode):
    known = json.loads((DATA / "galvatron_tests/profile_processing.json").read_text())
    profile = read_computation(written(known["raw"][f"create_computation_{mode}_config"]))
    told = {f"layertype_0_bsz{at.batch}_seq{at.tokens}": ms for at, ms in profile.layer_ms["body"].items()}
    told |= {f"layertype_other_bsz{at.batch}_seq{at.tokens}": ms for at, ms in profile.other_ms.items()}
    assert told == pytest.approx(known["expected"][f"create_{mode}_time_config"], rel=1e-6)


@needs_data
@pytest.mark.parametrize("case", ["static_memory_config", "static_memory_config_sp", "sequence_memory_config_sp"])
def test_raw_memory_becomes_the_tables_of_galvatrons_own_test(written, case):
    known = json.loads((DATA / "galvatron_tests/profile_processing.json").read_text())
    mode = case.partition("_")[0]
    raw = known["raw"]["create_" + case.replace(f"{mode}_memory", f"memory_{mode}")]
    profile, _ = read_memory([written(raw)])
    told = flat(told_tables(profile, case.endswith("_sp")))
    assert told == pytest.approx(flat(known["expected"][f"create_{case}"]), rel=1e-6)


@needs_data
def test_paddles_raw_memory_becomes_its_published_tables(written):
    data = json.loads((DATA / "paddle_galvatron/configs/memory_profiling_bf16_llama.json").read_text())
    raw = {key: value for key, value in data.items() if key[0].isdigit()}
    profile, rules = read_memory([written(raw)])
    expected = {key: value for key, value in data.items() if not key[0].isdigit()}
    told = {key.replace("_sp/", "/"): value for key, value in flat(told_tables(profile, True)).items()}
    assert rules.name == "paddle"
    assert told == pytest.approx(flat(expected), rel=1e-6)
