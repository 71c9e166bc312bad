"""The three tools at work on small but whole jobs: what the campaign runs twice, kills and interrupts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reliability.campaign import ROOT
from benchmarks.synthetic_profiles import write_all
from taylor.parsers.read import read_config
from taylor.parsers.write_back import emit_variant

REFERENCE_MEMORY = {
    "device_limit": 55296,
    "static": {"first": 3383, "middle": 2382, "last": 8675},
    "layer": {"dense": 866, "moe": 10691},
    "activation": {"dense": {"none": 479, "select": 400, "full": 30},
                   "moe": {"none": 765, "select": 765, "full": 30}},
}  # fmt: skip
"""The memory profile printed in the user contract: DeepSeek-V3 at DP16 TP4 PP16 EP8, MiB."""


@dataclass(frozen=True)
class Job:
    """A command line with its input.

    Parameters
    ----------
    prepare : callable
        Writes the input into an empty folder, the command's working folder.
    words : tuple of str
        Its arguments; `workers` further ones where the number of processes is given.
    workers : str
        The flag for the number of processes, empty when there is none.
    """

    name: str
    tool: str
    prepare: Callable[[Path], None]
    words: tuple[str, ...]
    workers: str = ""

    def arguments(self, workers: int) -> tuple[str, ...]:
        """The command's arguments with `workers` processes."""
        return (*self.words, self.workers, str(workers)) if self.workers else self.words


def jobs() -> list[Job]:
    """One file solved with one and two virtual stages, a search, a search with all that follows, a ranking."""
    solve = ("-yaml", "train.yaml", "-memory", "memory.json", "-dryrun", "n", "-check", "n", "-layer_ratio", "0.397",
             "-b_ratio", "1.839", "-head_loss", "1.5", "-ra_ratio", "1", "--result_json", "result.json",
             "--trace", "trace.json")  # fmt: skip
    search = ("--yaml_path", "train.yaml", "--profile_num", "4")
    return [
        Job("one-interleave", "pipeline_parallel", _reference, solve, "-workers"),
        Job("two-interleaves", "pipeline_parallel", _half_reference, (*solve, "-vpp", "2"), "-workers"),
        Job("search", "parallel_tool", _copy_example, search),
        Job("full-search", "parallel_tool", _copy_example, (*search, "--full", "--prove", "all"), "--workers"),
        Job(
            "ranking",
            "pipeline_tool",
            _candidates,
            ("--yaml_path", "files", "--report", "off", "--prove", "all"),
            "--workers",
        ),
    ]


def killed_jobs() -> list[Job]:
    """Jobs that are killed: one of every command that takes seconds, apart from the page and from small runs.

    Those two start processes in sessions of their own, and are killed in `long_kills`.
    """
    kept = {one.name: one for one in jobs()}
    ranking, example = kept["ranking"], str(ROOT / "config")
    start = ("--model", "llama2-7b", "--device", "h100-80g")
    layerwise = ("--costs", "estimate", *start, "--world_size", "8", "--seq", "4096", "--gbs", "32",
                 "--micro_batches", "4,8")  # fmt: skip
    lengths = (f"{example}/finetune_llama3_70b_lora.sh", "--lengths", f"{example}/sample_lengths.csv", "--scenarios",
               "4", "-t", "600", "-o", "plan.sh", "--json")  # fmt: skip
    split = (f"{example}/rl_qwen3_8b_verl.sh", "--generation", "tokens_per_s=6000,alone=80", "--mean_prompt", "200",
             "--mean_answer", "1500", "--split", "--json")  # fmt: skip
    return [
        kept["one-interleave"],
        kept["search"],
        Job("full", kept["full-search"].tool, _copy_dense, kept["full-search"].words, kept["full-search"].workers),
        ranking,
        Job("cluster", ranking.tool, ranking.prepare, (*ranking.words, "--cluster", "local:2")),
        Job("profiles", ranking.tool, _profiled, (*ranking.words, "--profile_data_dir", "profiles"), ranking.workers),
        _command("layerwise", *layerwise),
        _command("lengths", *lengths),
        _command("rl", *split),
        _command("size", *start, "--max_devices", "8", "--tokens", "1T", "--json"),
        _command("calibrate", f"{example}/measured_runs.csv", "--device", "h100-80g", "-o", "mine.yaml", "--json"),
        Job("timeline", "timeline_tool", lambda folder: None,
            ("--log_dir", str(ROOT / "log"), "--trace", "trace.json", "--html", "page.html")),
    ]  # fmt: skip


def _command(name: str, *words: str) -> Job:
    """A command of its own that needs no input of its own."""
    return Job(name, f"taylor.command_lines.{name}", lambda folder: None, words)


def job(name: str) -> Job:
    """One job by its name."""
    return next(one for one in (*jobs(), *killed_jobs()) if one.name == name)


def _example(name: str) -> Path:
    return ROOT / "config" / f"{name}.yaml"


def _copy_example(folder: Path) -> None:
    shutil.copy(_example("pretrain_deepseek3_128p"), folder / "train.yaml")


def _copy_dense(folder: Path) -> None:
    shutil.copy(_example("pretrain_llama2_7b"), folder / "train.yaml")


def _profiled(folder: Path) -> None:
    """Two candidates with profiles of every rank."""
    config = read_config(_example("pretrain_llama2_7b"))
    (folder / "files").mkdir()
    for tp, pp in ((4, 2), (2, 4)):
        strategy = config.strategy.replace(tp=tp, pp=pp, dp=2, micro_batches=8, op=2)
        emit_variant(config, strategy, folder / "files" / f"DP2_TP{tp}_PP{pp}_EP1_pretrain.yaml", plan=None)
    write_all(folder / "files", folder / "profiles", form="ascend", device="ascend-910b", seed=0, limit=2, steps=2)


def _reference(folder: Path, stages: int = 16, micro_batches: int = 64) -> None:
    config = read_config(_example("pretrain_deepseek3_671b_1024p"))
    strategy = config.strategy.replace(pp=stages, dp=16 * 16 // stages, micro_batches=micro_batches)
    emit_variant(config, strategy, folder / "train.yaml", plan=None)
    (folder / "memory.json").write_text(json.dumps(REFERENCE_MEMORY))


def _half_reference(folder: Path) -> None:
    """Sixteen stages again, with fewer micro-batches: the tree is large enough to be shared by workers."""
    _reference(folder, 16, 32)


def _candidates(folder: Path) -> None:
    config = read_config(_example("pretrain_deepseek3_128p"))
    (folder / "files").mkdir()
    for tp, pp in ((8, 16), (4, 16), (8, 8), (4, 8), (2, 16), (8, 4)):
        strategy = config.strategy.replace(
            tp=tp, pp=pp, dp=128 // tp // pp, ep=min(8, 128 // pp), micro_batches=8 * pp * tp // 8, op=128 // tp // pp
        )
        name = f"DP{strategy.dp}_TP{tp}_PP{pp}_EP{strategy.ep}.yaml"
        emit_variant(config, strategy, folder / "files" / name, plan=None)
