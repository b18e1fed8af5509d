"""Learns, from searches already made, how to search the next pool of candidates in as few evaluations as possible."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dkaf.campaign.campaign import Campaign
    from dkaf.campaign.values import Candidate
    from dkaf.client import Client
    from dkaf.errors import FallbackWarning, InputError, Interrupted
    from dkaf.evaluation import Result, evaluate
    from dkaf.learning.fit import fit
    from dkaf.learning.progress import Progress
    from dkaf.policies import Policy, load
    from dkaf.search import Observation, Search, Suggestion
    from dkaf.settings import Settings, recipe
    from dkaf.sources.builtin import digits_tasks
    from dkaf.sources.corpora import load_corpus
    from dkaf.sources.corpus import Corpus
    from dkaf.sources.molecules import morgan_fingerprints
    from dkaf.sources.past import read_tasks
    from dkaf.sources.similarity import similarity_tasks
    from dkaf.tasks import TaskSet

# Where each public name lives. Imported at first use, so that the command line answers before PyTorch is there.
_HOMES = {
    "Campaign": "dkaf.campaign.campaign",
    "Candidate": "dkaf.campaign.values",
    "Client": "dkaf.client",
    "Corpus": "dkaf.sources.corpus",
    "FallbackWarning": "dkaf.errors",
    "InputError": "dkaf.errors",
    "Interrupted": "dkaf.errors",
    "Observation": "dkaf.search",
    "Policy": "dkaf.policies",
    "Progress": "dkaf.learning.progress",
    "Result": "dkaf.evaluation",
    "Search": "dkaf.search",
    "Settings": "dkaf.settings",
    "Suggestion": "dkaf.search",
    "TaskSet": "dkaf.tasks",
    "digits_tasks": "dkaf.sources.builtin",
    "evaluate": "dkaf.evaluation",
    "fit": "dkaf.learning.fit",
    "load": "dkaf.policies",
    "load_corpus": "dkaf.sources.corpora",
    "morgan_fingerprints": "dkaf.sources.molecules",
    "read_tasks": "dkaf.sources.past",
    "recipe": "dkaf.settings",
    "similarity_tasks": "dkaf.sources.similarity",
}

__all__ = [
    "Campaign",
    "Candidate",
    "Client",
    "Corpus",
    "FallbackWarning",
    "InputError",
    "Interrupted",
    "Observation",
    "Policy",
    "Progress",
    "Result",
    "Search",
    "Settings",
    "Suggestion",
    "TaskSet",
    "digits_tasks",
    "evaluate",
    "fit",
    "load",
    "load_corpus",
    "morgan_fingerprints",
    "read_tasks",
    "recipe",
    "similarity_tasks",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dkaf' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
