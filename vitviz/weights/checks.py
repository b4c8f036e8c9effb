"""Read weights files and their settings, and check them.

Sizes in the header are checked first, then types and shapes, then values. Tensors are memory-mapped, so memory is
allocated only after all other checks. A `torch.save` file is a pickle, which is a small program: after a check of the
sizes in the archive, `weights_only=True` runs only the calls that create tensors in containers. That does not bound
memory, so these files may only come from the user's own disk; visitors may upload only safetensors.
"""

import argparse
import json
import pathlib
import re
import types
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from vitviz.errors import VitvizError
from vitviz.formatting import abbreviate
from vitviz.images.decoding import ImageError
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ModelError, ViTConfig
from vitviz.model.vit import Pretrained, ViT

CONFIG, WEIGHTS, OLD_WEIGHTS = "config.json", "model.safetensors", "pytorch_model.bin"
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".pt.tar", ".pth.tar")
MAX_JSON_BYTES = 10 * 2**20  # 1,000 times a bundled config; 21,841 long class names fit
MAX_HEADER_BYTES = 4 * 2**20  # names and shapes of 40,000 tensors; the largest Vision Transformers have 2,000
MAX_PICKLE_BYTES = 4 * 2**20  # without tensor data; a ViT-g with its optimiser needs half a megabyte

