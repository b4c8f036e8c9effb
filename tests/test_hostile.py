"""Files that mean harm, or are broken: each is refused in words, runs nothing, and takes no more than its own length.

`HOSTILE` makes them, one function each. One test reads them all for the words; one reads them in a process of its own
and measures the memory.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import io
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from timm_models import vit
from torch import nn

import vitviz
from vitviz.weights import pickled
from vitviz.weights.checks import MAX_HEADER_BYTES, CheckpointError
from vitviz.weights.files import load_file
from vitviz.weights.source import ConvertError

MODEL = vit(img_size=35, num_classes=0)
STATE = {name: tensor.detach().clone() for name, tensor in MODEL.state_dict().items()}
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


def header(entries: Any, length: int | None = None, numbers: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + numbers


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
    with zipfile.ZipFile(out, "a") as archive:
        first = next(record for record in archive.filelist if record.filename.endswith("data/0"))
        for index in range(BOMB // 2**20):
            record = copy.copy(first)
            record.filename = first.filename[:-1] + f"9{index}"
            archive.filelist.append(record)
        archive._didModify = True  # type: ignore[attr-defined]
    return out.getvalue()


def two_pickles() -> bytes:
    """Two records of one name but for its case: readers that do not tell cases apart may take either."""
    harmless = pickled_as({"norm.bias": 3})
    return zipped({"DATA.PKL": pickled_as(PAYLOAD), "data.pkl": harmless, "version": b"3\n"})


HUGE = 2**40
F32 = {"dtype": "F32", "shape": [60], "data_offsets": [0, 240]}
WHOLE, OLD = saved(STATE), saved(STATE, _use_new_zipfile_serialization=False)
SAFE = save(STATE)

# name -> (end of the file's name, its bytes, words of the refusal)
HOSTILE: dict[str, tuple[str, Callable[[], bytes], str]] = {
    # pickles that call
    "payload": (".pt", lambda: saved(STATE | {"a": PAYLOAD}), r"more than tensors: it asks for (posix|nt)\.system"),
    "payload alone": (".bin", lambda: saved(PAYLOAD), r"asks for (posix|nt)\.system"),
    "older payload": (
        ".pth",
        lambda: saved(STATE | {"a": PAYLOAD}, _use_new_zipfile_serialization=False),
        r"asks for (posix|nt)\.system",
    ),
    "payload as a plain pickle": (".pt", lambda: pickle.dumps(PAYLOAD, 2), r"asks for (posix|nt)\.system"),
    "payload in protocol 4": (".pt", lambda: pickle.dumps(PAYLOAD, 4), "PROTO 4"),
    "payload as text": (".pt", lambda: pickle.dumps(PAYLOAD, 0), "is text, not weights"),
    "payload in what is said of the system": (".pt", lambda: older({}, sys_info=PAYLOAD), r"\.system"),
    "payload among the storages": (".pt", lambda: older({}, keys=[PAYLOAD]), r"\.system"),
    "payload in another case": (".pt", two_pickles, "two entries of one name"),
    "eval": (".pt", lambda: saved({"a": Call(eval, f"open({MARK!r}, 'w')")}), r"asks for __builtin__\.eval"),
    "a whole module": (
        ".pt",
        lambda: saved(nn.Linear(2, 3)),
        r"asks for torch\.nn\.modules\.linear\.Linear.*state_dict",
    ),
    "a program of TorchScript": (".pt", lambda: zipped({"constants.pkl": b"", "data.pkl": b"."}), "TorchScript"),
    # pickles that PyTorch's own reader would follow
    "a buffer of any length": (".pt", lambda: saved({"a": Call(bytearray, BOMB)}), "asks for .*bytearray"),
    "a storage of any length": (".pt", lambda: newer({"a": Call(torch.FloatStorage, BOMB)}), "a call of torch"),
    "a dict copied many times": (".pt", lambda: saved({"a": Call(collections.OrderedDict, [("a", 1)])}), "a call of"),
    "attributes": (".pt", lambda: saved({"a": collections.Counter("aab")}), "asks for collections.Counter"),
    "sparse": (
        ".pt",
        lambda: saved(changed("norm.bias", torch.sparse_coo_tensor([[0]], [1.0], (HUGE,), check_invariants=False))),
        "_rebuild_sparse_tensor",
    ),
    "laughs": (".pt", lambda: saved({"model": laughs()}), "expected tensors by name"),
    "many steps": (".pt", lambda: newer([None] * 1_100_000), "steps to read"),
    # shapes
    "terabytes by steps of 0": (
        ".pt",
        lambda: saved(changed("norm.bias", torch.zeros(1).expand(HUGE))),
        r"claims a tensor of shape \(1099511627776,\).*but holds 1 ",
    ),
    "terabytes by a shape": (
        ".pt",
        lambda: newer({"norm.bias": rebuilt(Claim("0", 4), 0, (HUGE,), (1,))}, _0=bytes(16)),
        r"claims a tensor of shape \(1099511627776,\)",
    ),
    "far behind the numbers": (
        ".pt",
        lambda: newer({"norm.bias": rebuilt(Claim("0", 4), 2**60, (1,), (1,))}, _0=bytes(16)),
        "claims a tensor",
    ),
    "far by its steps": (
        ".pt",
        lambda: newer({"norm.bias": rebuilt(Claim("0", 4), 0, (2, 2), (2**61, 1))}, _0=bytes(16)),
        "claims a tensor",
    ),
    "before the numbers": (
        ".pt",
        lambda: newer({"norm.bias": rebuilt(Claim("0", 4), -1, (2,), (1,))}, _0=bytes(16)),
        "claims a tensor",
    ),
    "beyond 64 bits": (
        ".pt",
        lambda: newer({"norm.bias": rebuilt(Claim("0", 4), 0, (2**70, 0), (1, 1))}, _0=bytes(16)),
        "claims a tensor",
    ),
    "a shape of words": (
        ".pt",
        lambda: newer({"norm.bias": rebuilt(Claim("0", 4), 0, (tuple(laughs()),), (1,))}, _0=bytes(16)),
        "whose shape is not",
    ),
    "a shape of many sides": (
        ".pt",
        lambda: newer({"norm.bias": rebuilt(Claim("0", 4), 0, (2,) * 999, (0,) * 999)}, _0=bytes(16)),
        "whose shape is not",
    ),
    "more numbers than there are": (
        ".pt",
        lambda: newer({"norm.bias": rebuilt(Claim("0", HUGE), 0, (HUGE,), (1,))}, _0=bytes(16)),
        "needs 4,398,046,511,104 bytes in data/0, but there is 16 bytes",
    ),
    "numbers that are not there": (
        ".pt",
        lambda: newer({"norm.bias": rebuilt(Claim("7", 4), 0, (4,), (1,))}, _0=bytes(16)),
        "but there is none",
    ),
    "one storage in two ways": (
        ".pt",
        lambda: newer([rebuilt(Claim("0", 4), 0, (4,), (1,)), rebuilt(Claim("0", 2), 0, (2,), (1,))], _0=bytes(16)),
        "in two ways",
    ),
    "older, more numbers than there are": (
        ".pt",
        lambda: older({"norm.bias": rebuilt(Claim("a", HUGE), 0, (HUGE,), (1,))}, ["a"], struct.pack("<Q", HUGE)),
        "cut short: its tensors need",
    ),
    "older, other numbers than said": (
        ".pt",
        lambda: older(
            {"norm.bias": rebuilt(Claim("a", HUGE), 0, (HUGE,), (1,))}, ["a"], struct.pack("<Q", 4) + b"12" * 8
        ),
        "damaged or cut short",
    ),
    "older, terabytes by steps of 0": (
        ".pt",
        lambda: saved(changed("norm.bias", torch.zeros(1).expand(HUGE)), _use_new_zipfile_serialization=False),
        "claims a tensor",
    ),
    "many names for the same numbers": (".pt", lambda: saved(shared_names()), "they share their numbers"),
    "no number in a huge tensor": (
        ".pt",
        lambda: saved(changed("norm.bias", torch.zeros(0, HUGE))),
        r"is \(0, 1099511",
    ),
    "no number in a huge tensor, safe": (
        ".safetensors",
        lambda: save(changed("norm.bias", torch.zeros(0, HUGE))),
        r"expected numbers in every tensor, but 'norm\.bias'",
    ),
    # archives
    "zip bomb": (".pt", compressed_bomb, "compressed entries"),
    "zip bomb of one page": (".pt", overlapping_bomb, "entries claim"),
    "bytes in front": (".pt", lambda: WHOLE[:60] + WHOLE, "damaged|entries claim"),
    "bytes behind": (".pt", lambda: WHOLE + b"\0", "without its end"),
    "a long pickle": (
        ".pt",
        lambda: zipped({"data.pkl": bytes(pickled.MAX_PICKLE_BYTES + 1), "version": b"3\n"}),
        "beside its numbers",
    ),
    "a zip of something else": (".pt", lambda: zipped({"a.txt": b"a"}), r"without data\.pkl"),
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
                changed("norm.bias", torch.zeros(60).to(dtype))
            ),
            rf"expected weights of F64.*got {kind} in 'norm\.bias'",
        )
        for dtype, kind in (
            (torch.int8, "I8"),
            (torch.int64, "I64"),
            (torch.uint8, "U8"),
            (torch.bool, "BOOL"),
            (torch.complex64, "C64"),
            (torch.float8_e4m3fn, "(float8_e4m3fn|F8_E4M3)"),
            (torch.float8_e5m2, "(float8_e5m2|F8_E5M2)"),
        )
        for suffix in (".pt", ".safetensors")
    },
    # cut short
    **{
        f"cut to {share:.1%}{suffix}{'' if whole is not OLD else ' older'}": (
            suffix,
            lambda whole=whole, share=share: whole[: int(len(whole) * share)],
            "cut short|damaged|without its end",
        )
        for suffix, whole in ((".pt", WHOLE), (".pt", OLD), (".safetensors", SAFE))
        for share in (0.001, 0.03, 0.5, 0.999)
    },
    # not what was expected in it
    "in itself": (".pt", lambda: saved(in_itself()), "at most 2 keys deep"),
    "four deep": (".pt", lambda: saved({"model": {"model": {"model": {"model": STATE}}}}), "at most 2 keys deep"),
    "numbers for names": (".pt", lambda: saved(dict(enumerate(STATE.values()))), "got the key 0"),
    "nothing for a name": (".pt", lambda: saved({None: torch.zeros(2)}), "got the key None"),
    "a tuple for a name": (".pt", lambda: saved({(1, 2): torch.zeros(2)}), "a dict with a tuple for a key"),
    "a list": (".pt", lambda: saved(list(STATE.values())), "got a list"),
    "a tensor": (".pt", lambda: saved(torch.zeros(3)), "got a tensor"),
    "a number": (".pt", lambda: saved(3), "got a int"),
    "no tensors": (".pt", lambda: saved({}), "an empty dict"),
    "no tensors below": (".pt", lambda: saved({"state_dict": {}}), "an empty dict under 'state_dict'"),
    "no tensors, safe": (".safetensors", lambda: save({}), "there is none"),
    "settings beside tensors": (".pt", lambda: saved(STATE | {"epoch": 3}), r"epoch \(int\)"),
    # no weights at all
    "empty": (".pt", lambda: b"", "is empty"),
    "empty, safe": (".safetensors", lambda: b"", "is empty"),
    "a pointer": (".pt", lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
    "a web page": (".safetensors", lambda: b"\n<!DOCTYPE html><html><body>Sign in</body></html>", "web page"),
    "an error as XML": (".pth", lambda: b"<?xml version='1.0'?><Error>Denied</Error>", "web page"),
    "a text": (".bin", lambda: b"Not found\n", "is text, not weights: it begins with 'Not found"),
    "noise": (".pt", lambda: bytes(range(160, 256)) * 9, "no file of torch.save"),
    "noise, safe": (".safetensors", lambda: bytes(range(160, 256)) * 9, "cut short or no safetensors"),
    "safetensors by another name": (".pt", lambda: SAFE, "is a safetensors file.*Name it .safetensors"),
    "torch's by another name": (".safetensors", lambda: WHOLE, "is a file of torch.save.*Name it .pt"),
    "older by another name": (".safetensors", lambda: OLD, "is a file of torch.save.*Name it .pt"),
    "an archive of numpy": (".npz", lambda: WHOLE, "expected a file that ends in .safetensors"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("hostile")
    made = {}
    for index, (name, (suffix, make, _)) in enumerate(HOSTILE.items()):
        made[name] = folder / f"{index}{suffix}"
        made[name].write_bytes(make())
    return made


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert not Path(MARK).exists()


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_in_words(files: dict[str, Path], name: str) -> None:
    with pytest.raises(CheckpointError, match=HOSTILE[name][2]) as refusal:
        vitviz.load(files[name], heads=5)
    text = str(refusal.value)
    assert len(text) < 1200
    assert "allocate" not in text  # nobody tried
    assert repr(str(files[name])) in text


def test_the_payloads_work_where_nobody_looks(files: dict[str, Path]) -> None:
    """They are no blanks: opened without care each of them runs."""
    for name in (
        "payload",
        "older payload",
        "payload alone",
        "payload as a plain pickle",
        "payload in protocol 4",
        "eval",
    ):
        if "pickle" in name or "protocol" in name:
            pickle.loads(files[name].read_bytes())
        else:
            torch.load(files[name], weights_only=False)
        Path(MARK).unlink()


def test_a_good_file_passes_every_check(tmp_path: Path) -> None:
    for name, content in (("a.pt", WHOLE), ("a.pth", OLD), ("a.safetensors", SAFE)):
        (tmp_path / name).write_bytes(content)
        model = vitviz.load(tmp_path / name, heads=5)
        assert torch.equal(model.norm.weight, STATE["norm.weight"])


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pt").mkdir()
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        vitviz.load(tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match="is a folder"):
        load_file(tmp_path / "x.pt")
    for name in ("y.pt", "y.safetensors"):
        with pytest.raises(CheckpointError, match=rf"y\.{name[2:]}' does not exist"):
            vitviz.load(tmp_path / name)


LIMITED = """
import json, re, resource, sys
import torch, vitviz
torch.set_num_threads(1)

