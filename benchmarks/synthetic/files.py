"""The files of a synthetic profile, in the forms of the real profilers, with a label in each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taylor.base.files import write_atomic

LABEL = "SYNTHETIC: written by Taylor from given times, nothing was measured"
EPOCH_US = 1_700_000_000_000_000
FIRST_STEP = 10
_GPU_NAMES = {
    "FlashAttentionScore": "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(Flash_fwd_params)",
    "FlashAttentionScoreGrad": (
        "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8>>(Flash_bwd_params)"
    ),
    "RmsNorm": "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<Kernel_traits>(ForwardKernelParams)",
    "RmsNormGrad": (
        "void transformer_engine::normalization::rmsnorm_bwd_tuned_kernel<Kernel_traits>(BackwardKernelParams)"
    ),
    "hcom_send_": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "hcom_receive_": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "hcom_allReduce_": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "hcom_alltoallv_": "ncclDevKernel_AllToAllv(ncclDevKernelArgsStorage<4096ul>)",
    "hcom_reduceScatter_": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}
_GPU_COLLECTIVES = {
    "hcom_send_": "send",
    "hcom_receive_": "recv",
    "hcom_allReduce_": "allreduce",
    "hcom_alltoallv_": "alltoallv",
    "hcom_reduceScatter_": "reduce_scatter",
}


@dataclass(frozen=True)
class SyntheticKernel:
    """One kernel: type as Ascend names it, start and length in ms, step, and whether it communicates."""

    kind: str
    start_ms: float
    length_ms: float
    step: int
    communicates: bool


@dataclass
class SyntheticRank:
    """One rank's kernels, its tasks (name, start and end in ms), and its clock's offset, ns."""

    rank: int
    skew_ns: int
    kernels: list[SyntheticKernel]
    tasks: list[tuple[str, float, float]] = field(default_factory=list)

    def rows(self) -> Iterator[tuple[SyntheticKernel, int, int]]:
        """Kernels by start, with start and length in ns on the rank's clock."""
        base = EPOCH_US * 1000 + self.skew_ns
        for kernel in sorted(self.kernels, key=lambda each: each.start_ms):
            start = round(kernel.start_ms * 1e6)
            yield kernel, base + start, round((kernel.start_ms + kernel.length_ms) * 1e6) - start


def write_label(folder: Path, config: str, times: object) -> Path:
    """Say in the folder that its profiles are synthetic, and of what."""
    return write_atomic(folder / "SYNTHETIC.txt", f"{LABEL}.\nconfiguration: {config}\n{times}\n")


def write_ascend_rank(
    folder: Path, rank: SyntheticRank, memory_mib: tuple[float, float] | None, *, trace_only: bool = False
) -> Path:
    """Write one rank in the layout of the Ascend profiler; returns its ``ASCEND_PROFILER_OUTPUT``."""
    top = folder / f"synthetic-rank{rank.rank:05d}_20240101000000000_ascend_ms"
    output = top / "ASCEND_PROFILER_OUTPUT"
    write_atomic(top / f"profiler_info_{rank.rank}.json", json.dumps({"rank_id": rank.rank, "synthetic": LABEL}) + "\n")
    write_atomic(top / "profiler_metadata.json", json.dumps({"synthetic": LABEL}) + "\n")
    if trace_only:
        write_atomic(output / "trace_view.json", _trace_view(rank))
    else:
        write_atomic(output / "kernel_details.csv", _kernel_details(rank))
    if memory_mib is not None:
        write_atomic(output / "memory_record.csv", _memory_record(rank, *memory_mib))
    return output


