"""Test plug-ins: the example package appears everywhere, and a broken one does no harm."""

import json
import os
import runpy
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import tiny
from documents import ROOT, tomllib
from offered import ask, new_endpoints, photograph, view_of
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import Running, ready

from vitviz.analysis.head_statistics import STATISTICS
from vitviz.attribution.inputs import Method
from vitviz.attribution.registry import METHODS
from vitviz.plugins import Registry
from vitviz.server.sizes import question_bytes
from vitviz.site.static import StaticError, write_site
from vitviz.web.choices import in_browser

EXAMPLE = ROOT / "examples" / "plugin"
DOG = ROOT / "examples" / "dog.jpg"


def install(folder: Path, package: str, groups: dict[str, dict[str, str]]) -> None:
    """Write what pip writes about a package with these entry points: group -> name -> object."""
    about = folder / f"{package.replace('-', '_')}-1.0.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in each.items())
        for group, each in groups.items()
    ]
    (about / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the example package into a folder on Python's path, and read the plug-ins again."""
    assert not {"token_saliency", "largest_share"} & {*METHODS, *STATISTICS}  # loaded before the package is installed
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = tmp_path / "packages"
    folder.mkdir()
    install(folder, project["name"], project["entry-points"])
    for path in (EXAMPLE, folder):
        monkeypatch.syspath_prepend(path)
    return folder


@pytest.fixture
def plugins(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the plug-ins into the registries during a test."""
    for registry in (METHODS, STATISTICS):
        monkeypatch.setattr(registry, "_is_loaded", False)
        monkeypatch.setattr(registry, "_entries", {})


def methods() -> Registry[Method]:
    """Return a fresh registry of methods."""
    return Registry(Method, "vitviz.attribution", "METHODS", "vitviz.methods", len)


def test_python_and_commands_find_plugins_in_a_new_process(packages: Path, tmp_path: Path) -> None:
    code = f"""
import json, sys
import vitviz
assert not any(name.startswith("vitviz_example") for name in sys.modules)
from vitviz.cli.main import main
view = vitviz.Explorer(vitviz.load("vit-cifar10"), device="cpu").open({str(DOG)!r})
heatmap, share = view.explain("token_saliency", block=1), view.heads(["largest_share"])["largest_share"]
assert "largest_share" in view.heads().present
model = ["--model", "vit-cifar10", "--quiet"]
assert main(["explain", {str(DOG)!r}, "--method", "token_saliency", "--layer", "2", "-o", "map.npz", *model]) == 0
assert main(["heads", {str(DOG)!r}, "--statistics", "largest_share", "-o", "heads.csv", *model]) == 0
print(json.dumps([heatmap.values.tolist(), share.ravel().tolist()]))
"""
    path = os.pathsep.join(map(str, (EXAMPLE, packages, ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    values, shares = json.loads(done.stdout.splitlines()[-1])
    with np.load(tmp_path / "map.npz") as file:
        np.testing.assert_allclose(file["values"], values, rtol=1e-5)
    heading, *rows = (tmp_path / "heads.csv").read_text(encoding="utf-8").splitlines()
    assert heading.endswith("largest_share")
    np.testing.assert_allclose([float(row.split(",")[-1]) for row in rows], shares, rtol=1e-5)


@pytest.mark.usefixtures("plugins")
def test_server_answers_with_plugins(tmp_path: Path, small: str) -> None:
    endpoints = new_endpoints(tmp_path / "page", (small,))
    offered = ask(endpoints, "models")
    (method,) = (each for each in offered["methods"] if each["name"] == "token_saliency")
    assert (method["title"], method["cost"], method["slow"]) == ("Token saliency", None, True)
    assert "largest_share" in [each["name"] for each in offered["statistics"]]
    scene = ask(endpoints, "open", photo=photograph(1))["id"]
    view = view_of(endpoints, scene)
    values = ask(endpoints, "explain", scene=scene, method="token_saliency")["values"]
    np.testing.assert_allclose(values, view.explain("token_saliency").values.ravel(), rtol=1e-3)
    (test,) = ask(endpoints, "faithfulness", scene=scene, methods=["token_saliency"])
    assert "gain" in test
    table = ask(endpoints, "heads", scene=scene, names=["largest_share"])["values"]["largest_share"]
    np.testing.assert_allclose(table, view.heads(["largest_share"])["largest_share"], rtol=1e-3)


@pytest.mark.usefixtures("plugins")
def test_unmeasured_method_is_assumed_to_take_the_most_memory() -> None:
    config = tiny.model().config
    need = {name: question_bytes(config, METHODS[name], 1000, 4) for name in METHODS}
    assert need["token_saliency"] == max(value for name, value in need.items() if not METHODS[name].double)


@pytest.mark.usefixtures("plugins")
def test_documents_list_plugins_and_static_sites_leave_them_out(tmp_path: Path) -> None:
    text = runpy.run_path(str(ROOT / "scripts" / "write_tables.py"))["filled"]("names.md")
    reason = "it comes from the plug-in vitviz-example"
    assert f"| `token_saliency` | Token saliency | not measured | yes | {reason} |" in text
    assert f"| `largest_share` | Largest share |  | {reason} |" in text
    assert "token_saliency" not in in_browser(METHODS)
    with pytest.raises(StaticError, match=f"got token_saliency: {reason}"):
        write_site(tmp_path / "site", methods=["token_saliency"])


@pytest.mark.usefixtures("plugins")
def test_page_offers_plugins_in_english_where_a_translation_is_missing(page: Browser, small: str) -> None:
    with closing(Running(small)) as app:
        ready(page, f"{app.url}?__theme=light&lang=zh&tab=why&method=token_saliency")
        panel = page.locator(".vv-explain")
        expect(panel.locator("[data-field=method] option:checked")).to_contain_text("Token saliency")
        panel.locator("[data-do=run]").click()  # the cost is not measured, so the page does not run it unasked
        expect(panel.locator(".vv-low")).not_to_have_text("")
        shown = page.evaluate("Math.max(...vitviz.panels.find((view) => view.heatmap).heatmap.values)")
        assert shown == pytest.approx(app.view().explain("token_saliency").values.max(), rel=1e-3)
        ready(page, f"{app.url}?__theme=light&lang=zh&tab=inside&statistic=largest_share")
        expect(page.locator("[data-field=statistic] option:checked")).to_have_text("Largest share")
        expect(page.locator(".vv-heads-view .vv-cell").first).not_to_have_text("")


@pytest.mark.parametrize(
    ("code", "got"),
    [
        ("import a_missing_module", r"ModuleNotFoundError\(.*a_missing_module"),
        ("raise RuntimeError('broken')", r"RuntimeError\('broken'\)"),
        ("import sys\nsys.exit('a script')", r"SystemExit\('a script'\)"),
        ("", "AttributeError"),
        ("PLUGIN = 3", "an object of type int"),
        ("from vitviz_example import LARGEST_SHARE as PLUGIN", "an object of type Statistic"),
        ("from vitviz_example import TOKEN_SALIENCY as PLUGIN", "the name token_saliency, which is taken"),
        ("from vitviz.attribution.gradient import METHODS\nPLUGIN = METHODS[0]", "gradient_rollout, which is taken"),
    ],
)
def test_a_broken_plugin_is_named_in_a_warning_and_left_out(
    code: str, got: str, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (packages / "broken_plugin.py").write_text(code)
    monkeypatch.delitem(sys.modules, "broken_plugin", raising=False)
    install(packages, "vitviz-broken", {"vitviz.methods": {"zebra": "broken_plugin:PLUGIN"}})
    registry = methods()
    message = rf"a new Method from the plug-in zebra \(broken_plugin:PLUGIN\) of vitviz-broken, got .*{got}"
    with pytest.warns(UserWarning, match=message):
        names = list(registry)
    assert names[-1] == "token_saliency"
    assert len(names) == len(set(names)) == len(METHODS) + 1


def test_a_plugin_may_read_the_registry_while_it_is_imported(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import a plug-in before the registry has loaded it."""
    registry = methods()
    monkeypatch.setitem(sys.modules, "shared_registry", type(sys)("shared_registry"))
    sys.modules["shared_registry"].REGISTRY = registry
    (packages / "reading_plugin.py").write_text(
        "from shared_registry import REGISTRY\nfrom dataclasses import replace\n"
        "def copy(case): return REGISTRY['gae'].function(case)\nPLUGIN = replace(REGISTRY['gae'], function=copy)\n"
    )
    install(packages, "vitviz-reading", {"vitviz.methods": {"copy": "reading_plugin:PLUGIN"}})
    assert "copy" in registry
