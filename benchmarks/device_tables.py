"""Efficiencies of device files from published tables of single kernels: GEMMs, attention, norms.

    python -m benchmarks.device_tables AICONFIGURATOR CUDNN [--device NAME]

AICONFIGURATOR and CUDNN are git directories of github.com/ai-dynamo/aiconfigurator (used: 095f58a5) and
github.com/NVIDIA/cudnn-frontend (used: 3929da2). The tables of the former are Parquet files, which pandas reads with
pyarrow (``pip install pyarrow``; nothing else needs it). For each device it prints the entries of `efficiency` and,
beside them, cases and residuals.

GEMMs: t = FLOPs / (peak x matmul) + read / (bandwidth x operands) + written / (bandwidth x results)
+ quantized / (bandwidth x cast) + start, fitted to the logarithm of TensorRT-LLM's times of a GEMM (robust loss). These
multiply normal random numbers by cuBLAS, and quantize the input inside the measured time. `quantized` are the bytes
that this moves; their entry, ``cast``, is a share of the bandwidth too.

Sustained load: most tables measure nine calls in a row, some milliseconds. Those with a column ``power`` repeat each
call for a second, until the card is at its power limit, as it is in training (collector/helper.py,
`benchmark_with_power`). The ratio of the former to the latter over equal shapes of one kernel (`SUSTAINED`) is applied
to `matmul`.

Grouped GEMMs: the same of TensorRT-LLM's experts in bf16 (CUTLASS, balanced routing), `matmul` that of the dense ones,
with the element-wise traffic between them at the bandwidth's share `memory`. The residuals are too large to register
them; they lie around the defaults (`cost_model.time.product_times`).

Scans: t = FLOPs / (peak x scan) + traffic / (bandwidth x memory), both as the model counts them
(`cost_model.job.recurrent`); the median over long sequences. Mamba's was measured on B200 alone; elsewhere it is taken
to stand to the gated delta rule's as it does there.

Attention: t = passes x (FLOPs + softmax x scores) / (peak x share) x (1 + tokens x (1 causal, 1/2 whole) / length),
with `passes` 2.5 in backward; `length` is the keys' or the window's. Ten calls in a row that last `LONG_MS` each show
the sustained load too; the shares are theirs.

Memory: bytes over time of cuDNN's RMS norms, forward and backward together.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares

from taylor.register.device import DeviceSpec
from taylor.register.registry import Registry

Array = NDArray[np.float64]

DATA = "aic-core/src/aiconfigurator_core/systems/data"
ATTENTION = "benchmark/sdpa_benchmark_training/results"
NORMS = "benchmark/norms/results"

TYPES: Mapping[str, tuple[str, str, float, float]] = {
    "": ("bfloat16", "bf16", 2.0, 0.0),
    "_fp8": ("fp8", "fp8", 1.0, 2 + 2 + 1),
    "_fp8_block": ("fp8_block", "fp8", 1 + 4 / 128, 2 + 1 + 4 / 128),
    "_mxfp8": ("fp8_block", "fp8", 1 + 1 / 32, 2 + 1 + 1 / 32),
    "_nvfp4": ("nvfp4", "fp4", 0.5 + 1 / 16, 2 + 0.5 + 1 / 16),
}
"""End of an entry: the table's type, the precision of the peak, bytes an element of an operand, and bytes an element
that quantizing an input moves. ``fp8`` finds the largest value first. On Blackwell ``fp8_block`` has scales that are
powers of two, as mxfp8 has (collector/trtllm/collect_gemm.py)."""

HOPPER_TYPES = ("", "_fp8", "_fp8_block")
BLACKWELL_TYPES = ("", "_fp8", "_mxfp8", "_nvfp4")

SUSTAINED: Mapping[str, tuple[str, str, str]] = {
    "hopper": ("h200_sxm", "vllm/0.22.0", "vllm/0.24.0"),
    "board": ("b200_sxm", "vllm/0.22.0", "vllm/0.24.0"),
    "superchip": ("gb200", "trtllm/1.3.0rc17", "trtllm/1.3.0rc20"),
}
"""Cards whose bf16 GEMMs were measured for a second and for milliseconds by one kernel; their other types are not of
the same kernel, or throttle by the same factor (GB200: fp8 0.89, nvfp4 0.88)."""


@dataclass(frozen=True)
class Tables:
    """Tables of one device.

    Parameters
    ----------
    system, version : str
        Folder and TensorRT-LLM release of its GEMM table.
    types : tuple of str
        Ends of entries: keys of `TYPES`.
    load : str
        Key of `SUSTAINED`.
    attention, norms : str
        Card whose attention and norms are taken; empty: none.
    """

    system: str
    version: str
    types: tuple[str, ...]
    load: str
    attention: str
    norms: str


DEVICES: Mapping[str, Tables] = {
    "h100-80g": Tables("h100_sxm", "1.3.0rc20", HOPPER_TYPES, "hopper", "h200", ""),
    "h200-141g": Tables("h200_sxm", "1.3.0rc20", HOPPER_TYPES, "hopper", "h200", "h200"),
    "b200-180g": Tables("b200_sxm", "1.3.0rc20", BLACKWELL_TYPES, "board", "gb200", "gb200"),
    "b300-270g": Tables("b300_sxm", "1.3.0rc20", BLACKWELL_TYPES, "board", "gb300", "gb300"),
    "gb200-nvl72": Tables("gb200", "1.3.0rc20", BLACKWELL_TYPES, "superchip", "gb200", "gb200"),
    "gb300-nvl72": Tables("gb300", "1.3.0rc20", BLACKWELL_TYPES, "superchip", "gb300", "gb300"),
}

ATTENTION_FILES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "h200": (
        "h200-141g",
        tuple(
            f"h200_919_only_cudnn/{name}.csv"
            for name in ("llama3.1_20260227_034703", "gpt_oss_20260227_034819", "dsv3_20260227_034744")
        ),
    ),
    "gb200": (
        "gb200-nvl72",
        tuple(
            f"{name}/gb200/{name}_20260424_{time}.csv"
            for name, time in (("llama3.1", "100750"), ("dsv3", "101009"), ("gpt_oss", "100011"), ("qwen35", "095249"))
        ),
    ),
    "gb300": (
        "gb300-nvl72",
        tuple(
            f"{name}/gb300/{name}_20260424_{time}.csv"
            for name, time in (("llama3.1", "100757"), ("dsv3", "101002"), ("gpt_oss", "100022"), ("qwen35", "095247"))
        ),
    ),
}  # fmt: skip
"""Card: the device whose peak counts, and its tables of cuDNN 9.19 (H200) and 9.22."""

B200_RATES = "benchmark/sdpa_benchmark_training/artifacts/sdpa_bf16_benchmark_results_NVIDIA_B200.csv"
RATES: Mapping[str, tuple[str, str, str, str]] = {
    "h200, FlashAttention 2 in torch, 2024-09": ("h200-141g", "de355c7", "benchmark/benchmark_results.csv", "Pytorch"),
    "h200, cuDNN of 2024-09": ("h200-141g", "de355c7", "benchmark/benchmark_results.csv", "cuDNN BF16"),
    "b200, FlashAttention 2 in torch, 2025-07": (
        "b200-180g", "9793df5",
        B200_RATES, "pyt_flash_attention",
    ),
    "b200, cuDNN 9.10.2 of 2025-07": (
        "b200-180g", "9793df5",
        B200_RATES, "pyt_cudnn",
    ),
}  # fmt: skip
"""Older tables of attention: the device whose peak counts, commit, file, and the kernel's name in it."""

