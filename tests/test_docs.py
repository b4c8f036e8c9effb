"""Test documents and notebooks: their code, commands, links, tables and pictures."""

import ast
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import data_files
import nbformat
import pytest
from click.testing import CliRunner
from documents import (
    DOCUMENTS,
    FIRST,
    GUIDE,
    PROJECT,
    ROOT,
    TOOL,
    anchors,
    blocks,
    commands,
    links,
    prose,
    run_python,
    text_of,
)
from nbclient import NotebookClient
from patience import patience

import vitviz
from vitviz import explorer
from vitviz.cli.commands import vitviz as vitviz_command
from vitviz.cli.main import main
from vitviz.training.recipes import RECIPES
from vitviz.web.examples import examples

OWN_TEST = (*GUIDE, "CONTRIBUTING.md", "README.md", "docs/embedding.md", "docs/mcp.md")  # GUIDE: tests/test_install.py
WITH_CODE = [name for name in DOCUMENTS if blocks(name, "python") and name not in OWN_TEST]
WRITTEN = runpy.run_path(str(ROOT / "scripts" / "write_tables.py"))
SETTING = re.compile(r"(?<!_)\bVITVIZ_[A-Z_]+\b")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder, as after `pip install`."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def photos(elsewhere: Path) -> Path:
    """Put the photographs of the documents' commands into the folder: photo.jpg, as the guide does, and other.jpg."""
    (code,) = {words[2] for words in commands("docs/guide/first-look.md") if words[:2] == ["python", "-c"]}
    exec(code, {})
    assert (elsewhere / "photo.jpg").exists()
    shutil.copy(vitviz.example("dog"), "other.jpg")
    return elsewhere


def shrink_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halve the sides of models' inputs to save time."""
    real = vitviz.load

    def load(*args: Any, **options: Any) -> vitviz.ViT:
        model = real(*args, **options)
        if model.pretrained and max(model.config.image_size) > 112:
            smaller = model.pretrained.preprocess.shaped(112, 112)
            model.pretrained = replace(model.pretrained, preprocess=smaller)
        return model

    for module in (vitviz, explorer):
        monkeypatch.setattr(module, "load", load)


