"""Options of Galvatron's manuals, and the scripts that start its search, as the manuals print them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.command_lines.galvatron_names import settle_manual_names, with_script
from taylor.command_lines.layerwise import build_parser
from taylor.command_lines.layerwise_options import search_request

HETU = """export NUM_NODES=2
export NUM_GPUS_PER_NODE=8
MEMORY=36
MODEL_ARGS="
    --model_size llama2-7b \\
    --set_model_config_manually 0 \\
    --set_layernum_manually {by_hand} \\
    --hidden_size 2048 \\
    --num_hidden_layers 24 \\
    --num_attention_heads 32 \\
    --seq_length 8192"
SEARCH_ARGS="
    --min_bsz 64 --max_bsz 64 --bsz_scale 1 --settle_bsz -1 --recommend_min_bsz 0 \\
    --search_space {space} --sp_space tp+sp --disable_tp_consec 1 --profile_mode batch \\
    --no_async_grad_reduce --sequence_parallel --no_global_memory_buffer {more} \\
    ${{MODEL_ARGS}} --num_nodes ${{NUM_NODES}} --num_gpus_per_node ${{NUM_GPUS_PER_NODE}} \\
    --memory_constraint $MEMORY --time_profiling_path ./configs/time.json"
BACKGROUND=1
if [ $BACKGROUND -eq 1 ]; then
    nohup python3 search_dist.py ${{SEARCH_ARGS}} 1> log 2>&1 &
else
    python3 search_dist.py --disable_tp 1
fi
"""


def script(folder: Path, by_hand: int = 0, space: str = "full", more: str = "") -> Path:
    (folder / "scripts").mkdir()
    file = folder / "scripts" / "search_dist.sh"
    file.write_text(HETU.format(by_hand=by_hand, space=space, more=more))
    return file


def parsed(words: list[str]) -> argparse.Namespace:
    args = build_parser().parse(with_script(words))
    settle_manual_names(args)
    return args


@pytest.mark.parametrize(("by_hand", "layers"), [(0, (32,)), (1, (24,))])
def test_a_preset_goes_before_sizes_that_are_not_set_by_hand(by_hand: int, layers: tuple[int], tmp_path: Path) -> None:
    """Llama-2-7B has 32 layers of width 4096 (arXiv:2307.09288); the script's 24 count only with their switch."""
    args = parsed([str(script(tmp_path, by_hand))])
    assert (args.layers, args.hidden) == (layers, (4096,))


def test_a_script_of_hetus_manual_states_the_whole_search(tmp_path: Path) -> None:
    args = parsed([str(script(tmp_path))])
    _, request = search_request(args)
    assert (request.world, request.layers, request.space.batches) == (16, (32,), (64,))
    job = request.of
    assert (job.tokens, job.hidden, job.limit_gb) == (8192, 4096, 36.0)
    assert (job.time_mode, job.memory_mode) == ("batch", "static")
    assert job.reduce_every_micro_batch and job.sequence_parallel and not job.global_buffer
    assert job.folders == (tmp_path / "configs" / "time.json",)


@pytest.mark.parametrize(
    ("space", "off", "on"),
    [
        ("dp+tp", {"pp", "fsdp"}, {"dp", "tp"}),
        ("dp+pp", {"tp", "sp", "fsdp"}, {"dp", "pp"}),
        ("3d", {"fsdp"}, {"dp", "tp", "pp"}),
        ("pp", {"dp", "tp", "sp"}, {"pp"}),
    ],
)
def test_a_search_space_leaves_dimensions_out(space: str, off: set[str], on: set[str], tmp_path: Path) -> None:
    args = parsed([str(script(tmp_path, space=space))])
    assert {name for name in off | on if getattr(args, f"disable_{name}")} == off
    assert (args.fine_grained_mode == 0) is (space == "3d")


def test_ulysses_takes_the_place_of_tensor_parallelism(tmp_path: Path) -> None:
    assert parsed([str(script(tmp_path, more="--use_ulysses"))]).disable_tp


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("--use_ulysses --disable_tp 0", "--disable_tp: contradicts --use_ulysses"),
        ("--time_profile_mode static", "--time_profile_mode: contradicts --profile_mode"),
        ("--max_tp_deg $TP_OF_THE_JOB", "max_tp_deg: is known only when the script runs"),
    ],
)
def test_contradictions_and_values_from_outside_are_named(more: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        parsed([str(script(tmp_path, more=more))])


def test_what_stands_on_the_command_line_goes_before_the_script(tmp_path: Path) -> None:
    assert parsed([str(script(tmp_path)), "--memory_constraint", "80"]).memory == 80.0


def test_a_script_of_todays_hetu_names_its_yaml(tmp_path: Path) -> None:
    """Hetu-Galvatron cea12ff galvatron/models/gpt/scripts/search_dist.sh."""
    (tmp_path / "scripts").mkdir()
    file = tmp_path / "scripts" / "search_dist.sh"
    file.write_text("set -x\npython3 search_dist.py scripts/search_dist.yaml 2>&1 | tee $log_dir/search_engine.log\n")
    assert with_script([str(file)]) == [str(tmp_path / "scripts" / "search_dist.yaml")]


def test_a_script_that_starts_no_search_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text("python3 train_dist.py --pp_deg 2\n")
    with pytest.raises(InputError, match="starts no search of Galvatron's"):
        with_script([str(file)])
