"""What the address holds, the way back and forward, and what can be taken away: links, pictures, pages."""

from pathlib import Path

import pytest
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import (
    DOG,
    MODEL,
    Gate,
    Running,
    address,
    click_patch,
    complete,
    example,
    expect_map,
    head,
    layer,
    own_photograph,
    ready,
    with_own,
)

from vitviz.resources import resource_folder

KOALA = resource_folder("examples") / "koala.jpg"  # taller than wide: 18 rows, where the first example has 13


def state(page: Browser) -> dict:
    return page.evaluate("vitviz.store.get()")


def change(page: Browser, **fields: object) -> None:
    """Change the state as the controls do."""
    page.evaluate("change => vitviz.store.dispatch({ type: 'change', change })", fields)


def said(page: Browser) -> str:
    return page.locator(".vv-message").text_content() or ""


# --- links


def test_a_link_shows_what_it_says(page: Browser, app: Running) -> None:
    ready(page, f"{app.url}?image=Dog&layer=5&head=2&from=4,7&color=magma&opacity=0.3&grid=1&smooth=1&gamma=0.5")
    expect(page.locator(".vv-explore .vv-title")).to_have_text("Layer 5, head 2, from patch row 4, column 7")
    change(page, gamma=1)  # the colors are compared as they are without
    expect_map(page, app.view(DOG).attention(4, 1, (3, 6)))
    now = state(page)
    assert (now["image"], now["model"]) == ("Dog", MODEL)
    assert (now["color"], now["opacity"], now["grid"], now["smooth"], now["query"]) == (
        "magma",
        0.3,
        True,
        True,
        [3, 6],
    )
    expect(page.locator(".vv-message")).not_to_be_visible()


def test_a_link_to_a_step_of_the_lecture_and_its_code(page: Browser, app: Running) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    ready(page, f"{app.url}?tab=lecture&step=4&lang=zh&from=6,10")
    expect(page.locator("[role=tab][aria-selected=true]")).to_be_in_viewport(ratio=1)  # their list scrolls on a phone
    page.set_viewport_size({"width": 1440, "height": 900})
    chosen = page.locator(".vv-tensors [aria-current]")
    expect(chosen).to_have_attribute("data-step", "4")
    expect(page.locator(".vv-text h2")).to_have_text("每个词元得到位置")
    expect(page.locator(".vv-tokens [aria-current]")).to_have_text(f"图块 {5 * app.view().trace.grid[1] + 10}")
    page.click("[data-go=qr]")
    expect(page.locator(".vv-code svg")).to_be_visible()
    expect(page.locator(".vv-address")).to_have_text(page.url)
    page.keyboard.press("PageDown")  # the code is open: nothing turns behind it
    page.keyboard.press("Escape")
    expect(page.locator(".vv-code")).not_to_be_visible()
    expect(chosen).to_have_attribute("data-step", "4")
    page.click("[data-go='1']")
    expect(page.locator(".vv-step:visible")).to_have_attribute("data-of", "5")
    assert address(page)["step"] == "5"
    page.go_back()
    expect(chosen).to_have_attribute("data-step", "4")


def test_a_link_to_rollout_and_to_who_attends(page: Browser, app: Running) -> None:
    ready(page, f"{app.url}?image=Dog&layer=5&head=2&from=4,7&mode=rollout")
    expect_map(page, app.view(DOG).rollout((3, 6)))
    head(page, 1)
    expect_map(page, app.view(DOG).attention(4, 1, (3, 6)))  # the layer was in the link, though rollout has none
    options = {"fuse": "max", "discard": 0.9, "residual": 0.3, "start": 1}
    page.goto(f"{app.url}?image=Dog&from=4,7&mode=rollout&fuse=max&discard=0.9&residual=0.3&start=2")
    page.wait_for_function("window.vitviz?.store.get().scene?.source.image === 'Dog'")
    expect_map(page, app.view(DOG).rollout((3, 6), **options))
    example(page, "Koala")
    page.wait_for_function("window.vitviz?.store.get().scene?.source.image === 'Koala'")
    change(page, discard=0, fuse="mean", residual=0.5, start=1)
    page.go_back()
    expect_map(page, app.view(DOG).rollout((3, 6), **options))
    ready(page, f"{app.url}?image=Dog&direction=column&from=2,2")
    expect(page.locator(".vv-explore .vv-title")).to_have_text("Layer 12, mean of 6 heads, to patch row 2, column 2")
    expect(page.locator("input[data-key=direction][value=column]")).to_be_checked()


