"""Plans written into MindFormers files: they read back, and not one other byte changes."""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.read import read_config
from taylor.parsers.text.yaml_edit import edit_yaml
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.write_back import emit_variant, write_plan
from taylor.pipeline.chunks import chunk_order
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan, as_grid
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.model import MTP
from tests.conftest import ROOT, SHARED

SAMPLES = SHARED / "data" / "mindformers_yaml"
EXAMPLE = ROOT / "config" / "pretrain_deepseek3_671b_1024p.yaml"
OWNED = ("offset", "recompute", "select_recompute", "select_comm_recompute")


def readable_samples() -> list[Path]:
    """Samples and the project's own examples that hold a plan."""
    files = sorted((ROOT / "config").glob("*.yaml"))
    for file in sorted(SAMPLES.glob("*.yaml")) if SAMPLES.is_dir() else []:
        if "template" not in file.name:
            files.append(file)
    return files


def some_plan(config: TrainingConfig, seed: int = 0, vpp: int | None = None, v_shape: bool = False) -> PipelinePlan:
    """A plan of the configuration's layers, far from even."""
    counts, stages = config.model.layer_counts(), config.strategy.pp
    order = chunk_order(stages, vpp or config.strategy.vpp, v_shape)
    kinds = [kind for kind, n in counts.items() if config.mtp_counted or kind != MTP for _ in range(n)]
    bounds = sorted({1 + (seed * 7 + i * 5) % (len(kinds) - 1) for i in range(len(order) * 9)})[: len(order) - 1]
    bounds = [0, *(bounds if len(bounds) == len(order) - 1 else range(1, len(order))), len(kinds)]
    return build_plan(config, kinds, order, bounds, lambda k, held: (held * (k + seed)) % (held + 1), vpp)


def build_plan(config, kinds, order, bounds, full_of, vpp=None, select_of=lambda k, left: left % 2):
    """A plan from the places where the layer list is cut."""
    counts, stages, rows = config.model.layer_counts(), config.strategy.pp, vpp or config.strategy.vpp
    layers = {kind: [[0] * stages for _ in range(rows)] for kind in counts}
    full, select = ([[0] * stages for _ in range(rows)] for _ in range(2))
    for k, (v, s) in enumerate(order):
        chunk = kinds[bounds[k] : bounds[k + 1]]
        for kind in chunk:
            layers[kind][v][s] += 1
        full[v][s] = full_of(k, len(chunk))
        select[v][s] = select_of(k, len(chunk) - full[v][s])
    if MTP in counts and not config.mtp_counted:
        v, s = order[-1]
        layers[MTP][v][s] = counts[MTP]
    modes = {FULL: as_grid(full)} | ({SELECT: as_grid(select)} if any(map(any, select)) else {})
    return PipelinePlan({kind: as_grid(grid) for kind, grid in layers.items()}, modes)


def foreign_lines(text: str) -> list[str]:
    """Lines that hold no owned key (and are not the inside of an owned list)."""
    kept, inside = [], False
    for line in text.splitlines(keepends=True):
        key = re.match(r"\s*([\w]+):", line)
        if key:
            inside = key[1] in OWNED
        if not inside:
            kept.append(line)
    return kept


def without_owned(text: str) -> dict:
    """The data of a file without the owned keys."""
    data = yaml.safe_load(text)
    for section in (data.get("recompute_config") or {}, data["model"]["model_config"], data["parallel_config"]):
        for key in OWNED:
            section.pop(key, None)
    if not data.get("recompute_config"):
        data.pop("recompute_config", None)
    return data


