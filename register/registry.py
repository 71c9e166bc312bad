"""Models and devices by name: the built-in ones, and a user's own YAML files, which go before them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Iterable, Mapping

from taylor.base.errors import InputError
from taylor.base.near import did_you_mean
from taylor.base.plugins import Group, Loaded, load_all, refuse_known
from taylor.register.device import PRECISIONS, STACK_SIGN, DeviceSpec, LinkTier
from taylor.register.layers import LayerSpec
from taylor.register.model import ModelSpec
from taylor.register.registration import Spec, dataclass_from, load_registration, value_from

BUILT_IN = Path(__file__).resolve().parent
"""Folder of the shipped registrations, in ``models`` and ``devices``."""

PADDED_VOCAB = 0.02
"""Fraction of the vocabulary by which padding may widen it."""
_FOLDERS: dict[str, type] = {"models": ModelSpec, "devices": DeviceSpec}


@dataclass(frozen=True)
class Registry:
    """Registration files by name; a file is read when its name is asked for.

    Parameters
    ----------
    models, devices : mapping of name to Path
    """

    models: Mapping[str, Path]
    devices: Mapping[str, Path]

    @classmethod
    def load(cls, register_path: Path | None = None) -> Registry:
        """The built-in registrations, those of plug-ins, and those of a user's folder before both.

        Parameters
        ----------
        register_path : Path, optional
            A folder with YAML files, themselves or in its sub-folders ``models`` and ``devices``. A
            file beside the sub-folders is a device when it has ``memory_mib``, else a model. A
            registration's name is its ``name``, else the file's.

        Raises
        ------
        InputError
            When the folder is missing or one of its registrations is wrong.
        """
        found: dict[str, dict[str, Path]] = {
            folder: {path.stem: path for path in sorted((BUILT_IN / folder).glob("*.yaml"))} for folder in _FOLDERS
        }
        found = {place: {**_plugged(place), **names} for place, names in found.items()}
        if register_path is None:
            return cls(found["models"], found["devices"])
        root = Path(register_path)
        if not root.is_dir():
            raise InputError("no such folder", field="--register_path", value=str(register_path), cure="check the path")
        if root.resolve() != BUILT_IN:
            for path, folder in _registrations(root):
                spec = _read(path, _FOLDERS[folder]) if folder else _read_either(path)
                place = "devices" if isinstance(spec, DeviceSpec) else "models"
                found[place][spec.name] = path
        return cls(found["models"], found["devices"])

    def model_names(self) -> list[str]:
        """Names of all registered models, sorted."""
        return sorted(self.models)

    def device_names(self) -> list[str]:
        """Names of all registered devices, sorted."""
        return sorted(self.devices)

    def model(self, name: str) -> ModelSpec:
        """A model by name or alias; capitals, ``_``, ``-`` and the owner before a ``/`` make no difference.

        Raises
        ------
        InputError
            When there is none of that name (the near ones are listed) or its file is wrong.
        """
        wanted, named = _canonical(name), {_canonical(each): path for each, path in self.models.items()}
        if wanted in named:
            return _read(named[wanted], ModelSpec)
        known = {**self._model_aliases, **self.models}
        without_owner = name.rpartition("/")[2]
        asked = without_owner if _canonical(without_owner) in map(_canonical, known) else name
        return _read(known[_find(asked, known, "model", "--model")], ModelSpec)

    def published_like(self, model: ModelSpec) -> ModelSpec | None:
        """The registered model of a model's name, else of its shape, whose parameter count is published.

        Models are of one shape when layers, widths, heads and experts are equal and the vocabulary nearly is: it may
        be padded. What a reader can misjudge (gates, biases, a tied head) is omitted, so that a wrong count is visible.

        Raises
        ------
        InputError
            When a registration is wrong.
        """
        near = [name for name, path in self.models.items() if _may_be_like(path, model)]
        known = [found for found in map(self.model, near) if found.published_parameters is not None]
        named = [found for found in known if _letters(found.name) == _letters(model.name)]
        alike = [found for found in known if _same_shape(found, model)]
        alike.sort(
            key=lambda found: (
                found.mtp_layers != model.mtp_layers,
                found.tied_embedding != model.tied_embedding,
                abs(found.learned_positions - model.learned_positions),
                found.vocab != model.vocab,
                found.vocab,
            )
        )
        return next(iter([*named, *alike]), None)

    def device(self, name: str) -> DeviceSpec:
        """A device by name or alias; capitals, ``_``, ``-`` and blanks make no difference.

        A name that ends like a YAML file is the path of a registration: what ``taylor calibrate`` wrote. Behind an
        ``@`` stands the name of one of its `stacks`.

        Raises
        ------
        InputError
            When there is none of that name (the near ones are listed) or its file is wrong.
        """
        plain, at, stack = name.rpartition(STACK_SIGN)
        if at and Path(name).suffix not in (".yaml", ".yml"):
            return self.device(plain).with_stack(stack)
        if Path(name).suffix in (".yaml", ".yml"):
            return _read(_registration_file(Path(name)), DeviceSpec)
        named = {_canonical(each): path for each, path in self.devices.items()}
        if _canonical(name) in named:
            return _read(named[_canonical(name)], DeviceSpec)
        known = {**self._device_aliases, **self.devices}
        bare = _MAKERS.sub("", name)  # As torch.cuda.get_device_name says it.
        asked = bare if _canonical(bare) in map(_canonical, known) else name
        return _read(known[_find(asked, known, "device", "--device")], DeviceSpec)

    @cached_property
    def _device_aliases(self) -> dict[str, Path]:
        """Files of the devices by alias; they are all read for it, so only where no device has the name itself."""
        return {alias: path for path in self.devices.values() for alias in _read(path, DeviceSpec).aliases}

    @cached_property
    def _model_aliases(self) -> dict[str, Path]:
        """The same of models."""
        return {alias: path for path in self.models.values() for alias in _read(path, ModelSpec).aliases}

    def __repr__(self) -> str:
        return f"Registry\n  models: {', '.join(self.model_names())}\n  devices: {', '.join(self.device_names())}"


def _registration_file(path: Path) -> Path:
    if not path.is_file():
        cure = "check the path, or name a registered device (`taylor devices` lists them)"
        raise InputError("no such file", field="--device", value=str(path), cure=cure)
    return path.resolve()


@cache
def loaded_registrations(place: str) -> tuple[Loaded[dict[str, Path]], ...]:
    """Every plug-in of ``models`` or ``devices``, with its registrations' files by name.

    Its entry point names a package; the YAML files in that package's folder are the registrations.
    """
    group = {"models": Group.MODELS, "devices": Group.DEVICES}[place]
    return load_all(group, lambda plugin, package: _files_of_package(place, package))


def _plugged(place: str) -> dict[str, Path]:
    """Files of the plug-ins' registrations by name; of two with one name, the first."""
    files: dict[str, Path] = {}
    for each in loaded_registrations(place):
        files = {**(each.value or {}), **files}
    return files


