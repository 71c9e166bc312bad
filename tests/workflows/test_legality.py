"""One legality at every entry point: the same jobs are refused by the same rule, whoever asks."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import taylor
from taylor.base.errors import InputError
from taylor.command_lines import parallel_tool, pipeline_parallel
from taylor.cost_model.job.strategy import TrainingRules
from taylor.layerwise.space import SpaceLimits
from taylor.nd_search.legality import LEGALITY_RULES
from taylor.nd_search.options import SearchOptions
from taylor.nd_search.search import search
from taylor.nd_search.stated import ASKED_BY_SEARCH, barred_shapes, broken_rules, find_illegality
from taylor.parsers.read import read_config
from taylor.register.frameworks import UNDER_GALVATRON
from taylor.register.registry import Registry
from taylor.serve.question import Models, Question
from taylor.workflows.ranking.candidates import load_candidates
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.legality import require_legal
from tests.conftest import ROOT
from tests.nd_search_cases import DEVICE, job

LLAMA3_70B = (
    "--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --group-query-attention "
    "--num-query-groups 8 --seq-length {seq} --max-position-embeddings 8192 --normalization RMSNorm --swiglu "
    "--disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --vocab-size 128256 "
    "--use-flash-attn --use-distributed-optimizer --micro-batch-size 1 --global-batch-size 96 --bf16 "
    "--attention-dropout 0.0 --hidden-dropout 0.0 "
)
QWEN3_30B = (
    "--num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 24 --kv-channels 128 "
    "--group-query-attention --num-query-groups 6 --seq-length 4096 --max-position-embeddings 40960 --swiglu "
    "--normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 151936 --bf16 "
    "--position-embedding-type rope --num-experts 128 --moe-ffn-hidden-size 768 --moe-router-topk 8 "
    "--moe-grouped-gemm --moe-token-dispatcher-type alltoall --expert-model-parallel-size 8 "
    "--expert-tensor-parallel-size 1 --micro-batch-size 1 --global-batch-size 8 --sequence-parallel "
)
TORCHTITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
global_batch_size = 64
seq_len = 8192
[parallelism]
data_parallel_shard_degree = 2
tensor_parallel_degree = 6
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "1F1B"
"""


def megatron(folder: Path, flags: str, ranks: int, **degrees: object) -> Path:
    words = flags.format(**{"seq": 8192} | degrees)
    file = folder / "job.sh"
    file.write_text(f"#!/bin/bash\ntorchrun --nproc_per_node {ranks} --nnodes 1 pretrain_gpt.py {words}\n")
    return file


def job_of_model(folder: Path, name: str, **parallel: object) -> Path:
    degrees = {"dp": 2, "tp": 8, "pp": 4, "ep": 1, "cp": 1, "op": 2, "sp": True, "vpp": 1} | parallel
    batch = {"global": 512, "micro": 1, "sequence": 4096}
    file = folder / "job.json"
    taylor_part = {"framework": "megatron", "parallel": degrees, "batch": batch, "schedule": "1f1b"}
    file.write_text(json.dumps({"registered_model": name, "taylor": taylor_part}))
    return file


def mindformers_of_tp6(folder: Path) -> Path:
    text = (ROOT / "config" / "pretrain_llama2_7b.yaml").read_text()
    lines = [
        "  model_parallel: 6" if line.strip().startswith("model_parallel:") else line for line in text.splitlines()
    ]
    (folder / "job.yaml").write_text("\n".join(lines) + "\n")
    return folder / "job.yaml"


def torchtitan_of_tp6(folder: Path) -> Path:
    (folder / "job.toml").write_text(TORCHTITAN)
    return folder / "job.toml"