def mapped():
    try:
        return int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
    except OSError:  # no Linux: without a limit, the words alone are compared
        return None

good, files, room, heads = json.loads(sys.stdin.read())
for path in good:  # what is imported and set up on the way is not the files' doing
    vitviz.load(path, heads=5)
said = {}
for name, path in files.items():
    if (now := mapped()) is not None:
        resource.setrlimit(resource.RLIMIT_AS, (now + room, resource.RLIM_INFINITY))
    try:
        vitviz.load(path, heads=heads)
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"
print(json.dumps(said))
"""


def said_within(room: int, good: list[Path], files: dict[str, Path], heads: int | None = 5) -> dict[str, str]:
    """The refusal of each file in a process that cannot map more than `room` bytes beside what it has."""
    named = {name: str(path) for name, path in files.items()}
    question = json.dumps([[str(path) for path in good], named, room, heads])
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}  # else the C library maps 64 MB for each thread, or does not
    answer = subprocess.run(
        [sys.executable, "-c", LIMITED], input=question, capture_output=True, text=True, check=True, env=environment
    )
    said: dict[str, str] = json.loads(answer.stdout.splitlines()[-1])
    return said


@pytest.fixture
def good(tmp_path: Path) -> list[Path]:
    for name, content in (("a.pt", WHOLE), ("a.pth", OLD), ("a.safetensors", SAFE)):
        (tmp_path / name).write_bytes(content)
    return [tmp_path / name for name in ("a.pt", "a.pth", "a.safetensors")]


ROOM = 40 * 2**20  # the longest hostile file has 4 MB; Python and its libraries take some for themselves


def test_it_takes_no_more_memory_than_it_is_long(files: dict[str, Path], good: list[Path]) -> None:
    """With little room for more, every refusal is the same: nobody asked for what was not there."""
    assert max(path.stat().st_size for path in files.values()) < ROOM / 5 < ROOM < BOMB / 5
    said = said_within(ROOM, good, files)
    assert set(said) == set(files)
    for name, words in said.items():
        assert re.search(f"^CheckpointError: .*{HOSTILE[name][2]}", words, re.DOTALL), f"{name}: {words}"


def test_the_room_is_too_small_for_a_bomb(good: list[Path], tmp_path: Path) -> None:
    """The measure itself: 256 MB of honest weights do not fit into it."""
    save_file(STATE | {"norm.bias": torch.zeros(BOMB // 4)}, tmp_path / "b.safetensors")
    (words,) = said_within(ROOM, good, {"b": tmp_path / "b.safetensors"}).values()
    assert re.search("alloc|memory|mmap", words), words


@pytest.mark.parametrize("name", ["b.pt", "b.pth", "b.safetensors"])
def test_a_long_file_takes_about_as_much_memory_as_it_is_long(good: list[Path], tmp_path: Path, name: str) -> None:
    """54 MB of weights with a NaN in the last of them: the file itself, one copy, and a part of the checking."""
    wide = vitviz.ViTConfig(image_size=(32, 32), patch_size=16, width=1024, depth=1, heads=16, classes=0)
    with torch.device("meta"):
        state = {name: torch.ones(tensor.shape, device="cpu") for name, tensor in vitviz.ViT(wide).state_dict().items()}
    state["norm.bias"][5] = float("nan")
    path = tmp_path / name
    if name.endswith("safetensors"):
        save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=name.endswith(".pt"))
    size = path.stat().st_size
    assert size > 5e7
    said = said_within(int(3.6 * size), good, {name: path}, heads=None)
    assert "NaN or infinity in norm.bias" in said[name]
    assert "NaN" not in said_within(size // 2, good, {name: path}, heads=None).get(name, "")


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_change_of_a_file_ends_in_a_model_or_in_words(tmp_path: Path, data: st.DataObject) -> None:
    whole, suffix = data.draw(st.sampled_from([(WHOLE, ".pt"), (OLD, ".pth"), (SAFE, ".safetensors")]))
    interesting = 6000 if suffix == ".pt" else 12_000  # where names and shapes are, at the beginning and at the end
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, interesting) | st.integers(len(whole) - interesting, len(whole) - 1))
        content[at] = data.draw(st.integers(0, 255))
    path = tmp_path / f"changed{suffix}"
    path.write_bytes(content)
    with contextlib.suppress(CheckpointError, ConvertError, vitviz.ModelError, vitviz.ImageError):
        model = vitviz.load(path, heads=5)
        assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())
