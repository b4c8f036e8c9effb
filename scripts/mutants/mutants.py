"""Measure whether the tests detect small faults ("mutants") in the program.

Mutants are drawn from the candidates of mutmut (Python) and Stryker (scripts), in proportion to the lines of the
packages. For each mutant, the tests that cover its line run until one fails. Mutants that fail
lint or type checks count as detected and are reported separately. Undetected mutants that change no behavior are listed
in `equivalent.json` with a reason and replaced by the next draw of the same package.

    make mutants                               # draw if necessary, record coverage, run, report; resumes
    python scripts/mutants/mutants.py COMMAND  # only draw, cover, run or report; --commit: the version to test

Trees and coverage are in build/mutants/COMMIT. Draws (`drawn.json`) and results (`results/COMMIT.jsonl`) are committed,
so that two versions of the tests run on the same mutants, and another machine can resume.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SEED = 20261123
COUNT = 60
SPARE = 10  # extra draws per package, to replace mutants that change no behavior
PACKAGES = [f"vitviz/{name}" for name in ("model", "attribution", "analysis", "images", "weights", "server")]
SCRIPTS = ["vitviz/web/core", "vitviz/web/compute", "vitviz/site/worker"]
DRAWN, EQUIVALENT = HERE / "drawn.json", HERE / "equivalent.json"
TIMEOUT = 120  # seconds per test, for mutants with endless loops
CPU_LIMIT = 1800  # seconds per process
NODE_MEMORY = "--max-old-space-size=2000"  # MB, for mutants with endless arrays
BROWSER = "tests/web tests/server tests/export tests/draw tests/test_formatting.py"  # Python tests that run scripts

Mutant = dict[str, Any]


def sources(package: str) -> list[Path]:
    """Return a package's files, relative to the project."""
    suffix = "*.js" if package in SCRIPTS else "*.py"
    return sorted(path.relative_to(ROOT) for path in (ROOT / package).rglob(suffix))


def shares() -> dict[str, int]:
    """Return package -> number of mutants, in proportion to its lines (largest remainders)."""
    lines = {
        name: sum(len((ROOT / path).read_text().splitlines()) for path in sources(name)) for name in PACKAGES + SCRIPTS
    }
    exact = {name: COUNT * count / sum(lines.values()) for name, count in lines.items()}
    whole = {name: int(share) for name, share in exact.items()}
    for name in sorted(exact, key=lambda name: whole[name] - exact[name])[: COUNT - sum(whole.values())]:
        whole[name] += 1
    return whole


# ---- drawing


def draw() -> None:
    """Draw the mutants and write them to `drawn.json`."""
    generator = random.Random(SEED)
    drawn: dict[str, list[Mutant]] = {}
    for package, share in shares().items():
        candidates = script_candidates(package) if package in SCRIPTS else python_candidates(package)
        chosen = generator.sample(range(len(candidates)), min(len(candidates), share + SPARE))
        drawn[package] = [{"id": f"{package}#{place}", **candidates[index]()} for place, index in enumerate(chosen)]
        print(package, len(candidates), "candidates", share, "drawn")
    DRAWN.write_text(
        json.dumps({"seed": SEED, "shares": shares(), "mutants": drawn}, indent=1, ensure_ascii=False) + "\n"
    )


def python_candidates(package: str) -> list[Any]:
    """Return mutmut's candidates, each as a function that returns its mutant."""
    from mutmut.mutation.file_mutation import create_mutations, deep_replace

    candidates = []
    for path in sources(package):
        text = (ROOT / path).read_text()
        module, mutations, *_ = create_mutations(str(path), text)
        for mutation in mutations:

            def mutant(path: Path = path, text: str = text, module: Any = module, mutation: Any = mutation) -> Mutant:
                mutated = deep_replace(module, mutation.original_node, mutation.mutated_node).code
                return difference(path, text, mutated)

            candidates.append(mutant)
    return candidates


