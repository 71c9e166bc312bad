"""The cost model beside published figures, row by row, with the errors as they are.

    python benchmarks/fidelity.py [FOLDER] [--source_flags] [--calculon PATH] [--llm_analysis PATH] [--csv FILE]

Sections: parameter counts, memory of DeepSeek-V3 under MindFormers' rules, activation memory, layer
times and step times. «left out» is the error of a step time when the efficiencies are fitted on the
other rows of its device (leave-one-out); the targets are checked against those.

With FOLDER (the form of `benchmarks.measured_runs`) its runs instead: each set's median, largest error, bias, Kendall,
coverage and false verdicts, and the same rows by other tools (`benchmarks.peers`): Megatron-LM's memory formula, and
Calculon and llm-analysis where PATH is a folder with their sources.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Mapping, Sequence

import pandas as pd
from scipy.stats import kendalltau

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import peers  # noqa: E402
from benchmarks.measured_runs import measured_runs, show  # noqa: E402
from benchmarks.published import MEGATRON, PUBLISHED, Case, all_cases, korthikanti, korthikanti_config  # noqa: E402
from benchmarks.published_fit import Point, fit, layer_points, step_points  # noqa: E402
from benchmarks.stacks import dated  # noqa: E402
from taylor.cost_model.job.parameters import layer_parameters, total_parameters  # noqa: E402
from taylor.cost_model.job.strategy import Strategy, TrainingRules  # noqa: E402
from taylor.cost_model.memory.activations import activation_bytes  # noqa: E402
from taylor.cost_model.memory.alive import alive_micro_batches  # noqa: E402
from taylor.cost_model.memory.breakdown import memory_profile  # noqa: E402
from taylor.cost_model.time.step import head_time, layer_time  # noqa: E402
from taylor.cost_model.time.work import model_flops  # noqa: E402
from taylor.pipeline.plan import FULL, NONE, SELECT  # noqa: E402
from taylor.pipeline.schedule import ScheduleSpec  # noqa: E402
from taylor.register import frameworks  # noqa: E402
from taylor.register.device import DeviceSpec  # noqa: E402
from taylor.register.model import DENSE  # noqa: E402
from taylor.register.registry import Registry  # noqa: E402

GIB = 2**30
GALVATRON = PUBLISHED.parent / "galvatron_profiles" / "computation_profiling_bf16_llama2-7b_all.json"

PUBLISHED_PARAMETERS = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2-72b": 72_706_203_648,
    "qwen3-30b-a3b": 30_532_122_624,
    "deepseek-v3-671b": 671_026_419_200,
    "gpt3-175b": 174_604_259_328,
}
"""The parameter counts that the models' own weights hold (with DeepSeek-V3's correction bias, without its MTP)."""

DEEPSEEK_FIT = {
    "layer dense": 866, "layer moe": 10691, "static first": 3383, "static middle": 2382, "static last": 8675,
    "activation dense none": 479, "activation dense select": 400, "activation dense full": 30,
    "activation moe none": 765, "activation moe select": 765, "activation moe full": 30,
}  # fmt: skip
"""MiB, a MindSpore dry-run fit at DP16 TP4 + SP PP16 EP8, s = 4096, b = 1."""


@dataclass(frozen=True)
class Row:
    """One figure: predicted beside published, and the leave-one-out prediction where there is a fit."""

    section: str
    name: str
    published: float
    predicted: float
    left_out: float | None = None
    note: str = ""

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.published - 1

    @property
    def error_left_out(self) -> float | None:
        """Relative error of the leave-one-out prediction."""
        return None if self.left_out is None else self.left_out / self.published - 1


def parameter_rows() -> list[Row]:
    """Parameter counts of the registered models."""
    registry = Registry.load()
    rows = [
        Row("parameters", name, count, total_parameters(registry.model(name)))
        for name, count in PUBLISHED_PARAMETERS.items()
    ]
    deepseek = registry.model("deepseek-v3-671b")
    assert deepseek.moe is not None
    plain = deepseek.replace(moe=replace(deepseek.moe, correction_bias=False))
    return [*rows, Row("parameters", "deepseek-v3-671b, no bias", 671_026_404_352, total_parameters(plain))]


def deepseek_rows() -> list[Row]:
    """The dry-run fit of DeepSeek-V3; the embedding split over TP (vocab_emb_dp off)."""
    model = Registry.load().model("deepseek-v3-671b")
    profile = memory_profile(model, Strategy(16, 4, 16, 8, op=16, micro_batches=64), TrainingRules(), 55296)
    found = {
        **{f"layer {kind}": value for kind, value in profile.layer_mib.items()},
        "static first": profile.static_first_mib,
        "static middle": profile.static_middle_mib,
        "static last": profile.static_last_mib,
        **{
            f"activation {kind} {mode}": value
            for kind, modes in profile.activation_mib.items()
            for mode, value in modes.items()
        },
    }
    return [Row("DeepSeek-V3 memory, MiB", name, value, found[name]) for name, value in DEEPSEEK_FIT.items()]


def hand_count_rows() -> list[Row]:
    """Two activation counts done by hand for fused kernels: LLaMA3-70B and a DeepSeek-V3 MoE layer."""
    registry, rules = Registry.load(), TrainingRules(framework=frameworks.MEGATRON)
    llama, deepseek = registry.model("llama3-70b"), registry.model("deepseek-v3-671b")
    dense = activation_bytes(llama, "dense", NONE, Strategy(1, 8, 1), rules.replace(seq_length=8192))
    moe = activation_bytes(deepseek, "moe", NONE, Strategy(8, 4, 1, 8), rules.replace(expert_tensor_parallel=False))
    return [
        Row("activation, MiB", "LLaMA3-70B layer, TP8 + SP, s 8192", 286, float(dense) / 2**20),
        Row("activation, MiB", "DeepSeek-V3 MoE layer, TP4 + SP, s 4096", 478, float(moe) / 2**20),
    ]


def activation_gib(name: str, method: str) -> float:
    """Activations of the first stage of one of Korthikanti's models by method, GiB (their figure 1)."""
    model, strategy = korthikanti_config(name)
    used = strategy.replace(sp="seq" in method)
    mode = FULL if method == "full" else SELECT if "sel" in method else NONE
    spec = ScheduleSpec("megatron-interleaved" if strategy.vpp > 1 else "1f1b")
    layer = float(activation_bytes(model, DENSE, mode, used, MEGATRON))
    per_chunk = model.n_layers / (strategy.pp * strategy.vpp)
    alive = max(sum(v) for v in alive_micro_batches(spec, strategy.pp, strategy.vpp, strategy.micro_batches)[0])
    return layer * per_chunk * alive / GIB


