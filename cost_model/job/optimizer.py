"""States of a parameter where the job's optimizer is not the framework's usual one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OptimizerStates:
    """Bytes a parameter of gradient, master weight and moments, and where they lie; None: as the framework has it.

    Parameters
    ----------
    gradient_bytes : int or None
        Of an accumulated gradient.
    reduced_bytes : int or None
        Of a gradient of fully sharded parameters before it is split: added up whole, or on its way to the reduction.
    master_bytes : int or None
        Of the weight that the optimizer updates, beside the stored one.
    moments_bytes : int or None
        Of the moments of a layer's matrices.
    other_moments_bytes : int or None
        Of the moments of everything else: embedding, head, norms, routers. None: as those of matrices.
    step_bytes : int
        Of the step's temporary tensors: an fp32 copy of a gradient in 16 bits.
    host_share : float
        Fraction of master weights and moments in the host's memory, 0 to 1.
    host_updates : bool
        The host updates its part: gradients go there and weights come back. Else the states come to the device for
        the step and go back.
    host_overlaps : bool
        The two directions of the link and the host's update run beside each other.
    """

    gradient_bytes: int | None = None
    master_bytes: int | None = None
    moments_bytes: int | None = None
    other_moments_bytes: int | None = None
    step_bytes: int = 0
    host_share: float = 0.0
    host_updates: bool = False
    host_overlaps: bool = False
    reduced_bytes: int | None = None
