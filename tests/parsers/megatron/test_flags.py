"""Every flag of a Megatron or MindSpeed launch is read, known to cost nothing, or named."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taylor.base.errors import InputError
from taylor.parsers.flag_table import COSTS, NEUTRAL, READ, FlagRow, UnmodelledFlag
from taylor.parsers.megatron.expert_overlap import EXPERT_OVERLAP, FB_OVERLAP
from taylor.parsers.megatron.mindspeed import telltales
from taylor.parsers.megatron.offload import OFFLOAD_MODULES, OFFLOADING
from taylor.parsers.megatron.ranks import GRID_FLAGS
from taylor.parsers.megatron.read import (
    DOCUMENT_MASKS,
    config_from_launch,
)
from taylor.parsers.megatron.recompute import EXCHANGE_OVERLAPS, IN_ADVANCE, IN_BUBBLE
from taylor.parsers.megatron.script import Script
from taylor.parsers.megatron.swap import SWAP_MODULES, SWAPPING
from taylor.parsers.megatron.unmodelled import (
    EXPERTS,
    MINDSPEED,
    PLAIN_NORMS,
    ROUTER_CASTS,
    SCORES,
    flag_table,
    read_unmodelled,
)
from taylor.parsers.registry import launcher_of
from taylor.parsers.text.flag_edit import Setting
from taylor.parsers.text.flags import Flags
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.training_config import TrainingConfig
from tests.conftest import ROOT

SAMPLES = ROOT.parent / "shared" / "data"
NAMES = Path(__file__).parent / "flag_names"
TABLE = flag_table()
ROWS = TABLE.rows.values()
BY_LEGALITY = (
    "no-overlap-p2p-communication", "kv-head-repeat-before-uly-alltoall", "ulysses-degree-in-cp", "cp-comm-type",
    "hierarchical-context-parallel-sizes", "cpu-offloading-num-layers", "decoder-seq-length",
)  # fmt: skip
"""Flags by which strategies are judged, and whose cost no figure has."""
BY_TIME = (
    "interleave-sliding-window", "tp-comm-overlap", EXPERT_OVERLAP, FB_OVERLAP, "moe-pad-expert-input-to-capacity",
    "moe-router-padding-for-quantization", "moe-router-padding-for-fp8", "enable-cuda-graph", "external-cuda-graph",
    "cuda-graph-impl", "cuda-graph-modules", "cuda-graph-scope",
)  # fmt: skip
"""Flags that the time of a step knows, and whose memory no figure has."""


def _flags_of(text: str) -> dict[str, Setting]:
    """Flags written one after the other, as a mapping."""
    found: dict[str, Setting] = {}
    for part in text.split("--")[1:]:
        name, _, value = part.strip().partition(" ")
        found[name] = value.strip() or True
    return found


def _file_flags(path: Path) -> dict[str, Setting]:
    flags = Script.read(path).flags.by_name.values()
    return {flag.name: flag.values[0].text if flag.values else True for flag in flags}


DENSE_BASE = _file_flags(ROOT / "config" / "pretrain_llama3_70b.sh")
MOE_BASE = DENSE_BASE | _flags_of(
    "--num-layers 16 --num-experts 16 --moe-router-topk 4 --moe-ffn-hidden-size 2048 --expert-model-parallel-size 1 "
    "--moe-shared-expert-intermediate-size 2048 --moe-layer-freq ([0]*2+[1]*14)"
)
LATENT_BASE = MOE_BASE | _flags_of(
    "--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 "
    "--v-head-dim 128"
)
SPARSE_BASE = LATENT_BASE | _flags_of(
    "--experimental-attention-variant dsa --dsa-indexer-n-heads 8 --dsa-indexer-head-dim 128 --dsa-indexer-topk 1024 "
    "--dsa-indexer-topk-freq 3"
)
LINEAR_BASE = DENSE_BASE | _flags_of("--experimental-attention-variant gdn --linear-attention-freq 4")
WINDOW_BASE = DENSE_BASE | _flags_of("--window-size 1023,0 --window-attn-skip-freq 4")
HYBRID_BASE = DENSE_BASE | _flags_of(
    "--num-layers 8 --is-hybrid-model --pipeline-model-parallel-size 1 --hybrid-attention-ratio 0.2"
)
PATTERN_BASE = DENSE_BASE | _flags_of("--hybrid-override-pattern M-M*G-M- --mtp-num-layers 1 --num-layers 8")
PATTERN_BASE["pipeline-model-parallel-size"] = "1"
BASES = {
    "dense": DENSE_BASE,
    "experts": MOE_BASE,
    "latent attention": LATENT_BASE,
    "sparse attention": SPARSE_BASE,
    "linear attention": LINEAR_BASE,
    "windows": WINDOW_BASE,
    "hybrid": HYBRID_BASE,
    "pattern": PATTERN_BASE,
}
STARTING = ("nproc-per-node", "nnodes", "worker-num", "local-worker-num", "node-rank", "master-addr", "master-port")


def _config(flags: dict[str, Setting], *, training: str = "") -> TrainingConfig:
    flags = {name: setting for name, setting in flags.items() if setting is not False}

    def written(names: Iterable[str]) -> str:
        return " ".join(f"--{name}" + ("" if flags[name] is True else f" '{flags[name]}'") for name in names)

    start = [name for name in flags if name in STARTING]
    text = f"torchrun {written(start)} pretrain_gpt.py {written(set(flags) - set(start))} {training}\n"
    return config_from_launch(Script(ShellScript(text, Path("pretrain.sh"))))


def _figures(config: TrainingConfig) -> tuple[Any, ...]:
    # Whether a norm is a kernel of its own shows only where it may run again by itself.
    rules = config.rules if config.rules.selective is not None else config.rules.replace(fused_norms=False)
    return config.model, config.strategy, rules, config.schedule, config.plan


def _outcome(flags: dict[str, Setting]) -> tuple[tuple[Any, ...] | str, tuple[UnmodelledFlag, ...]]:
    """What is planned with, or the message of the refusal; and the flags that are named."""
    try:
        config = _config(flags)
    except InputError as error:
        return str(error), ()
    return (_figures(config), config.notes), config.unmodelled


NEEDED_VALUE: dict[str, Setting] = {
    "context-parallel-size": "2",
    "schedules-method": "dualpipev",
    "recompute-granularity": "selective",
    "num-virtual-stages-per-pipeline-rank": "2",
    "mtp-num-layers": "1",
    "moe-zero-memory": "level0",
    "lora-target-modules": "linear_qkv",
}


def _on(row: FlagRow) -> Setting:
    """A setting of the flag that is neither its default nor one that costs nothing."""
    if not row.takes_value:
        return True
    try:
        value = str(int(float(row.default or "1")) + 1)
    except ValueError:
        return "another"
    return "another" if value in row.silent else value


def _base_for(row: FlagRow) -> dict[str, Setting]:
    """A script in which the flag is in force, without the flag itself."""
    base = dict(DENSE_BASE)
    if row.name in telltales():
        # A script for MindSpeed: what its flag changes is not only whose script it is.
        base["overwrite-cache" if row.name == "print-expert-load" else "print-expert-load"] = True
    waiting, seen = [row], {row.name}
    while waiting:
        needs = waiting.pop().needs
        if not needs:
            continue
        if needs[0] in (EXPERTS, ROUTER_CASTS):
            base = {**MOE_BASE, **{name: value for name, value in base.items() if name not in DENSE_BASE}}
            if needs[0] == ROUTER_CASTS:
                base["use-fused-swiglu"] = True  # A script for MindSpeed.
        elif needs[0] == MINDSPEED:
            base["use-fused-swiglu"] = True
        elif SCORES in needs:
            base.pop("use-flash-attn", None)
            base["transformer-impl"] = "local"
        elif not seen.intersection(needs):
            needed = TABLE.rows[needs[0]]
            base.setdefault(needed.name, NEEDED_VALUE.get(needed.name, _on(needed)))
            waiting.append(needed)
            seen.add(needed.name)
    if OFFLOADING in base:
        base[OFFLOAD_MODULES] = "core_attn"  # It names a module, or the job does not start.
    base.pop(row.name, None)
    return base


# ---- the table is complete and true ------------------------------------------------------------------


def _releases(file: Path) -> list[tuple[str, set[str]]]:
    """Every release of a list of names, oldest first, with the flags that it has."""
    found: list[tuple[str, set[str]]] = []
    names: set[str] = set()
    for line in file.read_text().splitlines()[1:]:
        label, _, changes = line.partition(": ")
        words = changes.split()
        names = (names | {word[1:] for word in words if word[0] == "+"}) - {
            word[1:] for word in words if word[0] == "-"
        }
        found.append((label.rpartition(" (")[0], names))
    return found


RELEASES = {
    "Megatron-LM": _releases(NAMES / "megatron_lm.txt"),
    "MindSpeed-LLM": _releases(NAMES / "mindspeed_llm.txt"),
    "MindSpeed": _releases(NAMES / "mindspeed.txt"),
}


@pytest.mark.parametrize("launcher", RELEASES)
def test_every_flag_of_every_release_has_a_row(launcher: str) -> None:
    missing = {name for _, names in RELEASES[launcher] for name in names} - TABLE.rows.keys()
    assert not missing


def test_a_row_names_the_first_and_the_last_release_that_have_the_flag() -> None:
    wrong = {}
    for row in ROWS:
        having = []
        for launcher, releases in RELEASES.items():
            labels = [label for label, names in releases if row.name in names]
            if labels:
                span = labels[0] if labels[0] == labels[-1] else f"{labels[0]} to {labels[-1]}"
                having.append(f"{launcher} {span}")
        if having and row.versions != ", ".join(having):
            wrong[row.name] = (row.versions, having)
    assert not wrong


def test_every_row_cites_a_file_and_what_it_needs_is_in_the_table() -> None:
    assert not [row.name for row in ROWS if not re.search(r"[\w/]+\.py(:\d+)?$", row.source)]
    assert not [row.name for row in ROWS for need in row.needs if need[0] != "@" and need not in TABLE.rows]
    assert {need for row in ROWS for need in row.needs if need[0] == "@"} == {
        EXPERTS,
        SCORES,
        PLAIN_NORMS,
        ROUTER_CASTS,
        MINDSPEED,
    }


@pytest.fixture()
def asked(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names that reading and writing code asks for while a test runs."""
    names: set[str] = set()
    has, text = Flags.has, Flags.text

    def seen_has(self: Flags, *wanted: str) -> bool:
        names.update(wanted)
        return has(self, *wanted)

    def seen_text(self: Flags, *wanted: str, **more: Any) -> Any:
        names.update(wanted)
        return text(self, *wanted, **more)

    monkeypatch.setattr(Flags, "has", seen_has)
    monkeypatch.setattr(Flags, "text", seen_text)
    return names


