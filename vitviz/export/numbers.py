"""Write a map's numbers with everything needed to reproduce them, and compare them with a recomputation.

A file is NPZ (NumPy, without pickle) or CSV. Both contain a JSON record: the question, the model with a checksum of its
weights, the photograph with a checksum of its pixels, the preprocessing, and versions.

| CSV | column |
|---|---|
| `row`, `column` | the patch, from 0 at the top left |
| `value` | its number, with all digits of float32 |
| `left`, `top`, `right`, `bottom` | its box in the photograph, in pixels |

The first line of a CSV is `# ` and the record, which `pandas.read_csv(file, comment="#")` skips.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import vitviz
from vitviz.errors import VitvizError
from vitviz.explorer import Explorer
from vitviz.formatting import number
from vitviz.heatmap import Heatmap
from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import ViT
from vitviz.view import View
from vitviz.web.examples import examples
from vitviz.weights.zoo import bundled
from vitviz.writing import csv_text, read_arrays, write, write_arrays

FORMAT = "vitviz map 1"
SUFFIXES = (".npz", ".csv")
COLUMNS = ("row", "column", "value", "left", "top", "right", "bottom")
ROUNDING = 1e-4  # tolerance relative to the largest number, for other processors and thread counts
HALF = 2e-2  # tolerance for numbers saved on the page, which uses half precision
# Cached for unchanged weights: hashing takes as long as a forward pass.
_CHECKSUMS: WeakKeyDictionary[ViT, tuple[list[tuple[int, int]], str]] = WeakKeyDictionary()


class NumbersError(VitvizError):
    """Raised if a file contains no map, or if the photograph or the model does not match it."""


def save(view: View, heatmap: Heatmap, path: str | os.PathLike[str], *, model: str = "", photo: str = "") -> Path:
    """Write a map with its record to a .npz or .csv file; `Heatmap.load` also reads .npz.

    Args:
        view: view of the map.
        heatmap: map with a `question`, from `View.attention`, `View.rollout` or `View.explain`.
        path: path of the file.
        model: source for `vitviz.load`; by default the bundled name, or the origin of the weights.
        photo: path of the photograph; by default its file name.

    Raises:
        NumbersError: if the file type is not supported.
    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise NumbersError(f"Expected a name ending in {' or '.join(SUFFIXES)}, got {target.name!r}. Rename it.")
    record = json.dumps(describe(view, heatmap, model=model, photo=photo), ensure_ascii=False)
    if target.suffix.lower() == ".npz":
        write_arrays(target, {**heatmap.arrays(), "boxes": boxes(heatmap), "record": np.array(record)})
    else:
        write(target, _as_csv(heatmap, record))
    return target


