"""What measures a cluster, with clocks, devices and groups that are written here, against sums by hand."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from taylor.profiling.measuring import hardware_worker
from taylor.profiling.measuring.hardware_tables import hardware_tables, measured_device, write_tables
from taylor.profiling.measuring.hardware_worker import Rank
from taylor.profiling.measuring.plan import (
    ALL_REDUCE,
    ALL_TO_ALL,
    ATTENTION,
    COPY,
    HOST_LINK,
    KINDS,
    MIB,
    OVERLAP,
    PRODUCTS,
    TIMED_REDUCE,
    TRANSFER,
    HardwareJob,
    HardwarePlan,
    hardware_jobs,
)
from taylor.profiling.measuring.samples import Kept, TimedSample, settle, spread_of
from taylor.profiling.measuring.torch_device import TorchDevice
from taylor.register.device import DeviceSpec
from taylor.register.registry import Registry

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
REGISTRY = Registry.load()


class Clock:
    """A time that goes on only when something is done."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def takes(self, seconds: float) -> Callable[..., None]:
        def work(*_: object, **__: object) -> None:
            self.now += seconds

        return work


class Processes:
    """torch.distributed as far as it is asked for; what was asked is in `told`."""

    ReduceOp = SimpleNamespace(MAX="largest")

    def __init__(self, clock: Clock, reduction: float = 0.0, hidden: float = 0.0) -> None:
        self.clock, self.reduction, self.hidden = clock, reduction, hidden
        self.told: list[tuple[Any, ...]] = []

    def new_group(self, ranks: list[int]) -> str:
        self.told.append(("group", *ranks))
        return f"group {ranks}"

    def all_reduce(self, sent: Any, group: str = "", async_op: bool = False) -> Any:
        self.told.append(("reduce", len(sent), group))
        if not async_op:
            self.clock.now += self.reduction
        return SimpleNamespace(wait=self.clock.takes(self.reduction - self.hidden))

    def all_to_all_single(self, got: Any, sent: Any, group: str) -> None:
        self.told.append(("exchange", len(got), len(sent), group))

    def send(self, sent: Any, to: int) -> None:
        self.told.append(("send", len(sent), to))

    def recv(self, sent: Any, of: int) -> None:
        self.told.append(("receive", len(sent), of))


def rank_of(
    monkeypatch: pytest.MonkeyPatch, plan: HardwarePlan, rank: int = 0, reduction: float = 0.0, hidden: float = 0.0
) -> tuple[Rank, Clock, Processes]:
    """A rank without torch: what it sends is as long as a range is, and its products take a 64th of a second."""
    clock = Clock()
    monkeypatch.setattr(hardware_worker, "time", clock)
    me: Any = Rank.__new__(Rank)
    processes = Processes(clock, reduction, hidden)
    me.plan, me.rank, me.several, me.groups, me.dist = plan, rank, False, {}, processes
    me.torch = SimpleNamespace(zeros=lambda n, dtype, device: range(n), empty_like=lambda other: other)
    product = clock.takes(1 / 64)

    def work(kind: str, width: int) -> tuple[float, Callable[[], None] | None]:
        return (0.0, None) if kind == HOST_LINK else (3.0 * width, product)

    me.on = SimpleNamespace(wait=lambda: None, half="half", device="here", work=work)
    return me, clock, processes


@pytest.mark.parametrize(
    ("seconds", "times"),
    [(1.0, 1), (2.0**-8, 1), (2.0**-9, 1), (2.0**-10, 2), (2.0**-11, 4), (2.0**-15, 65), (2.0**-20, 1000), (0.0, 1000)],
)
def test_a_short_operation_is_repeated_until_two_milliseconds_are_full(
    monkeypatch: pytest.MonkeyPatch, seconds: float, times: int
) -> None:
    """Once to warm up, once to see how long it takes, then so often a sample; a thousand times at the most."""
    me, clock, _ = rank_of(monkeypatch, HardwarePlan())
    done = []

    def operation() -> None:
        done.append(1)
        clock.now += seconds

    sample = me.timed(operation)
    assert len(done) == 2
    assert sample() == pytest.approx(seconds)
    assert len(done) == 2 + times


