"""The upload folder: its paths, owners, quota and cleanup."""

import errno
import os
import tempfile
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from attacked import ROOT
from filelock import FileLock
from offered import photograph
from patience import wait_until

from vitviz.server import uploads as module
from vitviz.server.account import OverBudgetError, Resource
from vitviz.server.uploads import PREFIX, DiskFullError, UploadError, UploadFolder, remove_leftovers, upload_folder

CHURCH = ROOT / "examples" / "church.jpg"


def new_upload_folder(place: Path, **options: int) -> UploadFolder:
    place.mkdir()
    return UploadFolder(place, **options)


def add(uploads: UploadFolder, visitor: str, seed: int = 0) -> Path:
    return uploads.add(visitor, "mine.png", photograph(seed))


def test_links_out_of_the_upload_folder_are_refused(tmp_path: Path) -> None:
    uploads = new_upload_folder(tmp_path / "uploads")
    (uploads.root / "link.jpg").symlink_to(CHURCH)
    (uploads.root / "circle.jpg").symlink_to(uploads.root / "circle.jpg")
    for name in ("link.jpg", "circle.jpg", "../uploads", "", "nothing.jpg", "\0"):
        with pytest.raises(UploadError, match="uploaded to this page"):
            uploads.check(uploads.root / name)
    for payload in ([{"a": [{"path": str(CHURCH)}]}], {"path": {"path": str(CHURCH)}}):
        with pytest.raises(UploadError):
            uploads.resolved(payload)
    mine = add(uploads, "visitor")
    named = mine.relative_to(uploads.root).as_posix()
    assert uploads.resolved([{"path": named}, "path", 7, None]) == [{"path": str(mine)}, "path", 7, None]
    assert uploads.check(named) == uploads.check(mine) == mine.resolve()


def test_visitor_who_uses_most_loses_the_oldest_files(tmp_path: Path) -> None:
    size = max(len(photograph(seed)) for seed in range(30))
    quota = 10 * size + 99
    uploads = new_upload_folder(tmp_path / "uploads", quota=quota)
    quiet = add(uploads, "quiet", 29)
    greedy = [add(uploads, "greedy", seed) for seed in range(20)]
    assert quiet.exists()
    assert [path.exists() for path in greedy] == [False] * 15 + [True] * 5  # within half of the quota
    others = [add(uploads, f"visitor {seed}", seed) for seed in range(20, 28)]
    assert all(path.exists() for path in (quiet, *others))
    assert sum(path.stat().st_size for path in uploads.root.rglob("*.png")) <= quota
    assert not any(path.exists() for path in greedy[:-1])


def test_unfinished_uploads_cost_no_other_visitor_a_file(tmp_path: Path) -> None:
    uploads = new_upload_folder(tmp_path / "uploads", quota=1_000_000)
    quiet = add(uploads, "quiet")
    with uploads.receive("greedy") as first, uploads.receive("greedy") as second:
        first.booking.add(400_000)
        with pytest.raises(OverBudgetError):
            second.booking.add(200_000)  # beyond half of the quota
    assert quiet.exists()


def test_same_file_under_two_names_has_two_folders(tmp_path: Path) -> None:
    uploads = new_upload_folder(tmp_path / "uploads", quota=4 * len(photograph(0)) + 99)
    first, second = (uploads.add("visitor", name, photograph(0)) for name in ("a.png", "b.png"))
    add(uploads, "visitor", 1)  # removes the oldest
    assert [first.exists(), second.exists()] == [False, True]


def test_same_file_of_two_visitors_has_two_folders(tmp_path: Path) -> None:
    """A path must not reveal that another visitor sent the same photograph."""
    uploads = new_upload_folder(tmp_path / "uploads", quota=4 * max(len(photograph(seed)) for seed in range(3)) + 99)
    mine, other = add(uploads, "visitor"), add(uploads, "other")
    assert add(uploads, "visitor") == mine != other
    for seed in (1, 2):  # beyond half of the quota, this visitor's oldest file is removed
        add(uploads, "visitor", seed)
    assert [mine.exists(), other.exists()] == [False, True]


def test_files_expire_after_a_day_whatever_the_clock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads, wall, before = new_upload_folder(tmp_path / "uploads"), time.time, time.monotonic()
    mine = add(uploads, "visitor")
    for seed, years in ((1, 10), (2, -10)):
        monkeypatch.setattr(time, "time", lambda years=years: wall() + years * 365 * 86_400.0)
        add(uploads, "other", seed)
        assert mine.exists()
    after = time.monotonic()
    uploads.expire(before + 24 * 3600 - 1)
    assert mine.exists()
    uploads.expire(after + 24 * 3600)
    assert not mine.exists()
    assert uploads.account.used(Resource.DISK) == 0


def test_old_files_expire_without_another_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXPIRE_EVERY", 0.01)
    monkeypatch.setattr(module, "MAX_AGE", 0)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    uploads = upload_folder.__wrapped__()
    mine = add(uploads, "visitor")
    wait_until(lambda: not mine.exists(), "the file is removed")


def test_full_disk_is_reported_and_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = new_upload_folder(tmp_path / "full")
    full = OSError(errno.ENOSPC, "No space left on device", str(uploads.root))
    with monkeypatch.context() as broken:
        broken.setattr("vitviz.server.uploads.hash_file", Mock(side_effect=full))
        with pytest.raises(DiskFullError, match="room on the server") as refused:
            add(uploads, "visitor")
        assert str(uploads.root) not in str(refused.value)
    assert list(uploads.root.iterdir()) == []
    assert add(uploads, "visitor").exists()


def test_folders_of_ended_processes_are_removed(tmp_path: Path) -> None:
    gone, runs = (f"{PREFIX}{number}-{number:08x}" for number in (1, 2))
    others = ("other", "uploads-1-gone", *(PREFIX + name for name in ("x", "3-00000003", "4-00000004", "5-0000000x")))
    for name in (gone, runs, *others):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.png").write_bytes(photograph())
    link = tmp_path / f"{PREFIX}6-00000006"
    link.symlink_to(tmp_path / "other")
    for name in (gone, runs, "other", f"{PREFIX}x", f"{PREFIX}5-0000000x", link.name):
        (tmp_path / f"{name}.lock").touch()
    (tmp_path / f"{PREFIX}4-00000004.lock").symlink_to(tmp_path / "other.lock")
    with FileLock(tmp_path / f"{runs}.lock"):
        remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {runs, link.name, *others}
    assert all((tmp_path / name / "mine.png").exists() for name in others)
    assert not (tmp_path / f"{gone}.lock").exists()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="users have no numbers on this system")
def test_each_user_has_a_folder_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("GRADIO_TEMP_DIR", raising=False)
    mine, theirs = os.getuid(), os.getuid() + 1
    root = upload_folder.__wrapped__().root
    assert root.parent.stat().st_mode & 0o077 == 0  # unreadable for other users
    (tmp_path / f"vitviz-{theirs}").mkdir()  # owned by this user, although named after the other
    monkeypatch.delenv("GRADIO_TEMP_DIR")
    monkeypatch.setattr(os, "getuid", lambda: theirs)
    with pytest.raises(UploadError, match="GRADIO_TEMP_DIR"):
        upload_folder.__wrapped__()
    monkeypatch.setattr(os, "getuid", lambda: mine)
    assert upload_folder.__wrapped__().root.parent == root.parent
