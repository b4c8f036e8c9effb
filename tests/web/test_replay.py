"""Dispatch random actions on pages in a real browser; replaying the log or opening the address gives the same state.

Each test uses one seed. `REPLAY_SEEDS=500` uses 500 seeds instead of one, with more actions for each.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import viewer_pages
from browsing import new_page
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Error, Page
from running import Running, ready
from viewer_pages import SCENE

from vitviz.web import bundle

SEEDS = range(int(os.environ.get("REPLAY_SEEDS", "1")))
LONG = "REPLAY_SEEDS" in os.environ
RANDOM = Path(__file__).parents[1] / "js" / "random.mjs"
FROM_EFFECTS = ["opened", "failed"]  # only effects dispatch these actions, with open scenes

ACT = """async ({ seed, count, without, names }) => {
    const { store, scenes } = vitviz;
    const { generator, actions } = window.random;
    const next = actions(generator(seed), { scenes: [store.get().scene], without, ...(names && { names }) });
    for (let i = 0; i < count; i += 1) {
        store.dispatch(next(store.get()));
        if (i % 5 === 0) await new Promise(requestAnimationFrame);
    }
}"""
# Set fields that are not in the address or that change continuously.
CALM = """() => {
    const { store } = vitviz;
    if (store.get().playing) store.dispatch({ type: 'play' });
    store.dispatch({ type: 'hover', pointer: null });
    store.dispatch({ type: 'change', change: { full: false, help: false, thumbnail: null, tab: 'look' } });
}"""
# Waits longer than any timer of the page that starts a question.
SETTLE = """async () => {
    const { store, scenes, progress, resting } = vitviz;
    for (let quiet = 0; quiet < 2;) {
        const before = store.get();
        await new Promise((resolve) => { setTimeout(resolve, 300); });
        const { scene, beside } = store.get();
        const whole = [scene, ...(beside ? [beside.scene] : [])].every((one) => scenes.get(one?.id)?.answers.complete);
        quiet = whole && store.get() === before && progress.jobs.size === 0 && resting() ? quiet + 1 : 0;
    }
    store.dispatch({ type: 'message', texts: [] }); // clear messages about failed loading
    while (!resting()) await new Promise(requestAnimationFrame);
}"""
# The log also contains the actions of effects, which are therefore ignored during the replay.
REPLAY = """(log) => {
    const { store } = vitviz;
    const { dispatch } = store;
    store.dispatch = () => {};
    try { log.forEach(dispatch); } finally { store.dispatch = dispatch; }
}"""
PIXELS = "vitviz.panels[0].panes.map(({ pane }) => pane.flat().toDataURL())"


@contextmanager
def opened(browser: Chromium, url: str, seed: int) -> Iterator[Page]:
    """Open a complete page with the random actions of the scripts' tests; any error fails the test.

    Failures are reported with the seed and the page's log of actions.
    """
    problems: list[str] = []
    with new_page(browser) as page:
        page.add_init_script("delete Element.prototype.requestFullscreen;")  # its timing depends on the system
        page.on("console", lambda said: problems.append(f"console: {said.text}") if said.type == "error" else None)
        ready(page, url)
        page.wait_for_function(f"{SCENE}?.answers.complete")
        script = re.sub(r"^(export |import .*;$)", "", RANDOM.read_text(encoding="utf-8"), flags=re.MULTILINE)
        script = f"{bundle.script('web/core/state.js')}const {{ FIELDS }} = vitvizExplorer;\n{script}"
        page.evaluate(f"() => {{ {script}\nwindow.random = {{ generator, actions }}; }}")  # the policy forbids tags
        try:
            yield page
            assert not problems, "\n".join(problems)
        except (AssertionError, Error) as error:
            log = json.dumps(page.evaluate("vitviz.store.log()"))
            raise AssertionError(f"seed {seed}: {error}\nThe log of actions at {url}:\n{log}") from error


def act(page: Page, seed: int, count: int, **names: object) -> None:
    page.evaluate(ACT, {"seed": seed, "count": count, "without": FROM_EFFECTS, **names})
    page.evaluate(CALM)


@pytest.mark.parametrize("seed", SEEDS)
def test_replayed_log_shows_the_same(browser: Chromium, tmp_path: Path, seed: int) -> None:
    url = viewer_pages.write(tmp_path, viewer_pages.html())
    with opened(browser, url, seed) as page, opened(browser, url, seed) as other:
        begun = page.evaluate("vitviz.store.log().length")
        act(page, seed, 400 if LONG else 150)
        log = page.evaluate("(begun) => vitviz.store.log().slice(begun)", begun)
        assert 150 <= len(log) < 950  # the log keeps a thousand actions
        page.evaluate(SETTLE)
        other.evaluate(REPLAY, log)
        other.evaluate(SETTLE)
        for shown in ("vitviz.store.get()", PIXELS):
            assert other.evaluate(shown) == page.evaluate(shown)


# Some random actions exceed the limits of all scenes; opening a scene limits their values.
FIT = """() => {
    const { scene, pane } = vitviz.store.get();
    vitviz.store.dispatch({ type: 'opened', pane, scene });
}"""
# The part of a state in the address; the other pane is named by its scene, because a default may have no name yet.
ADDRESSED = """() => {
    const { beside, pointer, base, pace, messages, queryScene, started, ...others } = vitviz.store.get();
    return { ...others, beside: beside?.scene.id };
}"""


@pytest.mark.tier("all")
@pytest.mark.parametrize("seed", SEEDS)
def test_address_opens_the_same_view(browser: Chromium, app: Running, small: str, seed: int) -> None:
    names = {"images": ["Church", "Dog", "Nothing"], "models": [small, "nothing"], "sizes": [7, 286]}
    with opened(browser, f"{app.url}?model={small}", seed) as page:
        act(page, seed, 150 if LONG else 60, names={**names, "photos": ["0123456789abcdef"]})
        for script in (SETTLE, FIT, SETTLE):
            page.evaluate(script)
        with opened(browser, page.url, seed) as other:
            other.evaluate(SETTLE)
            for shown in (ADDRESSED, PIXELS):
                assert other.evaluate(shown) == page.evaluate(shown)
