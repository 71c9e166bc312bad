"""torchtitan files read to what a person reads in them, and written back line by line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import layer_parameters, total_parameters
from taylor.cost_model.memory.statics import layer_state_bytes
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.text.toml_edit import TomlSource, edit_toml
from taylor.parsers.torchtitan.read import default_split
from taylor.parsers.write_back import emit_variant, write_plan
from taylor.pipeline.chunks import chunk_order
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan, as_grid
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.frameworks import TORCHTITAN
from taylor.register.model import DENSE, MOE
from tests.conftest import SHARED

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SAMPLES = SHARED / "data" / "torchtitan_toml"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample files lie outside the repository")

FIGURES = {
    # file: layers, hidden, dp, tp, ep, local batch, sequence, recompute of the one chunk (full, selective)
    "deepseek_v3_16b.toml": ({DENSE: 1, MOE: 26}, 2048, 8, 1, 8, 4, 4096, 0, 27),
    "deepseek_v3_671b.toml": ({DENSE: 3, MOE: 58}, 7168, 8, 1, 1, 4, 4096, 0, 61),
    "llama3_405b.toml": ({DENSE: 126}, 16384, 16, 8, 1, 2, 8192, 126, 0),
    "llama3_70b.toml": ({DENSE: 80}, 8192, 8, 8, 1, 8, 8192, 80, 0),
    "llama3_8b.toml": ({DENSE: 32}, 4096, 64, 1, 1, 1, 8192, 0, 32),
    "old2024_llama2_70b.toml": ({DENSE: 80}, 8192, 8, 8, 1, 16, 4096, 80, 0),
}


@needs_samples
@pytest.mark.parametrize("name", FIGURES)
def test_a_sample_reads_as_a_person_reads_it(name: str) -> None:
    layers, hidden, dp, tp, ep, batch, seq, full, select = FIGURES[name]
    config = read_config(SAMPLES / name)
    assert (config.model.layer_counts(), config.model.hidden) == (layers, hidden)
    strategy = config.strategy
    assert (strategy.dp, strategy.tp, strategy.pp, strategy.ep, strategy.mbs) == (dp, tp, 1, ep, batch)
    assert config.rules.seq_length == seq and config.rules.framework == TORCHTITAN
    assert config.rules.parameter_shard  # Every sample leaves the sharding degree to the number of ranks.
    assert config.plan is not None
    assert config.plan.recompute[FULL] == ((full,),)
    assert config.plan.recompute.get(SELECT) == (((select,),) if select else None)


@needs_samples
def test_every_sample_is_covered_by_a_figure() -> None:
    assert {path.name for path in SAMPLES.glob("*.toml")} == set(FIGURES)


BASE = """# 训练 a preset for 64 H100 GPUs.
[model]
name = "llama3"   # the family
flavor = '8B'

[training]
local_batch_size = 16
seq_len = 8192

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 2 # two
pipeline_parallel_degree = 4

[activation_checkpoint]
mode = "selective"\t# ["none", "selective", "full"]
selective_ac_option = "op"
"""


def toml_file(folder: Path, *changes: tuple[str, str], text: str = BASE) -> Path:
    """The base file with pieces of text replaced."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    file = folder / "t.toml"
    file.write_bytes(text.encode("utf-8"))
    return file


PP = "pipeline_parallel_degree = 4"


@pytest.mark.parametrize(
    ("more", "held"),
    [
        ("", ((8, 9, 8, 7),)),  # 32 + 1 + 1 = 34 = 9 + 9 + 8 + 8, one less on the first and the last
        ("pipeline_parallel_first_stage_less_layers = 0\npipeline_parallel_last_stage_less_layers = 0", ((8,) * 4,)),
        ('pipeline_parallel_schedule = "Interleaved1F1B"', ((4, 5, 4, 4), (4, 4, 4, 3))),
        (
            'pipeline_parallel_schedule = "Interleaved1F1B"\npipeline_parallel_layers_per_stage = 3',
            ((2, 3, 3, 3), (3, 3, 3, 3), (3, 3, 2, 1)),
        ),
        ('pipeline_parallel_split_points = ["layers.3", "layers.10", "layers.30"]', ((3, 7, 20, 2),)),
        ('pipeline_parallel_schedule = "ZBVZeroBubble"', ((4, 5, 4, 4), (3, 4, 4, 4))),
    ],
)
def test_the_split_follows_torchtitans_own_rules(tmp_path: Path, more: str, held: tuple[tuple[int, ...], ...]) -> None:
    config = read_config(toml_file(tmp_path, (PP, f"{PP}\n{more}")))
    assert config.plan is not None and config.plan.total_layers() == held
    assert (config.strategy.dp, config.strategy.micro_batches, config.strategy.mbs) == (8, 16, 1)


