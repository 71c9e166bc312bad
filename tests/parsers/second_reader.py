"""A second reader of ms-swift's and slime's scripts, which shares no code with the product.

It knows these scripts' own form alone: one command, arrays of options, one file taken in; it expands nothing else.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

LAYERS = {
    "qwen2.5-0.5b": "d" * 24,
    "qwen2.5-7b": "d" * 28,
    "qwen2.5-14b": "d" * 48,
    "qwen2.5-72b": "d" * 80,
    "qwen3-4b": "d" * 36,
    "qwen3-8b": "d" * 36,
    "qwen3-vl-8b": "d" * 36,
    "qwen3-14b": "d" * 40,
    "qwen3-32b": "d" * 64,
    "qwen3-30b-a3b": "m" * 48,
    "qwen3-vl-30b-a3b": "m" * 48,
    "qwen3-235b-a22b": "m" * 94,
    "moonlight-16b-a3b": "d" + "m" * 26,
    "glm-4.5-air": "d" + "m" * 45,
    "qwen3-next-80b-a3b": "lllm" * 12,
    "qwen3.5-0.8b": "ggga" * 6,
    "qwen3.5-2b": "ggga" * 6,
    "qwen3.5-4b": "ggga" * 8,
    "qwen3-vl-2b": "d" * 28,
    "qwen3-vl-4b": "d" * 36,
    "qwen3.5-27b": "ggga" * 16,
    "qwen3.5-35b-a3b": "lllm" * 10,
    "gpt-oss-20b": "m" * 24,
}
"""Layers by the models' cards: d attention and MLP, m attention and experts, l linear attention and experts, g linear
attention and MLP, a attention and MLP between those."""
KINDS = {"d": (False, False), "m": (True, False), "l": (True, True), "g": (False, True), "a": (False, False)}


def letters_of(model: str) -> list[tuple[bool, bool]] | None:
    """Experts and linear attention of every layer of a model by its Hugging Face name; None where it is not listed."""
    name = re.sub(r"-(instruct|base|it|thinking|fp8|bf16|2507|hf)(?=-|$)", "", model.rsplit("/", 1)[-1].lower())
    name = re.sub(r"-(instruct|base|2507|fp8|embedding|reranker)(?=-|$)", "", name)
    return [KINDS[letter] for letter in LAYERS[name]] if name in LAYERS else None


def swift_facts(path: Path) -> dict[str, Any]:
    """The facts of a script of ``megatron pt``, ``sft`` or ``rlhf``."""
    text = re.sub(r"^[ \t]*#.*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    text = re.sub(r"\\[ \t]*\n", " ", text)
    line = next(each for each in text.splitlines() if re.search(r"\bmegatron\s+(pt|sft|rlhf)\b", each))
    variables = dict(re.findall(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(\S+)\s*$", text, re.MULTILINE))
    words = shlex.split(re.sub(r"\$\{?([A-Za-z_]\w*)\}?", lambda m: variables.get(m[1], m[0]).strip("\"'"), line))
    at = next(k for k, word in enumerate(words) if word == "megatron")
    variables |= dict(word.split("=", 1) for word in words[:at] if "=" in word)
    options: dict[str, str] = {}
    for word in words[at:]:
        if word.endswith((".yaml", ".yml")):
            file = next(folder / word for folder in path.parents if (folder / word).is_file())
            stated = yaml.safe_load(file.read_text(encoding="utf-8"))
            options |= {
                key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in stated.items()
            }
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("--"):
            options[word[2:]] = after

    def number(name: str, default: int) -> int:
        return int(options.get(name, default))

    tp, pp = number("tensor_model_parallel_size", 1), number("pipeline_model_parallel_size", 1)
    cp, ep = number("context_parallel_size", 1), number("expert_model_parallel_size", 1)
    ranks = [variables.get("NPROC_PER_NODE"), variables.get("NNODES", "1")]
    world = int(ranks[0]) * int(ranks[1]) if all(each and each.isdecimal() for each in ranks) else None  # type: ignore[arg-type]
    length = int(options.get("packing_length", options["max_length"]))
    if options.get("rlhf_type") in ("grpo", "gkd"):
        length += number("max_completion_length", 512)
    granularity = options.get("recompute_granularity", "selective")
    fp8 = options.get("fp8_format")
    return {
        "world": world,
        "degrees": (tp, pp, cp, ep),
        "batch": (number("global_batch_size", 16), number("micro_batch_size", 1)),
        "length": length,
        "layers": letters_of(options["model"]),
        "mtp": number("mtp_num_layers", 0),
        "recompute": granularity,
        "precision": (options.get("fp8_recipe", "delayed") if fp8 else None),
        "sp": options.get("sequence_parallel") == "true" and tp > 1,
    }


def _slime_text(path: Path) -> str:
    """A script behind the file of a model that it takes in, without lines of comments."""
    text = path.read_text(encoding="utf-8")
    named = re.search(r"^[^#\n]*source\s+.*?(models/[\w.-]+\.sh)", text, re.MULTILINE)
    if named:
        root = next(above for above in path.parents if (above / "scripts" / "models").is_dir())
        model = (root / "scripts" / named[1]).read_text(encoding="utf-8")
        again = re.search(r"^(?:\w+=\S+ )?source .*?([\w.-]+\.sh)\"?$", model, re.MULTILINE)
        if again:
            model = (root / "scripts" / "models" / again[1]).read_text(encoding="utf-8") + "\n" + model
        text = model + "\n" + text
    return re.sub(r"^[ \t]*#.*$", "", text, flags=re.MULTILINE)


def _arrays(text: str) -> dict[str, str]:
    arrays: dict[str, str] = {}
    name = None
    for line in text.splitlines():
        bare = re.sub(r"(^|\s)#.*$", "", line).strip()
        begun = re.match(r"(?:export )?(\w+)=\($", bare)
        if begun:
            name = begun[1]
            arrays[name] = ""
        elif name and bare.startswith(")"):
            name = None
        elif name:
            arrays[name] += " " + bare
    return arrays


def _slime_options(text: str) -> dict[str, str]:
    arrays = _arrays(text)
    command = re.sub(r"\\[ \t]*\n", " ", text)
    line = next(each for each in command.splitlines() if "--actor-num-nodes" in each)
    line = re.sub(r"\"?\$\{(\w+)\[@\]\}\"?", lambda m: arrays.get(m[1], "").replace("\n", " "), line)
    words = re.findall(r"\"[^\"]*\"|'[^']*'|\$\(\(.*?\)\)|\S+", re.sub(r"#[^\n\"']*$", "", line))
    pairs = zip(words, [*words[1:], ""], strict=True)
    return {word[2:]: after.strip("\"'") for word, after in pairs if word.startswith("--")}


class _Numbers:
    """Whole numbers of options, through variables with defaults and sums."""

    def __init__(self, text: str, options: dict[str, str]) -> None:
        scalar = r"^\s*(?:export\s+)?([A-Z_][A-Z_0-9]*)=\"?([\w.{}:$-]+)\"?\s*(?:#.*)?$"
        self.scalars, self.options = dict(re.findall(scalar, text, re.MULTILINE)), options

    def value(self, value: str, depth: int = 0) -> int:
        if value.startswith("$(("):
            return sum(self.value(part.strip(), depth) for part in value[3:-2].split("+"))
        if value.isdecimal() or depth > 5:
            return int(value)
        name, _, otherwise = value.strip("${}").partition(":-")
        known = self.scalars.get(name, "")
        return self.value(otherwise if known in ("", value) and otherwise else known, depth + 1)

    def __call__(self, name: str, default: int | None = None) -> int:
        return self.value(str(self.options.get(name, default)))

    def length(self, context_parallel: int) -> int:
        if "rollout-max-context-len" in self.options:
            return self("rollout-max-context-len")
        if "rollout-max-response-len" in self.options:
            return self("rollout-max-response-len") + self("rollout-max-prompt-len", 0)
        return self("max-tokens-per-gpu") * context_parallel

    def samples(self) -> int:
        if "num-steps-per-rollout" not in self.options:
            return self("global-batch-size")
        return self("rollout-batch-size") * self("n-samples-per-prompt", 1) // self("num-steps-per-rollout")


def slime_facts(path: Path) -> dict[str, Any]:
    """The facts of a script that starts slime's ``train.py``, and of the file of a model that it takes in."""
    text = _slime_text(path)
    options = _slime_options(text)
    number = _Numbers(text, options)
    tp, pp = number("tensor-model-parallel-size", 1), number("pipeline-model-parallel-size", 1)
    cp, ep = number("context-parallel-size", 1), number("expert-model-parallel-size", 1)
    dense = re.search(r"(?:FIRST_K_DENSE_REPLACE|N_DENSE_LAYERS)=(\d+)", text)
    first = int(dense[1]) if dense else 0
    linear = re.search(r"qwen3_(?:next|5)", options.get("spec", "")) is not None
    experts = "num-experts" in options
    return {
        "world": number("actor-num-nodes", 1) * number("actor-num-gpus-per-node", 8),
        "degrees": (tp, pp, cp, ep),
        "batch": (number.samples(), number("micro-batch-size", 1)),
        "length": number.length(cp),
        "layers": [(experts and k >= first, linear and (k + 1) % 4 != 0) for k in range(number("num-layers"))],
        "mtp": number("mtp-num-layers", 0),
        "recompute": options.get("recompute-granularity"),
        "precision": options.get("fp8-recipe", "delayed") if "fp8-format" in options else None,
        "sp": "sequence-parallel" in options and tp > 1,
    }
