"""GEMMs in fewer than 16 bits, and the copies that they keep: transformer engine's and torchao's recipes.

A GEMM quantizes its input and its weight along their rows for the forward and along their columns for the backward;
of the input the backward's copy alone is saved, of the weight both stay for the whole step.

Sources: TransformerEngine main (2.20), transformer_engine/pytorch: module/linear.py:556-570 and
module/grouped_linear.py:903-914 (of an input only the columns' copy is saved), module/linear.py:1958 and
module/base.py:792 (copies of 16-bit weights stay from one micro-batch to the next), tensor/float8_tensor.py:420-427,
tensor/mxfp8_tensor.py:139-180, tensor/float8_blockwise_tensor.py:162-210, tensor/nvfp4_tensor.py:273-310 (shapes);
2.9, transformer_engine/pytorch/csrc: quantizer.cpp:499-531 (a maximum before the cast),
extensions/normalization.cpp:146-194 (a norm's maximum).

torchao's GEMMs save their input and weight in 16 bits and quantize both again in the backward: torchao 36027d82
torchao/float8/float8_linear.py:44, 96 (0.9 to main; recipes in config.py:153-182, 316-356), and
torchao/prototype/mx_formats/mx_linear.py:70 of 0.12, mxfp8_linear.py of main.
"""

from __future__ import annotations

from dataclasses import dataclass

_FP32 = 4

KERNELS = ("fp8", "fp8_block", "mxfp8", "nvfp4")
"""Families of narrow GEMMs: scales by tensor or row, by block of 128, by 32 elements, fp4 with scales by 16."""


@dataclass(frozen=True)
class NarrowProducts:
    """One recipe.

    Parameters
    ----------
    name : str
        As files write it.
    precision : str
        Number format of the GEMMs: a name of `register.device.PRECISIONS`.
    input_bytes : float
        Of an input that is saved for the backward, bytes an element with its scales.
    weight_bytes : float
        Of a weight's copies for forward and backward together, bytes an element with their scales.
    requantizes : bool
        An input that something else keeps in 16 bits anyway (the attention's result, what the router reads) is
        quantized again in the backward, and no narrow copy of it is saved. Off: the copy comes on top.
    one_copy_on_blackwell : bool
        Devices from Blackwell on multiply by one copy of a weight in both directions; `weight_bytes` counts two.
    maximum_first : bool
        A tensor is read for its largest value before it is quantized; a norm finds it as it writes its result.
    saves_wide : bool
        Inputs and weights are saved in the compute type and quantized in the forward and again in the backward. Nothing
        narrow is kept.
    wide_weight_gradients : bool
        A weight's gradient is a GEMM in the compute type.
    kernels : str
        Family of its GEMMs, one of `KERNELS`: by it a device states efficiencies.
    """

    name: str
    precision: str
    input_bytes: float
    weight_bytes: float
    requantizes: bool = True
    one_copy_on_blackwell: bool = False
    maximum_first: bool = False
    saves_wide: bool = False
    wide_weight_gradients: bool = False
    kernels: str = "fp8"


# Per-tensor scales weigh nothing; a delayed scale is not derived from its tensor alone, so nothing is quantized again.
DELAYED = NarrowProducts("delayed", "fp8", 1.0, 2.0, requantizes=False, one_copy_on_blackwell=True)
TENSORWISE = NarrowProducts("tensorwise", "fp8", 1.0, 2.0, one_copy_on_blackwell=True, maximum_first=True)
# An fp32 scale for every 128 elements of an input and every 128 x 128 of a weight.
BLOCKWISE = NarrowProducts("blockwise", "fp8", 1 + _FP32 / 128, 2 * (1 + _FP32 / 128**2), kernels="fp8_block")
# A scale of one byte for every 32 elements.
MXFP8 = NarrowProducts("mxfp8", "fp8", 1 + 1 / 32, 2 * (1 + 1 / 32), kernels="mxfp8")
# Half a byte an element, a scale of one byte for every 16.
NVFP4 = NarrowProducts("nvfp4", "fp4", 0.5 + 1 / 16, 2 * (0.5 + 1 / 16), maximum_first=True, kernels="nvfp4")

FP8_RECIPES = {each.name: each for each in (DELAYED, TENSORWISE, BLOCKWISE, MXFP8)}
FP4_RECIPES = {NVFP4.name: NVFP4}

AO_TENSORWISE = NarrowProducts("tensorwise", "fp8", 1.0, 0.0, maximum_first=True, saves_wide=True)
# A scale in fp32 a row.
AO_ROWWISE = NarrowProducts("rowwise", "fp8", 1.0, 0.0, maximum_first=True, saves_wide=True)
AO_ROWWISE_WIDE_GRADIENTS = NarrowProducts(
    "rowwise_with_gw_hp", "fp8", 1.0, 0.0, maximum_first=True, saves_wide=True, wide_weight_gradients=True
)
AO_MXFP8 = NarrowProducts("mxfp8", "fp8", 1 + 1 / 32, 0.0, saves_wide=True, kernels="mxfp8")

AO_FP8_RECIPES = {each.name: each for each in (AO_TENSORWISE, AO_ROWWISE, AO_ROWWISE_WIDE_GRADIENTS)}
