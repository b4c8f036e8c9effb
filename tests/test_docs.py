"""Documents: their code runs, what they name exists, and pictures of the architecture are those of the code."""

from __future__ import annotations

import ast
import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import data_files
import pytest
import yaml
from documents import DOCUMENTS, ROOT, anchors, blocks, commands, link_examples, links, prose, run_python, text_of

import vitviz
from vitviz.attribution import registry
from vitviz.cli.main import main
from vitviz.resources import resource_folder
from vitviz.training.recipes import RECIPES

PATIENCE = 900  # seconds; the machine may have other work
WITH_CODE = [name for name in DOCUMENTS if blocks(name, "python") and name != "CONTRIBUTING.md"]
GUIDE = [name for name in DOCUMENTS if name.startswith("docs/guide/")]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the example photographs, where what an example writes does not lie about."""
    link_examples(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("document", WITH_CODE)
def test_examples_run(document: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_python(document)
    assert "nan" not in capsys.readouterr().out
    shown = set(re.findall(r"\]\(([\w-]+\.webp)\)", prose(document))) if document in GUIDE else set()
    assert shown <= {path.name for path in elsewhere.iterdir()}, "a picture of the guide is saved by the code above it"


def as_module(name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that a contributor would save under this name, held to the project's style."""
    path = f"{name.replace('.', '/')}.py"
    command = [sys.executable, "-m", "ruff", "check", "--stdin-filename", path, "-"]
    checked = subprocess.run(command, cwd=ROOT, input=code, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(code, path, "exec"), vars(module))
    return module