def script_candidates(package: str) -> list[Any]:
    """Return Stryker's candidates, each as a function that returns its mutant."""
    paths = [str(path) for path in sources(package)]
    command = [node(), str(tools() / "candidates.mjs"), *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    def mutant(candidate: Mutant) -> Mutant:
        text = (ROOT / candidate["file"]).read_text()
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        begin, end = (starts[place["line"]] + place["column"] for place in (candidate["start"], candidate["end"]))
        return difference(Path(candidate["file"]), text, text[:begin] + candidate["replacement"] + text[end:])

    return [partial(mutant, candidate) for candidate in json.loads(done.stdout)]


def difference(path: Path, before: str, after: str) -> Mutant:
    """Return a mutant as the lines that differ: {file, line (from 1), old, new}."""
    old, new = before.splitlines(), after.splitlines()
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    tail = 0
    while tail < min(len(old), len(new)) - start and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return {
        "file": str(path),
        "line": start + 1,
        "old": old[start : len(old) - tail],
        "new": new[start : len(new) - tail],
    }


def tools() -> Path:
    """Return a folder where Node finds Stryker's instrumenter, installed if necessary."""
    folder = ROOT / "build" / "mutants" / "node"
    if not (folder / "node_modules").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"type": "module"}')
        npm = [str(Path(sys.executable).with_name("npm")), "install", "--silent", "--ignore-scripts"]
        subprocess.run([*npm, "@stryker-mutator/instrumenter@10"], cwd=folder, check=True)
    shutil.copy(HERE / "candidates.mjs", folder)
    return folder


def node() -> str:
    """Return Node's path."""
    return str(Path(sys.executable).with_name("node"))


# ---- one version of the tests


class Version:
    """Tree of a commit in which mutants are applied and tests run.

    Args:
        commit: name of the commit.
    """

    def __init__(self, commit: str) -> None:
        self.commit = subprocess.run(
            ["git", "rev-parse", "--short", commit], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        self.folder = ROOT / "build" / "mutants" / self.commit
        self.tree, self.results = self.folder / "tree", HERE / "results" / f"{self.commit}.jsonl"
        self.results.parent.mkdir(exist_ok=True)
        if not self.tree.exists():
            subprocess.run(
                ["git", "worktree", "add", "-q", "--detach", str(self.tree), self.commit], cwd=ROOT, check=True
            )
            (self.tree / "tests/js/node_modules").symlink_to(ROOT / "tests/js/node_modules")
            if (self.tree / "tests/js_vectors.py").exists():
                self.run(sys.executable, "tests/js_vectors.py")
            if (self.tree / "scripts/write_types.py").exists():
                self.run(sys.executable, "scripts/write_types.py")

    def run(self, *command: str, **environment: str) -> tuple[int, str]:
        """Run a command in the tree, and return its exit status and output."""
        settings = {"PYTHONPATH": str(self.tree), "MALLOC_ARENA_MAX": "1", "NODE_OPTIONS": NODE_MEMORY, **environment}
        done = subprocess.run(
            command, cwd=self.tree, env={**os.environ, **settings}, capture_output=True, text=True, check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT, CPU_LIMIT)),
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def pytest(self, *options: str, **environment: str) -> tuple[int, str]:
        """Run pytest."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", f"timeout={TIMEOUT}", *options]
        return self.run(*command, **environment)

    def scripts(self) -> tuple[int, str]:
        """Run the script tests in Node, with test vectors that Python wrote without mutants."""
        vectors = self.tree / "tests/js_vectors.py"
        if vectors.exists() and not (self.tree / "build/vectors.json").exists():
            raise SystemExit("Expected build/vectors.json in the tree, got none. Delete the tree and start again.")
        isolation = ["--test-isolation=none"] if vectors.exists() else []
        return self.run(node(), "--test", *isolation, *map(str, self.tree.glob("tests/js/*.test.mjs")))

    def cover(self) -> None:
        """Run the tests once, and record their coverage by line and their durations."""
        if (self.folder / "coverage").exists():
            return
        options = ["--cov=vitviz", "--cov-context=test", "--cov-report=", f"--junitxml={self.folder / 'junit.xml'}"]
        status, text = self.pytest(
            "-n", "2", "--dist", "loadfile", *options, COVERAGE_FILE=str(self.folder / "recorded")
        )
        (self.folder / "cover.log").write_text(text)
        if status not in (0, 1):
            raise SystemExit(text[-2000:])
        (self.folder / "recorded").rename(self.folder / "coverage")

    def touching(self, mutant: Mutant) -> list[str]:
        """Return the tests whose coverage includes a mutant's lines, fastest files first."""
        from coverage import CoverageData

        data = CoverageData(str(self.folder / "coverage"))
        data.read()
        contexts = data.contexts_by_lineno(str(self.tree / mutant["file"]))
        lines = range(mutant["line"], mutant["line"] + max(1, len(mutant["old"])))
        tests = {context.split("|")[0] for line in lines for context in contexts.get(line, [])} - {""}
        seconds = self.seconds
        if not tests:  # a line that runs on import needs all tests in files that cover any line of the module
            touching = {context.split("::")[0] for names in contexts.values() for context in names}
            tests = {test for test in seconds if test.split("::")[0] in touching}
        files = Counter[str]()
        for test in tests:
            files[test.split("::")[0]] += seconds.get(test, 0.1)
        return sorted(tests, key=lambda test: (files[test.split("::")[0]], test.split("::")[0]))

    @property
    def seconds(self) -> dict[str, float]:
        """Return test -> duration when coverage was recorded."""
        durations: dict[str, float] = defaultdict(float)
        for case in ET.parse(self.folder / "junit.xml").getroot().iter("testcase"):
            module = case.get("classname", "").replace(".", "/")
            durations[f"{module}.py::{case.get('name')}"] += float(case.get("time", 0))
        return durations


