"""What the page does beside its numbers: where messages stand, what is in sight, how two things compare."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import close_menu, menu_click, menu_select, new_page, open_menu, speak
from patience import wait_until
from PIL import Image
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import (
    DOG,
    SCENE,
    SHIFT,
    THINGS,
    Running,
    address,
    at_patch,
    axe,
    change,
    complete,
    example,
    expect_map,
    own_photograph,
    ready,
    settled,
    upload,
)

from vitviz import Group, Similarity
from vitviz.analysis.pca_basis import PCABasis, fit_pca
from vitviz.formatting import percent
from vitviz.lecture.texts import STEPS
from vitviz.view import View

EXPLAIN = ".vv-explain"
WIDE, PHONE = (1440, 900), (390, 844)
MATCHED = """vitviz.scenes.size === 2 && vitviz.panels[0].similarity.matching?.done && vitviz.resting()
    && vitviz.progress.jobs.size === 0"""
SIMILAR = """() => {
    const view = vitviz.panels[0];
    const maps = [0, 1].map((pane) => {
        const { place, scene } = view.placeNow(pane);
        return [...view.shown(place, scene).values];
    });
    return [maps, view.similarity.matching.matches];
}"""
COLORS = """(pane) => {
    const view = vitviz.panels[0];
    const { place, scene } = view.placeNow(pane);
    return [...view.shown(place, scene).table];
}"""
DROPS = "(cells) => cells.map(({ title }) => Number(title.split(' ').at(-1).replace('−', '-')))"
CUT = "(cells) => cells.filter(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth).length"
SENTENCE = re.compile(r"\b[a-z]{2,}(?: [a-z]{2,}){3}")  # four English words


def open_tab(page: Browser, name: str) -> None:
    page.get_by_role("tab", name=name).click()
    settled(page)


def test_an_error_is_shown_in_view_and_where_it_arose(opened: Browser) -> None:
    upload(opened, Path(__file__))
    expect(opened.locator("#notice")).to_be_in_viewport(ratio=0.95)
    open_menu(opened)
    expect(opened.locator("[data-at=model]")).to_be_hidden()
    menu_select(opened, "#model select", "timm:vit_small_patch16_224.dino")
    open_menu(opened)
    expect(opened.locator("[data-at=model]")).to_be_visible()
    opened.click("#notice [data-do=dismiss]")
    expect(opened.locator("[data-at=model]")).to_be_hidden()
    open_tab(opened, "Why")
    opened.route("**/vitviz/faithfulness", lambda route: route.abort())
    opened.click(f"{EXPLAIN} [data-do=test]")
    expect(opened.locator(f"{EXPLAIN} .vv-testing .vv-trouble")).to_be_visible()
    opened.route("**/vitviz/intervene", lambda route: route.abort())
    change(opened, removed=20)
    opened.select_option(f"{EXPLAIN} [data-field=method]", "legrad")
    expect(opened.locator(f"{EXPLAIN} .vv-hide .vv-trouble")).to_be_visible()


def test_a_lost_network_is_one_message_and_what_was_lost_is_done_when_it_is_back(page: Browser, app: Running) -> None:
    lost = "[...vitviz.scenes.values()].flatMap(({ failed }) => [...failed])"
    page.route("**/vitviz/block", lambda route: route.abort())
    ready(page, app.url)
    notice = page.locator("#notice")
    page.wait_for_function(f"{lost}.length >= 3")
    expect(notice.locator("span")).to_contain_text("Could not load 3 layers. The server does not answer.")
    page.unroute("**/vitviz/block")
    notice.get_by_role("button", name="Try again").click()
    page.wait_for_function(f"{lost}.length === 0 && vitviz.panels[0].walls.grid.items.length > 0 && vitviz.resting()")
    expect(notice).to_be_hidden()
    expect_map(page, app.view().attention())
    page.context.set_offline(True)
    page.locator("[data-value=Dog]").click()
    expect(notice).to_be_visible()
    page.context.set_offline(False)  # the click was kept
    expect(page.locator("[data-value=Dog]")).to_have_attribute("aria-pressed", "true")
    expect_map(page, app.view(DOG).attention())
    expect(notice).to_be_hidden()


def test_groups_of_one_photograph_follow_the_layers_without_a_flip_of_colours(opened: Browser, app: Running) -> None:
    view = app.view()
    boxes = "(all) => all.map((element) => JSON.stringify(element.getBoundingClientRect()))"
    places = opened.locator(".vv-views label, .vv-explore .vv-held, .vv-grid")
    settled(opened)
    before = places.evaluate_all(boxes)
    for name in ("Similar", "Subject", "Groups"):  # no view moves the control, the picture or the wall
        opened.get_by_role("radio", name=name).check()
        settled(opened)
        assert places.evaluate_all(boxes) == before
    film = opened.locator(".vv-explore [data-do=play]")
    film.click()  # the film keeps the groups
    opened.wait_for_function("vitviz.store.get().block === 1")
    film.click()
    assert opened.evaluate("vitviz.store.get().mode") == "similarity"
    expected, shown = view.token_pca().colors, []
    for block in range(view.trace.depth):
        change(opened, block=block)
        settled(opened)
        expect(opened.locator(".vv-explore .vv-title")).to_have_text(
            f"Layer {block + 1}: patches that look alike to the model"
        )
        table = np.array(opened.evaluate(COLORS, 0), np.uint32).view(np.uint8).reshape(*view.trace.grid, 4)
        shown.append(table[..., :3] / 255)
        np.testing.assert_allclose(shown[-1], expected[block], atol=1.01 / 255)
    change(opened, open=["more"])
    opened.select_option("[data-field=descriptor]", "keys")
    expect(opened.locator(".vv-explore .vv-title")).to_have_text(
        f"Principal components of the keys of layer {view.trace.depth}"
    )


def test_subject_and_similar_follow_the_layers(opened: Browser, app: Running) -> None:
    view, title, slider = app.view(), opened.locator(".vv-explore .vv-title"), opened.locator("[data-key=block]")
    change(opened, query=[1, 2])
    opened.get_by_role("radio", name="Similar").check()
    expect(title).to_have_text(f"Similarity to patch row 2, column 3, values of layer {view.trace.depth - 1}")
    expect(slider).to_have_value(str(view.trace.depth - 1))  # the layer whose values match best, until one is chosen
    for block in (0, view.trace.depth - 1):
        slider.fill(str(block + 1))
        expect(title).to_have_text(f"Similarity to patch row 2, column 3, values of layer {block + 1}")
        settled(opened)
        place = "vitviz.panels[0].placeNow(0)"
        shown = opened.evaluate(f"[...vitviz.panels[0].shown({place}.place, {place}.scene).values]")
        cosines = view.compare(view, block=block).cosines[1, 2]
        np.testing.assert_allclose(np.reshape(shown, cosines.shape), cosines, atol=1e-3)
    opened.get_by_role("radio", name="Subject").check()
    opened.keyboard.press("[")
    block = view.trace.depth - 2
    expect(title).to_have_text(f"Foreground by the keys of layer {block + 1}")
    settled(opened)
    seen = np.reshape(opened.evaluate(COLORS, 0), view.trace.grid) == 0
    basis = fit_pca(view.model, [view.trace], "keys", block)
    np.testing.assert_array_equal(seen, basis.foreground(view.model, view.trace))
    slider.fill("1")
    expect(title).to_have_text("Foreground by the keys of layer 1")


def test_the_side_panel_has_no_scroller_and_its_buttons_are_in_sight(opened: Browser, tmp_path: Path) -> None:
    opened.set_viewport_size({"width": 1366, "height": 768})
    settled(opened)
    expect(opened.locator(".vv-explore [data-do=play]")).to_be_in_viewport(ratio=1)
    open_menu(opened)
    for name in ("compare", "link", "picture"):
        expect(opened.locator(f".vv-explore [data-do={name}]")).to_be_in_viewport(ratio=1)
    close_menu(opened)
    assert opened.locator(".vv-explore .vv-side").evaluate("(side) => getComputedStyle(side).overflowY") == "visible"
    expect(opened.locator("[data-key=opacity]")).to_be_hidden()  # until one asks for more
    opened.click(".vv-more > summary")
    expect(opened.locator("[data-key=opacity]")).to_be_visible()
    opened.wait_for_function("new URLSearchParams(location.search).get('open') === 'more'")
    opened.keyboard.press("m")
    expect(opened.locator("[data-key=opacity]")).to_be_hidden()
    opened.evaluate("scrollTo(0, 500)")
    upload(opened, own_photograph(tmp_path))
    opened.wait_for_function(f"{SCENE}?.source.photo")
    expect(opened.locator(".vv-explore .vv-picture")).to_be_in_viewport(ratio=0.9)
    expect(opened.locator(".vv-predictions ol")).to_be_in_viewport(ratio=0.9)


def test_hidden_patches_have_no_seams(opened: Browser, app: Running) -> None:
    rows, columns = app.view().trace.grid
    change(opened, tab="why", erased=list(range(rows * columns)))
    settled(opened)
    least = """(canvas) => {
        const box = [canvas.width >> 2, canvas.height >> 2, canvas.width >> 1, canvas.height >> 1];
        const { data } = canvas.getContext('2d').getImageData(...box);
        return data.reduce((least, value, at) => (at % 4 < 3 ? least : Math.min(least, value)), 255);
    }"""
    assert opened.locator(".vv-explain .vv-aid").first.evaluate(least) == 255


SLOW = [
    pytest.param(*case, marks=pytest.mark.tier("all")) for case in (("look", PHONE), ("why", WIDE), ("inside", WIDE))
]


@pytest.mark.parametrize(("tab", "size"), [("look", WIDE), *SLOW])
def test_nothing_moves_when_a_photograph_of_another_shape_is_opened_or_a_film_plays(
    opened: Browser, tmp_path: Path, tab: str, size: tuple[int, int]
) -> None:
    opened.set_viewport_size({"width": size[0], "height": size[1]})
    opened.evaluate(SHIFT)
    change(opened, tab=tab)
    settled(opened)
    for number, shape in enumerate([(300, 500), (700, 300)]):
        photo = tmp_path / f"{number}.png"
        Image.open(DOG).resize(shape).save(photo)
        opened.evaluate("window.shift = 0")  # what an opened tab moves is due to the visitor
        before = opened.evaluate(f"{SCENE}.id")
        upload(opened, photo)
        opened.wait_for_function(f"({SCENE}?.id ?? '{before}') !== '{before}'")
        complete(opened)
        settled(opened)
        assert opened.evaluate("window.shift") < 0.02, shape
        for block in (0, 3, 6):
            change(opened, block=block)
        settled(opened)
        assert opened.evaluate("window.shift") < 0.02, (shape, "film")


def test_what_if_bars_have_the_other_class_and_apply_heads_that_are_off(opened: Browser, app: Running) -> None:
    view = app.view()
    last = view.labels[view.best(len(THINGS))[-1]]
    change(opened, off=["0,0", "2,1"], tab="why", against=view.labels.index(last))
    settled(opened)
    expect(opened.locator(f"{EXPLAIN} .vv-heads-off")).to_contain_text("2 heads switched off")
    after = view.intervene(heads=[(0, 0), (2, 1)]).after[0]
    row = opened.locator(f"{EXPLAIN} .vv-pinned").filter(has_text=last)
    share = float(re.search(r"--share: ([\d.]+)", row.locator("i").get_attribute("style"))[1])
    assert share == pytest.approx(float(after[view.labels.index(last)]), abs=2e-3)


def test_compare_starts_with_a_choice_and_names_both_pictures(opened: Browser, app: Running) -> None:
    menu_click(opened, "compare")
    names = opened.locator(".vv-explore .vv-of")
    expect(names).to_have_count(2)
    expect(names.first).to_have_text(re.compile(r"^Church · "))
    opened.click("[data-versus=layer]")
    expect(opened.locator(".vv-versus")).to_be_hidden()
    titles = opened.locator(".vv-explore .vv-title")
    wait_until(lambda: len({*titles.all_text_contents()}) == 2, "the titles name two layers")
    example(opened, "Dog")
    expect(names.nth(1)).to_have_text(re.compile(r"^Dog · "))
    open_tab(opened, "Why")  # both photographs, each with its map
    names, titles = (opened.locator(f"{EXPLAIN} {name}") for name in (".vv-of", ".vv-title"))
    expect(names).to_have_text([re.compile(r"^Church · "), re.compile(r"^Dog · ")])
    expect(titles).to_have_text([view.explain("gae").title for view in (app.view(), app.view(DOG))])
    choice = opened.locator(f"{EXPLAIN} [data-field=target]")
    choice.get_by_role("combobox").fill("similarity")
    choice.get_by_role("option").click()
    settled(opened)
    church, dog = app.view(), app.view(DOG)
    alike = [church.explain("gae", Similarity(dog, "Dog")), dog.explain("gae", Similarity(church, "Church"))]
    expect(titles).to_have_text([heatmap.title for heatmap in alike])
    expect(opened.locator(f"{EXPLAIN} .vv-pinned")).to_contain_text("cosine")
    assert address(opened)["target"] == "similar:other"
    other = opened.locator(f"{EXPLAIN} [data-do=other]")
    expect(other).to_contain_text("Church")
    other.click()
    expect(other).to_contain_text("Dog")
    expect(choice.get_by_role("combobox")).to_have_value("similarity to Dog")
    opened.locator(f"{EXPLAIN} .vv-held").nth(1).click()  # explains that photograph, and hides no patch
    expect(other).to_contain_text("Church")
    assert opened.evaluate("vitviz.store.get().erased") == []
    open_tab(opened, "Inside")  # the target is the same in all tabs
    heads, layers = opened.locator(".vv-heads-view"), opened.locator(".vv-layers-view")
    expect(layers.locator(".vv-target span")).to_have_text("Target: similarity to Church.")
    heads.locator("[data-field=statistic]").select_option("ablation_logit")
    expect(heads.locator(".vv-chart-title")).to_have_text("Score drop")
    drops = dog.heads(["ablation_logit"], target=Similarity(church))["ablation_logit"].ravel()
    shown = heads.locator(".vv-cell").evaluate_all(DROPS)
    np.testing.assert_allclose(shown, drops, rtol=0.006, atol=1e-5)
    assert heads.locator(".vv-cell").evaluate_all(CUT) == 0
    expect(heads.locator(".vv-pinned")).to_contain_text("cosine")
    layers.locator("[data-do=field]").click()
    expect(choice.get_by_role("combobox")).to_be_visible()
    open_tab(opened, "Inside")
    words = layers.locator(".vv-chart svg").get_attribute("aria-label")
    cosines = ", ".join(f"{value:.2f}" for value in dog.lens(target=Similarity(church)).readings[:, 0])
    assert words.replace("−", "-") == f"Cosine after each layer. the similarity to Church: {cosines}."
    layers.locator("[data-do=predicted]").click()
    expect(layers.locator(".vv-chart-title")).to_have_text("Probability after each layer")
    expect(layers.locator(".vv-target span")).to_have_text("Target: the most probable classes.")


def test_similar_patches_matches_and_components_of_two_photographs_equal_pythons(
    opened: Browser, app: Running, tmp_path: Path
) -> None:
    church, dog = app.view(), app.view(DOG)
    requests = "performance.getEntriesByType('resource').filter(({ name }) => name.includes('/vitviz/')).length"
    search = "?image2=Dog&pane=1&mode=similarity&from=2,3&matches=4"
    opened.evaluate("(search) => vitviz.store.dispatch({ type: 'navigate', search })", search)
    opened.wait_for_function(MATCHED)
    complete(opened)

    def expect_python(*views: View, place: tuple[int, int] = (1, 2), **descriptor: Any) -> None:
        """Compare maps from a patch of the last view, lines and their text with Python's."""
        maps, matches = opened.evaluate(SIMILAR)
        for values, view in zip(maps, (church, dog), strict=True):
            cosines = views[-1].compare(view, **descriptor).cosines[place]
            np.testing.assert_allclose(np.reshape(values, cosines.shape), cosines, atol=1e-3)
        expected = church.compare(dog, **descriptor).mutual()
        assert [(*match["first"], *match["second"]) for match in matches] == [(*m.first, *m.second) for m in expected]
        text = opened.locator(".vv-lines").get_attribute("aria-label")
        (row, column), (row2, column2) = expected[0].first, expected[0].second
        assert f"row {row + 1}, column {column + 1} and row {row2 + 1}, column {column2 + 1}, " in text

    expect_python(church)
    expect(opened.locator(".vv-lines g")).to_have_count(4)
    change(opened, open=["more"])
    expect(opened.locator("[data-field=descriptor]")).to_have_value("values")
    expect(opened.locator("[data-key=block]")).to_have_value(str(church.trace.depth - 1))
    opened.keyboard.press("Escape")
    before = opened.evaluate(requests)

    def hover_dog() -> None:
        opened.mouse.move(*at_patch(opened, dog, 2, 3, pane=1))
        opened.wait_for_function("vitviz.store.get().pointer?.pane === 1 && vitviz.resting()")

    hover_dog()
    expect_python(dog, place=(2, 3))
    opened.locator("[data-field=matches]").fill("0")
    expect(opened.locator(".vv-lines g:not(.vv-marked)")).to_have_count(0)
    assert opened.evaluate(requests) == before
    opened.select_option("[data-field=descriptor]", "keys")
    opened.locator("[data-key=block]").fill("1")
    opened.locator("[data-field=matches]").fill("9")
    opened.wait_for_function(MATCHED)
    assert opened.evaluate(requests) == before + 4  # one for each photograph and choice
    hover_dog()  # reaching the controls has scrolled the page
    expect_python(dog, place=(2, 3), descriptor="keys", block=0)
    there = {"mode": "similarity", "descriptor": "keys", "layer": "1", "matches": "9"}
    opened.wait_for_function("new URLSearchParams(location.search).get('matches') === '9'")
    assert there.items() <= address(opened).items()
    assert axe(opened) == []
    opened.get_by_role("radio", name="Groups").check()
    title = opened.locator(".vv-explore .vv-title")
    expect(title).to_have_text(["Principal components of the keys of layer 1"] * 2)
    expect(opened.locator(".vv-lines")).to_be_hidden()
    opened.locator(".vv-similarity .vv-save summary").click()
    with opened.expect_download() as download:
        opened.locator(".vv-similarity [data-save]").click()
    download.value.save_as(tmp_path / "basis.npz")
    basis, fitted = PCABasis.load(tmp_path / "basis.npz"), fit_pca(church.model, [church.trace, dog.trace], "keys", 0)
    assert (basis.descriptor, basis.block) == ("keys", 0)
    for pane, view in enumerate((church, dog)):
        shown = np.array(opened.evaluate(COLORS, pane), np.uint32).view(np.uint8).reshape(*view.trace.grid, 4)
        np.testing.assert_allclose(shown[..., :3] / 255, fitted.colors(view.model, view.trace), atol=0.01)
        np.testing.assert_allclose(shown[..., :3] / 255, basis.colors(view.model, view.trace), atol=0.01)
        np.testing.assert_array_equal(
            basis.foreground(view.model, view.trace), fitted.foreground(view.model, view.trace)
        )
    opened.get_by_role("radio", name="Subject").check()
    expect(title).to_have_text(["Foreground by the keys of layer 1"] * 2)
    covered = np.array(opened.evaluate(COLORS, 0)) != 0
    np.testing.assert_array_equal(~covered.reshape(church.trace.grid), fitted.foreground(church.model, church.trace))
    assert axe(opened) == []
    opened.locator(".vv-explore .vv-picture").first.press("s")
    expect(opened.locator(".vv-similarity")).to_be_hidden()


