"""Archives are read without trusting them, and the same files are the same corpus however they are packed."""

import gzip
import io
import os
import re
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
import tiny_corpora as tiny

import dkaf
from dkaf.sources import archives
from dkaf.sources.archives import content_digest, read_files

WANTED = re.compile(r"(?:^|/)([a-z]/[^/]+\.txt)$")
FILES = {"a/one.txt": b"first", "b/two.txt": b"second \xe9"}


def tar_of(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size) if member.isreg() else None)
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 1, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size if kind == tarfile.REGTYPE else 0, link
    return info


@pytest.mark.parametrize("suffix", [".tar.xz", ".tar.gz", ".gtar.gz", ".tgz", ".tar.bz2", ".tar", ".zip", ".whl"])
def test_every_kind_of_archive_gives_the_files_of_the_folder(tmp_path: Path, suffix: str) -> None:
    folder = tiny.unpack(FILES | {"a/other.bin": b"no", "c.txt": b"no"}, tmp_path / "folder")
    archive = tiny.pack(FILES | {"a/other.bin": b"no"}, tmp_path / f"archive{suffix}", top="deep/er")
    assert read_files(folder, WANTED) == read_files(archive, WANTED) == FILES
    assert list(read_files(archive, WANTED)) == sorted(FILES)


def test_a_folder_may_be_named_at_any_depth(tmp_path: Path) -> None:
    folder = tiny.unpack(FILES, tmp_path / "x")
    assert read_files(tmp_path, WANTED) == FILES
    assert read_files(folder / "a", WANTED) == {"a/one.txt": b"first"}


def test_content_digest_depends_on_names_and_contents_only() -> None:
    digest = content_digest(FILES)
    assert content_digest(dict(reversed(FILES.items()))) == digest
    assert content_digest(FILES | {"a/one.txt": b"First"}) != digest
    assert content_digest({"a/1.txt": b"first", "b/two.txt": b"second \xe9"}) != digest


def test_two_different_files_of_one_name_are_refused_and_equal_ones_are_one(tmp_path: Path) -> None:
    tiny.unpack({"x/a/one.txt": b"1", "y/a/one.txt": b"1"}, tmp_path)
    assert read_files(tmp_path, WANTED) == {"a/one.txt": b"1"}
    tiny.unpack({"y/a/one.txt": b"2"}, tmp_path)
    with pytest.raises(dkaf.InputError, match=r"two different a/one\.txt"):
        read_files(tmp_path, WANTED)


@pytest.mark.parametrize(
    "name", ["../a/one.txt", "/a/one.txt", "x/../../a/one.txt", "..\\a\\one.txt", "C:\\a\\one.txt"]
)
def test_archives_that_leave_their_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(dkaf.InputError, match="leaves it"):
        read_files(tar_of(tmp_path / "x.tar.gz", member(name)), WANTED)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(dkaf.InputError, match="leaves it"):
        read_files(tmp_path / "x.zip", WANTED)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.tar.gz", "x.zip"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, kind: bytes) -> None:
    path = tar_of(tmp_path / "x.tar.gz", member("a/one.txt", kind, link="/etc/passwd"))
    with pytest.raises(dkaf.InputError, match=r"is a (link|device)"):
        read_files(path, WANTED)


