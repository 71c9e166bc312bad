"""Every entry of the YAML of Hetu's search, its default by the search's own schema, and what has no effect."""

from __future__ import annotations

import re

import pytest
import yaml

from taylor.base.errors import InputError
from taylor.parsers.galvatron.search_file import MOST, MOST_STEPS, SearchFile, read_search_file

SWITCHES = ("dp", "tp", "sp", "embedding_lmhead_tp", "embedding_lmhead_sp", "pp", "ckpt", "fsdp", "cp")
DEFAULTS = {
    "sequence_parallel": True, "global_memory_buffer": True, "default_dp_type": "ddp", "pipeline_type": "gpipe",
    "mixed_precision": "bf16", "reduce_every_micro_batch": False, "num_nodes": 1, "num_gpus_per_node": 8,
    "memory": 24.0, "min_bsz": 8, "max_bsz": 8, "bsz_scale": 8, "max_tp_deg": 8, "max_pp_deg": 8, "max_sp_deg": 8,
    "max_cp_deg": 8, "time_profile_mode": "static", "memory_profile_mode": "static", "fine_grained_mode": 1,
    "parallel_search": True, "worker": 0, **{f"disable_{each}": each == "cp" for each in SWITCHES},
}  # fmt: skip
"""args_schema.py of Galvatron's search engine and runtime (cea12ff); what has no default is not told."""


@pytest.fixture
def read(tmp_path):
    """Read a search of some sections, with what stands beside them at the top of the file."""

    def make(sections: dict, place: str = "search.yaml", **beside) -> SearchFile:
        file = tmp_path / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump({"search_engine": sections, **beside}))
        return read_search_file(file)

    return make


def refusal(act) -> str:
    with pytest.raises(InputError) as raised:
        act()
    return str(raised.value)


def test_an_empty_search_has_the_schema_s_defaults(read):
    found = read({"model_info": None})
    assert found.options == DEFAULTS
    assert {name: type(value) for name, value in found.options.items()} == {k: type(v) for k, v in DEFAULTS.items()}
    assert found.notes == () and found.profiles == ()


