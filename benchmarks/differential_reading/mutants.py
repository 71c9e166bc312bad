"""Sound training files changed as people change them: other sizes and degrees, other flags, other spelling.

Nothing here knows the product's readers. A mutant may ask for what no launcher starts; both readers then say so, or it
is counted as refused.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

import yaml

Change = Callable[[str, random.Random], str]

_ADDED_FLAGS: tuple[Callable[[random.Random], str], ...] = (
    lambda draw: "--use-distributed-optimizer",
    lambda draw: "--sequence-parallel",
    lambda draw: "--swiglu",
    lambda draw: f"--group-query-attention --num-query-groups {draw.choice([1, 2, 4, 8])}",
    lambda draw: "--recompute-activations",
    lambda draw: "--recompute-granularity selective",
    lambda draw: (
        f"--recompute-granularity full --recompute-method uniform --recompute-num-layers {draw.choice([1, 2])}"
    ),
    lambda draw: (
        f"--recompute-granularity full --recompute-method block --recompute-num-layers {draw.choice([0, 1, 2, 3, 9])}"
    ),
    lambda draw: f"--tensor-model-parallel-size {draw.choice([1, 2, 4, 8])}",
    lambda draw: f"--pipeline-model-parallel-size {draw.choice([1, 2, 4, 8])}",
    lambda draw: f"--context-parallel-size {draw.choice([1, 2, 4])}",
    lambda draw: f"--expert-model-parallel-size {draw.choice([1, 2, 4, 8])}",
    lambda draw: f"--num-layers-per-virtual-pipeline-stage {draw.choice([1, 2, 4, 5])}",
    lambda draw: f"--num-virtual-stages-per-pipeline-rank {draw.choice([1, 2, 4])}",
    lambda draw: f"--decoder-first-pipeline-num-layers {draw.choice([1, 2, 4, 6])}",
    lambda draw: f"--decoder-last-pipeline-num-layers {draw.choice([1, 2, 4, 6])}",
    lambda draw: "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
    lambda draw: f"--make-vocab-size-divisible-by {draw.choice([1, 64, 256])}",
    lambda draw: f"--global-batch-size {draw.choice([32, 64, 256, 1024])}",
    lambda draw: f"--micro-batch-size {draw.choice([1, 2, 4])}",
    lambda draw: f"--ffn-hidden-size {draw.choice([4096, 11008, 14336])}",
    lambda draw: f"--moe-layer-freq {draw.choice([1, 2, 3])}",
    lambda draw: f"--num-experts {draw.choice([1, 4, 8, 64])}",
    lambda draw: f"--moe-router-topk {draw.choice([1, 2, 4])}",
    lambda draw: f"--moe-ffn-hidden-size {draw.choice([512, 1408])}",
    lambda draw: f"--noop-layers {','.join(map(str, sorted(draw.sample(range(16), draw.choice([1, 2, 4])))))}",
    lambda draw: f"--first-k-dense-replace {draw.choice([0, 1, 2, 3])}",
    lambda draw: "--moe-tp-extend-ep",
    lambda draw: "--enable-recompute-layers-per-pp-rank",
    lambda draw: "--schedules-method dualpipev",
)
"""Flags that a person adds behind others."""


def mutated(text: str, suffix: str, draw: random.Random) -> str:
    """One to three changes of a file of a launcher, which its name's ending tells."""
    changes = {".sh": _SHELL, ".yaml": _YAML, ".yml": _YAML, ".toml": _TOML}[suffix]
    for _ in range(draw.choice([1, 1, 2, 3])):
        text = draw.choice(changes)(text, draw)
    return text


