"""What a notebook shows of a view: the explorer where frames are allowed, else its picture."""

from __future__ import annotations

from pathlib import Path

import viewer_pages
from playwright.sync_api import Page, expect

TOP = "() => document.elementFromPoint(200, 200).tagName"


def cell(page: Page, folder: Path) -> None:
    """Open a page with nothing but a notebook's cell."""
    page.goto(viewer_pages.write(folder, f"<!doctype html>{viewer_pages.view()._repr_html_()}"))


def test_the_explorer_covers_its_picture(offline: Page, tmp_path: Path) -> None:
    cell(offline, tmp_path)
    expect(offline.frame_locator("iframe").locator(".vv-title")).to_contain_text("Layer 3")
    assert offline.evaluate(TOP) == "IFRAME"


def test_where_frames_are_left_out_the_picture_is_there(offline: Page, tmp_path: Path) -> None:
    cell(offline, tmp_path)
    offline.evaluate("document.querySelector('iframe').remove()")  # as JupyterLab does until a notebook is trusted
    assert offline.evaluate(TOP) == "IMG"
    assert offline.evaluate("document.querySelector('img').naturalWidth") > 400
