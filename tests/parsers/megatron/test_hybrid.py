"""Hybrid models: one letter a layer, borders of chunks and MTP modules, read and written back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taylor.base.errors import InputError
from taylor.parsers.megatron.hybrid import is_hybrid
from taylor.parsers.megatron.script import FORM
from taylor.parsers.read import read_config
from taylor.parsers.text.script_flags import flags_of
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.write_back import emit_variant, write_plan
from taylor.pipeline.plan import FULL, PipelinePlan, deal_kinds, grid_in_order
from taylor.register.model import MTP, kind_of
from tests.conftest import SHARED
from tests.parsers.megatron.test_scripts import BASE, STYLES, needs_samples, script_of

HYBRID = BASE.replace("--num-layers 24\n", "--num-experts 8\n--moe-ffn-hidden-size 512\n")
KINDS = {"M": "mamba", "*": "attn", "-": "dense", "E": "moe", "G": "gdn", "+": "mla", "D": "mla-dsa"}


def with_pattern(pattern: str, more: str = "") -> str:
    return HYBRID + f"--hybrid-layer-pattern {pattern}\n{more}"


def held(config: TrainingConfig) -> list[str]:
    """Every chunk's layers in model order, as letters; a layer of MTP is m."""
    assert config.plan is not None
    letters = {kind: letter for letter, kind in KINDS.items()} | {MTP: "m"}
    stages, vpp = config.strategy.pp, config.strategy.vpp
    return [
        "".join(letters[kind_of(run)] * grid[v][s] for run, grid in config.plan.layers.items())
        for v in range(vpp)
        for s in range(stages)
    ]


def pattern_in(file: Path) -> str:
    text = flags_of(ShellScript.read(file), FORM).text("hybrid-layer-pattern")
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize(
    ("words", "hybrid"),
    [
        ("--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec", True),
        ("--spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec", True),
        ("--export-model-type MambaModel", True),
        ("--export-model-type HybridModel", True),
        ("--export-model-type GPTModel", False),
        ("--spec local", False),
    ],
)
def test_a_hybrid_stack_is_told_by_its_spec_or_its_exported_type_alone(
    tmp_path: Path, words: str, hybrid: bool
) -> None:
    assert is_hybrid(flags_of(ShellScript.read(script_of(tmp_path, BASE + words + "\n")), FORM)) is hybrid


@pytest.mark.parametrize(
    ("pattern", "more", "wanted"),
    [
        ("'M-M*|ME|M-|*E'", "", ["M-M*", "ME", "M-", "*E"]),
        ("'M-|M*|ME|M-|*E|M|-|M'", "", ["M-", "M*", "ME", "M-", "*E", "M", "-", "M"]),
        ("'M-|M||*E'", "", ["M-", "M", "", "*E"]),
        ("'M-M*|ME|M-|*E/*E/*E'", "", ["M-M*", "ME", "M-", "*Emm"]),
        ("'M-M*MEM-'", "", ["M-", "M*", "ME", "M-"]),
        ("'M-M*MEM-'", "--decoder-first-pipeline-num-layers 1\n--decoder-last-pipeline-num-layers 3\n", None),
        ("'M-M*G-G-/'", "", ["M-", "M*", "G-", "G-"]),
    ],
)
def test_the_borders_of_a_pattern_are_the_plan(
    pattern: str, more: str, wanted: list[str] | None, tmp_path: Path
) -> None:
    config = read_config(script_of(tmp_path, with_pattern(pattern, more), "command"))
    assert held(config) == (wanted or ["M", "-M", "*M", "EM-"])


def test_letters_are_what_megatron_builds_of_them(tmp_path: Path) -> None:
    """Megatron-LM main megatron/core/models/hybrid/hybrid_layer_specs.py: one norm and one part a layer."""
    more = "--mamba-num-heads 24\n--mamba-num-groups 2\n--squared-relu\n"
    model = read_config(script_of(tmp_path, with_pattern("'M*-EGM*-/ME'", more), "command")).model
    assert [kind_of(run) for run in model.layer_counts()] == [*map(KINDS.get, "M*-EGM*-"), MTP]
    mamba, experts = model.layer("mamba").mamba, model.layer("moe").moe
    assert mamba is not None and (mamba.inner, mamba.n_heads, mamba.n_groups) == (24 * 64, 24, 2)
    # megatron/core/ssm/mamba_mixer.py: d_conv=4, whatever the flags.
    assert mamba.conv_kernel == 4
    assert experts is not None and not experts.gated
    assert all(kind.norm_count == 1 for kind in model.kinds)
    assert [each.name for each in model.mtp_module()] == ["mamba", "moe"] and model.mtp_layers == 1