@pytest.mark.parametrize("file", readable_samples(), ids=lambda path: path.name[:60])
def test_a_plan_written_into_a_real_file_reads_back_and_touches_nothing_else(file: Path, tmp_path: Path) -> None:
    config, text = read_config(file), file.read_text(encoding="utf-8")
    for seed in (0, 3):
        plan = some_plan(config, seed)
        written = write_plan(config, plan, output=tmp_path / f"{seed}.yaml")
        new = written.read_text(encoding="utf-8")
        assert read_config(written).plan == plan
        assert without_owned(new) == without_owned(text)
        if "recompute_config:" in text and "offset:" in text:
            assert foreign_lines(new) == foreign_lines(text)
        assert re.findall(r"#.*", new) == re.findall(r"#.*", text)
        assert re.findall(r"[&*]\w+", new) == re.findall(r"[&*]\w+", text)
        again = write_plan(read_config(written), plan)
        assert again.read_text(encoding="utf-8") == new and not Path(f"{again}.orig").exists()


DRESSINGS = {
    "as it is": lambda text: text,
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "no final newline": lambda text: text.rstrip("\n"),
    "tabs": lambda text: text.replace("  pipeline_stage: 16", "  pipeline_stage: 16 #\tстадии\t").replace(
        "output_dir: './output'", "output_dir: './out\tput'"
    ),
    "Chinese": lambda text: "# 训练 😀\n" + text.replace("select_recompute: False", "select_recompute: False # 选择"),
    "byte-order mark": lambda text: "\ufeff" + text,
    "block lists": lambda text: re.sub(
        r"(  +)(offset|recompute): \[(.*)\]",
        lambda m: f"{m[1]}{m[2]}: # counts\n" + "".join(f"{m[1]}- {n}\n" for n in m[3].split(", ")).rstrip("\n"),
        text,
    ),
    "indented block lists": lambda text: re.sub(
        r"(  +)(offset|recompute): \[(.*)\]",
        lambda m: f"{m[1]}{m[2]}:\n" + "".join(f"{m[1]}  - {n}  # {n}\n" for n in m[3].split(", ")).rstrip("\n"),
        text,
    ),
    "lists over several lines": lambda text: re.sub(
        r"(offset|recompute): \[(\d), ", r"\1: [\n      \2, # first\n      ", text
    ),
    "scalars": lambda text: re.sub(r"(  )recompute: \[.*\]", r"\1recompute: True  # all", text),
    "anchors": lambda text: re.sub(r"(offset|recompute): \[", r"\1: &\1 [", text),
    "no entries": lambda text: re.sub(r"\n +(offset|recompute): \[.*\]", "", text),
    "no section": lambda text: re.sub(r"\nrecompute_config:(\n .*)*", "", text),
    "empty section": lambda text: re.sub(r"\nrecompute_config:(\n .*)*", "\nrecompute_config:   # nothing yet", text),
    "flow section": lambda text: re.sub(
        r"\nrecompute_config:(\n .*)*", "\nrecompute_config: {mp_comm_recompute: True, recompute: False}", text
    ),
    "a bare bool as section": lambda text: re.sub(r"\nrecompute_config:(\n .*)*", "\nrecompute_config: True", text),
    "empty values": lambda text: re.sub(r"(offset|recompute): \[.*\]", r"\1:", text),
    "quoted keys": lambda text: re.sub(r"(offset|recompute): \[", r'"\1": [', text),
    "under parallel_config": lambda text: re.sub(r"\n +offset: \[.*\]", "", text).replace(
        "parallel_config:\n", "parallel_config:\n  offset: 0\n"
    ),
    "patterns": lambda text: text.replace(
        "select_recompute: False",
        "select_recompute:\n    feed_forward\\.mul: True  # the product\n    'feed_forward\\.w1\\.act': [0]",
    ),
    "operators": lambda text: text.replace("select_recompute: False", r"select_recompute: ['w1\.mul', 'a\.b']"),
    "a long tail": lambda text: text + "\n# the end\n\n\n",
    "a document end": lambda text: "---\n" + text + "...\n",
}