def korthikanti_memory_rows() -> list[Row]:
    """Figure 1 (activations, weights and optimizer) and figure 7 (shares by method)."""
    data, rows = korthikanti(), []
    for name, methods in data["fig1_GiB_per_A100-80"].items():
        model, strategy = korthikanti_config(name)
        for method, parts in methods.items():
            rows.append(Row("Korthikanti fig 1 activations, GiB", f"{name} {method}", parts["act"],
                            activation_gib(name, method)))  # fmt: skip
        layers = model.n_layers * layer_parameters(model, DENSE) / (strategy.tp * strategy.pp)
        rows.append(Row("Korthikanti fig 1 weights and optimizer, GiB", name, parts["param_opt"], 18 * layers / GIB))
    for name, shares in data["fig7_activation_percent"].items():
        whole = activation_gib(name, "none")
        for method, percent in shares.items():
            rows.append(Row("Korthikanti fig 7 activations, %", f"{name} {method}", percent,
                            100 * activation_gib(name, method) / whole))  # fmt: skip
    return rows


def layer_time_rows(device: DeviceSpec) -> list[Row]:
    """Korthikanti's table 4, and the two recompute ratios that follow from it."""
    times = {label.split(": ")[1]: (predict(device), published) for label, predict, published in layer_points()}
    rows = [Row("Korthikanti table 4, ms", label, published, found) for label, (found, published) in times.items()]
    for label, method, base in (("full", "full", "none"), ("select", "sel", "none"), ("select, SP", "seq+sel", "seq")):
        extra = [times[f"{method} backward"][i] - times[f"{base} backward"][i] for i in (0, 1)]
        ratio = [extra[i] / times[f"{base} forward"][i] for i in (0, 1)]
        rows.append(Row("Korthikanti table 4, recompute / forward", label, ratio[1], ratio[0]))
        longer = [sum(times[f"{method} {way}"][i] for way in ("forward", "backward"))
                  / sum(times[f"{base} {way}"][i] for way in ("forward", "backward")) for i in (0, 1)]  # fmt: skip
        rows.append(Row("Korthikanti table 4, layer with / without recompute", label, longer[1], longer[0]))
    return rows


