"""Photographs of API clients: held in memory by unguessable names, and named in requests only by these."""

import base64
import json

import pytest
from attacked import ROOT
from offered import photograph

from vitviz.server.scenes import Cache
from vitviz.server.uploads import STORED, UploadError, Uploads

CHURCH = str(ROOT / "examples" / "church.jpg")


@pytest.fixture
def uploads() -> Uploads:
    return Uploads(Cache(100_000))


def test_same_photograph_has_another_name_for_each_visitor(uploads: Uploads) -> None:
    """A name must not reveal that another visitor sent the same photograph."""
    names = {uploads.add(photograph()) for _ in range(3)}
    assert len(names) == 3
    assert {uploads.read(name) for name in names} == {photograph()}


def test_oldest_photographs_are_evicted(uploads: Uploads) -> None:
    names = [uploads.add(photograph(seed)) for seed in range(9)]  # of 16 kB
    assert uploads.read(names[-1])
    with pytest.raises(UploadError, match="Upload it again"):
        uploads.read(names[0])


@pytest.mark.parametrize("path", [CHURCH, "", "../x", "\0", "https://example.org/a.png", "0" * 32, "open"])
def test_files_that_were_not_uploaded_are_refused_at_any_depth(uploads: Uploads, path: str) -> None:
    for payload in ([{"a": [{"path": path}]}], {"path": {"path": path}}, {"path": path, "url": STORED}):
        with pytest.raises(UploadError, match="uploaded to this page"):
            uploads.checked(payload)


def test_uploaded_files_keep_only_their_name(uploads: Uploads) -> None:
    """Gradio would fetch the URL, and check the path in its own folder."""
    name = uploads.add(photograph())
    file = {"path": name, "url": "http://127.0.0.1:9", "meta": {"_type": "gradio.FileData"}}
    assert uploads.checked([file, "path", 7, None]) == [{"path": name}, "path", 7, None]
    assert uploads.checked({"path": f"{STORED}{name}"}) == {"path": name}


def test_photographs_are_cut_out_of_a_tools_request(uploads: Uploads) -> None:
    address = f"data:image/png;base64,{base64.b64encode(photograph()).decode()}"
    body = json.dumps({"photos": [address, "text data:"], "size": 7}).encode()
    content = json.loads(uploads.without_photographs(body))
    assert uploads.read(content["photos"][0].removeprefix(STORED)) == photograph()
    assert content == {"photos": [content["photos"][0], "text data:"], "size": 7}
    for wrong in ("data:text/html;base64,PGI+", "data:image/png;base64,%%%", "data:"):
        with pytest.raises(UploadError, match="Expected a picture"):
            uploads.without_photographs(json.dumps([wrong]).encode())


def test_short_answers_stay_in_the_response(uploads: Uploads) -> None:
    assert uploads.offer({"values": [1]}) == {"values": [1]}
    assert uploads.offer(b"abc") == base64.b64encode(b"abc").decode()
