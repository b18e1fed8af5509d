"""Results as JSON on the output stream."""

import json
from typing import Any


def print_json(value: dict[str, Any] | list[Any]) -> None:
    """Strict JSON: a number that is none, such as the start gap without starting points, is null."""
    print(json.dumps(_without_nan(value), indent=2, allow_nan=False))


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and value != value else value
