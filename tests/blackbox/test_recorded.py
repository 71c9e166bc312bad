"""What small runs leave, read: tensors, collectives and logs, real ones where they are here."""

from __future__ import annotations

import pytest

from taylor.base.errors import InputError
from taylor.blackbox.collective_lines import ALL_REDUCE
from taylor.blackbox.group_laws import buffer_of
from taylor.blackbox.laws import Fitter
from taylor.blackbox.small_runs import plan_small_runs
from taylor.parsers.megatron.run_log import read_log
from taylor.parsers.profiles.allocations import read_allocations
from taylor.parsers.profiles.ascend import KERNELS
from taylor.parsers.profiles.operators import read_operators
from taylor.parsers.profiles.transfers import read_transfers
from taylor.parsers.small_run import JobSizes, Machines, RunSetting
from tests.conftest import SHARED

REAL = SHARED / "data" / "ascend_profiles" / "torch_npu_level1" / "rank0_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
real = pytest.mark.skipif(not REAL.is_dir(), reason="real profiles are not here")

LOG = """\
INFO:megatron.core.distributed.param_and_grad_buffer:Number of buckets for gradient all-reduce / reduce-scatter: 3
Params for bucket 1 (4096 elements, 4096 padded size):
\tmodule.output_layer.weight
Params for bucket 2 (640 elements, 1024 padded size, 0 param(s) with extra main_grads):
\tmodule.decoder.layers.0.mlp.my_gate.weight (param.main_grad.dtype=torch.float32)
Params for bucket 3 (4096 elements, 4096 padded size):
\tmodule.embedding.word_embeddings.weight
[Rank 0] (after 2 iterations) memory (MB) | allocated: 10.0 | max allocated: 12.5 | reserved: 14.0
 iteration        1/       3 | elapsed time per iteration (ms): 900.0 |
 iteration        2/       3 | elapsed time per iteration (ms): 101.0 |
 iteration        3/       3 | elapsed time per iteration (ms): 103.0 |
"""


def test_a_log_tells_parameters_by_block_and_name_the_peak_and_the_steady_step():
    told = read_log(LOG)
    assert {block: list(each.values()) for block, each in told.parameters.items()} == {
        "head": [4096],
        "layer": [640],
        "embedding": [4096],
    }
    assert told.peak == round(12.5 * 2**20) and told.step_ms == 102.0


@real
def test_collectives_of_a_real_profile_are_those_of_its_kernels_and_sent_what_a_ring_sends():
    transfers = read_transfers(REAL / "communication.json")
    names = {one.name for one in read_operators(REAL / KERNELS).samples}
    first = transfers["hcom_allReduce__586_0_1"]
    assert set(transfers) <= names
    # Eight ranks: each sent seven pieces twice, of a buffer of 8 x 2.046 MB.
    assert buffer_of(ALL_REDUCE, 8, first.bytes) == pytest.approx(16.37e6, rel=1e-3)
    assert 0 < first.ns < 79.1e6  # Waiting for others is left out.


@real
def test_tensors_of_a_real_profile_are_read_with_those_that_outlive_it():
    tensors = read_allocations(REAL / "operator_memory.csv")
    assert len(tensors) > 150 and any(one.end_ns is None for one in tensors)
    assert all(one.total >= one.bytes > 0 for one in tensors)
    assert list(tensors) == sorted(tensors, key=lambda one: one.start_ns)


def test_damaged_tables_are_refused_by_name(tmp_path):
    (tmp_path / "communication.json").write_text('{"step1": {"collective": {"a@1": {}}}}')
    with pytest.raises(InputError, match="contains no collectives"):
        read_transfers(tmp_path / "communication.json")
    header = "Name,Size(KB),Allocation Time(us),Release Time(us),Allocation Total Allocated(MB)\n"
    (tmp_path / "operator_memory.csv").write_text(header + "aten::empty,many,1.5,2.5,3\n")
    with pytest.raises(InputError, match="row 2"):
        read_allocations(tmp_path / "operator_memory.csv")


def test_a_tensor_of_scores_grows_with_the_square_of_the_sequence():
    job = JobSizes(RunSetting(tp=8, seq=8192, layers=32, pp=8, dp=4), tp_ways=32, nodes=32, per_node=8)
    runs = [one.setting for one in plan_small_runs(job, Machines(2, 8)).runs]
    fit = Fitter(runs).fit([2 * 32 * run.mbs * run.seq**2 // (run.tp * run.cp) for run in runs])
    assert fit.settled and fit.at(RunSetting(tp=8, cp=4, mbs=2, seq=32768)) == 2 * 32 * 2 * 32768**2 // 32
