"""Jobs of Hugging Face's Trainer: what is read, what is refused, and the bytes of their states."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from taylor.base.errors import InputError, TaylorError
from taylor.cost_model.job.adapters import trained_parameters
from taylor.cost_model.job.parameters import ParameterGroups, layer_parameters, total_parameters
from taylor.cost_model.job.strategy import GATHERED_RING, PASSED_RING
from taylor.cost_model.memory.states import group_bytes
from taylor.cost_model.memory.statics import layer_state_bytes
from taylor.parsers.axolotl.launcher import Axolotl
from taylor.parsers.flag_table import READ, load_flag_table
from taylor.parsers.llamafactory.launcher import LlamaFactory
from taylor.parsers.read import read_config
from taylor.parsers.registry import LAUNCHERS, launcher_of
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import FULL, PipelinePlan, zero_grid
from taylor.register.adapters import ALL_HUGGING_FACE, QUERY, VALUE, Adapters
from tests.parsers.test_hostile import ODD
from tests.parsers.trainer.files import AXOLOTL, DEEPSPEED, FILES, LLAMA_FACTORY, NEWER, SCRIPT


@pytest.fixture
def place(tmp_path):
    (tmp_path / "ds.json").write_text(DEEPSPEED, encoding="utf-8")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def with_text(place, name, old, new):
    text = FILES[name]
    assert old in text
    (place / name).write_text(text.replace(old, new), encoding="utf-8")
    return place / name


def with_stage(place, stage, **more):
    data = json.loads(DEEPSPEED)
    data["zero_optimization"] = {"stage": stage, **more}
    (place / "ds.json").write_text(json.dumps(data), encoding="utf-8")


def bytes_a_parameter(config, parameters=1e9):
    """Weights, gradients and optimizer states of a block of parameters, without the step's own copy of gradients."""
    optimizer = replace(config.rules.optimizer, step_bytes=0)
    groups = ParameterGroups(split=parameters)
    state = group_bytes(groups, config.strategy, config.rules.replace(optimizer=optimizer))
    return state.total / parameters


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_recognised_by_its_launcher_alone_and_read_by_it(place, name):
    path = place / name
    known = [launcher for launcher in LAUNCHERS if launcher.recognises(path, FILES[name])]
    assert known == [launcher_of(read_config(path))]


def test_sizes_of_the_step_are_those_of_the_file(place):
    config = read_config(place / "lf.yaml")
    assert config.rules.seq_length == 4096 and config.model.name == "qwen3-8b"
    assert (config.strategy.mbs, config.strategy.micro_batches) == (2, 4)
    assert config.plan.recomputed(FULL) == ((36,),)


@pytest.mark.parametrize(("stated", "steps"), [("300", 300), ("-1", None), ("many", None)])
@pytest.mark.parametrize("name", [name for name in FILES if name != "neox.yml"])
def test_a_file_s_steps_say_how_long_its_training_takes(place, name, stated, steps):
    path = place / name
    more = f" --max_steps {stated}\n" if path.suffix == ".sh" else f"\nmax_steps: {stated}\n"
    path.write_text(FILES[name].rstrip("\n") + more, encoding="utf-8")
    assert read_config(path).length.steps == steps


def test_ranks_that_no_file_states_are_open_and_the_batch_follows_them(place):
    config = read_config(place / "lf.yaml")
    assert config.open_ranks is not None and config.strategy.world_size == 8
    more = config.on_ranks(32)
    assert (more.strategy.dp, more.strategy.op, more.strategy.global_batch) == (32, 32, 256)


def test_ranks_of_a_script_are_those_that_its_command_starts(place):
    assert read_config(place / "run.sh").strategy.world_size == 16
    path = with_text(place, "run.sh", "torchrun --nproc_per_node=8 --nnodes=2", "deepspeed --num_gpus 4")
    assert read_config(path).strategy.world_size == 4


@pytest.mark.parametrize(
    ("stage", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.88)], ids=["plain", "one", "two", "three"]
)
def test_states_take_what_the_paper_of_zero_says_for_7_5_billion_parameters_on_64_devices(place, stage, gigabytes):
    with_stage(place, stage)
    config = read_config(place / "lf.yaml").on_ranks(64)
    assert bytes_a_parameter(config) * 7.5 == pytest.approx(gigabytes, rel=0.01)


