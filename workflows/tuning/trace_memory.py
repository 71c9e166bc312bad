"""Lets a training do in small runs what its flags cannot ask for; its text runs beside the training, without Taylor.

Megatron-LM's flags record shapes and no memory (d98e8a64 megatron/training/training.py:4496-4506), nor do torchtitan's
(v0.2.2 torchtitan/tools/profiling.py:67-76), whose flavours have a fixed number of layers. Python runs a module
``sitecustomize`` of ``PYTHONPATH`` as it starts: small runs have one there that is this module's text.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FOLDER = "trace_memory"
"""In the work folder of a tuning."""
_SHARDING = ("dp", "fsdp", "efsdp", "dp_replicate", "dp_shard", "dp_shard_cp", "dp_shard_mod_ep", "dp_shard_in_ep")
"""torchtitan's dimensions of meshes over which FSDP splits what others left of a weight (v0.2.2
torchtitan/distributed/parallel_dims.py:149-180, v0.2.0 parallel_dims.py)."""


def with_memory(environment: Mapping[str, str], work_dir: Path) -> dict[str, str]:
    """Variables of a run whose traces record memory; the module that they name is written first."""
    from taylor.base.files import write_atomic  # The text below runs where Taylor is not.

    folder = work_dir.resolve() / FOLDER
    text = Path(__file__).read_text(encoding="utf-8")
    start = f"\n\ninstall({str(folder)!r})\n"
    write_atomic(folder / "sitecustomize.py", text + start)
    given = environment.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": os.pathsep.join([str(folder), *([given] if given else [])])}


def install(own: str) -> None:
    """Wait for the profiler to be imported, and run the ``sitecustomize`` that the one in this folder stands before."""
    sys.meta_path.insert(0, _Waiting())
    others = [place for place in sys.path if os.path.abspath(place) != os.path.abspath(own)]
    shadowed = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if shadowed is not None and shadowed.loader is not None:
        module = importlib.util.module_from_spec(shadowed)
        sys.modules["sitecustomize"] = module
        shadowed.loader.exec_module(module)


class _Waiting(importlib.abc.MetaPathFinder):
    """Finds modules once each, to change them as soon as they have run."""

    def __init__(self) -> None:
        self.changes = dict(CHANGES)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        change = self.changes.pop(fullname, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                change(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def record_memory(module: Any) -> None:
    """Let every profile of a profiler's module record memory."""
    before = module.profile.__init__

    @functools.wraps(before)
    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        before(self, *args, **{**kwargs, "profile_memory": True})

    module.profile.__init__ = begin


def cut_networks(module: Any) -> None:
    """Let torchtitan's registry of networks have flavours with fewer layers, and print the parameters of a rank.

    v0.2.2 torchtitan/train.py:117, 138, 275; torchtitan/protocols/train_spec.py:44-58.
    """
    before = module.get_train_spec

    @functools.wraps(before)
    def get_train_spec(name: str) -> Any:
        spec = before(name)
        build = spec.build_optimizers_fn

        @functools.wraps(build)
        def listed(parts: Any, *args: Any, **kwargs: Any) -> Any:
            for part in parts:
                for parameter, value in part.named_parameters():
                    print(f"taylor: parameter {parameter} {whole_elements(value)}", flush=True)
            return build(parts, *args, **kwargs)

        return dataclasses.replace(spec, model_args=Flavours(spec.model_args), build_optimizers_fn=listed)

    module.get_train_spec = get_train_spec


class Flavours(dict):  # type: ignore[type-arg]
    """Flavours of a network, and those cut down: ``8B@layers=2``, ``16B@layers=2@experts=8@dense=1``."""

    def __missing__(self, key: str) -> Any:
        name, *changes = key.split("@")
        if not changes:
            raise KeyError(key)
        found = copy.deepcopy(self[name])
        for change in changes:
            word, _, number = change.partition("=")
            if word == "experts":
                found.moe_args.num_experts = int(number)
            else:
                setattr(found, {"layers": "n_layers", "dense": "n_dense_layers"}[word], int(number))
        return found


def whole_elements(parameter: Any) -> int:
    """Elements that a rank has of a parameter while its weights are gathered."""
    count = int(parameter.numel())
    mesh: Any = getattr(parameter, "device_mesh", None)
    for at, placement in enumerate(getattr(parameter, "placements", ())):
        if placement.is_shard() and mesh.mesh_dim_names[at] not in _SHARDING:
            count = -(-count // mesh.size(at))
    return count


CHANGES: Mapping[str, Callable[[Any], None]] = {
    "torch.profiler.profiler": record_memory,
    "torchtitan.protocols.train_spec": cut_networks,
}
"""By module: what is done to it."""