@pytest.mark.parametrize(
    ("layers", "shares", "letters"),
    [
        (10, (0.3, 0.0), "MM*MM*M*MM"),
        (10, (0.3, 0.3), "M-*MM*-*M-"),
        (48, (0.5, 0.2), "M*-*M*M*-*M*-*M*M*-*M*-**M*-*M*M*-*M*-*M*M*-*M*-"),
        (52, (0.08, 0.5), "M-M-M--M-M*-M-M-M--M*-M-M-M-M-M*--M-M-M-M*-M--M-M-M-"),
        (24, (0.08, 0.5), "M-M-M--*M-M-M-M-*M--M-M-"),
        (7, (0.0, 0.3), "MMM-MM-"),
        (4, (0.5, 0.0), "M**M"),
        (8, (0.0, 0.0), "MMMMMMMM"),
        (56, (0.07, 0.43), "M-M-MM-M-M*-M-M-M-MM-M*-M-M-M-M-M*M-M-M-M-M-M*-MM-M-M-M-"),
    ],
)
def test_shares_deal_the_layers_that_megatron_deals(
    layers: int, shares: tuple[float, float], letters: str, tmp_path: Path
) -> None:
    """What `allocate_layers` of core_v0.16.0 megatron/core/ssm/mamba_hybrid_layer_allocation.py gives."""
    more = f"--num-layers {layers}\n--hybrid-attention-ratio {shares[0]}\n--hybrid-mlp-ratio {shares[1]}\n"
    more += "--is-hybrid-model\n--pipeline-model-parallel-size 1\n"
    assert held(read_config(script_of(tmp_path, HYBRID + more))) == [letters]