@pytest.mark.tier("all")
@pytest.mark.parametrize("document", WITH_CODE)
@pytest.mark.usefixtures("elsewhere")
def test_examples_run_from_an_empty_folder(
    document: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if document != "docs/analysis.md":  # this document names patches and boxes at full size
        shrink_inputs(monkeypatch)
    run_python(document)
    assert "nan" not in capsys.readouterr().out


@pytest.mark.tier("all")
def test_readme_shows_the_output_of_its_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    view = run_python("README.md")["view"]
    (code,) = blocks("README.md", "python")
    (comment,) = re.findall(r"view\.predictions\(k=5\)  # \[(.*), \.\.\.\]", code)
    printed = ast.literal_eval(f"[{comment}]")
    assert printed == [(label, round(probability, 2)) for label, probability in view.predictions()[: len(printed)]]
    assert f'view.describe()  # "{view.describe()}"' in code


def test_example_is_found_by_name_in_any_case() -> None:
    assert vitviz.example("Church") == vitviz.example("church") == ROOT / "examples" / "church.jpg"
    assert {vitviz.example(example.name) for example in examples()} == {example.path for example in examples()}
    with pytest.raises(ValueError, match=r"church.*tower"):
        vitviz.example("tower")


def test_public_names_are_listed() -> None:
    rows = re.findall(r"^\| `(\w+)` \| \S", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(vitviz.__all__)
    assert all(getattr(vitviz, name).__doc__ for name in rows)


def test_wheel_has_the_photographs_without_the_example_package() -> None:
    included = set(TOOL["hatch"]["build"]["targets"]["wheel"]["force-include"])
    files = {f"examples/{path.name}" for path in (ROOT / "examples").iterdir() if path.is_file()}
    assert {name for name in included if name.startswith("examples")} == files


QUICK = {"predict", "explain", "sheet", "heads", "lens", "figures", "film", "models", "summary"}  # and `export --html`
FOREIGN = {"apt-get", "cd", "cp", "docker", "dpkg", "git", "jupyter", "mkdir"}  # other programs


def is_ours(words: list[str]) -> bool:
    return words[0] == "vitviz" or (words[0] == "torchrun" and words[-1] != "torchrun" and "vitviz" in words)


def ours(document: str) -> list[list[str]]:
    """Return the arguments of the document's `vitviz` commands, including those under torchrun."""
    words_of_ours = [words[words.index("vitviz") + 1 :] for words in commands(document) if is_ours(words)]
    return [arguments for arguments in words_of_ours if arguments and not arguments[0].startswith("--")]


@cache
def help_of(command: str) -> str:
    return CliRunner().invoke(vitviz_command, [command, "--help"]).output


def test_commands_have_their_options() -> None:
    for command, *rest in (arguments for document in DOCUMENTS for arguments in ours(document)):
        for option in (word for word in rest if re.match(r"--?[a-z]", word)):
            known = re.search(rf"(?<![\w-]){option}\b", help_of(command)) or f"--[no-]{option[2:]}" in help_of(command)
            assert known, f"vitviz {command} {option}"
        recipes = [rest[place + 1] for place, word in enumerate(rest) if word == "--recipe"]
        assert set(recipes) <= set(RECIPES)


RUN = sorted(
    {
        tuple(arguments)
        for name in DOCUMENTS
        for arguments in ours(name)
        if (arguments[0] in QUICK or "--html" in arguments) and "clip.mp4" not in arguments  # vitviz ships no clip
    },
    key=lambda arguments: (arguments[0], -len(arguments), arguments),
)


@pytest.mark.tier("all")
@pytest.mark.parametrize("arguments", RUN, ids=" ".join)
def test_quick_commands_run(arguments: tuple[str, ...], photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replaced = ["vit-cifar10" if word.startswith(("FOLDER", "models/")) else word for word in arguments]
    if "--model" not in replaced and re.search(r"--size\b", help_of(replaced[0])):
        replaced += ["--size", "112"]  # faster than the default size
    if "texts" in replaced:  # as docs/lecture.md describes
        assert main(["lecture", "texts", "--quiet"]) == 0
    before = set(photos.iterdir())
    assert main(replaced) == 0, capsys.readouterr().err
    written = {path.name for path in set(photos.iterdir()) - before}
    assert written == {replaced[place + 1] for place, word in enumerate(replaced) if word in ("-o", "--html")}


@pytest.mark.tier("all")
def test_training_walkthrough_runs(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the commands with few images: Fashion-MNIST as Debian installs it, and a folder of three classes."""
    data_files.mnist(elsewhere / "fashion-files" / "usr" / "share" / "datasets" / "fashion-mnist", counts=(40, 20))
    data_files.folder(elsewhere / "three", {"springer": (4, 2), "church": (4, 2), "parachute": (4, 2)})
    reduced = {"train": ["--epochs", "1", "--batch", "4", "--device", "cpu"], "validate": []}
    done = []
    for command, *rest in (words[1:] for words in commands("docs/training.md") if words[0] == "vitviz"):
        if command not in reduced or {"imagenette", "frozen"} & {*rest}:  # needs larger data
            continue
        replaced = ["vit-cifar10" if word == "dinov2-s14-imagenette" else word for word in rest]
        extra = [] if {"--resume", "--extend"} & {*replaced} else reduced[command]
        assert main([command, *replaced, *extra]) == 0, capsys.readouterr().err
        done += [command, *replaced[:1]]
    assert done.count("train") == 4
    assert {"--resume", "--extend"} <= {*done}
    for name in ("fashion", "fashion-longer", "three"):
        assert vitviz.load(f"models/{name}").pretrained.labels
    assert Path("sizes.png").is_file()


def check_make(words: list[str]) -> bool:
    makefile = text_of("Makefile")
    return all(re.search(rf"^([\w-]+ )*{word}( [\w-]+)*:", makefile, re.MULTILINE) for word in words if "=" not in word)


def check_install(words: list[str]) -> bool:
    extras = re.findall(r"vitviz\[(\w+)\]", " ".join(words))
    return words[0] == "install" and all(extra in PROJECT["optional-dependencies"] for extra in extras)


def check_python(words: list[str]) -> bool:
    paths = [word.partition("::")[0] for word in words if re.match(r"(tests|scripts|benchmarks)/", word)]
    if words[0] == "-c":
        return compile(words[1], "a command", "exec") is not None
    return words[:2] == ["-m", "http.server"] or (paths != [] and all((ROOT / path).exists() for path in paths))


PROGRAMS: dict[str, Callable[[list[str]], bool]] = {"make": check_make, "pip": check_install, "python": check_python}


def test_other_commands_name_existing_targets() -> None:
    for words in (words for document in DOCUMENTS for words in commands(document)):
        program = Path(words[0]).name
        assert is_ours(words) or program in FOREIGN or PROGRAMS[program](words[1:]), words


NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SHIPPED = {"vitviz", "IPython"}  # IPython comes with any notebook


@pytest.mark.tier("all")
@pytest.mark.timeout(patience(2400))
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_in_a_fresh_kernel(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(FIRST))
    NotebookClient(notebook, timeout=int(patience(600)), resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", ()) for output in outputs)


def test_notebooks_and_guide_draw_in_one_style() -> None:
    """Notebooks and guide use `vitviz.draw.figures`, which counts layers from 1 and gives signed maps two colors."""
    paths = (*NOTEBOOKS, *(ROOT / "docs" / "guide").glob("*.md"))
    drawing = [
        path.name for path in paths if re.search("matplotlib|imshow|[.]plot[(]", path.read_text(encoding="utf-8"))
    ]
    assert drawing == []


def test_notebooks_are_listed_have_no_outputs_and_import_what_all_extras_hold() -> None:
    extras = PROJECT["optional-dependencies"]
    chosen = re.findall(r"\w+", re.search(r"\[(.*)\]", extras["all"][0])[1])
    listed = [*PROJECT["dependencies"], *(requirement for name in chosen for requirement in extras[name])]
    packages = {re.match(r"[\w-]+", requirement)[0].lower() for requirement in listed} | {"pil"}  # Pillow's module
    assert len(NOTEBOOKS) == 5
    for path in NOTEBOOKS:
        assert f"../notebooks/{path.name}" in text_of("docs/notebooks.md")
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert not [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]
        lines = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
        modules = set(re.findall(r"^(?:from|import) (\w+)", lines, re.MULTILINE)) - SHIPPED
        assert {name for name in modules if name.lower() not in packages} <= set(sys.stdlib_module_names)


def test_paths_and_links_of_documents_exist() -> None:
    for document in DOCUMENTS:
        named = re.findall(r"`((?:vitviz|tests|docs|scripts|benchmarks)/[\w./-]*)`", prose(document))
        assert [path for path in named if not (ROOT / path).exists()] == [], document
        for path, anchor in links(document):
            assert path.exists(), path
            assert not anchor or anchor in anchors(path), (path, anchor)


def test_every_document_of_the_guide_is_on_the_site() -> None:
    tables = re.findall(r"```\{toctree\}(.*?)```", text_of("docs/index.md"), re.DOTALL)
    listed = {line for table in tables for line in table.split()}
    documents = {str(path.relative_to(ROOT / "docs").with_suffix("")) for path in (ROOT / "docs").rglob("*.md")}
    assert documents - listed == {"index"}


@pytest.mark.parametrize("document", WRITTEN["TABLES"])
def test_tables_match_the_code(document: str) -> None:
    assert WRITTEN["filled"](document) == text_of(f"docs/{document}"), "make tables"


def test_constants_of_the_scripts_match_the_code() -> None:
    assert WRITTEN["constants"]() == WRITTEN["CONSTANTS"].read_text(encoding="utf-8"), "make tables"


def test_every_setting_is_in_the_table() -> None:
    """Check that the table lists exactly the settings that the code reads."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "app.py", *(ROOT / "vitviz").rglob("*.py"))]
    strings = (node.value for text in sources for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    read = {name for text in strings if isinstance(text, str) for name in SETTING.findall(text)}
    table = re.findall(r"^\| `(VITVIZ_\w+)` \|", text_of("docs/settings.md"), re.MULTILINE)
    assert sorted(table) == sorted(read)


def test_architecture_pictures_match_the_code(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "scripts" / "draw_architecture.py", tmp_path]
    subprocess.run(command, check=True, capture_output=True)
    fresh = sorted(tmp_path.glob("*.svg"))
    assert len(fresh) == 2
    for picture in fresh:
        assert text_of(f"docs/{picture.name}") == picture.read_text(encoding="utf-8"), "make architecture"