@pytest.mark.parametrize(("hidden", "slower"), [(0.0, 2.0), (0.03125, 1.75), (0.125, 1.0), (0.15625, 1.0)])
def test_overlap_is_told_by_how_much_longer_both_take_than_the_longer_alone(
    monkeypatch: pytest.MonkeyPatch, hidden: float, slower: float
) -> None:
    """A reduction of 1/8 s is as long as 8 products: 4 of them and 32 products take half a second each alone."""
    me, _, processes = rank_of(monkeypatch, HardwarePlan(1, 2), reduction=0.125, hidden=hidden)
    sample = me.sampler(HardwareJob(OVERLAP, 2))
    assert sample is not None
    before = len(processes.told)
    assert sample() == pytest.approx(slower)
    assert processes.told[before:] == [("reduce", 8 * MIB, "")] * 8


def test_products_are_at_least_one_where_reductions_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four reductions of a 4096th are a 16th of a product: alone the product is the longer, and both are 17/16."""
    me, _, _ = rank_of(monkeypatch, HardwarePlan(1, 2), reduction=2.0**-12)
    sample = me.sampler(HardwareJob(OVERLAP, 2))
    assert sample is not None and sample() == pytest.approx(1 + 1 / 16)


def test_a_device_alone_does_its_work_over_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    me, _, _ = rank_of(monkeypatch, HardwarePlan(width=10))
    sample = me.sampler(HardwareJob(PRODUCTS))
    assert sample is not None and sample() == pytest.approx(30.0 * 64)
    assert me.sampler(HardwareJob(HOST_LINK)) is None


@pytest.mark.parametrize("rank", range(8))
def test_a_transfer_goes_from_the_first_stage_s_ranks_to_the_second_s(
    monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """Four stages of eight ranks have two each; 3 MiB are a million and a half of two bytes."""
    me, _, processes = rank_of(monkeypatch, HardwarePlan(1, 8), rank)
    sample = me.sampler(HardwareJob(TRANSFER, 4, mib=3))
    assert sample is not None
    sample()
    wanted = {0: ("send", 2), 1: ("send", 3), 2: ("receive", 0), 3: ("receive", 1)}
    half = 3 * 2**20 // 2
    assert set(processes.told) == ({(wanted[rank][0], half, wanted[rank][1])} if rank in wanted else set())


def test_collectives_are_those_of_the_rank_s_own_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six ranks the fourth's neighbours in threes are 3, 4 and 5, its partner at three ranks' distance is 0."""
    plan = HardwarePlan(1, 6)
    me, _, processes = rank_of(monkeypatch, plan, 3)
    jobs = [
        HardwareJob(ALL_REDUCE, 3, True, 2),
        HardwareJob(TIMED_REDUCE, 2, False, 1),
        HardwareJob(ALL_TO_ALL, 3, mib=1),
    ]
    me.open_groups([*jobs, HardwareJob(TRANSFER, 6, mib=1), HardwareJob(PRODUCTS), HardwareJob(OVERLAP, 6)])
    assert processes.told == [
        ("group", 0, 1, 2), ("group", 3, 4, 5), ("group", 0, 3), ("group", 1, 4), ("group", 2, 5),
        ("group", 0, 1, 2, 3, 4, 5),
    ]  # fmt: skip
    told = []
    for job in jobs:
        processes.told.clear()
        sample = me.sampler(job)
        assert sample is not None
        sample()
        told.append(set(processes.told))
    assert told == [
        {("reduce", 2**20, "group [3, 4, 5]")},
        {("reduce", 2**19, "group [0, 3]")},
        # An exchange in threes sends three equal parts: of 524,288 two are left.
        {("exchange", 524_286, 524_286, "group [3, 4, 5]")},
    ]