def _files_of_package(place: str, package: Any) -> dict[str, Path]:
    folders = [Path(folder) for folder in getattr(package, "__path__", ())]
    paths = [path for folder in folders for pattern in ("*.yaml", "*.yml") for path in sorted(folder.glob(pattern))]
    if not paths:
        raise ValueError("must be a package with YAML files in its folder")
    files = {}
    for path in paths:
        spec: ModelSpec | DeviceSpec = _read(path, _FOLDERS[place])
        refuse_known(spec.name, [file.stem for file in (BUILT_IN / place).glob("*.yaml")], place.removesuffix("s"))
        files[spec.name] = path
    return files


def _registrations(root: Path) -> Iterable[tuple[Path, str | None]]:
    for folder in (None, *_FOLDERS):
        place = root if folder is None else root / folder
        for suffix in ("*.yaml", "*.yml"):
            yield from ((path, folder) for path in sorted(place.glob(suffix)))


_MAKERS = re.compile(r"^(?:nvidia|amd)[\s_-]+", re.IGNORECASE)


def _canonical(name: str) -> str:
    return "-".join(str(name).lower().replace("_", "-").split())


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _may_be_like(path: Path, model: ModelSpec) -> bool:
    """Return False for a shipped file of another name and another hidden size; parsing all of them takes long."""
    if not path.is_relative_to(BUILT_IN) or _letters(path.stem) == _letters(model.name):
        return True
    return re.search(rf"^hidden: {model.hidden}$", path.read_text(encoding="utf-8"), re.MULTILINE) is not None