def test_the_rows_called_read_are_the_flags_that_the_reader_and_the_writer_ask_for(
    asked: set[str], tmp_path: Path
) -> None:
    further = (
        {},
        {"position-embedding-type": False},
        {"schedules-method": "dualpipev"},
        _flags_of("--enable-zero-bubble"),
        _flags_of("--num-layer-list 20,20,20,20"),
        _flags_of("--noop-layers 0,1 --num-layers 84 --pipeline-model-parallel-size 2"),
        _flags_of("--decoder-first-pipeline-num-layers 19 --decoder-last-pipeline-num-layers 19"),
        _flags_of("--num-virtual-stages-per-pipeline-rank 2"),
        _flags_of("--num-layers-per-virtual-pipeline-stage 2"),
        _flags_of("--recompute-granularity full --recompute-method block --recompute-num-layers 1"),
        _flags_of("--recompute-activation-function --recompute-activation-function-num-layers 2"),
        _flags_of("--activations-checkpoint-method block --activations-checkpoint-num-layers 1"),
        _flags_of("--use-precision-aware-optimizer --main-grads-dtype bf16 --optimizer-cpu-offload"),
        _flags_of("--use-precision-aware-optimizer --fp8-format hybrid"),
        _flags_of("--optimizer sgd"),
        _flags_of("--lora-target-modules linear_qkv --lora-r 8"),
        _flags_of("--optimizer muon --fp4-format e2m1"),
        _flags_of("--use-megatron-fsdp"),
        _flags_of("--cross-entropy-loss-fusion"),
        {"fp16": True, "bf16": False},
        _flags_of("--swap-attention --swap-modules self_attention"),
        _flags_of("--recompute-mla-up-proj --moe-zero-memory level0 --moe-fb-overlap"),
    )
    for base in BASES.values():
        for extra in further:
            _outcome(base | extra)
    file = tmp_path / "pretrain.sh"
    for base in (DENSE_BASE, LATENT_BASE):
        words = " ".join(f"--{name}" + ("" if value is True else f" '{value}'") for name, value in base.items())
        file.write_text(f"torchrun {words}\n")
        config = config_from_launch(Script.read(file))
        assert config.plan is not None
        launcher_of(config).with_plan(config, config.plan, 8)
        launcher_of(config).with_strategy(config, config.strategy.replace(dp=2), None, {})
    read = {row.name for row in ROWS if row.status == READ}
    assert read - asked == set(), "rows called read that nothing asks for"
    assert asked - TABLE.rows.keys() == set(), "flags that are asked for and have no row"
    # Strategies are also judged, and norms told apart, by flags whose effect no figure has; what is moved to the host
    # has a price in a pipeline alone, and an overlap of the experts' exchange decides for another.
    unpriced = {*BY_LEGALITY, *BY_TIME, OFFLOADING, OFFLOAD_MODULES, SWAPPING, SWAP_MODULES}
    # Flags of a grid of TP's ranks leave with it where a plan has another TP.
    unpriced |= {*EXCHANGE_OVERLAPS, DOCUMENT_MASKS, *GRID_FLAGS, IN_BUBBLE, IN_ADVANCE, "stage"}
    unpriced |= {"context-parallel-algo", "use-fused-rmsnorm"}
    # What an unfused indexer keeps is counted; its parameters and time are not.
    unpriced |= {"enable-dsa-indexer", "use-fused-lightning-indexer", "use-fused-lightning-indexer-loss", "kv-compress"}
    assert asked - read - unpriced == set(), "flags that are asked for: their rows must say read"


