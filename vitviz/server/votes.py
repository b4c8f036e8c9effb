"""Let an audience vote by phone on questions of the lecture; the counts are in this process's memory only.

| request | body | answer |
|---|---|---|
| `POST /vote` | JSON: step, lang; code and key, to replace the question under a code | JSON: code, key |
| `GET /vote/CODE` | | the question as a page of a few kB, without scripts |
| `POST /vote/CODE` | form: choice, counted from 0 | the same page, which says that the vote was counted |
| `POST /vote/CODE/count` | JSON: key | JSON: counts, seconds left |
| `POST /vote/CODE/end` | JSON: key | JSON: nothing; the vote is forgotten |

A client opens a vote with the name of a step, and cannot set the texts that phones show. To count each phone once, the
server keeps a random token from a cookie of each phone that has voted, but not its choice. It forgets a vote after
`SECONDS`.
"""

from __future__ import annotations

import asyncio
import html
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from vitviz.server.account import Account, Booking, OverBudgetError, Resource
from vitviz.server.bodies import Refused, address, busy, chunks, json_object
from vitviz.settings import Settings
from vitviz.web.exercise_texts import exercise_texts
from vitviz.web.languages import LANGUAGES, texts_in

SECONDS = 30 * 60
MOST_PHONES = 1_000
MOST_BYTES = 10**6  # of a request's body
LETTERS, LENGTH = "23456789abcdefghjkmnpqrstuvwxyz", 6  # of a code; without letters and digits that look alike
CODE = rf"[{LETTERS}]{{{LENGTH}}}"
COOKIE, TOKEN = "vitviz_phone", r"[\w-]{22}"  # as `secrets.token_urlsafe(16)` returns

WORDS = {
    "en": {
        "counted": "Your vote is counted.", "next": "Show the next question", "full": "This vote is full.",
        "cookie": "Your browser did not send this page’s cookie. Allow cookies, and open the page again.",
        "over": "This vote is over.",
    },
    "zh": {
        "counted": "您的投票已计入。", "next": "显示下一个问题", "full": "这次投票的票数已满。",
        "cookie": "浏览器没有发送此页面的 cookie。请允许 cookie，然后重新打开此页面。", "over": "投票已经结束。",
    },
}  # fmt: skip
"""Texts of the page that phones show."""

PAGE = """<!doctype html>
<html lang="{lang}"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>vitviz</title><style>
:root {{ color-scheme: light dark; font: 18px/1.4 system-ui, sans-serif; }}
body {{ max-width: 30em; margin: 0 auto; padding: 20px; }} h1 {{ font-size: 1.2em; }}
button {{ display: block; width: 100%; min-height: 64px; margin: 0 0 12px; padding: 10px 16px; border-radius: 10px;
  border: 2px solid #4f46e5; background: none; color: inherit; font: inherit; text-align: left; }}
button:active {{ background: #4f46e5; color: #fff; }} a {{ display: inline-block; padding: 12px 0; color: inherit; }}
</style></head><body><main><h1>{title}</h1>{body}</main></body></html>
"""


@dataclass
class Vote:
    """Open vote.

    Attributes:
        step: name of the lecture's step.
        lang: language of the texts.
        key: secret of the lecturer who opened it.
        ends: when the vote is forgotten, by `time.monotonic`.
        booking: its place among the open votes.
        counts: number of phones that voted for each choice.
        phones: tokens of the phones that have voted.
    """

    step: str
    lang: str
    key: str
    ends: float
    booking: Booking
    counts: list[int] = field(init=False)
    phones: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.counts = [0] * len(self.text["choices"])

    @property
    def text(self) -> dict[str, Any]:
        """Return the question and its choices."""
        return exercise_texts(self.lang)[self.step]["choice"]

    def add(self, token: str, choice: int) -> None:
        """Count a phone's choice, unless the phone has voted before or the vote is full."""
        if token not in self.phones and len(self.phones) < MOST_PHONES:
            self.phones.add(token)
            self.counts[choice] += 1