def _same_shape(known: ModelSpec, model: ModelSpec) -> bool:
    def shape(spec: ModelSpec) -> tuple[object, ...]:
        layers: Counter[tuple[object, ...]] = Counter()
        for kind, count in spec.body_counts.items():
            layers[_layer_shape(spec.layer(kind))] += count
        return spec.n_layers, spec.hidden, spec.extra_parameters, layers

    return abs(known.vocab - model.vocab) <= PADDED_VOCAB * known.vocab and shape(known) == shape(model)


def _layer_shape(layer: LayerSpec) -> tuple[object, ...]:
    """Widths, heads and experts of a layer; what not every file states, windows say, is omitted."""
    attention, moe = layer.attention, layer.moe
    heads = (
        None if attention is None else (attention.n_heads, attention.n_kv_heads, attention.latent, attention.indexer)
    )
    width = None if layer.mlp is None else layer.mlp.width
    experts = None if moe is None else (moe.n_experts, moe.top_k, moe.expert_hidden)
    then = None if layer.then is None else _layer_shape(layer.then)
    return heads, layer.mamba, layer.linear, width, experts, then


def _find(name: str, known: Mapping[str, Path], what: str, flag: str) -> str:
    by_canonical = {_canonical(each): each for each in known}
    wanted = _canonical(name)
    if wanted in by_canonical:
        return by_canonical[wanted]
    cure = f"{did_you_mean(wanted, sorted(known), alike=0.5)} (`taylor {what}s` lists them)"
    raise InputError(f"no {what} of that name is registered", field=flag, value=name, cure=cure)


def _read_either(path: Path) -> ModelSpec | DeviceSpec:
    data = load_registration(path)
    return _build(DeviceSpec, data, path) if "memory_mib" in data else _build(ModelSpec, data, path)


def _read(path: Path, spec: type[Spec]) -> Spec:
    if path.is_relative_to(BUILT_IN):
        wanted: Any = spec
        shipped: Spec = _read_shipped(path, wanted)
        return shipped
    return _build(spec, load_registration(path), path)


@cache
def _read_shipped(path: Path, spec: Any) -> Any:
    """A built-in registration, which does not change while a command runs and is read to find models like another."""
    return _build(spec, load_registration(path), path)


def _build(spec: type[Spec], data: dict[Any, Any], path: Path) -> Spec:
    values: dict[Any, Any] = {"name": path.stem, **data}
    if spec is DeviceSpec:
        values = _in_todays_form(values, path)
    result = dataclass_from(spec, values, path, "")
    if isinstance(result, ModelSpec):
        _check_model(result, path)
    elif isinstance(result, DeviceSpec):
        _check_device(result, path)
    return result


def _check_model(model: ModelSpec, path: Path) -> None:
    heads = {"n_kv_heads": (model.n_heads, model.n_kv_heads)} if model.mla is None else {}
    for at, kind in enumerate(model.kinds):
        if kind.attention is not None:
            heads[f"kinds.{at}.attention.n_kv_heads"] = kind.attention.n_heads, kind.attention.n_kv_heads
    for field, (queries, keys) in heads.items():
        if queries % keys:
            raise InputError(
                "must divide n_heads", file=path, field=field, value=keys, cure=f"n_heads is {queries}"
            )  # fmt: skip
    experts = {"moe": model.moe, **{f"kinds.{at}.moe": kind.moe for at, kind in enumerate(model.kinds)}}
    for field, moe in experts.items():
        if moe is not None and moe.top_k > moe.n_experts:
            raise InputError(
                "must be <= n_experts", file=path, field=f"{field}.top_k", value=moe.top_k,
                cure=f"n_experts is {moe.n_experts}",
            )  # fmt: skip
    if model.moe is not None and model.moe.first_dense > model.n_layers:
        raise InputError(
            "must be <= n_layers", file=path, field="moe.first_dense", value=model.moe.first_dense,
            cure=f"n_layers is {model.n_layers}",
        )  # fmt: skip