@st.composite
def plans(draw: st.DrawFn, config: TrainingConfig) -> tuple[PipelinePlan, ScheduleSpec]:
    """Any plan of a configuration's layers, on 1 to 3 interleaves or a V."""
    vpp = draw(st.integers(1, 3))
    v_shape = vpp == 2 and draw(st.booleans())
    order = chunk_order(config.strategy.pp, vpp, v_shape)
    counts = config.model.layer_counts()
    kinds = [kind for kind, n in counts.items() for _ in range(n)]
    cuts = draw(st.lists(st.integers(0, len(kinds)), min_size=len(order) - 1, max_size=len(order) - 1))
    bounds = [0, *sorted(cuts), len(kinds)]
    full = [draw(st.integers(0, bounds[k + 1] - bounds[k])) for k in range(len(order))]
    shares = draw(st.sampled_from([0.0, 0.5, 1.0]))
    plan = build_plan(config, kinds, order, bounds, lambda k, held: full[k], vpp, lambda k, left: int(left * shares))
    name = "zero_bubble_v" if v_shape else "interleaved" if vpp > 1 else "1f1b"
    return plan, ScheduleSpec(name)


@pytest.mark.parametrize("dressing", DRESSINGS)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_plan_survives_the_way_through_any_form_of_file(dressing: str, data: st.DataObject, tmp_path: Path) -> None:
    text = DRESSINGS[dressing](EXAMPLE.read_text(encoding="utf-8"))
    file = tmp_path / "in.yaml"
    file.write_bytes(text.encode("utf-8"))
    config = read_config(file)
    plan, schedule = data.draw(plans(config))
    written = write_plan(config.replace(schedule=schedule), plan, output=tmp_path / "out.yaml", micro_batches=48)
    new = written.read_bytes().decode("utf-8")
    back = read_config(written)
    assert (back.plan, back.schedule.name, back.strategy.micro_batches) == (plan, schedule.name, 48)
    assert back.strategy.replace(vpp=1, micro_batches=64) == config.strategy
    assert ("\r\n" in new) == ("\r\n" in text) and new.count("\r") == (new.count("\n") if "\r\n" in text else 0)
    assert new.endswith("\n") == text.endswith("\n")
    whole_line = [line.strip() for line in text.splitlines() if line.strip().startswith("#")]
    assert [line for line in whole_line if line not in [new_line.strip() for new_line in new.splitlines()]] in (
        [],
        ["# first"],
        ["# counts"],
    )
    again = write_plan(back, plan, output=tmp_path / "again.yaml", micro_batches=48)
    assert again.read_bytes().decode("utf-8") == new


def test_a_value_that_others_share_by_an_anchor_leaves_them_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    text = EXAMPLE.read_text(encoding="utf-8")
    text = re.sub(r"recompute: \[.*\]", "recompute: &r True  # all", text)
    text = text.replace("mp_comm_recompute: True", "mp_comm_recompute: *r  # tied")
    text = text.replace("recompute_slice_activation: True", "recompute_slice_activation: *r")
    file.write_text(text, encoding="utf-8")
    config = read_config(file)
    new = write_plan(config, some_plan(config)).read_text(encoding="utf-8")
    data = yaml.safe_load(new)["recompute_config"]
    assert (data["mp_comm_recompute"], data["recompute_slice_activation"]) == (True, True)
    assert re.search(r"  recompute: \[.*\]  # all\n", new)
    assert "mp_comm_recompute: &r True  # tied" in new and "recompute_slice_activation: *r\n" in new


