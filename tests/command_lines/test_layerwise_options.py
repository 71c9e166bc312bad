"""What the options of `taylor layerwise` and a search file state together, and each contradiction between them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.command_lines.galvatron_names import SPACES, settle_manual_names, with_script
from taylor.command_lines.layerwise import build_parser
from taylor.command_lines.layerwise_options import search_request
from taylor.layerwise.space import SpaceLimits

BASE = {"world_size": "8", "layers": "6", "hidden": "1024", "seq": "4096", "gbs": "16", "memory": "8"}
SEARCH = """
search_engine:
  model_info: {{hidden_size: 1024, num_layers: 6, model_size: toy}}
  common_train_info: {{seq_length: 4096, global_memory_buffer: false}}
  parallelism_info: {{default_dp_type: zero2, pipeline_type: pipedream_flush, mixed_precision: bf16}}
  hardware_info: {{num_nodes: 1, num_gpus_per_node: 8, memory_constraint: 8}}
  batch_size_info: {{{batch}}}
  profiling_info: {{time_profile_mode: sequence}}
"""


def asked(*words: str, without: tuple[str, ...] = (), paths: tuple[str, ...] = ("p",)):
    """Options and request of a command line: those of `BASE` but some, and further words."""
    base = [word for name, value in BASE.items() if name not in without for word in (f"--{name}", value)]
    args = build_parser().parse([*paths, *base, *words])
    settle_manual_names(args)
    return search_request(args)


def searched(*words: str, without: tuple[str, ...] = (), paths: tuple[str, ...] = ("p",)):
    return asked(*words, without=without, paths=paths)[1]


def refused(said: str, *words: str, without: tuple[str, ...] = (), paths: tuple[str, ...] = ("p",)) -> None:
    with pytest.raises(InputError) as error:
        asked(*words, without=without, paths=paths)
    assert said in str(error.value), str(error.value)


def test_the_defaults_of_a_job_are_those_of_the_manual():
    options, found = asked()
    job, space = found.of, found.space
    assert (job.folders, job.tokens, job.hidden, job.limit_gb, job.costs) == ((Path("p"),), 4096, 1024, 8.0, "taylor")
    assert (job.model, job.time_mode, job.memory_mode, job.kv_hidden) == (None, None, None, None)
    assert (job.reduce_every_micro_batch, job.sequence_parallel, job.global_buffer, job.whole_mib) == (
        False, True, False, False,
    )  # fmt: skip
    assert (found.world, found.layers, found.zeros, found.device, found.gap) == (8, (6,), None, None, 1e-3)
    assert (found.time_limit, found.rival, found.workers) == (None, True, os.cpu_count())
    assert (space.batches, space.micro_batches, space.stages, space.interleaves) == ((16,), (), (), (1,))
    assert space.schedule == "1f1b" and space.one_for_all is False and options.batch_settled and options.notes == ()
    assert space.limits == SpaceLimits(
        False, False, False, True, False, False, False, False, False, False, None, None, None, None,
        offload=False, all_degrees=False,
    )  # fmt: skip


SWITCHES = ("dp", "tp", "sp", "cp", "pp", "ckpt", "fsdp", "embedding_lmhead_tp", "embedding_lmhead_sp", "sdp")


def test_each_switch_of_the_space_turns_its_own_limit():
    usual = searched().space.limits
    fields = list(SpaceLimits.__dataclass_fields__)
    for place, name in enumerate(SWITCHES):
        found = searched(f"--disable_{name}", "n" if name == "cp" else "y").space.limits
        changed = [field for field in fields if getattr(found, field) != getattr(usual, field)]
        assert changed == [fields[place]], name
    for place, name in enumerate(("tp", "sp", "cp", "pp")):
        found = searched(f"--max_{name}_deg", "1").space.limits
        assert [getattr(found, field) for field in fields[10:14]] == [1 if at == place else None for at in range(4)]
        assert searched(f"--max_{name}_deg", "-1").space.limits == usual
    assert searched("--offload").space.limits.offload and searched("--all_degrees").space.limits.all_degrees


OPTIONS = [
        (["--sequence_parallel", "n"], lambda found: found.of.sequence_parallel, False),
        (["--global_memory_buffer"], lambda found: found.of.global_buffer, True),
        (["--reduce_every_micro_batch"], lambda found: found.of.reduce_every_micro_batch, True),
        (["--whole_mib"], lambda found: found.of.whole_mib, True),
        (["--sp_space", "tp"], lambda found: (found.of.by_bandwidth, found.space.limits.disable_tp), (True, False)),
        (["--sp_space", "sp"], lambda found: (found.of.by_bandwidth, found.space.limits.disable_tp), (False, True)),
        (["--sp_space", "tp+sp"], lambda found: (found.of.by_bandwidth, found.space.limits.disable_tp), (False, False)),
        (["--pipeline_type", "gpipe"], lambda found: found.space.schedule, "gpipe"),
        (["--pipeline_type", "pipedream_flush"], lambda found: found.space.schedule, "1f1b"),
        (["--fine_grained_mode", "0"], lambda found: found.space.one_for_all, True),
        (["--fine_grained_mode", "1"], lambda found: found.space.one_for_all, False),
        (["--search_granularity", "coarse-grained"], lambda found: found.space.one_for_all, True),
        (["--search_granularity", "fine-grained"], lambda found: found.space.one_for_all, False),
        (["--search_granularity", "coarse-grained", "--fine_grained_mode", "0"],
         lambda found: found.space.one_for_all, True),
        (["--default_dp_type", "ddp"], lambda found: found.zeros, (0, 3)),
        (["--default_dp_type", "zero2"], lambda found: found.zeros, (2, 3)),
        (["--default_dp_type", "zero3"], lambda found: found.zeros, (2, 3)),
        (["--zeros", "0,3", "--default_dp_type", "ddp"], lambda found: found.zeros, (0, 3)),
        (["--zeros", "3"], lambda found: found.zeros, (3,)),
        (["--micro_batches", "4,8"], lambda found: found.space.micro_batches, (4, 8)),
        (["--pp", "2,4", "--vpp", "1,2"], lambda found: (found.space.stages, found.space.interleaves), ((2, 4), (1,
         2))),
        (["--rival", "n"], lambda found: found.rival, False),
        (["--kv_hidden", "256"], lambda found: found.of.kv_hidden, 256),
        (["--layers", "2,4", "--layernum", "6", "--num_layertype", "2", "--seq", "9,9", "--hidden", "9,9"],
         lambda found: found.layers, (2, 4)),
        (["--hidden", "64,64"], lambda found: found.of.hidden, 64),
        (["--hidden", "64,64", "--num_layertype", "2", "--layers", "2,4", "--seq", "8,8"],
         lambda found: (found.of.hidden, found.of.tokens), (64, 8)),
        (["--profile_gpu_num", "8"], lambda found: found.world, 8),
        (["--num_nodes", "2", "--num_gpus_per_node", "4"], lambda found: found.world, 8),
        (["--num_nodes", "2"], lambda found: found.world, 8),
        (["--num_gpus_per_node", "4"], lambda found: found.world, 8),
        (["--min_bsz", "16", "--max_bsz", "16"], lambda found: found.space.batches, (16,)),
        (["--gap", "1%", "-t", "5", "--device", "d"], lambda found: (found.gap, found.time_limit, found.device),
         (0.01, 5.0, "d")),
        (["--time_mode", "batch", "--memory_mode", "static", "--model", "toy"],
         lambda found: (found.of.time_mode, found.of.memory_mode, found.of.model), ("batch", "static", "toy")),
        (["--time_mode", "static", "--memory_mode", "sequence"], lambda found: found.of.memory_mode, "sequence"),
        (["--time_mode", "sequence"], lambda found: found.of.time_mode, "sequence"),
        (["--worker", "3"], lambda found: found.workers, 3),
        (["--worker", "1", "--parallel_search", "n"], lambda found: found.workers, 1),
        (["--disable_pp", "y", "--pp", "1"], lambda found: found.space.limits.disable_pp, True),
        (["--disable_tp", "y", "--max_tp_deg", "1"], lambda found: found.space.limits.disable_tp, True),
        (["--disable_tp", "n", "--max_tp_deg", "4"], lambda found: found.space.limits.most_tp, 4),
        (["--time_profile_data_path", "t", "--sp_time_path", "s"], lambda found: found.of.folders,
         (Path("p"), Path("t"), Path("s"))),
]  # fmt: skip


def test_every_option_reaches_the_search():
    for words, read, value in OPTIONS:
        assert read(searched(*words)) == value, words


def test_a_world_is_of_nodes_and_cards_where_no_ranks_are_given():
    without = ("world_size",)
    for words, world in ((("--num_nodes", "2"), 16), (("--num_gpus_per_node", "4"), 4),
                         (("--num_nodes", "3", "--num_gpus_per_node", "2"), 6)):  # fmt: skip
        assert searched(*words, without=without).world == world
    refused("--world_size: is missing; give the ranks", without=without)


def test_batches_are_settled_or_between_two_ends():
    none = ("gbs",)
    for words, batches in (
        (("--min_bsz", "4", "--max_bsz", "6"), (4, 5, 6)), (("--min_bsz", "4"), (4,)), (("--max_bsz", "5"), (5,)),
        (("--min_bsz", "4", "--max_bsz", "8", "--bsz_scale", "2"), (4, 6, 8)),
        (("--gbs", "-1", "--min_bsz", "7", "--max_bsz", "7"), (7,)),
    ):  # fmt: skip
        options, found = asked(*words, without=none)
        assert (found.space.batches, options.batch_settled) == (batches, False), words
    assert len(searched("--min_bsz", "1", "--max_bsz", "10001", without=none).space.batches) == 10_001
    refused("--gbs: is missing; give it, or --min_bsz and --max_bsz", without=none)
    refused("--min_bsz: is above the largest batch, 4 (found 5)", "--min_bsz", "5", "--max_bsz", "4", without=none)
    refused("makes more than 10000 batches", "--min_bsz", "1", "--max_bsz", "10002", "--bsz_scale", "1", without=none)
    refused(
        "leaves no batch from 5 to 6 (found 7)", "--min_bsz", "5", "--max_bsz", "6", "--bsz_scale", "7", without=none
    )
    assert searched("--min_bsz", "5", "--micro_batches", "3", without=none).space.micro_batches == (3,)


REFUSED = [
        (["--num_nodes", "3", "--num_gpus_per_node", "4"], "--world_size: contradicts 3 nodes with 4 cards (found 8)"),
        (["--num_nodes", "3"], "--world_size: contradicts 3 nodes with None cards (found 8)"),
        (["--profile_gpu_num", "4"],
         "--profile_gpu_num: contradicts the search's 8 ranks (found 4); give the profiles of"),
        (["--max_bsz", "17"], "--max_bsz: contradicts the settled batch of 16 (found 17); give one of the two"),
        (["--layers", "2,3", "--layernum", "6"], "--layernum: contradicts the profiles' 5 layers (--layernum_list)"),
        (["--hidden", "64,32"], "--hidden_size_list: differs by kind of layer (found '64,32')"),
        (["--hidden", "64,64", "--num_layertype", "3", "--layers", "1,2,3", "--seq", "9,9,9"],
         "has 2 numbers, and --num_layertype is 3"),
        (["--micro_batches", "4,6"], "does not divide the batch of 16 (found '4,6'); correct one"),
        (["--max_sp_deg", "2", "--disable_sp", "y"], "--max_sp_deg: contradicts --disable_sp (found 2)"),
        (["--max_tp_deg", "-1", "--disable_tp", "y"], "--max_tp_size: contradicts --disable_tp (found -1)"),
        (["--max_pp_deg", "2", "--disable_pp", "y"], "--max_pp_size: contradicts --disable_pp (found 2)"),
        (["--disable_pp", "y", "--pp", "1,2"], "--pp: contradicts --disable_pp"),
        (["--memory_mode", "batch"], "is no mode of its search (found 'batch'); take static, sequence"),
        (["--time_mode", "x"], "is no mode of its search (found 'x'); take static, batch, sequence"),
        (["--default_dp_type", "zero2", "--zeros", "0,3"], "--default_dp_type: contradicts --zeros"),
        (["--worker", "2", "--parallel_search", "n"], "--worker: contradicts --parallel_search n (found 2)"),
        (["--search_granularity", "fine-grained", "--fine_grained_mode", "0"], "contradicts --fine_grained_mode"),
]  # fmt: skip


def test_every_contradiction_is_refused():
    for words, said in REFUSED:
        refused(said, *words)


def test_what_is_missing_is_named():
    refused("PATH: is missing; name the profiles, or --costs estimate", paths=())
    for name in ("hidden", "memory", "seq", "layers"):
        refused(f"--{name}: is missing", without=(name,))
    refused("b.yml: is a second search file; give one", paths=("a.yaml", "b.yml"))


def test_an_estimate_needs_no_profiles_and_has_no_rival():
    words = ("--costs", "estimate", "--model", "m", "--device", "d")
    found = searched(*words, without=("layers", "hidden", "memory"), paths=())
    assert (found.layers, found.of.hidden, found.of.limit_gb, found.rival) == (None, 0, 0.0, False)
    assert searched(*words, paths=()).layers == (6,)


def written(folder: Path, batch: str = "settle_bsz: 16, settle_chunk: 8", old: str = "", new: str = "") -> str:
    file = folder / "search.yaml"
    file.write_text(SEARCH.format(batch=batch).replace(old, new) if old else SEARCH.format(batch=batch))
    return str(file)


def test_a_search_file_states_what_the_command_line_does_not(tmp_path):
    options, found = asked(without=tuple(BASE), paths=(written(tmp_path), "p"))
    assert (found.world, found.layers, found.zeros, found.of.folders) == (8, (6,), (2, 3), (Path("p"),))
    assert (found.of.tokens, found.of.hidden, found.of.limit_gb, found.of.model) == (4096, 1024, 8.0, "toy")
    assert (found.space.batches, found.space.micro_batches, found.of.time_mode) == ((16,), (8,), "sequence")
    assert options.batch_settled
    words = ("--gbs", "32", "--micro_batches", "4", "--model", "other", "--vpp", "2", "--zeros", "3", "--hidden", "64")
    other = searched(*words, without=tuple(BASE), paths=(written(tmp_path), "p"))
    assert (other.space.batches, other.space.micro_batches, other.of.model) == ((32,), (4,), "other")
    assert (other.space.interleaves, other.zeros, other.of.hidden) == ((2,), (3,), 64)
    assert searched("--world_size", "4", without=tuple(BASE), paths=(written(tmp_path), "p")).world == 4
    refused("--world_size: contradicts 2 nodes", "--world_size", "4", "--num_nodes", "2", without=tuple(BASE),
            paths=(written(tmp_path), "p"))  # fmt: skip


def test_a_batch_of_a_search_file_may_be_left_open_or_bounded(tmp_path):
    paths = (written(tmp_path, "settle_bsz: -1, settle_chunk: -1, min_bsz: 8, max_bsz: 16, bsz_scale: 8"), "p")
    options, found = asked(without=tuple(BASE), paths=paths)
    assert (found.space.batches, found.space.micro_batches, options.batch_settled) == ((8, 16), (), False)
    for name in ("min_bsz", "max_bsz"):  # only a batch of the command line is compared with the ends given there
        other = searched(f"--{name}", "4", without=tuple(BASE), paths=(written(tmp_path), "p"))
        assert other.space.batches == (16,)


def test_a_batch_that_the_command_line_leaves_open_is_not_that_of_the_file(tmp_path):
    words = ("--gbs", "-1", "--min_bsz", "8", "--max_bsz", "12", "--bsz_scale", "4", "--micro_batches", "-1")
    options, found = asked(*words, without=tuple(BASE), paths=(written(tmp_path), "p"))
    assert (found.space.batches, found.space.micro_batches, options.batch_settled) == ((8, 12), (), False)


def test_notes_name_the_options_without_effect(tmp_path):
    assert asked("--log_dir", "l")[0].notes == ("--log_dir has no effect: see --result_json",)
    options, _ = asked("--log_dir", "l", without=tuple(BASE), paths=(written(tmp_path), "p"))
    assert options.search_file is not None
    assert options.notes == (*options.search_file.notes, "--log_dir has no effect: see --result_json")


def settled(*words: str):
    args = build_parser().parse(["p", *words])
    return args, settle_manual_names(args)


SPACES_OF_THE_MANUAL = {
    "full": {}, "3d": {"disable_fsdp": True, "fine_grained_mode": 0}, "dp+tp": {"disable_pp": True,
        "disable_fsdp": True},
    "dp+pp": {"disable_tp": True, "disable_sp": True, "disable_fsdp": True},
    "dp": {"disable_tp": True, "disable_sp": True, "disable_pp": True, "disable_fsdp": True},
    "sdp": {"disable_tp": True, "disable_sp": True, "disable_pp": True, "zeros": (3,)},
    "tp": {"disable_dp": True, "disable_pp": True}, "pp": {"disable_dp": True, "disable_tp": True, "disable_sp": True},
}  # fmt: skip
"""What ``--search_space`` leaves out, by Hetu-Galvatron 67b224be galvatron/utils/strategy_utils.py."""


def test_names_of_the_manuals_set_the_options_of_the_search():
    assert list(SPACES) == list(SPACES_OF_THE_MANUAL)
    names = {name for values in SPACES_OF_THE_MANUAL.values() for name in values}
    for space, values in SPACES_OF_THE_MANUAL.items():
        args, notes = settled("--search_space", space)
        assert {name: getattr(args, name) for name in names} == dict.fromkeys(names) | values and notes == ()
        assert all(args.given[name] == f"--search_space {space}" for name in values)
    for mode, memory in (("static", "static"), ("batch", "static"), ("sequence", "sequence"), ("hybrid", "hybrid")):
        args, _ = settled("--profile_mode", mode)
        assert (args.time_mode, args.memory_mode) == (mode, memory)
    for words, name, value in (
        (["--no_global_memory_buffer"], "global_memory_buffer", False),
        (["--no_async_grad_reduce"], "reduce_every_micro_batch", True), (["--use_ulysses"], "disable_tp", True),
        (["--sp_space", "sp"], "disable_tp", True), (["--sp_space", "tp"], "disable_tp", None),
        (["--hidden_size", "64"], "hidden", (64,)), (["--num_hidden_layers", "4"], "layers", (4,)),
        (["--search_space", "3d", "--disable_fsdp", "y"], "disable_fsdp", True),
        ([], "disable_tp", None), ([], "global_memory_buffer", None), ([], "reduce_every_micro_batch", False),
    ):  # fmt: skip
        assert getattr(settled(*words)[0], name) == value, words
    with pytest.raises(InputError, match=r"--disable_tp: contradicts --use_ulysses \(found False\); give one"):
        settled("--use_ulysses", "--disable_tp", "n")
    with pytest.raises(InputError, match="--hidden_size_list: contradicts --hidden_size"):
        settled("--hidden", "64", "--hidden_size", "32")


@pytest.mark.parametrize(
    ("words", "hidden", "layers"),
    [
        ([], (7,), (5,)), (["--set_model_config_manually", "1"], (7,), (5,)),
        (["--set_model_config_manually", "0"], (4096,), (32,)),
        (["--set_model_config_manually", "0", "--set_layernum_manually", "1"], (4096,), (5,)),
        (["--set_model_config_manually", "0", "--set_layernum_manually", "0"], (4096,), (32,)),
        (["--set_layernum_manually", "0"], (7,), (5,)),
        (["--set_layernum_manually", "0", "--layers", "9"], (7,), (9,)),
    ],
)  # fmt: skip
def test_sizes_are_those_set_by_hand_or_of_the_preset(words, hidden, layers):
    args, _ = settled("--model_size", "llama2-7b", "--hidden_size", "7", "--num_hidden_layers", "5", *words)
    assert (args.hidden, args.layers) == (hidden, layers)


def test_a_preset_counts_where_there_is_one_and_sizes_are_asked_for():
    by_hand = ["--set_model_config_manually", "1", "--set_layernum_manually", "0", "--num_hidden_layers", "5"]
    with pytest.raises(InputError, match="--layernum_list: contradicts --num_hidden_layers"):
        settled(*by_hand, "--layers", "9")
    args, _ = settled("--set_model_config_manually", "0", "--hidden_size", "7")
    assert (args.hidden, args.layers) == ((7,), None)
    args, _ = settled("--set_model_config_manually", "0", "--model_size", "llama2-7b", "--hidden_size", "7")
    assert (args.hidden, args.layers) == ((4096,), (32,))
    args, _ = settled("--set_model_config_manually", "0", "--model_size", "llama2-7b")
    assert (args.hidden, args.layers) == (None, None)


def test_options_of_the_manuals_without_effect_are_noted():
    _, notes = settled("--vocab_size", "9", "--disable_tp_consec", "0")
    assert notes == (
        "--vocab_size has no effect: the profiles have the embedding's cost",
        "--disable_tp_consec 0 has no effect: TP ranks follow each other in every strategy",
    )
    assert settled("--disable_tp_consec", "1")[1] == ()


def test_a_script_is_replaced_by_its_options_in_its_own_folder(tmp_path):
    (tmp_path / "scripts").mkdir()
    file = tmp_path / "scripts" / "s.sh"
    file.write_text(
        "python3 search_dist.py --time_profiling_path t.json --gbs 8 --output_config_path out scripts/a.yml\n"
    )
    paths = ["--time_profiling_path", str(tmp_path / "t.json"), "--gbs", "8", "--output_config_path"]
    whole = [*paths, str(tmp_path / "out"), str(tmp_path / "scripts" / "a.yml")]
    assert with_script([str(file)]) == whole
    assert with_script(["--gbs", "4", "--json", str(file), "-t", "5"]) == [*whole, "--gbs", "4", "--json", "-t", "5"]
    for words in (["a.yaml", "--gbs", "4"], ["--trace", str(file)], ["-o", str(file)], []):
        assert with_script(words) == words
    assert with_script(["first", str(file)]) == [*whole, "first"]
