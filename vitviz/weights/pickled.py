"""Files that `torch.save` wrote, looked at before they are opened.

Such a file is a pickle: a small program. PyTorch's `weights_only=True` runs only what it knows, but what it knows can
still take terabytes (a tensor whose steps are 0, a buffer of any length). So the program is first read here as a text,
by a reader that calls nothing: it follows the few steps that `torch.save` writes for tensors in containers, refuses
every other, and ends with the shape, type and place of each tensor. Only a file that passes is given to `torch.load`.
"""

from __future__ import annotations

import io
import math
import os
import pickletools
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from vitviz.weights.checks import CheckpointError, Entry

MAX_PICKLE_BYTES = 4 * 2**20  # beside the numbers; that of a ViT-g with its optimiser has half a megabyte
MAX_STEPS = 10**6  # thirty for each tensor
MAX_SIDES = 8  # of a tensor's shape; weights have four at most

ZIP, PICKLE = b"PK\x03\x04", b"\x80"  # how the two kinds of file begin; the second is that of torch before 1.6
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # the first two pickles of the older kind

# Bytes of one number, and the type in the words of safetensors.
_STORAGES = {
    "DoubleStorage": (8, "F64"),
    "FloatStorage": (4, "F32"),
    "HalfStorage": (2, "F16"),
    "BFloat16Storage": (2, "BF16"),
    "LongStorage": (8, "I64"),
    "IntStorage": (4, "I32"),
    "ShortStorage": (2, "I16"),
    "CharStorage": (1, "I8"),
    "ByteStorage": (1, "U8"),
    "BoolStorage": (1, "BOOL"),
    "ComplexFloatStorage": (8, "C64"),
    "ComplexDoubleStorage": (16, "C128"),
    "UntypedStorage": (1, "bytes"),
}
_DICT, _PARAMETER = "collections OrderedDict", "torch._utils _rebuild_parameter"
_TENSORS = ("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3")
_ADVICE = 'Save the weights alone: torch.save({"state_dict": model.state_dict()}, path).'


class _Refused(Exception):
    """What is wrong, as the rest of a sentence that begins with the file's name."""


@dataclass(frozen=True)
class _Global:
    """A name of Python that the pickle asks for. It is compared, never looked up."""

    name: str


@dataclass(frozen=True)
class Storage:
    """A row of numbers in the file that tensors look into."""

    key: str
    count: int
    item: int  # bytes of one number
    kind: str


def outline(path: Path) -> Any:
    """What a file of `torch.save` holds, with an `Entry` for each tensor: nothing is run, no number is read.

    Raises:
        CheckpointError: for anything but tensors, numbers and words in dicts, lists and tuples; for tensors that are
            larger than what the file holds for them; for damaged files.
    """
    try:
        with path.open("rb") as file:
            return _outline_zip(file) if file.read(4) == ZIP else _outline_older(file)
    except _Refused as why:
        raise CheckpointError(f"{str(path)!r} {why}") from why
    except (zipfile.BadZipFile, OSError, ValueError, LookupError, EOFError, struct.error, RuntimeError) as error:
        raise CheckpointError(f"{str(path)!r} is damaged or cut short. Fetch or save it again. ({error})") from error


def load(path: Path) -> Any:
    """The same with tensors. Call `outline` first and check what it says."""
    with path.open("rb") as file:
        newer = file.read(4) == ZIP
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=newer)
    except Exception as error:
        # How torch refuses what is no tensor. The class lives in a module that nothing here imports.
        known = isinstance(error, OSError | ValueError | RuntimeError | EOFError)
        if not known and type(error).__name__ != "UnpicklingError":
            raise
        why = f"cannot be read, though its description is sound: {error!s:.300}"
        raise CheckpointError(f"{str(path)!r} {why}") from error


# --- the two kinds of file


def _outline_zip(file: BinaryIO) -> Any:
    """Torch 1.6 and later: an archive without compression, the pickle and each storage a record of its own."""
    size = file.seek(0, os.SEEK_END)
    _check_directory(file, size)
    with zipfile.ZipFile(file) as archive:
        records = archive.infolist()
        if any(record.compress_type != zipfile.ZIP_STORED or record.flag_bits & 1 for record in records):
            raise _Refused("is a zip file with compressed entries, which torch.save never writes: it is not opened.")
        held = sum(record.file_size for record in records)
        if held > size or min(record.header_offset for record in records):
            raise _Refused(f"is a zip file of {size:,} bytes whose entries claim {held:,}: it is not opened.")
        by_name = {record.filename.partition("/")[2].casefold(): record for record in records}
        if len(by_name) != len(records) or len({record.filename.partition("/")[0] for record in records}) != 1:
            raise _Refused("is a zip file with two entries of one name or in two folders: it is not opened.")
        if "constants.pkl" in by_name:
            raise _Refused(f"is a TorchScript program, not weights. {_ADVICE}")
        if "data.pkl" not in by_name:
            raise _Refused("is a zip file without data.pkl: no file of torch.save.")
        if by_name["data.pkl"].file_size > MAX_PICKLE_BYTES:
            raise _Refused(f"has more than {MAX_PICKLE_BYTES:,} bytes beside its numbers. {_ADVICE}")
        text = archive.read(by_name["data.pkl"])
    reader = _Reader()
    found = reader.read(io.BytesIO(text))
    for storage in reader.storages.values():
        record = by_name.get(f"data/{storage.key}".casefold())
        if record is None or record.file_size != storage.count * storage.item:
            came = "none" if record is None else f"{record.file_size:,} bytes"
            raise _Refused(
                f"is damaged: a tensor needs {storage.count * storage.item:,} bytes in data/{storage.key:.40}, but "
                f"there is {came}."
            )
    return found