# ---- no flag that costs is passed over in silence ----------------------------------------------------


def _changed_or_named(row: FlagRow, flags: dict[str, Setting], setting: Setting, before: Any = None) -> bool:
    """Whether a flag changes what is planned with; `before` is that without it, where it is known."""
    before = _outcome(flags)[0] if before is None else before
    after, named = _outcome(flags | {row.name: setting})
    if isinstance(after, str):
        return f"--{row.name}" in after
    return after != before or any(each.name == f"--{row.name}" for each in named)


@pytest.mark.slow
def test_a_flag_that_costs_changes_the_figures_or_is_named() -> None:
    silent = [row.name for row in ROWS if row.status == COSTS and not _changed_or_named(row, _base_for(row), _on(row))]
    assert silent == []


def test_the_sweep_sees_a_flag_that_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    row = TABLE.rows["swap-attention"]
    assert _changed_or_named(row, _base_for(row), True)
    monkeypatch.setitem(TABLE.rows, row.name, replace(row, status=NEUTRAL))  # type: ignore[misc]
    assert not _changed_or_named(row, _base_for(row), True)


READ_VALUES: tuple[Setting, ...] = (
    *(
        True,
        "2",
        "4",
        "1",
        "64",
        "0.5",
        "full",
        "none",
        "unfused",
        "local",
        "LayerNorm",
        "rope",
        "dualpipev",
        "bf16",
        "sgd",
        "lion",
        "mxfp8",
        "e4m3",
        "optim_grads",
        "te",
        "([0]*3+[1]*13)",
    ),
    *("127,0", "M-M*|M-M-", "M", "learnable", "HybridModel", "megatron.core.models.mamba.mamba_layer_specs"),
    *("9,9,9,9", "3,2,2,9", "0,1,2,3", "Et*20|t*20|t*20|t*20,L", "Et|(t|)*14,t,L"),
)
READ_BESIDE: dict[str, dict[str, Setting]] = {
    "lora-r": {"lora-target-modules": "linear_qkv"},
    "dualpipev-dw-detach": _flags_of("--schedules-method dualpipev"),
    "zero-bubble-max-pending-backward": _flags_of("--enable-zero-bubble"),
    "recompute-method": _flags_of("--recompute-granularity full"),
    "recompute-num-layers": _flags_of("--recompute-granularity full --recompute-method block"),
    "recompute-activation-function-num-layers": {"recompute-activation-function": True},
    "activations-checkpoint-num-layers": _flags_of("--activations-checkpoint-method block"),
    "enable-recompute-layers-per-pp-rank": _flags_of(
        "--recompute-granularity full --recompute-method block --recompute-num-layers 1"
        " --num-layers-per-virtual-pipeline-stage 2"
    ),
    "max-position-embeddings": {"position-embedding-type": False},
    "rotary-percent": {"no-rope-fusion": True},
    "use-fused-rotary-pos-emb": {"use-fused-rmsnorm": True},
    "use-rotary-position-embeddings": {"position-embedding-type": False},
    "qk-rope-head-dim": {"qk-pos-emb-head-dim": False},
    "qk-nope-head-dim": {"qk-head-dim": False},
    "moe-intermediate-size": {"moe-ffn-hidden-size": False},
    "cross-entropy-fusion-impl": {"cross-entropy-loss-fusion": True},
    "quick-geglu": {"swiglu": False},
    "geglu": {"swiglu": False},
    "gelu-tanh": {"swiglu": False},
    "fp16": {"bf16": False},
    "use-flash-attn": {"transformer-impl": "local"},
    "transformer-impl": {"use-flash-attn": False},
    "attention-backend": {"use-flash-attn": False},
    "local-worker-num": {"nproc-per-node": False},
    "accumulate-allreduce-grads-in-fp32": {"fp16": True, "bf16": False},
    **{
        name: {"use-precision-aware-optimizer": True}
        for name in ("main-grads-dtype", "main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype")
    },
    "optimizer-offload-fraction": {"use-precision-aware-optimizer": True, "optimizer-cpu-offload": True},
    "overlap-cpu-optimizer-d2h-h2d": {"use-precision-aware-optimizer": True, "optimizer-cpu-offload": True},
    "sgd-momentum": {"optimizer": "sgd"},
    "muon-scalar-optimizer": {"optimizer": "muon"},
    **{
        name: {"use-megatron-fsdp": True}
        for name in (
            "data-parallel-sharding-strategy",
            "megatron-fsdp-main-params-dtype",
            "megatron-fsdp-main-grads-dtype",
        )
    },
    "fp8-recipe": {"fp8-format": "hybrid"},
    "fp8-param-gather": {"fp8-format": "hybrid"},
    "fp4-recipe": {"fp4-format": "e2m1"},
    "fp4-param-gather": {"fp4-format": "e2m1"},
    "enable-gpt-oss": {"position-embedding-type": False},
    **dict.fromkeys(("tp-x", "tp-y"), _flags_of("--tp-2d")),
    "mamba-expand": {"mamba-num-heads": False},
    "mamba-chunk-size": {"reuse-fp32-param": True},
    "moe-router-force-load-balancing": {"expert-model-parallel-size": "2"},
    "moe-enable-deepep": {"moe-token-dispatcher-type": "flex", "moe-flex-dispatcher-backend": "ncclep"},
}
"""What stands beside a flag, or is missing beside it, where its effect shows."""


