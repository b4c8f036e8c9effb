"""Files that mean harm, or are broken: each is refused in words and runs nothing. `hostile_files` makes them."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from pathlib import Path

import hostile_files
import pytest
import torch
from hostile_files import HOSTILE, MARK, OLD, SAFE, STATE, WHOLE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vitviz
from vitviz.weights.checks import CheckpointError
from vitviz.weights.files import load_file


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return hostile_files.hostile(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from hostile_files.elsewhere(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_in_words(files: dict[str, Path], name: str) -> None:
    with pytest.raises(CheckpointError, match=HOSTILE[name][2]) as refusal:
        vitviz.load(files[name], heads=5)
    text = str(refusal.value)
    assert len(text) < 1200
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
    for path in hostile_files.good(tmp_path):
        model = vitviz.load(path, heads=5)
        assert torch.equal(model.norm.weight, STATE["norm.weight"])


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pt").mkdir()
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        vitviz.load(tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match="is a folder"):
        load_file(tmp_path / "x.pt")
    for name in ("y.pt", "y.safetensors"):
        with pytest.raises(CheckpointError, match=rf"y\.{name[2:]}', which does not exist"):
            vitviz.load(tmp_path / name)


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
    with contextlib.suppress(CheckpointError):
        model = vitviz.load(path, heads=5)
        assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())
