"""Write build/questions.d.ts, the types of the page's questions, with which `make js` checks the page's scripts."""

import inspect
import typing
from pathlib import Path
from types import NoneType
from typing import Any

from vitviz.server import arguments as args
from vitviz.server.endpoints import Endpoints
from vitviz.web.questions import QUESTIONS

TYPES = Path(__file__).parents[1] / "build" / "questions.d.ts"


def types() -> str:
    """Return the arguments of the page's questions as TypeScript, without the scene."""
    lines = []
    for name, question in QUESTIONS.items():
        if question.page and (method := getattr(Endpoints, name, None)):
            hints = typing.get_type_hints(method, include_extras=True)
            fields = [
                f"{each.name}{'' if each.default is each.empty else '?'}: {type_name(hints[each.name])}"
                for each in inspect.signature(method).parameters.values()
                if each.name not in ("self", "scene", "photo")
            ]
            lines.append(f"  {name}: {{ {', '.join(fields)} }};\n" if fields else f"  {name}: {{}};\n")
    return (
        "/** Arguments of the questions, from the signatures of vitviz.server.endpoints (scripts/write_types.py). */\n"
        f"interface Arguments {{\n{''.join(lines)}}}\n"
    )


def type_name(hint: Any) -> str:
    """Return a type hint as TypeScript."""
    parts = typing.get_args(hint)
    if hint == args.Pair:
        return "[number, number]"
    if typing.get_origin(hint) is typing.Annotated:
        return type_name(parts[0])
    if typing.get_origin(hint) is list:
        return f"{type_name(parts[0])}[]"
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(map(repr, parts))
    if parts:
        return " | ".join(map(type_name, parts))
    return {str: "string", bool: "boolean", int: "number", float: "number", NoneType: "null"}[hint]


if __name__ == "__main__":
    TYPES.parent.mkdir(exist_ok=True)
    TYPES.write_text(types(), encoding="utf-8")
