"""Two servers behind nginx without sticky sessions: one page asks both, and outlives the end of one of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from attacked import Server
from patience import patience
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from proxied import nginx
from running import SCENE, click_patch, expect_map, folder, own_photograph, ready, upload

import vitviz
from vitviz.explorer import Explorer

pytestmark = pytest.mark.tier("all")

LOOKS = {"Explain": ".vv-moved li", "Heads": ".vv-dot", "Layers": ".vv-alike canvas"}  # what answers show in a tab


def look(page: Browser, name: str) -> None:
    """Go to a tab, and wait until it shows what it asked for and nothing that went wrong."""
    page.get_by_role("tab", name=name).click()
    expect(page.locator(f".vv-tab:visible {LOOKS[name]}").first).to_be_visible()
    page.wait_for_function("vitviz.progress.jobs.size === 0 && vitviz.resting()")
    expect_no_trouble(page)


def expect_no_trouble(page: Browser) -> None:
    expect(page.locator(".vv-message")).to_be_hidden()
    expect(page.locator(".vv-trouble:visible")).to_have_count(0)


def test_a_page_is_answered_by_both_servers_and_outlives_one(page: Browser, tmp_path: Path) -> None:
    model = folder(tmp_path / "tiny", registers=2)
    environment = {**os.environ, "VITVIZ_MODELS": model, "VITVIZ_DEFAULT": model, "VITVIZ_SECRET": "of both replicas"}
    servers = [Server(tmp_path / name, environment=environment) for name in ("one", "other")]
    (tmp_path / "nginx").mkdir()
    try:
        with nginx(tmp_path / "nginx", [server.port for server in servers]) as proxy:
            page.set_default_timeout(1000 * patience(60))
            errors: list[str] = []
            page.on(
                "console", lambda said: errors.append(f"{said.text} {said.location}") if said.type == "error" else 0
            )
            photo = own_photograph(tmp_path)
            view = Explorer(vitviz.load(model)).open(photo)
            ready(page, f"http://127.0.0.1:{proxy.port}/")
            upload(page, photo)
            expect_map(page, view.attention())
            page.wait_for_function(f"{SCENE}.answers.complete")
            click_patch(page, view, 3, 4)
            page.keyboard.press("[")
            expect_map(page, view.attention(1, query=(3, 4)))
            page.check(".vv-modes input[value=rollout]")
            page.click(".vv-rollout summary")
            page.select_option("[data-key=fuse]", "max")
            expect_map(page, view.rollout((3, 4), fuse="max"))
            expect_no_trouble(page)
            for name in ("Explain", "Heads"):
                look(page, name)
            ports = {server.port for server in servers}
            assert {port for port, _ in proxy.questions()} == ports
            assert errors == []

            servers[0].kill()
            before = len(proxy.questions())
            look(page, "Layers")  # what goes to the server that is gone is asked of the other one
            page.get_by_role("tab", name="Explore").click()
            page.select_option("[data-key=fuse]", "min")
            expect_map(page, view.rollout((3, 4), fuse="min"))
            assert {port for port, _ in proxy.questions()[before:]} == {servers[1].port}
            assert errors == []

            servers[0] = Server(tmp_path / "one", environment=environment, port=servers[0].port)
            before = len(proxy.questions())
            page.get_by_role("tab", name="Explain").click()
            for method in ("legrad", "attn_lrp", "rollout", "token_gradcam"):
                page.click(f".vv-explain [data-method={method}]")
                expect(page.locator(".vv-explain .vv-title")).to_have_text(view.explain(method).title)
                look(page, "Explain")
            # Also the server that knew nothing of the photograph was asked.
            assert {port for port, _ in proxy.questions()[before:]} == ports
            assert errors == []
    finally:
        for server in servers:
            server.close()