@pytest.mark.slow
def test_a_flag_that_is_read_changes_the_figures_or_is_refused_by_name() -> None:
    def heeded(row: FlagRow) -> bool:
        values = READ_VALUES if row.takes_value else (True,)
        for base in BASES.values():
            beside = READ_BESIDE.get(row.name, {})
            without = {name: value for name, value in (base | beside).items() if value and name != row.name}
            before = _outcome(without)[0]
            if any(_changed_or_named(row, without, value, before) for value in values):
                return True
        return False

    assert [row.name for row in ROWS if row.status == READ and not heeded(row)] == []


@pytest.mark.slow
def test_a_neutral_or_read_flag_is_silent() -> None:
    loud = []
    for row in ROWS:
        if row.status == NEUTRAL or (row.status == READ and not row.silent):
            try:
                config = _config(MOE_BASE | {row.name: _on(row)})
            except InputError:
                assert row.status == READ, row.name
                continue
            loud += [each.name for each in config.unmodelled if each.name == f"--{row.name}"]
    assert loud == []


@pytest.mark.slow
def test_a_neutral_flag_changes_no_figure() -> None:
    # A flag that MindSpeed alone has makes a script MindSpeed's, which turns queries apart unless it is told not to.
    base = MOE_BASE | {"use-fused-rotary-pos-emb": True}
    before = _figures(_config(base))
    changed = [
        row.name for row in ROWS if row.status == NEUTRAL and _figures(_config(base | {row.name: _on(row)})) != before
    ]
    assert changed == []


