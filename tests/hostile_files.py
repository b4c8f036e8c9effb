"""Make hostile and damaged files: `HOSTILE` has a function for each, and the pattern of its error."""

import collections
import copy
import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save
from timm_models import vit
from torch import nn

from vitviz.weights.checks import MAX_HEADER_BYTES, MAX_PICKLE_BYTES

STATE = {name: tensor.detach().clone() for name, tensor in vit(img_size=35, num_classes=0).state_dict().items()}
MARK = "it-ran"  # file that a payload creates in the working directory
BOMB = 2**28  # bytes that a bomb would allocate


class Call:
    """Object that pickles as a call of any function with any arguments."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


PAYLOAD = Call(os.system, f"touch {MARK}")


class Claim(NamedTuple):
    """Storage that a pickle claims, with or without numbers."""

    count: int


def pickled_as(value: Any, further: tuple[Any, ...] = ()) -> bytes:
    """Return a pickle in which `Claim`s are storages."""
    out = io.BytesIO()

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            claim = isinstance(value, Claim)
            return ("storage", torch.FloatStorage, "0", "cpu", value.count, *further) if claim else None

    Pickler(out, 2).dump(value)
    return out.getvalue()


def older(value: Any, keys: Any = (), numbers: bytes = b"", sys_info: Any = None) -> bytes:
    """Return a file in torch's format before 1.6."""
    sys_info = {"protocol_version": 1001, "little_endian": True} if sys_info is None else sys_info
    head = b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, sys_info))
    return head + pickled_as(value, (None,)) + pickle.dumps(list(keys), 2) + numbers