def galvatron_rows(device: DeviceSpec) -> list[Row]:
    """Forward of LLaMA2-7B a sample, s = 2048: one layer, and everything else; no row of the fit.

    Galvatron's profile does not name its card; its bandwidth tables are those of an A100 node.
    """
    model, rules = Registry.load().model("llama2-7b"), TrainingRules(framework=frameworks.MEGATRON, seq_length=2048)
    data, rows = json.loads(GALVATRON.read_text()), []
    for mbs in (1, 2, 4, 8, 12):
        strategy = Strategy(1, 1, 1, mbs=mbs)
        layer = float(layer_time(model, DENSE, strategy, rules, device).forward) / mbs
        rest = float(sum(head_time(model, strategy, rules, device))) / mbs
        for part, found in (("layertype_0", layer), ("layertype_other", rest)):
            rows.append(Row("Galvatron LLaMA2-7B forward a sample, ms", f"{part} bsz {mbs}",
                            data[f"{part}_bsz{mbs}_seq2048"], found))  # fmt: skip
    return rows


def step_rows() -> list[Row]:
    """Step times of all three tables, fitted on every row of the device and on every row but the one."""
    registry, rows = Registry.load(), []
    cases = all_cases()
    for name in dict.fromkeys(case.device for case in cases):
        # LLaMA 3 was trained in the first half of 2024 (Grattafiori et al. 2024).
        device = dated(registry.device(name), "2024-06")
        mine = [case for case in cases if case.device == name]
        steps = step_points(mine)
        extra: list[Point] = layer_points() if name == "a100-80g" else []
        for i, (label, predict, published) in enumerate(steps):
            others = [*steps[:i], *steps[i + 1 :], *extra]
            guess = None if device.stacks else device.efficiency
            card = replace(device, efficiency={**(guess or {}), **fit(others, device, guess)})
            table, row = label.split(": ", 1)
            note = _doubt(mine[i], device)
            rows.append(Row(f"{table}, step ms", row, published, predict(device), predict(card), note))
    return rows


def _doubt(case: Case, device: DeviceSpec) -> str:
    """Evidence against a published figure itself: the speed it implies, without recompute."""
    tokens = case.strategy.global_batch * case.rules.seq_length
    flops = model_flops(case.model, case.rules.seq_length, causal=case.rules.flash_attention)
    speed = flops * tokens / case.strategy.world_size / case.step_ms / 1e9
    peak = device.peak("bf16") * case.peak_share
    if speed > peak:
        return f"implies {speed:.0f} TFLOP/s a card, beyond its peak of {peak:.0f}"
    return f"implies {speed:.0f} TFLOP/s a card, {100 * speed / peak:.0f} % of its peak" if speed < 0.1 * peak else ""


