"""What a notebook shows of a view: the explorer where frames are allowed, else its picture."""

from __future__ import annotations

from pathlib import Path

import viewer_pages
from playwright.sync_api import Page, expect

TOP = "() => document.elementFromPoint(200, 200).tagName"


def test_the_explorer_covers_its_picture_where_frames_are_allowed(offline: Page, tmp_path: Path) -> None:
    offline.goto(viewer_pages.write(tmp_path, f"<!doctype html>{viewer_pages.view()._repr_html_()}"))
    expect(offline.frame_locator("iframe").locator(".vv-title")).to_contain_text("Layer 3")
    assert offline.evaluate(TOP) == "IFRAME"
    offline.evaluate("document.querySelector('iframe').remove()")  # as JupyterLab does until a notebook is trusted
    assert offline.evaluate(TOP) == "IMG"
    assert offline.evaluate("document.querySelector('img').naturalWidth") > 400
