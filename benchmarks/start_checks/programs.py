"""The programs' own checks, called with a case's settings on no device; a checkout a program."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.start_checks.cases import JSON
from benchmarks.start_checks.single_modules import Check, nemo_rl, olmo, verl

_OF_TEXT = ("sentencepiece", "mpi4py", "lm_dataformat", "ftfy", "tiktoken", "lm_eval", "best_download")
"""Packages that gpt-neox imports beside its arguments."""


def refusal(check: Check, settings: Mapping[str, Any], root: Path) -> str:
    """``starts``, or the place below the checkout and the beginning of a refusal's message, in one line."""
    try:
        check(json.loads(json.dumps(settings)))
    except (AssertionError, ValueError, NotImplementedError) as error:
        cause = _cause(error)
        places = [f"{frame.filename}:{frame.lineno} " for frame in traceback.extract_tb(cause.__traceback__)]
        own = [place for place in places if str(root) in place or "/transformers/" in place]
        place = own[-1].rpartition(f"{root}/")[2].rpartition("site-packages/")[2] if own else ""
        return f"{place}{' '.join(str(cause).split())}"[:300]
    return "starts"


def _cause(error: Exception) -> BaseException:
    """The check's own error behind pydantic's."""
    found = error.errors() if hasattr(error, "errors") else []
    causes = [each["ctx"]["error"] for each in found if isinstance(each.get("ctx", {}).get("error"), Exception)]
    return causes[0] if causes else error


def deepspeed(root: Path) -> Check:
    """DeepSpeed's reading of its JSON."""
    _import_from(root, root)
    from deepspeed.runtime.config import DeepSpeedConfig

    return lambda settings: DeepSpeedConfig(settings[JSON]) and None


def trainer(root: Path) -> Check:
    """The Trainer's options, then its comparison of DeepSpeed's JSON with them; `root` is DeepSpeed's checkout."""
    _import_from(root, root)
    described = Path(tempfile.mkdtemp()) / "deepspeed-0.18.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.18.0\n", encoding="utf-8")
    sys.path.append(str(described.parent))
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    def check(settings: dict[str, Any]) -> None:
        written = settings.pop(JSON, None)
        options = TrainingArguments(output_dir=tempfile.gettempdir(), use_cpu=True, report_to=[], **settings)
        if written is not None:
            config = HfTrainerDeepSpeedConfig(written)
            config.trainer_config_process(options)
            config.trainer_config_finalize(options, None, 10)

    return check


def llamafactory(root: Path) -> Check:
    """LLaMA-Factory's parser, as of several ranks; DeepSpeed's stage stands for its JSON."""
    os.environ |= {"DISABLE_VERSION_CHECK": "1"}
    _import_from(root / "src", root)
    from llamafactory.hparams import parser
    from transformers.training_args import ParallelMode

    def check(settings: dict[str, Any]) -> None:
        stage = settings.pop(JSON, {}).get("zero_optimization", {}).get("stage", 0)
        parser.is_deepspeed_zero3_enabled = lambda: stage == 3
        parser.is_torch_bf16_gpu_available = lambda: True
        parser.check_version = lambda *words, **named: None
        parser.TrainingArguments.parallel_mode = property(lambda self: ParallelMode.DISTRIBUTED)
        parser.get_train_args({**settings, "use_cpu": True, "report_to": "none"})

    return check


def axolotl(root: Path) -> Check:
    """axolotl's schema."""
    _import_from(root / "src", root, ("ring_flash_attn",))
    from axolotl.utils.schemas.config import AxolotlInputConfig

    return lambda settings: AxolotlInputConfig(**settings) and None


def gpt_neox(root: Path) -> Check:
    """gpt-neox's arguments; DeepSpeed lies beside its checkout, in a folder ``DeepSpeed``."""
    _import_from(root.parent / "DeepSpeed", root)
    _import_from(root, root, _OF_TEXT)
    from megatron.neox_arguments import NeoXArgs

    return lambda settings: NeoXArgs.from_dict(settings) and None


PROGRAMS: dict[str, tuple[str, Callable[[Path], Check]]] = {
    "deepspeed": ("DeepSpeed", deepspeed),
    "trainer": ("DeepSpeed", trainer),
    "llamafactory": ("LLaMA-Factory", llamafactory),
    "axolotl": ("axolotl", axolotl),
    "gpt-neox": ("gpt-neox", gpt_neox),
    "verl": ("verl", verl),
    "nemo-rl": ("NeMo-RL", nemo_rl),
    "olmo": ("OLMo-core", olmo),
}
"""Checkout and check of each program, by its name in the cases."""


def _import_from(path: Path, root: Path, stood_in: tuple[str, ...] = ()) -> None:
    """Let a checkout's packages be imported; some that are not installed answer to any name."""
    from benchmarks.mindspeed.stand_ins import stand_in

    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    sys.path.insert(0, str(path))
    stand_in(frozenset(stood_in))
