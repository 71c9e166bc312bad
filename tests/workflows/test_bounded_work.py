"""A question or file within its fields' limits that would take gigabytes is refused before any work is done for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.pipeline.generators import MOST_PASSES, build_schedule
from taylor.pipeline.schedule import ScheduleSpec
from taylor.workflows.statement.schedules import require_schedule
from tests.conftest import ROOT

YAML = ROOT / "config" / "pretrain_llama3_70b.yaml"


def test_the_page_refuses_a_batch_that_makes_too_many_passes_by_field_value_and_limit(tmp_path):
    pytest.importorskip("starlette")
    from taylor.serve.question import Models, Question

    models, ask = Models(tmp_path), Question(model="llama3-70b", device="h100-80g", ranks=256, tp=8, pp=32)
    models.config(ask)  # the model is known from then on, and its file is not checked again
    ask = ask.model_copy(update={"gbs": 10_000_000})
    with pytest.raises(InputError, match=r"global batch: .*32 stages.*1,048,576.*\(found 10000000\)") as error:
        models.answer(ask)
    assert "at most 32,768" in str(error.value)


def test_one_micro_batch_above_the_limit_is_refused_and_the_limit_itself_is_not():
    config = read_config(YAML)
    strategy = config.strategy.replace(pp=4, vpp=1, micro_batches=2**15 + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taylor.workflows.statement.schedules.MOST_PASSES", 4 * 2**15)
        with pytest.raises(InputError, match="global batch"):
            require_schedule(config.replace(strategy=strategy))
        require_schedule(config.replace(strategy=strategy.replace(micro_batches=2**15)))


@pytest.mark.parametrize("stages, chunks", [(1, 1), (1024, 1), (32, 64)])
def test_no_order_of_more_passes_is_built(stages, chunks):
    name = "1f1b" if chunks == 1 else "megatron-interleaved"
    with pytest.raises(ValueError, match="forward passes, above 1,048,576"):
        build_schedule(ScheduleSpec(name), stages, chunks, MOST_PASSES // (stages * chunks) + stages)


@pytest.mark.parametrize("words", [("-evaluate", "y"), ("-t", "5")])
def test_a_file_of_a_million_micro_batches_is_refused_at_once(run_tool, tmp_path, words):
    text = YAML.read_text(encoding="utf-8").replace("&micro_batch_num 128", "&micro_batch_num 1000000")
    (tmp_path / "large.yaml").write_text(text)
    done = run_tool("pipeline_parallel.py", "-yaml", "large.yaml", "-dryrun", "n", "-check", "n", *words)
    assert done.returncode == 2 and "large.yaml: global batch: is too large to plan" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_a_process_is_limited_in_memory():
    pytest.importorskip("resource")
    code = "from taylor.base.memory_limit import limit_memory; limit_memory(1 << 29); bytearray(1 << 30)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "MemoryError" in done.stderr