def write_kineto_rank(folder: Path, rank: SyntheticRank, *, task_ranges: bool = False) -> Path:
    """Write one rank as a Kineto trace, on demand with ranges that name tasks and attention that is not fused."""
    plain = {"FlashAttentionScore", "FlashAttentionScoreGrad"} if task_ranges else set()
    base = EPOCH_US * 1000
    lines = []
    bounds: dict[int, tuple[int, int]] = {}
    for number, (kernel, start, length) in enumerate(rank.rows()):
        arguments: dict[str, Any] = {"device": 0, "stream": 20 if kernel.communicates else 7, "correlation": number}
        if kernel.kind in _GPU_COLLECTIVES:
            arguments["Collective name"] = _GPU_COLLECTIVES[kernel.kind]
        name = "void bmm_softmax()" if kernel.kind in plain else _GPU_NAMES.get(kernel.kind)
        lines.append(
            json.dumps(
                {
                    "ph": "X",
                    "cat": "kernel",
                    "name": name or f"void {kernel.kind}_kernel()",
                    "pid": 0,
                    "tid": arguments["stream"],
                    "ts": (start - base) / 1000,
                    "dur": length / 1000,
                    "args": arguments,
                }
            )
        )
        low, high = bounds.get(kernel.step, (start, start))
        bounds[kernel.step] = min(low, start), max(high, start + length)
    lines += [
        json.dumps(
            {
                "ph": "X",
                "cat": "gpu_user_annotation",
                "name": f"ProfilerStep#{FIRST_STEP + step}",
                "pid": 0,
                "tid": 7,
                "ts": (low - base) / 1000,
                "dur": (high - low) / 1000,
                "args": {},
            }
        )
        for step, (low, high) in bounds.items()
    ]
    if task_ranges:
        for name, begin_ms, end_ms in rank.tasks:
            begin, end = (round(time * 1e6) + rank.skew_ns for time in (begin_ms, end_ms))
            # Each stream has a range of its own; the one of the transfers begins with the wait for the receive.
            lines += [
                json.dumps(
                    {
                        "ph": "X",
                        "cat": "gpu_user_annotation",
                        "name": f"## {name} ##",
                        "pid": 0,
                        "tid": tid,
                        "ts": (begin - early) / 1000,
                        "dur": (end - begin + early) / 1000,
                        "args": {},
                    }
                )
                for tid, early in ((7, 0), (20, 50_000))
            ]
    head = {
        "schemaVersion": 1,
        "synthetic": LABEL,
        "distributedInfo": {"backend": "nccl", "rank": rank.rank},
        "baseTimeNanoseconds": base,
    }
    text = json.dumps(head)[:-1] + ', "traceEvents": [\n' + ",\n".join(lines) + "\n]}\n"
    return write_atomic(folder / f"synthetic_rank-{rank.rank}.pt.trace.json", text)


def _kernel_details(rank: SyntheticRank) -> str:
    lines = [
        "Step Id,Model ID,Task ID,Stream ID,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),"
        "Block Dim,Input Shapes"
    ]
    free = 0
    for number, (kernel, start, length) in enumerate(rank.rows()):
        talks = kernel.communicates
        name = f"{kernel.kind}_{number}" if talks else f"Default/synthetic/{kernel.kind}-op{number}"
        core = "COMMUNICATION" if talks else "AI_CORE"
        wait = 0 if talks else max(start - free, 0)
        free = free if talks else start + length
        task, stream = ("N/A", "N/A") if talks else (str(number), "2")
        lines.append(
            f"{FIRST_STEP + kernel.step},4294967295,{task},{stream},{name},"
            f"{kernel.kind},{core},{_us(start)}\t,{_us(length)},{_us(wait)},24,"
            + ("N/A" if talks else '"""4096,1,7168;4096,1,7168"""')
        )
    return "\r\n".join(lines) + "\r\n"


def _trace_view(rank: SyntheticRank) -> str:
    hardware, talking = 1000 + rank.rank, 5000 + rank.rank
    lines = [
        json.dumps({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}})
        for pid, name in ((hardware, "Ascend Hardware"), (talking, "HCCL"))
    ]
    for number, (kernel, start, length) in enumerate(rank.rows()):
        name = f"{kernel.kind}_{number}" if kernel.communicates else f"aclnn{kernel.kind}_{kernel.kind}_{kernel.kind}"
        lines.append(
            json.dumps(
                {
                    "ph": "X",
                    "name": name,
                    "pid": talking if kernel.communicates else hardware,
                    "tid": 2,
                    "ts": _us(start),
                    "dur": length / 1000,
                    "args": {"Task Type": "AI_CORE", "Task Id": number},
                }
            )
        )
    return "[" + ",\n".join(lines) + "]\n"


def _memory_record(rank: SyntheticRank, static_mib: float, peak_mib: float) -> str:
    moments: dict[int, list[int]] = {}
    for kernel, start, length in rank.rows():
        moments.setdefault(kernel.step, []).append(start + length)
    lines = ["Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Device Type"]
    for ends in moments.values():
        for time, used in ((ends[0], static_mib), (ends[len(ends) // 2], peak_mib), (max(ends), static_mib)):
            lines.append(f"PTA,{_us(time)}\t,{used:.3f},{peak_mib + 512:.3f},NPU:0")
    return "\r\n".join(lines) + "\r\n"


def _us(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
