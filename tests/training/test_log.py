"""What a training says while it runs."""

from dataclasses import fields
from pathlib import Path

import pytest

from vitviz.training import log
from vitviz.training.log import Epoch, Log


def test_five_classes_have_no_top_five() -> None:
    row = Epoch(**{field.name: 1.0 for field in fields(Epoch)})
    assert "top-5" not in row.describe(2, classes=5)
    assert "top-5 100 %" in row.describe(2, classes=6)


def test_without_a_terminal_long_epochs_say_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [1000.0]
    monkeypatch.setattr(log.time, "monotonic", lambda: now[0])
    made = Log(tmp_path, 2, 200, 10, 0, progress=True)
    made.begin(0, 100, 0)
    for number in range(10, 60, 10):
        now[0] += 12.0
        made.steps(number, 10, 1.5, 0.001, 640.0)
    made.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["step 30 of 200"]  # after 36 s; the next would come after 66 s
    assert "03:24 left" in lines[0]  # 36 s for 30 steps, 170 to go