NORM_FILES = {
    "h200": ("h200-141g", "h200/all_models_20260227_035147.csv"),
    "gb200": ("gb200-nvl72", "gb200/all_models_20260226_180237.csv"),
    "gb300": ("gb300-nvl72", "gb300/all_models_20260226_190305.csv"),
}

MAMBA_SCAN = "mamba2", "mamba_chunk_scan_combined"
DELTA_SCAN = "gdn", "chunk_gated_delta_rule"
"""Table and kernel of a scan."""
MAMBA_ON = "b200_sxm", "1.3.0rc15", "1.3.0rc20"
"""The one card with Mamba's scan, and the releases of both tables."""
LEAST_TOKENS = 16384
"""Tokens of a scan from which on it counts."""
LEAST_ROWS = 256
"""Rows of an expert, and columns, from which on its GEMMs count."""
SMALLEST = 1024
"""Rows, columns and depth of a GEMM from which on it counts."""
LARGE = 1e12
"""FLOPs of a GEMM from which on the sustained load counts."""
LEAST_NORM = 2**24
"""Elements of a norm from which on it counts: smaller ones show their start."""
LONG_MS = 20.0
"""A pass of attention from which on ten in a row show the sustained load, ms."""
SHORTEST = 2048
"""Keys of attention from which on it counts."""
BACKWARD = 2.5
MOST = 10.0
"""Largest share of `operands` and `results`: the traffic costs nothing."""