def test_links_in_a_zip_are_refused(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("a/one.txt")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(info, b"/etc/passwd")
    with pytest.raises(dkaf.InputError, match="is a link"):
        read_files(tmp_path / "x.zip", WANTED)


def test_bombs_are_refused_before_they_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_BYTES", 1 << 20)
    for name in ("large.tar.xz", "large.tgz", "large.zip"):
        path = tiny.pack({"other": bytes(2 << 20)}, tmp_path / name)
        assert path.stat().st_size < 1 << 16
        with pytest.raises(dkaf.InputError, match="at most 1 MB"):
            read_files(path, WANTED)
    with pytest.raises(dkaf.InputError, match="at most 1 MB"):
        read_files(tiny.unpack({"a/one.txt": bytes(2 << 20)}, tmp_path / "folder"), WANTED)


def test_bombs_in_the_headers_of_a_tar_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_BYTES", 1 << 20)
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.REGTYPE):
        info = tarfile.TarInfo("a/one.txt")
        info.type, info.size = kind, 2 << 20
        path = tmp_path / "x.tar.gz"
        path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(3 << 20)))
        with pytest.raises(dkaf.InputError, match="at most 1 MB"):
            read_files(path, WANTED)


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_MEMBERS", 10)
    for name in ("many.tar.gz", "many.zip"):
        path = tiny.pack({f"file{number}": b"" for number in range(11)}, tmp_path / name)
        with pytest.raises(dkaf.InputError, match="at most 10 files"):
            read_files(path, WANTED)


@pytest.mark.parametrize("suffix", [".tar.xz", ".tar.gz", ".tar.bz2", ".tar", ".zip"])
def test_archives_that_are_cut_off_are_refused(tmp_path: Path, suffix: str) -> None:
    path = tiny.pack({f"a/{number}.txt": os.urandom(5000) for number in range(10)}, tmp_path / f"x{suffix}")
    whole = path.read_bytes()
    for share in (0.05, 0.5, 0.9):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(dkaf.InputError, match="cut off"):
            read_files(path, WANTED)


def test_archives_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    for content in (b"", b"PK\x03\x04 nonsense", b"\x1f\x8b nonsense", os.urandom(2000)):
        path.write_bytes(content)
        with pytest.raises(dkaf.InputError, match="damaged, cut off or none"):
            read_files(path, WANTED)
    damaged = bytearray(tiny.pack({"a/one.txt": os.urandom(5000)}, path).read_bytes())
    damaged[2500] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(dkaf.InputError, match="damaged"):
        read_files(path, WANTED)


@pytest.mark.parametrize(
    "page",
    [
        b"<html>Not found</html>",
        b'\xef\xbb\xbf\n<!DOCTYPE HTML PUBLIC "">',
        b'<?xml version="1.0"?>\n<html>' + b"x" * 999,
    ],
)
def test_a_web_page_is_called_one(tmp_path: Path, page: bytes) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(page)
    with pytest.raises(dkaf.InputError, match=r"x\.tar\.gz is a web page; get the archive itself"):
        read_files(path, WANTED)


def test_damage_that_ends_the_unpackers_in_other_errors_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("\xe9.txt", b"x")
    whole, name = (tmp_path / "x.zip").read_bytes(), "\xe9".encode()
    record = b"99999999999999999999 path=x\n"
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, len(record)
    damaged = {
        UnicodeDecodeError: whole.replace(name, b"\xff\xff"),
        IndexError: whole.replace(name, b"\0\0"),
        OverflowError: header.tobuf(tarfile.USTAR_FORMAT) + record.ljust(1024, b"\0"),
    }
    for ends_in, content in damaged.items():
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(dkaf.InputError, match="damaged, cut off or none") as refused:
            read_files(tmp_path / "x", WANTED)
        assert isinstance(refused.value.__cause__, ends_in)


def test_archives_with_a_password_are_refused(tmp_path: Path) -> None:
    path = tiny.pack(FILES, tmp_path / "x.zip")
    content = bytearray(path.read_bytes())
    content[content.rfind(b"PK\x01\x02") + 8] |= 1  # the last member says that it is encrypted
    path.write_bytes(content)
    with pytest.raises(dkaf.InputError, match="password"):
        read_files(path, WANTED)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(dkaf.InputError, match="cannot be read"):
        read_files(tmp_path / "nothing.tar.gz", WANTED)


def test_pipes_in_a_folder_are_passed_by(tmp_path: Path) -> None:
    folder = tiny.unpack(FILES, tmp_path / "x")
    os.mkfifo(folder / "a" / "pipe.txt")
    assert read_files(folder, WANTED) == FILES
