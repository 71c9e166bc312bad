"""Files of Paddle's auto tuner are read, and what is wrong in them is named."""

from __future__ import annotations

import json

import pytest

from taylor.base.errors import InputError
from taylor.parsers.paddlenlp.auto_tuner import read_arguments, read_history, read_tuner_job
from tests.conftest import SHARED

FOLDER = SHARED / "data/paddle_auto_tuner"
needs_data = pytest.mark.skipif(not FOLDER.is_dir(), reason="the shared data are not here")

JOB = {
    "dp_degree": "auto",
    "pp_degree": [1, 2],
    "mp_degree": 4,
    "model_cfg": {
        "global_batch_size": 8, "hidden_size": 4096, "num_attention_heads": 32, "num_layers": 28, "vocab_size": 65024,
    },
    "run_cmd": {"micro_batch_size": ["./params.json", "per_device_train_batch_size"]},
    "max_time_per_task": 300,
}  # fmt: skip
ARGUMENTS = {
    "model_name_or_path": "llama", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4,
    "tensor_parallel_degree": 2, "sharding_parallel_degree": 4, "sharding": "stage2", "recompute": True,
    "max_seq_length": 2048,
}  # fmt: skip
HISTORY = """\
job_id,mp_degree,sharding_degree,pp_degree,dp_degree,micro_batch_size,use_recompute,acc_steps,\
interval_samples_per_second,max_mem_usage,error_info
4,4,2,1,1,4,True,2,4.0,26130,
3,8,1,1,1,8,False,1,,OOM,['Out of memory']
"""


@pytest.fixture
def written(tmp_path):
    def write(text, name="file.json"):
        path = tmp_path / name
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        return path

    return write


def test_a_job_says_its_model_and_its_space(written):
    job = read_tuner_job(written(JOB))
    assert (job.layers, job.hidden, job.global_batch) == (28, 4096, 8)
    assert (job.space["dp_degree"], job.space["pp_degree"], job.space["mp_degree"]) == ((), (1, 2), (4,))
    assert job.arguments == "./params.json"


def test_arguments_say_the_strategy(written):
    found = read_arguments(written(ARGUMENTS))
    strategy = found.strategy
    assert (strategy.tp, strategy.dp, strategy.op, strategy.global_batch) == (2, 4, 4, 32)
    assert (found.sharding_stage, found.recompute, found.tokens) == (2, "full", 2048)


def test_runs_that_failed_have_no_figures(written):
    good, bad = read_history(written(HISTORY, "history.csv"))
    assert good.step_ms == pytest.approx(1e3 * 16 / 4.0) and good.peak_mib == 26130
    assert good.strategy.dp == 2 and good.recompute == "full"
    assert bad.step_ms is None and bad.peak_mib is None and "Out of memory" in bad.error


@pytest.mark.parametrize(
    ("read", "text", "told"),
    [
        (read_tuner_job, "{}", "is no job"),
        (read_tuner_job, JOB | {"pp_degree": [{}]}, "pp_degree: must be auto"),
        (read_tuner_job, JOB | {"model_cfg": {}}, "model_cfg.num_layers: is missing"),
        (read_arguments, JOB, "contains no arguments"),
        (read_arguments, ARGUMENTS | {"sharding": "all"}, "sharding: must be stage1"),
        (read_history, "", "contains no run"),
        (read_history, HISTORY.replace("4,4,2", "4,many,2"), "line 2.mp_degree: must be a whole number"),
    ],
)
def test_what_is_wrong_is_named(written, read, text, told):
    with pytest.raises(InputError) as raised:
        read(written(text, "wrong.csv"))
    assert told in str(raised.value) and "wrong.csv" in str(raised.value)


@needs_data
def test_every_published_file_of_the_tuner_is_read():
    for file in sorted(FOLDER.iterdir()):
        if file.name.endswith("_params.json"):
            assert read_arguments(file).strategy.world_size >= 1
        elif file.suffix == ".json":
            assert read_tuner_job(file).layers in (28, 40)
    runs = read_history(FOLDER / "resume.csv")
    assert [run.step_ms is None for run in runs] == [False, False, False, True]
    assert {run.strategy.world_size for run in runs} == {8}