def stored(repository: Path, path: str, commit: str = "HEAD") -> bytes:
    """A file of a repository's newest commit, or of another one."""
    command = ["git", f"--git-dir={repository}", "show", f"{commit}:{path}"]
    return subprocess.run(command, check=True, capture_output=True).stdout


def gemm_table(repository: Path, system: str, version: str, kind: str) -> pd.Series[float]:
    """Median time of each GEMM, ms, by m, n and k."""
    table = pd.read_parquet(io.BytesIO(stored(repository, f"{DATA}/{system}/gemm/{version}/gemm_perf.parquet")))
    mine = table[table.gemm_dtype == kind]
    large = (mine[["m", "n", "k"]] >= SMALLEST).all(axis=1)
    return mine[large].groupby(["m", "n", "k"]).latency.median()


def sustained(repository: Path, load: str) -> float:
    """Median of the time of some milliseconds' load over that of a second's, large bf16 GEMMs."""
    system, second, moment = SUSTAINED[load]
    long, short = (gemm_table(repository, system, version, "bfloat16") for version in (second, moment))
    both = pd.concat([long.rename("long"), short.rename("short")], axis=1).dropna().reset_index()
    large = both[2.0 * both.m * both.n * both.k >= LARGE]
    return float((large.short / large.long).median())


@dataclass(frozen=True)
class Fit:
    """Entries by name, cases, median and 90 % quantile of the residuals' size."""

    entries: Mapping[str, float]
    cases: int
    median: float
    most: float

    def __str__(self) -> str:
        return f"{self.cases} cases, residuals {100 * self.median:.1f} % median, {100 * self.most:.0f} % 90 % quantile"


def _fitted(names: Iterable[str], cases: int, errors: Any, start: Array, least: Array, most: Array) -> Fit:
    """Least soft L1 of the logarithms' errors over the logarithms of the entries."""
    found = least_squares(errors, np.log(start), bounds=(np.log(least), np.log(most)), loss="soft_l1", f_scale=0.05)
    sizes = np.abs(errors(found.x))
    entries = dict(zip(names, np.exp(found.x).tolist(), strict=True))
    return Fit(entries, cases, float(np.median(sizes)), float(np.quantile(sizes, 0.9)))


def gemm_fit(times: pd.Series[float], device: DeviceSpec, precision: str, operand: float, quantized: float) -> Fit:
    """Shares of the peak and of the bandwidth of one type's GEMMs."""
    cases = times.reset_index()
    m, n, k, measured = (cases[name].to_numpy(dtype=float) for name in ("m", "n", "k", "latency"))
    arithmetic = 2 * m * n * k / (device.peak(precision) * 1e9)
    bandwidth = device.memory_gb_s * 1e6
    parts = operand * (m * k + n * k) / bandwidth, 2 * m * n / bandwidth, quantized * m * k / bandwidth

    def errors(logs: Array) -> Array:
        matmul, operands, results, cast, start = np.exp(logs)
        time = arithmetic / matmul + parts[0] / operands + parts[1] / results + parts[2] / cast + start
        return np.asarray(np.log(time / measured))

    names = ("matmul", "operands", "results", "cast", "start_ms")
    least, most = np.array([0.05, 0.1, 0.1, 0.05, 5e-4]), np.array([1.0, MOST, MOST, 1.0, 0.1])
    return _fitted(names, len(cases), errors, np.array([0.7, 2.0, 0.9, 0.5, 5e-3]), least, most)


