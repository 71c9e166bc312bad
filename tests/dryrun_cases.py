"""What the dry-run tests share: the stand-in laid out as a MindFormers folder, and what it is told."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import yaml

from taylor.dryrun.interface import DryRunResult, StagePeak
from taylor.parsers.write_back import emit_variant
from tests import standin_run_mindformer
from tests.conftest import ROOT

LLAMA = ROOT / "config" / "pretrain_llama3_70b.yaml"
DEEPSEEK = ROOT / "config" / "pretrain_deepseek3_671b_1024p.yaml"

DEEPSEEK_TRUTH = {
    "static": {"first": 3383, "middle": 2382, "last": 8675},
    "layer": {"dense": 866, "moe": 10691},
    "activation": {"dense": {"none": 479, "full": 30}, "moe": {"none": 765, "full": 30}},
}
LLAMA_TRUTH = {
    "static": {"first": 5120, "middle": 2950, "last": 8210},
    "layer": {"dense": 2040},
    "activation": {"dense": {"none": 402, "full": 61}},
}


class StandIn:
    """A folder with run_mindformer.py, an importable `mindspore`, and the environment's JSON."""

    def __init__(self, folder: Path, coefficients: dict, **told: object) -> None:
        self.folder, self.journal = folder / "mindformers", folder / "journal"
        (self.folder / "mindspore").mkdir(parents=True)
        (self.folder / "mindspore" / "__init__.py").write_text("")
        self.program = self.folder / "run_mindformer.py"
        shutil.copy(ROOT / "tests" / "standin_run_mindformer.py", self.program)
        self.truth = folder / "truth.json"
        self.env_json = folder / "env.json"
        self.env_json.write_text(json.dumps({"STANDIN_TRUTH": str(self.truth)}))
        self.coefficients = coefficients
        self.tell(**told)

    def tell(self, **told: object) -> None:
        self.truth.write_text(json.dumps({"coefficients": self.coefficients, "journal": str(self.journal), **told}))

    def starts(self) -> list[tuple[str, str, int]]:
        """(strategy, file, stage) of every process that was started."""
        path = self.journal / "starts.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(name, digest, int(stage)) for name, digest, stage, _ in map(str.split, lines)]

    def processes(self) -> list[int]:
        """Process ids that were started."""
        path = self.journal / "starts.txt"
        return [int(line.split()[3]) for line in path.read_text().splitlines()] if path.exists() else []

    def alive(self) -> list[int]:
        """Processes that run this stand-in (or were started by it) now."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                    state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                except OSError:
                    continue
                if str(self.truth).encode() in words and state != "Z":
                    found.append(int(entry.name))
        return found


class InProcess:
    """The stand-in without its process: a training file is written for each run, and answered as the stand-in would."""

    name, exact, every_flag = "in-process", False, True

    def __init__(self, folder: Path, coefficients: dict, noise: float = 0.0, seed: object = "") -> None:
        self.file, self.noise, self.seed = folder / "config.yaml", noise, seed
        self.truth = {"coefficients": coefficients}
        self.measured: list[tuple[int, int]] = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def measure(self, runs):
        results = []
        for run in runs:
            text = emit_variant(run.config, run.strategy, self.file, plan=run.plan).read_text(encoding="utf-8")
            peaks = [self.answer(yaml.load(text, yaml.CSafeLoader), text, stage) for stage in run.asked]
            results.append(DryRunResult(run, tuple(peaks)))
        return results

    def answer(self, config, text, stage):
        stages = config["parallel_config"]["pipeline_stage"]
        self.measured.append((stages, stage))
        draw = random.Random(f"{self.seed}{text}{stage}").uniform(-1, 1)
        peak = standin_run_mindformer.peak_of(config, stage, stages, self.truth) * (1 + self.noise * draw)
        return StagePeak(stage, float(round(peak)), self.name)