# ---- what is named, and what is not ------------------------------------------------------------------


def _named(flags: dict[str, Setting], **more: str) -> list[str]:
    return [each.name for each in _config(flags, **more).unmodelled]


def test_the_examples_of_the_package_hold_nothing_unmodelled() -> None:
    assert _named(DENSE_BASE) == [] and _named(LATENT_BASE) == []


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample files lie outside the repository")
def test_no_flag_of_a_published_script_is_unknown() -> None:
    unknown, read = {}, 0
    for path in sorted(SAMPLES.rglob("*.sh")):
        try:
            flags = Script.read(path).flags
        except InputError:
            continue  # It starts no training.
        read += 1
        unknown |= {each.name: path.name for each in read_unmodelled(flags, [EXPERTS, SCORES], TABLE) if not each.known}
    assert read > 100 and unknown == {}


def test_a_flag_that_needs_another_is_silent_until_that_one_has_an_effect() -> None:
    overlap = DENSE_BASE | {"tp-comm-overlap": True}
    assert _named(overlap) == ["--tp-comm-overlap"]
    assert _named(overlap | {"tensor-model-parallel-size": "1", "sequence-parallel": False}) == []
    assert _named(DENSE_BASE | {"moe-permute-fusion": True}) == []
    assert _named(MOE_BASE | {"moe-permute-fusion": True}) == ["--moe-permute-fusion"]
    assert _named(DENSE_BASE | {"no-masked-softmax-fusion": True}) == []