def test_every_entry_is_taken_and_named_by_its_own_field(read):
    found = read({
        "model_info": {"hidden_size": 64, "num_layers": 3, "num_attention_heads": 8, "num_query_groups": 2,
                       "model_size": "meta/toy-1b"},
        "common_train_info": {"seq_length": 128, "sequence_parallel": False, "global_memory_buffer": False},
        "parallelism_info": {"default_dp_type": "zero3", "pipeline_type": "pipedream_flush", "mixed_precision": "fp16",
                             "async_grad_reduce": False},
        "hardware_info": {"num_nodes": 2, "num_gpus_per_node": 4, "memory_constraint": 36},
        "batch_size_info": {"min_bsz": 16, "max_bsz": 64, "bsz_scale": 2, "settle_bsz": 1, "settle_chunk": 4},
        "search_space_info": {**{f"disable_{name}": name != "cp" for name in SWITCHES}, "max_tp_deg": 1,
                              "max_pp_deg": 2, "max_sp_deg": -1, "max_cp_deg": 16},
        "profiling_info": {"time_profile_mode": "hybrid", "memory_profile_mode": "sequence"},
        "options_info": {"fine_grained_mode": 0, "parallel_search": False, "worker": 3, "output_config_path": "out"},
    })  # fmt: skip
    assert found.options == {
        "hidden": 64, "layers": 3, "kv_hidden": 2 * (64 // 8), "model_size": "toy-1b", "seq": 128,
        "sequence_parallel": False, "global_memory_buffer": False, "default_dp_type": "zero3",
        "pipeline_type": "pipedream_flush", "mixed_precision": "fp16", "reduce_every_micro_batch": True,
        "num_nodes": 2, "num_gpus_per_node": 4, "memory": 36.0, "min_bsz": 16, "max_bsz": 64, "bsz_scale": 2,
        "settle_bsz": 1, "settle_chunk": 4, "max_tp_deg": 1, "max_pp_deg": 2, "max_cp_deg": 16,
        "time_profile_mode": "hybrid", "memory_profile_mode": "sequence", "fine_grained_mode": 0,
        "parallel_search": False, "worker": 3, "output_config_path": "out",
        **{f"disable_{each}": each != "cp" for each in SWITCHES},
    }  # fmt: skip
    assert set(found.fields) == set(found.options) and found.notes == ()
    assert found.fields["kv_hidden"] == "search_engine.model_info.num_query_groups"
    assert found.fields["memory"] == "search_engine.hardware_info.memory_constraint"
    assert found.fields["reduce_every_micro_batch"] == "search_engine.parallelism_info.async_grad_reduce"
    assert found.fields["disable_cp"] == "search_engine.search_space_info.disable_cp"


def test_keys_of_a_width_of_their_own_are_as_wide_as_it_says(read):
    model = {"hidden_size": 64, "num_attention_heads": 8, "num_query_groups": 2, "kv_channels": 24}
    assert read({"model_info": model}).options["kv_hidden"] == 48
    for name in ("hidden_size", "num_attention_heads", "num_query_groups"):
        assert "kv_hidden" not in read({"model_info": {k: v for k, v in model.items() if k != name}}).options


def test_a_model_file_fills_in_what_the_search_leaves_out(read, tmp_path):
    whole = {"hidden_size": 64, "num_layers": 9, "num_attention_heads": 4, "num_query_groups": 4, "model_size": "b/big"}
    (tmp_path / "models").mkdir()
    (tmp_path / "models/near.yaml").write_text(yaml.safe_dump(whole))
    for place, named in (
        ("search.yaml", "models/near.yaml"),
        ("scripts/search.yaml", "models/near.yaml"),
        ("scripts/search.yaml", str(tmp_path / "models/near.yaml")),
    ):
        found = read({"model_info": {"model_config_path": named, "num_layers": 3}}, place)
        told = [found.options[name] for name in ("hidden", "layers", "kv_hidden", "model_size")]
        assert told == [64, 3, 64, "big"] and found.notes == ()
    absent = read({"model_info": {"model_config_path": "models/far.yaml"}})
    assert absent.notes == (
        "search_engine.model_info.model_config_path: models/far.yaml is not there, and was not read",
    )


def test_what_has_no_effect_is_said_and_what_changes_nothing_is_not(read):
    loud = read({
        "model_info": {"is_moe_model": True}, "batch_size_info": {"recommend_min_bsz": 1},
        "options_info": {"log_dir": "logs"}, "debug_info": {"debug_costmodel_coe": 1.5},
    })  # fmt: skip
    assert [re.sub(r"[ :].*", "", note) for note in loud.notes] == [
        "search_engine.model_info.is_moe_model", "search_engine.batch_size_info.recommend_min_bsz",
        "search_engine.options_info.log_dir", "search_engine.debug_info.debug_costmodel_coe",
    ]  # fmt: skip
    assert len(read({"model_info": {"is_moe_model": 1}}).notes) == 1
    silent = read({
        "model_info": {"is_moe_model": 0}, "batch_size_info": {"recommend_min_bsz": 0},
        "debug_info": {"debug_costmodel_coe": 1},
    })  # fmt: skip
    assert silent.notes == ()


def test_settled_batches_of_nothing_and_any_degree_are_no_limits(read):
    found = read({"batch_size_info": {"settle_bsz": 0, "settle_chunk": -5}, "search_space_info": {"max_tp_deg": -1}})
    assert not {"settle_bsz", "settle_chunk", "max_tp_deg"} & set(found.options)


@pytest.mark.parametrize(
    ("section", "name", "wrong", "right"),
    [
        ("hardware_info", "memory_constraint", 0.0009, 0.001),
        ("hardware_info", "memory_constraint", 1000001, 1000000),
        ("hardware_info", "num_nodes", 0, 1),
        ("hardware_info", "num_gpus_per_node", 0, 1),
        ("batch_size_info", "min_bsz", 0, 1),
        ("batch_size_info", "settle_bsz", -MOST - 1, -MOST),
        ("search_space_info", "disable_tp", 2, 1),
        ("search_space_info", "disable_cp", 2, 0),
        ("search_space_info", "max_tp_deg", 0, 1),
        ("search_space_info", "max_tp_deg", -2, -1),
        ("profiling_info", "memory_profile_mode", "fast", "batch"),
        ("options_info", "fine_grained_mode", 2, 1),
        ("options_info", "worker", -1, 0),
        ("parallelism_info", "mixed_precision", "fp8", "fp32"),
        ("model_info", "hidden_size", MOST + 1, MOST),
    ],
)
def test_the_first_value_beyond_a_bound_is_refused_and_the_last_within_is_taken(read, section, name, wrong, right):
    assert f"search_engine.{section}.{name}" in refusal(lambda: read({section: {name: wrong}}))
    read({section: {name: right}})


def test_profiles_lie_where_the_file_says_or_where_hetus_tree_has_them(read, tmp_path):
    named = {"time_profiling_path": "configs/time", "overlap_coe_path": "/far/overlap", "sp_time_path": "configs/time"}
    found = read({"profiling_info": named}, "gpt/scripts/search.yaml")
    assert [str(each) for each in found.profiles] == [str(tmp_path / "gpt/configs/time"), "/far/overlap"]
    for folder in ("models/gpt/configs", "profile_hardware/hardware_configs"):
        (tmp_path / folder).mkdir(parents=True)
    found = read({"model_info": None}, "models/gpt/scripts/search.yaml")
    assert found.profiles == (tmp_path / "models/gpt/configs", tmp_path / "profile_hardware/hardware_configs")


def test_references_are_put_in_whole_within_texts_and_in_lists(read):
    beside = {"job": {"size": "toy", "seq": 512, "model": {"hidden_size": 96}}, "base": "a/${job.size}"}
    found = read(
        {"model_info": "${job.model}", "common_train_info": {"seq_length": "${job.seq}"},
         "options_info": {"output_config_path": "to/${job.size}-${job.seq}/${base}"}}, **beside,
    )  # fmt: skip
    assert found.options["hidden"] == 96 and found.options["seq"] == 512
    assert found.options["output_config_path"] == "to/toy-512/a/toy"
    told = refusal(lambda: read({"options_info": {"output_config_path": "x${job.model}"}}, **beside))
    assert "refers to job.model, which is no plain value" in told and "output_config_path" in told
    told = refusal(lambda: read({"options_info": {"output_config_path": "x${job.seq.first}"}}, **beside))
    assert "refers to job.seq.first, which is not there" in told


def test_twenty_references_may_follow_each_other_and_no_more(read):
    def chain(links: int) -> SearchFile:
        beside = {f"a{at}": f"${{a{at + 1}}}" for at in range(links)} | {f"a{links}": "end"}
        return read({"options_info": {"output_config_path": "${a0}"}}, **beside)

    assert MOST_STEPS == 20
    assert chain(19).options["output_config_path"] == "end"
    assert "refers to itself" in refusal(lambda: chain(20))


def test_a_text_of_four_kibibytes_is_the_longest(read):
    def text(count: int) -> SearchFile:
        return read({"options_info": {"output_config_path": "${a}" * 4 + "x" * count}}, a="y" * 1000)

    assert text(96).options["output_config_path"] == "y" * 4000 + "x" * 96
    assert "is longer than any value" in refusal(lambda: text(97))


@pytest.mark.parametrize("text", ["a: 1", "search_engine: 3", "search_engine: []"])
def test_another_file_is_no_search(tmp_path, text):
    (tmp_path / "search.yaml").write_text(text)
    assert "is no search of Hetu's Galvatron" in refusal(lambda: read_search_file(tmp_path / "search.yaml"))
