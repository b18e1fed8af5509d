"""The campaigns and policies of a service's folder, by name; a few campaigns stay open so that asking again is fast."""

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dkaf.campaign.campaign import GP, Campaign
from dkaf.campaign.store import Store
from dkaf.errors import InputError
from dkaf.service.problems import Refusal

NAME = r"^[A-Za-z0-9_-]{1,64}$"
OPEN = 16
SETTLED = 2.0  # seconds


@dataclass
class Opened:
    """A campaign that is open."""

    name: str
    campaign: Campaign
    file: tuple[int, int]
    """Which file it is: one that was replaced is opened again."""
    changed: int = 0
    """When the file had last changed as it was looked at."""
    plots: tuple[int, dict[str, Any]] | None = None
    """What was drawn after so many events."""

    def last_event(self) -> int:
        return last_event(Path(self.campaign.path))


def last_event(path: Path) -> int:
    """How much has happened in a campaign's file."""
    store = Store(path)
    with store.reading() as db:
        return store.last_event(db)


class Watch:
    """How much has happened in a campaign's file, which is read only when it has changed: many may watch."""

    def __init__(self, path: Path) -> None:
        self._path, self._file, self._events = path, (0, 0, 0), 0

    def last_event(self) -> int:
        try:
            status = self._path.stat()
        except OSError:
            return last_event(self._path)  # says what is wrong
        file = (status.st_ino, status.st_mtime_ns, status.st_size)
        if file != self._file:
            self._events = last_event(self._path)
            settled = time.time() - status.st_mtime > SETTLED  # two changes in one tick of the clock look like one
            self._file = file if settled else (0, 0, 0)
        return self._events


class Shelf:
    """What is in the folder. Names are checked before they become paths."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.campaigns, self.policies = folder / "campaigns", folder / "policies"
        self._open: OrderedDict[str, Opened] = OrderedDict()
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Of the campaigns."""
        return sorted(path.stem for path in self.campaigns.glob("*.db") if re.fullmatch(NAME, path.stem))

    def path(self, name: str) -> Path:
        """Where a campaign is, or would be."""
        if not re.fullmatch(NAME, name):
            raise Refusal(404, f"a campaign's name is 1 to 64 letters, digits, - and _, {name!r} came; correct it")
        return self.campaigns / f"{name}.db"

    def existing(self, name: str) -> Path:
        """Where a campaign is."""
        path = self.path(name)
        if not path.is_file():
            raise Refusal(404, f"there is no campaign {name!r}; GET /api/campaigns names those that there are")
        return path

    def open(self, name: str) -> Opened:
        """A campaign, from memory if it is there; the one that was used longest ago makes room."""
        path = self.existing(name)
        status = path.stat()
        file, changed = (status.st_dev, status.st_ino), status.st_ctime_ns
        with self._lock:
            before = opened = self._open.get(name)
        if opened is not None and opened.changed != changed and not opened.campaign.is_the_same():
            opened = None  # another file, which got the number of one that was removed
        if opened is None or opened.file != file:
            opened = Opened(name, Campaign.open(path), file)  # which may take its time: not under the lock
        with self._lock:
            known = self._open.get(name)
            if known is not None and known is not before and known.file == file:
                opened = known  # as another thread has opened it
            opened.changed = changed
            self._open[name] = opened
            self._open.move_to_end(name)
            while len(self._open) > OPEN:
                self._open.popitem(last=False)
        return opened

    def summaries(self) -> Iterator[dict[str, Any]]:
        """Every campaign in a few words; they are read, not kept open."""
        for name in self.names():
            try:
                status = Campaign.open(self.path(name)).status()
            except InputError as error:
                yield dict.fromkeys(("best", "budget", "left", "created"), None) | {
                    "name": name, "candidates": 0, "told": 0, "pending": 0, "minimise": False, "policy": "",
                    "error": self.public(str(error)),
                }  # fmt: skip
                continue
            best = status["best"]
            yield {
                "name": name,
                "candidates": status["candidates"],
                "told": len(status["history"]),
                "pending": len(status["pending"]),
                "best": None if best is None else {"id": best["id"], "value": best["value"]},
                **{key: status[key] for key in ("budget", "left", "minimise", "policy", "created")},
            }

    def status(self, opened: Opened) -> dict[str, Any]:
        """Where a campaign is, without the server's paths."""
        campaign, status = opened.campaign, opened.campaign.status()
        pool = status["pool"]
        return status | {
            "name": opened.name,
            "campaign": f"{opened.name}.db",
            "pool": None if pool is None else Path(pool).name,
            "response": campaign.response,
            "id_column": campaign.id_column,
        }

    def policy(self, name: str) -> str | Path:
        """A policy by its name, or "gp"."""
        if name == GP:
            return GP
        path = self.policy_path(name)
        if not path.is_file():
            raise Refusal(404, f"there is no policy {name!r}; GET /api/policies names those that there are, or use gp")
        return path

    def policy_path(self, name: str) -> Path:
        """Where a policy is, or would be."""
        if not re.fullmatch(NAME, name) or name == GP:
            raise InputError(
                f"a policy's name is 1 to 64 letters, digits, - and _, and not gp, {name!r} came; rename it"
            )
        return self.policies / f"{name}.safetensors"

    def remove_policy(self, name: str) -> None:
        """Campaigns that began with it keep a copy of their own."""
        path = self.policy_path(name)
        if not path.is_file():
            raise Refusal(404, f"there is no policy {name!r}; GET /api/policies names those that there are")
        path.unlink(missing_ok=True)

    def described_policies(self) -> Iterator[dict[str, Any]]:
        """What each policy says of itself."""
        from dkaf.policies import describe

        for path in sorted(path for path in self.policies.glob("*.safetensors") if path.is_file()):
            try:
                about = describe(path)
            except InputError as error:
                yield dict.fromkeys(("method", "acquisition", "response", "id", "minimise", "gain_in_words"), None) | {
                    "name": path.stem, "columns": {}, "error": self.public(str(error)),
                }  # fmt: skip
                continue
            preparation = about["preparation"] or {}
            yield {
                "name": path.stem,
                "method": about["method"],
                "acquisition": about["acquisition"],
                "columns": about["columns"],
                "response": preparation.get("response"),
                "id": preparation.get("id"),
                "minimise": bool(preparation.get("minimise")),
                "gain_in_words": about["gain_in_words"],
            }

    def public(self, sentence: str) -> str:
        """A sentence without where the folder is on the server's disk."""
        for folder in {str(self.folder), str(self.folder.resolve())}:
            for inside in ("campaigns/", "policies/", "uploads/", "jobs/", ""):
                sentence = sentence.replace(f"{folder}/{inside}", "")
        return sentence