def test_class_field_completes_what_is_typed_by_keyboard_and_pointer(opened: Browser, app: Running) -> None:
    open_tab(opened, "Why")
    field = opened.locator(f"{EXPLAIN} [data-field=target]")
    text, options = field.get_by_role("combobox", name="Explain"), field.get_by_role("option")
    best = app.view().predictions(1)[0][0]
    text.click()
    expect(options).to_have_count(len(THINGS))
    expect(field.get_by_role("option", selected=True)).to_contain_text(best)
    assert axe(opened, within=EXPLAIN) == []
    text.fill("THING")
    text.press("ArrowDown")
    active = field.locator(f"#{text.get_attribute('aria-activedescendant')}")
    expect(active).to_have_class("vv-active")
    text.press("Escape")
    expect(text).to_have_value(best)
    expect(text).to_have_attribute("aria-expanded", "false")
    text.fill("no such class")
    expect(field.get_by_role("status")).to_have_text("No class has this name.")
    text.blur()
    expect(text).to_have_value(best)
    text.fill("5")
    options.get_by_text("thing 5").click()
    title, rather = (opened.locator(f"{EXPLAIN} {part}") for part in (".vv-title", "[data-field=against]"))
    expect(title).to_contain_text("for thing 5")
    expect(rather).to_be_visible()
    text.fill("thing 7")
    text.press("Shift+Enter")  # ticks it
    expect(text).to_have_value("thing 5 or thing 7")
    options.filter(has_text="thing 3").locator(".vv-tick").click()
    expect(field.get_by_role("option", selected=True)).to_have_count(3)
    assert axe(opened, within=EXPLAIN) == []
    text.press("Enter")  # keeps the group
    expect(text).to_have_value("thing 3, thing 5 or thing 7")
    expect(rather).to_be_hidden()
    settled(opened)
    view, group = app.view(), Group([3, 5, 7])
    expect(title).to_have_text(view.explain("gae", group).title)
    assert address(opened)["target"] == str(group)
    row = opened.locator(f"{EXPLAIN} .vv-pinned")
    expect(row).to_contain_text("thing 3, thing 5 or thing 7")
    opened.click(f"{EXPLAIN} [data-do=test]")
    expect(opened.locator(f"{EXPLAIN} .vv-verdict")).to_contain_text("lowers the score of thing 3, thing 5 or thing 7")
    expect(opened.locator(f"{EXPLAIN} .vv-charts")).to_contain_text("probability")
    opened.reload()
    expect(text).to_have_value("thing 3, thing 5 or thing 7")
    text.click()
    for name in ("thing 3", "thing 5", "thing 7"):  # the last one stays
        options.filter(has=opened.get_by_text(name, exact=True)).locator(".vv-tick").click()
    expect(field.get_by_role("option", selected=True)).to_contain_text("thing 7")