_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"  # first bytes of torch.save's formats, since and before torch 1.6
_ADVICE = 'Save the weights alone: torch.save({"state_dict": model.state_dict()}, path).'
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_MAY_BE_EMPTY = ("register_tokens", "reg_token")  # (1, 0, D) without registers
_WRAPPER = re.compile(r"(?<![^.])(module|_orig_mod|_forward_module|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""Parts of names that wrappers add, for parallel training, compilation and recomputation."""
_SYSTEMS = ("Posix", "Windows", "PurePosix", "PureWindows")
_NUMBER = np.float64(1)
# Objects that training programs save beside their weights. They hold data and run no code.
_SAFE: list[Any] = [
    argparse.Namespace, types.SimpleNamespace, np.dtype, np.ndarray,
    *((pathlib.PurePath, f"{module}.{kind}Path") for module in ("pathlib", "pathlib._local") for kind in _SYSTEMS),
    *((_NUMBER.__reduce__()[0], f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    *((np.ones(1).__reduce__()[0], f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    *(type(np.dtype(kind)) for kind in ("bool", "int32", "int64", "uint32", "float32", "float64")),
]  # fmt: skip
_INDICES = ("position_ids",)  # 0, 1, 2, ... in older files: integers, not weights


class CheckpointError(VitvizError):
    """Raised when a checkpoint cannot be read or written."""


class ConvertError(CheckpointError):
    """Raised when a model is not supported, or weights do not match their settings."""


@contextmanager
def checked_settings() -> Iterator[None]:
    """Raise `ConvertError` for settings that are invalid for `ViTConfig` or `Preprocess`; also a decorator."""
    try:
        yield
    except (ModelError, ImageError) as error:
        raise ConvertError(f"Expected valid settings of a model, got invalid ones: {error}") from error


@contextmanager
def checked_parts() -> Iterator[None]:
    """Raise `ConvertError` for a model whose parts lack what their library gives them; also a decorator."""
    try:
        yield
    except (AttributeError, TypeError, IndexError, KeyError) as error:
        raise ConvertError(
            f"Expected a model with the parts that its library gives it, got others: {error!s:.200}. Merge added parts "
            "into the weights, such as those of LoRA, or undo the change."
        ) from error


# --- files


def need_file(path: Path) -> Path:
    """Return the path of a file that a folder must have.

    Raises:
        CheckpointError: if it is missing.
    """
    if not path.is_file():
        raise CheckpointError(
            f"Expected a folder with {path.name}, got {str(path.parent)!r}, which has no {path.name}. Fetch or save it."
        )
    return path


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file of settings.

    Raises:
        CheckpointError: if the file is missing, longer than `MAX_JSON_BYTES`, or not a JSON object.
    """
    if (size := need_file(path).stat().st_size) > MAX_JSON_BYTES:
        raise CheckpointError(
            f"Expected at most {MAX_JSON_BYTES:,} bytes, got {size:,} in {str(path)!r}. Fetch or save it again."
        )
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"Expected JSON, got something else in {str(path)!r}: {error}.") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"Expected a JSON object, got {type(data).__name__} in {str(path)!r}. Fetch it again.")
    return data


def read_weights(path: Path) -> Any:
    """Return the content of a weights file: tensors by name, or any containers of tensors that `torch.save` wrote.

    Raises:
        CheckpointError: if the file holds no weights, its format contradicts its suffix, it is damaged, claims more
            data than it has, or holds objects other than tensors in containers.
    """
    with path.open("rb") as file:
        start = file.read(512)
    _check_content(path, start)
    safe = path.suffix.lower() == ".safetensors"
    of_torch = start.startswith((_ZIP, _PICKLE)) and start[8:9] != b"{"  # the first byte of a safetensors header
    if of_torch == safe:
        expected, got = ("safetensors", "a torch.save file") if safe else ("torch.save", "another or a damaged file")
        raise CheckpointError(f"Expected a {expected} file, got {got} in {str(path)!r}. Rename or fetch it again.")
    return _read_safetensors(path) if safe else _read_torch(path, archive=start.startswith(_ZIP))


def _check_content(path: Path, start: bytes) -> None:
    """Refuse a file whose first bytes show that it holds no weights."""
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not start:
        kind, advice = "an empty file", "Fetch or save it again."
    elif text.startswith(b"version https://git-lfs"):
        kind, advice = "a pointer of Git LFS", "Run `git lfs pull` in that repository."
    elif text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        kind, advice = "a web page, such as a login or an error", "Fetch the file itself."
    elif text and all(byte in b"\t\r\n" or 32 <= byte < 127 for byte in start):
        kind, advice = f"text that begins with {start[:40].decode('ascii')!r}", "Fetch or save it again."
    else:
        return
    raise CheckpointError(f"Expected weights in {str(path)!r}, got {kind}. {advice}")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > size - 8:
        raise CheckpointError(
            f"Expected a safetensors file, got another kind or one that is cut short in {str(path)!r}: it announces "
            f"a header of {length:,} bytes and is {size:,} long. Fetch or save it again."
        )
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"Expected names and shapes of tensors in at most {MAX_HEADER_BYTES:,} bytes, got a header of "
            f"{length:,} bytes in {str(path)!r}. Save the weights again."
        )
    try:
        # The library checks that tensors cover the file without gap or overlap.
        with safe_open(path, framework="pt") as weights:
            return {name: weights.get_tensor(name) for name in weights.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"Expected a safetensors file, got one that is damaged in {str(path)!r}. Fetch or save it again: {error}."
        ) from error


def _read_torch(path: Path, *, archive: bool) -> Any:
    """Return what `torch.save` wrote; tensors of an archive are memory-mapped."""
    try:
        if archive:
            _check_archive(path)
        with torch.serialization.safe_globals(_SAFE):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=archive)
    except CheckpointError:
        raise
    except Exception as error:  # errors of torch's reader, its unpickler and zipfile share no base class
        # torch's own message is not shown, because it first advises to disable the check.
        if match := re.search(r"(?i)(?:global:? (?:GLOBAL )?|got <class ')([\w.]+)", str(error)):
            raise CheckpointError(
                f"Expected tensors in {str(path)!r}, got other objects: it refers to {match[1]:.120}. "
                f"None of its code was run. {_ADVICE}"
            ) from error
        text = str(error).rpartition("WeightsUnpickler error:")[2].strip() or type(error).__name__
        raise CheckpointError(
            f"Expected a torch.save file, got another kind or one that is damaged or cut short, in {str(path)!r}. "
            f"Fetch it again: {text.splitlines()[0]:.200}."
        ) from error


def _check_archive(path: Path) -> None:
    """Refuse an archive that would need more memory than the length of its file."""
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        records = archive.infolist()
    claimed = sum(record.file_size for record in records)
    pickles = [record.file_size for record in records if record.filename.endswith(".pkl")]
    if any(record.compress_type != zipfile.ZIP_STORED for record in records):
        expected, got = "an archive of torch.save", "compressed entries"
    elif claimed > size:
        expected, got = f"an archive of at most {size:,} bytes", f"entries that claim {claimed:,}"
    elif max(pickles, default=0) > MAX_PICKLE_BYTES:
        expected, got = f"at most {MAX_PICKLE_BYTES:,} bytes besides tensor data", "more"
    else:
        return
    raise CheckpointError(f"Expected {expected}, got {got} in {str(path)!r}. It is not opened. {_ADVICE}")


def without_wrappers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by their names without the parts that wrappers add.

    Raises:
        CheckpointError: if two names become equal.
    """
    plain: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if (short := _WRAPPER.sub("", name)) in plain:
            raise CheckpointError(f"Expected each tensor once, got {short!r:.80} twice. Remove one of them.")
        plain[short] = tensor
    return plain


def check_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse tensors that are not dense floating-point numbers, are empty, or claim more data than the file has.

    Raises:
        CheckpointError: for the first such tensor.
    """
    for name, tensor in tensors.items():
        if name.endswith(_INDICES):
            continue
        plain = (
            type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided and tensor.device.type == "cpu"
        )
        if not plain or tensor.dtype not in DTYPES:
            kind = tensor.dtype if plain else f"{tensor.layout} on {tensor.device.type}"
            raise CheckpointError(
                f"Expected weights in {', '.join(map(str, DTYPES))}, got {kind} in {name!r:.120} of {str(path)!r}. "
                "Expand quantised or sparse weights first."
            )
        if not tensor.numel() and not name.endswith(_MAY_BE_EMPTY):  # its shape may claim any size
            raise CheckpointError(
                f"Expected numbers in every tensor, got {tuple(tensor.shape)} for {name!r:.120} of {str(path)!r}. "
                "Leave it out."
            )
    claimed = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if claimed > (size := path.stat().st_size):
        raise CheckpointError(
            f"Expected tensors of at most {size:,} bytes, as long as {str(path)!r}, got {claimed:,}: they share their "
            "numbers. Save a copy of each: {name: tensor.clone() ...}."
        )


# --- the model


def assemble(
    config: ViTConfig, state: dict[str, Tensor], about: Pretrained | None = None, *, where: str = "these weights"
) -> ViT:
    """Build a model from its config and exactly the weights that it needs: float32, in eval mode.

    Args:
        config, about: settings of the model.
        state: tensors by our names. They may be mapped from a file and are copied, because overwriting the file must
            not change a model in use. The dict is emptied, so that memory holds one copy.
        where: the file, for errors.

    Raises:
        CheckpointError: for tensors that are missing, unexpected, of other shapes or not finite.
    """
    model = _blank(config, about, {name: tuple(tensor.shape) for name, tensor in state.items()}, where)
    copies = {
        name: state.pop(name).to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        for name in list(state)
    }
    check_finite(copies, where)
    model.load_state_dict(copies, strict=True, assign=True)
    return model.eval()


def _blank(config: ViTConfig, about: Pretrained | None, shapes: Mapping[str, tuple[int, ...]], where: str) -> ViT:
    """Build a model on the meta device after checking that its tensors have these shapes."""
    blocks = len({name.split(".")[1] for name in shapes if name.startswith("blocks.")})
    if blocks != config.depth:  # checked first, because building even an empty block takes time
        raise ConvertError(
            f"Expected {config.depth} blocks in {where}, got {blocks}. Use the settings that belong to these weights."
        )
    if about is not None:
        check_input(config, about.preprocess)
    try:
        with torch.device("meta"):
            model = ViT(config, about)
    except (RuntimeError, TypeError, OverflowError) as error:  # PyTorch counts elements in 64 bits
        raise ConvertError(
            f"Expected the sizes of {where}, got sizes too large for any memory. Use the settings of these weights."
        ) from error
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    wrong = [name for name in expected if name in shapes and expected[name] != shapes[name]]
    for problem, names in (
        ("missing tensors", sorted(set(expected) - set(shapes))),
        ("unexpected tensors", sorted(set(shapes) - set(expected))),
        (
            "tensors of other shapes",
            [f"{name} (expected {expected[name]}, got {shapes[name]})" for name in sorted(wrong)],
        ),
    ):
        if names:
            raise ConvertError(
                f"Expected the tensors of the model's settings in {where}, got {problem}: {abbreviate(names)}. "
                "Use the settings that belong to these weights."
            )
    return model


def attach(model: ViT, about: Pretrained) -> ViT:
    """Set a model's preprocessing and labels, and return the model.

    Raises:
        CheckpointError: if the numbers of labels and classes differ, or the input does not divide into patches.
    """
    if about.labels and len(about.labels) != model.config.classes:
        raise ConvertError(
            f"Expected {model.config.classes} labels, one for each class, got {len(about.labels)}. Name every class."
        )
    check_input(model.config, about.preprocess)
    model.pretrained = about
    return model


def check_input(config: ViTConfig, preprocess: Preprocess) -> None:
    """Check that the input after preprocessing divides into the model's patches.

    Raises:
        CheckpointError: if it does not; the message states both sizes.
    """
    if len(preprocess.bands) != config.channels:
        raise CheckpointError(
            f"Expected preprocessing of {config.channels} channels, as many as the model reads, got "
            f"{', '.join(preprocess.bands)}. Give as many bands, means and standard deviations."
        )
    height, width = preprocess.height, preprocess.width
    if preprocess.mode == "native":  # the input's sides may be any multiples of this number
        height = width = preprocess.multiple
    if height % config.size_multiple or width % config.size_multiple:
        raise CheckpointError(
            f"Expected preprocessing to a size in multiples of {config.size_multiple} pixels, got {height} x {width}. "
            "Correct the size in the settings of the preprocessing."
        )


def check_finite(state: Mapping[str, Tensor], where: str) -> None:
    """Refuse NaN and infinity; `where` describes the weights in the error."""
    if wrong := [name for name, tensor in state.items() if not bool(tensor.isfinite().all())]:
        raise CheckpointError(
            f"Expected finite weights in {where}, got NaN or infinity in {abbreviate(wrong)}. Save another model."
        )
