"""Small runs of scripts: the sizes that they keep to, the flags that they end with, and what their logs tell.

The scripts are one command each, so that the flags of what is written are read here with shlex alone.
"""

from __future__ import annotations

import itertools
import math
import shlex
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from taylor.base.errors import InputError
from taylor.parsers.megatron.recompute import stated_modules
from taylor.parsers.megatron.run_log import read_log
from taylor.parsers.megatron.script import Script
from taylor.parsers.megatron.small_run import job_sizes, planned_job, small_run, whole_run
from taylor.parsers.megatron.switches import (
    BY_HEADS,
    BY_RING,
    MC2,
    OVERLAP,
    PERMUTE,
    planned_flags,
    small_flags,
    switches,
)
from taylor.parsers.small_run import Machines, PlannedJob, ProfiledRun, ProfiledSteps, RunLog, RunSetting
from taylor.parsers.text.shell_source import ShellScript
from taylor.pipeline.plan import FULL, PipelinePlan

PLAIN = {"num-layers": 8, "hidden-size": 1024, "num-attention-heads": 16, "seq-length": 4096, "micro-batch-size": 1}
MINDSPEED = {**PLAIN, "use-fused-rmsnorm": True}


def script(flags: dict[str, Any], start: str = "torchrun --nnodes 2 --nproc_per_node 8") -> Script:
    words = [f"--{name}" if value is True else f"--{name} {value}" for name, value in flags.items()]
    return Script(ShellScript(f"{start} pretrain_gpt.py {' '.join(words)}\n", Path("start.sh")))


def told(launch: Any) -> dict[str, Any]:
    """The flags behind the program's name, by shlex; several words as a tuple, none as True."""
    words = shlex.split(launch.text.replace("\\\n", " "))
    found: dict[str, Any] = {}
    name = ""
    for word in words[words.index("pretrain_gpt.py") + 1 :]:
        if word.startswith("--"):
            name = word[2:]
            assert name not in found
            found[name] = True
        else:
            found[name] = word if found[name] is True else (*_many(found[name]), word)
    return found


def _many(value: Any) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else (value,)


def started(launch: Any) -> dict[str, str]:
    """The options of torchrun."""
    words = shlex.split(launch.text.replace("\\\n", " "))
    before = words[1 : words.index("pretrain_gpt.py")]
    return {name.lstrip("-").replace("_", "-"): value for name, value in zip(before[::2], before[1::2], strict=True)}


def test_a_script_without_parallel_flags_splits_nothing_and_asks_for_nothing() -> None:
    sizes = job_sizes(script(PLAIN, "python"))
    assert sizes.own == RunSetting(seq=4096, layers=8)
    assert (sizes.tp_ways, sizes.top_k, sizes.expert_groups, sizes.cp_ways) == (16, 1, 1, 0)
    assert (sizes.nodes, sizes.per_node, sizes.batch) == (None, None, None)
    assert not sizes.hidden_reduction and not sizes.dense_together
    bare = job_sizes(script({name: value for name, value in PLAIN.items() if name != "micro-batch-size"}))
    assert bare.own.mbs == 1


