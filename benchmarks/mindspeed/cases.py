"""Every start rule broken once and obeyed once, as flags beside those of a small job."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

CASES = Path(__file__).with_name("cases.yaml")
_COMMON = (
    "--use-flash-attn --num-layers 16 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 "
    "--seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 "
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --position-embedding-type rope "
    "--normalization RMSNorm --swiglu --disable-bias-linear --use-fused-swiglu --sequence-parallel "
    "--untie-embeddings-and-output-weights --bf16 --use-distributed-optimizer --tokenizer-type NullTokenizer "
    "--vocab-size 32000 --transformer-impl local --no-gradient-accumulation-fusion"
)
_EXPERTS = (
    "--num-experts 16 --moe-router-topk 2 --moe-ffn-hidden-size 1408 --moe-grouped-gemm --expert-model-parallel-size 2 "
    "--moe-token-dispatcher-type alltoall"
)
_LATENT = "--multi-latent-attention --qk-layernorm"
BASES = {"dense": _COMMON, "experts": f"{_COMMON} {_EXPERTS}", "latent": f"{_COMMON} {_LATENT}"}
WORLD = 16


@dataclass(frozen=True)
class Case:
    """One rule, and the flags that break and that obey it.

    Parameters
    ----------
    program : str
        ``MindSpeed`` or ``MindSpeed-LLM``.
    base : str
        One of `BASES`.
    broken, obeyed : str
        Flags set beside the base's; ``!name`` takes one out.
    read : str
        Flags of later releases without which a reader knows no sizes.
    """

    rule: str
    program: str
    base: str
    broken: str
    obeyed: str
    read: str = ""

    def words(self, *, breaking: bool) -> list[str]:
        """All flags of the launch."""
        return merged(BASES[self.base], self.broken if breaking else self.obeyed)


def merged(base: str, changes: str) -> list[str]:
    """The flags of a base with changes made to them."""
    flags: dict[str, list[str]] = {}
    for word in shlex.split(base) + shlex.split(changes):
        if word.startswith("!"):
            flags.pop(f"--{word[1:]}", None)
        elif word.startswith("--"):
            flags[word] = []
            name = word
        else:
            flags[name].append(word)
    return [word for flag, values in flags.items() for word in (flag, *values)]


def neighbours(changes: str, choices: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The same changes with one flag less, one number moved, or another of the values that the program's parser knows.

    Parameters
    ----------
    choices : mapping
        Values by flag (``--name``), of flags that have a list of them.
    """
    groups: list[list[str]] = []
    for word in shlex.split(changes):
        if word.startswith(("--", "!")):
            groups.append([])
        groups[-1].append(word)
    for at, (flag, *values) in enumerate(groups):
        others: list[list[str]] = [[]]
        for place, value in enumerate(values):
            number = int(value) if value.isdecimal() else None
            moved = [] if number is None else [number - 1, number + 1, number // 2, 2 * number]
            texts = [*map(str, dict.fromkeys(moved)), *map(str, choices.get(flag, ()))]
            others += [
                [flag, *values[:place], text, *values[place + 1 :]]
                for text in dict.fromkeys(texts)
                if text != value and not text.startswith("-")
            ]
        for other in others:
            yield shlex.join(word for group in (*groups[:at], other, *groups[at + 1 :]) for word in group)


def of_program(program: str, words: list[str]) -> list[str]:
    """A launch's flags with those that say whose it is."""
    return [*words, "--use-fused-swiglu", *(["--no-shared-storage"] if program == "MindSpeed-LLM" else [])]


def launch(program: str, words: list[str], folder: Path, world: int = WORLD) -> Path:
    """A script that starts a program with these flags."""
    path = folder / "launch.sh"
    quoted = " ".join(shlex.quote(word) for word in of_program(program, words))
    path.write_text(f"torchrun --nproc_per_node {world} --nnodes 1 pretrain_gpt.py {quoted}\n", encoding="utf-8")
    return path


def read_cases() -> list[Case]:
    """The cases of the file, a rule that both programs have for each of them."""
    found = []
    for rule, entry in yaml.safe_load(CASES.read_text(encoding="utf-8")).items():
        programs = entry.get("programs", ["MindSpeed", "MindSpeed-LLM"])
        found += [
            Case(rule, program, entry.get("base", "dense"), entry["broken"], entry["obeyed"], entry.get("read", ""))
            for program in programs
        ]
    return found
