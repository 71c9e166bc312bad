"""Recipes judged by the reader and by Automodel's own code, which runs here without devices; skipped without a clone.

Its modules are loaded with torch, and without the making of process groups.
"""

from __future__ import annotations

import ast
import random
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from benchmarks.reliability.outside import NotHere, loaded, source, without_package
from taylor.base.errors import InputError
from taylor.nd_search.stated import broken_rules
from taylor.parsers.automodel.pipeline import SCHEDULES, stages_of
from taylor.parsers.automodel.trained import adapters_of
from taylor.parsers.automodel.write import part_names
from taylor.parsers.read import read_config
from taylor.parsers.text.fields import Fields
from taylor.pipeline.plan import FULL, SELECT
from taylor.register.adapters import DOWN, GATE, KEY, OUTPUT, QUERY, UP, VALUE
from taylor.register.registry import Registry
from tests.parsers.automodel.files import RECIPE

PARALLEL = "components/distributed"
FILE = Path("recipe.yaml")
# What the program's asserts and exceptions are.
REFUSED = (AssertionError, TypeError, ValueError)


def text_of(path: str) -> str:
    try:
        return source("Automodel", "36044ad3", f"nemo_automodel/{path}")
    except NotHere as here:
        pytest.skip(str(here))


@cache
def own(path: str, *beside: str) -> ModuleType:
    """A module of the program; classes and functions of its package are those of the modules beside, or do nothing."""
    pytest.importorskip("torch")
    text, around = without_package(text_of(path), "nemo_automodel")
    for other in map(own, beside):
        around |= {name: getattr(other, name) for name in around if hasattr(other, name)}
    return loaded(f"own_{Path(path).stem}", text, **around)


def defaults(path: str, name: str) -> dict[str, Any]:
    """Fields of a class with their defaults, as far as these are plain values."""
    nodes = ast.walk(ast.parse(text_of(path)))
    body = next(node.body for node in nodes if isinstance(node, ast.ClassDef) and node.name == name)
    fields = [node for node in body if isinstance(node, ast.AnnAssign)]
    return {
        ast.unparse(each.target): each.value.value if isinstance(each.value, ast.Constant) else ... for each in fields
    }


def starts(section: dict[str, Any], batch: dict[str, int], world: int) -> str | None:
    """The program's objection to a section of degrees and a batch; None where it starts."""
    config, mesh, pipeline = (f"{PARALLEL}/{name}.py" for name in ("config", "mesh", "pipelining/config"))
    parse = own("recipes/_dist_utils.py", config, mesh, pipeline)
    meshes = own(f"{PARALLEL}/mesh_utils.py", config, mesh)
    meshes._init_named_mesh = meshes._create_moe_mesh = lambda *words, **rest: None  # type: ignore[attr-defined]
    steps = own("components/training/step_scheduler.py")
    pp, dp = section.get("pp_size") or 1, section["dp_size"]
    micro = (section.get("pipeline") or {}).get("pp_microbatch_size", 1)
    try:
        parsed = parse.parse_distributed_section(section)
        meshes._create_device_meshes(parsed["strategy_config"], parsed["parallelism_sizes"], world_size=world)
        # recipes/llm/train_ft.py:547-549, in a method that builds the model too.
        assert pp == 1 or batch["local_batch_size"] // micro >= pp
        steps.StepScheduler(
            **batch, dp_size=dp, dataloader=range(100), max_steps=1, ckpt_every_steps=1, preemption_signal=None
        )
    except REFUSED as error:
        return f"{type(error).__name__}: {error}"
    return None


def drawn(draw: random.Random, options: list[str]) -> dict[str, Any]:
    """A section of degrees, of which most are plain, and some options of any strategy."""

    def few(*values: Any) -> Any:
        return draw.choice([1, None, *values]) if draw.random() < 0.5 else 1

    section = {
        "strategy": draw.choice(["fsdp2", "fsdp2", "FSDP2", "megatron_fsdp", "megatron-fsdp", "mfsdp", "ddp"]),
        "dp_size": draw.choice([1, 2, 4, 8]),
        "dp_replicate_size": few(2, 3, 4),
        **{name: few(2, 4) for name in ("tp_size", "cp_size", "pp_size")},
        "ep_size": few(2, 8, 16),
        "activation_checkpointing": draw.choice([False, True, "full", "selective", "Selective"]),
    }
    if draw.random() < 0.7:
        section["pipeline"] = {"pp_microbatch_size": draw.choice([1, 2])}
    typed = {"mp_policy": {}, "offload_policy": {}, "multimodal": {}, "tp_plan": None, "autocast_dtype": None}
    typed |= {"activation_checkpointing_scope": "all", "reshard_after_forward": True}
    for name in draw.sample(options, draw.choice([0, 0, 1])):
        section[name] = typed.get(name, 1)
    return section


def test_degrees_options_and_batches_start_as_the_programs_own_functions_say(tmp_path: Path) -> None:
    classes = ("FSDP2Config", "MegatronFSDPConfig", "DDPConfig")
    fields = {name for each in classes for name in defaults(f"{PARALLEL}/config.py", each)}
    # Asynchronous tensor parallelism asks for sequence parallelism where the layers are split, and not before.
    options = sorted(fields - {"activation_checkpointing", "enable_async_tensor_parallel"} | {"enable_prefetch"})
    draw, device, answers = random.Random(7), Registry.load().device("h100-80g"), []
    recipe = yaml.safe_load(RECIPE.replace("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"))
    for _ in range(600):
        section = drawn(draw, options)
        batch = {"global_batch_size": draw.choice([8, 16, 24, 64]), "local_batch_size": draw.choice([1, 2, 4, 8])}
        world = section["dp_size"]
        for name in ("tp_size", "cp_size", "pp_size"):
            world *= section[name] or 1
        theirs = starts(section, batch, world)
        path = tmp_path / FILE
        path.write_text(yaml.safe_dump({**recipe, "step_scheduler": batch, "distributed": section}), encoding="utf-8")
        try:
            config = read_config(path)
            found: Any = (*config.misfits, *broken_rules(config, device))
        except InputError as error:
            found = (error,)
        assert bool(found) == (theirs is not None), (section, batch, theirs, found)
        answers.append(theirs is None)
    assert 100 < sum(answers) < 500