def summary(rows: Sequence[Row]) -> pd.DataFrame:
    """Median and largest error of every section, fitted and left out, and Kendall's rank correlation."""
    result = []
    for section in dict.fromkeys(row.section for row in rows):
        mine = [row for row in rows if row.section == section]
        left = [row.error_left_out for row in mine if row.error_left_out is not None]
        guess = [row.predicted if row.left_out is None else row.left_out for row in mine]
        tau = kendalltau([row.published for row in mine], guess).statistic if len(mine) > 2 else float("nan")
        result.append({
            "section": section, "rows": len(mine),
            "median error %": 100 * median(abs(row.error) for row in mine),
            "largest error %": 100 * max(abs(row.error) for row in mine),
            "left out: median %": 100 * median(map(abs, left)) if left else float("nan"),
            "Kendall": tau,
        })  # fmt: skip
    return pd.DataFrame(result)


def all_rows() -> list[Row]:
    """Every row of every section."""
    device = Registry.load().device("a100-80g")
    return [
        *parameter_rows(), *deepseek_rows(), *hand_count_rows(), *korthikanti_memory_rows(),
        *layer_time_rows(device), *galvatron_rows(device), *step_rows(),
    ]  # fmt: skip


PEERS = {"calculon": peers.CALCULON, "llm_analysis": peers.LLM_ANALYSIS}


def show_measured(folder: Path, copies: Mapping[str, Path | None], source_flags: bool) -> None:
    """Print the errors of measured runs' predictions, by this project and by others."""
    runs, refused = measured_runs(folder, source_flags=source_flags)
    show(runs, refused, rows=False)

    def table(rows: Sequence[peers.Beside], name: str) -> None:
        print(peers.summary(rows, name).to_string(index=False, float_format=lambda value: f"{value:.1f}"))

    print("\npeaks beside Megatron-LM's own formula")
    table(peers.memory_beside(runs), "Megatron-LM")
    for name, copy in copies.items():
        if copy is None:
            continue
        rows, missing = peers.steps_beside(runs, PEERS[name], copy)
        print(f"\nsteps of GPT jobs beside {PEERS[name].name}")
        table(rows, PEERS[name].name)
        for file, why in missing.items():
            print(f"{file}: none of {PEERS[name].name}: {why}")


def main() -> None:
    """Print the tables; write the rows as CSV when asked to."""
    parser = argparse.ArgumentParser(description="predicted beside published, row by row")
    parser.add_argument("--csv", type=Path, help="also write the rows to this file")
    parser.add_argument("folder", type=Path, nargs="?", help="measured runs to judge instead")
    parser.add_argument("--source_flags", action="store_true", help="add the flags that a run's source names")
    for peer in PEERS:
        parser.add_argument(f"--{peer}", type=Path, metavar="PATH", help="its sources, to run beside")
    options = parser.parse_args()
    if options.folder is not None:
        show_measured(options.folder, {name: getattr(options, name) for name in PEERS}, options.source_flags)
        return
    rows = all_rows()
    order = list(dict.fromkeys(row.section for row in rows))
    section = None
    for row in sorted(rows, key=lambda row: order.index(row.section)):
        if row.section != section:
            section = row.section
            print(f"\n{section}\n{'':44s} {'published':>18s} {'predicted':>18s} {'error %':>9s} {'left out %':>11s}")
        left = "" if row.error_left_out is None else f"{100 * row.error_left_out:+.1f}"
        digits = 0 if row.published >= 1000 else 3
        print(f"{row.name:44s} {row.published:18,.{digits}f} {row.predicted:18,.{digits}f} "
              f"{100 * row.error:+9.1f} {left:>11s}  {row.note}")  # fmt: skip
    print("\n" + summary(rows).to_string(index=False, float_format=lambda v: f"{v:.2f}"))
    if options.csv:
        pd.DataFrame([{**vars(row), "error": row.error, "error_left_out": row.error_left_out} for row in rows]).to_csv(
            options.csv, index=False
        )


if __name__ == "__main__":
    main()