def expert_fit(repository: Path, tables: Tables, device: DeviceSpec, matmul: float, memory: float) -> Fit:
    """Shares of the bandwidth of experts' grouped GEMMs in bf16, three matrices an expert."""
    file = f"{DATA}/{tables.system}/moe/trtllm/{tables.version}/moe_perf.parquet"
    table = pd.read_parquet(io.BytesIO(stored(repository, file)))
    table = table[(table.moe_dtype == "bfloat16") & (table.distribution == "balanced")]
    table = table[table.kernel_source == "moe_torch_flow_cutlass"]
    tokens, local = table.num_tokens.to_numpy(float), (table.num_experts / table.moe_ep_size).to_numpy(float)
    rows = tokens * (table.topk / table.moe_ep_size).to_numpy(float)
    width, hidden = (table.inter_size / table.moe_tp_size).to_numpy(float), table.hidden_size.to_numpy(float)
    large = (rows / local >= LEAST_ROWS) & (width >= LEAST_ROWS)
    tokens, local, rows, width, hidden = (each[large] for each in (tokens, local, rows, width, hidden))
    measured = table.latency.to_numpy(float)[large]
    bandwidth = device.memory_gb_s * 1e6
    arithmetic = 6 * rows * hidden * width / (device.peak("bf16") * 1e9 * matmul)
    read = 2 * (3 * local * hidden * width + rows * (hidden + width)) / bandwidth
    written = 2 * rows * (2 * width + hidden) / bandwidth
    # Rows are copied in front, activated between, and joined behind.
    between = 2 * (2 * rows * hidden + 3 * rows * width + rows * hidden + tokens * hidden) / (bandwidth * memory)

    def errors(logs: Array) -> Array:
        operands, results, start = np.exp(logs)
        return np.asarray(np.log((arithmetic + read / operands + written / results + between + start) / measured))

    least, most = np.array([0.1, 0.1, 1e-3]), np.array([MOST, MOST, 1.0])
    return _fitted(("expert_operands", "expert_results", "start_ms"), len(measured), errors, np.array([2.0, 0.6, 0.05]),
                   least, most)  # fmt: skip


def attention_cases(repository: Path, files: Iterable[str]) -> pd.DataFrame:
    """One line for each measured pass of cuDNN in bf16: FLOPs and scores of forward, length, whether causal, whether
    keys are wider than values, ms. Non-deterministic backward where both are measured."""
    lines = []
    for file in files:
        text = stored(repository, f"{ATTENTION}/{file}").decode()
        table = pd.read_csv(io.StringIO(text), dtype=str, engine="python", on_bad_lines="skip")
        mine = table[(table.backend == "cudnn") & (table.data_type == "bfloat16") & (table.success == "True")]
        if "False" in set(mine.deterministic_bwd):
            mine = mine[mine.deterministic_bwd == "False"]
        lines += [line for row in mine.to_dict("records") for line in _attention_lines(row)]
    return pd.DataFrame(lines)


def _attention_lines(row: Mapping[Any, Any]) -> Iterable[dict[str, float]]:
    keys, batch, heads = (int(row[name]) for name in ("q_seqlen", "batch_size", "num_q_heads"))
    wide, narrow = int(row["head_dim_qk"]), int(row["head_dim_vo"])
    causal, stated = row["attn_mask"] == "top_left", row["sliding_window_size"]
    window = int(float(stated)) if isinstance(stated, str) and stated else keys
    length = min(window, keys)
    seen = length - length * (length - 1) / 2 / keys if causal else keys
    if "time_ms" in row:
        passes = {row["profile_pass"]: float(row["time_ms"])}
    else:
        passes = {"fwd": float(row["fwd_time_ms"]), "bwd": float(row["bwd_time_ms"])}
    scores = batch * heads * keys * seen
    for each, measured in passes.items():
        if np.isfinite(measured) and keys >= SHORTEST:
            yield {"flops": 2 * scores * (wide + narrow), "scores": scores, "length": length, "causal": causal,
                   "wide": wide > narrow, "backward": each == "bwd", "measured": measured}  # fmt: skip


def rates_fit(repository: Path, name: str) -> Fit:
    """Shares of attention, and tokens lost, of one of `RATES`: tables of rates, heads of 128."""
    device, commit, file, kernel = RATES[name]
    table = pd.read_csv(io.BytesIO(stored(repository, file, commit)))
    if "backend" in table:
        mine = table[(table.backend == kernel) & (table.q_seqlen >= SHORTEST)]
        length, causal = mine.q_seqlen, mine.is_causal
        rates = mine.fwd_tflops_per_sec, mine.bwd_tflops_per_sec
    else:
        length, causal = table["Sequence length"], table["Causal"]
        rates = table[f"{kernel} FWD (TFLOPs/s)"], table[f"{kernel} BWD (TFLOPs/s)"]
    edge = np.where(causal.to_numpy(dtype=bool), 1.0, 0.5) / length.to_numpy(dtype=float)
    measured = [np.log(each.to_numpy(dtype=float) / Registry.load().device(device).peak("bf16")) for each in rates]

    def errors(logs: Array) -> Array:
        slower = np.log1p(np.exp(logs[2]) * edge)
        return np.concatenate([each - (log - slower) for each, log in zip(measured, logs[:2], strict=True)])

    least, most = np.array([0.05, 0.05, 1.0]), np.array([1.0, 1.0, 1e4])
    names = ("attention", "attention_backward", "attention_tokens")
    return _fitted(names, 2 * len(edge), errors, np.array([0.6, 0.5, 500.0]), least, most)


