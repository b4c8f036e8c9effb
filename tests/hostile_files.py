"""Files that mean harm, or are broken: each with the words of its refusal. `HOSTILE` makes them, one function each."""

from __future__ import annotations

import collections
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from checkpoint_folders import header
from hostile_pieces import (
    BOMB,
    F32,
    HUGE,
    MARK,
    OLD,
    PAYLOAD,
    SAFE,
    STATE,
    WHOLE,
    Call,
    Claim,
    changed,
    compressed_bomb,
    in_itself,
    laughs,
    newer,
    older,
    overlapping_bomb,
    rebuilt,
    saved,
    shared_names,
    spoiled,
    two_pickles,
    zipped,
)
from safetensors.torch import save
from torch import nn

from vitviz.weights import pickled
from vitviz.weights.checks import MAX_HEADER_BYTES

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