def test_a_link_holds_the_input_size(page: Browser, app: Running, small: str) -> None:
    ready(page, f"{app.url}?model={small}")
    own = app.view(model=small).preprocess
    expect_map(page, app.view(model=small).attention())
    page.locator("#size select").select_option(index=1)
    page.wait_for_function("vitviz.store.get().scene.source.size !== null")
    size = page.evaluate("vitviz.store.get().size")
    assert size == 2 * max(own.height, own.width)
    finer = app.view(model=small, size=size)
    click_patch(page, finer, 5, 6)
    expect_map(page, finer.attention(query=(5, 6)))
    there = address(page)
    assert (there["size"], there["from"]) == (str(size), "6,7")
    page.reload()
    page.wait_for_function(f"window.vitviz?.store.get().scene?.source.size === {size}")
    expect_map(page, finer.attention(query=(5, 6)))
    expect(page.locator("#size select")).to_have_value(str(size))
    assert address(page) == there
    page.go_back()  # to where it was chosen
    page.go_back()
    page.wait_for_function("vitviz.store.get().scene.source.size === null")
    expect_map(page, app.view(model=small).attention())
    page.goto(f"{app.url}?image=Dog&size=99999&layer=3")
    expect(page.get_by_role("alert")).to_contain_text("at most")


def test_a_patch_that_only_the_named_photograph_has(page: Browser, app: Running) -> None:
    assert app.view().trace.grid[0] < 15 <= app.view(KOALA).trace.grid[0]
    ready(page, f"{app.url}?image=Koala&layer=2&from=15,3")
    expect_map(page, app.view(KOALA).attention(1, query=(14, 2)))
    expect(page.locator(".vv-message")).not_to_be_visible()


def test_a_link_names_a_model(page: Browser, app: Running, small: str) -> None:
    ready(page, f"{app.url}?image=Dog&model={small}&layer=2&head=5&from=register-2")
    expect_map(page, app.view(DOG, small).attention(1, 4, "register 2"))
    expect(page.locator("#model select")).to_have_value(small)


@pytest.mark.parametrize("name", ["Nobody", "../../etc/passwd", "/etc/passwd", "dog.jpg"])
def test_an_unknown_photograph_is_reported_and_the_page_opens(page: Browser, app: Running, name: str) -> None:
    ready(page, f"{app.url}?image={name}&layer=5&head=2&from=4,7")
    expect(page.get_by_role("alert")).to_contain_text(name)
    expect(page.get_by_role("alert")).to_contain_text("Church, Dog, Lizard")
    layer(page, 2)
    expect(page.locator(".vv-explore .vv-title")).to_contain_text("Layer 3")
    assert address(page)["image"] == "Church"


def test_an_unknown_model_is_reported_and_the_page_opens(page: Browser, app: Running) -> None:
    ready(page, f"{app.url}?image=Koala&model=/etc&layer=2")
    expect(page.get_by_role("alert")).to_contain_text("Expected the name of a model")
    expect_map(page, app.view().attention(1))
    assert address(page)["model"] == MODEL


def test_parts_that_make_no_sense_are_said(page: Browser, app: Running) -> None:
    ready(page, f"{app.url}?image=Church&layer=99&head=nine&from=300,1&mode=telepathy&opacity=7")
    expect_map(page, app.view().attention())
    for part in ("layer", "head", "from", "mode", "opacity"):
        assert f"{part}: expected" in said(page)


def test_what_is_not_ours_stays_in_the_address(page: Browser, app: Running) -> None:
    ready(page, f"{app.url}?__theme=dark&layer=3")
    layer(page, 4)
    assert address(page)["__theme"] == "dark"
    assert address(page)["layer"] == "5"


# --- back and forward


def test_back_and_forward(page: Browser, app: Running) -> None:
    view = app.view()
    ready(page, app.url)
    complete(page)
    steps = [view.attention()]
    layer(page, 4)
    steps.append(view.attention(4))
    expect_map(page, steps[-1])
    head(page, 2)
    steps.append(view.attention(4, 2))
    expect_map(page, steps[-1])
    click_patch(page, view, 3, 6)
    steps.append(view.attention(4, 2, (3, 6)))
    expect_map(page, steps[-1])
    page.mouse.move(5, 5)
    page.check(".vv-modes input[value=rollout]")
    steps.append(view.rollout((3, 6)))
    expect_map(page, steps[-1])
    for step in reversed(steps[:-1]):
        page.go_back()
        expect_map(page, step)
    for step in steps[1:]:
        page.go_forward()
        expect_map(page, step)


