"""An encoder of images or sound in a job: its inputs, what of it is trained, and its layers as the costs see them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.register.layers import BOTH_WAYS, AttentionSpec, LayerSpec, MlpSpec
from taylor.register.model import ModelSpec
from taylor.register.tower import VISION, TowerSpec

WINDOWED = f"{VISION}-windowed"
USUAL_IMAGES = 1.0
"""Images a sample where nothing states them."""
USUAL_PATCHES = 1024
"""Patches an image where nothing states them: 448 x 448 pixels in patches of 14."""


@dataclass(frozen=True)
class Spread:
    """An encoder of images on several of the first chunks.

    Parameters
    ----------
    stages, interleaves : int
        The pipeline for which it is stated.
    layers : tuple of int
        The encoder's layers on the first chunks in model order, at least 1 each.
    begins : int
        Position of the chunk with the embedding and the language model's first layers: the last one of the encoder's,
        or the one behind it. Encoders of sound lie there, too.
    """

    stages: int
    interleaves: int
    layers: tuple[int, ...]
    begins: int

    def rows(self) -> list[list[int]]:
        """The encoder's layers by virtual stage and stage, int [V][S]."""
        every = [*self.layers, *[0] * (self.stages * self.interleaves - len(self.layers))]
        return [every[v * self.stages : (v + 1) * self.stages] for v in range(self.interleaves)]

    def __str__(self) -> str:
        return "/".join("+".join(map(str, row)) for row in self.rows() if any(row))


@dataclass(frozen=True)
class TowerRun:
    """An encoder in a job.

    Parameters
    ----------
    images : float
        Images a sample, on average; clips, of an encoder of sound.
    patches : int
        Patches an image, or moments a clip.
    trained : bool
        It trains. Off: it runs forward alone, and nothing of it is kept for a backward.
    recomputed : bool
        Its layers keep their inputs alone and run again before their backward.
    split : bool
        TP splits its layers. Off: every rank of TP runs all of it.
    counted : bool
        Its states are among those of the model's `ModelSpec.extra_parameters`.
    source : str
        Where images and patches are from, for the log.
    further : tuple of TowerRun
        Other encoders of the same job, which lie where this one lies.
    spread : Spread or None
        Its chunks, where they are not the first one alone with the embedding.
    spreadable : str or None
        Why its launcher cannot run it on several chunks; empty where it can. None: no file can state them.
    """

    spec: TowerSpec
    images: float = USUAL_IMAGES
    patches: int = USUAL_PATCHES
    trained: bool = False
    recomputed: bool = False
    split: bool = False
    counted: bool = False
    source: str = "assumed; --images states others"
    further: tuple[TowerRun, ...] = ()
    spread: Spread | None = None
    spreadable: str | None = None

    def spread_over(self, stages: int, interleaves: int) -> Spread | None:
        """Its chunks in a pipeline; None where it lies on the first one, or its chunks are those of another one."""
        own = self.spread
        return own if own is not None and (own.stages, own.interleaves) == (stages, interleaves) else None

    @property
    def parts(self) -> Iterator[TowerRun]:
        """This encoder and the further ones, each by itself."""
        yield replace(self, further=())
        for one in self.further:
            yield from one.parts

    @property
    def own_tokens(self) -> float:
        """Tokens of the language model that a sample's images or clips become."""
        return self.images * self.patches / self.spec.merged

    @property
    def tokens(self) -> float:
        """The same of all encoders of the job."""
        return sum(one.own_tokens for one in self.parts)

    @property
    def ran(self) -> tuple[float, int]:
        """Sequences a sample, and patches of each, that the layers take: a clip may be filled up, or cut in several."""
        most = self.spec.padded
        return (self.images * ceil(self.patches / most), most) if most else (self.images, self.patches)

    @property
    def fewest(self) -> float:
        """Images or clips a sample of the encoder that has the fewest, of those with any; 0 without."""
        return min((one.images for one in self.parts if one.images), default=0.0)

    @property
    def any_trained(self) -> bool:
        """Return whether one of the job's encoders trains."""
        return any(one.trained for one in self.parts)

    @property
    def counted_parameters(self) -> int:
        """Parameters of those whose states the model counts."""
        return sum(one.spec.parameters for one in self.parts if one.counted)

    def unsplit(self) -> TowerRun:
        """The encoders with all of their layers on every rank of TP."""
        return replace(self, split=False, further=tuple(one.unsplit() for one in self.further))


def tower_body(spec: TowerSpec) -> ModelSpec:
    """The encoder's layers as a model without a vocabulary."""
    attention = AttentionSpec(
        spec.n_heads, spec.n_heads, spec.head_dim, reach=BOTH_WAYS, bias=spec.bias, output_bias=spec.bias
    )
    mlp = MlpSpec(spec.ffn_hidden, spec.gated_mlp, spec.bias)
    kinds = [LayerSpec(VISION, attention, mlp=mlp)]
    full = spec.full_layers if spec.window else spec.n_layers
    if full < spec.n_layers:
        kinds.append(LayerSpec(WINDOWED, replace(attention, window=spec.window), mlp=mlp))
    counts = (full, spec.n_layers - full)
    return ModelSpec(
        name=VISION,
        n_layers=spec.n_layers,
        hidden=spec.hidden,
        n_heads=spec.n_heads,
        n_kv_heads=spec.n_heads,
        head_dim=spec.head_dim,
        ffn_hidden=spec.ffn_hidden,
        vocab=1,
        gated_mlp=spec.gated_mlp,
        norm_bias=spec.norm_bias,
        kinds=tuple(kinds),
        pattern=", ".join(f"{n} {kind.name}" for kind, n in zip(kinds, counts, strict=False) if n),
    )


def tower_degrees(run: TowerRun, strategy: Strategy) -> Strategy:
    """The degrees under which a rank runs the encoder: a micro-batch's images are its samples, and CP splits none."""
    tp, sp = (strategy.tp, strategy.sp) if run.split else (1, False)
    return strategy.replace(tp=tp, cp=1, ep=1, sp=sp, mbs=strategy.mbs * run.ran[0])


def tower_rules(run: TowerRun, rules: TrainingRules) -> TrainingRules:
    """The job's rules for the encoder: 16 bits, no adapters, no dropout, whole MLPs, a sequence for each image.

    Trainers tile the MLP of the language model alone (axolotl 067b021c src/axolotl/monkeypatch/tiled_mlp/patch.py,
    ``patch_tiled_mlp``; verl b178a3cd verl/models/transformers/tiled_mlp.py:169-174).
    """
    return rules.replace(
        seq_length=run.ran[1],
        adapters=None,
        narrow=None,
        dropout=False,
        mlp_tiles=0,
        pairs=False,
        overlap_experts=False,
        window_masks=False,
        loads_masks=False,
        tensor_grid=None,
        overlap_tensor=False,
    )
