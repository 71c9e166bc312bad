"""A training device's properties: memory, speed by precision, links near and far, its part of the host."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Mapping

from taylor.base.errors import InputError
from taylor.base.near import did_you_mean

PRECISIONS = ("fp4", "fp8", "bf16", "fp16", "tf32", "fp32")
"""Number formats whose peak a device may state."""

_UP_TO_HALF = ("fp4", "fp8", "bf16", "fp16")


@dataclass(frozen=True)
class LinkTier:
    """A device's bandwidth among a number of cards.

    Parameters
    ----------
    name : str
        ``node`` (the cards of one host), ``domain`` (the widest group with fast links: a node, a rack, a supernode),
        ``fabric`` (the network between domains), or a finer tier by its own name.
    gb_s : float
        Bandwidth of one device to the others of the tier together, one direction, GB/s.
    cards : int, optional
        Cards that the tier joins; None = any number: the network.
    latency_us : float
        Start-up time of a collective step, µs.
    full_mesh : bool
        The cards are wired pair by pair: a group of g then reaches only (g − 1) / (cards − 1) of `gb_s`. Off
        for switched links.
    """

    name: str
    gb_s: float
    cards: int | None = None
    latency_us: float = 10.0
    full_mesh: bool = False


@dataclass(frozen=True)
class SoftwareStack:
    """A generation of software, and the efficiencies in which it differs from the newest.

    Parameters
    ----------
    name : str
        As ``--stack`` takes it.
    date : str
        Year and month of the software, ``2024-09``: of its tables, or of its release.
    software : str
        What it is, with versions and the source of its figures.
    efficiency : mapping of str to float
        Entries that replace those of the device; empty for the newest.
    """

    name: str
    date: str
    software: str
    efficiency: Mapping[str, float] = field(default_factory=dict)


STACK_SIGN = "@"
"""Sign between a device's name and that of its stack: ``h100-80g@cudnn-2024``."""

TAKEN_OVER = "taken over from"
"""Beginning of the `stack` of a device whose efficiencies are another one's."""

CALIBRATED_TO = "the runs of"
"""Beginning of the `stack` of a device that `taylor calibrate` fitted to a user's runs."""