def test_why_one_class_and_not_another_hides_patches_until_the_answer_flips(
    opened: Browser, app: Running, tmp_path: Path
) -> None:
    view, panel = app.view(), opened.locator(EXPLAIN)
    best, second, *_, unlikely = (view.labels[index] for index in view.best(13))
    open_tab(opened, "Why")
    start = panel.get_by_role("button", name=f"Why {best}, not {second}?")
    start.click()
    expect(start).to_be_hidden()
    pair = [best, unlikely]  # needs many steps
    panel.get_by_role("combobox", name="rather than").fill(unlikely)
    opened.keyboard.press("Enter")
    panel.locator("[data-field=method]").select_option("rollout")
    expect(panel.locator(".vv-speaks")).to_contain_text("the same for every class")
    panel.locator("[data-do=specific]").click()
    panel.locator("[data-field=method]").select_option("attn_lrp")
    expect(panel.locator(".vv-speaks")).to_contain_text(f"Red patches speak for {pair[0]}, blue ones for {pair[1]}.")
    expect(panel.locator(".vv-pinned .vv-name")).to_have_text(pair)
    settled(opened)
    panel.locator("[data-do=flip]").click()
    opened.wait_for_function("!vitviz.panels.find(({ hiding }) => hiding).hiding.searching")
    settled(opened)
    (rows, columns), classes = view.trace.grid, [view.labels.index(label) for label in pair]
    order = np.argsort(-view.explain("attn_lrp", contrast=tuple(pair)).values.ravel(), kind="stable")

    def leads(percent: int) -> float:
        gone = [divmod(int(patch), columns) for patch in order[: round(percent / 100 * rows * columns)]]
        first, second = view.intervene(drop=gone).after[0][classes]
        return first - second

    removed = opened.evaluate("vitviz.store.get().removed")
    assert removed > 4
    assert leads(removed) < 2e-3
    assert all(leads(percent) > -2e-3 for percent in range(2, removed, 2))
    expect(panel.locator(".vv-outcome")).to_contain_text(f"the answer flips: {pair[1]} leads {pair[0]}.")
    expect(panel.locator(".vv-fall .vv-chart")).to_have_count(1)
    panel.locator("[data-do=test]").click()
    expect(panel.locator(".vv-testing .vv-chart")).to_have_count(2)
    with opened.expect_download() as card:
        panel.locator("[data-do=card]").click()
    assert card.value.suggested_filename.startswith("vitviz-Church-")
    card.value.save_as(tmp_path / "card.png")
    with Image.open(tmp_path / "card.png") as picture:
        assert picture.width == 1890
    assert address(opened)["against"] == str(classes[1])
    panel.locator("[data-do=swap]").click()
    expect(panel.locator(".vv-outcome")).to_contain_text(f"{pair[0]} leads {pair[1]} already")