@dataclass(frozen=True)
class _NodeAndNetwork:
    """The links of a registration that knows a node and a network, and says them without `links`."""

    intra_node_gb_s: float
    inter_node_gb_s: float
    devices_per_node: int
    link_latency_us: float = 10.0
    full_mesh: bool = False

    def tiers(self) -> list[dict[str, Any]]:
        """The same as entries of `links`."""
        node = LinkTier("domain", self.intra_node_gb_s, self.devices_per_node, self.link_latency_us, self.full_mesh)
        return [asdict(node), asdict(LinkTier("fabric", self.inter_node_gb_s, None, self.link_latency_us))]


def _in_todays_form(data: dict[Any, Any], path: Path) -> dict[Any, Any]:
    """A device's registration with `links`, peaks by precision and sources by figure, in whichever form it was written.

    Older and shorter: a plain number as the peak (of bf16), a node and a network, one source for everything.
    """
    today = dict(data)
    if "peak_tflops" not in today and "peak_bf16_tflops" in today:
        today["peak_tflops"] = value_from(float, "peak_bf16_tflops", today.pop("peak_bf16_tflops"), path, "")
    if isinstance(today.get("peak_tflops"), (int, float)):
        today["peak_tflops"] = {"bf16": today["peak_tflops"]}
    if "links" not in today:
        flat = {each.name: today.pop(each.name) for each in fields(_NodeAndNetwork) if each.name in today}
        today["links"] = dataclass_from(_NodeAndNetwork, flat, path, "").tiers()
    if "source" in today and "sources" not in today:
        today["sources"] = {"all": today.pop("source")}
    return today


def _check_device(device: DeviceSpec, path: Path) -> None:
    for precision in device.peak_tflops:
        if precision not in PRECISIONS:
            cure = f"known are {', '.join(PRECISIONS)}"
            raise InputError("is no known precision", file=path, field="peak_tflops", value=precision, cure=cure)
    if not {"bf16", "fp16"} & set(device.peak_tflops):
        cure = "add `bf16: …`, or `fp16: …` where the card has no bf16"
        raise InputError("lacks the peak of 16 bits", file=path, field="peak_tflops", cure=cure)
    _check_links(device.links, path)
    known = {*(each.name for each in fields(DeviceSpec)), *(tier.name for tier in device.links), "latency_us", "all"}
    for figure in device.sources:
        if figure not in known:
            cure = "use the name of a field or of a tier of `links`, or `all`"
            raise InputError("is no figure of the device", file=path, field="sources", value=figure, cure=cure)
    if device.usable_memory_mib > device.memory_mib:
        raise InputError(
            "must be <= memory_mib", file=path, field="usable_memory_mib", value=device.usable_memory_mib,
            cure=f"memory_mib is {device.memory_mib}",
        )  # fmt: skip
    _check_shares(device.efficiency, "efficiency", path)
    for at, stack in enumerate(device.stacks):
        _check_shares(stack.efficiency, f"stacks.{at}.efficiency", path)
    names, dates = [stack.name for stack in device.stacks], [stack.date for stack in device.stacks]
    if len(set(names)) < len(names) or sorted(dates, reverse=True) != dates:
        cure = "give each a name of its own and a date like `2024-09`, the newest first"
        raise InputError("must go from new to old", file=path, field="stacks", value=names, cure=cure)


def _check_shares(shares: Mapping[str, float], field: str, path: Path) -> None:
    for name, share in shares.items():
        if (
            share > 1
            and not name.endswith(("_us", "_ms", "_flops", "_factor", "_tokens"))
            and not name.removeprefix("expert_").startswith(("operands", "results"))
        ):
            raise InputError("must be a share in (0, 1]", file=path, field=f"{field}.{name}", value=share)


def _check_links(links: tuple[LinkTier, ...], path: Path) -> None:
    cards = [tier.cards for tier in links[:-1]] + [tier.cards for tier in links[-1:] if tier.cards is not None]
    if not cards or None in cards:
        problem, cure = "has no fast links", "give every tier but the last, the network, its `cards`"
        raise InputError(problem, file=path, field="links", cure=cure)
    if any(near >= far for near, far in zip(cards, cards[1:], strict=False)):  # type: ignore[operator]
        raise InputError("must go from near to far", file=path, field="links", value=cards, cure="sort them by `cards`")