def test_the_default_split_places_every_layer_and_keeps_parts_even() -> None:
    for layers in range(8, 40):
        for chunks in range(1, 9):
            sizes = default_split(layers, chunks, 1, 1)
            assert sum(sizes) == layers
            weighed = [size + (k == 0) + (k == chunks - 1) for k, size in enumerate(sizes)]
            assert max(weighed) - min(weighed) <= 1


OWN_MODEL = """name: llama3-9b
n_layers: 20
hidden: 1024
n_heads: 16
n_kv_heads: 8
head_dim: 64
ffn_hidden: 4096
vocab: 64000
"""


def test_a_flavour_that_the_user_registers_is_read_solved_for_and_written(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.yaml").write_text(OWN_MODEL)
    file = toml_file(tmp_path, ("flavor = '8B'", "flavor = '9B'"))
    with pytest.raises(InputError, match="register a model named llama3-9b .*--register_path"):
        read_config(file)
    config = read_config(file, tmp_path / "mine")
    assert (config.model.n_layers, config.model.vocab) == (20, 64000)
    plan = split_plan(config, 1, [4, 9, 16], FULL, v_shape=False)
    write_plan(config, plan)
    assert read_config(file, tmp_path / "mine").plan == plan


def test_a_sharding_degree_left_to_the_ranks_is_fsdp_on_any_number_of_them(tmp_path: Path) -> None:
    text = BASE.replace(" preset for 64 H100 GPUs", "")
    left = read_config(toml_file(tmp_path, text=text))
    assert left.strategy.dp == 1 and left.rules.parameter_shard
    one = read_config(toml_file(tmp_path, ("shard_degree = -1", "shard_degree = 1"), text=text))
    assert one.strategy == left.strategy and not one.rules.parameter_shard


@pytest.mark.parametrize("name", ["dtype", "mixed_precision_param", "mixed_precision_reduce"])
def test_a_type_that_torchtitan_does_not_take_is_refused(tmp_path: Path, name: str) -> None:
    """v0.2.2 torchtitan/config/job_config.py:275-290: its type is a literal of the two."""
    with pytest.raises(InputError, match=f"training.{name}: is no type.*write bfloat16 or float32"):
        read_config(toml_file(tmp_path, ("[training]", f'[training]\n{name} = "bf16"')))


@pytest.mark.parametrize(
    ("more", "kept", "gradient", "whole"),
    [
        # Rajbhandari et al. 2020, figure 1: everything is split.
        ("", 12, 4, 6),
        # A bf16 weight with gradient and two moments of its type; gradients are added up whole in fp32.
        ('dtype = "bfloat16"', 6, 2, 2 + 4),
        ('dtype = "bfloat16"\nmixed_precision_reduce = "bfloat16"', 6, 2, 2 + 2),
        ('mixed_precision_reduce = "bfloat16"', 12, 4, 2 + 2),
    ],
)
def test_a_parameter_takes_the_bytes_of_its_types(
    tmp_path: Path, more: str, kept: int, gradient: int, whole: int
) -> None:
    config = read_config(toml_file(tmp_path, ("[training]", f"[training]\n{more}")))
    model, strategy = config.model, config.strategy.replace(dp=8, tp=1, pp=1, op=8)
    count = layer_parameters(model, DENSE)
    # A step begins without gradients, and a pipeline scatters them at its end.
    for pp, micro_batches, share, beside in ((1, 1, kept, 0), (1, 2, kept + gradient, 0), (2, 2, kept, whole)):
        degrees = strategy.replace(pp=pp, micro_batches=micro_batches)
        state = layer_state_bytes(model, DENSE, degrees, config.rules)
        assert float(state.total - state.cached) == pytest.approx(count * (share / 8 + beside), rel=1e-12)
        # Their shards lie in a pool of their own where they are not counted.
        cached = 0 if (pp, micro_batches) == (1, 2) else gradient / 8
        assert float(state.cached) == pytest.approx(count * cached, rel=1e-12)


@pytest.mark.parametrize(
    ("more", "compiled"),
    [
        ("", False),
        ("[compile]\nenable = true\n", True),
        ('[compile]\nenable = true\ncomponents = ["model", "loss"]\n', True),
        ('[compile]\nenable = true\ncomponents = ["model"]\n', False),
        ('[compile]\nenable = false\ncomponents = ["loss"]\n', False),
    ],
)
def test_the_loss_is_compiled_where_the_file_names_it(tmp_path: Path, more: str, compiled: bool) -> None:
    assert read_config(toml_file(tmp_path, ("[training]", f"{more}[training]"))).rules.compiled_loss is compiled


def test_weights_that_are_never_given_up_stay_gathered(tmp_path: Path) -> None:
    config = read_config(toml_file(tmp_path, ("[parallelism]", '[parallelism]\nfsdp_reshard_after_forward = "never"')))
    model, strategy = config.model, config.strategy.replace(dp=8, tp=1, pp=1, op=8)
    state = layer_state_bytes(model, DENSE, strategy, config.rules)
    assert float(state.weights) == 2 * layer_parameters(model, DENSE)


def test_a_release_that_counts_micro_batches_has_one_for_each_model_part(tmp_path: Path) -> None:
    text = BASE.replace("local_batch_size", "batch_size").replace("[parallelism]\n", "")
    old = text.replace(f"{PP}\n", f"[experimental]\n{PP}\n")
    config = read_config(toml_file(tmp_path, text=old))
    assert (config.strategy.micro_batches, config.strategy.mbs) == (4, 4)
    file = toml_file(tmp_path, (PP, f"{PP}\npipeline_parallel_microbatches = 8"), text=old)
    config = read_config(file)
    assert (config.strategy.micro_batches, config.strategy.mbs) == (8, 2)
    assert config.plan is not None
    write_plan(config, config.plan, micro_batches=16)
    written = read_config(file).strategy
    assert (written.micro_batches, written.mbs) == (16, 2)
    assert "pipeline_parallel_microbatches = 16" in file.read_text() and "microbatch_size" not in file.read_text()


def test_more_model_parts_leave_the_number_of_micro_batches(tmp_path: Path) -> None:
    text = BASE.replace("local_batch_size", "batch_size").replace("[parallelism]\n", "")
    file = toml_file(tmp_path, text=text.replace(f"{PP}\n", f"[experimental]\n{PP}\n"))
    config = read_config(file)
    assert config.strategy.micro_batches == 4
    interleaved = config.replace(schedule=ScheduleSpec("torch-interleaved"))
    write_plan(interleaved, split_plan(config, 2, [4, 8, 12, 16, 20, 24, 28], None, v_shape=False))
    assert (read_config(file).strategy.vpp, read_config(file).strategy.micro_batches) == (2, 4)


def test_selective_recompute_without_an_option_is_every_second_layer(tmp_path: Path) -> None:
    plan = read_config(toml_file(tmp_path, ('selective_ac_option = "op"\n', ""))).plan
    assert plan is not None and not plan.uses(SELECT)


@pytest.mark.parametrize(
    ("schedule", "full"),
    [
        # 8, 9, 8, 7 layers: v0.2.2 distributed/activation_checkpoint.py:20-36 counts in every process anew.
        ("1F1B", ((2, 3, 2, 2),)),
        # 4, 5, 4, 4 and 4, 4, 4, 3 layers a rank, chunk after chunk: the fifth layer of a rank begins its second chunk.
        ("Interleaved1F1B", ((1, 1, 1, 1), (1, 2, 1, 1))),
    ],
)
def test_every_third_layer_is_counted_by_each_rank(
    tmp_path: Path, schedule: str, full: tuple[tuple[int, ...], ...]
) -> None:
    more = f'{PP}\npipeline_parallel_schedule = "{schedule}"'
    plan = read_config(toml_file(tmp_path, ('option = "op"', 'option = "3"'), (PP, more))).plan
    assert plan is not None and plan.recompute[FULL] == full


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (PP, "pipeline_parallel_degree = 0", "parallelism.pipeline_parallel_degree"),
        (PP, 'pipeline_parallel_degree = "four"', "'four'"),
        (PP, "pipeline_parallel_degree = 64", "64"),
        (PP, PP + '\npipeline_parallel_schedule = "zigzag"', "'zigzag'"),
        (PP, PP + '\npipeline_parallel_split_points = ["layers.3"]', "does not divide"),
        (PP, PP + "\npipeline_parallel_microbatch_size = 3", "must divide the local batch size"),
        ("data_parallel_shard_degree = -1", "data_parallel_shard_degree = 0", "must be -1 or at least 1"),
        ("flavor = '8B'", "flavor = '9B'", "known flavour"),
        ("flavor = '8B'", "", "model.flavor"),
        ('mode = "selective"', 'mode = "some"', "'some'"),
        ('"op"', '"most"', "'most'"),
        ("seq_len = 8192", "seq_len = 8192.5", "8192.5"),
        ("[training]", "[training", "not valid TOML"),
        ("[model]", "[models]", "has no [model]"),
    ],
)
def test_a_wrong_value_is_refused_with_file_and_field(tmp_path: Path, old: str, new: str, says: str) -> None:
    file = toml_file(tmp_path, (old, new))
    with pytest.raises(InputError) as caught:
        read_config(file)
    assert str(file) in str(caught.value) and says in str(caught.value)