def test_fsdp_divides_sixteen_bytes_a_parameter_over_all_ranks(place):
    config = read_config(place / "axolotl.yml")
    assert bytes_a_parameter(config) == pytest.approx(16 / 8)


def test_weights_that_are_never_sharded_stay_in_the_type_in_which_axolotl_loads_them(place):
    path = with_text(place, "axolotl.yml", AXOLOTL[AXOLOTL.index("fsdp_version") :], "")
    config = read_config(path)
    # 2 of the weight, 2 of the gradient and 2 of DDP's bucket, 4 of two moments.
    assert bytes_a_parameter(config) == pytest.approx(10) and not config.rules.parallel_optimizer


def test_gradients_are_added_up_whole_under_fsdp_where_a_step_has_several_micro_batches(place):
    several = read_config(place / "axolotl.yml")
    path = with_text(place, "axolotl.yml", "gradient_accumulation_steps: 4", "gradient_accumulation_steps: 1")
    one = read_config(path)
    parameters = layer_parameters(one.model, "dense")
    whole, shards = (layer_state_bytes(each.model, "dense", each.strategy, each.rules) for each in (several, one))
    assert whole.gradients / parameters == pytest.approx(2)  # In the type in which they are reduced.
    assert shards.gradients == 0 and whole.weights == shards.weights  # They come with the only backward.


def test_the_first_version_of_fsdp_keeps_embedding_and_head_gathered_and_the_second_does_not(place):
    second = read_config(place / "axolotl.yml")
    first = read_config(with_text(place, "axolotl.yml", "fsdp_version: 2", "fsdp_version: 1"))
    assert first.rules.whole_ends and not second.rules.whole_ends
    moved = AXOLOTL.replace("fsdp_version: 2\n", "").replace("fsdp_config:\n", "fsdp_config:\n  version: 2\n")
    (place / "axolotl.yml").write_text(moved, encoding="utf-8")
    assert read_config(place / "axolotl.yml").rules == second.rules


def test_axolotl_s_batch_states_the_accumulation_where_its_key_is_empty(place):
    path = with_text(place, "axolotl.yml", "gradient_accumulation_steps: 4", "batch_size: 8")
    assert read_config(path).strategy.micro_batches == 1  # The schema's default comes first.
    path = with_text(
        place, "axolotl.yml", "gradient_accumulation_steps: 4", "gradient_accumulation_steps:\nbatch_size: 8"
    )
    config = read_config(path)
    assert (config.strategy.mbs, config.strategy.micro_batches, config.misfits) == (2, 4, ())


@pytest.mark.parametrize("key", ["", "gradient_accumulation_steps:\n"])
def test_a_plan_is_written_as_axolotl_s_accumulation_and_no_batch(place, key):
    path = with_text(place, "axolotl.yml", "gradient_accumulation_steps: 4\n", f"{key}batch_size: 8\n")
    config = read_config(path)
    write_plan(config, config.plan, micro_batches=16)
    assert {"gradient_accumulation_steps: 16", "batch_size: null"} <= set(path.read_text(encoding="utf-8").splitlines())
    again = read_config(path)
    assert (again.strategy.micro_batches, again.misfits) == (16, ())
    text = launcher_of(config).with_strategy(config, config.strategy.replace(mbs=4), None, {})
    kept = f"gradient_accumulation_steps: {config.strategy.micro_batches}"
    assert {kept, "batch_size: null", "micro_batch_size: 4"} <= set(text.splitlines())


def test_axolotl_trains_in_bf16_unless_the_file_says_otherwise(place):
    for line, width in (("", 2), ("bf16: auto\n", 2), ("bf16:\n", 4), ("bf16: false\n", 4), ("fp16: true\n", 2)):
        path = with_text(place, "axolotl.yml", "bf16: auto\n", line)
        assert read_config(path).rules.compute_bytes == width, line


def test_deepspeed_s_accumulation_is_compared_with_the_one_that_axolotl_hands_on(place):
    text = AXOLOTL[: AXOLOTL.index("fsdp_version")]
    for key, steps in (("", 1), ("gradient_accumulation_steps:\n", 4)):
        own = text.replace("gradient_accumulation_steps: 4\n", f"{key}batch_size: 8\n")
        for other, rules in ((steps, []), (5 - steps, ["deepspeed-accumulation-as-stated"])):
            zero = f"deepspeed: {{gradient_accumulation_steps: {other}, zero_optimization: {{stage: 2}}}}\n"
            (place / "axolotl.yml").write_text(own + zero, encoding="utf-8")
            assert [misfit.rule for misfit in read_config(place / "axolotl.yml").misfits] == rules


