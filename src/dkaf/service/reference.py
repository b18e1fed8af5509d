"""The reference of the interface, as docs/http.md and as the page /docs, from what the service says of itself.

`python -m dkaf.service.reference > docs/http.md` writes it anew.
"""

import json
import sys
from collections.abc import Iterator
from html import escape
from typing import Any, NamedTuple

from dkaf.service.answers import WHEN
from dkaf.service.description import EVERYBODY, Json, operations, resolved

WIDTH = 120
ADDRESS = "http://127.0.0.1:8765"
INTRODUCTION = (
    "What `dkaf serve` answers to; `dkaf.Client` does the same from Python. Bodies and answers are JSON, and a field "
    "that is not named here is refused. Where the service has tokens, each request carries one: "
    "`Authorization: Bearer TOKEN`. What changes something takes a key: sent again under the same key, by the same "
    "caller, it happens once. The same for machines: `/openapi.json`.",
    "A refusal is `application/problem+json`; its `detail` says the rule, what came and the way out. Every route may "
    "answer 401, 403 and 429. An answer 5xx is a fault of the service: 503 where a campaign is busy (try again), 507 "
    "where its disk is full; its log says more.",
)
LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {}",
    "maxItems": "at most {}",
    "maxProperties": "at most {}",
    "pattern": "`{}`",
}


class Field(NamedTuple):
    """A field of a body or an answer, or a parameter."""

    name: str
    kind: str
    words: str


class Route(NamedTuple):
    """What is said of a route."""

    title: str
    words: str
    who: str
    sent: list[Field]
    call: str
    answered: list[Field]
    answer: str
    outcome: str


def walk(described: Json) -> Iterator[Route]:
    """Every route, as it is to be read."""
    for method, path, operation in operations(described):
        sent = [
            Field(each["name"], _kind(described, each["schema"]), f"In the {each['in']}. {each['description']}")
            for each in operation.get("parameters", [])
        ]
        for content in operation.get("requestBody", {}).get("content", {}).values():
            sent += _fields(described, content["schema"])
        (good, *refusals) = sorted(operation["responses"])
        ((kind, told),) = operation["responses"][good]["content"].items()
        yield Route(
            f"{method} {path}",
            operation["description"],
            operation["x-who"],
            sent,
            _call(described, method, path, operation),
            _fields(described, told["schema"]),
            _json(told["example"]) if kind == "application/json" else told["example"].strip(),
            f"{good}: {operation['responses'][good]['description']} Refused with {', '.join(refusals)}.",
        )


def _fields(described: Json, schema: Json, before: str = "") -> list[Field]:
    """The fields of a schema, and those inside them as `history[].id`."""
    plain = resolved(described, schema)
    if "anyOf" in plain:
        return [field for each in plain["anyOf"] for field in _fields(described, each, before)]
    if plain.get("type") == "array":
        return _fields(described, plain["items"], f"{before}[]")
    found = []
    for name, field in plain.get("properties", {}).items():
        place = f"{before}.{name}" if before else name
        words = [field.get("description", ""), *_limits(field)]
        if name not in plain.get("required", ()):
            words.append(f"By default {json.dumps(field.get('default'))}." if field.get("default") != "" else "")
        found.append(Field(place, _kind(described, field), " ".join(word for word in words if word)))
        found += _fields(described, field, place)
    return found


def _limits(field: Json) -> Iterator[str]:
    for each in [field, *field.get("anyOf", [])]:
        said = [
            words.format(f"{each[name]:.0f}" if isinstance(each[name], float) else each[name])
            for name, words in LIMITS.items()
            if name in each
        ]
        if said:
            sentence = f"{', '.join(said)}."
            yield sentence[0].upper() + sentence[1:]


def _json(value: Any) -> str:
    short = json.dumps(value)
    return short if len(short) <= WIDTH else json.dumps(value, indent=1)


def _kind(described: Json, schema: Json) -> str:
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " or ".join(map(json.dumps, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(described, each) for each in schema["anyOf"]))
    plain = resolved(described, schema)
    if plain.get("type") == "array":
        return f"list of {_kind(described, plain['items'])}"
    if plain.get("format") == "binary":
        return "file"
    return str(plain.get("type", "any"))