def attention_fit(cases: pd.DataFrame, device: DeviceSpec) -> Fit:
    """Shares of the peak forward and backward, FLOPs a score, tokens lost at the masks' edges."""
    causal = np.where(cases.causal.to_numpy(dtype=bool), 1.0, 0.5)
    backward, wide = (cases[name].to_numpy(dtype=bool) for name in ("backward", "wide"))
    flops, scores, length, measured = (
        cases[name].to_numpy(dtype=float) for name in ("flops", "scores", "length", "measured")
    )
    peak = device.peak("bf16") * 1e9
    long = measured >= LONG_MS

    def errors(logs: Array) -> Array:
        ahead, behind, behind_wide, tokens, softmax, load = np.exp(logs)
        share = np.where(backward, np.where(wide, behind_wide, behind), ahead) / np.where(long, 1.0, load)
        passes = np.where(backward, BACKWARD, 1.0)
        time = passes * (flops + softmax * scores) / (peak * share) * (1 + tokens * causal / length)
        return np.asarray(np.log(time / measured))

    names = ("attention", "attention_backward", "attention_wide_backward", "attention_tokens", "softmax_flops", "load")
    least, most = np.array([0.05, 0.05, 0.05, 1.0, 0.1, 0.7]), np.array([1.0, 1.0, 1.0, 1e4, 1e3, 1.0])
    return _fitted(names, len(cases), errors, np.array([0.7, 0.55, 0.5, 500.0, 50.0, 0.9]), least, most)


def memory_share(repository: Path, file: str, device: DeviceSpec) -> Fit:
    """Share of the bandwidth that cuDNN's norms reach, both passes together."""
    text = stored(repository, f"{NORMS}/{file}").decode()
    table = pd.read_csv(io.StringIO(text), dtype=str, engine="python", on_bad_lines="skip")
    mine = table[(table.backend == "cudnn") & (table.norm_type == "rms_norm")]
    size, ahead, behind, rate, back = (
        mine[name].to_numpy(dtype=float) for name in ("N", "fwd_time_ms", "bwd_time_ms", "fwd_gbps", "bwd_gbps")
    )
    size = size * mine["C"].to_numpy(dtype=float)
    large = size >= LEAST_NORM
    shares = ((ahead * rate + behind * back) / (ahead + behind))[large] / device.memory_gb_s
    share = float(np.median(shares))
    apart = np.abs(np.log(shares / share))
    return Fit({"memory": share}, int(large.sum()), float(np.median(apart)), float(np.quantile(apart, 0.9)))


def scan_share(repository: Path, system: str, version: str, device: DeviceSpec, memory: float, *, mamba: bool) -> Fit:
    """Share of the peak of a recurrent mixer's scan, forward: of Mamba, or of the gated delta rule."""
    kind, kernel = MAMBA_SCAN if mamba else DELTA_SCAN
    file = f"{DATA}/{system}/linear_attention/trtllm/{version}/{kind}_perf.parquet"
    table = pd.read_parquet(io.BytesIO(stored(repository, file)))
    long = (table.kernel_source == kernel) & (table.seq_len >= SMALLEST)
    long &= table.batch_size * table.seq_len >= LEAST_TOKENS
    mine = table[long]
    tokens, measured = (mine.batch_size * mine.seq_len).to_numpy(float), mine.latency.to_numpy(float)
    if mamba:
        inner, state = (mine.nheads * mine.head_dim).to_numpy(float), mine.d_state.to_numpy(float)
        flops, moved = 7 * inner * state, 4 * inner + 2 * mine.n_groups.to_numpy(float) * state
    else:
        keys = (mine.num_k_heads * mine.head_k_dim).to_numpy(float)
        values = (mine.num_v_heads * mine.head_v_dim).to_numpy(float)
        flops, moved = 6 * values * mine.head_k_dim.to_numpy(float), 2 * keys + 6 * values
    traffic = 2 * tokens * moved / (device.memory_gb_s * 1e6 * memory)
    shares = tokens * flops / (device.peak("bf16") * 1e9) / (measured - traffic)
    share = float(np.median(shares))
    apart = np.abs(np.log(shares / share))
    name = "scan" if mamba else "delta_scan"
    return Fit({name: share}, len(mine), float(np.median(apart)), float(np.quantile(apart, 0.9)))