def test_a_device_alone_opens_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    me, _, processes = rank_of(monkeypatch, HardwarePlan(1, 2))
    me.open_groups([HardwareJob(TRANSFER, 2, mib=1), HardwareJob(COPY), HardwareJob(ATTENTION)])
    assert not processes.told and not me.groups


def module_of(**functions: Any) -> Any:
    """A device's module of torch."""
    return SimpleNamespace(**functions)


def test_memory_that_this_process_holds_counts_as_free() -> None:
    module = module_of(mem_get_info=lambda: (30, 100), memory_reserved=lambda: 10)
    assert TorchDevice(None, None, "nccl", module, None).memory_free() == pytest.approx(0.4)
    assert TorchDevice(None, None, "gloo", None, None).memory_free() == 1.0


def test_a_device_tells_its_name_and_is_waited_for() -> None:
    waited: list[int] = []
    module = module_of(get_device_name=lambda device: f"card {device}", synchronize=lambda: waited.append(1))
    torch = SimpleNamespace(__version__="2.0")
    card = TorchDevice(torch, 3, "nccl", module, None)
    assert card.facts == {"device": "card 3", "backend": "nccl", "torch": "2.0"}
    card.wait()
    assert waited == [1]
    processor = TorchDevice(torch, "cpu", "gloo", None, None)
    assert processor.facts["device"] == "cpu"
    processor.wait()


def test_the_link_to_the_host_carries_two_bytes_an_element_and_is_not_waited_for() -> None:
    """Sixteen squares of width 8 are 1024 elements."""
    told: list[tuple[Any, ...]] = []

    class Tensor:
        def __init__(self, *shape: int, **how: Any) -> None:
            self.shape, self.how = shape, how

        def copy_(self, other: Tensor, non_blocking: bool = False) -> None:
            told.append((other.shape, non_blocking))

    torch = SimpleNamespace(zeros=Tensor, empty=Tensor)
    done, operation = TorchDevice(torch, "card", "nccl", object(), "half").work(HOST_LINK, 8)
    assert operation is not None
    operation()
    assert done == 2 * 1024
    assert told == [((1024,), True)]


@pytest.mark.parametrize(("width", "heads", "tokens"), [(64, 1, 256), (512, 4, 256), (520, 4, 260), (1024, 8, 512)])
def test_attention_has_heads_of_128_and_half_the_width_in_tokens(width: int, heads: int, tokens: int) -> None:
    """QK^T and PV are 4 FLOP a head dimension and pair of tokens, of which a causal mask leaves half."""
    shapes: list[tuple[int, ...]] = []
    attend = SimpleNamespace(scaled_dot_product_attention=lambda q, k, v, is_causal: is_causal)
    torch = SimpleNamespace(
        randn=lambda *shape, device, dtype: shapes.append(shape), nn=SimpleNamespace(functional=attend)
    )
    done, operation = TorchDevice(torch, "card", "nccl", object(), "half").work(ATTENTION, width)
    assert operation is not None and operation() is True
    assert shapes == [(1, heads, tokens, 128)] * 3
    assert done == 4 * heads * 128 * tokens**2 / 2


def test_a_rank_takes_the_card_of_its_number_and_else_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[Any] = []
    torch: Any = ModuleType("torch")
    torch.bfloat16, torch.device = "half", lambda *words: words
    torch.set_num_threads = lambda number: chosen.append(("threads", number))
    torch.cuda = module_of(is_available=lambda: True, set_device=chosen.append)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    here = TorchDevice.here(5)
    assert (here.device, here.backend, here.module, chosen) == (("cuda", 5), "nccl", torch.cuda, [5])
    torch.cuda.is_available = lambda: False
    here = TorchDevice.here(5)
    assert (here.device, here.backend, here.module, chosen) == (("cpu",), "gloo", None, [5, ("threads", 1)])
    torch.npu = module_of(set_device=chosen.append)
    monkeypatch.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))
    here = TorchDevice.here(6)
    assert (here.device, here.backend, here.module, chosen[2:]) == (("npu", 6), "hccl", torch.npu, [6])