def zipped(records: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in records.items():
            archive.writestr(f"archive/{name}", content)
    return out.getvalue()


def header(entries: Any, length: int | None = None, numbers: bytes = b"") -> bytes:
    """Return a safetensors file with any entries; `length` is the claimed length of its header."""
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + numbers


def newer(value: Any, **data: bytes) -> bytes:
    """Return a file in torch's format, with any records under data/."""
    records = {"data.pkl": pickled_as(value), "byteorder": b"little", "version": b"3\n"}
    return zipped(records | {f"data/{key[1:]}": content for key, content in data.items()})


def saved(value: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


def bias(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the weights with one tensor replaced."""
    return STATE | {"norm.bias": tensor}


def saved_old(value: Any) -> bytes:
    return saved(value, _use_new_zipfile_serialization=False)


def spoiled(number: float) -> dict[str, torch.Tensor]:
    return bias(torch.where(torch.arange(60) == 7, number, STATE["norm.bias"]))


def claimed(count: int, size: int = 0) -> dict[str, Call]:
    """Return a tensor of `count` numbers whose storage claims `size` or as many."""
    storage = Claim(size or count)
    ordered: dict[str, Any] = collections.OrderedDict()
    return {"norm.bias": Call(torch._utils._rebuild_tensor_v2, storage, 0, (count,), (1,), False, ordered)}


def laughs() -> Any:
    """Return nested lists of 10 ** 12 words, in a few hundred bytes ("billion laughs")."""
    nested: Any = ["ha"] * 10
    for _ in range(12):
        nested = [nested] * 10
    return nested


def compressed_bomb() -> bytes:
    records = {"data.pkl": pickled_as(claimed(5, BOMB // 4)), "version": b"3\n", "data/0": bytes(BOMB)}
    return zipped(records, zipfile.ZIP_DEFLATED)


def overlapping_bomb() -> bytes:
    """Return an archive with many entries that share the same bytes."""
    out = io.BytesIO(saved({"norm.bias": torch.zeros(2**18)}))
    archive: Any  # entries changed by hand are written only with a private flag
    with zipfile.ZipFile(out, "a") as archive:
        first = next(record for record in archive.filelist if record.filename.endswith("data/0"))
        for index in range(BOMB // 2**20):
            record = copy.copy(first)
            record.filename = first.filename[:-1] + f"9{index}"
            archive.filelist.append(record)
        archive._didModify = True
    return out.getvalue()


HUGE = 2**40
IN_ITSELF: dict[str, Any] = {}
IN_ITSELF["model"] = IN_ITSELF
F32 = {"dtype": "F32", "shape": [60], "data_offsets": [0, 240]}
OVERLAP = {f"norm.{name}": F32 for name in ("bias", "weight")}
NAMES = [f"blocks.{index}.norm1.weight" for index in range(10_000)]
WHOLE, OLD, SAFE = saved(STATE), saved_old(STATE), save(STATE)


def shaped(*shape: int) -> bytes:
    """Return a safetensors file whose header claims a shape for 60 numbers."""
    return header({"norm.bias": F32 | {"shape": shape}}, numbers=bytes(240))


SYSTEM = r"refers to (posix|nt)\.system"
SHARED = "they share their numbers"
NOT_FINITE = r"NaN or infinity in norm\.bias"
ANOTHER = "Expected a safetensors file, got a torch.save file"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
NOISE = bytes(range(160, 256)) * 9
MODULE = r"refers to torch\.nn\.modules\.linear\.Linear.*state_dict"
SPARSE = torch.sparse_coo_tensor([[0]], [1.0], (HUGE,), check_invariants=False)
LONG_PICKLE = {"data.pkl": bytes(MAX_PICKLE_BYTES + 1), "version": b"3\n"}
DOUBLE = torch.full((60,), 1e300, dtype=torch.float64)
OTHER_NUMBERS = ("int8", "int64", "uint8", "bool", "complex64", "float8_e4m3fn", "float8_e5m2")

# name -> (suffix, function of the bytes, pattern of the error)
HOSTILE: dict[str, tuple[str, Callable[[], bytes], str]] = {
    # pickles that call functions
    "payload": (".pt", lambda: saved(STATE | {"a": PAYLOAD}), f"got other objects: it {SYSTEM}"),
    "payload alone": (".bin", lambda: saved(PAYLOAD), SYSTEM),
    "older payload": (".pth", lambda: saved_old(STATE | {"a": PAYLOAD}), SYSTEM),
    "payload as a plain pickle": (".pt", lambda: pickle.dumps(PAYLOAD, 2), SYSTEM),
    "payload in protocol 4": (".pt", lambda: pickle.dumps(PAYLOAD, 4), "Expected a torch.save file"),
    "payload as text": (".pt", lambda: pickle.dumps(PAYLOAD, 0), "got text that begins"),
    "payload in what is said of the system": (".pt", lambda: older({}, sys_info=PAYLOAD), SYSTEM),
    "payload among the storages": (".pt", lambda: older({}, keys=[PAYLOAD]), SYSTEM),
    "eval": (
        ".pt",
        lambda: saved({"a": Call(eval, f"open({MARK!r}, 'w')")}),
        r"refers to (__builtin__\.|builtins\.)?eval",
    ),
    "a whole module": (".pt", lambda: saved(nn.Linear(2, 3)), MODULE),
    # pickles that PyTorch's own reader accepts
    "sparse": (".pt", lambda: saved(bias(SPARSE)), "got torch.sparse_coo on cpu in"),
    "laughs": (".pt", lambda: saved({"model": laughs()}), "Expected tensors by name"),
    # shapes
    "terabytes by steps of 0": (".pt", lambda: saved(bias(torch.zeros(1).expand(HUGE))), SHARED),
    "older, terabytes by steps of 0": (".pt", lambda: saved_old(bias(torch.zeros(1).expand(HUGE))), SHARED),
    "terabytes by a shape": (".pt", lambda: newer(claimed(HUGE, 4), _0=bytes(16)), "is damaged"),
    "more numbers than there are": (".pt", lambda: newer(claimed(HUGE), _0=bytes(16)), "is damaged"),
    "older, more than there are": (".pt", lambda: older(claimed(HUGE), ["0"], struct.pack("<Q", HUGE)), "is damaged"),
    "many names for the same numbers": (".pt", lambda: saved(STATE | dict.fromkeys(NAMES, torch.zeros(2**18))), SHARED),
    "no number in a huge tensor": (".pt", lambda: saved(bias(torch.zeros(0, HUGE))), r"got \(0, 1099511"),
    "no number, safe": (".safetensors", lambda: save(bias(torch.zeros(0, HUGE))), r"\(0, 1099511627776\) for 'norm\.b"),
    # archives
    "zip bomb": (".pt", compressed_bomb, "compressed entries"),
    "zip bomb of one page": (".pt", overlapping_bomb, "entries that claim"),
    "a long pickle": (".pt", lambda: zipped(LONG_PICKLE), "besides tensor data"),
    "a zip of something else": (".pt", lambda: zipped({"a.txt": b"a"}), "is damaged"),
    # headers of safetensors
    "a long header": (".safetensors", lambda: header({"a": "b" * MAX_HEADER_BYTES}), "a header of 4,194,"),
    "a header of 2 GB": (".safetensors", lambda: header({}, 2 * 2**30), "a header of 2,147,483,648 bytes"),
    "a header without end": (".safetensors", lambda: header({}, 2**64 - 1), "a header of"),
    "a header that is a list": (".safetensors", lambda: header([1, 2, 3]), "damaged"),
    "a header without numbers": (".safetensors", lambda: header({"norm.bias": F32}), "damaged"),
    "a header of absurd shapes": (".safetensors", lambda: shaped(HUGE, HUGE), "damaged"),
    "a header of shapes below zero": (".safetensors", lambda: shaped(-60), "damaged"),
    "a header whose tensors overlap": (".safetensors", lambda: header(OVERLAP, numbers=bytes(240)), "damaged"),
    # numbers
    "NaN": (".pt", lambda: saved(spoiled(float("nan"))), NOT_FINITE),
    "NaN, older": (".bin", lambda: saved_old(spoiled(float("nan"))), NOT_FINITE),
    "NaN, safe": (".safetensors", lambda: save(spoiled(float("nan"))), NOT_FINITE),
    "infinity": (".pt", lambda: saved(spoiled(float("-inf"))), NOT_FINITE),
    "infinity, safe": (".safetensors", lambda: save(spoiled(float("inf"))), NOT_FINITE),
    "infinity in single precision": (".pt", lambda: saved(bias(DOUBLE)), NOT_FINITE),
    **{
        f"{dtype}{suffix}": (
            suffix,
            lambda dtype=dtype, write=write: write(bias(torch.zeros(60).to(getattr(torch, dtype)))),
            rf"Expected weights in torch.float64.*got torch.{dtype} in 'norm\.bias'",
        )
        for dtype in OTHER_NUMBERS
        for suffix, write in ((".pt", saved), (".safetensors", save))
    },
    **{
        f"cut to {share:.1%}{suffix}{'' if whole is not OLD else ' older'}": (
            suffix,
            lambda whole=whole, share=share: whole[: int(len(whole) * share)],
            "cut short|damaged",
        )
        for suffix, whole in ((".pt", WHOLE), (".pt", OLD), (".safetensors", SAFE))
        for share in (0.001, 0.03, 0.5, 0.999)
    },
    # unexpected contents
    "in itself": (".pt", lambda: saved(IN_ITSELF), "at most 2 keys deep"),
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
    # no weights
    "empty": (".pt", lambda: b"", "empty file"),
    "empty, safe": (".safetensors", lambda: b"", "empty file"),
    "a pointer": (".pt", lambda: POINTER, "git lfs pull"),
    "a pointer, safe": (".safetensors", lambda: POINTER, "git lfs pull"),
    "a web page": (".safetensors", lambda: b"\n<!DOCTYPE html><html><body>Sign in</body></html>", "web page"),
    "an error as XML": (".pth", lambda: b"<?xml version='1.0'?><Error>Denied</Error>", "web page"),
    "a text": (".bin", lambda: b"Not found\n", "got text that begins with 'Not found"),
    "noise": (".pt", lambda: NOISE, "Expected a torch.save file"),
    "noise, safe": (".safetensors", lambda: NOISE, "cut short"),
    "safetensors by another name": (".pt", lambda: SAFE, "Expected a torch.save file, got another"),
    "torch's by another name": (".safetensors", lambda: WHOLE, ANOTHER),
    "older by another name": (".safetensors", lambda: OLD, ANOTHER),
    "an archive of numpy": (".npz", lambda: WHOLE, "Expected a file that ends in .safetensors"),
}


def hostile(folder: Path) -> dict[str, Path]:
    paths = {}
    for index, (name, (suffix, make, _)) in enumerate(HOSTILE.items()):
        paths[name] = folder / f"{index}{suffix}"
        paths[name].write_bytes(make())
    return paths


def good(folder: Path) -> list[Path]:
    """Write the weights that the hostile files imitate, in each format, into a folder."""
    contents = {folder / "a.pt": WHOLE, folder / "a.pth": OLD, folder / "a.safetensors": SAFE}
    for path, content in contents.items():
        path.write_bytes(content)
    return list(contents)
