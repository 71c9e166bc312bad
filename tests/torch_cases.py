"""What the torch dry-run's tests share: the stand-in stage model's orders and journal, and a Megatron script."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import ROOT

STAND_IN = "tests.standin_torch_stage"

LLAMA3_70B = (ROOT / "config" / "pretrain_llama3_70b.sh").read_text(encoding="utf-8")


class StandIn:
    """What the stand-in stage model is told, and what it was asked."""

    def __init__(self, folder: Path, monkeypatch=None, **told: object) -> None:
        self.journal, self.path = folder / "journal.txt", folder / "standin.json"
        self.tell(**told)
        if monkeypatch is not None:
            monkeypatch.setenv("STANDIN_STAGE", str(self.path))

    def tell(self, **told: object) -> None:
        self.path.write_text(json.dumps({"journal": str(self.journal), **told}))

    def starts(self) -> list[tuple[str, int]]:
        """(strategy, stage) of every process that was started."""
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        return [(name, int(stage)) for name, stage, _ in map(str.split, lines)]

    def alive(self) -> list[int]:
        """Processes, begun for this stand-in, that still run."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words, state = (entry / "environ").read_bytes(), (entry / "stat").read_text()
                except OSError:
                    continue
                if str(self.path).encode() in words and state.rsplit(")", 1)[1].split()[0] != "Z":
                    found.append(int(entry.name))
        return found
