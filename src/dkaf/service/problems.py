"""What the service says when it cannot do what was asked: problem+json, with the sentences of the command line."""

import json
from http import HTTPStatus
from typing import Any

from dkaf.errors import BusyError, DamagedError, InputError, NoRoomError


class Refusal(InputError):  # noqa: N818 - it is what it says
    """A refusal that has a status of its own; every other bad input is 400."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, headers or {}


def status_of(error: InputError) -> tuple[int, dict[str, str]]:
    """Whose fault it is, as HTTP says it, and headers to send."""
    if isinstance(error, Refusal):
        return error.status, error.headers
    if isinstance(error, BusyError):
        return 503, {"retry-after": "5"}
    if isinstance(error, NoRoomError):
        return 507, {}
    return (409 if isinstance(error, DamagedError) else 400), {}  # another try does not mend it


MEDIA_TYPE = "application/problem+json"


def problem(status: int, detail: str) -> dict[str, Any]:
    """As RFC 9457 has it."""
    return {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}


def problem_bytes(status: int, detail: str) -> bytes:
    """The same, as it is sent."""
    return json.dumps(problem(status, detail)).encode()


def of_body(errors: Any) -> str:
    """What is wrong with a body or a parameter, in one sentence, without what came."""
    said = []
    for error in list(errors)[:3]:
        place = ".".join(str(part) for part in error.get("loc", ()) if part != "body")
        said.append(f"{place or 'the body'}: {error.get('msg', 'is wrong')}")
    return f"a request is as /openapi.json says, this one is not ({'; '.join(said) or 'it cannot be read'}); correct it"
