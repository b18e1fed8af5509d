"""`dkaf data`: the corpora by name."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dkaf.cli.output import print_json

if TYPE_CHECKING:
    from dkaf.sources.corpora import Corpus


def add_commands(commands: Any) -> None:
    """Add them to the parser's commands."""
    data = commands.add_parser(
        "data",
        help="get the paper's corpora, or add your own",
        description="Labelled documents by name: the corpora of the paper, handwritten digits, and your own. Those "
        "that are here are kept in your cache folder, or in the folder that DKAF_CACHE names.",
    )
    actions = data.add_subparsers(required=True, metavar="ACTION")
    _add_list(actions)
    _add_get(actions)
    _add_info(actions)
    _add_add(actions)


def _add_list(actions: Any) -> None:
    parser = actions.add_parser("list", help="which there are, and which of them are here")
    _add_json(parser)
    parser.set_defaults(command=_list)


def _add_get(actions: Any) -> None:
    parser = actions.add_parser(
        "get",
        help="download one, or read it from a folder or an archive",
        description="Take a corpus from --from, from the folder that DKAF_DATA names, or from where it is published; "
        "check it, count its words and keep the result.",
    )
    parser.add_argument("name", metavar="NAME", help="see dkaf data list")
    parser.add_argument("--from", dest="source", type=Path, metavar="PATH", help="its archive, or a folder that has it")
    parser.add_argument("--form", metavar="FORM", help="which of its published forms (its first; info shows it)")
    parser.add_argument(
        "--unchecked", action="store_true", help="take files that differ from the published ones; info then says so"
    )
    _add_json(parser)
    parser.set_defaults(command=_get)


def _add_info(actions: Any) -> None:
    parser = actions.add_parser("info", help="what is in one that is here, beside what the paper says")
    parser.add_argument("name", metavar="NAME", help="see dkaf data list")
    _add_json(parser)
    parser.set_defaults(command=_info)


def _add_add(actions: Any) -> None:
    parser = actions.add_parser(
        "add",
        help="make one of your own documents",
        description="Keep your own labelled documents under a name: a folder with a folder a class, or a CSV file with "
        "a header (.tsv: separated by tabs).",
    )
    parser.add_argument("name", metavar="NAME", help="what it will be called")
    parser.add_argument("path", metavar="PATH", type=Path, help="the folder or the CSV file")
    parser.add_argument("--text", metavar="COLUMN", default="text", help="the column of texts (%(default)s)")
    parser.add_argument("--label", metavar="COLUMN", default="label", help="the column of labels (%(default)s)")
    parser.add_argument(
        "--min-documents", type=int, default=50, metavar="N", help="drop terms in fewer documents (%(default)s)"
    )
    parser.add_argument(
        "--min-words", type=int, default=50, metavar="N", help="drop documents of fewer words (%(default)s)"
    )
    _add_json(parser)
    parser.set_defaults(command=_add)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _list(options: argparse.Namespace) -> None:
    from dkaf.sources.summaries import summaries

    corpora = summaries()
    if options.json:
        print_json({"corpora": corpora})
        return
    width = max(len(corpus["name"]) for corpus in corpora)
    for corpus in corpora:
        _say(f"{corpus['name']:<{width}}  {corpus['title']}\n{'':<{width}}  {corpus['state']}")


def _get(options: argparse.Namespace) -> None:
    _print(get_with_bars(options.name, options.source, options.form, unchecked=options.unchecked), options)


def get_with_bars(
    name: str, source: Path | None = None, form: str | None = None, *, unchecked: bool = False
) -> "Corpus":
    """Get a corpus and show how far it is."""
    from dkaf.console import Bars
    from dkaf.sources.corpora import get_corpus

    with Bars() as bars:

        def show(stage: str, done: int, total: int | None) -> None:
            bars.advance(name, stage, done, done + 1 if total is None else total)

        return get_corpus(name, source, form, unchecked=unchecked, progress=show, say=bars.say)


def _info(options: argparse.Namespace) -> None:
    from dkaf.sources.corpora import load_corpus

    _print(load_corpus(options.name), options)


def _add(options: argparse.Namespace) -> None:
    from dkaf.sources.corpora import add_corpus

    corpus = add_corpus(
        options.name,
        options.path,
        text=options.text,
        label=options.label,
        min_documents=options.min_documents,
        min_words=options.min_words,
    )
    _print(corpus, options)


def _print(corpus: "Corpus", options: argparse.Namespace) -> None:
    from dkaf.sources.summaries import describe

    about = describe(corpus)
    if options.json:
        print_json(about)
        return
    _say(f"{about['name']}: {about['title']}")
    counts = {"documents": about["documents"], "terms": about["terms"], "classes": len(about["classes"])}
    for what, count in counts.items():
        beside = f"{about['paper'][what]:>9,} in the paper" if about["paper"] else ""
        _say(f"  {what:<13}{count:>7,}{beside}")
    for label, size in about["classes"].items():
        _say(f"  {'':<13}{size:>7,}  {label}")
    forms = [form for form in about["forms"] if form != about["form"]]
    lines = {"form": about["form"] + (f" (there is also {', '.join(forms)})" if forms else "")}
    if about["min_documents"]:
        lines["filters"] = f"terms in {about['min_documents']} documents, documents of {about['min_words']} words"
    lines["from"] = about["source"]
    if about["as_published"] is not None:
        lines["files"] = "as published" if about["as_published"] else "NOT as published, taken unchecked"
    lines |= {"terms of use": about["terms_of_use"], "digest": about["digest"]}
    for what, words in lines.items():
        _say(f"  {what:<13}{words}")


def _say(line: str) -> None:
    """Print it with escapes for what the output cannot show: names of files need not be text."""
    encoding = sys.stdout.encoding or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding))
