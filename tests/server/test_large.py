"""Large inputs and questions: refused with what fits, or run so that others need not wait."""

from __future__ import annotations

import gc
import re
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from offered import WIDTH, ask, folder, made, photograph
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import Running, ready, settled

from vitviz.attribution.registry import METHODS, attribute
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.memory import kept_bytes
from vitviz.server import endpoints as module
from vitviz.server import scheduler as scheduling
from vitviz.server import sizes
from vitviz.server.endpoints import Endpoints
from vitviz.server.routes import describe_error
from vitviz.server.scheduler import Client, Kind, Scheduler, current
from vitviz.server.settings import Settings
from vitviz.server.sizes import TooLargeError, check_fits, check_method, fits_in_memory, question_bytes


@pytest.fixture
def endpoints(tmp_path: Path) -> Endpoints:
    return made(tmp_path / "page", (folder(tmp_path / "a"),))


def test_a_large_input_gives_way_to_anothers_photograph(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    run, begun, end, order = module.open_view, threading.Event(), threading.Event(), []

    def held(explorer: Any, picture: Any, size: int | None) -> Any:
        if size is not None:
            begun.set()
            assert end.wait(60)
        return run(explorer, picture, size)

    monkeypatch.setattr(module, "open_view", held)
    monkeypatch.setattr(sizes, "LARGE", 2)

    def large() -> None:
        current.set(Client("127.0.0.2"))
        ask(endpoints, "open", photo=photograph(1), size=4 * WIDTH)
        order.append("large")

    thread = threading.Thread(target=large)
    thread.start()
    assert begun.wait(60)
    token = current.set(Client("127.0.0.9"))
    try:
        assert ask(endpoints, "open", photo=photograph(2))["id"]
        order.append("photograph")
    finally:
        current.reset(token)
        end.set()
        thread.join(60)
    assert order == ["photograph", "large"]


def test_an_input_of_too_many_patches_is_refused_also_at_the_models_own_size(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "MOST_PATCHES", 50)
    with pytest.raises(TooLargeError, match=r"at most 50 patches .* got 77") as refused:
        ask(endpoints, "open", photo=photograph(1))
    error = describe_error(refused.value)
    assert error["kind"] == "refused"
    assert error["size"] == refused.value.size
    assert refused.value.size is not None
    assert ask(endpoints, "open", photo=photograph(1), size=refused.value.size)["size"] == refused.value.size


def test_a_question_that_does_not_fit_is_refused_with_the_largest_size_that_does(endpoints: Endpoints) -> None:
    scene = ask(endpoints, "open", photo=photograph(1), size=4 * WIDTH)["id"]
    found = endpoints.scenes.get(scene)
    assert found is not None
    model, tokens = found.view.model, found.view.trace.tokens.shape[1]
    own = endpoints.loaded.get(found.model).explorer.preprocess
    need = question_bytes(model.config, METHODS["gae"], tokens, 4)
    allowed = type(endpoints.menu.settings)(question_memory=need - 1)
    endpoints.menu.settings = allowed
    with pytest.raises(TooLargeError, match=r"Open the photograph at \d+ pixels or fewer") as refused:
        ask(endpoints, "explain", scene=scene, method="gae")
    with pytest.raises(TooLargeError):
        ask(endpoints, "faithfulness", scene=scene, methods=["gae"])
    size = refused.value.size
    assert size is not None
    assert size < 4 * WIDTH
    smaller = ask(endpoints, "open", photo=photograph(1), size=size)["id"]
    assert ask(endpoints, "explain", scene=smaller, method="gae")["values"]
    check_method(model, METHODS["rollout"], (90, 60), own, tokens, allowed)  # it holds no matrix of all heads


def test_estimates_grow_with_the_square_where_matrices_are_held() -> None:
    config = tiny.model().config
    small, large = (question_bytes(config, METHODS["gae"], tokens, 4) for tokens in (5_000, 10_000))
    assert large > 3.5 * small
    small, large = (question_bytes(config, METHODS["occlusion"], tokens, 4) for tokens in (5_000, 10_000))
    assert large < 2.5 * small


@pytest.mark.parametrize("name", ["block", "attention", "lecture"])
def test_simple_questions_about_large_scenes_leave_the_light_threads(
    name: str, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = ask(endpoints, "open", photo=photograph(1))["id"]
    given = {"scene": scene, "block": 0}
    assert endpoints.question(name, given).light
    monkeypatch.setattr(module, "LIGHT_TOKENS", 20)
    question = endpoints.question(name, given)
    assert not question.light
    assert question.compute()


# --- what is offered is answered

SHAPES = {  # DINOv2's models
    "S/14": ViTConfig(width=384, depth=12, heads=6, patch_size=14, image_size=(518, 518)),
    "B/14": ViTConfig(width=768, depth=12, heads=12, patch_size=14, image_size=(518, 518)),
    "L/14": ViTConfig(width=1024, depth=24, heads=16, patch_size=14, image_size=(518, 518)),
}


def explorer_of(config: ViTConfig, mode: str = "crop") -> Any:
    """An explorer of a model that is never run: its weights would take gigabytes."""
    model = torch.nn.Linear(1, 1)
    model.config = config  # type: ignore[assignment]
    own = Preprocess(height=518, width=518, mode=mode, multiple=config.patch_size)
    return SimpleNamespace(model=model, preprocess=own)


@pytest.mark.parametrize("mode", ["crop", "native"])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_size_of_the_menu_is_refused(shape: str, mode: str) -> None:
    config, allowed, photo = SHAPES[shape], Settings(), (4000, 1500)
    explorer = explorer_of(config, mode)
    fits = fits_in_memory(explorer, allowed)
    offered = sizes.sizes(config, explorer.preprocess, photo, None, allowed.side, fits)
    assert len(offered) > 1
    for one in offered:
        for known in (photo, sizes.USUAL):
            check_fits(explorer, known, one.size, allowed)


def test_what_fits_is_not_refused() -> None:
    """The large model of the first two came to 2,044 pixels in 1.6 GB, of which 0.8 are kept."""
    allowed, photo = Settings(), (1200, 900)
    check_fits(explorer_of(SHAPES["B/14"]), photo, 2044, allowed)
    with pytest.raises(TooLargeError, match="Choose at most 1372 pixels"):
        check_fits(explorer_of(SHAPES["L/14"]), photo, 2044, allowed)
    for shape, method, side in (("S/14", "token_gradcam", 2044), ("B/14", "rollout", 2044), ("L/14", "gae", 896)):
        explorer = explorer_of(SHAPES[shape])
        tokens = (side // 14) ** 2 + 1
        check_method(explorer.model, METHODS[method], photo, explorer.preprocess, tokens, allowed)


def test_what_is_kept_of_a_scene_is_what_was_estimated(endpoints: Endpoints) -> None:
    scene = ask(endpoints, "open", photo=photograph(1), size=4 * WIDTH)["id"]
    found = endpoints.scenes.get(scene)
    assert found is not None
    config, trace = found.view.model.config, found.view.trace
    assert trace.nbytes == pytest.approx(kept_bytes(config, trace.tokens.shape[1]), rel=0.1)


def test_the_menu_of_an_open_photograph_leaves_out_what_would_be_refused(endpoints: Endpoints) -> None:
    roomy = ask(endpoints, "open", photo=photograph(1))["sizes"]
    found = endpoints.loaded.get(endpoints.menu.default).explorer
    kept = kept_bytes(found.model.config, 600)
    endpoints.menu.settings = replace(endpoints.menu.settings, scene_memory=int(kept / sizes.SHARE_OF_SCENE) + 20_000)
    opened = ask(endpoints, "open", photo=photograph(2))
    offered = [one["size"] for one in opened["sizes"] if one["size"] is not None]
    assert 1 <= len(offered) < len(roomy)
    for size in offered:
        assert ask(endpoints, "open", photo=photograph(2), size=size)["size"] == size
    with pytest.raises(TooLargeError):
        ask(endpoints, "open", photo=photograph(2), size=roomy[-1]["size"])


def test_statistics_and_tests_that_take_too_many_forward_passes_are_refused(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = ask(endpoints, "open", photo=photograph(1), size=2 * WIDTH)["id"]
    found = endpoints.scenes.get(scene)
    assert found is not None
    config, tokens = found.view.model.config, found.view.trace.tokens.shape[1]
    largest = sizes.work(config, len(config.prefix) + sizes.MOST_PATCHES)
    monkeypatch.setattr(sizes, "MOST_WORK", 5 * sizes.work(config, tokens) / largest)  # five forward passes
    assert ask(endpoints, "heads", scene=scene, names=["entropy"])["values"]
    assert ask(endpoints, "explain", scene=scene, method="gae")["values"]
    for name, given in (
        ("heads", {"names": ["ablation_logit"]}),
        ("faithfulness", {"methods": ["gae"]}),
        ("explain", {"method": "occlusion"}),
    ):
        with pytest.raises(TooLargeError, match=r"forward passes\. (Open|Choose)") as refused:
            ask(endpoints, name, scene=scene, **given)
        assert refused.value.size is None or refused.value.size < 2 * WIDTH


@pytest.mark.parametrize("method", ["gae", "gradient_rollout", "legrad", "transformer_lrp"])
def test_matrices_of_one_block_are_freed_before_those_of_the_next(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most those of one block are there when the next one begins, without the help of the garbage collector."""
    from vitviz.model.ops import Explicit

    model, images = tiny.model(), tiny.images(1)
    tokens, seen = model.trace(images).tokens.shape[1], []
    block = Explicit.block

    def counted(ops: Any, *args: Any) -> Any:
        matrices = [one for one in gc.get_objects() if type(one) is torch.Tensor and one.shape[-2:] == (tokens, tokens)]
        seen.append(sum(one.ndim == 4 for one in matrices))
        return block(ops, *args)

    monkeypatch.setattr(Explicit, "block", counted)
    gc.collect()
    gc.disable()
    try:
        attribute(model, images, 3, method)
    finally:
        gc.enable()
    assert len(seen) == model.config.depth
    assert max(seen) == seen[0]


# --- others need not wait


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("explain", {"method": "gae"}),
        ("rollout", {"token": 0}),
        ("heads", {"names": ["entropy"]}),
        ("layers", {}),
        ("intervene", {"patches": [1]}),
    ],
)
def test_short_questions_about_large_scenes_are_long_ones(
    name: str, given: dict[str, Any], endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "LARGE", 2)
    kinds: list[Kind] = []
    run = endpoints.scheduler.run
    monkeypatch.setattr(endpoints.scheduler, "run", lambda kind: kinds.append(kind) or run(kind))
    for size, kind in ((None, Kind.SHORT), (2 * WIDTH, Kind.LONG)):
        scene = ask(endpoints, "open", photo=photograph(1), size=size)["id"]
        kinds.clear()
        ask(endpoints, name, scene=scene, **given)
        assert kinds == [kind]


def test_a_long_computation_pauses_again_after_it_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would else hold up the photographs of the second half of a lecture."""
    now, pauses = [1.0], []
    monkeypatch.setattr(scheduling, "time", SimpleNamespace(monotonic=lambda: now[0]))
    scheduler = Scheduler()
    monkeypatch.setattr(scheduler, "urgent", lambda _: True)

    def pause(_: Kind, most: float) -> float:
        pauses.append(most)
        now[0] += most
        return most

    monkeypatch.setattr(scheduler, "pause", pause)
    with scheduling._GiveWay(scheduler, Kind.LONG):
        for _ in range(3):
            torch.zeros(1).sum()
            now[0] += 5  # it runs
    assert pauses[0] == scheduling.MOST_PAUSE
    assert sum(pauses[1:]) == 10


def test_the_progress_says_that_a_photograph_is_opened(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    decode, told = module.decode_apart, []

    def decoded(*args: Any, **options: Any) -> Any:
        told.append(current.get().progress["text"])
        return decode(*args, **options)

    monkeypatch.setattr(module, "decode_apart", decoded)
    token = current.set(Client("127.0.0.9"))
    try:
        for size in (None, 4 * WIDTH):
            ask(endpoints, "open", photo=photograph(7), size=size)
    finally:
        current.reset(token)
    assert told == ["Opening the photograph"] * 2


# --- the page's buttons


BUTTON = "[data-do=fits]"


def limited(app: Running, monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    monkeypatch.setattr(app.endpoints.menu, "settings", replace(app.endpoints.menu.settings, **limits))


def test_a_refused_question_offers_a_button_that_opens_the_largest_size_that_is_answered(
    page: Browser, app: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = app.view().model.config
    limited(app, monkeypatch, question_memory=question_bytes(config, METHODS["gae"], 600, 4))
    ready(page, f"{app.url}?tab=explain&method=gae&size={4 * WIDTH}")
    explain = page.locator(".vv-explain")
    expect(explain.locator(".vv-trouble")).to_contain_text("Open the photograph at")
    button = explain.locator(BUTTON)
    expect(button).to_have_text(re.compile(r"^Open at \d+ pixels$"))
    size = int(re.findall(r"\d+", button.inner_text())[0])
    assert WIDTH < size < 4 * WIDTH
    button.click()
    page.wait_for_function(f"vitviz.store.get().scene?.source.size === {size}")
    settled(page)
    expect(explain.locator(".vv-trouble")).to_be_hidden()
    expect(button).to_be_hidden()
    assert page.evaluate("vitviz.views.find((view) => view.maps).found?.values.length") > 0


def test_a_refused_input_size_offers_a_button_that_opens_the_largest(
    page: Browser, app: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready(page, app.url)
    settled(page)
    config = app.view().model.config
    limited(app, monkeypatch, scene_memory=int(kept_bytes(config, 700) / sizes.SHARE_OF_SCENE) + 5_000_000)
    before = page.evaluate("vitviz.store.get().scene.source")
    page.evaluate(f"vitviz.store.dispatch({{ type: 'open', source: {{ size: {12 * WIDTH} }} }})")
    notice = page.locator("#notice")
    expect(notice).to_contain_text("Choose at most")
    assert page.evaluate("vitviz.store.get().scene.source") == before
    size = int(re.findall(r"\d+", notice.locator(BUTTON).inner_text())[0])
    notice.locator(BUTTON).click()
    page.wait_for_function(f"vitviz.store.get().scene?.source.size === {size}")
    expect(notice).to_be_hidden()
    page.evaluate("vitviz.store.dispatch({ type: 'message', texts: ['Something else.'] })")
    expect(notice).to_be_visible()
    expect(notice.locator(BUTTON)).to_be_hidden()