def test_a_step_of_zero_3_casts_the_whole_part_unless_its_groups_are_small(place):
    with_stage(place, 3, sub_group_size=1e12)
    assert read_config(place / "lf.yaml").rules.optimizer.step_bytes == 4
    with_stage(place, 3, sub_group_size=0)
    assert read_config(place / "lf.yaml").rules.optimizer.step_bytes == 0


def test_optimizer_states_on_the_host_take_no_memory_of_the_device(place):
    with_stage(place, 3, offload_optimizer={"device": "cpu"})
    config = read_config(place / "lf.yaml")
    assert config.rules.optimizer.host_share == 1.0 and bytes_a_parameter(config) == pytest.approx(2 / 8)


def test_weights_on_the_host_are_named_and_a_split_by_deepspeed_itself_is_refused(place):
    with_stage(place, 3, offload_param={"device": "cpu"})
    assert any("offload_param" in note for note in read_config(place / "lf.yaml").notes)
    data = {"zero_optimization": {"stage": 2}, "tensor_parallel": {"autotp_size": 4}}
    (place / "ds.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(InputError, match="autotp_size"):
        read_config(place / "lf.yaml")


def test_an_8_bit_optimizer_keeps_two_bytes_a_parameter(place):
    path = with_text(place, "axolotl.yml", "adamw_torch_fused", "adamw_bnb_8bit")
    assert read_config(path).rules.moments_bytes == 2


def test_a_comment_names_the_accelerate_configuration_that_starts_a_file(place):
    (place / "fsdp.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 16\nmixed_precision: bf16\n"
        "fsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n"
    )
    text = LLAMA_FACTORY.replace("deepspeed: ds.json  # beside the file\n", "")
    (place / "lf.yaml").write_text("# accelerate launch --config_file fsdp.yaml src/train.py lf.yaml\n" + text)
    config = read_config(place / "lf.yaml")
    assert config.strategy.world_size == 16 and config.rules.parameter_shard and config.open_ranks is None


def test_the_second_generation_s_adapters_stand_beside_all_linear_modules_by_default(place):
    path = with_text(place, "newer.yaml", "name: fsdp2", "name: fsdp2\npeft_config: {name: lora, r: 16}")
    found = read_config(path).rules.adapters
    assert (found.rank, found.targets, found.base_bytes) == (16, ALL_HUGGING_FACE, None)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("lf.yaml", "finetuning_type: full", "finetuning_type: lora\nlora_target: q_proj\nuse_dora: true"),
        (
            "axolotl.yml",
            "bf16: auto",
            "bf16: auto\nadapter: lora\nlora_r: 8\nlora_target_modules: [q_proj]\npeft_use_dora: true",
        ),
    ],
)
def test_dora_is_read_as_adapters_with_a_magnitude(place, name, old, new):
    found = read_config(with_text(place, name, old, new)).rules.adapters
    assert (found.rank, found.targets, found.decomposed) == (8, (QUERY,), True)
    plain = new.replace("dora: true", "dora: false")
    assert not read_config(with_text(place, name, old, plain)).rules.adapters.decomposed


@pytest.mark.parametrize(
    ("more", "tiles"),
    [
        ("", 0),
        ("tiled_mlp: false", 0),
        ("tiled_mlp: true\nsequence_len: 131072", 4),
        ("tiled_mlp: true\nsequence_len: 131072\ncontext_parallel_size: 8", 1),
        ("tiled_mlp: true\ntiled_mlp_num_shards: 16", 16),
    ],
)
def test_a_tiled_mlp_has_parts_of_32768_tokens_unless_stated(place, more, tiles):
    """axolotl 067b021c src/axolotl/monkeypatch/tiled_mlp/patch.py:55-76."""
    text = "\n".join(line for line in AXOLOTL.splitlines() if "sequence_len" not in line or "sequence_len" not in more)
    (place / "axolotl.yml").write_text(f"{text}\n{more}\n", encoding="utf-8")
    assert read_config(place / "axolotl.yml").rules.mlp_tiles == tiles


FREEZE = "finetuning_type: freeze\nfreeze_trainable_layers: "