def test_a_link_carries_the_photograph_in_its_fragment(browser: Chromium, app: Running, tmp_path: Path) -> None:
    with new_page(browser, permissions=["clipboard-read", "clipboard-write"]) as page:
        ready(page, f"{app.url}?layer=2")
        expect(page.locator("[data-do=photo-link]")).to_be_hidden()
        upload(page, own_photograph(tmp_path))
        page.wait_for_function(f"{SCENE}?.source.photo")
        menu_click(page, "photo-link")
        expect(page.locator("#notice")).to_contain_text("It contains your photograph")
        link = page.evaluate("navigator.clipboard.readText()")
    address, fragment = link.split("#photo=")
    assert "photo" not in address
    assert len(fragment) <= 24_000 * 4 / 3 + 4
    with new_page(browser) as other:
        requested: list[str] = []
        other.on("request", lambda request: requested.append(request.url))
        ready(other, link)
        other.wait_for_function(f"{SCENE}?.source.photo && vitviz.store.get().block === 1")
        expect(other.locator("#notice")).to_contain_text("This photograph came with the link")
        assert not [url for url in requested if fragment[:40] in url]
        for bad in ("x" * 40_000, "%%%", "aGVsbG8"):
            other.goto("about:blank")  # another fragment alone loads no page
            ready(other, f"{address}#photo={bad}")
            expect(other.locator("#notice")).to_contain_text("Expected a photograph in this link")