def _other_number(number: int, draw: random.Random) -> int:
    near = [2 * number, number // 2, number + 1, max(1, number - 1), 1, 2, 4, 8]
    return draw.choice([value for value in near if 0 < value != number])


def _replaced(text: str, pattern: str, draw: random.Random, new: Callable[[re.Match[str]], str]) -> str:
    """One match of the pattern, drawn, with its group ``it`` replaced."""
    found = list(re.finditer(pattern, text, re.MULTILINE))
    if not found:
        return text
    match = draw.choice(found)
    return text[: match.start("it")] + new(match) + text[match.end("it") :]


# Launch scripts

_FLAG_VALUE = r"(?<![\w-])--[a-z][\w-]*(?:[ \t]+|=)(?P<it>\d+)(?![\w.])"
_WHOLE_FLAG = r"(?P<it>(?<=[\s\"'(])--[a-z][\w-]*(?:(?:[ \t]+|=)(?![-\\#|>])[\w./${}:,-]+)?)(?=[\s\"')])"


def _flag_number(text: str, draw: random.Random) -> str:
    return _replaced(text, _FLAG_VALUE, draw, lambda match: str(_other_number(int(match["it"]), draw)))


def _variable_number(text: str, draw: random.Random) -> str:
    pattern = r"^[ \t]*(?:export )?[A-Za-z_]\w*=[\"']?(?:\$\{\w+:-)?(?P<it>\d{1,6})\}?[\"']?[ \t]*$"
    return _replaced(text, pattern, draw, lambda match: str(_other_number(int(match["it"]), draw)))


def _flag_left_out(text: str, draw: random.Random) -> str:
    return _replaced(text, _WHOLE_FLAG, draw, lambda match: "")


def _flag_added(text: str, draw: random.Random) -> str:
    return _replaced(text, _WHOLE_FLAG, draw, lambda match: f"{match['it']} {draw.choice(_ADDED_FLAGS)(draw)}")


def _flag_spelt(text: str, draw: random.Random) -> str:
    """The value written as an expansion, arithmetic or behind ``=``: the same number."""

    def new(match: re.Match[str]) -> str:
        value = match["it"]
        half, odd = divmod(int(value), 2)
        return draw.choice([f"${{NOT_SET_ANYWHERE:-{value}}}", f"$(({half} * 2 + {odd}))", f"$((0 + {value}))"])

    if draw.random() < 0.4:
        return _replaced(text, r"--[a-z][\w-]*(?P<it>[ \t]+)\d+(?![\w.])", draw, lambda match: "=")
    return _replaced(text, _FLAG_VALUE, draw, new)


def _flag_in_a_branch(text: str, draw: random.Random) -> str:
    """A flag's value from a variable that a settled condition sets."""
    found = list(re.finditer(_FLAG_VALUE, text, re.MULTILINE))
    if not found:
        return text
    match = draw.choice(found)
    value, name = match["it"], f"CHOSEN_{draw.randrange(1000)}"
    wrong = _other_number(int(value), draw)
    head = draw.choice(
        [
            f"if [ {wrong} -eq {value} ]; then {name}={wrong}; else {name}={value}; fi\n",
            f'{name}={wrong}\nif [[ "{value}" == "{value}" ]]; then\n  {name}={value}\nfi\n',
            f"SIZE_{name}=b\ncase $SIZE_{name} in\n  a) {name}={wrong} ;;\n  b) {name}={value} ;;\n  *) exit 1\nesac\n",
            f"[ {value} -gt {wrong} ] && {name}={max(int(value), wrong)} || {name}={min(int(value), wrong)}\n",
        ]
    )
    if head.startswith("["):
        value = str(max(int(value), wrong) if int(value) > wrong else min(int(value), wrong))
    body = text[: match.start("it")] + "${" + name + "}" + text[match.end("it") :]
    first, sign, rest = body.partition("\n")
    return first + sign + head + rest if first.startswith("#!") else head + body


_SHELL: tuple[Change, ...] = (
    _flag_number, _flag_number, _variable_number, _variable_number, _flag_left_out, _flag_added, _flag_added,
    _flag_added, _flag_spelt, _flag_in_a_branch,
)  # fmt: skip

# MindFormers


def _yaml_number(text: str, draw: random.Random) -> str:
    pattern = r"^[ \t]+\w+:[ \t]+(?:&\w+[ \t]+)?(?P<it>\d{1,6})[ \t]*(?:#.*)?$"
    return _replaced(text, pattern, draw, lambda match: str(_other_number(int(match["it"]), draw)))


def _yaml_switch(text: str, draw: random.Random) -> str:
    pattern = (
        r"^[ \t]+(?:recompute|select_recompute|use_seq_parallel|enable_parallel_optimizer|pipeline_interleave"
        r"|use_flash_attention|multi_query_attention):[ \t]+(?P<it>True|False|true|false)[ \t]*(?:#.*)?$"
    )
    return _replaced(text, pattern, draw, lambda match: "False" if match["it"].lower() == "true" else "True")


def _yaml_left_out(text: str, draw: random.Random) -> str:
    pattern = r"^(?P<it>[ \t]+\w+:[ \t]+(?!&)[\w.-]+[ \t]*(?:#.*)?\n)"
    return _replaced(text, pattern, draw, lambda match: "")


def _yaml_value(text: str, draw: random.Random) -> str:
    """A key of one section set again in the parsed file, which is then written in another layout."""
    top = yaml.safe_load(text)
    if not isinstance(top, dict):
        return text
    degrees = top.setdefault("parallel_config", {}) or {}
    model = ((top.get("model") or {}).get("model_config")) or {}
    stages = degrees.get("pipeline_stage") or 1
    layers = model.get("num_layers") or model.get("num_hidden_layers") or 0
    kind = draw.randrange(5)
    if kind == 0:
        name = draw.choice(["data_parallel", "model_parallel", "context_parallel", "expert_parallel"])
        degrees[name] = draw.choice([1, 2, 4, 8])
    elif kind == 1:
        degrees["pipeline_stage"], degrees["micro_batch_num"] = draw.choice([2, 4, 8]), draw.choice([8, 16, 32])
        model["offset"] = 0
    elif kind == 2 and layers:
        chunks = draw.choice([1, 2, 3])
        if chunks > 1:
            top.setdefault("parallel", {}).setdefault("pipeline_config", {})["pipeline_interleave"] = True
        model["pp_interleave_num"] = chunks
        model["offset"] = _offsets(layers, stages, chunks, draw)
    elif kind == 3:
        top["recompute_config"] = {"recompute": _counts(stages, model.get("pp_interleave_num") or 1, draw)}
    elif kind == 4:
        stated = draw.choice([True, False, _counts(stages, 1, draw)])
        top["recompute_config"] = {"recompute": False, "select_recompute": stated}
    flow = draw.choice([None, False])
    return yaml.safe_dump(top, default_flow_style=flow, sort_keys=draw.random() < 0.5, width=draw.choice([40, 200]))


def _offsets(layers: int, stages: int, chunks: int, draw: random.Random) -> object:
    """An offset that places all layers, as one list or one a chunk."""
    rows = [[0] * stages for _ in range(chunks)]
    for _ in range(layers % (stages * chunks)):
        rows[draw.randrange(chunks)][draw.randrange(stages)] += 1
    for _ in range(draw.choice([0, 1, 2])):
        a, b, c, d = (draw.randrange(count) for count in (chunks, stages, chunks, stages))
        rows[a][b] += 1
        rows[c][d] -= 1
    return rows[0] if chunks == 1 and draw.random() < 0.7 else rows


def _counts(stages: int, chunks: int, draw: random.Random) -> object:
    row = [draw.choice([0, 1, 2, 3, 5, 20]) for _ in range(stages)]
    if chunks == 1 or draw.random() < 0.4:
        return draw.choice([row, row, [row], [bool(value) for value in row]])
    return [[draw.choice([0, 1, 2, 9]) for _ in range(stages)] for _ in range(chunks)]


_YAML: tuple[Change, ...] = (_yaml_number, _yaml_number, _yaml_switch, _yaml_left_out, _yaml_value, _yaml_value)

# torchtitan

_TOML_SET: dict[str, Sequence[str]] = {
    "tensor_parallel_degree": ("1", "2", "4", "8"),
    "pipeline_parallel_degree": ("1", "2", "4", "8"),
    "context_parallel_degree": ("1", "2"),
    "data_parallel_shard_degree": ("-1", "1", "4", "8", "16"),
    "data_parallel_replicate_degree": ("1", "2", "4"),
    "expert_parallel_degree": ("1", "2", "4", "8"),
    "pipeline_parallel_schedule": ('"1F1B"', '"GPipe"', '"Interleaved1F1B"', '"ZBVZeroBubble"', '"DualPipeV"'),
    "pipeline_parallel_layers_per_stage": ("1", "2", "3", "4", "5", "8"),
    "pipeline_parallel_first_stage_less_layers": ("0", "1", "2"),
    "pipeline_parallel_last_stage_less_layers": ("0", "1", "2"),
    "pipeline_parallel_microbatch_size": ("1", "2"),
    "local_batch_size": ("1", "4", "8", "16", "32"),
    "global_batch_size": ("-1", "64", "256", "1024"),
    "seq_len": ("2048", "8192"),
    "mode": ('"full"', '"none"', '"selective"'),
    "selective_ac_option": ('"1"', '"2"', '"3"', '"5"', '"op"'),
    "flavor": ('"8B"', '"70B"', '"405B"', '"16B"', '"671B"', '"32B"'),
}
_HOMES = {
    "local_batch_size": "training", "global_batch_size": "training", "seq_len": "training", "flavor": "model",
    "mode": "activation_checkpoint", "selective_ac_option": "activation_checkpoint",
}  # fmt: skip


def _toml_set(text: str, draw: random.Random) -> str:
    name = draw.choice(list(_TOML_SET))
    value, home = draw.choice(_TOML_SET[name]), _HOMES.get(name, "parallelism")
    stated = re.compile(rf"^(\s*){name}\s*=[^\n#]*", re.MULTILINE)
    if stated.search(text):
        return stated.sub(lambda match: f"{match[1]}{name} = {value} ", text)
    if f"[{home}]" not in text:
        return f"{text.rstrip()}\n\n[{home}]\n{name} = {value}\n"
    return text.replace(f"[{home}]", f"[{home}]\n{name} = {value}", 1)


def _toml_number(text: str, draw: random.Random) -> str:
    pattern = r"^\s*\w+\s*=\s*(?P<it>\d{1,6})\s*(?:#.*)?$"
    return _replaced(text, pattern, draw, lambda match: str(_other_number(int(match["it"]), draw)))


def _toml_left_out(text: str, draw: random.Random) -> str:
    return _replaced(text, r"^(?P<it>\s*\w+\s*=\s*[\w\".-]+[ \t]*(?:#.*)?\n)", draw, lambda match: "\n")


_TOML: tuple[Change, ...] = (_toml_set, _toml_set, _toml_set, _toml_number, _toml_left_out)