@pytest.mark.parametrize(
    ("pattern", "more", "says"),
    [
        ("'M-X'", "", "has 'X' in it"),
        ("'*D'", "", r"mixes \* with D"),
        ("'M-|M-|M-'", "", "names 3 chunks for 4 stages"),
        ("'M-M*/M/*'", "", "MTP modules that differ"),
        ("'M-M*/M|M'", "", r"has '\|' in it"),
        (f"'M-M*{'/M' * 65}'", "", "names 65 MTP modules"),
        ("'|||'", "", "names 0 layers"),
        ("'M-M*'", "--num-virtual-stages-per-pipeline-rank 2\n", "cannot stand beside --hybrid-layer-pattern"),
        ("'M-|M*|M|M'", "--decoder-first-pipeline-num-layers 2\n", "cannot stand beside"),
        ("'M-M*'", "--hybrid-override-pattern M-M*\n", "cannot stand beside"),
        ("'M-M*'", "--noop-layers 1\n", "places no layers of a hybrid model"),
    ],
)
def test_a_pattern_that_megatron_refuses_is_refused(pattern: str, more: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        read_config(script_of(tmp_path, with_pattern(pattern, more), "command"))


def test_experts_in_a_pattern_want_their_number(tmp_path: Path) -> None:
    file = script_of(tmp_path, with_pattern("'MEME'").replace("--num-experts 8\n", ""), "command")
    with pytest.raises(InputError, match="--num-experts: is missing"):
        read_config(file)


def test_numbers_that_the_pattern_overrides_are_said(tmp_path: Path) -> None:
    file = script_of(tmp_path, with_pattern("'M-M*MEM-/M'", "--num-layers 24\n--mtp-num-layers 3\n"), "command")
    config = read_config(file)
    assert (config.model.n_layers, config.model.mtp_layers) == (8, 1)
    assert any("--num-layers 24 is ignored" in note for note in config.notes)
    assert any("--mtp-num-layers 3 is ignored" in note for note in config.notes)


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_plan_survives_the_way_through_a_pattern(style: str, data: st.DataObject, tmp_path: Path) -> None:
    letters = "M" + data.draw(st.text("M*-EG", min_size=7, max_size=23))  # A flag begins with a minus.
    module = data.draw(st.sampled_from(["", "*E", "M"]))
    depth = data.draw(st.integers(1, 2)) if module else 0
    pattern = f"{letters}{('/' + module) * depth}"
    quotes = "" if style in ("string", "newlines", "variables") else "'"
    config = read_config(script_of(tmp_path, with_pattern(f"{quotes}{pattern}{quotes}"), style))
    vpp = data.draw(st.integers(1, 3))
    cuts = data.draw(st.lists(st.integers(0, len(letters)), min_size=4 * vpp - 1, max_size=4 * vpp - 1))
    bounds = [0, *sorted(cuts), len(letters)]
    chunks = [letters[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
    counts = config.model.layer_counts()
    sizes = [len(chunk) for chunk in chunks]
    layers = deal_kinds(counts, sizes, 4, False, {MTP: len(sizes) - 1} if MTP in counts else {})
    block = data.draw(st.integers(0, 4))
    plan = PipelinePlan(layers, {FULL: grid_in_order([min(block, size) for size in sizes], 4, False)})
    file = write_plan(config, plan, output=tmp_path / "out.sh")
    back = read_config(file)
    assert back.plan == plan and held(back) == [*chunks[:-1], chunks[-1] + "m" * depth]
    assert back.model == config.model.replace(name="out")
    main, *modules = pattern_in(file).split("/")
    assert main.split("|") == chunks or (vpp == 1 and len(set(sizes)) == 1 and main == letters)
    assert modules == [module] * depth
    again = write_plan(back, plan, output=tmp_path / "again.sh")
    assert again.read_text(encoding="utf-8") == file.read_text(encoding="utf-8")


def test_borders_follow_the_number_of_stages(tmp_path: Path) -> None:
    config = read_config(script_of(tmp_path, with_pattern("'M-M*|ME|M-|*EM'"), "command"))
    strategy = config.strategy.replace(pp=3, dp=2, vpp=1, micro_batches=12)
    file = emit_variant(config, strategy, tmp_path / "variant.sh", plan=None)
    back = read_config(file)
    assert back.strategy == strategy and back.model == config.model.replace(name="variant")
    assert "".join(held(back)) == "M-M*MEM-*EM" and pattern_in(file).count("|") == 2


@pytest.mark.parametrize(
    ("pattern", "vpp", "written"),
    [
        ("M-M*ME-M", 1, "M-M*ME-M"),
        ("M|-M*|ME|-M", 1, "M-|M*|ME|-M"),
        ("M-M*ME-M", 2, "M|-|M|*|M|E|-|M"),
    ],
)
def test_a_pattern_has_no_borders_where_the_stages_are_even_and_it_had_none(
    pattern: str, vpp: int, written: str, tmp_path: Path
) -> None:
    config = read_config(script_of(tmp_path, with_pattern(f"'{pattern}'"), "command"))
    even = PipelinePlan(deal_kinds(config.model.layer_counts(), [2 // vpp] * 4 * vpp, 4, False), {})
    assert pattern_in(write_plan(config, even, output=tmp_path / "out.sh")) == written


def test_shares_say_even_stages_alone(tmp_path: Path) -> None:
    more = "--num-layers 24\n--hybrid-attention-ratio 0.25\n--is-hybrid-model\n"
    config = read_config(script_of(tmp_path, HYBRID + more))
    plan = config.plan
    assert plan is not None and set(plan.total_layers()[0]) == {6}
    write_plan(config, plan, output=tmp_path / "out.sh")
    layers = deal_kinds(config.model.layer_counts(), [5, 6, 6, 7], 4, False)
    with pytest.raises(InputError, match="evenly over the stages.*--hybrid-layer-pattern"):
        write_plan(config, PipelinePlan(layers, {}), output=tmp_path / "uneven.sh")


@needs_samples
def test_a_real_pattern_takes_a_plan(tmp_path: Path) -> None:
    text = (SHARED / "data" / "configs_more" / "meg_mamba.sh").read_text(encoding="utf-8")
    file = tmp_path / "train.sh"
    file.write_text(text.replace("--pipeline-model-parallel-size 1", "--pipeline-model-parallel-size 2"))
    config = read_config(file)
    letters = "M-M-M--M-*M-M-M-M--*M-M-M-M-*M--M-M-M-*M-M--M-M-"  # Of "800M", the script's own MODEL_SCALE.
    assert "".join(held(config)) == letters
    plan = PipelinePlan(deal_kinds(config.model.layer_counts(), [26, 22], 2, False), {})
    assert held(read_config(write_plan(config, plan))) == [letters[:26], letters[26:]]


def test_experts_beside_a_pattern_without_their_letter_are_noted(tmp_path: Path) -> None:
    config = read_config(script_of(tmp_path, with_pattern("M-M*M-M*")))
    assert config.model.moe is None
    assert "--num-experts 8 builds no experts: no layer of the pattern is E" in config.notes
    config = read_config(script_of(tmp_path, with_pattern("MEM*MEM*")))
    assert not any("builds no experts" in note for note in config.notes)
