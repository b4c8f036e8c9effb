"""Static and saved pages run their own scripts and no others, by a content security policy without `unsafe-*`."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from vitviz.web import bundle
from vitviz.web.scene import standalone_frame


@pytest.mark.parametrize("entry", ["alone.js", "alone_lecture.js"])
def test_a_saved_page_names_each_of_its_scripts_by_its_hash(entry: str) -> None:
    page = standalone_frame(entry, manifest='{"a": 1}', search='"?"', lecture="null", title="t", parts="")
    check(page)


def test_a_static_site_names_its_inline_script_by_its_hash() -> None:
    filling = {"first": "{}", "site": "{}", "lecture": "{}", "script": "page.js", "colors": bundle.colors()}
    page = bundle.fill(bundle.template("site.html"), filling)
    check(page)
    assert "script-src 'self' 'sha256-" in page


def test_what_is_filled_in_changes_no_script() -> None:
    scripts = [re.findall(r"<script>(.*?)</script>", standalone_frame(manifest=text), re.DOTALL) for text in ("1", "2")]
    assert scripts[0] == scripts[1]
    assert len(scripts[0]) == 2


def check(page: str) -> None:
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts}
    assert set(re.findall(r"'sha256-([^']*)'", policy)) == hashes
    assert "unsafe" not in policy
    assert page.index("Content-Security-Policy") < page.index("<script")
