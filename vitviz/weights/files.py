"""Load single weights files, which come without settings.

A file contains only names, shapes and values. `infer` determines the architecture from the names and shapes, or from a
model that the caller names.
"""

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitviz.formatting import abbreviate
from vitviz.model.vit import ViT
from vitviz.weights import checks
from vitviz.weights.checks import SUFFIXES, CheckpointError, ConvertError, checked_settings
from vitviz.weights.describe import describe
from vitviz.weights.infer import Architecture, Reference, keep_classifier
from vitviz.weights.naming import NAMINGS, Naming

AVERAGED = ("state_dict_ema", "model_ema", "ema_state_dict", "ema_model", "ema", "teacher")
NESTS = (*AVERAGED, "state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params")
"""Keys of the weights in the files of training programs, in order of preference: averages and teachers first."""
MAX_NESTS = 3
_AVERAGE = re.compile(r"(^|[._])(ema|teacher|averaged)([._]|$)")

# Tensors beside the model: counters, losses, metrics, projection heads of self-supervised training, text towers.
_BESIDE = re.compile(
    r"(.*[._])?(n_averaged|num_updates|num_batches_tracked|decay|criterion|loss|loss_fn|\w*_loss|metrics?|\w+_metrics?"
    r"|\w+_(acc|accuracy|auroc|f1)|center|queue|queue_ptr)\b"
)
_PROJECTIONS = re.compile(r"(^|\.)((dino|ibot)_head|head\.(mlp|last_layer))\.")
_TEXTS = re.compile(
    r"(text|transformer|ln_final|token_embedding|positional_embedding|logit_scale|logit_bias|text_projection"
    r"|visual\.head|input_resolution|context_length|vocab_size)\b"
)


@checked_settings()
def load_file(path: str | os.PathLike[str], *, heads: int | None = None, like: Reference | None = None) -> ViT:
    """Load the model in one file: float32, on the CPU, in eval mode.

    Args:
        path: a `.safetensors` file, or a `torch.save` file (`.pt`, `.pth`, `.bin`, `.ckpt`, `.pth.tar`) with tensors by
            name, directly or under one of the usual keys (`NESTS`), with or without a wrapper's prefix.
        heads: attention heads in each block, needed if no published model has this width.
        like: a model with the same settings, needed if names and shapes do not determine them.

    Returns:
        The model. `pretrained.assumed` lists assumptions. Classes have the labels of `like` if it has the same number
        of classes, else numbers. Outputs that may be features, such as CLIP's, have no labels.

    Raises:
        CheckpointError: if the file is damaged or hostile, or does not hold weights.
        ConvertError: if the model is not supported, its settings are not determined, or tensors do not fit them.
    """
    path = Path(path)
    where = repr(str(path))
    _check_name(path)
    state, keys = _find_state(checks.read_weights(path), where)
    tensors, prefix, left_out = _locate(checks.without_wrappers(state))
    model = Architecture({name: tuple(tensor.shape) for name, tensor in tensors.items()}, heads=heads, like=like)
    checks.check_tensors({name: tensor for name, tensor in tensors.items() if name not in model.unread}, path)
    config = model.config
    same = like.about if like and config.classes == like.config.classes else None
    features = model.embeds or (same is not None and not same.labels)  # such as an image embedding
    at = ".".join((*keys, prefix.rstrip("."))).strip(".")
    nest = (f"the weights under {at!r}",) if keys or _AVERAGE.search(prefix) else ()
    averaged = (f"weights: the averaged ones under {at!r}",) if _AVERAGE.search(at) else ()
    about = describe(
        next(path.name[: -len(suffix)] for suffix in SUFFIXES if path.name.lower().endswith(suffix)),
        model.preprocess,
        0 if features else config.classes,
        same.labels if same and not features else (),
        known=like is not None,
        labels_of=like.name if like else "",
        assumed=(*model.assumed, *averaged),
        source=f"file {path.name} {model.describe((*nest, *left_out))}",
        problem_type=same.problem_type if same else None,
    )
    where += f" (like {like.name})" if like else ""
    return checks.assemble(config, model.convert(tensors), about, where=where)


def _check_name(path: Path) -> None:
    """Refuse a path that is not a file, or does not have the suffix of a weights file."""
    if not path.name.lower().endswith(SUFFIXES):
        raise CheckpointError(
            f"Expected a file that ends in {', '.join(SUFFIXES)}, got {str(path)!r}. Rename it if it is one of them."
        )
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise CheckpointError(f"Expected a weights file, got {str(path)!r}, which {problem}. Check the path.")


# --- the model's tensors in a file


