"""Votes of an audience by phone: what is counted, what ends them, and hostile requests."""

import html
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from asking import Site
from offered import new_endpoints

from vitviz.server import votes as module
from vitviz.server.account import VOTES_OF_ADDRESS, Resource
from vitviz.settings import settings
from vitviz.web.exercise_texts import exercise_texts

STEP = "patches"
CHOICES = exercise_texts("en")[STEP]["choice"]["choices"]
EVIL = "https://evil.example"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, sources: tuple[str, ...]) -> Iterator[Site]:
    with closing(Site(new_endpoints(tmp_path_factory.mktemp("votes"), sources))) as site:
        yield site


@pytest.fixture
def vote(site: Site) -> Iterator[dict[str, str]]:
    opened = site.client.post("/vote", json={"step": STEP, "lang": "en"}).json()
    yield opened
    site.client.post(f"/vote/{opened['code']}/end", json=opened)
    assert site.endpoints.account.used(Resource.VOTES) == 0


def counts(site: Site, vote: dict[str, str]) -> list[int]:
    return site.client.post(f"/vote/{vote['code']}/count", json={"key": vote["key"]}).json()["counts"]


def phone(site: Site, vote: dict[str, str]) -> httpx.Client:
    """Return a phone that shows the question."""
    client = site.client_at("192.0.2.1")  # the audience is behind one router
    page = client.get(f"/vote/{vote['code']}")
    assert page.status_code == 200
    assert len(page.content) < 3_000
    assert "<script" not in page.text
    return client


def test_each_phone_counts_once_until_the_next_question(site: Site, vote: dict[str, str]) -> None:
    address = f"/vote/{vote['code']}"
    phones = [phone(site, vote) for _ in range(3)]
    for client, choice in zip(phones, (2, 2, 0), strict=True):
        assert "counted" in client.post(address, data={"choice": choice}).text
    assert "counted" in phones[0].post(address, data={"choice": 1}).text  # a second vote changes nothing
    assert "counted" in phones[0].get(address).text
    assert counts(site, vote) == [1, 0, 2, 0]
    for step, texts in exercise_texts("zh").items():
        again = site.client.post("/vote", json={"step": step, "lang": "zh", **vote}).json()
        assert again == vote  # phones keep their address
        shown = html.unescape(phones[0].get(address).text)
        assert all(text in shown for text in (texts["choice"]["ask"], *texts["choice"]["choices"])), step
        assert phones[0].post(address, data={"choice": 1}).status_code == 200
        assert counts(site, vote) == [0, 1] + [0] * (len(texts["choice"]["choices"]) - 2)


def test_hostile_requests_count_nothing(site: Site, vote: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    address, client = f"/vote/{vote['code']}", phone(site, vote)
    for body in ("", "choice=", "choice=4", "choice=-1", "choice=²", "choice=1e0", "&" * 9, "choice=" + "1" * 5_000):
        assert client.post(address, content=body).status_code == 400, body
    assert client.post(address, content=b"\xff\xfe").status_code == 400
    assert client.post(address, content=b"x" * (module.MOST_BYTES + 1)).status_code == 413
    assert client.post(address, data={"choice": 1}, headers={"origin": EVIL}).status_code == 403
    assert site.client_at("192.0.2.9").post(address, data={"choice": 1}).status_code == 403  # without a cookie
    for cookie in ("x", "a" * 23, "é" * 22, '"><script>alert(1)</script>'):
        answer = site.client_at("192.0.2.9").get(address, headers={"cookie": f"{module.COOKIE}={cookie}".encode()})
        assert "alert" not in answer.text
        assert module.COOKIE in answer.headers["set-cookie"]
    for key in ("", "é", None, 3, vote["key"][:-1]):
        assert client.post(f"{address}/count", json={"key": key}).status_code == 404
        assert client.post(f"{address}/end", json={"key": key}).status_code == 404
    for text in ("[]", "{", "[" * 100_000, '{"step": "patches", "lang": "../en"}', '{"step": ["x"], "lang": "en"}'):
        assert client.post("/vote", content=text).status_code == 400, text[:40]
    for path in ("/vote/", "/vote/AAAAAA", "/vote/../etc", f"{address}/count", "/vote/%2e%2e%2f%2e%2e"):
        assert site.client.get(path).status_code in (200, 404), path
    assert site.client.get("/vote/aaaaaa").status_code == 404
    assert counts(site, vote) == [0] * len(CHOICES)

    other = site.client.post("/vote", json={"step": STEP, "lang": "en", "code": vote["code"], "key": "wrong"}).json()
    assert other["code"] != vote["code"]  # nobody replaces another lecturer's question
    site.client.post(f"/vote/{other['code']}/end", json=other)
    monkeypatch.setattr(module, "MOST_PHONES", 1)
    client.post(address, data={"choice": 1})
    assert phone(site, vote).post(address, data={"choice": 1}).status_code == 429
    assert counts(site, vote) == [0, 1, 0, 0]


def test_open_votes_of_an_address_are_bounded(site: Site) -> None:
    client = site.client_at("192.0.2.7")
    opened = [client.post("/vote", json={"step": STEP, "lang": "en"}) for _ in range(VOTES_OF_ADDRESS + 1)]
    assert [answer.status_code for answer in opened] == [200] * VOTES_OF_ADDRESS + [429]
    for answer in opened[:-1]:
        assert re.fullmatch(module.CODE, answer.json()["code"])
        client.post(f"/vote/{answer.json()['code']}/end", json=answer.json()).raise_for_status()


def test_votes_are_forgotten(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.SECONDS == 30 * 60
    monkeypatch.setattr(module, "SECONDS", 0)
    opened = site.client.post("/vote", json={"step": STEP, "lang": "en"}).json()
    assert site.client.get(f"/vote/{opened['code']}").status_code == 404
    assert site.client.post(f"/vote/{opened['code']}/count", json=opened).status_code == 404
    assert site.endpoints.account.used(Resource.VOTES) == 0


def test_replicas_have_no_votes(tmp_path: Path, sources: tuple[str, ...]) -> None:
    assert settings(environ={}).votes
    assert not settings(environ={"VITVIZ_SECRET": "shared by all replicas"}).votes
    with closing(Site(new_endpoints(tmp_path / "page", sources[:1], votes=False))) as site:
        assert site.client.post("/vote", json={"step": STEP, "lang": "en"}).status_code == 404
        assert '\\"votes\\": false' in site.client.get("/").text
