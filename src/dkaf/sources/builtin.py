"""Data that comes with a dependency: nothing to download."""

from dkaf.sources.corpora import load_corpus
from dkaf.sources.similarity import similarity_tasks
from dkaf.tasks import TaskSet


def digits_tasks(n_tasks: int = 170, pool_size: int = 500, seed: int = 0) -> TaskSet:
    """Similarity tasks from scikit-learn's 1,797 handwritten digits of 8 x 8 pixels.

    >>> import dkaf
    >>> len(dkaf.digits_tasks(n_tasks=5, pool_size=20))
    5
    """
    digits = load_corpus("digits")
    return similarity_tasks(digits.features, digits.labels, n_tasks=n_tasks, pool_size=pool_size, seed=seed)