def test_a_better_measurement_takes_the_place_of_a_worse_one(tmp_path: Path) -> None:
    """A disturbed one takes it where it scatters no more; one that nothing disturbed takes it in any case."""
    kept = Kept(tmp_path / "m.json", {})
    rows = [
        (TimedSample(1.0, 0.30, 3, "spread"), 1.0),
        (TimedSample(2.0, 0.31, 3, "spread"), 1.0),
        (TimedSample(3.0, 0.30, 3, "spread"), 3.0),
        (TimedSample(4.0, 0.20, 3, "spread"), 4.0),
        (TimedSample(5.0, 0.40, 1), 5.0),
        (TimedSample(6.0, 0.50, 1), 6.0),
    ]
    for sample, value in rows:
        kept.keep("x", sample)
        assert kept.samples["x"].value == value
        assert kept.settled("x") == (kept.samples["x"].disturbed == "")
    assert Kept(tmp_path / "m.json", {}).samples == {"x": rows[-1][0]}
    assert not kept.settled("y")


def test_samples_are_asked_for_as_often_as_is_said() -> None:
    """Two to warm up and three to keep an attempt; the best of three attempts counts, not the last."""
    values: Iterator[float] = iter([0, 0, 1, 2, 3, 0, 0, 10, 11, 12, 0, 0, 1, 5, 9])
    asked = count()

    def once() -> float:
        next(asked)
        return float(next(values))

    sample = settle(once, 3, 3)
    assert next(asked) == 15
    # Quartiles of 10, 11 and 12 are 10.5 and 11.5.
    assert (sample.value, sample.spread, sample.attempts) == (11.0, pytest.approx(1 / 11), 3)
    assert sample.disturbed == "spread 9 %"


@pytest.mark.parametrize(("free", "told"), [(0.9, ""), (0.89, "11 % of the memory was taken before"), (1.0, "")])
def test_a_tenth_of_the_memory_may_be_taken(free: float, told: str) -> None:
    assert settle(lambda: 1.0, 2, 2, memory_free=free).disturbed == told


@pytest.mark.parametrize(("middle", "attempts"), [(40.0, 1), (20.0, 1), (19.0, 3)])
def test_a_spread_of_a_twentieth_is_calm(middle: float, attempts: int) -> None:
    """Quartiles of three samples one apart are one apart: a 40th of the median, a 20th, a 19th."""
    rows = iter([middle - 1, middle, middle + 1] * 3)
    assert settle(lambda: next(rows), 3, 3, warm=0).attempts == attempts


def test_nothing_and_less_than_nothing_has_no_spread() -> None:
    assert spread_of([0.0, 0.0, 0.0]) == spread_of([-1.0, 0.0, 1.0]) == spread_of([-3.0, -2.0]) == 0.0


def test_a_plan_s_measurements_are_all_written_down_here() -> None:
    plan = HardwarePlan(2, 2, max_tp=2, max_pp=2, start_mib=2, end_mib=8, bandwidth_mib=7)
    assert [job.key for job in hardware_jobs(plan)] == [
        "allreduce 4 consec 1 7 MiB", "allreduce 2 consec 1 7 MiB", "allreduce 2 consec 0 7 MiB", "p2p 2 7 MiB",
        "allreduce_time 2 2 MiB", "allreduce_time 2 4 MiB", "allreduce_time 2 8 MiB",
        "all2all_time 2 2 MiB", "all2all_time 2 4 MiB", "all2all_time 2 8 MiB",
        "overlap", "products", "attention", "copy", "host_link",
    ]  # fmt: skip
    alone = [job.key for job in hardware_jobs(HardwarePlan(1, 1))]
    assert alone == ["products", "attention", "copy", "host_link"]
    for kind in KINDS:
        assert {job.kind for job in hardware_jobs(HardwarePlan(1, 2, kinds=(kind,)))} == {kind}