class Votes:
    """Serve the votes of this process.

    Args:
        account: where open votes and requests are booked.
        allowed: the operator's settings.
    """

    def __init__(self, account: Account, allowed: Settings) -> None:
        self.account, self.allowed = account, allowed
        self._votes: dict[str, Vote] = {}

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/vote", _answering(self._open), methods=["POST"]),
            Route("/vote/{code}", _answering(self._page), methods=["GET"]),
            Route("/vote/{code}", _answering(self._vote), methods=["POST"]),
            Route("/vote/{code}/count", _answering(self._count), methods=["POST"]),
            Route("/vote/{code}/end", _answering(self._end), methods=["POST"]),
        ]

    async def _open(self, request: Request) -> Response:
        asked = await self._json(request)
        step, lang, code = (asked.get(name) for name in ("step", "lang", "code"))
        if not (isinstance(step, str) and isinstance(lang, str) and lang in LANGUAGES and step in exercise_texts(lang)):
            known = ", ".join(LANGUAGES)
            raise Refused(400, f"Expected a step of the lecture, and a language among {known}. Send both.")
        vote = self._find(code)
        if isinstance(code, str) and vote is not None and _is_key(vote, asked):
            booking, key = vote.booking, vote.key
        else:
            code, key = "".join(secrets.choice(LETTERS) for _ in range(LENGTH)), secrets.token_urlsafe(16)
            try:
                booking = self.account.book(Resource.VOTES, address(request.scope))
            except OverBudgetError as error:
                raise busy("too many votes are open") from error
        self._votes[code] = Vote(step, lang, key, time.monotonic() + SECONDS, booking)
        asyncio.get_running_loop().call_later(SECONDS + 1, self._forget)
        return JSONResponse({"code": code, "key": key})

    async def _page(self, request: Request) -> Response:
        vote, token = self._find(request.path_params["code"]), _token(request)
        if vote is None:
            return _over()
        answer = _closed(vote, "counted") if token in vote.phones else _question(vote)
        if token is None:
            answer.set_cookie(
                COOKIE, secrets.token_urlsafe(16), SECONDS, path=None, httponly=True, samesite="lax",
                secure=request.url.scheme == "https",
            )  # fmt: skip
        return answer

    async def _vote(self, request: Request) -> Response:
        body = await self._body(request)
        vote, token = self._find(request.path_params["code"]), _token(request)
        if vote is None:
            return _over()
        if token is None:
            return _closed(vote, "cookie", 403)
        try:
            choice = parse_qs(body.decode(), max_num_fields=4).get("choice", [""])[-1]
        except ValueError:
            choice = ""
        if not (re.fullmatch(r"\d", choice, re.ASCII) and int(choice) < len(vote.counts)):
            raise Refused(400, f"Expected a choice from 0 to {len(vote.counts) - 1}. Use the page’s buttons.")
        vote.add(token, int(choice))
        return _closed(vote, "counted") if token in vote.phones else _closed(vote, "full", 429)

    async def _count(self, request: Request) -> Response:
        vote = await self._own(request)
        return JSONResponse({"counts": vote.counts, "seconds": max(0, round(vote.ends - time.monotonic()))})

    async def _end(self, request: Request) -> Response:
        vote = await self._own(request)
        del self._votes[request.path_params["code"]]
        vote.booking.close()
        return JSONResponse({})

    async def _own(self, request: Request) -> Vote:
        """Return the vote of a lecturer who sends its key."""
        asked = await self._json(request)
        vote = self._find(request.path_params["code"])
        if vote is None or not _is_key(vote, asked):
            raise Refused(404, "This vote is over. Open it again.")
        return vote

    def _find(self, code: object) -> Vote | None:
        """Return an open vote."""
        self._forget()
        return self._votes.get(code) if isinstance(code, str) else None

    def _forget(self) -> None:
        """Forget votes whose time is over."""
        now = time.monotonic()
        for code, vote in [*self._votes.items()]:
            if vote.ends <= now:
                del self._votes[code]
                vote.booking.close()

    async def _json(self, request: Request) -> dict[str, Any]:
        return json_object(await self._body(request))

    async def _body(self, request: Request) -> bytes:
        with self.account.book(Resource.TRANSFERS, address(request.scope), 0) as booking:
            parts = [part async for part in chunks(request.receive, MOST_BYTES, booking, self.allowed.stall)]
        return b"".join(parts)


def _answering(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Wrap an endpoint: refused requests get an answer, and no answer is cached."""

    async def endpoint(request: Request) -> Response:
        try:
            response = await answer(request)
        except Refused as refused:
            response = refused.response
        response.headers["cache-control"] = "no-store"
        return response

    return endpoint


def _is_key(vote: Vote, asked: dict[str, Any]) -> bool:
    key = asked.get("key")
    return isinstance(key, str) and secrets.compare_digest(vote.key.encode(), key.encode("utf-8", "replace"))


def _token(request: Request) -> str | None:
    """Return the phone's token, if its browser sent one."""
    token = request.cookies.get(COOKIE, "")
    return token if re.fullmatch(TOKEN, token, re.ASCII) else None


def _question(vote: Vote) -> HTMLResponse:
    buttons = "".join(
        f'<button name="choice" value="{place}">{html.escape(choice)}</button>'
        for place, choice in enumerate(vote.text["choices"])
    )
    return _html(vote.lang, vote.text["ask"], f'<form method="post">{buttons}</form>')


def _closed(vote: Vote, word: str, status: int = 200) -> HTMLResponse:
    """Return a page with a message instead of buttons, and a link to the next question."""
    words = texts_in(vote.lang, WORDS)
    return _html(vote.lang, vote.text["ask"], f'<p>{words[word]}</p><a href="">{words["next"]}</a>', status)


def _over() -> HTMLResponse:
    over = {lang: words["over"] for lang, words in WORDS.items() if "over" in words}
    title = over.pop("en")
    return _html("en", title, "".join(f'<p lang="{lang}">{text}</p>' for lang, text in over.items()), 404)


def _html(lang: str, title: str, body: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(PAGE.format(lang=lang, title=html.escape(title), body=body), status)
