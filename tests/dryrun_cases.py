"""What the dry-run tests share: the stand-in laid out as a MindFormers folder, and what it is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

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