def test_a_cluster_that_nobody_describes_is_one_node_of_eight() -> None:
    """The defaults of Galvatron's hardware profiler: sizes from 1 MiB to 1 GiB, groups up to 8."""
    plan = HardwarePlan()
    assert (plan.world, plan.name) == (8, "1nodes_8gpus_per_node")
    assert (plan.max_tp, plan.max_pp, plan.start_mib, plan.end_mib, plan.overlap_multiply) == (8, 8, 1, 1024, 4)
    assert HardwarePlan(2, 4).name == "2nodes_4gpus_per_node" and HardwarePlan(3, 4).world == 12


def test_every_measurement_has_its_place_in_galvatron_s_tables(tmp_path: Path) -> None:
    """2 MiB in 1 ms are 2.097152 GB/s; an all-reduce of four puts three quarters twice on the bus."""
    plan = HardwarePlan(1, 4, max_tp=4, max_pp=4, start_mib=1, end_mib=1, bandwidth_mib=2)
    measured = {job.key: TimedSample(1e-3, 0.0, 1) for job in hardware_jobs(plan)}
    measured |= {job.key: TimedSample(2e-3, 0.0, 1) for job in hardware_jobs(plan) if job.kind == ALL_TO_ALL}
    measured["overlap"] = TimedSample(1.23456789, 0.0, 1)
    tables = hardware_tables(plan, measured)
    assert tables == {
        "allreduce_bandwidth_1nodes_4gpus_per_node.json": {
            "allreduce_size_4_consec_1": 3.145728, "allreduce_size_2_consec_1": 2.097152,
            "allreduce_size_2_consec_0": 2.097152,
        },
        "p2p_bandwidth_1nodes_4gpus_per_node.json": {"pp_size_2": 2.097152, "pp_size_4": 2.097152},
        "sp_time_1nodes_4gpus_per_node.json": {
            "allreduce_size_4_1MB_time": 1.0, "allreduce_size_2_1MB_time": 1.0,
            "all2all_size_4_1MB_time": 2.0, "all2all_size_2_1MB_time": 2.0,
        },
        "overlap_coefficient.json": {"overlap_coe": 1.234568},
    }  # fmt: skip
    # What was not measured has no entry, and a table without entries no file.
    assert hardware_tables(plan, {"p2p 4 2 MiB": TimedSample(3e-3, 0.0, 1)}) == {
        "p2p_bandwidth_1nodes_4gpus_per_node.json": {"pp_size_4": 0.699051}
    }
    assert [path.name for path in write_tables(tables, tmp_path)] == list(tables)


def card(name: str, plan: HardwarePlan, **measured: float) -> DeviceSpec:
    """A registered device with some measurements."""
    return measured_device(
        REGISTRY.device(name),
        plan,
        {key.replace("_", " "): TimedSample(each, 0.0, 1) for key, each in measured.items()},
        "s",
    )


def test_kernels_reach_a_share_of_the_peaks_and_no_more_than_all() -> None:
    device, plan = REGISTRY.device("h100-80g"), HardwarePlan()
    peak = 1e12 * device.peak_tflops["bf16"]
    assert card("h100-80g", plan).efficiency == device.efficiency
    found = card("h100-80g", plan, products=peak / 2, attention=peak / 4, copy=2e9 * device.memory_gb_s)
    assert found.efficiency == {**device.efficiency, "matmul": 0.5, "attention": 0.25, "memory": 1.0}
    assert (found.name, found.aliases, found.stack) == ("h100-80g-measured", (), "s")
    assert found.links == device.links and found.host_link_gb_s == device.host_link_gb_s
    assert dict(found.sources) == dict(device.sources)


