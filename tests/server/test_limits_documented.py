"""The limits of settings and the table of the document agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vitviz.server.settings import LIMITS, Settings, SettingsError, settings

TABLE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("field", LIMITS)
def test_defaults_are_those_of_the_document_and_are_read(field: str) -> None:
    limit = LIMITS[field]
    (row,) = re.findall(rf"^\| `{limit.variable}` \| (.*) \| (.*) \|$", TABLE, re.MULTILINE)
    assert float(row[1]) == limit.default
    assert getattr(Settings(), field) == getattr(settings(environ={}), field) == limit.default * limit.units
    assert getattr(settings(environ={limit.variable: "3"}), field) == 3 * limit.units
    for wrong in ("0", "-1", "nan", "much"):
        with pytest.raises(SettingsError, match=limit.variable):
            settings(environ={limit.variable: wrong})


def test_replicas_share_a_secret_and_others_have_their_own() -> None:
    assert settings(environ={"VITVIZ_SECRET": "x" * 16}).secret == b"x" * 16
    assert settings(environ={}).secret != settings(environ={}).secret
    with pytest.raises(SettingsError, match="VITVIZ_SECRET"):
        settings(environ={"VITVIZ_SECRET": "short"})


def test_proxies_are_counted() -> None:
    assert [settings(environ=one).proxies for one in ({}, {"SPACE_ID": "a/b"}, {"VITVIZ_PROXIES": "2"})] == [0, 1, 2]
    with pytest.raises(SettingsError, match="VITVIZ_PROXIES"):
        settings(environ={"VITVIZ_PROXIES": "1.5"})