def _find_state(content: Any, where: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the state dict in the content of a file, and the keys that lead to it."""
    if found := next(_states(content), None):
        return found
    keys: tuple[str, ...] = ()
    while isinstance(content, Mapping) and (nest := next((key for key in NESTS if key in content), None)):
        content, keys = content[nest], (*keys, nest)
        if len(keys) >= MAX_NESTS:
            raise CheckpointError(
                f"Expected weights at most {MAX_NESTS - 1} keys deep, got {' > '.join(keys)} in {where}. "
                "Save the state dict."
            )
    kind = type(content).__name__
    if isinstance(content, Mapping):
        kinds = {
            key: "" if isinstance(value, Tensor) else f" ({type(value).__name__})" for key, value in content.items()
        }
        others = [f"{key!r:.40}{kind}" for key, kind in sorted(kinds.items(), key=lambda item: not item[1])]
        kind = abbreviate(others) if others else f"an empty {kind}"
    below = f" under {'.'.join(keys)!r}" if keys else ""
    raise CheckpointError(
        f"Expected tensors by name, or a dict of them under {', '.join(NESTS)}, got {kind}{below} in {where}. "
        "Save the state dict alone."
    )


def _states(content: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[dict[str, Tensor], tuple[str, ...]]]:
    """Yield state dicts in the content of a file with the keys that lead to them, the preferred one first."""
    if not isinstance(content, Mapping) or len(keys) >= MAX_NESTS:
        return
    for nest in NESTS:
        if nest in content:
            yield from _states(content[nest], (*keys, nest))
    tensors = {name: value for name, value in content.items() if isinstance(value, Tensor)}
    rest = [value for name, value in content.items() if name not in tensors]  # such as an epoch
    plain = all(value is None or isinstance(value, bool | int | float | str) for value in rest)
    if tensors and plain and all(isinstance(name, str) for name in tensors):
        yield {name: tensor.detach() for name, tensor in tensors.items()}, keys


def _locate(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], str, tuple[str, ...]]:
    """Return a model's tensors without the prefix that they share, the prefix, and notes about tensors left out.

    Raises:
        ConvertError: if the file has several models, or tensors outside the model that may take part in its output.
    """
    prefixes = _prefixes(tensors)
    prefix = next((each for each in prefixes if _AVERAGE.search(each)), next(iter(prefixes)))
    if len(prefixes) > 1 and not _AVERAGE.search(prefix):
        raise ConvertError(
            f"Expected the tensors of one model, got several, under {abbreviate(prefixes)}. Save one of them."
        )
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    known = prefixes[prefix]
    unknown = {f"{prefix}{name}" for name in known.unknown(own)} if known else set[str]()
    others = {name for name in tensors if not name.startswith(prefix)} | unknown
    beside = sorted(name for name in others if _is_beside(name, tensors[name]))
    texts = [name for name in others if "visual." in prefix and _TEXTS.match(name)]
    copies = tuple(each for each in prefixes if each != prefix)
    rest = sorted(name for name in others - unknown - {*beside, *texts} if not (copies and name.startswith(copies)))
    if rest:
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        raise ConvertError(
            f"Expected a model alone, got other tensors outside of {prefix!r}: {abbreviate(rest)}. "
            f"{keep_classifier(shapes, rest, prefix)}"
        )
    heads = [name for name in beside if _PROJECTIONS.search(name)]
    notes = ["without the text tower"] if any(not name.startswith("visual.") for name in texts) else []
    notes += ["without the projection head of its training"] if heads else []
    other = [name for name in beside if name not in heads]
    notes += [f"without {abbreviate(other)}"] if other else []
    left_out = {name.removeprefix(prefix) for name in beside}
    return {name: tensor for name, tensor in own.items() if name not in left_out}, prefix, tuple(notes)


def _is_beside(name: str, tensor: Tensor) -> bool:
    """Return whether a tensor is not the model's: a counter, a loss, a metric, or a projection head of training."""
    return not (tensor.ndim or tensor.is_floating_point()) or bool(_BESIDE.match(name) or _PROJECTIONS.search(name))


def _prefixes(tensors: Iterable[str]) -> dict[str, Naming | None]:
    """Return the prefixes under which a file has all marks of a naming; else the prefix that all names share."""
    names, found = list(tensors), dict[str, Naming | None]()
    for known in NAMINGS:
        for name in names:
            prefix = name.removesuffix(mark := known.marks[0])
            if prefix == name or prefix[-1:] not in ("", ".") or prefix in found:
                continue
            base = next((base for base in known.bases if prefix.endswith(base)), "")
            prefix = prefix.removesuffix(base)
            under = {known.bare(each.removeprefix(prefix)) for each in names if each.startswith(prefix)}
            if {mark, *known.marks} <= under:
                found.setdefault(prefix, known)
    bases = {base for known in NAMINGS for base in known.bases}
    inner = {each for each in found for outer in found for base in bases if base and each == outer + base}
    if not found:
        parts = (name.split(".")[:-1] for name in names)
        shared = [same[0] for same in itertools.takewhile(lambda same: len({*same}) == 1, zip(*parts, strict=False))]
        return {"".join(f"{part}." for part in shared): None}
    return {prefix: known for prefix, known in found.items() if prefix not in inner}
