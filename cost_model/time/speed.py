"""A device's speeds as kernels reach them: time of arithmetic, of memory traffic, of GEMMs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Mapping

from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Quantity
from taylor.cost_model.time.overlap import SLOWED_BESIDE
from taylor.register.device import DeviceSpec
from taylor.register.narrow_products import KERNELS

ASSUMED_EFFICIENCY: Mapping[str, float] = {
    "matmul": 0.7,
    "attention": 0.5,
    "attention_tokens": 0.0,
    "memory": 0.8,
    "operands": 1.85,
    "results": 0.61,
    "network": 0.7,
    "expert_operands": 1.85,
    "expert_results": 0.61,
    "softmax_flops": 0.0,
    "tensor_shown_forward": 1.0,
    "tensor_shown_backward": 0.5,
    "data_shown": SLOWED_BESIDE,
    "data_shown_in_pipeline": SLOWED_BESIDE,
    "layer_us": 0.0,
    "step_ms": 0.0,
}
"""Values of a device registration's `efficiency`, and their defaults.

Fractions of the peak: of the arithmetic of GEMMs, of memory bandwidth by element-wise kernels (a low one stands for
unfused ones, which move more than is counted), and of link bandwidth. Registered devices carry fitted ones. Those of
GEMMs' operands (above 1: most of the reading runs beside arithmetic) and results, of dense layers and of routed
experts: `cost_model.time.product_times`.

A device with tables of single kernels (``python -m benchmarks.device_tables``) has more:

- ``matmul``, ``operands``, ``results``, ``expert_operands``, ``expert_results`` with ``_fp8``, ``_fp8_block``,
  ``_mxfp8`` or ``_nvfp4`` behind, those of GEMMs in that type; ``cast`` likewise, the fraction of memory bandwidth at
  which inputs are quantized (`memory` where it is not stated); ``gradients`` likewise, the rate of the GEMMs of
  gradients over that of the forward's. One of fp8 stands for its kinds that are not stated, the plain one for it.
- ``accumulated``, the fraction of memory bandwidth of results that are added to what their place contains, where it is
  below that of ``results``. No table has such GEMMs. Assumed: `memory`, for they are read before they are written.
- ``attention_backward``, ``attention_wide_backward``: attention's backward, and that of queries wider than values
  (`attention` where they are not stated); ``attention_tokens``: attention takes 1 + this over its length times as long,
  for the blocks at the mask's edge and for starting and draining; ``scan``, ``delta_scan``, the fraction of
  the peak of the cores of mixers without softmax, Mamba's and the others (`attention` where it is not stated).

Credits, the exposed fraction of a time:

- ``tensor_shown_forward``, ``tensor_shown_backward``: tensor-parallel communication; backward overlaps the rest with
the weight gradients' GEMMs as far as these last (Korthikanti et al. 2022 §4.2.2; Megatron's asynchronous all-reduce).
- ``data_shown``, ``data_shown_in_pipeline``: gradient reduction and weight gathering that computation runs beside, in
  frameworks known to overlap them, without a pipeline and in one.