def mamba_over_delta(repository: Path) -> float:
    """Share of Mamba's scan over that of the gated delta rule, where both were measured."""
    system, mamba, delta = MAMBA_ON
    device = Registry.load().device("b200-180g")
    memory = device.efficiency["memory"]
    one = scan_share(repository, system, mamba, device, memory, mamba=True).entries["scan"]
    return one / scan_share(repository, system, delta, device, memory, mamba=False).entries["delta_scan"]


def device_entries(name: str, measured: Path, training: Path) -> tuple[dict[str, float], list[str]]:
    """Entries of `efficiency` of a device, and a line for each fit."""
    registry, tables = Registry.load(), DEVICES[name]
    device, load = registry.device(name), sustained(measured, tables.load)
    found: dict[str, float] = {}
    lines = [f"sustained load: {load:.3f} of {SUSTAINED[tables.load][0]}'s rate over milliseconds"]
    for end in tables.types:
        kind, precision, operand, quantized = TYPES[end]
        fit = gemm_fit(
            gemm_table(measured, tables.system, f"trtllm/{tables.version}", kind), device, precision, operand, quantized
        )
        wanted = {
            "matmul": load * fit.entries["matmul"],
            **{each: fit.entries[each] for each in ("operands", "results")},
        }
        if end:
            wanted["cast"] = fit.entries["cast"]
        else:
            dense = fit.entries["matmul"]
        found |= {each + end: value for each, value in wanted.items()}
        lines.append(f"{kind} GEMMs of {tables.system}: {fit}")
    peak_of, files = ATTENTION_FILES[tables.attention]
    fit = attention_fit(attention_cases(training, files), registry.device(peak_of))
    found |= {each: value for each, value in fit.entries.items() if each != "load"}
    lines.append(f"attention of {tables.attention}: {fit}, sustained load {fit.entries['load']:.3f}")
    if tables.norms:
        peak_of, file = NORM_FILES[tables.norms]
        fit = memory_share(training, file, registry.device(peak_of))
        found |= fit.entries
        lines.append(f"norms of {tables.norms}: {fit}")
    memory = found.get("memory", device.efficiency["memory"])
    fit = expert_fit(measured, tables, device, dense, memory)
    # Assumed: a result that is added to is read first, which no kernel of the tables does.
    found["accumulated"] = memory
    shares = ", ".join(f"{each} {fit.entries[each]:.3g}" for each in ("expert_operands", "expert_results"))
    lines.append(f"experts of {tables.system}, not registered: {shares}; {fit}")
    fit = scan_share(measured, tables.system, tables.version, device, memory, mamba=False)
    found |= {**fit.entries, "scan": mamba_over_delta(measured) * fit.entries["delta_scan"]}
    lines.append(f"gated delta rule of {tables.system}: {fit}")
    return found, lines


def main() -> int:
    """Print the entries of every device, or of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("aiconfigurator", type=Path, help="git directory of ai-dynamo/aiconfigurator")
    parser.add_argument("cudnn", type=Path, help="git directory of NVIDIA/cudnn-frontend")
    parser.add_argument("--device", choices=list(DEVICES), help="one device alone")
    args = parser.parse_args()
    for name in [args.device] if args.device else list(DEVICES):
        entries, lines = device_entries(name, args.aiconfigurator, args.cudnn)
        print(f"# {name}")
        print("\n".join(f"# {line}" for line in lines))
        print("efficiency:")
        print(_entry_lines(entries))
    for name in RATES:
        fit = rates_fit(args.cudnn, name)
        print(f"# attention of {name}: {fit}\n{_entry_lines(fit.entries)}")
    return 0


def _entry_lines(entries: Mapping[str, float]) -> str:
    return "\n".join(f"  {entry}: {float(f'{value:.3g}'):g}" for entry, value in sorted(entries.items()))


if __name__ == "__main__":
    sys.exit(main())