# ---- running


def apply(version: Version, mutant: Mutant) -> bool:
    """Apply a mutant to the tree; return False if the version does not have its lines."""
    path = version.tree / mutant["file"]
    lines = path.read_text().split("\n")
    old, size = mutant["old"], len(mutant["old"])
    places = [at for at in range(len(lines) - size + 1) if lines[at : at + size] == old]
    if not places:
        return False
    at = min(places, key=lambda at: abs(at - mutant["line"] + 1))
    path.write_text("\n".join([*lines[:at], *mutant["new"], *lines[at + size :]]))
    return True


def restore(version: Version) -> None:
    """Undo all mutants in the tree."""
    subprocess.run(["git", "checkout", "-q", "--", "vitviz"], cwd=version.tree, check=True)


def checks(version: Version, mutant: Mutant) -> str:
    """Return the name of the lint or type check that a mutant fails, or ""."""
    path = mutant["file"]
    if path.endswith(".py"):
        commands = {
            "ruff": [sys.executable, "-m", "ruff", "check", path],
            "mypy": [sys.executable, "-m", "mypy"],
        }
        try:
            ast.parse((version.tree / path).read_text())
        except SyntaxError:
            return "syntax"
    else:
        tools, js = version.tree / "tests/js/node_modules", str(version.tree / "tests/js")
        commands = {
            "tsc": [node(), str(tools / "typescript/bin/tsc"), "--project", js],
            "eslint": [node(), str(tools / "eslint/bin/eslint.js"), "--config", f"{js}/eslint.config.js", path],
        }
    return next((name for name, command in commands.items() if version.run(*command)[0]), "")


def examine(version: Version, mutant: Mutant) -> Mutant:
    """Apply a mutant, and return what detected it."""
    result: Mutant = {"id": mutant["id"], "noticed": ""}
    if not apply(version, mutant):
        restore(version)
        return {**result, "noticed": "not in this version"}
    try:
        if name := checks(version, mutant):
            return {**result, "noticed": f"lint or types: {name}"}
        if mutant["file"].endswith(".js"):
            status, text = version.scripts()
            if status:
                return {**result, "noticed": "node --test", "text": failures(text)}
            return {**result, **until_failure(version, [*BROWSER.split(), "--ignore-glob=*server/test_[!p]*"])}
        tests = version.touching(mutant)
        result["tests"] = len(tests)
        listed = version.folder / "tests.txt"
        listed.write_text("\n".join(tests))
        return {**result, **until_failure(version, [f"@{listed}"])} if tests else result
    finally:
        restore(version)