def test_an_alias_under_the_same_name_follows_the_plan(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    text = EXAMPLE.read_text(encoding="utf-8").replace("offset: [", "offset: &off [")
    file.write_text(text + "mirror:\n  offset: *off\n", encoding="utf-8")
    config = read_config(file)
    plan = some_plan(config)
    data = yaml.safe_load(write_plan(config, plan).read_text(encoding="utf-8"))
    assert data["mirror"]["offset"] == data["model"]["model_config"]["offset"] == list(plan.offset()[0])


def test_an_anchor_between_one_that_stays_and_one_that_follows_becomes_two() -> None:
    text = "a: {offset: &x 0}\nnote: *x\nb: {offset: *x}\nx_plan: &x_plan 5\nc: *x_plan\n"
    new = edit_yaml(YamlSource(text, Path("a.yaml")), {("a", "offset"): [1, -1]})
    assert new.data == {"a": {"offset": [1, -1]}, "note": 0, "b": {"offset": [1, -1]}, "x_plan": 5, "c": 5}
    assert "note: &x 0" in new.text and "&x_plan_ [1, -1]" in new.text and "b: {offset: *x_plan_}" in new.text


def test_entries_of_a_list_that_are_aliases_or_lists_are_replaced_alone() -> None:
    text = "n: &n 1\nplan:  # by stage\n  - [*n, 2]  # first\n  - [3, 4]\n"
    new = edit_yaml(YamlSource(text, Path("a.yaml")), {("plan",): [[7, 2], [3, 9]]})
    assert new.text == "n: &n 1\nplan:  # by stage\n  - [7, 2]  # first\n  - [3, 9]\n"


def test_written_in_place_the_first_original_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(EXAMPLE.read_bytes())
    config = read_config(file)
    write_plan(config, some_plan(config, 1))
    write_plan(config, some_plan(config, 2))
    assert (tmp_path / "a.yaml.orig").read_bytes() == EXAMPLE.read_bytes()
    assert file.read_bytes() != EXAMPLE.read_bytes()


@pytest.mark.parametrize("name", ["pretrain_mixtral_8x7b", "pretrain_llama3_70b"])
def test_kinds_that_stay_as_they_are_bring_no_key_of_their_own(name: str, tmp_path: Path) -> None:
    config = read_config(ROOT / "config" / f"{name}.yaml")
    strategy = config.strategy.replace(dp=2 * config.strategy.dp)
    text = emit_variant(config, strategy, tmp_path / "out.yaml", plan=None).read_text(encoding="utf-8")
    assert "first_k_dense_replace" not in text and "mlp_only_layers" not in text


def test_a_plan_for_other_stages_is_refused(tmp_path: Path) -> None:
    config = read_config(EXAMPLE)
    other = some_plan(config.replace(strategy=config.strategy.replace(pp=8)))
    with pytest.raises(InputError, match="pipeline_stage"):
        write_plan(config, other, output=tmp_path / "x.yaml")
    assert not list(tmp_path.iterdir())


def test_a_read_only_file_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(EXAMPLE.read_bytes())
    file.chmod(0o444)
    config = read_config(file)
    with pytest.raises(InputError, match="read-only"):
        write_plan(config, some_plan(config))
    assert file.read_bytes() == EXAMPLE.read_bytes() and [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


WRITE_ONCE = """
import sys
from taylor.parsers.read import read_config
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import PipelinePlan
config = read_config(sys.argv[1])
plan = config.plan
write_plan(config, PipelinePlan(plan.layers, {"full": plan.total_layers()}))
"""


def test_a_full_disk_leaves_the_original_whole(tmp_path: Path) -> None:
    """A file size limit of 1 KiB makes the kernel refuse the write half-way, as a full disk does."""
    file = tmp_path / "a.yaml"
    file.write_bytes(EXAMPLE.read_bytes())

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

    done = subprocess.run(
        [sys.executable, "-B", "-c", WRITE_ONCE, str(file)], cwd=ROOT, preexec_fn=limit, capture_output=True, text=True
    )
    assert "WriteError" in done.stderr and "cannot be written" in done.stderr
    assert file.read_bytes() == EXAMPLE.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


def test_a_kill_in_the_middle_of_a_write_leaves_a_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(EXAMPLE.read_bytes())
    loop = (
        WRITE_ONCE
        + """
import os, taylor.base.files
real = os.replace
print("ready", flush=True)
turn = 0
while True:
    turn += 1
    counts = [[n - (turn % 2) for n in row] for row in plan.total_layers()]
    write_plan(config, PipelinePlan(plan.layers, {"full": tuple(map(tuple, counts))}))
"""
    )
    process = subprocess.Popen([sys.executable, "-c", loop, str(file)], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.2)
    process.kill()
    process.wait()
    process.stdout.close()
    assert read_config(file).plan is not None
    assert foreign_lines(file.read_text()) == foreign_lines(EXAMPLE.read_text())
    assert (tmp_path / "a.yaml.orig").read_bytes() == EXAMPLE.read_bytes()


@pytest.mark.parametrize("file", readable_samples(), ids=lambda path: path.name[:60])
def test_a_variant_reads_as_the_strategy_asked_for(file: Path, tmp_path: Path) -> None:
    config = read_config(file)
    pp = 2 if config.schedule.name != "seqpipe" else 4
    strategy = Strategy(dp=4, tp=2, pp=pp, ep=2, cp=2, op=4, sp=True, vpp=1, mbs=3, micro_batches=12)
    extra = {"train_dataset.data_loader.dataset_dir": "/data/wiki: 4096 # x", "profile": True, "new.section.key": 1.5}
    written = emit_variant(config, strategy, tmp_path / "v.yaml", plan=None, extra=extra)
    back, data = read_config(written), yaml.safe_load(written.read_text(encoding="utf-8"))
    assert back.strategy == strategy and back.plan is not None
    assert data["train_dataset"]["data_loader"]["dataset_dir"] == "/data/wiki: 4096 # x"
    assert data["train_dataset_task"]["dataset_config"] == data["train_dataset"]
    assert data["profile"] is True and data["new"] == {"section": {"key": 1.5}}
    for row in data["parallel"].get("dataset_strategy", []):
        assert row[0] == 4
    comments = re.findall(r"#.*", file.read_text(encoding="utf-8"))
    found = re.findall(r"#.*", written.read_text(encoding="utf-8"))
    found.remove('# x"')
    assert found == comments


def test_a_variant_takes_a_plan_interleaves_and_followers_along(tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8").replace(
        "  - type: MFLossMonitor\n",
        "  - type: TopkBiasBalanceCallback\n    micro_batch_num: *micro_batch_num\n"
        "  - type: Other\n    micro_batch_num: 64\n  - type: MFLossMonitor\n",
    )
    file = tmp_path / "a.yaml"
    file.write_text(text, encoding="utf-8")
    config = read_config(file)
    strategy = config.strategy.replace(dp=8, pp=8, vpp=2, micro_batches=128, op=8, ep=16, tp=8)
    shaped = config.replace(strategy=strategy)
    plan = some_plan(shaped, 2)
    back = read_config(emit_variant(config, strategy, tmp_path / "v.yaml", plan=plan))
    assert (back.strategy, back.plan, back.schedule.name) == (strategy, plan, "interleaved")
    new = (tmp_path / "v.yaml").read_text(encoding="utf-8")
    data = yaml.safe_load(new)
    assert [entry.get("micro_batch_num") for entry in data["callbacks"]] == [128, 128, None]
    assert "[[*dp, 1]]" in new and "micro_batch_num: *micro_batch_num" in new
    assert data["parallel"]["dataset_strategy"] == [[8, 1]]


def test_degrees_that_share_an_anchor_part_where_they_differ(tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8").replace("data_parallel: &dp 16", "data_parallel: &dp 16")
    text = text.replace("pipeline_stage: 16", "pipeline_stage: *dp")
    file = tmp_path / "a.yaml"
    file.write_text(text, encoding="utf-8")
    config = read_config(file)
    strategy = config.strategy.replace(dp=8, pp=4, op=8)
    back = read_config(emit_variant(config, strategy, tmp_path / "v.yaml", plan=None))
    assert back.strategy == strategy
    assert yaml.safe_load((tmp_path / "v.yaml").read_text())["parallel"]["dataset_strategy"] == [[8, 1]]


def test_degrees_kept_at_an_anchor_elsewhere_are_changed_there(tmp_path: Path) -> None:
    text = "ways: &dp 16\n" + EXAMPLE.read_text(encoding="utf-8").replace("data_parallel: &dp 16", "data_parallel: *dp")
    file = tmp_path / "a.yaml"
    file.write_text(text, encoding="utf-8")
    config = read_config(file)
    strategy = config.strategy.replace(dp=8, op=8)
    emit_variant(config, strategy, tmp_path / "v.yaml", plan=config.plan)
    new = (tmp_path / "v.yaml").read_text(encoding="utf-8")
    assert new.startswith("ways: &dp 8\n") and "data_parallel: *dp" in new and "[[*dp, 1]]" in new
    assert read_config(tmp_path / "v.yaml").strategy == strategy


def test_the_kept_original_has_the_files_bytes_even_with_foreign_line_ends(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    mixed = EXAMPLE.read_bytes().replace(b"\n", b"\r\n", 5)
    file.write_bytes(mixed)
    config = read_config(file)
    write_plan(config, some_plan(config))
    assert (tmp_path / "a.yaml.orig").read_bytes() == mixed


def test_a_key_that_comes_by_a_merge_is_overridden_where_it_is_used(tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    text = re.sub(
        r"\nrecompute_config:(\n .*)*",
        "\nshared: &shared\n  recompute: True\n  mp_comm_recompute: True\n"
        "recompute_config:\n  <<: *shared\n  recompute_slice_activation: True",
        text,
    )
    file = tmp_path / "a.yaml"
    file.write_text(text, encoding="utf-8")
    config = read_config(file)
    assert config.plan is not None and config.plan.recompute[FULL] == config.plan.total_layers()
    plan = some_plan(config)
    written = write_plan(config, plan, output=tmp_path / "b.yaml")
    assert read_config(written).plan == plan
    data = yaml.safe_load(written.read_text(encoding="utf-8"))
    assert data["shared"] == {"recompute": True, "mp_comm_recompute": True}
    assert data["recompute_config"]["mp_comm_recompute"] is True


def test_a_section_that_is_an_alias_is_changed_at_its_anchor(tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    text = text.replace("recompute_config:\n", "common: &common\n")
    text = text.replace("\nmodel:\n", "\nrecompute_config: *common\n\nmodel:\n")
    file = tmp_path / "a.yaml"
    file.write_text(text, encoding="utf-8")
    config = read_config(file)
    plan = some_plan(config)
    written = write_plan(config, plan, output=tmp_path / "b.yaml")
    assert read_config(written).plan == plan
    new = written.read_text(encoding="utf-8")
    assert "recompute_config: *common" in new and foreign_lines(new) == foreign_lines(text)


def test_of_two_equal_keys_the_last_one_that_counts_is_changed(tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8").replace("    offset: [", "    offset: 99  # left over\n    offset: [")
    file = tmp_path / "a.yaml"
    file.write_text(text, encoding="utf-8")
    config = read_config(file)
    plan = some_plan(config)
    written = write_plan(config, plan, output=tmp_path / "b.yaml")
    assert read_config(written).plan == plan and "offset: 99  # left over" in written.read_text(encoding="utf-8")


def test_a_symbolic_link_stays_one_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "a.yaml", tmp_path / "link.yaml"
    target.write_bytes(EXAMPLE.read_bytes())
    link.symlink_to(target)
    config = read_config(link)
    plan = some_plan(config)
    write_plan(config, plan)
    assert link.is_symlink() and read_config(target).plan == plan
    assert (tmp_path / "real" / "a.yaml.orig").read_bytes() == EXAMPLE.read_bytes()
