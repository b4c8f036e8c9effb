"""What files that mean harm are made of: calls in pickles, storages that are not there, bombs."""

from __future__ import annotations

import collections
import copy
import io
import os
import pickle
import zipfile
from collections.abc import Callable
from typing import Any

import torch
from safetensors.torch import save
from timm_models import vit

STATE = {name: tensor.detach().clone() for name, tensor in vit(img_size=35, num_classes=0).state_dict().items()}
MARK = "it-ran"  # a payload makes a file of this name in the working directory
BOMB = 2**28  # bytes that a bomb would take


class Call:
    """Pickles as a call of any function with any arguments."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


PAYLOAD = Call(os.system, f"touch {MARK}")


class Claim:
    """A storage that a pickle claims, whether or not there are numbers for it."""

    def __init__(self, key: str, count: Any, kind: Any = torch.FloatStorage) -> None:
        self.told = ("storage", kind, key, "cpu", count)


def rebuilt(claim: Any, offset: Any, size: Any, stride: Any) -> Call:
    """A tensor as torch.save writes it."""
    return Call(torch._utils._rebuild_tensor_v2, claim, offset, size, stride, False, collections.OrderedDict())


def pickled_as(held: Any, more: tuple[Any, ...] = ()) -> bytes:
    """A pickle in which `Claim`s are storages."""
    out = io.BytesIO()

    class Pickler(pickle.Pickler):
        def persistent_id(self, held: Any) -> Any:
            return (*held.told, *more) if isinstance(held, Claim) else None

    Pickler(out, 2).dump(held)
    return out.getvalue()


def older(held: Any, keys: Any = (), numbers: bytes = b"", sys_info: Any = None) -> bytes:
    """A file as torch wrote it before 1.6."""
    sys_info = {"protocol_version": 1001, "little_endian": True} if sys_info is None else sys_info
    head = b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, sys_info))
    return head + pickled_as(held, (None,)) + pickle.dumps(list(keys), 2) + numbers


def zipped(records: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in records.items():
            archive.writestr(f"archive/{name}", content)
    return out.getvalue()


def newer(held: Any, **data: bytes) -> bytes:
    """A file as torch writes it, with any records under data/."""
    records = {"data.pkl": pickled_as(held), "byteorder": b"little", "version": b"3\n"}
    return zipped(records | {f"data/{key[1:]}": content for key, content in data.items()})


def saved(held: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(held, out, **options)
    return out.getvalue()


def changed(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    return STATE | {name: tensor}


def spoiled(number: float) -> dict[str, torch.Tensor]:
    bias = STATE["norm.bias"].clone()
    bias[7] = number
    return changed("norm.bias", bias)


def in_itself() -> dict[str, Any]:
    whole: dict[str, Any] = {}
    whole["model"] = whole
    return whole


def laughs() -> Any:
    """A list of lists of lists ... of 10 ** 12 words, in a few hundred bytes."""
    held: Any = ["ha"] * 10
    for _ in range(12):
        held = [held] * 10
    return held


def shared_names() -> dict[str, torch.Tensor]:
    big = torch.zeros(2**18)
    return STATE | {f"blocks.0.{index}": big for index in range(10_000)}


def compressed_bomb() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickled_as({"norm.bias": rebuilt(Claim("0", BOMB // 4), 0, (5,), (1,))}))
        archive.writestr("archive/version", b"3\n")
        with archive.open("archive/data/0", "w") as record:
            for _ in range(BOMB // 2**20):
                record.write(bytes(2**20))
    return out.getvalue()


def overlapping_bomb() -> bytes:
    """Many entries of the archive, all of them the same bytes of the file."""
    out = io.BytesIO(saved({"norm.bias": torch.zeros(2**18)}))
    archive: Any  # entries that were not added one by one are written only where a private mark says so
    with zipfile.ZipFile(out, "a") as archive:
        first = next(record for record in archive.filelist if record.filename.endswith("data/0"))
        for index in range(BOMB // 2**20):
            record = copy.copy(first)
            record.filename = first.filename[:-1] + f"9{index}"
            archive.filelist.append(record)
        archive._didModify = True
    return out.getvalue()


def two_pickles() -> bytes:
    """Two records of one name but for its case: readers that do not tell cases apart may take either."""
    harmless = pickled_as({"norm.bias": 3})
    return zipped({"DATA.PKL": pickled_as(PAYLOAD), "data.pkl": harmless, "version": b"3\n"})


HUGE = 2**40
F32 = {"dtype": "F32", "shape": [60], "data_offsets": [0, 240]}
WHOLE, OLD = saved(STATE), saved(STATE, _use_new_zipfile_serialization=False)
SAFE = save(STATE)
