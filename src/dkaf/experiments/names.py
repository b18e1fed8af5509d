"""What methods, acquisitions and datasets are called and how they look, the same in every table and figure."""

from collections.abc import Iterable

from dkaf.settings import ACQUISITIONS

OURS = "dkaf"
INFORMED = "informed"
"""The searcher that knows the hidden representation: shown for scale, in no contest."""

# In the order of every table and legend.
NAMES = {
    OURS: "Ours",
    "dkl": "DKL",
    "gp": "GP",
    "rl": "RL",
    "metabo": "MetaBO",
    "random": "Random",
    "botorch": "BoTorch",
    INFORMED: "Informed",
}
UNTRAINED = ("random", "botorch", INFORMED)
WITH_ACQUISITION = (OURS, "dkl", "gp")
"""Methods that come once an acquisition function; the others are the same beside each."""

DATASETS = {
    "reuters": "Reuters",
    "neurips": "NeurIPS",
    "neurips-2001-2003": "NeurIPS 2001-2003",
    "webkb": "WebKB",
    "digits": "Digits",
}

# Okabe and Ito's colours, told apart by colour-blind readers too; the informed searcher has the colour of the text.
COLOURS = {
    OURS: "#d55e00",
    "dkl": "#0072b2",
    "gp": "#009e73",
    "rl": "#cc79a7",
    "metabo": "#e69f00",
    "random": "#969696",
    "botorch": "#56b4e9",
}
OTHER_COLOUR = "#8a7a5c"
MARKERS = {OURS: "o", "dkl": "s", "gp": "^", "rl": "D", "metabo": "v", "random": "X", "botorch": "P"}


def method_name(method: str, acquisition: str = "") -> str:
    """With its acquisition, if it has one to vary.

    >>> method_name("dkaf", "mi"), method_name("botorch", "ei"), method_name("rl")
    ('Ours MI', 'BoTorch', 'RL')
    """
    name = NAMES.get(method, method)
    return f"{name} {acquisition.upper()}" if acquisition and method != "botorch" else name


def dataset_name(dataset: str) -> str:
    return DATASETS.get(dataset, dataset)


def in_order(found: Iterable[str], known: Iterable[str]) -> list[str]:
    """The known first and in their order, then the others by alphabet.

    >>> in_order({"mine", "ucb", "ei"}, ("mi", "ei", "ucb"))
    ['ei', 'ucb', 'mine']
    """
    order, distinct = list(known), set(found)
    return [one for one in order if one in distinct] + sorted(distinct - set(order))


def methods_in_order(found: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """(method, acquisition) in the order of every table."""
    distinct = set(found)
    return [
        (method, acquisition)
        for method in in_order((method for method, _ in distinct), NAMES)
        for acquisition in in_order((a for m, a in distinct if m == method), ACQUISITIONS)
    ]