def test_sizes_are_those_of_the_flags() -> None:
    for experts, groups, tp, cp, pp in itertools.product((None, 1, 64), (None, 4, 12), (1, 2), (1, 2), (1, 4)):
        flags: dict[str, Any] = {
            **PLAIN, "num-attention-heads": 24, "tensor-model-parallel-size": tp, "context-parallel-size": cp,
            "pipeline-model-parallel-size": pp, "expert-model-parallel-size": 2, "micro-batch-size": 3,
            "moe-router-topk": 6, "moe-router-num-groups": 8, "overlap-grad-reduce": True, "global-batch-size": 96,
        }  # fmt: skip
        if experts is not None:
            flags["num-experts"] = experts
        if groups is not None:
            flags |= {"group-query-attention": True, "num-query-groups": groups}
        sizes = job_sizes(script(flags))
        routed = experts == 64
        assert sizes.own == RunSetting(
            tp=tp, cp=cp, ep=2, mbs=3, seq=4096, experts=experts or 1, layers=8, pp=pp,
            dp=max(1, 16 // (tp * cp * pp)), dense=0,
        )  # fmt: skip
        ways = [way for way in range(1, 25) if 24 % way == 0 and (groups or 24) % way == 0]
        assert sizes.tp_ways == max(ways) == math.gcd(24, groups or 24)
        assert (sizes.top_k, sizes.expert_groups) == ((6, 8) if routed else (1, 1))
        assert (sizes.nodes, sizes.per_node, sizes.batch) == (2, 8, 96) and sizes.hidden_reduction


def test_groups_of_heads_count_only_where_attention_is_grouped() -> None:
    assert job_sizes(script({**PLAIN, "num-query-groups": 4})).tp_ways == 16
    assert job_sizes(script({**PLAIN, "group-query-attention": True})).tp_ways == 16


def test_experts_that_say_no_more_are_one_a_token_and_one_group() -> None:
    sizes = job_sizes(script({**PLAIN, "num-experts": 8}))
    assert (sizes.own.experts, sizes.top_k, sizes.expert_groups, sizes.own.dense) == (8, 1, 1, 0)


@pytest.mark.parametrize(
    ("start", "nodes", "cards", "dp"),
    [
        ("torchrun --nproc_per_node 8", 1, 8, 4),
        ("torchrun --nnodes 4 --nproc_per_node 2", 4, 2, 4),
        ("msrun --worker_num 32 --local_worker_num 8", 4, 8, 16),
        ("msrun --worker_num 4", 1, 8, 2),
        ("torchrun --nnodes 1 --nproc_per_node 1", 1, 1, 1),
    ],
)
def test_machines_are_those_that_the_script_starts(start: str, nodes: int, cards: int, dp: int) -> None:
    sizes = job_sizes(script({**PLAIN, "tensor-model-parallel-size": 2}, start))
    assert (sizes.nodes, sizes.per_node, sizes.own.dp) == (nodes, cards, dp)


def test_heads_bound_context_parallelism_where_it_splits_them() -> None:
    """MindSpeed-LLM c77308a1 context_parallel_feature.py:24: ``--context-parallel-algo`` is a ring by default."""
    for base, algorithm in itertools.product((PLAIN, MINDSPEED), (None, "ulysses_cp_algo", "megatron_cp_algo")):
        flags = {**base, **({} if algorithm is None else {"context-parallel-algo": algorithm})}
        mindspeed = base is MINDSPEED or algorithm is not None
        splits = algorithm == "ulysses_cp_algo"
        sizes = job_sizes(script(flags))
        assert sizes.cp_ways == (16 if splits else 0) and sizes.dense_together is mindspeed


def test_dense_layers_stand_in_front_or_are_refused() -> None:
    base = {**MINDSPEED, "num-experts": 8, "num-layers": 4}
    for first in range(4):
        sizes = job_sizes(script({**base, "first-k-dense-replace": first}))
        assert (sizes.own.dense, sizes.least_dense, sizes.least_layers) == (first, min(first, 1), 1 + min(first, 1))
    for kinds in itertools.product((0, 1), repeat=4):
        flags = {**PLAIN, "num-layers": 4, "num-experts": 8, "moe-layer-freq": f"'[{','.join(map(str, kinds))}]'"}
        experts_end = any(kinds[at] == 1 and kinds[at + 1] == 0 for at in range(3))
        if not any(kinds):
            continue
        if experts_end:
            with pytest.raises(InputError, match="kinds of layers that small runs cannot keep"):
                job_sizes(script(flags))
        else:
            assert job_sizes(script(flags)).own.dense == kinds.index(1)
    assert job_sizes(script({**PLAIN, "moe-layer-freq": 2})).own.dense == 0


def wanted_small(flags: dict[str, Any], run: RunSetting, mindspeed: bool) -> dict[str, str | bool | tuple[str, ...]]:
    """Every flag that a small run of 16 cards is to have beside those that it keeps."""
    stage = 16 // run.pp
    wanted: dict[str, Any] = {
        "num-layers": run.layers, "seq-length": run.seq, "micro-batch-size": run.mbs,
        "global-batch-size": run.dp * run.pp * run.mbs, "recompute-granularity": "full", "recompute-method": "block",
        "recompute-num-layers": run.layers // run.pp, "train-iters": 13, "use-distributed-optimizer": True,
        "overlap-grad-reduce": True, "ddp-bucket-size": 1, "logging-level": 20, "profile": True,
        "profile-step-start": 9, "profile-step-end": 13,
        "profile-ranks": tuple(str(rank) for rank in range(0, 16, stage)),
    }  # fmt: skip
    if run.pp == 1:
        wanted["profile-ranks"] = "0"
    degrees = {"tensor-model-parallel-size": run.tp, "pipeline-model-parallel-size": run.pp,
               "context-parallel-size": run.cp, "expert-model-parallel-size": run.ep,
               "num-experts": run.experts}  # fmt: skip
    wanted |= {name: size for name, size in degrees.items() if size > 1 or name in flags}
    if run.tp > 1:
        wanted["sequence-parallel"] = True
    if mindspeed:
        wanted |= dict.fromkeys(("profile-with-cpu", "profile-with-memory", "profile-record-shapes"), True)
        wanted |= {"profile-level": "level1", "profile-save-path": "/logs"}
    else:
        wanted |= {"use-pytorch-profiler": True, "pytorch-profiler-collect-shapes": True, "tensorboard-dir": "/logs"}
    return {name: value if value is True or isinstance(value, tuple) else str(value) for name, value in wanted.items()}


DROPPED = {
    "load": "/old", "save": "/new", "recompute-granularity": "full",
    "recompute-method": "uniform", "recompute-num-layers": 1, "num-layers-per-virtual-pipeline-stage": 1,
}  # fmt: skip


@pytest.mark.parametrize("mindspeed", [False, True])
@pytest.mark.parametrize("stated", [False, True])
def test_a_small_run_has_the_flags_of_its_sizes_and_of_the_profile_and_keeps_the_rest(
    mindspeed: bool, stated: bool
) -> None:
    flags: dict[str, Any] = {**(MINDSPEED if mindspeed else PLAIN), "lr": "1e-4"}
    if stated:
        flags |= {"tensor-model-parallel-size": 8, "pipeline-model-parallel-size": 2, "context-parallel-size": 1,
                  "expert-model-parallel-size": 1, "num-experts": 1, **DROPPED}  # fmt: skip
        flags |= {"num-layer-list": "1,3", "auto-settings": True} if mindspeed else {}
    launch, dropped = script(flags), (*DROPPED, "num-layer-list", "auto-settings")
    for tp, pp, experts in itertools.product((1, 2), (1, 2, 4), (1, 8)):
        run = RunSetting(tp=tp, pp=pp, dp=16 // (tp * pp), ep=min(2, experts), experts=experts, mbs=3, seq=512,
                      layers=2 * pp)  # fmt: skip
        small = small_run(launch, ProfiledRun(run, Machines(2, 8), ProfiledSteps(Path("/logs"), 4, 9)))
        kept = {name: value if value is True else str(value) for name, value in flags.items() if name not in dropped}
        assert told(small) == {**kept, **wanted_small(flags, run, mindspeed)}


@pytest.mark.parametrize("mindspeed", [False, True])
def test_a_run_of_modules_recomputes_these_alone_or_nothing(mindspeed: bool) -> None:
    flags = {
        **(MINDSPEED if mindspeed else PLAIN),
        "recompute-granularity": "selective",
        "recompute-modules": "mlp moe",
    }
    run = RunSetting(tp=2, dp=8, seq=512)
    for again in ((), ("mlp",), ("core_attn",), None):
        small = told(
            small_run(script(flags), ProfiledRun(run, Machines(2, 8), ProfiledSteps(Path("/logs"), 4, 9), (), again))
        )
        wanted = wanted_small(flags, run, mindspeed)
        if again is not None:
            wanted = {name: value for name, value in wanted.items() if not name.startswith("recompute")}
            wanted |= {"recompute-granularity": "selective", "recompute-modules": again[0]} if again else {}
        # Beside full recompute the modules of the file have no effect.
        kept = {"recompute-modules": ("mlp", "moe")} if again is None else {}
        rest = {
            name: value if value is True else str(value) for name, value in flags.items() if "recompute" not in name
        }
        assert small == {**rest, **kept, **wanted}


def test_modules_are_those_of_the_network_and_of_megatrons_rules() -> None:
    """Megatron-LM core_v0.12.1 megatron/core/transformer/transformer_config.py:728-744."""
    routed = {"num-experts": 8}
    for more, wanted in (
        ({}, {"core_attn", "layernorm", "mlp"}),
        ({"multi-latent-attention": True}, {"core_attn", "layernorm", "mla_up_proj", "mlp"}),
        (routed, {"core_attn", "layernorm", "moe"}),
        ({**routed, "first-k-dense-replace": 1}, {"core_attn", "layernorm", "moe", "mlp"}),
        ({**routed, "moe-layer-freq": "'([0]*2+[1]*6)'"}, {"core_attn", "layernorm", "moe", "mlp"}),
        ({**routed, "moe-grouped-gemm": True}, {"core_attn", "layernorm", "moe", "moe_act"}),
        ({**routed, "overlap-moe-expert-parallel-comm": True}, {"core_attn", "layernorm"}),
        (
            {**routed, "moe-shared-expert-intermediate-size": 64},
            {"core_attn", "layernorm", "moe", "shared_experts"},
        ),
        (
            {**routed, "moe-shared-expert-intermediate-size": 64, "moe-shared-expert-overlap": True},
            {"core_attn", "layernorm", "moe"},
        ),
    ):  # fmt: skip
        assert set(stated_modules(flags_of({**PLAIN, **more}))) == wanted


def test_a_plan_by_module_is_written_as_selective_recompute_of_it() -> None:
    run = RunSetting(pp=2, dp=8, seq=4096, layers=8)
    rows = ((4, 4),)
    named = {"full": ((0, 0),), "mlp": ((0, 0),), "mlp+core_attn": rows}
    plan = planned_job(script(PLAIN), run, PlannedJob(PipelinePlan({"layer": rows}, named)))
    found = told(plan)
    assert found["recompute-granularity"] == "selective" and found["recompute-modules"] == ("mlp", "core_attn")
    unused = PipelinePlan({"layer": rows}, {"full": ((1, 1),), "mlp": ((0, 0),)})
    found = told(planned_job(script({**PLAIN, "recompute-modules": "mlp"}), run, PlannedJob(unused)))
    assert found["recompute-granularity"] == "full" and found["recompute-num-layers"] == "1"


def test_a_small_run_takes_all_cards_and_starts_them_where_the_script_says_how_many() -> None:
    run = RunSetting(dp=4, seq=64, layers=1)
    with pytest.raises(ValueError, match="all the cards"):
        small_run(script(PLAIN), ProfiledRun(run, Machines(2, 8), ProfiledSteps(Path("x"))))
    for nodes, cards in ((1, 4), (2, 2), (4, 1)):
        start = "torchrun --nnodes 8 --nproc_per_node 2 --master_addr old --node_rank 7"
        machines = Machines(nodes, cards, "here", 6000, 0)
        small = small_run(script(PLAIN, start), ProfiledRun(run, machines, ProfiledSteps(Path("x"))))
        options = started(small)
        assert int(options["nnodes"]) * int(options["nproc-per-node"]) == 4
        assert (options["master-addr"], options["node-rank"]) == ("here", "0") and "master-port" not in options
    kept = small_run(script(PLAIN, start), ProfiledRun(run, Machines(2, 2), ProfiledSteps(Path("x"))))
    assert (started(kept)["master-addr"], started(kept)["node-rank"]) == ("old", "7")


def test_positions_warm_up_and_dense_layers_follow_the_sizes() -> None:
    def small(flags: dict[str, Any], **sizes: int) -> dict[str, Any]:
        run = RunSetting(**{"dp": 16, "seq": 512, "layers": 2, **sizes})
        return told(small_run(script(flags), ProfiledRun(run, Machines(2, 8), ProfiledSteps(Path("x")))))

    for positions, seq in itertools.product((511, 512, 513), (512,)):
        found = small({**PLAIN, "max-position-embeddings": positions}, seq=seq)
        assert found["max-position-embeddings"] == str(max(positions, seq))
    assert "max-position-embeddings" not in small(PLAIN)
    assert small({**PLAIN, "lr-warmup-iters": 500})["lr-warmup-iters"] == "1" and "lr-warmup-iters" not in small(PLAIN)
    experts = {**PLAIN, "num-experts": 8}
    assert small({**experts, "first-k-dense-replace": 2}, dense=1, experts=8)["first-k-dense-replace"] == "1"
    assert eval(small(experts, dense=1, experts=8, layers=3)["moe-layer-freq"]) == [0, 1, 1]  # noqa: S307
    assert "moe-layer-freq" not in small(experts, experts=8)
    other = {"encoder-num-layers" if name == "num-layers" else name: value for name, value in PLAIN.items()}
    other = {"encoder-seq-length" if name == "seq-length" else name: value for name, value in other.items()}
    found = small(other)
    assert (found["encoder-num-layers"], found["encoder-seq-length"]) == ("2", "512")
    assert "num-layers" not in found and "seq-length" not in found


def plan_of(rows: list[list[int]], again: int = 0) -> PipelinePlan:
    return PipelinePlan(
        {"layer": tuple(map(tuple, rows))}, {FULL: tuple(tuple(min(again, n) for n in row) for row in rows)}
    )


def test_a_planned_job_says_every_chunk_in_the_words_that_its_launcher_has() -> None:
    run = RunSetting(tp=2, pp=2, dp=4, mbs=2)

    def planned(flags: dict[str, Any], rows: list[list[int]], batch: int | None = None) -> dict[str, Any]:
        return told(planned_job(script(flags), run, PlannedJob(plan_of(rows), batch=batch)))

    for base in (PLAIN, MINDSPEED):
        even = planned(base, [[4, 4]])
        assert even.pop("tensor-model-parallel-size") == even.pop("pipeline-model-parallel-size") == "2"
        assert even.pop("sequence-parallel") is even.pop("use-distributed-optimizer") is True
        stated = {name: value if value is True else str(value) for name, value in base.items()}
        assert even == {**stated, "micro-batch-size": "2"}
    assert "global-batch-size" not in planned(PLAIN, [[4, 4]])
    assert planned(PLAIN, [[4, 4]], 64)["global-batch-size"] == "64"
    assert planned(MINDSPEED, [[5, 3]])["num-layer-list"] == "5,3"
    assert planned(PLAIN, [[2, 2], [2, 2]])["num-virtual-stages-per-pipeline-rank"] == "2"
    by_chunk = planned({**PLAIN, "num-layers-per-virtual-pipeline-stage": 1}, [[2, 2], [2, 2]])
    assert by_chunk["num-layers-per-virtual-pipeline-stage"] == "2"
    assert not {"num-virtual-stages-per-pipeline-rank", "noop-layers"} & set(by_chunk)
    layout = planned(PLAIN, [[5, 3]])["pipeline-model-parallel-layout"]
    assert [part.replace("t*5", "ttttt").replace("t*3", "ttt").count("t") for part in layout.split("|")] == [5, 3]
    empty = planned(MINDSPEED, [[2, 1], [2, 3]])
    assert empty["num-layers-per-virtual-pipeline-stage"] == "3" and empty["num-layers"] == "12"
    # Chunks in the order of the model: 2, 1, 2, 3 layers and then what is empty of three.
    held = {at for at in range(12) if str(at) not in empty["noop-layers"].split(",")}
    assert [len([at for at in held if at // 3 == chunk]) for chunk in range(4)] == [2, 1, 2, 3]
    assert all(at % 3 < [2, 1, 2, 3][at // 3] for at in held)


def test_a_planned_job_of_one_tensor_rank_is_not_split_by_sequence() -> None:
    job = PlannedJob(plan_of([[4, 4]]))
    found = told(planned_job(script(PLAIN), RunSetting(pp=2, dp=8), job))
    assert "sequence-parallel" not in found and "tensor-model-parallel-size" not in found
    again = told(planned_job(script({**PLAIN, "tensor-model-parallel-size": 4}), RunSetting(pp=2, dp=8), job))
    assert again["tensor-model-parallel-size"] == "1"


@pytest.mark.parametrize(
    ("dense", "held", "says"),
    [
        (1, [5, 3], True),
        (4, [5, 3], True),
        (5, [5, 3], False),
        (6, [5, 3], False),
        (3, [4, 4], True),
        (4, [4, 4], False),
    ],
)
def test_dense_layers_that_fill_the_first_chunk_are_refused_where_mindspeed_refuses_them(
    dense: int, held: list[int], says: bool
) -> None:
    flags = {**MINDSPEED, "num-experts": 8, "first-k-dense-replace": dense}
    run, job = RunSetting(pp=2, dp=8, dense=dense, experts=8), PlannedJob(plan_of([held]))
    if not says:
        with pytest.raises(InputError, match="dense layers fill the first chunk"):
            planned_job(script(flags), run, job)
        return
    found = told(planned_job(script(flags), run, job))
    assert ("noop-layers" in found) == (held[0] != held[1]) and "num-layer-list" not in found


def test_a_whole_run_is_the_planned_job_logged_at_every_step() -> None:
    flags = {**PLAIN, "load": "/old", "save": "/new", "profile": True, "lr-warmup-fraction": 0.1, "lr-warmup-iters": 9}
    run, job = RunSetting(pp=2, dp=8), PlannedJob(plan_of([[4, 4]]))
    start = "torchrun --nnodes 2 --nproc_per_node 8 --node_rank 0"
    planned = told(planned_job(script(flags, start), run, job))
    whole = whole_run(script(flags, start), run, job, Machines(2, 8, node_rank=1), 30)
    changes = {"train-iters": "30", "log-interval": "1", "eval-iters": "0", "lr-warmup-iters": "1"}
    dropped = ("load", "save", "profile", "lr-warmup-fraction")
    assert told(whole) == {**{name: value for name, value in planned.items() if name not in dropped}, **changes}
    assert started(whole)["node-rank"] == "1"
    plain = told(whole_run(script(PLAIN), run, job, Machines(2, 8), 30))
    assert "lr-warmup-iters" not in plain and plain["train-iters"] == "30"


SWITCHED = {
    MC2: ("use-ascend-mc2",),
    PERMUTE: ("use-fused-moe-token-permute-and-unpermute", "moe-permute-fusion"),
    OVERLAP: ("moe-alltoall-overlap-comm",),
}


def test_switches_are_offered_as_mindspeed_s_checks_have_it() -> None:
    """MindSpeed 028de58c mindspeed/features_manager: tensor_parallel/mc2.py, moe/moe_alltoall_overlap.py,
    fusions/fused_moe_permute.py; MC2 beside grouped products: MindSpeed-LLM transformer_block.py."""
    options = {
        "num-experts": (None, 1, 8), "moe-grouped-gemm": (None, True), "moe-tp-extend-ep": (None, True),
        "moe-token-dispatcher-type": (None, "alltoall", "alltoall_seq"), "moe-permutation-async-comm": (None, True),
        "moe-expert-capacity-factor": (None, 1.5), "moe-pad-expert-input-to-capacity": (None, True),
    }  # fmt: skip
    extra: dict[str, Any]
    for chosen in itertools.product(*options.values()):
        given = {name: value for name, value in zip(options, chosen, strict=True) if value is not None}
        experts, dispatcher = given.get("num-experts", 1) > 1, given.get("moe-token-dispatcher-type", "allgather")
        offered = set()
        if not (experts and "moe-grouped-gemm" in given):
            offered.add(MC2)
        dropping = "moe-expert-capacity-factor" in given and "moe-pad-expert-input-to-capacity" not in given
        if experts and dispatcher != "allgather" and not dropping:
            offered.add(PERMUTE)
        if experts and "moe-grouped-gemm" in given:
            if dispatcher == "alltoall" and "moe-tp-extend-ep" not in given:
                offered.add(OVERLAP)
            if dispatcher == "alltoall_seq" and {"moe-tp-extend-ep", "moe-permutation-async-comm"} <= set(given):
                offered.add(OVERLAP)
        found = {each.name: each for each in switches(flags_of({**MINDSPEED, **given}))}
        assert set(found) == offered | {BY_HEADS}, given
        assert not switches(flags_of({name: value for name, value in {**PLAIN, **given}.items() if name in PLAIN}))
    for bar in ("use-ascend-coc", "use-pipe-experts", "unaligned-linear"):
        assert [each.name for each in switches(flags_of({**MINDSPEED, bar: True}))] == [BY_HEADS]
    routed = {**MINDSPEED, "num-experts": 8, "moe-grouped-gemm": True, "moe-token-dispatcher-type": "alltoall"}
    for name, words in SWITCHED.items():
        for word in (None, *words):
            extra = {} if word is None else {word: True}
            base = MINDSPEED if name == MC2 else routed
            one = {each.name: each for each in switches(flags_of({**base, **extra}))}[name]
            assert one.flag == f"--{words[0]}"
            assert one.on == (word is not None and name != MC2) and one.stays == (word is not None and name == MC2)
            assert one.apart == {MC2: (OVERLAP,), OVERLAP: (MC2,), PERMUTE: ()}[name]
            assert one.above == {MC2: ("tp",), OVERLAP: ("ep",), PERMUTE: ("experts",)}[name]


def flags_of(flags: dict[str, Any]) -> Any:
    return script(flags).flags


def test_a_run_has_a_switch_where_its_state_says_so_and_its_degree_is_split() -> None:
    for there in itertools.product((None, 0, 1), repeat=3):
        extra = {
            SWITCHED[name][min(at, len(SWITCHED[name]) - 1)]: True
            for name, at in zip(SWITCHED, there, strict=True)
            if at is not None
        }
        flags = flags_of({**MINDSPEED, **extra})
        in_file = {name: any(word in extra for word in words) for name, words in SWITCHED.items()}
        for tp, ep, experts in itertools.product((1, 2), (1, 2), (1, 8)):
            run = RunSetting(tp=tp, ep=ep, experts=experts)
            split = {MC2: tp > 1, OVERLAP: ep > 1, PERMUTE: experts > 1}
            for switched in ((), (MC2,), (PERMUTE, OVERLAP)):
                small = {name: (in_file[name] and name != MC2) != (name in switched) for name in SWITCHED}
                assert small_flags(flags, run, switched) == changes(extra, {n: small[n] and split[n] for n in small})
                states = dict.fromkeys(switched, True) | dict.fromkeys(set(SWITCHED) - set(switched), False)
                assert planned_flags(flags, run, states) == changes(extra, {n: states[n] and split[n] for n in states})
            assert planned_flags(flags, run, {}) == changes(extra, {n: in_file[n] and split[n] for n in in_file})


def changes(extra: dict[str, Any], on: dict[str, bool]) -> dict[str, bool]:
    """Flags to add, and those to take out."""
    wanted = {}
    for name, words in SWITCHED.items():
        there = [word for word in words if word in extra]
        if on[name] and not there:
            wanted[words[0]] = True
        if not on[name]:
            wanted |= dict.fromkeys(there, False)
    return wanted


def test_the_other_algorithm_of_context_parallelism_is_offered_where_its_heads_split() -> None:
    """MindSpeed 028de58c mindspeed/arguments.py:645-662: Ulysses asks that TP · CP divides the heads, a ring not."""
    heads = int(MINDSPEED["num-attention-heads"])
    for own, other, value in (
        (None, BY_HEADS, "ulysses_cp_algo"),
        ("ulysses_cp_algo", BY_RING, "megatron_cp_algo"),
        ("megatron_cp_algo", BY_HEADS, "ulysses_cp_algo"),
        ("hybrid_cp_algo", None, None),
    ):
        flags = flags_of({**MINDSPEED, **({} if own is None else {"context-parallel-algo": own})})
        found = {each.name: each for each in switches(flags)}
        assert {BY_RING, BY_HEADS} & found.keys() == ({other} if other else set())
        if other is None:
            continue
        one = found[other]
        assert one.flag == f"--context-parallel-algo {value}" and not one.on
        for tp, cp in itertools.product((1, 2, 3), (1, 2, 4)):
            run = RunSetting(tp=tp, cp=cp)
            assert one.may_be_on(run) == (cp > 1 and (other == BY_RING or heads % (tp * cp) == 0))
            set_to = {"context-parallel-algo": value} if cp > 1 else {}
            assert small_flags(flags, run, (other,)) == planned_flags(flags, run, {other: True}) == set_to
            # Releases differ in their default: a run says its own.
            kept = {"context-parallel-algo": own or "megatron_cp_algo"} if cp > 1 else {}
            assert small_flags(flags, run, ()) == planned_flags(flags, run, {other: False}) == kept
        # A run of fewer turns does not show a ring of more.
        assert one.is_shown_by(RunSetting(cp=4), RunSetting(cp=4)) and not one.is_shown_by(run, RunSetting(cp=8))
    assert not {BY_RING, BY_HEADS} & {
        each.name for each in switches(flags_of({**MINDSPEED, "position-embedding-type": "alibi"}))
    }


def test_a_log_tells_parameters_of_the_first_layer_of_each_kind_the_peak_and_the_later_steps() -> None:
    def bucket(count: int, *names: str) -> str:
        return f"Params for bucket 1 ({count} elements, {count} padded size):\n" + "".join(f"\t{n}\n" for n in names)

    text = (
        bucket(5, "module.embedding.word_embeddings.weight")
        + "".join(bucket(10 + at, f"module.decoder.layers.{at}.mlp.weight") for at in range(4))
        + bucket(30, "module.decoder.layers.0.a.weight", "module.decoder.layers.0.b.weight")
        + bucket(7, "module.output_layer.weight")
        + "[Rank 0] memory (MB) | allocated: 9.0 | max allocated: 12.5 | reserved: 99.0\n"
        + "max allocated: 3 |\n"
    )
    for dense in (0, 1, 3):
        log = read_log(text, dense)
        blocks = {block: list(names.values()) for block, names in log.parameters.items()}
        own = {"layer": [10 + dense]} | ({"dense": [10]} if dense else {})
        assert blocks == {"embedding": [5], "head": [7], **own}
        assert log.peak == 12.5 * 2**20 and log.step_ms is None
    first = bucket(5, "module.embedding.word_embeddings.weight")
    assert read_log(first).peak is None
    assert read_log("") == RunLog({}, None, None) and read_log("max allocated: 2 |") == RunLog({}, 2 * 2**20, None)
    for count in range(1, 8):
        steps = [100.0 / (1 + at) for at in range(count)]
        lines = "".join(f" elapsed time per iteration (ms): {each!r} |\n" for each in steps)
        settled = [each for at, each in enumerate(steps) if 2 * at >= count - 1]
        assert read_log(first + lines).step_ms == pytest.approx(median(settled))


@pytest.mark.parametrize("tuner", ["auto-tuning", "auto-settings"])
def test_neither_a_small_run_nor_a_plan_starts_the_other_tuner(tuner):
    manual = {tuner: True, f"{tuner}-work-dir": "./w", f"{tuner}-ranks": 64, f"{tuner}-log-level": "debug"}
    start = script({**MINDSPEED, **manual})
    sizes = job_sizes(start)
    assert sizes.job_ranks == 64 and sizes.own.ranks == 16
    setting = RunSetting(tp=2, seq=4096, dp=8)
    run = small_run(start, ProfiledRun(setting, Machines(2, 8), ProfiledSteps(Path("/w/profile"))))
    plan = planned_job(start, setting, PlannedJob(PipelinePlan({"layer": ((8,),)}, {})))
    for written in (run, plan):
        assert not [name for name in told(written) if name.startswith("auto")]
