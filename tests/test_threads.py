from collections.abc import Iterator

import pytest
import scipy.linalg  # loads the library whose threads are counted  # noqa: F401
from threadpoolctl import threadpool_info, threadpool_limits

import dkaf


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def _three_threads() -> Iterator[None]:
    with threadpool_limits(3, user_api="blas"):
        yield


def test_a_training_keeps_linear_algebra_to_one_thread_and_gives_the_others_back(tiny_tasks: dkaf.TaskSet) -> None:
    assert blas_threads() == {3}
    seen: list[set[int]] = []
    dkaf.fit(tiny_tasks, method="gp", pretrain_updates=2, progress=lambda news: seen.append(blas_threads()))
    assert seen == [{1}, {1}]
    assert blas_threads() == {3}
