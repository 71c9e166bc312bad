"""Runs that the first of several nodes chooses while it tunes; a shared folder passes them to the others.

Small runs are known beforehand and every node starts its part of each. The first node alone finds which runs verify the
best plans. It writes an order into the work folder; the others look for orders until the first one ends them. A count
that each node keeps raising shows the first one whether they look, and whether they see the same folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from taylor.base.console import log
from taylor.base.kept import read_kept, write_kept
from taylor.blackbox.small_runs import SmallRun
from taylor.parsers.small_run import PlannedJob, RunSetting
from taylor.pipeline.plan import PipelinePlan, as_grid

FOLDER, END, ORDERS = "nodes", "end.json", "verify*.json"
POLL_S = 0.5


class Nodes:
    """Orders of one tuning.

    Parameters
    ----------
    work_dir : Path
        The same folder on every node.
    count : int
        Nodes in all.
    poll_s : float
        Seconds between two looks.
    """

    def __init__(self, work_dir: Path, count: int, poll_s: float = POLL_S) -> None:
        self.folder, self.count, self.poll_s = work_dir / FOLDER, count, poll_s

    def open(self) -> None:
        """Begin on the first node: orders of an earlier start, and its end, are no longer valid."""
        for file in (self.folder / END, *self.folder.glob(ORDERS)):
            file.unlink(missing_ok=True)

    def close(self) -> None:
        """End on the first node."""
        write_kept(self.folder / END, {"done": True})

    def answer(self, wait_s: float) -> bool:
        """Return whether all other nodes look for orders, within some time."""
        first = {node: self._count(node) for node in range(1, self.count)}
        end = time.monotonic() + wait_s
        while any(self._count(node) in (None, count) for node, count in first.items()):
            if time.monotonic() > end:
                return False
            time.sleep(self.poll_s)
        return True

    def order(self, run: SmallRun) -> None:
        """Order the other nodes to start a run."""
        whole = run.whole
        data = {"setting": asdict(run.setting), "why": run.why, "steps": run.steps, "switched": run.switched}
        if whole is not None:
            plan = {"layers": dict(whole.plan.layers), "recompute": dict(whole.plan.recompute)}
            data["whole"] = plan | {"switches": whole.switches, "batch": whole.batch}
        write_kept(self.folder / f"{run.name}.json", data)

    def serve(self, node: int, start: Callable[[SmallRun], object], wait_s: float) -> None:
        """On another node: start each order, until the first node is done or gives no sign for some time.

        An order is received once; `start` knows whether its run has ended already.
        """
        own, count = self.folder / f"node_{node}.json", 0
        heard, last = set[str](), time.monotonic()
        try:
            while time.monotonic() - last < wait_s:
                count += 1
                write_kept(own, {"count": count})
                for file in sorted(self.folder.glob(ORDERS)):
                    found = read_kept(file)
                    if file.stem not in heard and isinstance(found, dict):
                        start(_run(file.stem, found))
                        heard.add(file.stem)
                        last = time.monotonic()
                if (self.folder / END).is_file():
                    return
                time.sleep(self.poll_s)
            log.warning("nothing was heard of the first node for %.0f s", wait_s)
        finally:
            own.unlink(missing_ok=True)

    def _count(self, node: int) -> int | None:
        found = read_kept(self.folder / f"node_{node}.json")
        return int(found["count"]) if isinstance(found, dict) else None


def _run(name: str, found: Mapping[str, Any]) -> SmallRun:
    switched, data, whole = tuple(map(str, found["switched"])), found.get("whole"), None
    if data is not None:
        grids = [{kind: as_grid(grid) for kind, grid in data[part].items()} for part in ("layers", "recompute")]
        states = tuple((str(one), bool(on)) for one, on in data["switches"])
        whole = PlannedJob(PipelinePlan(*grids), states, None if data["batch"] is None else int(data["batch"]))
    return SmallRun(name, RunSetting(**found["setting"]), str(found["why"]), int(found["steps"]), switched, whole)