@pytest.mark.parametrize(
    ("name", "old", "new", "kinds", "frozen"),
    [
        ("lf.yaml", "finetuning_type: full", "finetuning_type: freeze", ["34 unreached", "2 "], ["embedding", "head"]),
        ("lf.yaml", "finetuning_type: full", f"{FREEZE}8", ["28 unreached", "8 "], ["embedding", "head"]),
        (
            "lf.yaml",
            "finetuning_type: full",
            f"{FREEZE}-3\ndisable_gradient_checkpointing: true",
            ["3 ", "33 passed"],
            ["embedding", "head"],
        ),
        (
            "lf.yaml",
            "finetuning_type: full",
            f"{FREEZE}2\nfreeze_extra_modules: lm_head, norm",
            ["34 passed", "2 "],
            ["embedding"],
        ),
        (
            "lf.yaml",
            "finetuning_type: full",
            f"{FREEZE}2\nuse_llama_pro: true\ndisable_gradient_checkpointing: true",
            ["17 unreached", "2 ", "17 passed"],
            ["embedding", "head"],
        ),
        (
            "newer.yaml",
            "name: fsdp2",
            "name: fsdp2\npeft_config: {name: freeze}",
            ["26 passed", "2 "],
            ["embedding", "head"],
        ),
        (
            "axolotl.yml",
            "bf16: auto",
            "bf16: auto\nunfrozen_parameters: ['model.layers.3[01].']",
            ["30 unreached", "2 "],
            ["embedding", "head"],
        ),
        (
            "axolotl.yml",
            "bf16: auto",
            "bf16: auto\nunfrozen_parameters: ['^model.layers.2[89].', '^lm_head.weight$[:32000]']",
            ["30 passed", "2 "],
            ["embedding"],
        ),
    ],
)
def test_frozen_layers_and_ends_are_those_of_the_program(place, name, old, new, kinds, frozen):
    """By the programs' own code: the last layers or the first, by LLaMA Pro's stride, by names of parameters."""
    config = read_config(with_text(place, name, old, new))
    counts = {kind: config.model.layer(kind).frozen for kind in config.model.body_counts}
    assert sorted(f"{config.model.body_counts[kind]} {how}" for kind, how in counts.items()) == sorted(kinds)
    assert list(config.rules.frozen) == frozen
    assert trained_parameters(config.model, config.rules) < total_parameters(config.model)


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        ("lf.yaml", "finetuning_type: full", "finetuning_type: freeze\nfreeze_trainable_layers: 0", "trains no layer"),
        (
            "lf.yaml",
            "finetuning_type: full",
            "finetuning_type: freeze\nfreeze_trainable_modules: mlp",
            "part of each layer",
        ),
        ("lf.yaml", "finetuning_type: full", "finetuning_type: freeze\nfreeze_extra_modules: visual", "embedding nor"),
        ("lf.yaml", "finetuning_type: full", "finetuning_type: freeze\nfreeze_trainable_layers: -2", "checkpointing"),
        ("lf.yaml", "finetuning_type: full", "finetuning_type: freeze\nstage: dpo", "reference model"),
        (
            "lf.yaml",
            "finetuning_type: full",
            "finetuning_type: freeze\nuse_llama_pro: true\nfreeze_trainable_layers: 5",
            "must divide",
        ),
        ("lf.yaml", "finetuning_type: full", "finetuning_type: full\nfreeze_language_model: true", "vision part alone"),
        ("lf.yaml", "stage: sft", "stage: ppo", "roll-outs"),
        ("lf.yaml", "bf16: true", "bf16: true\nuse_galore: true", "projected gradients"),
        ("lf.yaml", "bf16: true", "bf16: true\npipeline_model_parallel_size: 2", "Megatron"),
        ("lf.yaml", "do_train: true", "do_train: false", "trains nothing"),
        ("lf.yaml", "ds.json", "missing.json", "is not found"),
        ("lf.yaml", "finetuning_type: full", "finetuning_type: oft", "orthogonal adapters"),
        ("lf.yaml", "finetuning_type: full", "finetuning_type: full\nquantization_bit: 4", "quantizes the weights"),
        ("axolotl.yml", "bf16: auto", "adapter: llama-adapter", "another kind than LoRA"),
        ("axolotl.yml", "bf16: auto", "adapter: lora\nlora_r: 8", "is missing"),
        ("axolotl.yml", "bf16: auto", "adapter: lora\nlora_r: 8\nlora_target_liner: true", "write lora_target_linear"),
        ("axolotl.yml", "bf16: auto", "unfrozen_parameters: [a]", "trains no layer"),
        ("axolotl.yml", "bf16: auto", "unfrozen_parameters: [model.layers.1.mlp]", "part of layer 1"),
        ("axolotl.yml", "bf16: auto", "unfrozen_parameters: ['(a+)+b']", "not read"),
        ("axolotl.yml", "bf16: auto", "unfrozen_parameters: ['[9-0]']", "no regular expression"),
        ("axolotl.yml", "bf16: auto", "unfrozen_parameters: {a: b}", "must be a list"),
        (
            "axolotl.yml",
            "bf16: auto",
            "unfrozen_parameters: [a]\nadapter: lora\nlora_r: 8\nlora_target_linear: true",
            "more than low-rank adapters",
        ),
        ("axolotl.yml", "bf16: auto", "rl: grpo", "roll-outs"),
        ("axolotl.yml", "adamw_torch_fused", "shampoo", "states that are not modelled"),
        ("newer.yaml", "name: fsdp2", "name: fsdp2\npeft_config: {name: oft}", "trains adapters"),
        ("run.sh", "--bf16 True", "--lora_r 8", "trains adapters"),
        ("run.sh", "--block_size 4096", "--seed 1", "how long a sample is"),
    ],
)
def test_what_trains_something_else_is_refused_with_the_setting_that_says_so(place, name, old, new, told):
    path = with_text(place, name, old, new)
    with pytest.raises(InputError) as caught:
        read_config(path)
    assert told in str(caught.value) and caught.value.cure


