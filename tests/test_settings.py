"""Settings: the recipes, what can be changed in them and what cannot."""

import dataclasses
import itertools

import pytest

import dkaf
from dkaf.settings import ACQUISITIONS, METHODS, RECIPES

EVERY_RECIPE = list(itertools.product(RECIPES, METHODS, ACQUISITIONS))
FIELDS = dataclasses.fields(dkaf.Settings)


# Recipes


def test_the_paper_recipe_is_the_papers():
    paper = dkaf.recipe("paper")
    assert paper == dkaf.Settings()
    assert (paper.layers, paper.width, paper.dropout) == (4, 32, 0.0)
    assert (paper.learned_mean, paper.standardise_responses, paper.linear_features) == (False, False, 0)
    assert (paper.temperature, paper.baseline, paper.gamma) == (1.0, "batch", 0.99)
    assert (paper.learning_rate, paper.weight_decay, paper.likelihood_weight) == (1e-3, 0.0, 0.0)
    assert (paper.batch * paper.episodes, paper.updates, paper.queries) == (16, 1000, 10)
    assert paper.pretrain_updates > 0
    assert paper.patience is not None


def test_the_default_recipe_has_what_we_added():
    default = dkaf.recipe("default")
    assert default.learned_mean
    assert default.baseline == "leave-one-out"
    assert default.episodes > 1
    assert default.validation_starts > 1
    assert min(default.dropout, default.weight_decay, default.likelihood_weight) > 0


@pytest.mark.parametrize(("name", "method", "acquisition"), EVERY_RECIPE)
def test_every_method_and_acquisition_has_settings_and_an_override_wins(name, method, acquisition):
    settings = dkaf.recipe(name, method, acquisition)
    assert isinstance(settings, dkaf.Settings)
    changed = dkaf.recipe(name, method, acquisition, pretrain_learning_rate=0.5, temperature=9.0, updates=7)
    assert (changed.pretrain_learning_rate, changed.temperature, changed.updates) == (0.5, 9.0, 7)
    assert changed == settings.override(pretrain_learning_rate=0.5, temperature=9.0, updates=7)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("method", ["rl", "metabo", "random"])
def test_methods_without_an_acquisition_have_one_recipe(name, method):
    assert len({repr(dkaf.recipe(name, method, acquisition)) for acquisition in ACQUISITIONS}) == 1


def test_a_recipe_is_that_of_dkaf_with_mi_unless_told_otherwise():
    assert dkaf.recipe("default") == dkaf.recipe("default", "dkaf", "mi")


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("best",), ["recipe is one of paper, default", "'best'"]),
        (("paper", "gpp"), ["method is one of dkaf, dkl, gp, rl, metabo, random", "'gpp'"]),
        (("paper", "dkaf", "pi"), ["acquisition is one of mi, ei, ucb", "'pi'"]),
    ],
)
def test_an_unknown_recipe_method_or_acquisition_is_refused_with_the_known_ones(arguments, fragments):
    with pytest.raises(ValueError, match="is one of") as refusal:
        dkaf.recipe(*arguments)
    assert isinstance(refusal.value, dkaf.InputError)
    for fragment in fragments:
        assert fragment in str(refusal.value)


def test_training_refuses_unknown_names_before_any_work(tiny_tasks):
    for wrong in ({"method": "gpp"}, {"acquisition": "pi"}, {"recipe": "best"}, {"update": 3}):
        with pytest.raises(dkaf.InputError, match="is one of"):
            dkaf.fit(tiny_tasks, **wrong)


# Overrides


def test_override_changes_a_copy():
    paper = dkaf.recipe("paper")
    changed = paper.override(updates=3, patience=None)
    assert (changed.updates, changed.patience) == (3, None)
    assert (paper.updates, paper.patience) == (1000, 200)
    assert changed != paper


def test_settings_cannot_be_assigned_to():
    with pytest.raises(dataclasses.FrozenInstanceError):
        dkaf.recipe("paper").updates = 3  # type: ignore[misc]


@pytest.mark.parametrize("name", ["update", "Updates", "learning-rate", ""])
def test_an_unknown_setting_is_refused_with_the_known_ones(name):
    with pytest.raises(dkaf.InputError, match=r"learning_rate.*updates") as refusal:
        dkaf.recipe("default", **{name: 3})
    assert repr(name) in str(refusal.value)


# Printing


@pytest.mark.parametrize("name", RECIPES)
def test_printing_shows_every_setting_its_value_and_its_sentence(name):
    settings = dkaf.recipe(name)
    lines = str(settings).splitlines()
    assert len(lines) == len(FIELDS)
    for field, line in zip(FIELDS, lines, strict=True):
        assert line.split()[:2] == [field.name, str(getattr(settings, field.name))]
        assert line.endswith(field.metadata["sentence"])
        assert len(field.metadata["sentence"]) > 10