def test_back_and_forward_between_photographs(page: Browser, app: Running) -> None:
    ready(page, app.url)
    example(page, "Dog")
    expect_map(page, app.view(DOG).attention())
    example(page, "Koala")
    expect_map(page, app.view(KOALA).attention())
    click_patch(page, app.view(KOALA), 16, 3)
    layer(page, 4)
    page.mouse.move(5, 5)
    expect_map(page, app.view(KOALA).attention(4, query=(16, 3)))
    page.go_back()
    expect_map(page, app.view(KOALA).attention(query=(16, 3)))
    page.go_back()
    expect_map(page, app.view(KOALA).attention())
    page.go_back()
    expect_map(page, app.view(DOG).attention())
    page.go_back()
    expect_map(page, app.view().attention())  # where nothing was said, what the page opened with
    for _ in range(4):
        page.go_forward()
    assert address(page)["layer"] == "5"
    expect_map(page, app.view(KOALA).attention(4, query=(16, 3)))


def test_after_steps_faster_than_the_server_the_last_counts(page: Browser, app: Running) -> None:
    ready(page, app.url)
    for name, photo in (("Dog", DOG), ("Koala", KOALA)):
        example(page, name)
        expect_map(page, app.view(photo).attention())
    gate = Gate(page, "**/vitviz/open")
    for _ in range(2):
        page.go_back()
    page.go_forward()
    page.go_forward()
    page.go_back()
    page.wait_for_timeout(500)
    gate.open()
    expect_map(page, app.view(DOG).attention())
    assert address(page)["image"] == "Dog"
    layer(page, 0)
    expect_map(page, app.view(DOG).attention(0))


def test_what_is_done_while_a_link_is_on_its_way_does_not_undo_it(page: Browser, app: Running) -> None:
    ready(page, app.url)
    gate = Gate(page, "**/vitviz/open")
    example(page, "Koala")
    change(page, opacity=0.8)
    gate.open()
    expect_map(page, app.view(KOALA).attention())
    there = address(page)
    assert (there["image"], there["opacity"]) == ("Koala", "0.8")


def test_a_step_while_a_photograph_is_decoded_is_not_undone(page: Browser, app: Running) -> None:
    ready(page, app.url)
    for name, photo in (("Dog", DOG), ("Koala", KOALA)):
        example(page, name)
        expect_map(page, app.view(photo).attention())
    page.evaluate("""() => {
        const decode = HTMLImageElement.prototype.decode;
        const gate = new Promise((open) => { window.openGate = open; });
        window.held = 0;
        HTMLImageElement.prototype.decode = async function () {
            window.held += 1;
            await gate;
            return decode.call(this);
        };
    }""")
    page.go_back()
    page.wait_for_function("window.held === 1")
    page.go_back()
    page.evaluate("window.openGate()")
    expect_map(page, app.view().attention())
    assert "image" not in address(page)


def test_blocks_that_come_too_late_do_not_undo_a_step(page: Browser, app: Running) -> None:
    ready(page, app.url)
    example(page, "Dog")
    expect_map(page, app.view(DOG).attention())
    blocks = Gate(page, "**/vitviz/block")
    example(page, "Koala")
    page.wait_for_function("vitviz.store.get().scene.source.image === 'Koala'")
    while not blocks.held:
        page.wait_for_timeout(20)
    page.go_back()
    blocks.open()
    expect_map(page, app.view(DOG).attention())
    assert address(page)["image"] == "Dog"
    page.go_forward()
    expect_map(page, app.view(KOALA).attention())


def test_a_photograph_of_ones_own_survives_back_and_reload(page: Browser, app: Running, tmp_path: Path) -> None:
    photo = own_photograph(tmp_path)
    with_own(page, app, photo)
    assert "image" not in address(page)
    example(page, "Dog")
    expect_map(page, app.view(DOG).attention())
    page.go_back()
    expect_map(page, app.view(photo).attention())
    page.reload()
    page.wait_for_function("window.vitviz?.drawn > 0")
    expect_map(page, app.view(photo).attention())


def test_a_photograph_of_another_browser_is_in_no_link(page: Browser, app: Running) -> None:
    ready(page, f"{app.url}?photo=0123456789abcdef01234567&layer=3")
    expect(page.get_by_role("alert")).to_contain_text("only in the browser")
    expect_map(page, app.view().attention(2))
