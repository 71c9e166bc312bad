"""Features of the software that a job without a file runs on, by plain names: ``--with tp-comm-overlap,fp8=mxfp8``.

A launcher's ``new_file`` says which of its own flags or keys switch a feature on (`NewFile.features`). Here stand the
names, their values, and what is assumed where none is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from taylor.base.errors import InputError
from taylor.base.near import did_you_mean
from taylor.parsers.new_file import NewFile

FIELD = "--with"


@dataclass(frozen=True)
class Feature:
    """One feature: its values, the first of which a bare name means where `bare`; what is assumed without it.

    A feature of experts concerns models with experts alone.
    """

    assumed: str
    values: tuple[str, ...] = ()
    bare: bool = True
    of_experts: bool = False


FEATURES: Mapping[str, Feature] = {
    "tp-comm-overlap": Feature("tensor-parallel transfers beside no GEMM"),
    "fp8": Feature("GEMMs in 16 bits", ("delayed", "tensorwise", "blockwise", "mxfp8", "rowwise"), bare=False),
    "fp4": Feature("", ("nvfp4",)),
    "cuda-graphs": Feature("no CUDA graphs", ("layers", "iteration")),
    "dispatcher": Feature(
        "dispatcher alltoall", ("alltoall", "allgather", "deepep", "hybridep"), bare=False, of_experts=True
    ),
    "ep-overlap": Feature("experts' exchanges beside no other micro-batch", of_experts=True),
    "shared-expert-overlap": Feature("", of_experts=True),
    "balanced-routing": Feature("", of_experts=True),
    "fused-loss": Feature("the loss in single kernels"),
    "compile": Feature("no compiler"),
    "deterministic": Feature(""),
}
"""By name. What is assumed is empty where it goes without saying."""


def features_of(words: Iterable[str]) -> dict[str, str]:
    """Features and their values from ``name`` and ``name=value``; the value is empty where the feature has none.

    Raises
    ------
    InputError
        With a name or a value that is none (the message has similar ones), or a feature named twice.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in FEATURES:
            raise InputError("is no feature", field=FIELD, value=name, cure=did_you_mean(name, FEATURES))
        feature = FEATURES[name]
        if name in found:
            raise InputError("is named twice", field=FIELD, value=name, cure="name it once")
        if not equals and feature.values and not feature.bare:
            cure = f"use one of {', '.join(f'{name}={one}' for one in feature.values)}"
            raise InputError("needs a value", field=FIELD, value=name, cure=cure)
        if equals and value not in feature.values:
            cure = did_you_mean(value, feature.values) if feature.values else f"name {name} alone"
            raise InputError(f"is no value of {name}", field=FIELD, value=value, cure=cure)
        found[name] = value or (feature.values[0] if feature.values else "")
    return found


def require_features(one: NewFile, asked: Mapping[str, str], *, experts: bool) -> None:
    """Refuse features that a framework's file cannot state, or that concern experts where there are none.

    Raises
    ------
    InputError
        With the feature.
    """
    for name, value in asked.items():
        word = f"{name}={value}" if value else name
        if FEATURES[name].of_experts and not experts:
            raise InputError("concerns experts, and the model has none", field=FIELD, value=word, cure="leave it out")
        known = one.features.get(name)
        if known is None or value not in known:
            stated = [f"{each}={value}" if value else each for each, flags in one.features.items() for value in flags]
            cure = f"it has {', '.join(stated)}" if stated else "change the written file by hand"
            raise InputError(f"has no flag in {one.title}'s files", field=FIELD, value=word, cure=cure)


def assumed_software(one: NewFile, asked: Mapping[str, str], *, experts: bool) -> str:
    """What is assumed of the features that a framework has and nobody named, in words; empty where nothing is."""
    named = set(asked) | ({"fp8"} if "fp4" in asked else set())
    parts = [
        feature.assumed
        for name, feature in FEATURES.items()
        if name in one.features and name not in named and feature.assumed and (experts or not feature.of_experts)
    ]
    return ", ".join(parts)