@pytest.mark.parametrize(("name", "method", "acquisition"), EVERY_RECIPE)
def test_what_is_printed_can_be_read_back_as_text(name, method, acquisition):
    settings = dkaf.recipe(name, method, acquisition)
    text = {field.name: str(getattr(settings, field.name)) for field in FIELDS}
    assert dkaf.recipe("paper", **text) == settings


# Values


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("updates", "200", 200),
        ("updates", 200.0, 200),
        ("learning_rate", "1e-2", 0.01),
        ("learning_rate", "2", 2.0),
        ("weight_decay", 0, 0.0),
        ("clip", "none", None),
        ("clip", "0.5", 0.5),
        ("patience", "off", None),
        ("patience", "None", None),
        ("patience", None, None),
        ("patience", "7", 7),
        ("learned_mean", "true", True),
        ("learned_mean", "Yes", True),
        ("learned_mean", "0", False),
        ("learned_mean", "no", False),
        ("learned_mean", True, True),
        ("inputs", "counts", "counts"),
        ("pretrain_updates", "0", 0),
        ("initial", "0", 0),
        ("gamma", "1", 1.0),
        ("dropout", "0", 0.0),
    ],
)
def test_values_and_their_text_are_read_as_the_settings_type(name, text, value):
    read = getattr(dkaf.recipe("paper", **{name: text}), name)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("updates", "many", "a whole number"),
        ("updates", "", "a whole number"),
        ("updates", "2.5", "a whole number"),
        ("updates", 2.5, "a whole number"),
        ("updates", True, "a whole number"),
        ("updates", None, "a whole number"),
        ("updates", float("inf"), "a whole number"),
        ("updates", [3], "a whole number"),
        ("updates", 10**400, "a whole number"),
        ("patience", "soon", "a whole number or none"),
        ("clip", "soft", "a finite number or none"),
        ("learning_rate", "fast", "a finite number"),
        ("learning_rate", "nan", "a finite number"),
        ("learning_rate", float("inf"), "a finite number"),
        ("learning_rate", None, "a finite number"),
        ("learning_rate", False, "a finite number"),
        ("learned_mean", "maybe", "true or false"),
        ("learned_mean", 2, "true or false"),
        ("learned_mean", None, "true or false"),
        ("inputs", "log", "one of auto, counts, standardise, raw"),
        ("inputs", None, "one of auto, counts, standardise, raw"),
        ("baseline", "mean", "one of batch, leave-one-out"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_the_right_one(name, value, rule):
    with pytest.raises(dkaf.InputError) as refusal:
        dkaf.recipe("paper", **{name: value})
    assert str(refusal.value).startswith(f"setting {name} is {rule}; ")
    assert repr(value) in str(refusal.value)


POSITIVE = ["nu", "queries", "pretrain_tasks", "pretrain_points", "pretrain_learning_rate", "batch"]
POSITIVE += ["episodes", "temperature", "learning_rate", "validate_every", "validation_starts"]
NOT_NEGATIVE = ["linear_features", "initial", "pretrain_updates", "updates", "scale_updates"]
NOT_NEGATIVE += ["likelihood_weight", "weight_decay"]
OPTIONAL = ["candidates", "clip", "patience", "pretrain_patience"]
INTEGERS = {field.name for field in FIELDS if "int" in str(field.type)}


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        *[(name, value, "above 0") for name in POSITIVE for value in (0, -1)],
        *[(name, -1, "at least 0") for name in NOT_NEGATIVE],
        *[(name, value, "above 0 or none") for name in OPTIONAL for value in (0, -1)],
        ("dropout", -0.1, "at least 0 and below 1"),
        ("dropout", 1, "at least 0 and below 1"),
        ("gamma", 0, "above 0 and at most 1"),
        ("gamma", 1.01, "above 0 and at most 1"),
        ("layers", 0, "above 0 and at most 100"),
        ("layers", 101, "above 0 and at most 100"),
        ("width", 0, "above 0 and at most 100000"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_range(name, value, rule):
    with pytest.raises(dkaf.InputError) as refusal:
        dkaf.recipe("paper", **{name: value})
    assert f"setting {name} is {rule}, {float(value) if name not in INTEGERS else value} came" in str(refusal.value)


def test_leaving_one_episode_out_needs_another():
    with pytest.raises(dkaf.InputError, match=r"leave-one-out.*episodes is 1.*2 or more"):
        dkaf.recipe("paper", baseline="leave-one-out")
    assert dkaf.recipe("paper", baseline="leave-one-out", episodes=2).episodes == 2


def test_a_baseline_needs_something_to_compare_with():
    with pytest.raises(dkaf.InputError, match="batch and episodes are both 1"):
        dkaf.recipe("paper", batch=1)
    with pytest.raises(dkaf.InputError, match="set episodes to 2 or more"):
        dkaf.recipe("default", episodes=1)
