"""The folder of uploads belongs to the user who serves the page."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from vitviz.server.uploads import UploadError, upload_folder


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="users have no numbers here")
def test_each_user_has_a_folder_and_takes_no_other_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("GRADIO_TEMP_DIR", raising=False)
    mine, theirs = os.getuid(), os.getuid() + 1
    made = upload_folder.__wrapped__().root
    assert made.parent.stat().st_mode & 0o077 == 0  # nobody else reads it
    (tmp_path / f"vitviz-{theirs}").mkdir()  # made by this user, so that it is not theirs
    monkeypatch.delenv("GRADIO_TEMP_DIR")
    monkeypatch.setattr(os, "getuid", lambda: theirs)
    with pytest.raises(UploadError, match="GRADIO_TEMP_DIR"):
        upload_folder.__wrapped__()
    monkeypatch.setattr(os, "getuid", lambda: mine)
    assert upload_folder.__wrapped__().root.parent == made.parent
