"""Serve a Gradio app with two explorers, mounted below a path of another app.

It runs in a separate process, because vitviz's own app replaces parts of Gradio.

Usage: python tests/embedding_app.py PHOTOGRAPH MODEL PORT EVENTS
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

PATH = "/some/path"
PARTS = ("patch", "block", "head", "prediction")


@contextmanager
def running(command: list[str], port: int, **options: Any) -> Iterator[str]:
    """Run a program that serves a page; yield its address once it responds."""
    import httpx
    from patience import wait_until

    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert program.poll() is None, "the program has ended"
        try:
            return httpx.get(url).status_code < 500
        except httpx.TransportError:
            return False

    program = Popen([sys.executable, *command], **options)
    try:
        wait_until(answers, "a server that answers", seconds=120, poll=0.2)
        yield url
    finally:
        program.terminate()
        program.wait()


@contextmanager
def served(photograph: Path, model: str, events: Path) -> Iterator[str]:
    """Run this app in a process of its own until the end; yield its address."""
    from asking import free_port

    port, root = free_port(), Path(__file__).parents[1]
    command = [__file__, str(photograph), model, str(port), str(events)]
    with running(command, port, env={**os.environ, "PYTHONPATH": str(root)}) as url:
        yield f"{url}{PATH}/"


def main(photograph: str, model: str, port: str, events: str) -> None:
    from vitviz.extras import without

    with without("mcp"):  # as in `vitviz app`: importing it takes seconds
        import fastapi
        import gradio as gr
        import uvicorn

        from vitviz.gradio import AttentionExplorer
    from vitviz.server import routes

    routes.TICK = 0.01  # quick questions report progress too

    def note(explorer: str, event: str) -> Callable[[gr.EventData], None]:
        def write(data: gr.EventData) -> None:
            line = {"explorer": explorer, "event": event, **{part: getattr(data, part) for part in PARTS}}
            with Path(events).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

        return write

    with gr.Blocks(analytics_enabled=False) as demo:
        with gr.Row():
            with gr.Column():
                left = AttentionExplorer(photograph, model=model, elem_id="left")
            with gr.Column():
                right = AttentionExplorer(model=model, elem_id="right")
        path = gr.Textbox(elem_id="path")
        for name, value in (("show", photograph), ("nothing", None)):
            gr.Button(name, elem_id=name).click(lambda value=value: value, None, right)
        gr.Button("read", elem_id="read").click(lambda photo: photo, right, path)
        for name, explorer in (("left", left), ("right", right)):
            for event in map(str, AttentionExplorer.EVENTS):
                getattr(explorer, event)(note(name, event), None, None, trigger_mode="multiple")
    app = gr.mount_gradio_app(fastapi.FastAPI(), demo, path=PATH)
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
