"""Test errors for packages that are not installed."""

import sys
from pathlib import Path

import pytest

from vitviz.extras import MissingExtraError, extra, without
from vitviz.images.video import count_frames


def test_a_missing_package_of_an_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").touch()
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError, match=r"Expected the package av, .* pip install 'vitviz\[video\]'"):
        count_frames(tmp_path / "clip.mp4")


@pytest.mark.parametrize("missing", ["no_such_package", "json.no_such_module"])
def test_a_missing_import_of_another_package_is_not_blamed_on_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str
) -> None:
    (tmp_path / "installed_package.py").write_text(f"import {missing}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError) as caught, extra("app"):
        import installed_package  # noqa: F401
    assert f"Expected the module {missing}, which installed_package imports, got none." in str(caught.value)
    assert "vitviz[" not in str(caught.value)


def test_without_hides_a_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "optional_package.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with without("optional_package"), pytest.raises(ModuleNotFoundError, match="optional_package"):
        import optional_package
    import optional_package

    with without("optional_package"):  # imported already
        assert sys.modules["optional_package"] is optional_package