def until_failure(version: Version, what: list[str]) -> Mutant:
    """Run tests until a test fails that passes without the mutant; return its name, or ""."""
    left_out: list[str] = []
    while True:
        status, text = version.pytest("-x", *what, *(f"--deselect={name}" for name in left_out))
        ends = [line.split(" ", 1) for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        failed = [name.split(" - ")[0] for _, name in ends]
        if status in (-9, -24, 137, 152):
            return {"noticed": "endless"}
        if status == 0 or not failed:
            end = text[-500:].replace(f"{version.tree}/", "") if status else ""
            return {"noticed": "" if status in (0, 5) else "stopped", "text": end}
        saved = subprocess.run(["git", "diff"], cwd=version.tree, capture_output=True, text=True, check=True).stdout
        restore(version)
        passes = version.pytest(failed[0])[0] == 0
        subprocess.run(["git", "apply"], cwd=version.tree, input=saved, text=True, check=True)
        if passes:
            return {"noticed": failed[0], "chance": left_out}
        left_out.append(failed[0])


def failures(text: str) -> str:
    """Return Node's first failing test."""
    return next((line.strip() for line in text.splitlines() if line.startswith(("not ok", "✖"))), "")[:200]


def todo(drawn: dict[str, Any]) -> Iterator[Mutant]:
    """Yield the mutants of each package: its share, without those that change no behavior."""
    equivalent = json.loads(EQUIVALENT.read_text()) if EQUIVALENT.exists() else {}
    for package, mutants in drawn["mutants"].items():
        yield from [mutant for mutant in mutants if mutant["id"] not in equivalent][: drawn["shares"][package]]


def run(version: Version) -> None:
    """Examine every mutant without a result."""
    restore(version)  # an interrupted run leaves its mutant in the tree
    for name in {"vitviz/__init__.py", "vitviz/web/core/url.js"}:
        if check := checks(version, {"file": name}):
            raise SystemExit(f"Expected a version that passes lint and types, got one that fails {check}. Fix it.")
    done = {result["id"] for result in read(version)}
    for mutant in todo(json.loads(DRAWN.read_text())):
        if mutant["id"] not in done:
            result = examine(version, mutant)
            with version.results.open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(f"{mutant['id']} {mutant['file']}:{mutant['line']}  {result['noticed'] or 'NOT NOTICED'}", flush=True)


def read(version: Version) -> list[Mutant]:
    """Return the existing results."""
    return [json.loads(line) for line in version.results.read_text().splitlines()] if version.results.exists() else []


def report(version: Version) -> None:
    """Print the detected share, and all survivors."""
    results = {result["id"]: result for result in read(version)}
    mutants = [mutant for mutant in todo(json.loads(DRAWN.read_text())) if mutant["id"] in results]
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant in mutants:
        noticed = results[mutant["id"]]["noticed"]
        kind = "lint" if noticed.startswith("lint") else "tests" if noticed else "survived"
        rows[mutant["id"].split("#")[0]][kind] += 1
        if kind == "survived":
            print(
                f"{mutant['id']} {mutant['file']}:{mutant['line']}", *mutant["old"], "->", *mutant["new"], sep="\n    "
            )
    print(f"{version.commit}: package, detected by tests, by lint or types, not detected")
    for name, row in rows.items():
        print(f"{name:20} {row['tests']:4} {row['lint']:4} {row['survived']:4}")
    total = sum(rows.values(), Counter[str]())
    print(f"{'all':20} {total['tests']:4} {total['lint']:4} {total['survived']:4}")
    print(f"detected: {1 - total['survived'] / max(1, total.total()):.1%} of {total.total()}")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Measure whether the tests detect small faults.")
    parser.add_argument("command", choices=["draw", "cover", "run", "report", "all"], nargs="?", default="all")
    parser.add_argument("--commit", default="HEAD", help="the version to test (default: HEAD)")
    args = parser.parse_args()
    if args.command == "draw" or not DRAWN.exists():
        draw()
    if args.command == "draw":
        return
    version = Version(args.commit)
    if args.command in ("cover", "run", "all"):
        version.cover()
    if args.command in ("run", "all"):
        run(version)
    report(version)


if __name__ == "__main__":
    main()