def split_plan(config, vpp: int, cuts: list[int], mode: str | None, v_shape: bool) -> PipelinePlan:
    """Layers cut at the given places, all recomputed in one mode."""
    stages = config.strategy.pp
    order = chunk_order(stages, vpp, v_shape)
    kinds = [kind for kind, count in config.model.layer_counts().items() for _ in range(count)]
    bounds = [0, *sorted(cuts), len(kinds)]
    layers = {kind: [[0] * stages for _ in range(vpp)] for kind in config.model.layer_counts()}
    body = [[0] * stages for _ in range(vpp)]
    for k, (v, s) in enumerate(order):
        body[v][s] = bounds[k + 1] - bounds[k]
        for kind in kinds[bounds[k] : bounds[k + 1]]:
            layers[kind][v][s] += 1
    modes = {FULL: as_grid(body if mode == FULL else [[0] * stages] * vpp)}
    if mode == SELECT:
        modes[SELECT] = as_grid(body)
    return PipelinePlan({kind: as_grid(rows) for kind, rows in layers.items()}, modes)


DRESSINGS = {
    "as it is": lambda text: text,
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "no final newline": lambda text: text.rstrip("\n"),
    "no checkpoint table": lambda text: text[: text.index("\n[activation")],
    "split points": lambda text: text.replace(
        PP, PP + '\npipeline_parallel_split_points = [\n  "layers.8", # [one]\n  "layers.16", "layers.24",\n]  # cut'
    ),
    "layers per stage": lambda text: text.replace(PP, PP + "\npipeline_parallel_layers_per_stage = 9"),
    "byte-order mark": lambda text: "\ufeff" + text,
    "2024": lambda text: (
        text.replace("[parallelism]\n", "")
        .replace(PP, "\n[experimental]\n" + PP)
        .replace("local_batch_size", "batch_size")
    ),
}


