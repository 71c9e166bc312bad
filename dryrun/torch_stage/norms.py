"""The norms of a stage with their weights."""

from __future__ import annotations

from torch import Tensor

from taylor.dryrun.torch_stage.kernels import Norm
from taylor.dryrun.torch_stage.site import Site
from taylor.dryrun.torch_stage.weights import REPLICATED, Weight


class NormLayer:
    """RMSNorm or LayerNorm with its weights; gives the compute type.

    Parameters
    ----------
    width : int or None
        Elements that it norms over; the model's width, with a bias where the model's norms have one, when not given.
    weight : Weight, optional
        Weight whose first `width` elements it reads, in place of its own.
    """

    def __init__(self, site: Site, width: int | None = None, weight: Weight | None = None) -> None:
        self.site = site
        size = site.model.hidden if width is None else width
        self.weight = Weight(site, (size,), REPLICATED) if weight is None else weight
        self.bias = Weight(site, (size,), REPLICATED) if site.model.norm_bias and width is None else None

    def weights(self) -> list[Weight]:
        """Every weight of the norm."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def __call__(self, x: Tensor) -> Tensor:
        return Norm.apply(x, self.weight, self.bias, self.site.dtype)
