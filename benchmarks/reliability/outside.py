"""Places of the frameworks' own code, which the campaign runs and the repository lacks.

`make outside` installs what PyPI has into ``output/outside/packages``, without its dependencies. The rest are clones of
public repositories in ``output/outside`` (whole or bare), read at the revision that a comparison names:

    git clone https://github.com/NVIDIA/Megatron-LM output/outside/Megatron-LM
    git clone https://github.com/mindspore-lab/mindformers output/outside/mindformers
    git clone https://github.com/pytorch/torchtitan output/outside/torchtitan
    git clone https://github.com/deepseek-ai/DualPipe output/outside/DualPipe
    git clone https://github.com/sail-sg/zero-bubble-pipeline-parallelism output/outside/zero-bubble
    git clone https://github.com/NVIDIA/TransformerEngine output/outside/TransformerEngine
    git clone https://github.com/hiyouga/LLaMA-Factory output/outside/LLaMA-Factory
    git clone https://github.com/axolotl-ai-cloud/axolotl output/outside/axolotl
    git clone https://github.com/modelscope/ms-swift output/outside/ms-swift
    git clone https://github.com/verl-project/verl output/outside/verl
    git clone https://github.com/NVIDIA-NeMo/RL output/outside/RL
    git clone https://github.com/mlcommons/training_results_v5.1 output/outside/training_results_v5.1
    git clone https://github.com/Lightning-AI/litgpt output/outside/litgpt
    git clone https://github.com/NVIDIA-NeMo/Megatron-Bridge output/outside/Megatron-Bridge
    git clone https://github.com/huggingface/peft output/outside/peft
    git clone https://github.com/huggingface/trl output/outside/trl
    git clone https://github.com/Ascend/MindSpeed-MM output/outside/MindSpeed-MM
    git clone https://github.com/huggingface/open-r1 output/outside/open-r1
    git clone https://github.com/huggingface/alignment-handbook output/outside/alignment-handbook
    git clone https://github.com/pytorch/torchtune output/outside/torchtune
    git clone https://github.com/mosaicml/llm-foundry output/outside/llm-foundry
    git clone https://github.com/allenai/OLMo output/outside/OLMo
    git clone https://github.com/Modalities/modalities output/outside/modalities
    git clone https://github.com/stanford-crfm/levanter output/outside/levanter
    git clone https://github.com/InternLM/InternEvo output/outside/InternEvo
    git clone https://github.com/InternLM/xtuner output/outside/xtuner
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import subprocess
import sys
import tarfile
import tempfile
import types
import warnings
from pathlib import Path
from typing import Any

from benchmarks.reliability.campaign import ROOT

PLACE = ROOT / "output" / "outside"
PACKAGES = PLACE / "packages"


class NotHere(Exception):
    """Code that a comparison needs is not on this machine."""


def package(name: str) -> Any:
    """A module of an installed framework."""
    if str(PACKAGES) not in sys.path:
        sys.path.insert(0, str(PACKAGES))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        raise NotHere(f"{name} cannot be loaded ({error}): make outside") from error


def source(repository: str, revision: str, path: str) -> str:
    """The text of a file of a clone."""
    words = ["git", "-C", str(PLACE / repository), "show", f"{revision}:{path}"]
    shown = subprocess.run(words, capture_output=True, text=True)
    if shown.returncode:
        raise NotHere(f"{path} of {repository} at {revision} is not in {PLACE}: see benchmarks/reliability/outside.py")
    return shown.stdout


def folder_of(repository: str, revision: str, path: str) -> Path:
    """A folder of a clone, laid out beside the clones."""
    place = PLACE / "laid-out" / f"{repository}-{revision}"
    if not (place / path).is_dir():
        words = ["git", "-C", str(PLACE / repository), "archive", revision, path]
        packed = subprocess.run(words, capture_output=True)
        if packed.returncode:
            raise NotHere(f"{path} of {repository} at {revision} is not in {PLACE}")
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=place) as own:
                archive.extractall(own, filter="data")
                with contextlib.suppress(OSError):  # another process was faster
                    (Path(own) / path).rename(place / path)
    return place / path


def loaded(name: str, text: str, **around: Any) -> Any:
    """A module made of source text, `around` standing in for what it would import."""
    module = types.ModuleType(name)
    module.__dict__.update(around)
    sys.modules[name] = module  # dataclasses ask for it
    exec(compile(text, name, "exec"), module.__dict__)
    return module


def without_package(text: str, *names: str) -> tuple[str, dict[str, Any]]:
    """Source text without its imports from some packages and from its own, and stand-ins for what they name.

    A class is one without anything in it, every other name a function that does nothing.
    """
    absent: dict[str, Any] = {}

    class Left(ast.NodeTransformer):
        def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
            if not node.level and (node.module or "").split(".")[0] not in names:
                return node
            for each in node.names:
                a_class = each.name[:1].isupper()
                absent[each.asname or each.name] = type(each.name, (), {}) if a_class else lambda *words, **rest: None
            return ast.Pass()

    return ast.unparse(ast.fix_missing_locations(Left().visit(ast.parse(text)))), absent


def without_imports(text: str, *names: str) -> str:
    """Source text without the lines that import from some packages."""
    starts = tuple(word for name in names for word in (f"import {name}", f"from {name}"))
    return "\n".join(line for line in text.splitlines() if not line.startswith(starts))