TP6 = "--tensor-model-parallel-size 6 --pipeline-model-parallel-size 4 --sequence-parallel"
TP8 = "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --sequence-parallel"
ILLEGAL = {
    "64 experts' ranks for 8 experts": ("experts-by-ep", lambda f: job_of_model(f, "mixtral-8x7b", ep=64)),
    "6 experts' ranks for 8 experts": ("experts-by-ep", lambda f: job_of_model(f, "mixtral-8x7b", ep=6)),
    "64 heads over TP 6": ("heads-by-tp", lambda f: megatron(f, LLAMA3_70B + TP6, 24)),
    "8190 tokens over TP 8": ("sequence-by-2cp-tp", lambda f: megatron(f, LLAMA3_70B + TP8, 32, seq=8190)),
    "32 heads over TP 6 in torchtitan": ("heads-by-tp", torchtitan_of_tp6),
    "32 heads over TP 6 in MindFormers": ("heads-by-tp", mindformers_of_tp6),
    "experts' ranks without experts": (
        "dense-without-ep",
        lambda f: megatron(f, LLAMA3_70B + TP8 + " --expert-model-parallel-size 2", 64),
    ),
    "6 query groups over TP 4": (
        "kv-groups-or-copies",
        lambda f: megatron(f, QWEN3_30B + "--tensor-model-parallel-size 4", 8),
    ),
    "more tokens than positions": (
        "sequence-in-positions",
        lambda f: megatron(f, LLAMA3_70B + TP8, 32, seq=16384),
    ),
    "MTP under uniform recompute of two layers": (
        "mtp-recomputes-one-layer",
        lambda f: megatron(
            f,
            LLAMA3_70B + TP8 + " --mtp-num-layers 1 --recompute-granularity full --recompute-method uniform "
            "--recompute-num-layers 2",
            32,
        ),
    ),
    "more chunks than layers": ("layers-fill-chunks", lambda f: job_of_model(f, "llama3-70b", vpp=64)),
}
FLAG_OF = {".sh": "-shell", ".yaml": "-yaml", ".toml": "-toml", ".json": "-hf"}