def test_the_host_s_link_is_told_in_gigabytes() -> None:
    plan = HardwarePlan()
    found = measured_device(REGISTRY.device("h100-80g"), plan, {HOST_LINK: TimedSample(5.5e10, 0.0, 1)}, "s")
    assert found.host_link_gb_s == 55.0
    assert found.sources["host_link_gb_s"] == "measured by `taylor profile hardware`"


def test_links_are_what_the_widest_reductions_reach() -> None:
    """Two nodes of four: the domain by the four of a node, the fabric by one rank of each; a GiB in a second."""
    plan = HardwarePlan(2, 4, bandwidth_mib=1024)
    device = REGISTRY.device("h100-80g")
    near, far = "allreduce_4_consec_1_1024_MiB", "allreduce_2_consec_0_1024_MiB"
    found = card("h100-80g", plan, **{near: 1.0, far: 8.0})
    told = {tier.name: (tier.gb_s, tier.cards, tier.full_mesh) for tier in found.links}
    assert told == {"domain": (1.610613, 4, False), "fabric": (0.134218, None, False)}
    assert found.efficiency == {**device.efficiency, "network": 1.0}
    for tier in ("domain", "fabric"):
        assert found.sources[tier] == "all-reduce of 1024 MiB, measured by `taylor profile hardware`"
    only = card("h100-80g", plan, **{near: 1.0})
    assert [tier.gb_s for tier in only.links] == [1.610613, 50.0]
    assert only.sources["fabric"] == device.sources["fabric"]
    # The fabric says nothing of one node, although the same name stands for two of its ranks.
    one = card("h100-80g", replace(plan, nodes=1), allreduce_2_consec_0_1024_MiB=8.0)
    assert one.links == device.links


@pytest.mark.parametrize(
    ("per_node", "tiers"),
    [(1, ["domain"]), (2, ["domain"]), (4, ["package", "domain"]), (32, ["package", "node", "domain"])],
)
def test_a_tier_as_wide_as_the_measured_domain_is_left_out(per_node: int, tiers: list[str]) -> None:
    """Packages of two and nodes of sixteen: those that are narrower than the domain stay."""
    found = card("ascend-a3", HardwarePlan(1, per_node), **{f"allreduce_{per_node}_consec_1_256_MiB": 1.0})
    if per_node == 1:
        # One card alone measures no link.
        assert found.links == REGISTRY.device("ascend-a3").links
        return
    assert [tier.name for tier in found.links] == [*tiers, "fabric"]
    assert found.domain.cards == per_node
    assert {name for name in found.sources if name in ("package", "node", "domain")} == set(tiers)


@needs_torch
@pytest.mark.parametrize("disturbed", ["", "spread 9 %"])
def test_a_measurement_is_told_with_what_disturbed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], disturbed: str
) -> None:
    """A copy and the link to the host, which a processor does not have."""
    plan = HardwarePlan(1, 1, kinds=(COPY, HOST_LINK), width=8)
    (tmp_path / hardware_worker.PLAN).write_text(json.dumps(asdict(plan)), encoding="utf-8")
    asked: list[tuple[Any, ...]] = []

    def settled(once: Callable[[], float], *how: Any, **more: Any) -> TimedSample:
        asked.append((*how, more))
        return TimedSample(1234567.0, 0.0625, 3, disturbed)

    monkeypatch.setattr(hardware_worker, "settle", settled)
    for _ in range(2):
        hardware_worker.main(tmp_path)
    # What was disturbed is measured again.
    times = 2 if disturbed else 1
    mark = " DISTURBED: spread 9 %" if disturbed else ""
    assert capsys.readouterr().out.splitlines() == [f"copy: 1.23457e+06, spread 6.2 %{mark}"] * times
    assert asked == [(9, 3, 1.0, {"warm": 1})] * times
