"""What the service says of itself: OpenAPI, with who may call each route and an example of everything."""

import re
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from dkaf.service.answers import Problem
from dkaf.service.auth import COOKIE, READING, SESSION

EVERYBODY, VIEWERS, OPERATORS = "everybody", "viewers and operators", "operators"
SECURITY: dict[str, Any] = {
    "token": {"type": "http", "scheme": "bearer", "description": "What dkaf token create showed."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "Of a page, from POST /api/session; changes then need X-CSRF-Token.",
    },
}
Json = dict[str, Any]


def describe(app: FastAPI) -> None:
    """Have the application describe itself so."""

    def openapi() -> Json:
        if not app.openapi_schema:
            app.openapi_schema = _whole(
                get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            )
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def operations(described: Json) -> Iterator[tuple[str, str, Json]]:
    """Every method of every path."""
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def methods_at(described: Json, path: str) -> list[str]:
    """What a path may be asked with."""
    found = [
        method.upper()
        for known, methods in described["paths"].items()
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", known), path)
        for method in methods
    ]
    return list(dict.fromkeys(found))


def resolved(described: Json, schema: Json) -> Json:
    """A schema by its name."""
    while "$ref" in schema:
        schema = described["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def example(described: Json, schema: Json) -> Any:
    """Put together from what the fields have as theirs."""
    if schema.get("examples"):
        return schema["examples"][0]
    if "default" in schema:
        return schema["default"]
    if "const" in schema:
        return schema["const"]
    if "anyOf" in schema:
        return example(described, schema["anyOf"][0])
    schema = resolved(described, schema)
    if schema.get("type") == "array":
        return [example(described, schema["items"])]
    if schema.get("type") == "object" or "properties" in schema:
        return {
            name: example(described, field)
            for name, field in schema.get("properties", {}).items()
            if field.get("examples") or name in schema.get("required", ())
        }
    raise AssertionError(f"a field of the interface has an example, this one has none: {schema}")


def _whole(described: Json) -> Json:
    schemas = described["components"]["schemas"]
    schemas["Problem"] = Problem.model_json_schema()
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own way of saying what is wrong is not ours
        schemas.pop(name, None)
    described["components"]["securitySchemes"] = SECURITY
    for method, path, operation in operations(described):
        operation["x-who"] = EVERYBODY if path == SESSION else VIEWERS if method in READING else OPERATORS
        operation["security"] = [] if path == SESSION else [{name: []} for name in SECURITY]
        if "application/json" in operation["responses"].get("422", {}).get("content", {}):
            del operation["responses"]["422"]
        contents = [answer.get("content", {}) for answer in operation["responses"].values()]
        for content in [operation.get("requestBody", {}).get("content", {}), *contents]:
            for kind, told in content.items():
                if kind == "application/json":
                    told.setdefault("example", example(described, told["schema"]))
    return described