@pytest.mark.parametrize("dressing", DRESSINGS)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_plan_survives_the_way_through_a_file(dressing: str, data: st.DataObject, tmp_path: Path) -> None:
    file = toml_file(tmp_path, text=DRESSINGS[dressing](BASE))
    config = read_config(file)
    vpp = data.draw(st.integers(1, 3))
    v_shape = vpp == 2 and data.draw(st.booleans())
    config = config.replace(schedule=ScheduleSpec("zbv" if v_shape else "torch-interleaved" if vpp > 1 else "1f1b"))
    cuts = data.draw(st.lists(st.integers(0, 32), min_size=4 * vpp - 1, max_size=4 * vpp - 1))
    plan = split_plan(config, vpp, cuts, data.draw(st.sampled_from([None, FULL, SELECT])), v_shape)
    assert launcher_of(config).nearest_plan(plan) == (plan, ())
    written = write_plan(config, plan, output=tmp_path / "out.toml", micro_batches=24)
    back = read_config(written)
    assert (back.plan, back.schedule.name, back.strategy.micro_batches) == (plan, config.schedule.name, 24)
    text, new = file.read_bytes().decode("utf-8"), written.read_bytes().decode("utf-8")
    assert ("\r\n" in new) == ("\r\n" in text) and new.count("\r") == (new.count("\n") if "\r\n" in text else 0)
    owned = (
        "pipeline_parallel_s",
        "pipeline_parallel_l",
        "pipeline_parallel_microbatches",
        "module_fqns",
        "mode =",
        "selective_ac",
        "batch_size",
        '"layers.',
        "]  # cut",
        "[activation_checkpoint]",
    )
    assert [line for line in new.splitlines() if line and not any(name in line for name in owned)] == [
        line for line in text.splitlines() if line and not any(name in line for name in owned)
    ]
    for comment in ("# the family", "# two", "# 训练"):
        assert comment in new
    again = write_plan(back, plan, output=tmp_path / "again.toml", micro_batches=24)
    assert again.read_bytes().decode("utf-8") == new


