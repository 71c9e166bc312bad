"""Planning with choices by saved tensor: what a user asks, sees, and is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import taylor  # noqa: E402
from taylor.base.errors import InputError  # noqa: E402
from taylor.cost_model.choices.tensor_sets import TensorSet  # noqa: E402
from taylor.dryrun import torch_backend  # noqa: E402
from taylor.dryrun.estimate import estimate_memory  # noqa: E402
from taylor.pipeline.plan import FULL, NONE  # noqa: E402
from taylor.pipeline_solver.check.checker import check  # noqa: E402
from taylor.pipeline_solver.model.options import SolveOptions  # noqa: E402
from taylor.pipeline_solver.model.problem import LayerChoice  # noqa: E402
from taylor.pipeline_solver.model.solution import OPTIMAL  # noqa: E402
from taylor.schemas.reading import read_request  # noqa: E402
from taylor.workflows.solving import solve_file as solving  # noqa: E402
from taylor.workflows.solving.solve_file import solve_file  # noqa: E402
from taylor.workflows.statement.options import AskedModules, FileJob, Outputs  # noqa: E402
from taylor.workflows.statement.stated_file import StatedFile  # noqa: E402
from taylor.workflows.statement.tensor_choices import MOST_SETS  # noqa: E402
from tests.parsers.trainer.files import LLAMA_FACTORY  # noqa: E402

SCRIPT = """\
torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --tensor-model-parallel-size 8 --sequence-parallel \\
    --pipeline-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 16 --seq-length 8192 \\
    --num-layers LAYERS --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --group-query-attention \\
    --num-query-groups 8 \\
    --vocab-size 128256 --swiglu --normalization RMSNorm --disable-bias-linear --bf16 --use-flash-attn \\
    --untie-embeddings-and-output-weights --position-embedding-type rope --max-position-embeddings 8192 \\
    --use-distributed-optimizer --transformer-impl transformer_engine MORE
"""
MARGIN = "30000"


def script(folder: Path, more: str = "", layers: int = 80) -> Path:
    file = folder / "pretrain.sh"
    file.write_text(SCRIPT.replace("MORE", more).replace("LAYERS", str(layers)), encoding="utf-8")
    return file


def asked(file: Path, **changes: Any) -> FileJob:
    return FileJob(file, dryrun=False, check=False, device="h100-80g", tensors=True, **changes)


def test_the_layers_of_a_job_are_offered_a_few_sets_that_are_named_in_the_first_lines(tmp_path: Path) -> None:
    stated = StatedFile.read(asked(script(tmp_path)))
    problem = stated.problem(estimate_memory(stated.running, stated.device))
    (kind,) = problem.free_kinds
    assert problem.choices == tuple(f"tensors_{number + 1}" for number in range(MOST_SETS))
    kept = [kind.activation_mib[name] for name in problem.choices]
    added = [kind.choices[name].forward + kind.choices[name].backward for name in problem.choices]
    assert kept == sorted(kept, reverse=True) and added == sorted(added)
    assert kind.activation_mib[NONE] > kept[0] > kept[-1] < kind.activation_mib[FULL] and added[0] < 1e-3
    (line, *_) = [line for line in stated.facts.head() if line.startswith("tensors_1 of dense layers")]
    assert "0 ms more, keeps" in line and "on the host; moved: input" in line
    assert any(line.startswith("offload: 80% of the 64 GB/s") for line in stated.facts.head())


@pytest.mark.slow
def test_a_plan_by_tensor_is_never_worse_than_by_module_and_offload_and_passes_the_checker(tmp_path: Path) -> None:
    file = script(tmp_path)
    plain = taylor.solve(file, device="h100-80g", recompute_modules=True, margin=MARGIN)
    finer = taylor.solve(file, device="h100-80g", recompute_modules=True, tensors=True, margin=MARGIN)
    assert plain.solution.status == finer.solution.status == OPTIMAL
    assert finer.step_ms < 0.95 * plain.step_ms and any(map(finer.plan.uses, ("tensors_1", "tensors_4")))
    assert check(finer.problem, finer.plan, finer.solution.objective) == []
    both = StatedFile.read(asked(file, modules=AskedModules(recompute=True)))
    problem = both.problem(estimate_memory(both.running, both.device))
    assert len(problem.choices) > MOST_SETS and problem.choices[-1] == f"tensors_{MOST_SETS}"


def test_without_a_link_to_the_host_tensors_are_kept_or_made_again_alone(tmp_path: Path) -> None:
    stated = StatedFile.read(FileJob(script(tmp_path), dryrun=False, device="ascend-910b", tensors=True))
    assert stated.tensors is not None
    found: list[TensorSet] = [one for sets in stated.tensors.sets.values() for one in sets]
    assert found and all(one.again and not one.moved and one.host_mib == 0.0 for one in found)
    problem = stated.problem(estimate_memory(stated.running, stated.device))
    assert not any(one.host_mib or one.forward for one in problem.free_kinds[0].choices.values())


@pytest.mark.parametrize("trained", [2, 30], ids=["few train", "most train"])
def test_layers_that_no_gradient_reaches_cost_the_same_under_every_choice(tmp_path: Path, trained: int) -> None:
    file = tmp_path / "lf.yaml"
    text = LLAMA_FACTORY.replace("full", f"freeze\nfreeze_trainable_layers: {trained}")
    further = "dataset: a\noutput_dir: b\ndisable_gradient_checkpointing: true"
    file.write_text(text.replace("deepspeed: ds.json  # beside the file", further), encoding="utf-8")
    stated = StatedFile.read(asked(file, world_size=8))
    unreached, reached = stated.problem(estimate_memory(stated.running, stated.device)).free_kinds
    assert (unreached.count, reached.count) == (36 - trained, trained)
    for name in ("tensors_1", "tensors_4"):
        assert unreached.activation_mib[name] == unreached.activation_mib[NONE] == 0.0
        assert unreached.choices[name] == LayerChoice()
        assert reached.activation_mib[name] < reached.activation_mib[NONE]


def test_a_plan_by_tensor_is_refused_where_it_would_be_written_before_anything_is_solved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solving, "_solve_unchecked", None)
    with pytest.raises(InputError, match=r"pretrain\.sh: --tensors: cannot be written .*; solve with -write n"):
        solve_file(asked(script(tmp_path)), SolveOptions(), Outputs(folder=tmp_path))


def test_jobs_whose_tensors_are_not_known_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (("a100-80g", 2), ("h100-80g", 2))
    with pytest.raises(InputError, match="this job has stages on several kinds of devices"):
        StatedFile.read(asked(script(tmp_path), stage_devices=rows))
    monkeypatch.setattr(torch_backend, "torch_version", lambda: None)
    with pytest.raises(InputError, match=r"--tensors: torch is not installed .*pip install"):
        StatedFile.read(asked(script(tmp_path)))


def test_requests_take_tensors() -> None:
    assert read_request({"command": "solve", "file": "a.sh", "tensors": True}).flags()["tensors"] is True