def test_the_page_speaks_chinese_and_english_again(
    page: Browser, app: Running, models: dict[str, str], tmp_path: Path
) -> None:
    ready(page, f"{app.url}?model={models['several']}")
    tabs = page.locator("[role=tab]")

    def texts(announced: str) -> list[str]:
        expect(page.locator(".vv-live")).to_contain_text(announced)
        shown = []
        for tab in tabs.all():
            tab.click()
            settled(page)
            shown.append(page.locator(".vv").inner_text())
        return shown

    change(page, query=[2, 3], off=["0,0"], tab="why")
    page.locator(f"{EXPLAIN} [data-do=test]").click()
    english = texts("stays on the patch")
    expect(page.locator("[data-do=lang]")).to_have_text("中文")
    speak(page, "zh")
    for text in texts("留在图块自身"):
        assert not SENTENCE.findall(text)
    (tmp_path / "a.bin").write_bytes(bytes(9))
    for file, kind in ((Path(__file__), "文本"), (tmp_path / "a.bin", "未知格式的文件")):
        upload(page, file)
        expect(page.locator("#notice span")).to_have_text(re.compile(f"这是{kind}，不是照片。"))
        page.click("#notice [data-do=dismiss]")
    page.evaluate("vitviz.store.dispatch({ type: 'open', source: { model: 'timm:no model' } })")
    expect(page.locator("#notice span")).to_contain_text("得到的是 'timm:no model'")
    page.click("#notice [data-do=dismiss]")
    search = page.locator(".vv-known input")
    change(page, tab="look")
    page.evaluate("document.querySelector('.vv-known').open = true")
    for wanted, names in (("猫", ["猫"]), ("dog", ["狗"]), ("", ["狗", "猫", "fox"])):  # by either name
        search.fill(wanted)
        expect(page.locator(".vv-known li")).to_have_text(names)
    expect(page.locator(".vv-known li").nth(1)).to_have_attribute("title", "cat")
    page.evaluate("document.querySelector('.vv-known').open = false")
    speak(page, "en")
    assert texts("stays on the patch") == english