@pytest.mark.parametrize("name", ["lf.yaml", "axolotl.yml", "newer.yaml", "run.sh"])
def test_a_written_plan_changes_recompute_and_accumulation_alone_and_is_read_again(place, name):
    path = place / name
    config = read_config(path)
    plan = PipelinePlan(config.plan.layers, {FULL: zero_grid(1, 1)})
    write_plan(config, plan, micro_batches=8)
    again = read_config(path)
    assert not again.plan.uses(FULL) and again.strategy.micro_batches == 8
    before, after = FILES[name].splitlines(), path.read_text(encoding="utf-8").splitlines()
    keys = launcher_of(config).plan_keys
    assert all(any(key in line for key in keys) for line in set(after) ^ set(before))


def test_a_stage_more_cannot_be_written(place):
    config = read_config(place / "lf.yaml")
    with pytest.raises(InputError, match="one stage"):
        launcher_of(config).with_strategy(config, config.strategy.replace(pp=2), None, {})


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("odd", [odd for odd in ODD if odd.strip()])
def test_an_odd_value_is_read_or_refused_with_a_reason(place, name, odd):
    lines = FILES[name].splitlines(keepends=True)
    for at, line in enumerate(lines):
        head, mark, _ = line.partition(": ") if name != "run.sh" else line.rpartition(" ")
        if not mark:
            continue
        (place / name).write_text("".join([*lines[:at], head + mark + odd + "\n", *lines[at + 1 :]]), encoding="utf-8")
        try:
            read_config(place / name)
        except TaylorError as error:
            assert str(error)


READERS = {
    "lf.yaml": (LlamaFactory(), ("taylor.parsers.llamafactory", "options.yaml")),
    "newer.yaml": (LlamaFactory(), ("taylor.parsers.llamafactory", "newer.yaml")),
    "axolotl.yml": (Axolotl(), ("taylor.parsers.axolotl", "options.yaml")),
}


@pytest.mark.parametrize("name", READERS)
def test_every_setting_that_a_reader_asks_for_has_a_row_that_says_so(place, name):
    launcher, table = READERS[name]
    source = YamlSource.read(place / name)
    launcher.job(source)
    rows = load_flag_table(*table)
    sections = {row.partition(".")[0] for row in rows.rows if "." in row}
    found = {asked: rows.find(asked) for asked in source.asked - sections}
    assert len(found) > 12 and [asked for asked, row in found.items() if row is None or row.status != READ] == []