def _call(described: Json, method: str, path: str, operation: Json) -> str:
    """With curl."""
    query = []
    for each in operation.get("parameters", []):
        shown = str(each["schema"].get("examples", each.get("examples", ["x"]))[0])
        if each["in"] == "path":
            path = path.replace(f"{{{each['name']}}}", shown)
        else:
            query.append(f"{each['name']}={shown}")
    said = ["curl", *([] if method == "GET" else ["-X", method]), '-H "Authorization: Bearer $TOKEN"']
    if operation["x-who"] == EVERYBODY:
        said.pop()
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        if kind == "application/json":
            said += ["-H 'Content-Type: application/json'", f"-d '{json.dumps(content['example'])}'"]
        else:
            said.append("-F file=@pool.csv")
    return " ".join([*said, f"'{ADDRESS}{path}{'?' if query else ''}{'&'.join(query)}'"])


def as_markdown(described: Json) -> str:
    """docs/http.md."""
    lines = ["# The HTTP interface", "", *(f"{part}\n" for part in INTRODUCTION)]
    lines += ["| refused with | |", "|---|---|", *(f"| {status} | {when} |" for status, when in WHEN.items()), ""]
    lines += ["Written by `python -m dkaf.service.reference > docs/http.md`: change the routes, not this page.", ""]
    for route in walk(described):
        lines += [f"## {route.title}", "", f"{route.words} For {route.who}.", ""]
        for title, fields in (("sent", route.sent), ("answered", route.answered)):
            if fields:
                lines += [f"| {title} | kind | |", "|---|---|---|"]
                lines += [f"| `{name}` | {_cell(kind)} | {_cell(words)} |" for name, kind, words in fields] + [""]
        lines += ["```", route.call, "```", "```", route.answer, "```", route.outcome, ""]
    return "\n".join(lines).rstrip() + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def as_html(described: Json) -> str:
    """The page /docs: no script, and the service's own style."""
    parts = [f"<p>{_words(part)}</p>" for part in INTRODUCTION]
    refusals = (f"<tr><th scope=row>{status}</th><td>{_words(when)}</td></tr>" for status, when in WHEN.items())
    parts.append(f"<table><caption>refused with</caption>{''.join(refusals)}</table>")
    routes = list(walk(described))
    parts.append("<ul>" + "".join(f'<li><a href="#{_place(r)}">{escape(r.title)}</a></li>' for r in routes) + "</ul>")
    for route in routes:
        parts.append(f'<section id="{_place(route)}"><h2>{escape(route.title)}</h2>')
        parts.append(f"<p>{_words(route.words)} For {escape(route.who)}.</p>")
        for title, fields in (("sent", route.sent), ("answered", route.answered)):
            if fields:
                rows = (
                    f"<tr><th scope=row>{escape(name)}</th><td>{escape(kind)}</td><td>{_words(words)}</td></tr>"
                    for name, kind, words in fields
                )
                parts.append(f"<table><caption>{title}</caption>{''.join(rows)}</table>")
        parts.append(f"<pre>{escape(route.call)}</pre><pre>{escape(route.answer)}</pre><p>{_words(route.outcome)}</p>")
        parts.append("</section>")
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>dkaf: the HTTP interface</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        '<link rel="stylesheet" href="static/style.css"></head>'
    )
    top = '<header class="top"><a class="brand" href="./">dkaf</a></header>'
    return f"{head}<body>{top}<main><h1>The HTTP interface</h1>{''.join(parts)}</main></body></html>\n"


def _place(route: Route) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in route.title.lower())


def _words(text: str) -> str:
    """What stands between backquotes is code."""
    pieces = (f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(escape(text).split("`")))
    return "".join(pieces)


def main() -> Any:
    """Write it to the standard output."""
    import tempfile
    from pathlib import Path

    from dkaf.service.app import create_app

    with tempfile.TemporaryDirectory() as folder:
        return sys.stdout.write(as_markdown(create_app(Path(folder) / "data").openapi()))


if __name__ == "__main__":
    main()