def test_the_method_of_the_guide_works_and_holds(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method, test = blocks("CONTRIBUTING.md", "python")
    added = as_module("vitviz.attribution.saliency", method, monkeypatch)
    as_module("tests.attribution.test_saliency", test, monkeypatch).test_saliency_is_the_slope_of_the_score()
    monkeypatch.setitem(registry.METHODS, "token_saliency", added.METHODS[0])
    view = vitviz.Explorer(vitviz.load("vit-cifar10"), device="cpu").open("examples/dog.jpg")
    heatmap = view.explain("token_saliency", "dog")
    assert heatmap.values.shape == view.trace.grid
    assert heatmap.values.min() >= 0
    assert view.faithfulness(heatmap)[0].describe()


# ---- commands

QUICK = {"predict", "explain", "sheet", "heads", "lens", "figures", "film", "models", "summary"}  # and `export --html`
FOREIGN = {"apt-get", "cd", "cp", "docker", "dpkg", "git", "jupyter", "mkdir"}  # programs that are not ours


def ours(document: str) -> list[list[str]]:
    """The arguments of the document's `vitviz` commands, also of those under torchrun."""
    found = [words[words.index("vitviz") + 1 :] for words in commands(document) if is_ours(words)]
    return [arguments for arguments in found if arguments and not arguments[0].startswith("--")]


def is_ours(words: list[str]) -> bool:
    return words[0] == "vitviz" or (words[0] == "torchrun" and words[-1] != "torchrun" and "vitviz" in words)


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What `vitviz COMMAND --help` says."""
    with contextlib.suppress(SystemExit):
        main([command, "--help"])
    return capsys.readouterr().out


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if ours(name)])
def test_commands_have_their_options(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command, *rest in ours(document):
        about = help_of(command, capsys)
        for option in (word for word in rest if re.match(r"--?[a-z]", word)):
            known = re.search(rf"(?<![\w-]){option}\b", about) or f"--[no-]{option[2:]}" in about
            assert known, f"vitviz {command} {option}"
        recipes = [rest[place + 1] for place, word in enumerate(rest) if word == "--recipe"]
        assert set(recipes) <= set(RECIPES)


RUN = {
    tuple(arguments)
    for name in DOCUMENTS
    for arguments in ours(name)
    if (arguments[0] in QUICK or "--html" in arguments) and "clip.mp4" not in arguments  # no clip comes with vitviz
}


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("arguments", sorted(RUN), ids=" ".join)
def test_quick_commands_run(arguments: tuple[str, ...], elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["vit-cifar10" if word.startswith(("FOLDER", "models/")) else word for word in arguments]
    if "--model" not in given and re.search(r"--size\b", help_of(given[0], capsys)):
        given += ["--size", "112"]  # the documents' own takes longer
    if "texts" in given:  # docs/lecture.md copies one
        (elsewhere / "texts" / "en").mkdir(parents=True)
        shutil.copy(resource_folder("lecture") / "en" / "5-attention.md", elsewhere / "texts" / "en")
    before = set(elsewhere.iterdir())
    assert main(given) == 0, capsys.readouterr().err
    written = {path.name for path in set(elsewhere.iterdir()) - before}
    assert written == {given[place + 1] for place, word in enumerate(given) if word in ("-o", "--html")}


def small_data(folder: Path) -> None:
    """What the walk-through of training finds: Fashion-MNIST where Debian has it, and photographs of three classes."""
    data_files.mnist(folder / "fashion-files" / "usr" / "share" / "datasets" / "fashion-mnist", counts=(40, 20))
    data_files.folder(folder / "three", {"springer": (4, 2), "church": (4, 2), "parachute": (4, 2)})


@pytest.mark.timeout(PATIENCE)
def test_the_walk_through_of_training(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_data(elsewhere)
    less = {"train": ["--epochs", "1", "--batch", "4", "--device", "cpu"], "validate": []}
    done = []
    for command, *rest in (words[1:] for words in commands("docs/training.md") if words[0] == "vitviz"):
        if command not in less or {"imagenette", "frozen"} & {*rest}:  # larger data than a test has
            continue
        given = ["vit-cifar10" if word == "dinov2-s14-imagenette" else word for word in rest]
        more = [] if {"--resume", "--extend"} & {*given} else less[command]
        assert main([command, *given, *more]) == 0, capsys.readouterr().err
        done += [command, *given[:1]]
    assert done.count("train") == 4
    assert {"--resume", "--extend"} <= {*done}
    for name in ("fashion", "fashion-longer", "three"):
        assert vitviz.load(f"models/{name}").pretrained.labels
    assert Path("sizes.png").is_file()


def check_make(words: list[str]) -> bool:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return all(re.search(rf"^{word}:", makefile, re.MULTILINE) for word in words if "=" not in word)


def check_install(words: list[str]) -> bool:
    extras = re.findall(r"vitviz\[(\w+)\]", " ".join(words))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return words[0] == "install" and all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras)


def check_python(words: list[str]) -> bool:
    if words[:2] == ["-m", "http.server"]:
        return True
    paths = [word.partition("::")[0] for word in words if re.match(r"(tests|scripts|benchmarks)/", word)]
    return bool(paths) and all((ROOT / path).exists() for path in paths)


PROGRAMS: dict[str, Callable[[list[str]], bool]] = {"make": check_make, "pip": check_install, "python": check_python}


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if blocks(name, "sh")])
def test_other_commands_name_what_there_is(document: str) -> None:
    for words in commands(document):
        program = Path(words[0]).name
        if not (is_ours(words) or program in FOREIGN):
            assert PROGRAMS[program](words[1:]), words


# ---- names and links


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_documents_name_exists(document: str) -> None:
    named = re.findall(r"`((?:vitviz|tests|docs|scripts|benchmarks)/[\w./-]*)`", prose(document))
    assert [path for path in named if not (ROOT / path).exists()] == []
    for link in links(document):
        assert link.path.exists(), link
        assert link.anchor is None or link.anchor in anchors(link.path), link


def test_every_document_of_the_guide_is_on_the_site() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = {line for table in re.findall(r"```\{toctree\}(.*?)```", index, re.DOTALL) for line in table.split()}
    there = {str(path.relative_to(ROOT / "docs").with_suffix("")) for path in (ROOT / "docs").rglob("*.md")}
    assert there - listed == {"index"}


def test_every_setting_is_in_the_table() -> None:
    """Those that the code reads, and no others."""
    sources = [ROOT / "app.py", *(ROOT / "vitviz").rglob("*.py")]
    strings = [
        node.value
        for path in sources
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    read = {name for text in strings for name in re.findall(r"(?<!_)\bVITVIZ_[A-Z_]+\b", text)}
    table = re.findall(r"^\| `(VITVIZ_\w+)` \|", text_of("docs/settings.md"), re.MULTILINE)
    assert set(table) == read
    assert len(table) == len(set(table))


def test_the_citation_is_of_this_version() -> None:
    about = yaml.safe_load(text_of("CITATION.cff"))
    assert str(about["version"]) == vitviz.__version__
    assert about["license"] == "Apache-2.0"


def test_the_pictures_are_those_of_the_code(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "scripts" / "draw_architecture.py", tmp_path]
    subprocess.run(command, check=True, capture_output=True)
    fresh = sorted(tmp_path.glob("*.svg"))
    assert len(fresh) == 2
    for picture in fresh:
        drawn = (ROOT / "docs" / picture.name).read_text(encoding="utf-8")
        assert drawn == picture.read_text(encoding="utf-8"), "make architecture"