Costs: ``softmax_flops``, the cost of the softmax of one attention score beside its GEMMs, in FLOPs at attention's
speed (exponentials run on slower units: Shah et al. 2024, arXiv:2407.08608 §1); ``layer_us``, of a layer's forward
beside its kernels, twice in backward; ``step_ms``, of a step beside its micro-batches."""


BY_TYPE = ("matmul", "operands", "results", "expert_operands", "expert_results", "cast", "gradients")
"""Entries that a device may state for each type of GEMMs."""


def typed_entries(name: str) -> tuple[str, ...]:
    """Entries that state the same as one of `BY_TYPE` for narrow types."""
    return tuple(f"{name}_{kernels}" for kernels in KERNELS) if name in BY_TYPE else ()


@dataclass(frozen=True)
class Speed:
    """A device's speeds with its efficiencies applied.

    `products` are the entries of `BY_TYPE` for the type in which a layer's GEMMs run.
    """

    device: DeviceSpec
    peak_tflops: float
    product_tflops: float
    shares: Mapping[str, float]
    products: Mapping[str, float]

    @classmethod
    def of(cls, device: DeviceSpec, rules: TrainingRules, *, in_layer: bool = False) -> Speed:
        """A device's registered efficiencies, completed by the assumed ones, of the peak of a job's precision.

        torch multiplies fp32 as fp32 unless a setting selects TF32. `in_layer`: GEMMs run in the job's narrow type,
        where it has one; attention, and what is outside the layers, does not.
        """
        peak = tflops = device.peak(rules.precision)
        kernels = None
        if in_layer and rules.narrow is not None:
            tflops, kernels = device.peak(rules.narrow.precision), rules.narrow.kernels
        shares = {**ASSUMED_EFFICIENCY, **device.efficiency}
        return cls(device, peak, tflops, shares, _of_type(device.efficiency, shares, kernels))

    @property
    def wide(self) -> Speed:
        """The same device's speed of GEMMs in the compute type."""
        products = _of_type(self.device.efficiency, self.shares, None)
        return replace(self, product_tflops=self.peak_tflops, products=products)

    @property
    def of_gradients(self) -> Speed:
        """Speed of the GEMMs that make gradients of the type."""
        slower = self.products["matmul"] * self.products["gradients"]
        return replace(self, products={**self.products, "matmul": slower})

    @property
    def network(self) -> float:
        """Fraction of the link bandwidth that collectives reach."""
        return self.shares["network"]

    def flops(self, group: str, amount: Quantity) -> Quantity:
        """Time of matrix work, ms."""
        if group == "matmul":
            return amount / (self.product_tflops * self.products[group] * 1e9)
        share = self.shares.get(group, self.shares["attention"])
        return amount / (self.peak_tflops * share * 1e9)

    def bytes(self, amount: Quantity, group: str = "memory") -> Quantity:
        """Time of memory traffic, ms."""
        return amount / (self.device.memory_gb_s * self.products.get(group, self.shares["memory"]) * 1e6)

    def backward_of_attention(self, *, wide: bool) -> float:
        """Time of a FLOP of attention's backward over that of its forward, queries wider than values or not."""
        stated, ahead = self.device.efficiency, self.shares["attention"]
        behind = stated.get("attention_backward", ahead)
        return ahead / (stated.get("attention_wide_backward", behind) if wide else behind)

    def product(self, flops: Quantity, read_bytes: Quantity, written_bytes: Quantity) -> Quantity:
        """Time of a dense GEMM, ms: its arithmetic, its operands, its results."""
        return self.flops("matmul", flops) + self.bytes(read_bytes, "operands") + self.bytes(written_bytes, "results")

    def grouped(self, flops: Quantity, read_bytes: Quantity, written_bytes: Quantity) -> Quantity:
        """Time of a grouped GEMM of experts, ms, likewise."""
        read, written = self.bytes(read_bytes, "expert_operands"), self.bytes(written_bytes, "expert_results")
        return self.flops("matmul", flops) + read + written

    def accumulated(self, flops: Quantity, read_bytes: Quantity, written_bytes: Quantity, kind: str = "") -> Quantity:
        """Time of a GEMM that adds to what its result's place contains, ms; `kind` is ``expert_`` for a grouped one."""
        results = self.products[f"{kind}results"]
        traffic = min(results, self.shares.get("accumulated", results))
        read = self.bytes(read_bytes, f"{kind}operands")
        return self.flops("matmul", flops) + read + written_bytes / (self.device.memory_gb_s * traffic * 1e6)


def _of_type(stated: Mapping[str, float], shares: Mapping[str, float], kernels: str | None) -> dict[str, float]:
    """Entries of `BY_TYPE` of a type's kernels: its own, else those of fp8 for a kind of it, else the plain ones."""
    ends = [""] if kernels is None else [f"_{kernels}", *(["_fp8"] if "fp8" in kernels else []), ""]
    plain = {**shares, "cast": shares["memory"], "gradients": 1.0}
    found = {}
    for name in BY_TYPE:
        found[name] = next((stated[name + end] for end in ends if name + end in stated), plain[name])
    return found
