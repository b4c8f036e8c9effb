"""Words: docstrings start with a verb, banned words do not come back, errors follow one template."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

EXEMPT: set[str] = set()

VERBS = """
    abort accept add adjust advance align allocate announce answer append apply arrange ask assemble assign attach
    attend attribute average backpropagate begin benchmark bind blend blur bound broadcast build bundle cache
    calculate call cancel capture center centre change check choose clamp classify clean clear clip clone close
    collect color combine compare compile complete compose compress compute concatenate configure continue convert
    copy correlate count cover create crop cut deal decode decrease deduplicate defer define delete deliver describe
    deserialize detach detect determine digest disable discard distribute divide download draw drop edit embed
    enable encode end enforce ensure enter enumerate erase estimate evaluate evict exchange execute expand explain
    export extend extract fail fetch fill filter find finish fit fix flatten flush fold follow format forward free
    freeze fuse gather generate get give go group guess handle hash hold honor ignore import include increase index
    infer initialise initialize insert install interleave interpolate intervene invert invoke iterate join keep
    label launch lay leave let limit link list listen load locate lock log look make map mark mask match materialize
    measure merge mix mock monitor move multiply name norm normalize note notify number offset open order overlay
    override pack pad paint parse pass patch pick place plan plot point pool pop populate predict prefix prepare
    preprocess print process produce project propagate prove provide prune publish pull push put quantize query
    queue raise randomize rank read rebuild receive recommend recompute record recover redirect redraw reduce refuse
    register release reload remember remove rename render repeat replace report represent request require rescale
    reserve reset reshape resize resolve restore resume retrieve retry return reverse rewrite roll rotate round
    route run sample save say scale scan scatter schedule score search seed select send separate serialize serve set
    share shift shorten show shuffle silence simplify size skip slice smooth snapshot sort span split spread stack
    standardize start state step stop store stratify stream strip substitute subtract sum summarise summarize
    suppress swap switch synchronize tabulate take tell test tile time tokenize trace track train transform
    translate transpose trim truncate try tune turn undo unfold unfreeze unpack unregister unwrap update upload
    upscale use validate verify visit wait walk warm warn watch weigh widen wrap write yield zero zip zoom
"""
OPENINGS = "what whether how which who whose where when why as until within it so"

# In names: parts of snake_case and CamelCase. In prose: whole words of docstrings, comments and messages.
BANNED_IN_NAMES = """
    came coming doubt doubts doubtful draws famous feed fineness floor had house newest offer offered offers peek
    pickled recognise recognised recognize room sides sweep swept thinning trunk turn turned turns wall wanted
"""
BANNED_DEFINITIONS = {"Feed", "Rows", "short", "words"}  # whole names of classes, functions and fields
BANNED_IN_PROSE = re.compile(
    r"\b(fineness|thinning|trunks?|newest|famous\w*|recogni[sz]e\w*|peek\w*|doubt\w*|sweep\w*|swept|walls?|offer\w*)\b",
    re.IGNORECASE,
)


def packages() -> dict[str, list[Path]]:
    """Return the files of each package and each module directly under vitviz/."""
    found: dict[str, list[Path]] = {}
    for path in sorted((ROOT / "vitviz").rglob("*.py")):
        parts = path.relative_to(ROOT / "vitviz").parts
        name = parts[0] if len(parts) > 1 else path.stem
        found.setdefault(name, []).append(path)
    return {name: paths for name, paths in found.items() if name not in EXEMPT}


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind ("module", "class" or "function") and text of every docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            kind = {ast.Module: "module", ast.ClassDef: "class"}.get(type(node), "function")
            if text:
                yield getattr(node, "lineno", 1), kind, text


def wrong_docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield docstrings that do not open as they should, or whose first paragraph is no sentence."""
    for line, kind, text in docstrings(tree):
        first = re.match(r"[\w'-]*", text).group().lower()
        opening = " ".join(text.split()[:6])
        if kind == "function" and first not in VERBS.split():
            yield line, f"docstring starts with no verb: {opening}"
        elif kind != "function" and (first in OPENINGS.split() or text.startswith("The same")):
            yield line, f"docstring starts with {first!r}: {opening}"
        if text.split("\n\n")[0].rstrip()[-1] not in ".:?!":
            yield line, f"docstring's first paragraph ends without a full stop: {opening}"


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield every name that is defined: classes, functions, arguments, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
    yield from definitions(tree)


