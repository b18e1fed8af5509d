"""Every comparison, in the order of the table."""

from functools import partial

from benchmarks import campaigns, evaluation, likelihood, networks, pools, update
from benchmarks.comparison import Comparison

ALL = (
    Comparison("update", "update by policy gradient, paper's settings", "update", partial(update.case, "paper")),
    Comparison(
        "update-default",
        "update by policy gradient, default recipe",
        "update",
        partial(update.case, "default"),
        turns=4,
    ),
    Comparison("dkl", "update by likelihood, DKL", "update", partial(likelihood.case, "dkl"), turns=25),
    Comparison("gp", "update by likelihood, GP", "update", partial(likelihood.case, "gp"), turns=25),
    Comparison("rl", "update by policy gradient, RL", "update", partial(networks.case, "rl")),
    Comparison("metabo", "update by policy gradient, MetaBO", "update", partial(networks.case, "metabo")),
    Comparison("evaluation", "greedy search of 50 tasks", "evaluation", evaluation.case, turns=7),
    Comparison(
        "pool-sparse",
        "query in 100,000 sparse candidates",
        "query",
        partial(pools.case, pools.PoolSize(100_000, 1024, 32)),
        turns=7,
    ),
    Comparison(
        "pool-dense",
        "query in 100,000 dense candidates",
        "query",
        partial(pools.case, pools.PoolSize(100_000, 1024, None)),
        turns=7,
    ),
    Comparison(
        "campaign",
        "question and answer of a campaign on 100,000 candidates",
        "question",
        campaigns.case,
        turns=3,
        large=True,
    ),
    Comparison(
        "million-sparse",
        "query in 1,000,000 sparse candidates",
        "query",
        partial(pools.case, pools.PoolSize(1_000_000, 1024, 32)),
        turns=7,
        large=True,
    ),
    Comparison(
        "million-dense",
        "query in 1,000,000 dense candidates",
        "query",
        partial(pools.case, pools.PoolSize(1_000_000, 1024, None)),
        turns=7,
        large=True,
    ),
    Comparison(
        "file",
        "query in a file of 20,000,000 candidates",
        "query",
        partial(pools.case, pools.PoolSize(20_000_000, 32, None, on_disk=True)),
        turns=2,
        large=True,
    ),
)
COMPARISONS = {comparison.name: comparison for comparison in ALL}