@pytest.mark.parametrize(
    "written",
    [
        True,
        False,
        None,
        "full",
        "On",
        "YES",
        "selective",
        "Selective",
        "off",
        "none",
        "disabled",
        "No",
        "partial",
        1,
        0,
    ],
)
def test_recompute_is_what_the_programs_own_function_makes_of_a_word(tmp_path: Path, written: object) -> None:
    config, mesh, pipeline = (f"{PARALLEL}/{name}.py" for name in ("config", "mesh", "pipelining/config"))
    parse = own("recipes/_dist_utils.py", config, mesh, pipeline)._normalize_activation_checkpointing
    recipe = yaml.safe_load(RECIPE)
    recipe["distributed"]["activation_checkpointing"] = written
    path = tmp_path / FILE
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    try:
        theirs = parse(written)
    except ValueError:
        with pytest.raises(InputError, match="activation_checkpointing: must be true, false, full or selective"):
            read_config(path)
        return
    plan = read_config(path).plan
    assert plan is not None
    assert (plan.uses(FULL), plan.uses(SELECT)) == (theirs is True, theirs == "selective")


def split(pipeline: dict[str, Any], layers: int, pp: int) -> list[list[str]] | None:
    """Modules of every part as the program's own functions deal them; None where they refuse."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    parts = own(f"{PARALLEL}/pipelining/functional.py", f"{PARALLEL}/pipelining/hf_utils.py")
    try:
        schedule = schedules.get_schedule_class(pipeline["pp_schedule"])
        single = issubclass(schedule, schedules.PipelineScheduleSingle)
        per_stage, rounded = pipeline.get("layers_per_stage"), pipeline.get("round_virtual_stages_to_pp_multiple")
        chunks, _ = parts.calculate_virtual_stages(layers, per_stage, pp, single, rounded)
        style = "v" if schedule is schedules.ScheduleZBVZeroBubble else "loop"
        parts.stage_ids_this_rank(0, pp, chunks, style)
        named: list[list[str]] = parts.generate_hf_model_fqn_per_model_part(
            chunks, layers, include_multimodal_encoders=False
        )
    except REFUSED:
        return None
    return named


def test_layers_are_dealt_as_the_programs_own_functions_deal_them() -> None:
    draw, count = random.Random(11), 0
    for _ in range(1000):
        layers, pp = draw.randint(2, 40), draw.choice([2, 3, 4, 8])
        called = draw.choice([*SCHEDULES.values(), "OneForwardOneBackward"])
        pipeline = {"pp_schedule": draw.choice([called, called.lower()])}
        if draw.random() < 0.7:
            pipeline["layers_per_stage"] = draw.randint(1, layers)
        if draw.random() < 0.7:
            pipeline["round_virtual_stages_to_pp_multiple"] = draw.choice(["up", "down", "near"])
        theirs = split(pipeline, layers, pp)
        try:
            sizes = stages_of(Fields({"pipeline": pipeline}, FILE), layers, pp, 8).sizes
        except InputError as error:
            assert theirs is None, (pipeline, layers, pp, str(error))
            continue
        assert theirs is not None, (pipeline, layers, pp, sizes)
        assert [set(part) for part in part_names(sizes)] == [set(part) for part in theirs]
        count += 1
    assert count > 100


LINEAR = {
    "self_attn.q_proj": QUERY, "self_attn.k_proj": KEY, "self_attn.v_proj": VALUE, "self_attn.o_proj": OUTPUT,
    "mlp.gate_proj": GATE, "mlp.up_proj": UP, "mlp.down_proj": DOWN,
}  # fmt: skip
"""Linear modules of a layer of Llama's, by their names below ``model.layers.0``."""


def test_patterns_reach_the_modules_that_the_programs_own_matcher_reaches() -> None:
    torch = pytest.importorskip("torch")
    text, around = without_package(text_of("components/_peft/module_matcher.py"), "nemo_automodel")
    around["safe_import_te"] = lambda: (False, None)
    matcher = loaded("own_module_matcher", text, **around).ModuleMatcher
    linear, model = torch.nn.Linear(1, 1), Registry.load().model("llama3-8b")
    lasts = [*(name.rpartition(".")[2] for name in LINEAR), "*_proj", "*", "*q_proj", "v_*", "*self_attn*"]
    places = ["", "", "*.", "*", "*.mlp.", "*.self_attn.", "model.layers.*.", "model.layers.*.self_attn.", "*mlp*"]
    draw, reached_some = random.Random(5), 0
    for _ in range(600):
        names = [draw.choice(places) + draw.choice(lasts) for _ in range(draw.randint(1, 3))]
        peft = draw.choice([{"target_modules": names}, {"exclude_modules": names}, {"target_modules": names[0]}])
        match = matcher(**peft).match
        theirs = {target for name, target in LINEAR.items() if match(linear, f"model.layers.0.{name}")}
        try:
            found = adapters_of(Fields({"peft": peft}, FILE), model, 2)
        except InputError:
            found = None
        ours = set(LINEAR.values()).intersection(found.targets) if found is not None else set()
        assert ours == theirs, peft
        reached_some += bool(theirs)
    assert 100 < reached_some < 600