def definitions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the names of classes, functions and fields of classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        if isinstance(node, ast.ClassDef):
            fields = (one for one in node.body if isinstance(one, ast.AnnAssign))
            yield from ((one.lineno, ast.unparse(one.target)) for one in fields)


def parts(name: str) -> set[str]:
    """Return the words of a name: `largest_side` -> largest, side; `HeadStatistics` -> head, statistics."""
    return {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def prose(source: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield comments and all strings."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def banned(path: Path, source: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield banned words in the file's name, in names, and in prose."""
    for line, name in [(1, path.stem), *names(tree)]:
        if found := parts(name) & set(BANNED_IN_NAMES.split()):
            yield line, f"name {name}: {', '.join(sorted(found))}"
    for line, name in [(1, path.stem), *definitions(tree)]:
        if name in BANNED_DEFINITIONS:
            yield line, f"name {name}"
    for line, text in prose(source, tree):
        for word in BANNED_IN_PROSE.findall(text):
            yield line, f"word {word!r}"


def message(node: ast.expr) -> str | None:
    """Return the text of a message, with {} for what is filled in; None if it is not written out here."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def wrong_errors(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield errors whose message is not "Expected X, got Y. Do Z."."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args):
            continue
        text = message(node.exc.args[0])
        kind = ast.unparse(node.exc.func)
        ours = kind.endswith("Error") and kind != "AttributeError"  # Python asks for that one in `__getattr__`
        if text is not None and ours and not follows_template(text):
            yield node.lineno, f"error is not 'Expected X, got Y. Do Z.': {text[:60]}"


def follows_template(text: str) -> bool:
    """Return whether a message says what was expected, what came, and what to do."""
    return bool(re.match(r"(Expected .*|\{\}[,;] )\bgot\b.*[.:] ?(\S.*[.}]|\{\})$", text, re.DOTALL))


def problems(path: Path) -> list[str]:
    """Return everything that is wrong with the words of a file."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    found = [*wrong_docstrings(tree), *banned(path, source, tree), *wrong_errors(tree)]
    return [f"{path.relative_to(ROOT)}:{line}: {what}" for line, what in sorted(found)]


@pytest.mark.parametrize("package", packages())
def test_words(package: str) -> None:
    found = [problem for path in packages()[package] for problem in problems(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ('def f():\n    """What it is."""', "no verb"),
        ('def f():\n    """Statistics of heads."""', "no verb"),
        ('def f():\n    """Return it"""', "full stop"),
        ('class A:\n    """Whether it is."""', "starts with 'whether'"),
        ('class A:\n    """The same again."""', "starts with 'the'"),
        ("def recognise(): ...", "name recognise"),
        ("class Rows: ...", "name Rows"),
        ("def f(trunk_width): ...", "trunk"),
        ("wanted = 1", "wanted"),
        ("class A:\n    words: str", "name words"),
        ("# the trunk of a model", "word 'trunk'"),
        ("raise ValueError('No such thing.')", "not 'Expected"),
        ("raise ValueError(f'Expected one, got {x}.')", "not 'Expected"),
    ],
)
def test_a_wrong_word_is_found(tmp_path: Path, code: str, problem: str) -> None:
    tree = ast.parse(code)
    found = [what for _, what in [*wrong_docstrings(tree), *banned(Path("a.py"), code, tree), *wrong_errors(tree)]]
    assert len(found) == 1
    assert problem in found[0]


@pytest.mark.parametrize(
    "code",
    [
        'class Heads:\n    """Statistics of heads."""\n    def f(self):\n        """Return them."""',
        "rows = turning = draw = shortened = words = short = 1",
        "raise ValueError(f'Expected one of {a}, got {b!r}. Choose one of these.')",
        "raise ValueError(f'Expected one of {a}, got {b!r}. {advice}')",
        "raise OtherError(text)",
    ],
)
def test_right_words_pass(code: str) -> None:
    tree = ast.parse(code)
    assert not [*wrong_docstrings(tree), *banned(Path("a.py"), code, tree), *wrong_errors(tree)]
