"""Slurm's scripts: their suffixes, the variables that #SBATCH lines set, the tasks of srun, defaults by ``:=``."""

from __future__ import annotations

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.text.slurm import slurm_job, with_nodes

FLAGS = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
    "--micro-batch-size $MICRO_BATCH_SIZE --global-batch-size 64 --tensor-model-parallel-size 4 "
    "--pipeline-model-parallel-size 2 --padded-vocab-size 32000 --bf16"
)
SCRIPT = f"""#!/bin/bash
#SBATCH --job-name=a "quoted"      # awslabs/awsome-distributed-training writes remarks behind options
#SBATCH --nodes=2                   # number of nodes
##SBATCH --nodes=64
#SBATCH --exclusive --ntasks-per-node=8
#SBATCH --gres=gpu:h100:8

: "${{MICRO_BATCH_SIZE:=2}}"
srun -l python pretrain_gpt.py {FLAGS}
#SBATCH --nodes=99
"""


def job(tmp_path, text=SCRIPT, name="train.sbatch"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["train.sbatch", "train.slurm", "train.bash", "TRAIN.SBATCH", "train.sh"])
def test_a_script_is_read_whatever_starts_it(tmp_path, name):
    config = read_config(job(tmp_path, name=name))
    assert config.launcher == "megatron" and config.strategy.mbs == 2
    assert (config.strategy.dp, config.strategy.tp, config.strategy.pp) == (2, 4, 2)


@pytest.mark.parametrize(
    ("lines", "variables"),
    [
        ("#SBATCH -N4", {"SLURM_JOB_NUM_NODES": "4", "SLURM_NNODES": "4"}),
        ("#SBATCH -n 32", {"SLURM_NTASKS": "32", "SLURM_NPROCS": "32"}),
        ("#SBATCH --gpus-per-node=a100:8", {"SLURM_GPUS_PER_NODE": "a100:8", "SLURM_GPUS_ON_NODE": "8"}),
        ("#SBATCH --gres=gpu:4,nvme:1", {"SLURM_GPUS_ON_NODE": "4"}),
        ("#SBATCH --gres=nvme:1,gpu:h100:4", {"SLURM_GPUS_ON_NODE": "4"}),
        ("#SBATCH --exclusive --cpus-per-task 12", {"SLURM_CPUS_PER_TASK": "12"}),
        ("#SBATCH --nodes=2-4", {}),
        ("#SBATCH --nodes=$N", {}),
        ("#SBATCH --nodes=$N --ntasks-per-node=8", {"SLURM_NTASKS_PER_NODE": "8"}),
        ("#SBATCH --ntasks='4'\t# --ntasks=8", {"SLURM_NTASKS": "4", "SLURM_NPROCS": "4"}),
        ("echo\n#SBATCH --nodes=2", {}),
        ("  # a remark\n#SBATCH --nodes=2", {"SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2"}),
    ],
)  # fmt: skip
def test_the_lines_set_the_variables_that_slurm_sets(lines, variables):
    assert dict(slurm_job(lines).variables) == variables


@pytest.mark.parametrize(
    ("start", "ranks"),
    [
        ("srun python", 16),
        ("srun --ntasks-per-node=4 --nodes=4 python", 16),
        ("srun -l --ntasks=8 python", 8),
        ("srun -n 8 python", 8),
        ("srun -N4 -n32 numactl -N 0 python", 32),
        ("srun --cpus-per-task 4 bash -c 'RANK=$SLURM_PROCID python", 16),
        ("srun torchrun --nproc_per_node 4 --nnodes $SLURM_JOB_NUM_NODES", 8),
        ("srun torchrun --nproc_per_node ${SLURM_GPUS_ON_NODE} --nnodes ${SLURM_NNODES:-1}", 16),
    ],
)
def test_the_ranks_are_those_that_slurm_starts(tmp_path, start, ranks):
    text = SCRIPT.replace("srun -l python", start).replace("--bf16", "--bf16'" if "'" in start else "--bf16")
    config = read_config(job(tmp_path, text))
    assert config.strategy.dp * 8 == ranks and not any("assumed" in note for note in config.notes)


@pytest.mark.parametrize(
    "start",
    ["srun torchrun", "srun -l python -m torch.distributed.run", "srun accelerate launch", "srun -n $UNSET python"],
)
def test_ranks_that_neither_srun_nor_a_line_says_are_not_taken_from_the_lines(tmp_path, start):
    assert any(
        "does not say how many ranks" in note
        for note in read_config(job(tmp_path, SCRIPT.replace("srun -l python", start))).notes
    )


def test_what_the_user_states_goes_before_the_lines(tmp_path):
    from taylor.parsers.text.shell_start import parse_start, started

    text = SCRIPT.replace("srun -l python", "srun torchrun --nproc_per_node 8 --nnodes $SLURM_JOB_NUM_NODES")
    file, start = parse_start(str(job(tmp_path, text)), ["SLURM_JOB_NUM_NODES=4", "MICRO_BATCH_SIZE=1"])
    with started(start):
        config = read_config(file)
    assert (config.strategy.dp, config.strategy.mbs) == (4, 1)


def test_a_copy_for_other_ranks_states_its_nodes(tmp_path):
    config = read_config(job(tmp_path))
    launch, _ = launcher_of(config).launch_of(config).with_ranks(32)
    assert "#SBATCH --nodes=4                   # number" in launch.text and "##SBATCH --nodes=64" in launch.text
    assert launch.flags.world_size() == 32
    config = read_config(job(tmp_path, SCRIPT.replace("#SBATCH --nodes=2 ", "#")))
    with pytest.raises(InputError, match="#SBATCH: do not let it start 32 ranks; state --nodes"):
        launcher_of(config).launch_of(config).with_ranks(32)
    assert with_nodes("#SBATCH --ntasks=8\n", 4) is None