def test_names_of_the_settings_stand_in_the_tables(place):
    for name, text in {"lf.yaml": LLAMA_FACTORY, "newer.yaml": NEWER, "run.sh": SCRIPT, "axolotl.yml": AXOLOTL}.items():
        assert text
        assert [each.name for each in read_config(place / name).unmodelled if not each.known] == [], name


def test_lora_is_read_with_each_tools_defaults(place):
    """Rank 8 beside all linear modules (LLaMA-Factory); four bits keep one scale of a byte for 64 weights."""
    config = read_config(with_text(place, "lf.yaml", "finetuning_type: full\n", ""))
    assert config.rules.adapters == Adapters(8, ALL_HUGGING_FACE)
    more = "adapter: qlora\nload_in_4bit: true\nlora_r: 32\nlora_dropout: 0.05\nlora_target_modules: [q_proj, v_proj]"
    found = read_config(with_text(place, "axolotl.yml", "bf16: auto", f"bf16: auto\n{more}")).rules.adapters
    assert (found.rank, found.targets, found.dropout) == (32, (QUERY, VALUE), True)
    assert found.base_bytes == pytest.approx(0.516, abs=0.001)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("lf.yaml", "finetuning_type: full", "finetuning_type: lora\nadditional_target: {}"),
        ("axolotl.yml", "bf16: auto", "adapter: lora\nlora_r: 8\nlora_target_linear: true\nlora_modules_to_save: [{}]"),
    ],
)
def test_embedding_and_head_may_train_whole_beside_adapters(place, name, old, new):
    names = "embed_tokens, lm_head" if name == "axolotl.yml" else "embed_tokens,lm_head"
    assert read_config(with_text(place, name, old, new.format(names))).rules.adapters.saved == ("embedding", "head")
    with pytest.raises(InputError, match="trains a module whole.*found 'score'"):
        read_config(with_text(place, name, old, new.format("score")))


def test_frozen_weights_are_in_the_compute_type_and_adapters_in_fp32(place):
    """Under DDP: no gradients and states of the frozen; of an adapter 4 B a weight, 8 of gradients with the buckets'
    copy and 8 of moments, and one of two bytes as its GEMMs take it."""
    text = LLAMA_FACTORY.replace("deepspeed: ds.json  # beside the file\n", "").replace("finetuning_type: full\n", "")
    (place / "lf.yaml").write_text(text, encoding="utf-8")
    config = read_config(place / "lf.yaml")
    assert bytes_a_parameter(config) == 2
    trained = group_bytes(ParameterGroups(split=10**9), config.strategy, config.rules.trained)
    assert trained.total / 1e9 == pytest.approx(4 + 8 + 8, abs=2)


ACCELERATE = """\
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
fsdp_config: {fsdp_version: 2}
parallelism_config:
"""


@pytest.mark.parametrize(
    ("section", "cp", "degree", "ring"),
    [
        ("{parallelism_config_cp_size: 8}", 8, 1, GATHERED_RING),
        ("{parallelism_config_cp_size: 4, parallelism_config_cp_comm_strategy: alltoall}", 4, 1, PASSED_RING),
        ("{parallelism_config_sp_size: 2}", 2, None, GATHERED_RING),
    ],
)
def test_context_parallelism_of_accelerate_s_configuration_is_the_script_s(place, section, cp, degree, ring):
    (place / "cp.yaml").write_text(ACCELERATE.rstrip() + f" {section}\n")
    start = SCRIPT.replace("torchrun --nproc_per_node=8 --nnodes=2", "accelerate launch --config_file cp.yaml")
    (place / "cp.sh").write_text(start.replace("    --deepspeed ds.json \\\n", ""))
    config = read_config(place / "cp.sh")
    assert (config.strategy.dp, config.strategy.cp) == (8 // cp, cp)
    assert (config.rules.ulysses_degree, config.rules.ring) == (degree, ring)


def test_two_kinds_of_context_parallelism_at_once_are_refused(place):
    both = "{parallelism_config_cp_size: 2, parallelism_config_sp_size: 2}"
    (place / "cp.yaml").write_text(ACCELERATE.rstrip() + f" {both}\n")
    start = SCRIPT.replace("torchrun --nproc_per_node=8 --nnodes=2", "accelerate launch --config_file cp.yaml")
    (place / "cp.sh").write_text(start.replace("    --deepspeed ds.json \\\n", ""))
    with pytest.raises(InputError, match="sp_size"):
        read_config(place / "cp.sh")