@pytest.fixture(params=list(ILLEGAL))
def illegal(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rule, make = ILLEGAL[request.param]
    return rule, make(tmp_path)


def of_command(run, *words: object) -> str:
    with pytest.raises(InputError) as refused:
        run([str(word) for word in words])
    return str(refused.value)


@pytest.mark.parametrize("evaluate", ["y", "n"])
def test_the_command_refuses_to_solve_and_to_evaluate_it(illegal, evaluate):
    rule, file = illegal
    message = of_command(pipeline_parallel.run, FLAG_OF[file.suffix], file, "-evaluate", evaluate, "-write", "n")
    assert f"rule {rule}:" in message and f"--allow_illegal {rule}" in message and str(file) in message
    assert "source: " in message and ("nearest legal: " in message or "write " in message)


def test_python_refuses_to_solve_and_to_evaluate_it(illegal):
    rule, file = illegal
    for call in (taylor.solve, taylor.evaluate):
        with pytest.raises(InputError, match=f"rule {rule}:"):
            call(file)


def test_a_ranking_keeps_its_place_with_the_rule(illegal):
    rule, file = illegal
    (candidate,) = load_candidates([file])
    assert f"rule {rule}:" in candidate.failure


def test_a_search_of_its_strategy_alone_names_the_rule(illegal):
    rule, file = illegal
    config = read_config(file)
    own = config.strategy
    pinned = {name: int(getattr(own, name)) for name in ("dp", "tp", "pp", "ep", "cp", "vpp", "mbs", "op")}
    options = SearchOptions(fix={**pinned, "sp": int(own.sp and own.tp > 1)}, max_expert_parallel=10**6)
    with pytest.raises(InputError, match=rule):
        search(config, choose_device(config).spec, options)


def test_a_search_of_other_strategies_says_why_the_files_own_cannot_start(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = megatron(tmp_path, LLAMA3_70B + TP6, 24)
    parallel_tool.run(["--shell_path", str(file), "--world_size", "32", "--profile_num", "1", "--output_path", "o/nd"])
    reason = "the strategy in the file cannot start: --tensor-model-parallel-size 6 breaks the rule heads-by-tp"
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    "rule, setting",
    [
        ("experts-by-ep", {"model": "mixtral-8x7b", "ranks": 64, "tp": 1, "pp": 1, "ep": 64}),
        ("experts-by-ep", {"model": "mixtral-8x7b", "ranks": 96, "tp": 4, "pp": 2, "ep": 6, "gbs": 480}),
        ("dense-without-ep", {"model": "llama3-70b", "ranks": 64, "tp": 8, "pp": 4, "ep": 2}),
        ("layers-fill-chunks", {"model": "llama3-70b", "ranks": 64, "tp": 8, "pp": 4, "vpp": 64}),
        ("sequence-by-2cp-tp", {"model": "llama3-70b", "ranks": 64, "tp": 8, "pp": 4, "seq": 8190}),
    ],
)
def test_the_page_refuses_a_setting_by_the_same_rule(tmp_path, rule, setting):
    ask = Question(**{"device": "h100-80g", "gbs": 512} | setting)
    with pytest.raises(InputError, match=f"rule {rule}:") as refused:
        Models(tmp_path, ()).config(ask)
    assert str(tmp_path) not in str(refused.value)


def test_an_allowed_rule_is_reported_as_assumed(tmp_path):
    file = megatron(tmp_path, LLAMA3_70B + TP8, 32, seq=8190)
    result = taylor.evaluate(file, allow_illegal=["sequence-by-2cp-tp"])
    assert any("--allow_illegal sequence-by-2cp-tp" in sentence for sentence in result.result.to_dict()["assumed"])


def test_an_unknown_name_is_refused_with_the_near_ones(tmp_path):
    file = megatron(tmp_path, LLAMA3_70B + TP8, 32)
    with pytest.raises(InputError, match=r"--allow_illegal.*heads-by-tp"):
        taylor.evaluate(file, allow_illegal=["head-by-tp"])


def test_sequence_parallelism_without_tensor_parallelism_is_no_fault(tmp_path):
    one = "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 8 --sequence-parallel"
    config = read_config(megatron(tmp_path, LLAMA3_70B + one, 8))
    assert find_illegality(config, DEVICE) is None


@pytest.mark.slow
def test_the_nearest_values_make_the_job_legal():
    """Each proposed change is applied by hand and judged again."""
    draw = random.Random("nearest")
    proposed = 0
    for _ in range(200):
        config = job()
        changes = {name: draw.choice([1, 2, 3, 4, 6, 8]) for name in ("dp", "tp", "pp", "ep", "cp")}
        strategy = config.strategy.replace(**changes, op=changes["dp"] * changes["cp"], micro_batches=8)
        config = config.replace(strategy=strategy)
        found = find_illegality(config, DEVICE)
        if found is None:
            continue
        for field, value in found.nearest:
            if field in ("ep", "vpp"):
                changed = config.replace(strategy=strategy.replace(**{field: value}))
                left = find_illegality(changed, DEVICE)
                assert left is None or found.rules[0] not in left.rules
                proposed += left is None
    assert proposed > 20


def test_a_job_is_legal_exactly_where_a_search_of_it_alone_keeps_it():
    """Random strategies: the stated job and a search in which every degree is pinned agree."""
    draw = random.Random("stated and searched")
    legal = 0
    for _ in range(120):
        config = job()
        degrees = {name: draw.choice([1, 2, 3, 4, 8, 16]) for name in ("dp", "tp", "pp", "ep")}
        strategy = config.strategy.replace(
            **degrees, op=degrees["dp"], sp=degrees["tp"] > 1, micro_batches=draw.choice([4, 12, 16, 64])
        )
        config = config.replace(strategy=strategy)
        pinned = {name: int(getattr(strategy, name)) for name in ("dp", "tp", "pp", "ep", "cp", "op", "vpp", "mbs")}
        experience = ("tp-within-node", "sp-with-tp", "cp-keeps-long-pieces", "pipeline-mostly-busy")
        of_releases = ("ep-in-dp-tp-of-new-releases", "moe-sp-of-new-releases", "zero-bubble-of-new-releases")
        options = SearchOptions(
            fix={**pinned, "sp": int(strategy.sp)},
            disabled_rules=(*experience, *of_releases),
            device_limit_mib=1e9,
        )
        try:
            search(config, DEVICE, options)
            kept = True
        except InputError:
            kept = False
        assert kept == (not broken_rules(config, DEVICE)), strategy
        legal += kept
    assert 20 < legal < 100


def test_every_rule_says_what_can_be_changed_and_for_whom():
    for rule in LEGALITY_RULES:
        assert (rule.changes or rule.field) and set(rule.changes) <= {
            "dp", "tp", "pp", "ep", "cp", "op", "sp", "vpp", "mbs", "seq", "gbs",
        }  # fmt: skip
        assert rule.name in ASKED_BY_SEARCH or rule.source


def test_a_legal_file_passes_unchanged():
    config = read_config(ROOT / "config" / "pretrain_deepseek3_671b_1024p.yaml")
    assert require_legal(config, choose_device(config).spec) == config


def test_a_layer_wise_search_leaves_out_the_degrees_that_the_framework_does_not_start():
    """40 heads of LLaMA2-13B: TP 16 and Ulysses over 16 divide them nowhere; 8 and 4096 tokens over all rings do."""
    model = Registry.load().model("llama2-13b")
    rules = TrainingRules(framework=UNDER_GALVATRON, seq_length=4096)
    barred = barred_shapes(model, rules, DEVICE, 16)
    assert {(16, 1, 1), (1, 16, 1)} <= barred and not {(8, 1, 1), (1, 8, 1), (1, 1, 16), (8, 1, 2)} & barred
    kept = SpaceLimits(disable_cp=False, barred=barred).layers(16)
    assert kept and not {(each.tp, each.sp, each.cp) for each in kept} & barred
