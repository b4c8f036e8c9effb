"""Test the page in print: white paper, colors kept, nothing cut off, no controls."""

import io

import pypdf
import pytest
from playwright.sync_api import Page as Browser
from running import Running, ready, settled

from vitviz.formatting import percent

PAPER = 703  # pixels between the margins of A4
PRINTED = """() => ({
    ground: getComputedStyle(document.documentElement).backgroundColor,
    text: getComputedStyle(document.querySelector('.vv')).color,
    exact: [...document.querySelectorAll('.vv i, .vv canvas')].filter((part) => part.checkVisibility())
        .every((part) => getComputedStyle(part).printColorAdjust === 'exact'),
    wide: document.documentElement.scrollWidth,
    controls: [...document.querySelectorAll('.vv :is([role=tab], .vv-file, .vv-menu, .vv-save, [data-do])')]
        .filter((part) => part.checkVisibility()).length,
})"""
# Clickable parts of each tab that a printed page must keep: words, bars, names of tokens.
READ = {
    "look": ".vv-sentence",
    "why": ".vv-hide .vv-bars *",
    "inside": ":is(.vv-part, .vv-signed-bar)",
    "lecture&step=9": ".vv-lecture :is(.vv-strip-of rect, .vv-table-sum button)",
}


@pytest.mark.parametrize("tab", READ)
def test_tab_prints_on_white_paper_without_controls(page: Browser, app: Running, tab: str) -> None:
    ready(page, f"{app.url}?tab={tab}&theme=dark")
    settled(page)
    page.wait_for_selector(READ[tab])
    page.emulate_media(media="print")
    page.set_viewport_size({"width": PAPER, "height": 1000})
    printed = page.evaluate(PRINTED)
    assert page.locator(READ[tab]).evaluate_all("(all) => all.length && all.every((each) => each.checkVisibility())")
    page.emulate_media(media="null")  # as a browser prints
    assert printed == {
        "ground": "rgba(0, 0, 0, 0)", "text": "rgb(29, 26, 22)", "exact": True, "wide": PAPER, "controls": 0
    }  # fmt: skip
    pdf = pypdf.PdfReader(io.BytesIO(page.pdf(format="A4")))
    assert 1 <= len(pdf.pages) <= 5
    label, share = app.view().predictions()[0]
    text = "".join(each.extract_text() for each in pdf.pages).replace("\xa0", " ")
    assert label in text or "step" in tab
    assert percent(share) in text or tab not in ("look", "why")
