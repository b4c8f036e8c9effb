"""Take screenshots of the running app: docs/page.png for README.md, other sizes, own photographs, and the lecture.

    python scripts/make_screenshots.py                 # docs/page.png
    python scripts/make_screenshots.py --all FOLDER    # three widths, light and dark, full pages
    python scripts/make_screenshots.py --own a.jpg ... # docs/first-minute.webp: the page with these photographs
    python scripts/make_screenshots.py --preview       # vitviz/web/preview.jpg: link previews
    python scripts/make_screenshots.py --similar       # docs/similar.webp, components.webp: two photographs' patches
    python scripts/make_screenshots.py --lecture       # docs/lecture/: one screen of each step of the lecture
    python scripts/make_screenshots.py --target        # docs/targets*.webp: Explain and Layers with a group of classes
    python scripts/make_screenshots.py --panels        # docs/: parts of the page, those of PANELS
    python scripts/make_screenshots.py --spots         # docs/spots.webp: bright spots of a planted neuron, and Repair
    python scripts/make_screenshots.py --static PHOTO  # docs/static.webp: a static site explains this photograph
    python scripts/make_screenshots.py --notebook      # docs/notebook.webp: the explorer in a cell of JupyterLab

Needs the development requirements and a Chromium on the PATH.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from vitviz.lecture.texts import STEPS
from vitviz.web import bundle

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

ROOT = Path(__file__).parents[1]
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
COMPLETE = "window.vitviz?.scenes?.get(vitviz.store.get().scene?.id)?.answers.complete"
RESTED = "vitviz.resting() && vitviz.progress.jobs.size === 0"
SIZES = {"wide": (1440, 900), "middle": (1024, 768), "phone": (390, 844)}
# The screens of the steps in docs/lecture.md, if not the first ones.
SCREENS = {
    "pixels": 2, "positions": 2, "cls": 2, "residual": 3, "attention": 5, "explanation": 4, "sinks": 2, "words": 3,
}  # fmt: skip
TWO_CLASSES = """() => {
    const { labels } = vitviz.scenes.get(vitviz.store.get().scene.id).manifest;
    const classes = ['German shepherd', 'dog'].map((name) => labels.indexOf(name)).sort((a, b) => a - b);
    vitviz.store.dispatch({ type: 'change', change: { target: `group:${classes}` } });
}"""
# For each file: query of the address, element to photograph, and element in it to point at, or to click if a button.
PANELS = {
    "score": ("tab=inside&image=Dog&head=5", ".vv-sums-view", "[data-head='4']"),
    "matter": ("tab=inside&image=Dog", ".vv-exact", "[data-do=exact]"),
    "few": ("tab=why&image=Dog&method=attn_lrp", ".vv-explain", "[data-do=few]"),
    "edge": ("image=Dog&from=7,8&open=edge", ".vv-explore", ".vv-held"),
}
PIN = """(change) => { const queryScene = vitviz.store.get().scene.id;
    vitviz.store.dispatch({ type: 'change', change: { ...change, queryScene } }); }"""
PREVIEW = (1200, 630)  # as sites that show previews crop them
PREVIEW_PAGE = """<style>{style}
body {{ margin: 0; background: #151310; color: #f3eee5; font-family: "Inter Variable"; }}
div {{ display: flex; gap: 8px; }} img {{ width: 596px; height: 398px; object-fit: cover; }}
p {{ margin: 44px 48px 0; font-size: 64px; font-weight: 600; letter-spacing: -0.02em; line-height: 1.2; }}
p + p {{ margin-top: 16px; font-size: 28px; font-weight: 400; letter-spacing: 0; color: #bdb4a6; }}
i {{ color: #f5b700; }}</style>
<div><img src="{left}"><img src="{right}"></div>
<p>Why does a model say <i>{label}</i>?</p><p>vitviz: see what an image model looks at</p>"""


def serve(model: str = "") -> str:
    """Start the app on a free port, if given with a model to open with, and return its address."""
    from vitviz.page import build, launch
    from vitviz.settings import settings

    defaults = replace(settings(), default=model)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch(build(defaults), defaults, host="127.0.0.1", port=port, prevent_thread_lock=True, quiet=True)
    return f"http://127.0.0.1:{port}/"


def launch_browser(playwright: Playwright) -> Browser:
    """Start the system's Chromium."""
    chromium = next((path for name in CHROMIUMS if (path := shutil.which(name))), None)
    if chromium is None:
        raise SystemExit(f"Expected a Chromium on the PATH ({', '.join(CHROMIUMS)}), got none. Install one.")
    return playwright.chromium.launch(executable_path=chromium, args=FLAGS)


def shoot(browser: Browser, address: str, file: Path, size: tuple[int, int], theme: str, whole: bool) -> None:
    """Take a screenshot after the first photograph is drawn."""
    page = browser.new_page(bypass_csp=True, viewport={"width": size[0], "height": size[1]})
    page.goto(f"{address}?theme={theme}")
    page.wait_for_function(COMPLETE)
    page.wait_for_function(RESTED, timeout=120_000)
    page.wait_for_timeout(800)  # wait for fonts and thumbnails
    page.add_style_tag(content="[data-do=lang] { visibility: hidden }")  # not every machine has Chinese letters
    page.screenshot(path=file, full_page=whole)
    page.close()
    print(file)


def shoot_preview(browser: Browser, address: str, file: Path) -> None:
    """Draw the picture for link previews: a photograph, its attention as a spotlight, and a question below."""
    page = browser.new_page(bypass_csp=True, viewport={"width": PREVIEW[0], "height": PREVIEW[1]})
    page.goto(f"{address}?theme=light")
    page.wait_for_function(f"{COMPLETE} && vitviz.resting()")
    pictures = page.evaluate(
        "[false, true].map((heat) => vitviz.panels[0].panes[0].pane.flat(heat).toDataURL('image/png'))"
    )
    label = page.locator(".vv-predictions .vv-name").first.text_content()
    page.set_content(PREVIEW_PAGE.format(style=bundle.style(), left=pictures[0], right=pictures[1], label=label))
    page.evaluate("document.fonts.ready")
    page.wait_for_timeout(800)  # wait for fonts
    Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(file, quality=85)
    page.close()
    print(file, file.stat().st_size)


def shoot_own(browser: Browser, address: str, photographs: list[Path], file: Path) -> None:
    """Upload photographs, and stack their screenshots into one picture."""
    page = browser.new_page(bypass_csp=True, viewport={"width": 1200, "height": 640})
    page.goto(f"{address}?theme=light")
    page.wait_for_function(COMPLETE)
    shots = []
    for photograph in photographs:
        before = page.evaluate("vitviz.store.get().scene.id")
        page.locator("#photo input[type=file]").first.set_input_files(str(photograph))
        page.wait_for_function(
            f"(id) => vitviz.store.get().scene.id !== id && {COMPLETE}",
            arg=before,
        )
        page.wait_for_timeout(800)
        shots.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
    height = min(640, *(shot.height for shot in shots))
    sheet = Image.new("RGB", (shots[0].width, (height + 12) * len(shots)), "white")
    for index, shot in enumerate(shots):
        sheet.paste(shot.crop((0, 0, shot.width, height)), (0, index * (height + 12)))
    sheet.save(file, quality=80, method=6)
    print(file, sheet.size)


def shoot_similar(browser: Browser, address: str, folder: Path) -> None:
    """Take screenshots of two photographs: patches similar to a pinned one, and components above the foreground."""
    page = browser.new_page(bypass_csp=True, viewport={"width": 1440, "height": 900})
    page.goto(f"{address}?theme=light&image=Dog&image2=Koala&pane=1&mode=similarity&from=4,15")
    page.wait_for_function(f"{COMPLETE} && vitviz.panels[0].similarity.matching?.done && vitviz.resting()")
    files: dict[str, list[Image.Image]] = {"similar": [], "components": []}
    for similar, name in (("cosine", "similar"), ("components", "components"), ("foreground", "components")):
        query = [3, 14] if name == "similar" else None
        page.evaluate(PIN, {"similar": similar, "query": query})
        page.wait_for_function(RESTED)
        page.wait_for_timeout(800)  # wait for fonts
        shot = page.locator(".vv-explore .vv-panes").screenshot()
        files[name].append(Image.open(io.BytesIO(shot)).convert("RGB"))
    for name, shots in files.items():
        height = sum(shot.height for shot in shots) + 12 * (len(shots) - 1)
        picture = Image.new("RGB", (max(shot.width for shot in shots), height), "white")
        top = 0
        for shot in shots:
            picture.paste(shot, (0, top))
            top += shot.height + 12
        picture.save(folder / f"{name}.webp", quality=80, method=6)
        print(folder / f"{name}.webp", picture.size)
    page.close()


def shoot_lecture(browser: Browser, address: str, folder: Path) -> None:
    """Take a screenshot of one screen of each step of the lecture, in full screen on a projector."""
    folder.mkdir(exist_ok=True)
    page = browser.new_page(bypass_csp=True, viewport={"width": 1280, "height": 720})
    page.goto(f"{address}?tab=lecture&from=6,10&theme=light")
    page.wait_for_function(COMPLETE, timeout=120_000)
    page.locator(".vv-top [data-do=full]").click()
    rested = "vitviz.resting() && !vitviz.progress.first"
    for step, name in enumerate(STEPS, 1):
        for change in ({"step": step}, {"part": SCREENS.get(name, 1)}):  # a change of the step resets the screen
            page.evaluate("change => vitviz.store.dispatch({ type: 'change', change })", change)
        page.mouse.move(0, 0)
        for _ in range(5):  # answers start further requests
            page.wait_for_timeout(800)
            page.wait_for_function(rested, timeout=240_000)
        file = folder / f"{name}.webp"
        Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(file, quality=60, method=6)
        print(file, file.stat().st_size)
    page.close()


def shoot_target(browser: Browser, address: str, file: Path) -> None:
    """Take screenshots of Why with a group of classes and the list from which it was chosen, and of Inside."""
    page = browser.new_page(bypass_csp=True, viewport={"width": 1280, "height": 720})
    page.goto(f"{address}?tab=why&image=Dog&method=attn_lrp&theme=light")
    page.wait_for_function(COMPLETE)
    page.evaluate(TWO_CLASSES)
    page.wait_for_function("vitviz.panels.find(({ field }) => field).heatmap?.target", timeout=120_000)
    for name in ("", "-layers"):
        page.locator(".vv-explain [data-field=target] input").click()
        if name:
            page.get_by_role("tab", name="Inside").click()
            page.wait_for_selector(".vv-layers-view .vv-chart", timeout=120_000)
        page.wait_for_function(RESTED, timeout=120_000)
        page.wait_for_timeout(800)
        target = file.with_stem(f"{file.stem}{name}")
        Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(target, quality=80, method=6)
        print(target, target.stat().st_size)
    page.close()


def shoot_panels(browser: Browser, address: str, folder: Path) -> None:
    """Take a screenshot of each of `PANELS`, cropped to the children of its element."""
    for name, (search, selector, pointed) in PANELS.items():
        page = browser.new_page(bypass_csp=True, viewport={"width": 1280, "height": 720})
        page.goto(f"{address}?theme=light&{search}")
        page.wait_for_function(COMPLETE)
        page.add_style_tag(content=".vv .vv-left { position: static; }")  # not beside what is scrolled to
        place = page.locator(f"{selector} {pointed}")
        place.hover(timeout=120_000)
        if "data-do" in pointed:
            place.click()
        shoot_children(page, selector, folder / f"{name}.webp")


def shoot_children(page: Page, selector: str, file: Path) -> None:
    """Take a screenshot of the children of an element, and close the page."""
    page.wait_for_function("vitviz.resting() && !vitviz.progress.first", timeout=120_000)
    page.wait_for_timeout(800)  # wait for fonts
    boxes = [box for part in page.locator(f"{selector} > *").all() if (box := part.bounding_box())]
    left, top = (min(box[side] for box in boxes) for side in "xy")
    right, low = (max(box[at] + box[size] for box in boxes) for at, size in (("x", "width"), ("y", "height")))
    scroll = page.evaluate("window.scrollY")
    clip = {"x": left - 8, "y": top + scroll - 8, "width": right - left + 16, "height": low - top + 16}
    shot = Image.open(io.BytesIO(page.screenshot(full_page=True, clip=clip))).convert("RGB")
    shot.save(file, quality=80, method=6)
    print(file, shot.size)
    page.close()


def shoot_spots(browser: Browser, file: Path) -> None:
    """Plant a neuron in the default model, and take a screenshot of its bright spots, without and with a register."""
    import vitviz
    from vitviz.lecture.numbers import ATTRACTS, PLANTED
    from vitviz.model.registers import plant_neurons
    from vitviz.weights.checkpoint import save
    from vitviz.weights.zoo import DEFAULT

    view = vitviz.Explorer(vitviz.load(DEFAULT)).open(vitviz.example("dog"))
    block = view.trace.depth // 3
    planted, _ = plant_neurons(view.model, view.images, block, [7], patches=PLANTED, attracts=ATTRACTS)
    planted.pretrained = replace(view.model.pretrained, name="DINOv2-S with a planted neuron")
    with tempfile.TemporaryDirectory() as folder:
        save(planted, folder)
        page = browser.new_page(bypass_csp=True, viewport={"width": 1440, "height": 900})
        page.goto(f"{serve(folder)}?theme=light&image=Dog&open=spots&layer={block + 4}&color=viridis")
        page.locator("[data-do=repair]").click(timeout=120_000)
        page.wait_for_function("vitviz.panels[0].panes.length === 2")
        page.wait_for_function(f"{COMPLETE} && {RESTED}", timeout=120_000)
        shoot_children(page, ".vv-explore", file)


def shoot_static(browser: Browser, photograph: Path, file: Path) -> None:
    """Write a static site with the default model and the examples, and save a screenshot of its tab Why."""
    from vitviz.site.static import write_site
    from vitviz.weights.zoo import DEFAULT

    with tempfile.TemporaryDirectory() as name:
        write_site(Path(name) / "site", [DEFAULT])
        handler = partial(SimpleHTTPRequestHandler, directory=f"{name}/site")
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            context = browser.new_context(
                viewport={"width": 1440, "height": 900}, service_workers="block", bypass_csp=True
            )
            context.add_init_script("localStorage.setItem('vitviz-welcomed', '1')")
            page = context.new_page()
            page.goto(f"http://127.0.0.1:{server.server_port}/?tab=why&method=gae&theme=light")
            page.wait_for_selector(".vv-file input", state="attached")
            page.locator(".vv-file input").set_input_files(str(photograph))
            page.get_by_text("browser, WASM").wait_for(state="attached", timeout=240_000)
            page.wait_for_selector(".vv-explain .vv-low:not(:empty)", timeout=240_000)
            page.wait_for_function("vitviz.resting() && !vitviz.progress.first", timeout=240_000)
            page.wait_for_timeout(800)  # wait for fonts
            shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            server.shutdown()
    shot.resize((1080, 675), Image.Resampling.LANCZOS).save(file, quality=80, method=6)
    print(file, file.stat().st_size)


def shoot_notebook(browser: Browser, file: Path) -> None:
    """Run a cell of a notebook in JupyterLab, and take a screenshot of it and of the explorer below."""
    import nbformat

    lines = ("import vitviz", 'view = vitviz.Explorer("dinov2-s14-everyday").open(vitviz.example("hedgehog"))', "view")
    kernel = {"name": "python3", "display_name": "Python 3"}
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        book = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell("\n".join(lines))], metadata={"kernelspec": kernel}
        )
        nbformat.write(book, Path(folder) / "look.ipynb")
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        command = [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"),
            *("--IdentityProvider.token=", f"--ServerApp.root_dir={folder}", "--expose-app-in-browser"),
            *("--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"),
        ]
        folders = {f"JUPYTER_{name}_DIR": f"{folder}/{name.lower()}" for name in ("CONFIG", "DATA", "RUNTIME")}
        free.close()
        server = subprocess.Popen(command, env=os.environ | folders | {"PYTHONPATH": str(ROOT)})
        try:
            while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
                time.sleep(0.2)
            page = browser.new_page(bypass_csp=True, viewport={"width": 1200, "height": 1000})
            page.set_default_timeout(240_000)
            page.goto(f"http://127.0.0.1:{port}/lab/tree/look.ipynb?reset")
            page.wait_for_function("document.querySelector('#jp-main-statusbar')?.textContent.includes('| Idle')")
            page.evaluate("void jupyterapp.commands.execute('application:toggle-left-area')")
            page.evaluate("void jupyterapp.commands.execute('notebook:run-all-cells')")
            page.frame_locator(".jp-OutputArea iframe").get_by_text("12 layers").wait_for()
            page.add_style_tag(content="[data-mime-type$=stderr], .Toastify { display: none }")
            page.wait_for_timeout(3000)  # wait for fonts and thumbnails
            shot = page.locator(".jp-NotebookPanel").screenshot()
        finally:
            server.terminate()
            server.wait()
    Image.open(io.BytesIO(shot)).convert("RGB").save(file, quality=80, method=6)
    print(file, file.stat().st_size)


def main() -> None:
    """Take the requested screenshots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="write every size and theme to FOLDER")
    parser.add_argument("--own", type=Path, nargs="+", metavar="PHOTOGRAPH", help="write docs/first-minute.webp")
    parser.add_argument("--lecture", action="store_true", help="write docs/lecture/")
    parser.add_argument("--target", action="store_true", help="write docs/targets*.webp")
    parser.add_argument("--similar", action="store_true", help="write docs/similar.webp and docs/components.webp")
    parser.add_argument("--panels", action="store_true", help="write pictures of parts of the page to docs/")
    parser.add_argument("--spots", action="store_true", help="write docs/spots.webp")
    parser.add_argument("--static", type=Path, metavar="PHOTOGRAPH", help="write docs/static.webp")
    parser.add_argument("--notebook", action="store_true", help="write docs/notebook.webp")
    parser.add_argument("--preview", action="store_true", help="write the picture of link previews")
    args = parser.parse_args()
    address = "" if args.static or args.spots or args.notebook else serve()
    with sync_playwright() as playwright:
        browser = launch_browser(playwright)
        if args.static:
            shoot_static(browser, args.static, ROOT / "docs" / "static.webp")
        elif args.notebook:
            shoot_notebook(browser, ROOT / "docs" / "notebook.webp")
        elif args.spots:
            shoot_spots(browser, ROOT / "docs" / "spots.webp")
        elif args.own:
            shoot_own(browser, address, args.own, ROOT / "docs" / "first-minute.webp")
        elif args.lecture:
            shoot_lecture(browser, address, ROOT / "docs" / "lecture")
        elif args.target:
            shoot_target(browser, address, ROOT / "docs" / "targets.webp")
        elif args.panels:
            shoot_panels(browser, address, ROOT / "docs")
        elif args.similar:
            shoot_similar(browser, address, ROOT / "docs")
        elif args.preview:
            shoot_preview(browser, address, ROOT / "vitviz" / "web" / bundle.PREVIEW)
        elif args.all is None:
            (ROOT / "docs").mkdir(exist_ok=True)
            shoot(browser, address, ROOT / "docs" / "page.png", SIZES["wide"], "light", whole=False)
        else:
            args.all.mkdir(parents=True, exist_ok=True)
            for name, size in SIZES.items():
                for theme in ("light", "dark"):
                    shoot(browser, address, args.all / f"{name}-{theme}.png", size, theme, whole=True)
        browser.close()


if __name__ == "__main__":
    main()