@needs_samples
@pytest.mark.parametrize("name", FIGURES)
def test_a_variant_of_a_sample_reads_as_the_strategy_asked_for(name: str, tmp_path: Path) -> None:
    config = read_config(SAMPLES / name)
    strategy = config.strategy.replace(dp=4, tp=2, pp=3, op=2, sp=True, vpp=2, mbs=2, micro_batches=6, ep=1)
    written = emit_variant(config, strategy, tmp_path / "v.toml", plan=None, extra={"training.steps": 10, "x.y": "z"})
    assert read_config(written).strategy == strategy
    data = tomllib.loads(written.read_text(encoding="utf-8"))
    assert data["training"]["steps"] == 10 and data["x"] == {"y": "z"}
    single = strategy.replace(pp=1, vpp=1, micro_batches=5)
    assert read_config(emit_variant(config, single, tmp_path / "w.toml", plan=None)).strategy == single


def test_a_plan_of_mixed_recompute_gets_the_nearest_mode(tmp_path: Path) -> None:
    config = read_config(toml_file(tmp_path))
    assert config.plan is not None
    plan = PipelinePlan(config.plan.layers, {FULL: ((1, 0, 0, 0),)})
    nearest, why = launcher_of(config).nearest_plan(plan)
    assert nearest.recompute == {FULL: config.plan.total_layers()} and "full recompute everywhere" in why[0]
    partly = PipelinePlan(config.plan.layers, {SELECT: ((1, 0, 0, 0),)})
    assert launcher_of(config).nearest_plan(partly)[0].recompute[SELECT] == config.plan.total_layers()


def test_values_in_strings_and_comments_are_not_taken_for_keys(tmp_path: Path) -> None:
    text = '[a]\ns = """\nk = 1 # no\n[b]\n"""\nt = "# [x] = 2" # k = 3\nu = [ "]", # ]\n 1 ]\n'
    text += "k = 4\n[[c]]\nk = 5\n[b]\nk = 6"
    source = TomlSource(text, tmp_path / "x.toml")
    new = edit_toml(source, {("a", "k"): 7, ("b", "k"): [8], ("a", "u"): None, ("b", "n"): True}).text
    assert tomllib.loads(new) == {
        "a": {"s": "k = 1 # no\n[b]\n", "t": "# [x] = 2", "k": 7},
        "c": [{"k": 5}],
        "b": {"k": [8], "n": True},
    }


def test_a_key_in_an_inline_table_is_left_alone_with_a_reason(tmp_path: Path) -> None:
    source = TomlSource("a = {k = 1}\n", tmp_path / "x.toml")
    with pytest.raises(InputError, match="a.k"):
        edit_toml(source, {("a", "k"): 2})


def test_the_first_releases_call_llama_2_llama(tmp_path: Path) -> None:
    config = read_config(toml_file(tmp_path, ('"llama3"', '"llama"'), ("'8B'", "'70B'")))
    assert (config.model.name, config.model.n_layers) == ("llama2-70b", 80)


@pytest.mark.parametrize(
    ("name", "flavour", "parameters"),
    [
        # As in the models' own cards: 0.6B and 1.7B with one matrix for embedding and head, Scout's text model.
        ("qwen3", "0.6B", 596_049_920),
        ("qwen3", "1.7B", 1_720_574_976),
        ("qwen3", "4B", 4_022_468_096),
        ("qwen3", "14B", 14_768_307_200),
        ("llama4", "17bx16e", 107_770_000_000),
    ],
)
def test_a_flavour_of_torchtitans_own_has_its_published_size(
    tmp_path: Path, name: str, flavour: str, parameters: int
) -> None:
    file = tmp_path / "train.toml"
    file.write_text(f'[model]\nname = "{name}"\nflavor = "{flavour}"\n[training]\nseq_len = 4096\n')
    assert total_parameters(read_config(file).model) == pytest.approx(parameters, rel=1e-4)


PIPED = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 16
seq_len = 8192
[parallelism]
data_parallel_shard_degree = 8
pipeline_parallel_degree = 2
pipeline_parallel_microbatch_size = 2
"""


def test_two_stages_are_a_pipeline_and_a_degree_of_two_is_written(tmp_path: Path) -> None:
    """torchtitan cuts the local batch into micro-batches as soon as there is a second stage."""
    (tmp_path / "train.toml").write_text(PIPED, encoding="utf-8")
    config = read_config(tmp_path / "train.toml")
    assert (config.strategy.mbs, config.strategy.micro_batches) == (2, 8)
    wanted = config.strategy.replace(dp=4, op=8, cp=2)
    emit_variant(config, wanted, tmp_path / "out.toml", plan=None)
    assert read_config(tmp_path / "out.toml").strategy.cp == 2