def describe(view: View, heatmap: Heatmap, *, model: str = "", photo: str = "") -> dict[str, Any]:
    """Return the record of a map for JSON: question, model, photograph, geometry and versions."""
    about = view.model.pretrained
    name = about.name if about else ""
    known = name if name in bundled() else about.source if about else ""
    return {
        "format": FORMAT,
        "map": {
            "title": heatmap.title,
            "unit": heatmap.unit,
            "signed": heatmap.signed,
            "outside": dict(heatmap.prefix_mass),
        },
        "question": dict(heatmap.question),
        "model": {"source": model or known, "name": name, "weights": weights_checksum(view.model)},
        "photo": {"source": photo or view.name, "size": view.photo.size, "pixels": pixels_checksum(view.photo)},
        "input": {
            "grid": heatmap.grid,
            "size": heatmap.geometry.input,
            "frame": heatmap.geometry.frame,
            "preprocess": view.preprocess.to_dict(),
        },
        "precision": str(next(view.model.parameters()).dtype).removeprefix("torch."),
        "device": view.device,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that compute the numbers."""
    return {
        "vitviz": vitviz.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


@torch.no_grad()
def weights_checksum(model: ViT) -> str:
    """Return the SHA-256 of a model's config and weights (name, shape and float32 bytes)."""
    state = [(tensor.data_ptr(), tensor._version) for tensor in model.state_dict().values()]
    if model in _CHECKSUMS and _CHECKSUMS[model][0] == state:
        return _CHECKSUMS[model][1]
    digest = hashlib.sha256(repr(model.config).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.float().cpu().contiguous().numpy().data)
    _CHECKSUMS[model] = state, digest.hexdigest()
    return _CHECKSUMS[model][1]


def pixels_checksum(photo: Image.Image) -> str:
    """Return the SHA-256 of a photograph's size and pixels, independent of the file format."""
    return hashlib.sha256(f"{photo.size}".encode() + photo.convert("RGB").tobytes()).hexdigest()


def boxes(heatmap: Heatmap) -> NDArray[np.float64]:
    """Return the box of each patch in pixels of the photograph: (gh, gw, 4), as left, top, right, bottom."""
    gh, gw = heatmap.grid
    return np.array(
        [[heatmap.geometry.patch_box(row, col, heatmap.grid) for col in range(gw)] for row in range(gh)], np.float64
    )


def _as_csv(heatmap: Heatmap, record: str) -> str:
    """Return the text of a CSV file."""
    places = boxes(heatmap)
    rows = (
        (row, col, *(f"{number:.9g}" for number in (heatmap.values[row, col], *places[row, col])))
        for row, col in np.ndindex(heatmap.grid)
    )
    return f"# {record}\n" + csv_text([COLUMNS, *rows])


# ---- reproduction


@dataclass(frozen=True, eq=False)
class Replay:
    """A saved map and the result of repeating its question.

    Args:
        record: the file's record.
        saved: (gh, gw), saved numbers.
        heatmap: recomputed map.
    """

    record: Mapping[str, Any]
    saved: NDArray[np.float32]
    heatmap: Heatmap

    @property
    def difference(self) -> float:
        """Return the maximum absolute difference; infinite if the grids differ."""
        if self.saved.shape != self.heatmap.values.shape:
            return float("inf")
        return float(np.abs(self.saved.astype(np.float64) - self.heatmap.values).max())

    @property
    def identical(self) -> bool:
        """Return whether all numbers are bitwise equal."""
        return self.difference == 0

    @property
    def allowed(self) -> float:
        """Return the maximum difference that counts as rounding."""
        share = HALF if self.record.get("precision") == "float16" else ROUNDING
        return share * float(np.abs(self.saved).max())

    @property
    def equal(self) -> bool:
        """Return whether all numbers are equal up to rounding."""
        return self.difference <= self.allowed

    def describe(self) -> str:
        """Return the outcome as text, with the versions that differ."""
        count = f"{self.saved.size:,} numbers"
        if self.identical:
            outcome = f"Equal: all {count} are the same to the last bit."
        elif self.equal:
            outcome = f"Equal but for rounding: {count} differ by at most {number(self.difference)}."
        elif self.difference == float("inf"):
            outcome = f"Different: the grid is {self.heatmap.grid} instead of {self.saved.shape}."
        else:
            outcome = f"Different: {count} differ by up to {number(self.difference)}, more than {number(self.allowed)}."
        if not self.equal and not self.record["photo"].get("pixels"):
            outcome += " The file has no checksum of its photograph, so this photograph may differ."
        then = self.record.get("versions", {})
        changed = [
            f"{name} {then[name]} then, {now} now" for name, now in versions().items() if then.get(name, now) != now
        ]
        return " ".join([outcome, *(["Versions: " + "; ".join(changed) + "."] if changed else [])])


def replay(
    path: str | os.PathLike[str], *, photo: Any = None, model: Any = None, device: torch.device | str | None = None
) -> Replay:
    """Repeat the question of a file on the same photograph and weights.

    Args:
        path: file written by `save`.
        photo: source for `Explorer.open`; by default the recorded path, or the same name in the file's folder.
        model: source for `vitviz.load`, or a `ViT`; by default the recorded model.
        device: device to run on; by default the model's.

    Raises:
        NumbersError: if the file is invalid, or photograph or weights do not match it.
    """
    record, saved = read(path)
    source = model if model is not None else record["model"]["source"]
    if isinstance(source, str) and not source:
        raise NumbersError("Expected a file that names its model, got one that does not. Name it: --model.")
    explorer, name = Explorer(source, device), record["model"]["source"] or "of the file"
    _check(f"model {name}", record["model"].get("weights"), weights_checksum(explorer.model), "weights", "--model")
    if record["input"].get("preprocess"):
        explorer.preprocess = Preprocess.from_dict(record["input"]["preprocess"])
    source_photo = photo if photo is not None else _find_photo(record, Path(path))
    view = explorer.open(source_photo, size=record["input"].get("asked"))  # files of the page have no preprocessing
    name = Path(record["photo"]["source"]).name or "of the file"
    _check(f"photograph {name}", record["photo"].get("pixels"), pixels_checksum(view.photo), "pixels", "--photo")
    if "method" not in record["question"]:
        raise NumbersError(f"Expected a question with a method, got {record['question']}. Save a map of a view.")
    return Replay(record, saved, view.explain(**record["question"]))


def _check(what: str, then: str | None, now: str, part: str, option: str) -> None:
    """Raise an error if weights or pixels do not match the file; files saved by the page may lack checksums."""
    if then and then != now:
        raise NumbersError(
            f"Expected the original {what}, got a different one: its {part} have the checksum {now[:16]}…, not "
            f"{then[:16]}…. Name the original: {option}."
        )


def _find_photo(record: Mapping[str, Any], path: Path) -> Path:
    """Return the photograph of a file: at the recorded path, next to the file, or an example named by the page."""
    source = Path(str(record["photo"]["source"]))
    known = [example.path for example in examples() if example.name == str(source)]
    places = [source, path.parent / source.name, *known]
    for place in places:
        if source.name and place.is_file():
            return place
    raise NumbersError(
        f"Expected the photograph {str(source)!r}, got no such file here or beside {path.name}. Name it: --photo."
    )


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], NDArray[np.float32]]:
    """Read the record and the numbers (gh, gw) of a file, without pickle.

    Raises:
        NumbersError: if the file is damaged or has another format.
    """
    path = Path(path)
    try:
        if path.suffix.lower() == ".npz":
            text, values = read_arrays(path, ("record", "values"), NumbersError).values()
        else:
            text, values = _read_csv(path)
        record = json.loads(str(text))
        found, values = record["format"], values.astype(np.float32).reshape(record["input"]["grid"])
    except NumbersError:
        raise
    except (OSError, ValueError, LookupError, TypeError, csv.Error) as error:
        raise NumbersError(f"Expected a map of vitviz, got {path.name!r:.80} ({error}). Save it again.") from error
    if found != FORMAT:
        raise NumbersError(f"Expected the format {FORMAT!r}, got {found!r:.80} in {path.name!r:.80}. Save it again.")
    return record, values


def _read_csv(path: Path) -> tuple[str, NDArray[np.float32]]:
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(lines))
    return head.removeprefix("# "), np.array([float(row["value"]) for row in rows], np.float32)