@dataclass(frozen=True)
class DeviceSpec:
    """One accelerator, the links around it, and its part of the host.

    Parameters
    ----------
    memory_mib : int
        Physical device memory, MiB.
    usable_memory_mib : int
        Memory that a training job can allocate by default, MiB (a limit in the file goes before it).
    peak_tflops : mapping of str to float
        Matrix peaks by precision (`PRECISIONS`), TFLOP/s, without sparsity; one of 16 bits among them.
    memory_gb_s : float
        Device memory bandwidth, GB/s (1e9 bytes).
    links : tuple of LinkTier
        From near to far, each tier wider than the one before. Only the last one, the network, may join any number of
        cards; without such a tier no job can be planned on the device.
    host_link_gb_s : float, optional
        Bandwidth between the device and its host's memory, one direction, GB/s.
    host_memory_mib : int, optional
        Host memory per device in the published reference system, MiB.
    operation_us : float
        Cost of starting one operation on the host, with all that Python, autograd and the libraries do for it, µs.
        One figure for all hosts but an A100's, fitted to the B200's and B300's published steps of models with experts
        (``python -m benchmarks.published_performance --fit``).
    efficiency : mapping of str to float
        Efficiencies of kernels, overlap and the software around them: `cost_model.time.speed.ASSUMED_EFFICIENCY` names
        each. Most are fitted to measured runs (``taylor calibrate`` fits them to a user's own); never inside a formula.
    memory_extra_mib : float
        Memory of every stage beyond the analytical model, as measured peaks have it (``taylor calibrate --peaks``),
        MiB; negative where they are below it.
    kept_factor : float
        Kept activations over those of the analytical model, likewise.
    stack : str
        The software that `efficiency` was fitted on, with versions where they are known; empty where nothing was.
    stacks : tuple of SoftwareStack
        Generations of it from new to old, where older ones are known: `efficiency` is that of the first.
    collectives : str
        The library of collectives, where its latencies (`cost_model.network.nccl.LIBRARY`) or its buffers
        (`cost_model.memory.communicators`) are known. Of another one an exchange takes a step of `latency_us` for every
        doubling of the ranks.
    aliases : tuple of str
        Other names, of the card or of the system that tables of results state.
    sources : mapping of str to str
        Source of a figure, by its field or its tier's name; ``all`` is for those without an entry.
    """

    name: str
    memory_mib: int
    usable_memory_mib: int
    peak_tflops: Mapping[str, float]
    memory_gb_s: float
    links: tuple[LinkTier, ...]
    host_link_gb_s: float | None = None
    host_memory_mib: int | None = None
    operation_us: float = 39.0
    efficiency: Mapping[str, float] = field(default_factory=dict)
    memory_extra_mib: float = 0.0
    kept_factor: float = 1.0
    stack: str = ""
    stacks: tuple[SoftwareStack, ...] = ()
    collectives: str = ""
    aliases: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    def peak(self, precision: str) -> float:
        """Matrix peak in a precision, TFLOP/s; where none is stated, that of 16 bits."""
        stated = self.peak_tflops
        half = stated["bf16"] if "bf16" in stated else stated["fp16"]
        return stated.get(precision, half)

    def peak_precision(self, precision: str) -> str | None:
        """The precision whose peak counts for GEMMs in another one: 16 bits for narrower ones that have none.

        None where the device states no usable peak.
        """
        if precision in self.peak_tflops:
            return precision
        if precision not in _UP_TO_HALF:
            return None
        return next((half for half in ("bf16", "fp16") if half in self.peak_tflops), None)

    def with_stack(self, name: str) -> DeviceSpec:
        """The device with the efficiencies of one of its `stacks`.

        Raises
        ------
        InputError
            When it has none of that name; the near ones are listed.
        """
        known = {each.name: each for each in self.stacks}
        if name not in known:
            cure = f"{did_you_mean(name, known, alike=0.5)} (of {self.name})" if known else "leave it out"
            problem = "the device has no stack of that name" if known else f"{self.name} has one stack only"
            raise InputError(problem, field="--stack", value=name, cure=cure)
        chosen = known[name]
        return replace(self, efficiency={**self.efficiency, **chosen.efficiency}, stack=chosen.software)

    @property
    def is_measured(self) -> bool:
        """Return whether its efficiencies were fitted to runs on it, not taken from another device or assumed."""
        return bool(self.stack) and not self.stack.startswith(TAKEN_OVER)

    @property
    def is_calibrated(self) -> bool:
        """Return whether its efficiencies were fitted to a user's own runs."""
        return self.stack.startswith(CALIBRATED_TO)

    @property
    def domain(self) -> LinkTier:
        """The widest tier of fast links: what the cost model takes for a node, a supernode too."""
        return [tier for tier in self.links if tier.cards is not None][-1]

    @property
    def fabric(self) -> LinkTier | None:
        """The network between domains; None where its bandwidth is not published."""
        return self.links[-1] if self.links[-1].cards is None else None

    @property
    def devices_per_node(self) -> int:
        """Cards of the domain."""
        return self.domain.cards or 1

    @property
    def intra_node_gb_s(self) -> float:
        """Bandwidth inside the domain, GB/s."""
        return self.domain.gb_s

    @property
    def inter_node_gb_s(self) -> float:
        """Bandwidth between domains, GB/s.

        Raises
        ------
        InputError
            When none is published.
        """
        if self.fabric is None:
            raise InputError(
                "no bandwidth is published for the network between its domains", field="--device", value=self.name,
                cure="register the device with your cluster's own: a last entry `{name: fabric, gb_s: …}` of `links`",
            )  # fmt: skip
        return self.fabric.gb_s

    @property
    def link_latency_us(self) -> float:
        """Start-up time of a collective step in the domain, µs."""
        return self.domain.latency_us

    @property
    def full_mesh(self) -> bool:
        """Return whether the cards of the domain are wired pair by pair."""
        return self.domain.full_mesh
