"""Test the widget in JupyterLab: selections reach Python, also after a restart; if untrusted, it shows a picture."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import nbformat
import pytest
from asking import free_port
from browsing import new_page
from patience import wait_until
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import CHURCH

pytestmark = [pytest.mark.tier("all"), pytest.mark.filterwarnings("ignore")]

CELLS = (
    """
    import vitviz
    from vitviz.widget import ExplorerWidget

    view = vitviz.Explorer({model!r}).open({photo!r})
    first, second = ExplorerWidget(view), ExplorerWidget(view)
    first
    """,
    "second",
    "print('first', first.selection.get('patch'), 'second', second.selection.get('patch'))",
)
KERNEL = {"name": "python3", "display_name": "Python 3"}
IDLE = "document.querySelector('#jp-main-statusbar')?.textContent.includes('| Idle')"  # with a kernel


@dataclass
class Lab:
    """A running JupyterLab: its address, and the folder of its notebooks."""

    url: str
    folder: Path


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, small: str) -> Iterator[Lab]:
    """Yield JupyterLab with one notebook."""
    place, port = tmp_path_factory.mktemp("lab"), free_port()
    notebooks = place / "notebooks"
    notebooks.mkdir()
    cells = [nbformat.v4.new_code_cell(dedent(cell).format(model=small, photo=str(CHURCH))) for cell in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), notebooks / "look.ipynb")
    folders = {f"JUPYTER_{name}_DIR": str(place / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"),
        *("--IdentityProvider.token=", f"--ServerApp.root_dir={notebooks}", "--expose-app-in-browser"),
        *("--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"),
    ]
    paths = os.pathsep.join(path for path in sys.path if path)
    with (place / "log").open("w") as log:
        server = subprocess.Popen(command, env=os.environ | folders | {"PYTHONPATH": paths}, stdout=log, stderr=log)
        try:
            wait_until(lambda: "is running at" in (place / "log").read_text(), "JupyterLab")
            yield Lab(f"http://127.0.0.1:{port}", notebooks)
        finally:
            server.terminate()
            server.wait()


@pytest.fixture(scope="module")
def notebook(browser: Chromium, lab: Lab) -> Iterator[Browser]:
    """Yield the notebook after a first run of its cells."""
    with new_page(browser, viewport={"width": 1440, "height": 2400}) as page:
        open_notebook(page, lab, "look.ipynb")
        run(page)
        yield page


def open_notebook(page: Browser, lab: Lab, name: str) -> None:
    page.goto(f"{lab.url}/lab/tree/{name}?reset")
    expect(page.locator(".jp-NotebookPanel .jp-CodeCell").first).to_be_visible()
    page.wait_for_function(IDLE)


def execute(page: Browser, command: str) -> None:
    """Start a command of JupyterLab; if the command opens a dialog, its promise settles only when the dialog closes."""
    page.evaluate(f"void jupyterapp.commands.execute('{command}')")


def run(page: Browser) -> None:
    """Run all cells, and wait until both widgets have drawn."""
    execute(page, "notebook:run-all-cells")
    expect(page.locator(".jp-OutputArea .vv")).to_have_count(2)
    page.wait_for_function("[...document.querySelectorAll('.vv')].every((host) => host.vitviz?.drawn > 0)")


def printed(page: Browser) -> str:
    """Run the last cell, and return its output."""
    page.locator(".jp-CodeCell").last.locator(".cm-content").click()
    execute(page, "notebook:run-cell")
    page.wait_for_function(IDLE)
    return page.locator(".jp-CodeCell").last.locator(".jp-OutputArea").inner_text()


def pin_in_second(page: Browser) -> None:
    page.locator(".vv").nth(1).locator(".vv-picture").focus()
    page.keyboard.press("ArrowRight")


def test_a_selection_in_one_of_two_widgets_reaches_python(notebook: Browser) -> None:
    pin_in_second(notebook)
    wait_until(lambda: "first None second [" in printed(notebook), "a selection of the second widget in Python")


def test_after_a_restart_the_page_says_so_and_new_widgets_work(notebook: Browser) -> None:
    execute(notebook, "kernelmenu:restart")
    notebook.locator(".jp-Dialog .jp-mod-accept").click()
    expect(notebook.locator(".jp-Dialog")).to_have_count(0)
    notebook.evaluate(
        "document.querySelector('.vv').vitviz.store.dispatch("
        "{ type: 'change', change: { mode: 'rollout', fuse: 'max' } })"
    )
    expect(notebook.locator(".vv").first.locator(".vv-message")).to_contain_text("Run the cell again")
    notebook.wait_for_function(IDLE)
    run(notebook)
    pin_in_second(notebook)
    wait_until(lambda: "second [" in printed(notebook), "a selection in Python")


def test_an_untrusted_notebook_shows_a_picture(notebook: Browser, lab: Lab) -> None:
    notebook.evaluate("jupyterapp.commands.execute('docmanager:save').then(() => true)")
    saved = nbformat.read(lab.folder / "look.ipynb", as_version=4)
    saved.cells.append(nbformat.v4.new_markdown_cell("Changed elsewhere, so the signature no longer matches."))
    nbformat.write(saved, lab.folder / "foreign.ipynb")
    open_notebook(notebook, lab, "foreign.ipynb")
    pictures = notebook.locator(".jp-OutputArea img")
    expect(pictures).to_have_count(2)
    assert pictures.first.get_attribute("src").startswith("data:image/png")
    expect(notebook.locator(".vv")).to_have_count(0)
