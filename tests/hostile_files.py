"""Files that mean harm, or are broken: each with the words of its refusal. `HOSTILE` makes them, one function each."""

from __future__ import annotations

import collections
import copy
import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_folders import header
from safetensors.torch import save
from timm_models import vit
from torch import nn

from vitviz.weights.checks import MAX_HEADER_BYTES, MAX_PICKLE_BYTES

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


HUGE = 2**40
F32 = {"dtype": "F32", "shape": [60], "data_offsets": [0, 240]}
WHOLE, OLD = saved(STATE), saved(STATE, _use_new_zipfile_serialization=False)
SAFE = save(STATE)

# name -> (end of the file's name, its bytes, words of the refusal)
HOSTILE: dict[str, tuple[str, Callable[[], bytes], str]] = {
    # pickles that call
    "payload": (".pt", lambda: saved(STATE | {"a": PAYLOAD}), r"got more: it asks for (posix|nt)\.system"),
    "payload alone": (".bin", lambda: saved(PAYLOAD), r"asks for (posix|nt)\.system"),
    "older payload": (
        ".pth",
        lambda: saved(STATE | {"a": PAYLOAD}, _use_new_zipfile_serialization=False),
        r"asks for (posix|nt)\.system",
    ),
    "payload as a plain pickle": (".pt", lambda: pickle.dumps(PAYLOAD, 2), r"asks for (posix|nt)\.system"),
    "payload in protocol 4": (".pt", lambda: pickle.dumps(PAYLOAD, 4), "Expected a file of torch.save"),
    "payload as text": (".pt", lambda: pickle.dumps(PAYLOAD, 0), "got text that begins"),
    "payload in what is said of the system": (".pt", lambda: older({}, sys_info=PAYLOAD), r"\.system"),
    "payload among the storages": (".pt", lambda: older({}, keys=[PAYLOAD]), r"\.system"),
    "eval": (".pt", lambda: saved({"a": Call(eval, f"open({MARK!r}, 'w')")}), r"asks for (__builtin__\.)?eval"),
    "a whole module": (
        ".pt",
        lambda: saved(nn.Linear(2, 3)),
        r"asks for torch\.nn\.modules\.linear\.Linear.*state_dict",
    ),
    # pickles that PyTorch's own reader would follow
    "sparse": (
        ".pt",
        lambda: saved(changed("norm.bias", torch.sparse_coo_tensor([[0]], [1.0], (HUGE,), check_invariants=False))),
        "got torch.sparse_coo on cpu in",
    ),
    "laughs": (".pt", lambda: saved({"model": laughs()}), "Expected tensors by name"),
    # shapes
    "terabytes by steps of 0": (
        ".pt",
        lambda: saved(changed("norm.bias", torch.zeros(1).expand(HUGE))),
        "they share their numbers",
    ),
    "terabytes by a shape": (
        ".pt",
        lambda: newer({"norm.bias": rebuilt(Claim("0", 4), 0, (HUGE,), (1,))}, _0=bytes(16)),
        "is damaged",
    ),
    "more numbers than there are": (
        ".pt",
        lambda: newer({"norm.bias": rebuilt(Claim("0", HUGE), 0, (HUGE,), (1,))}, _0=bytes(16)),
        "is damaged",
    ),
    "older, more numbers than there are": (
        ".pt",
        lambda: older({"norm.bias": rebuilt(Claim("a", HUGE), 0, (HUGE,), (1,))}, ["a"], struct.pack("<Q", HUGE)),
        "is damaged",
    ),
    "older, terabytes by steps of 0": (
        ".pt",
        lambda: saved(changed("norm.bias", torch.zeros(1).expand(HUGE)), _use_new_zipfile_serialization=False),
        "they share their numbers",
    ),
    "many names for the same numbers": (".pt", lambda: saved(shared_names()), "they share their numbers"),
    "no number in a huge tensor": (
        ".pt",
        lambda: saved(changed("norm.bias", torch.zeros(0, HUGE))),
        r"got \(0, 1099511",
    ),
    "no number in a huge tensor, safe": (
        ".safetensors",
        lambda: save(changed("norm.bias", torch.zeros(0, HUGE))),
        r"got \(0, 1099511627776\) for 'norm\.bias'",
    ),
    # archives
    "zip bomb": (".pt", compressed_bomb, "compressed entries"),
    "zip bomb of one page": (".pt", overlapping_bomb, "entries that claim"),
    "a long pickle": (
        ".pt",
        lambda: zipped({"data.pkl": bytes(MAX_PICKLE_BYTES + 1), "version": b"3\n"}),
        "beside the numbers",
    ),
    "a zip of something else": (".pt", lambda: zipped({"a.txt": b"a"}), "is damaged"),
    "a long header": (".safetensors", lambda: header({"a": "b" * MAX_HEADER_BYTES}), "a header of 4,194,"),
    "a header of 2 GB": (".safetensors", lambda: header({}, 2 * 2**30), "a header of 2,147,483,648 bytes"),
    "a header without end": (".safetensors", lambda: header({}, 2**64 - 1), "a header of"),
    "a header of absurd shapes": (
        ".safetensors",
        lambda: header({"norm.bias": F32 | {"shape": [HUGE, HUGE]}}, numbers=bytes(240)),
        "damaged",
    ),
    "a header of shapes below zero": (
        ".safetensors",
        lambda: header({"norm.bias": F32 | {"shape": [-60]}}, numbers=bytes(240)),
        "damaged",
    ),
    "a header whose tensors overlap": (
        ".safetensors",
        lambda: header({f"norm.{name}": F32 for name in ("bias", "weight")}, numbers=bytes(240)),
        "damaged",
    ),
    # numbers
    "NaN": (".pt", lambda: saved(spoiled(float("nan"))), r"NaN or infinity in norm\.bias"),
    "NaN, older": (
        ".bin",
        lambda: saved(spoiled(float("nan")), _use_new_zipfile_serialization=False),
        r"NaN or infinity in norm\.bias",
    ),
    "NaN, safe": (".safetensors", lambda: save(spoiled(float("nan"))), r"NaN or infinity in norm\.bias"),
    "infinity": (".pt", lambda: saved(spoiled(float("-inf"))), r"NaN or infinity in norm\.bias"),
    "infinity, safe": (".safetensors", lambda: save(spoiled(float("inf"))), r"NaN or infinity in norm\.bias"),
    "infinity in single precision": (
        ".pt",
        lambda: saved(changed("norm.bias", torch.full((60,), 1e300, dtype=torch.float64))),
        r"NaN or infinity in norm\.bias",
    ),
    **{
        f"{dtype}{suffix}": (
            suffix,
            lambda dtype=dtype, suffix=suffix: (saved if suffix == ".pt" else save)(
                changed("norm.bias", torch.zeros(60).to(getattr(torch, dtype)))
            ),
            rf"Expected weights in torch.float64.*got torch.{dtype} in 'norm\.bias'",
        )
        for dtype in ("int8", "int64", "uint8", "bool", "complex64", "float8_e4m3fn", "float8_e5m2")
        for suffix in (".pt", ".safetensors")
    },
    # cut short
    **{
        f"cut to {share:.1%}{suffix}{'' if whole is not OLD else ' older'}": (
            suffix,
            lambda whole=whole, share=share: whole[: int(len(whole) * share)],
            "cut short|damaged",
        )
        for suffix, whole in ((".pt", WHOLE), (".pt", OLD), (".safetensors", SAFE))
        for share in (0.001, 0.03, 0.5, 0.999)
    },
    # not what was expected in it
    "in itself": (".pt", lambda: saved(in_itself()), "at most 2 keys deep"),
    "four deep": (".pt", lambda: saved({"model": {"model": {"model": {"model": STATE}}}}), "at most 2 keys deep"),
    "numbers for names": (".pt", lambda: saved(dict(enumerate(STATE.values()))), "got 0, 1, 2 and"),
    "nothing for a name": (".pt", lambda: saved({None: torch.zeros(2)}), "got None in"),
    "a tuple for a name": (".pt", lambda: saved({(1, 2): torch.zeros(2)}), r"got \(1, 2\) in"),
    "a list": (".pt", lambda: saved(list(STATE.values())), "got list in"),
    "a tensor": (".pt", lambda: saved(torch.zeros(3)), "got Tensor in"),
    "a number": (".pt", lambda: saved(3), "got int in"),
    "no tensors": (".pt", lambda: saved({}), "an empty dict"),
    "no tensors below": (".pt", lambda: saved({"state_dict": {}}), "an empty dict under 'state_dict'"),
    "no tensors, safe": (".safetensors", lambda: save({}), "an empty dict"),
    "settings beside tensors": (".pt", lambda: saved(STATE | {"epoch": 3}), r"'epoch' \(int\)"),
    # no weights at all
    "empty": (".pt", lambda: b"", "empty file"),
    "empty, safe": (".safetensors", lambda: b"", "empty file"),
    "a pointer": (".pt", lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
    "a web page": (".safetensors", lambda: b"\n<!DOCTYPE html><html><body>Sign in</body></html>", "web page"),
    "an error as XML": (".pth", lambda: b"<?xml version='1.0'?><Error>Denied</Error>", "web page"),
    "a text": (".bin", lambda: b"Not found\n", "got text that begins with 'Not found"),
    "noise": (".pt", lambda: bytes(range(160, 256)) * 9, "Expected a file of torch.save"),
    "noise, safe": (".safetensors", lambda: bytes(range(160, 256)) * 9, "cut short"),
    "safetensors by another name": (".pt", lambda: SAFE, "Expected a file of torch.save, got another"),
    "torch's by another name": (".safetensors", lambda: WHOLE, "Expected a file of safetensors, got one of torch.save"),
    "older by another name": (".safetensors", lambda: OLD, "Expected a file of safetensors, got one of torch.save"),
    "an archive of numpy": (".npz", lambda: WHOLE, "Expected a file that ends in .safetensors"),
}


def hostile(folder: Path) -> dict[str, Path]:
    """Every one of them, written into a folder."""
    made = {}
    for index, (name, (suffix, make, _)) in enumerate(HOSTILE.items()):
        made[name] = folder / f"{index}{suffix}"
        made[name].write_bytes(make())
    return made


def good(folder: Path) -> list[Path]:
    """The weights that the hostile ones imitate, in each form, written into a folder."""
    made = {folder / "a.pt": WHOLE, folder / "a.pth": OLD, folder / "a.safetensors": SAFE}
    for path, content in made.items():
        path.write_bytes(content)
    return list(made)


def elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In another working directory, and nothing ran there that leaves its mark."""
    monkeypatch.chdir(folder)
    yield
    assert not Path(MARK).exists()
