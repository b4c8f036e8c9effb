"""Static and saved pages run their own scripts and no others, by a content security policy without `unsafe-*`."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from vitviz.web import bundle
from vitviz.web.scene import standalone_frame

FILLING = {"first": "{}", "site": "{}", "lecture": "{}", "script": "page.js", "colors": bundle.colors()}
STATIC = bundle.fill(bundle.template("site.html"), FILLING)
SAVED = [
    standalone_frame(entry, manifest='{"a": 1}', search='"?"', lecture="null", title="t", parts="")
    for entry in ("alone.js", "alone_lecture.js")
]
INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)


@pytest.mark.parametrize("page", [STATIC, *SAVED], ids=["static", "saved", "lecture"])
def test_a_page_names_each_of_its_inline_scripts_by_its_hash(page: str) -> None:
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    hashes = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in INLINE.findall(page)}
    assert set(re.findall(r"'sha256-([^']*)'", policy)) == hashes
    assert "unsafe" not in policy
    assert page.index("Content-Security-Policy") < page.index("<script")


def test_a_static_site_runs_its_own_files_too() -> None:
    assert "script-src 'self' 'sha256-" in STATIC


def test_what_is_filled_in_changes_no_script() -> None:
    first, second = (INLINE.findall(standalone_frame(manifest=text)) for text in ("1", "2"))
    assert first == second
    assert len(first) == 2