def _check_directory(file: BinaryIO, size: int) -> None:
    """The archive's table of contents lies where every reader looks for it, and is small."""
    file.seek(max(0, size - 98))
    end = file.read()
    if len(end) < 22 or end[-22:-18] != b"PK\x05\x06" or end[-2:] != b"\0\0":
        raise _Refused("is cut short, or no file of torch.save: a zip file without its end. Fetch or save it again.")
    length, start = struct.unpack("<II", end[-10:-2])
    behind = 22
    if end[-42:-38] == b"PK\x06\x07":  # the form for large files: a longer record, and where it is
        if end[:4] != b"PK\x06\x06":
            raise _Refused("is a damaged zip file. Fetch or save it again.")
        length, start = struct.unpack("<QQ", end[40:56])
        behind = 98
    if length > MAX_PICKLE_BYTES or start + length + behind != size:
        raise _Refused("is a damaged zip file: its table of contents is not where it should be, or too long.")
    file.seek(0)


def _outline_older(file: BinaryIO) -> Any:
    """Torch before 1.6: five pickles, then the numbers of each storage behind their count."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    start = io.BytesIO(file.read(MAX_PICKLE_BYTES))
    reader = _Reader()
    # One after the other: a pickle that is no file of torch.save ends here, with the name of what it wants to call.
    head = [reader.read(start)]
    if type(head[0]) is not int or head[0] != _MAGIC:
        raise _Refused("is a pickle, but none of torch.save: it is not opened.")
    head += [reader.read(start) for _ in range(2)]
    if head[1] != _PROTOCOL or not isinstance(head[2], dict) or head[2].get("little_endian") is not True:
        raise _Refused("is a file of torch.save in a form that is not known here.")
    found, keys = reader.read(start), reader.read(start)
    if not isinstance(keys, list) or any(type(key) is not str for key in keys):
        raise _Refused("is damaged: the list of its storages is no list of names.")
    if sorted(keys) != sorted(reader.storages):
        raise _Refused("is damaged: the list of its storages and its tensors do not agree.")
    at = start.tell()
    for key in keys:
        storage = reader.storages[key]
        file.seek(at)
        if (count := int.from_bytes(file.read(8), "little")) != storage.count:
            raise _Refused(f"is damaged or cut short: a tensor needs {storage.count:,} numbers, the file has {count:,}")
        at += 8 + storage.count * storage.item
    if at > size:
        raise _Refused(f"is cut short: its tensors need {at:,} bytes, and it is {size:,} long. Fetch it again.")
    return found


# --- the pickle, as a text


class _Reader:
    """Follows a pickle without calling anything. What it may not meet ends in `_Refused`."""

    def __init__(self) -> None:
        self.storages: dict[str, Storage] = {}
        self._steps = 0
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def read(self, file: BinaryIO) -> Any:
        """The object of one pickle; `file` is left behind its end."""
        self._stack, self._marks, self._memo = [], [], {}
        for code, value, _ in pickletools.genops(file):
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise _Refused(f"takes more than {MAX_STEPS:,} steps to read, far more than weights do.")
            self._step(code.name, value)
        return self._stack.pop()

    def _step(self, code: str, value: Any) -> None:
        stack = self._stack
        if code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        elif code in _EMPTY:
            stack.append(_EMPTY[code]())
        elif code in _VALUES:
            stack.append(value)
        elif code == "GLOBAL":
            stack.append(_known(value))
        elif code in ("BINPUT", "LONG_BINPUT"):
            self._memo[value] = stack[-1]
        elif code in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[value])
        elif code == "MARK":
            self._marks.append(stack)
            self._stack = []
        elif code == "TUPLE":
            self._stack = self._marks.pop()
            self._stack.append(tuple(stack))
        elif code in _TUPLES:
            items = [stack.pop() for _ in range(_TUPLES[code])]
            stack.append(tuple(reversed(items)))
        elif code in ("APPEND", "APPENDS", "SETITEM", "SETITEMS"):
            self._fill(code)
        elif code == "BINPERSID":
            stack.append(self._storage(stack.pop()))
        elif code == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(_reduced(function, arguments))
        elif code == "BUILD":
            state = stack.pop()
            # What PyTorch keeps beside a state dict: versions of its modules.
            if type(stack[-1]) is not dict or type(state) is not dict or set(state) != {"_metadata"}:
                raise _Refused(f"sets attributes of objects: it holds more than tensors. It is not opened. {_ADVICE}")
        elif code not in ("PROTO", "STOP") or (code == "PROTO" and value != 2):
            raise _Refused(
                f"has a step {code}{'' if value is None else f' {value!r:.80}'} that torch.save does not write for "
                f"tensors: it is not opened. {_ADVICE}"
            )

    def _fill(self, code: str) -> None:
        """Items of a list or a dict, one or those since the last mark."""
        if code.endswith("S"):
            items, self._stack = self._stack, self._marks.pop()
        else:
            items = [self._stack.pop() for _ in range(2 if code == "SETITEM" else 1)][::-1]
        target = self._stack[-1]
        if code.startswith("APPEND") and type(target) is list:
            target.extend(items)
        elif code.startswith("SETITEM") and type(target) is dict and len(items) % 2 == 0:
            for key, item in zip(items[::2], items[1::2], strict=True):
                if not isinstance(key, str | int | float | None):
                    raise _Refused(f"has a dict with a {type(key).__name__} for a key: expected names of tensors.")
                target[key] = item
        else:
            raise _Refused("is damaged: it puts items where there is no list or dict.")

    def _storage(self, told: Any) -> Storage:
        """Where numbers lie: ("storage", type, key, device, count), and in older files a view of it, which is None."""
        if type(told) is not tuple or len(told) not in (5, 6) or told[0] != "storage" or told[5:] not in ((), (None,)):
            raise _Refused("is damaged, or an old file with views of storages: save it again with a newer torch.")
        kind, key, device, count = told[1:5]
        item, name = _STORAGES.get(kind.name.rpartition(" ")[2] if isinstance(kind, _Global) else "", (0, ""))
        if not item or type(key) is not str or type(device) is not str or type(count) is not int or count < 0:
            raise _Refused("is damaged: what it says about its numbers is not understood.")
        storage = Storage(key, count, item, name)
        if self.storages.setdefault(key, storage) != storage:
            raise _Refused(f"is damaged: it describes its storage {key:.40} in two ways.")
        return storage


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list}
_VALUES = {"BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _known(name: str) -> _Global:
    """A name that `torch.save` writes for tensors in containers."""
    module, _, rest = name.partition(" ")
    kinds = _STORAGES if module in ("torch", "torch.storage") else {}
    if name not in (_DICT, _PARAMETER, *_TENSORS) and rest not in kinds and not name.startswith("torch float8_"):
        what = f"{module}.{rest}"
        raise _Refused(
            f"holds more than tensors: it asks for {what:.120}. It is not opened and nothing of it was run. {_ADVICE}"
        )
    return _Global(name)


def _reduced(function: Any, arguments: Any) -> Any:
    """What a call stands for: an ordered dict, a tensor, or a tensor marked as a parameter."""
    name = function.name if isinstance(function, _Global) else ""
    if name == _DICT and arguments == ():
        return {}
    if type(arguments) is tuple and name in _TENSORS:
        return _tensor(arguments)
    if type(arguments) is tuple and name == _PARAMETER and len(arguments) == 3 and isinstance(arguments[0], Entry):
        return arguments[0]
    raise _Refused(f"holds more than tensors: a call of {name or 'what is no function'}. It is not opened. {_ADVICE}")


def _tensor(told: tuple[Any, ...]) -> Entry:
    """(storage, offset, size, stride, requires_grad, hooks[, type][, None]) -> the tensor, if its storage holds it."""
    if len(told) < 6 or not isinstance(told[0], Storage) or type(told[4]) is not bool or told[5] != {}:
        raise _Refused(f"holds a tensor with more than numbers in it: it is not opened. {_ADVICE}")
    storage, offset, size, stride, *_ = told
    kind, more = storage.kind, list(told[6:])
    if kind == "bytes":  # newer types name themselves
        if not more or not isinstance(more[0], _Global):
            raise _Refused("is damaged: a tensor without a type.")
        kind = more.pop(0).name.rpartition(" ")[2]
    if any(extra is not None for extra in more) or not all(type(shape) is tuple for shape in (size, stride)):
        raise _Refused(f"holds a tensor with more than numbers in it: it is not opened. {_ADVICE}")
    sides = (offset, *size, *stride)
    if len(size) != len(stride) or len(size) > MAX_SIDES or any(type(side) is not int for side in sides):
        raise _Refused(f"is damaged: a tensor whose shape is not up to {MAX_SIDES} whole numbers.")
    if not all(0 <= side < 2**63 for side in sides):
        raise _Refused(f"claims a tensor of shape {size} with steps {stride} from {offset}. It is not opened.")
    count = math.prod(size)
    last = offset + sum((side - 1) * step for side, step in zip(size, stride, strict=True)) if count else offset - 1
    if count > storage.count or last >= storage.count:
        raise _Refused(
            f"claims a tensor of shape {size}, {count:,} numbers with steps {stride}, but holds "
            f"{storage.count:,} for it. It is not opened."
        )
    return Entry(size, kind)
