"""Primus experiments: presets, variables, Megatron's and torchtitan's options, plans written into the overrides."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from taylor.base.errors import InputError
from taylor.parsers.flag_table import load_flag_table
from taylor.parsers.megatron.unmodelled import flag_table
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.write_back import emit_variant, write_plan
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.register.adapters import JOINED_QKV, Adapters
from tests.parsers.primus.files import EXPERIMENT, MERGED, TITAN_EXPERIMENT, TITAN_MERGED, checkout

_LAST = "      train_data_path: ${DATA:null}\n"


def with_options(**options: object) -> str:
    """The small experiment with further overrides."""
    return EXPERIMENT + "".join(f"      {name}: {yaml.safe_dump(value, default_flow_style=True).splitlines()[0]}\n"
                                for name, value in options.items())  # fmt: skip


def read(folder: Path, text: str) -> TrainingConfig:
    return read_config(checkout(folder, text))


def unmodelled(config: TrainingConfig) -> dict[str, str | None]:
    return {each.name: each.value for each in config.unmodelled}


def changed(before: str, after: str) -> list[str]:
    return [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[:2] in ("- ", "+ ")]


def test_overrides_go_before_the_module_and_that_before_the_model(tmp_path: Path) -> None:
    config = read(tmp_path, EXPERIMENT)
    assert (config.launcher, config.model.n_layers, config.model.n_kv_heads) == ("primus", 16, 4)
    assert (config.rules.seq_length, config.strategy.mbs, config.strategy.global_batch) == (4096, 2, 64)
    shorter = read(tmp_path, EXPERIMENT.replace("      seq_length: 4096\n", ""))
    assert shorter.rules.seq_length == 1024  # The module's, not the model's 512.


def test_a_variable_has_the_default_that_is_written_and_a_note_says_so(tmp_path: Path) -> None:
    config = read(tmp_path, EXPERIMENT.replace("${PRIMUS_TP:1}", "${PRIMUS_TP:4}"))
    assert config.strategy.tp == 4
    assert any("PRIMUS_TP 4" in note and "BATCH 64" in note for note in config.notes)


def test_a_variable_without_a_default_is_refused_where_it_is_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="known only when the job starts") as refused:
        read(tmp_path, EXPERIMENT.replace("${PRIMUS_TP:1}", "${PRIMUS_TP}"))
    assert "modules.pre_trainer.overrides.tensor_model_parallel_size" in str(refused.value)


def test_sequence_parallel_is_off_without_tensor_parallel(tmp_path: Path) -> None:
    assert not read(tmp_path, EXPERIMENT).strategy.sp
    assert read(tmp_path, EXPERIMENT.replace("${PRIMUS_TP:1}", "2")).strategy.sp


def test_an_option_that_is_false_means_the_flag_that_switches_it_off(tmp_path: Path) -> None:
    config = read(tmp_path, EXPERIMENT)
    assert config.rules.fused_accumulation is False
    assert not config.model.attention_bias
    assert read(tmp_path, EXPERIMENT.replace("fusion: false", "fusion: true")).rules.fused_accumulation is None


def test_the_ranks_are_those_that_the_launcher_starts_by_default(tmp_path: Path) -> None:
    config = read(tmp_path, EXPERIMENT)
    assert config.strategy.world_size == 8 and config.open_ranks is not None
    many = read(tmp_path, EXPERIMENT.replace("size: 2\n      grad", "size: 16\n      grad"))
    assert many.strategy.world_size == 16


def test_zero_bubble_is_in_force_with_its_patch_alone(tmp_path: Path) -> None:
    assert read(tmp_path, EXPERIMENT).schedule.name == "1f1b"
    assert read(tmp_path, with_options(patch_zero_bubble=True)).schedule.name == "zb-h1"


def test_deepep_of_primus_turbo_is_the_dispatcher(tmp_path: Path) -> None:
    text = with_options(use_turbo_deepep=True).replace("small.yaml", "experts.yaml")
    assert not read(tmp_path, text).rules.dispatch_by_node
    assert read(tmp_path, text + "      enable_primus_turbo: true\n").rules.dispatch_by_node


def test_experts_and_mtp_come_from_the_preset(tmp_path: Path) -> None:
    config = read(tmp_path, EXPERIMENT.replace("small.yaml", "experts.yaml"))
    assert config.model.moe is not None and config.model.moe.first_dense == 1
    assert (config.model.moe.n_experts, config.model.mtp_layers, config.strategy.ep) == (8, 1, 4)


def test_a_named_tokenizer_gives_the_vocabulary(tmp_path: Path) -> None:
    config = read(tmp_path, with_options(vocab_size=None, tokenizer_model="meta-llama/Llama-3.1-70B"))
    assert config.model.vocab == 128256
    assert any("tokenizer meta-llama/Llama-3.1-70B" in note for note in config.notes)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"model_type": "deepseek_v4"}, "DeepSeek-V4 of Primus"),
        ({"model_type": "flux_schnell"}, "a diffusion model"),
        ({"lora": {"enabled": True, "exclude_modules": ["linear_fc1"]}}, "exclude_modules: is not modelled"),
        ({"lora": {"enabled": True, "dim": 0}}, "lora.dim: must be a whole number from 1"),
        ({"lfm_layer_types": ["conv", "full_attention"]}, "convolution layers"),
        ({"decoder_pipeline_manual_split_list": [8, 8]}, "Primus' own list"),
        ({"patch_primus_pipeline": True}, "Primus' own pipeline"),
        ({"fp4": "e2m1", "fp4_recipe": "mxfp4"}, "GEMMs in MXFP4"),
        ({"spec": ["primus.backends.megatron.hybrid", "kda_hybrid_stack_spec"]}, "layers of Primus' own"),
    ],
)
def test_what_is_not_modelled_is_refused_by_its_name(tmp_path: Path, options: dict[str, object], problem: str) -> None:
    with pytest.raises(InputError, match=problem) as refused:
        read(tmp_path, with_options(**options))
    assert str(refused.value).count("modules.pre_trainer.overrides.") == 1


@pytest.mark.parametrize("backend", ["maxtext", "nemo_automodel", "diffusion"])
def test_another_backend_is_refused_by_its_name(tmp_path: Path, backend: str) -> None:
    with pytest.raises(InputError, match="Primus experiment whose backend is not read") as refused:
        read(tmp_path, EXPERIMENT.replace("framework: megatron", f"framework: {backend}"))
    assert backend in str(refused.value)


def test_a_file_outside_a_checkout_says_which_presets_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "alone.yaml"
    path.write_text(EXPERIMENT)
    with pytest.raises(InputError, match="presets are missing: pre_trainer.yaml and small.yaml") as refused:
        read_config(path)
    assert "--export_config" in str(refused.value)


@pytest.mark.parametrize("name", ["../../../secret.yaml", "/etc/hostname", "none.yaml", "../../modules/x"])
def test_a_preset_cannot_leave_the_checkout(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.yaml").write_text("num_layers: 2\n")
    with pytest.raises(InputError, match="names no preset"):
        read(tmp_path / "checkout", EXPERIMENT.replace("model: small.yaml", f"model: {name}"))


def test_presets_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    path = checkout(tmp_path)
    preset = tmp_path / "primus" / "configs" / "models" / "megatron" / "base.yaml"
    preset.write_text("extends: small.yaml\n")
    with pytest.raises(InputError, match="extends itself"):
        read_config(path)


def test_a_preset_that_extends_thousands_of_files_is_refused(tmp_path: Path) -> None:
    path = checkout(tmp_path)
    folder = tmp_path / "primus" / "configs" / "models" / "megatron"
    (folder / "base.yaml").write_text("extends: [" + ", ".join(["leaf.yaml"] * 5000) + "]\n")
    (folder / "leaf.yaml").write_text("num_layers: 2\n")
    with pytest.raises(InputError, match="extends more than"):
        read_config(path)


@pytest.mark.parametrize(
    ("file", "device"),
    [
        ("configs/MI355X/a.yaml", "mi355x-288g"),
        ("configs/MI300X/deep/a.yaml", "mi300x-192g"),
        ("MI325X-a.yaml", "mi325x-256g"),
    ],
)
def test_the_folder_or_the_name_states_the_device(tmp_path: Path, file: str, device: str) -> None:
    config = read_config(checkout(tmp_path, name=file))
    usual = launcher_of(config).usual_device_of(config)
    assert usual.name == device and usual.reason.startswith("by its")


def test_a_file_that_states_no_device_gets_the_default_that_says_so(tmp_path: Path) -> None:
    config = read_config(checkout(tmp_path, name="configs/a.yaml"))
    assert launcher_of(config).usual_device_of(config).reason == "the default for Primus files"


def test_the_section_of_lora_states_adapters_where_it_is_switched_on(tmp_path: Path) -> None:
    stated = {"dim": 16, "alpha": 32, "target_modules": ["linear_qkv"], "dropout": 0.1}
    off, on = (read(tmp_path, with_options(lora={"enabled": word, **stated})) for word in (False, True))
    assert off.rules.adapters is None
    assert on.rules.adapters == Adapters(16, (JOINED_QKV,), True, gathers=True, shared_by_experts=True)
    assert unmodelled(on) == {}


def test_options_without_a_model_are_named_as_the_file_writes_them(tmp_path: Path) -> None:
    config = read(tmp_path, with_options(enable_primus_turbo=True, use_turbo_attention=True, made_up_option=3))
    names = unmodelled(config)
    assert "use_turbo_attention" in names and names["made_up_option"] == "3"
    assert {"trainable", "sink_level", "lora.dim"}.isdisjoint(names)
    assert unmodelled(read(tmp_path, EXPERIMENT)) == {}


def test_an_option_that_only_mindspeed_knows_does_not_make_the_job_mindspeeds(tmp_path: Path) -> None:
    config = read(tmp_path, with_options(use_fused_rmsnorm=True))
    assert unmodelled(config) == {"use_fused_rmsnorm": "true"}


def test_every_row_of_the_table_has_a_line_of_primus_and_repeats_none_of_megatrons() -> None:
    rows = load_flag_table("taylor.parsers.primus", "options.yaml").rows
    assert all(re.fullmatch(r"Primus fd1eeabb (primus|examples)/[\w./-]+:\d+", row.source) for row in rows.values())
    again = {name for name in rows if name.replace("_", "-") in flag_table().rows}
    assert again == {"stage", "mamba_expand"}  # MindSpeed's options of these names mean something else.


# ---- recompute by numbers, own stacks -----------------------------------------------------------


def test_recomputed_layers_are_counted_by_their_numbers(tmp_path: Path) -> None:
    config = read(tmp_path, with_options(recompute_granularity="full", recompute_layer_ids="0,3,9"))
    assert config.plan is not None and config.plan.recompute[FULL] == ((2, 1),)


def test_a_number_behind_the_layers_is_an_mtp_module(tmp_path: Path) -> None:
    text = with_options(recompute_granularity="full", recompute_layer_ids=[16]).replace("small.yaml", "experts.yaml")
    assert read(tmp_path, text).recomputes_mtp
    with pytest.raises(InputError, match="must be from 0 to 16"):
        read(tmp_path, text.replace("[16]", "[17]"))


@pytest.mark.parametrize(("granularity", "ids"), [("selective", "0"), ("full", "first"), ("full", [])])
def test_wrong_numbers_of_layers_are_refused(tmp_path: Path, granularity: str, ids: object) -> None:
    with pytest.raises(InputError, match="must be"):
        read(tmp_path, with_options(recompute_granularity=granularity, recompute_layer_ids=ids))


def test_a_written_plan_replaces_recompute_by_numbers(tmp_path: Path) -> None:
    path = checkout(tmp_path, with_options(recompute_granularity="full", recompute_layer_ids="0,3,9"))
    config = read_config(path)
    assert config.plan is not None
    write_plan(config, PipelinePlan(config.plan.layers, {FULL: ((0, 0),)}))
    assert "recompute_layer_ids: null" in path.read_text()
    plan = read_config(path).plan
    assert plan is not None and not plan.uses(FULL)


@pytest.mark.parametrize(
    ("spec", "share", "kinds"),
    [
        ("hybrid_stack_spec", 0.25, {"mla": 2, "mamba": 6, "dense": 8}),
        ("gdn_hybrid_stack_spec", 0.0, {"gdn": 8, "dense": 8}),
        ("hybrid_stack_spec", 0.75, {"mla": 6, "mamba": 2, "dense": 8}),
    ],
)
def test_own_stacks_deal_mixers_before_mlps(tmp_path: Path, spec: str, share: float, kinds: dict[str, int]) -> None:
    config = read(
        tmp_path,
        with_options(
            spec=["primus.backends.megatron.hybrid", spec], hybrid_attention_ratio=share, multi_latent_attention=True,
            is_hybrid_model=True, model_type="mamba", linear_num_key_heads=4, linear_num_value_heads=8,
            linear_key_head_dim=64, linear_value_head_dim=64, linear_conv_kernel_dim=4,
        ),
    )  # fmt: skip
    counts = config.model.layer_counts()
    order = [kind.partition("#")[0] for kind, count in counts.items() for _ in range(count)]
    assert Counter(order) == kinds
    assert set(order[1::2]) == {"dense"} and order[0] == next(iter(kinds))
    with pytest.raises(InputError, match="deals its layers itself"):
        launcher_of(config).can_write(config, config.schedule)


# ---- writing ------------------------------------------------------------------------------------


def test_a_plan_changes_the_lines_of_its_options_alone(tmp_path: Path) -> None:
    path = checkout(tmp_path)
    config = read_config(path)
    assert config.plan is not None
    write_plan(config, PipelinePlan({"dense": ((7, 9),)}, {FULL: ((2, 2),)}), micro_batches=32)
    lines = changed(EXPERIMENT, path.read_text())
    names = {line.split(":")[0][2:].strip() for line in lines}
    assert "global_batch_size" in names and names <= launcher_of(config).plan_keys
    assert len([line for line in lines if line.startswith("- ")]) == 1  # All others are new.
    assert "      global_batch_size: 256   # of all ranks" in path.read_text()
    again = read_config(path)
    assert again.plan is not None and again.plan.layers["dense"] == ((7, 9),)
    assert again.plan.recompute[FULL] == ((2, 2),) and again.strategy.micro_batches == 32


def test_the_files_of_presets_are_never_written(tmp_path: Path) -> None:
    path = checkout(tmp_path)
    presets = {file: file.read_bytes() for file in (tmp_path / "primus").rglob("*.yaml")}
    config = read_config(path)
    assert config.plan is not None
    write_plan(config, PipelinePlan({"dense": ((7, 9),)}, {FULL: ((2, 2),)}))
    assert all(file.read_bytes() == content for file, content in presets.items())


def test_a_variant_has_other_degrees_in_the_same_file(tmp_path: Path) -> None:
    path = checkout(tmp_path)
    config = read_config(path)
    other = config.strategy.replace(dp=1, op=1, tp=2, pp=4, sp=True, micro_batches=32)
    made = emit_variant(config, other, path.with_name("other.yaml"), plan=None)
    assert read_config(made).strategy == other
    assert path.read_text() == EXPERIMENT


def test_an_experiment_without_overrides_gets_them(tmp_path: Path) -> None:
    text = EXPERIMENT[: EXPERIMENT.index("    overrides:")]
    path = checkout(tmp_path, text)
    config = read_config(path)
    assert config.plan is not None and config.plan.stages == 1
    write_plan(config, PipelinePlan(config.plan.layers, {FULL: ((3,),)}))
    again = read_config(path).plan
    assert again is not None and again.recompute[FULL] == ((3,),)
    assert path.read_text().startswith(text.rstrip("\n"))


def test_a_merged_file_stands_alone_and_is_written(tmp_path: Path) -> None:
    path = tmp_path / "merged.yaml"
    path.write_text(MERGED)
    config = read_config(path)
    assert (config.launcher, config.strategy.tp, config.strategy.pp) == ("primus", 2, 4)
    assert config.plan is not None
    write_plan(config, PipelinePlan({"dense": ((3, 5, 5, 3),)}, {FULL: ((0, 0, 0, 0),)}))
    again = read_config(path).plan
    assert again is not None and again.layers["dense"] == ((3, 5, 5, 3),)


# ---- torchtitan ---------------------------------------------------------------------------------


def test_an_experiment_of_torchtitan_is_read_with_its_presets(tmp_path: Path) -> None:
    config = read(tmp_path, TITAN_EXPERIMENT)
    assert (config.launcher, config.model.name) == ("primus-torchtitan", "llama3-8b")
    assert (config.rules.seq_length, config.strategy.mbs, config.strategy.world_size) == (8192, 8, 8)
    assert config.strategy.op == 8 and config.rules.parameter_shard
    assert any("Primus' run_pretrain.sh starts" in note for note in config.notes)
    assert not any("run_train.sh" in note for note in config.notes)


def test_settings_of_primus_turbo_are_named_beside_torchtitans(tmp_path: Path) -> None:
    names = unmodelled(read(tmp_path, TITAN_EXPERIMENT))
    assert "primus_turbo.use_turbo_attention" in names
    assert {"training.mock_data", "sink_level", "primus_turbo.enable_primus_turbo"}.isdisjoint(names)


def test_an_override_of_a_flavours_size_is_refused_where_it_differs(tmp_path: Path) -> None:
    text = TITAN_EXPERIMENT + "      model:\n        n_layers: {}\n"
    assert read(tmp_path, text.replace("{}", "32")).model.n_layers == 32
    with pytest.raises(InputError, match="another size than the flavour's, 32"):
        read(tmp_path, text.replace("{}", "8"))


def test_a_plan_of_torchtitan_changes_its_settings_alone(tmp_path: Path) -> None:
    path = checkout(tmp_path, TITAN_EXPERIMENT)
    config = read_config(path)
    assert config.plan is not None
    write_plan(config, PipelinePlan(config.plan.layers, {FULL: ((32,),)}))
    assert changed(TITAN_EXPERIMENT, path.read_text()) == [
        '-         mode: "none"  # none, selective or full',
        '+         mode: "full"  # none, selective or full',
    ]


def test_a_variant_of_torchtitan_has_stages_of_its_own(tmp_path: Path) -> None:
    path = checkout(tmp_path, TITAN_EXPERIMENT)
    config = read_config(path)
    other = config.strategy.replace(dp=2, op=2, tp=2, sp=True, pp=2, mbs=1, micro_batches=8)
    plan = PipelinePlan({"dense": ((15, 17),)}, {FULL: ((15, 17),)})
    again = read_config(emit_variant(config, other, path.with_name("other.yaml"), plan=plan))
    assert again.strategy == other and again.plan is not None
    assert (again.plan.layers["dense"], again.plan.recompute[FULL]) == (((15, 17),), ((15, 17),))
    back = read_config(emit_variant(again, config.strategy, path.with_name("back.yaml"), plan=None))
    assert back.strategy == config.strategy


def test_a_merged_file_of_torchtitan_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "merged.yaml"
    path.write_text(TITAN_MERGED)
    config = read_config(path)
    assert (config.launcher, config.strategy.pp, config.strategy.micro_batches) == ("primus-torchtitan", 4, 8)


@pytest.mark.parametrize(
    "setting",
    [
        "training: {seq_len: 2020-01-01}",
        'training: {"a b": 1}',
        "training: 3",
        "model: [1]",
        "parallelism: {a: 0x" + "f" * 5000 + "}",
    ],
)
def test_settings_that_torchtitan_cannot_have_are_refused_without_a_traceback(tmp_path: Path, setting: str) -> None:
    with pytest.raises(InputError):
        read(tmp_path, TITAN_EXPERIMENT[: TITAN_EXPERIMENT.index("      training:")] + f"      {setting}\n")