def test_an_unknown_flag_is_named_with_its_value() -> None:
    (found,) = _config(DENSE_BASE | {"hiden-size": "4096"}).unmodelled
    assert not found.known and found.sentence.startswith("--hiden-size 4096 is not known")


def test_an_option_of_what_starts_the_ranks_is_not_called_unknown() -> None:
    text = "srun --container-image=x torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --odd 1 "
    words = " ".join(f"--{name}" + ("" if value is True else f" {value}") for name, value in DENSE_BASE.items())
    config = config_from_launch(Script(ShellScript(text + words, Path("pretrain.sh"))))
    assert [each.name for each in config.unmodelled] == ["--odd"]


def test_what_stands_behind_a_switch_does_not_belong_to_it() -> None:
    (found,) = _config(DENSE_BASE, training="--no-align-param-gather stray").unmodelled
    said = (
        "--no-align-param-gather is not modelled; it means more or less time: "
        "whether stages reduce gradients and gather weights at the same time"
    )
    assert found.sentence == said


def test_a_flag_of_a_group_that_the_launch_does_not_use_is_not_in_force() -> None:
    words = " ".join(f"--{name}" + ("" if value is True else f" {value}") for name, value in DENSE_BASE.items())
    text = f'UNUSED="--swap-attention"\nUSED="--swap-optimizer"\ntorchrun pretrain_gpt.py {words} $USED\n'
    config = config_from_launch(Script(ShellScript(text, Path("pretrain.sh"))))
    assert [each.name for each in config.unmodelled] == ["--swap-optimizer"]