def test_sharper_keeps_the_patch_and_goes_back(opened: Browser, app: Running) -> None:
    change(opened, query=[2, 3])
    before = opened.evaluate(f"{SCENE}.grid")
    open_menu(opened)
    button = opened.locator("[data-do=sharper]")
    expect(button).to_have_text("Sharper")
    button.click()
    opened.wait_for_function(f"{SCENE}.grid[0] > {before[0]}")
    assert opened.evaluate("Array.isArray(vitviz.store.get().query)")
    expect(button).to_have_text("Standard")
    button.click()
    opened.wait_for_function(f"{SCENE}.grid[0] === {before[0]}")
    assert opened.evaluate("vitviz.store.get().query") == [2, 3]
    expect_map(opened, app.view().attention(query=(2, 3)))


def test_a_first_visit_begins_with_the_layers_until_any_input(browser: Chromium, app: Running) -> None:
    context = browser.new_context()
    page = context.new_page()
    ready(page, app.url)
    expect(page.locator(".vv-opening")).to_be_attached()
    page.wait_for_function("vitviz.store.get().thumbnail?.opening")
    page.keyboard.press("Shift")
    expect(page.locator(".vv-opening")).to_have_count(0)
    assert page.evaluate("vitviz.store.get().thumbnail") is None
    expect(page.locator(".vv-predictions li").first).to_contain_text(percent(app.view().predictions(1)[0][1]))
    ready(page, app.url)
    expect(page.locator(".vv-opening")).to_have_count(0)
    context.close()


def test_lecture_says_that_a_small_photograph_was_enlarged(opened: Browser, tmp_path: Path) -> None:
    with Image.open(DOG) as photo:
        photo.resize((66, 42)).save(tmp_path / "small.png")
    upload(opened, tmp_path / "small.png")
    open_tab(opened, "Lecture")
    opened.locator(f".vv-lecture button[data-step='{STEPS.index('pixels') + 1}']").click()
    expect(opened.locator(".vv-step:visible .vv-lost")).to_contain_text("enlarged")
