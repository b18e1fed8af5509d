import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dkaf
from dkaf.errors import InputError
from dkaf.sources import tables
from dkaf.sources.preparation import Categorical, Numeric, Preparation, Smiles, Text, fit_preparation
from dkaf.sources.tables import Table, read_table

quick = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def csv_file(folder: Path, text: str, name: str = "t.csv", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def test_one_table_reads_alike_from_csv_tsv_parquet_pandas_and_polars(tmp_path: Path) -> None:
    frame = pd.DataFrame({"name": ["a", 'b "x", y', "ü\n2"], "x": [1.5, -2.0, 3e-9], "n": [1, 2, 3]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
    frame.to_parquet(tmp_path / "t.parquet")
    sources: list[Any] = [tmp_path / "t.csv", tmp_path / "t.tsv", tmp_path / "t.parquet", frame, pl.from_pandas(frame)]
    tables = [read_table(source) for source in sources]
    for table in tables:
        assert table.n_rows == 3
        assert list(table.columns) == ["name", "x", "n"]
        assert table.texts("name") == list(frame["name"])
        assert [float(text) for text in table.texts("x")] == list(frame["x"])
        assert table.texts("n") == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n3\n", "row 2 of .* \\(line 3\\) has 1"),
        ("a,a\n1,2\n", "two called 'a'"),
        ("a,\n1,2\n", "column 2 of .* has none"),
        ("a;b\n1;2\n", "for semicolons pass --delimiter ';'"),
        ("a\tb\n1\t2\n", "for tabs pass --delimiter"),
        ('a,b\n"1,2\n', "is no CSV"),
        ("a,b\n1,\x002\n", "zero bytes"),
    ],
)
def test_a_wrong_table_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(dkaf.InputError, match=message) as refusal:
        read_table(csv_file(tmp_path, text))
    assert "t.csv" in str(refusal.value)


def test_another_encoding_is_refused_with_its_line_and_read_when_named(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "a,b\n1,2\nü,3\n", encoding="cp1252")
    with pytest.raises(dkaf.InputError, match=r"line 3 of .* is not UTF-8; convert it, or try --encoding cp1252"):
        read_table(path)
    assert read_table(path, encoding="cp1252").texts("a") == ["1", "ü"]
    with pytest.raises(dkaf.InputError, match="'klingon' is unknown"):
        read_table(path, encoding="klingon")


def test_another_delimiter_is_read_when_named(tmp_path: Path) -> None:
    table = read_table(csv_file(tmp_path, "a;b\n1;2,5\n"), delimiter=";")
    assert (table.texts("a"), table.texts("b")) == (["1"], ["2,5"])
    with pytest.raises(dkaf.InputError, match="--delimiter is one character"):
        read_table(csv_file(tmp_path, "a;b\n"), delimiter=";;")


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    for source, message in (
        (tmp_path / "none.csv", "does not exist"),
        (tmp_path, "is a folder"),
        (csv_file(tmp_path, "PAR1", "t.parquet"), "not a whole Parquet file"),
        ([1, 2], "list came"),
        (pd.DataFrame({"a": [[1], [2]]}), "row 1 of the frame has list in column 'a'"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "the frame repeats one"),
    ):
        with pytest.raises(dkaf.InputError, match=message):
            read_table(source)


fields = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@quick
@given(
    names=st.lists(fields.map(str.strip).filter(bool), min_size=2, max_size=6, unique=True),
    rows=st.integers(0, 8),
    data=st.data(),
)
def test_any_texts_survive_a_csv_file(tmp_path: Path, names: list[str], rows: int, data: Any) -> None:
    columns = {name: data.draw(st.lists(fields, min_size=rows, max_size=rows)) for name in names}
    import csv

    path = tmp_path / "any.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([names, *zip(*columns.values(), strict=True)])
    table = read_table(path)
    assert table.n_rows == rows
    assert {name: table.texts(name) for name in table.columns} == columns


@quick
@given(st.binary(max_size=300), st.sampled_from([".csv", ".tsv", ".parquet"]))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"bytes{suffix}"
    path.write_bytes(content)
    try:
        table = read_table(path)
        dkaf.read_tasks(table, response=next(iter(table.columns)))
    except dkaf.InputError:
        pass


def test_ten_thousand_columns_are_read_and_prepared(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    names = [f"f{number}" for number in range(10_000)]
    lines = [",".join([*names, "y"]), *(",".join(map(str, draw.integers(0, 9, 10_001))) for _ in range(4))]
    tasks = dkaf.read_tasks(csv_file(tmp_path, "\n".join(lines)), response="y")
    assert (tasks.n_features, tasks.sizes.tolist()) == (10_000, [4])


def table_of(**columns: list[str]) -> Table:
    return Table("t.csv", dict(columns), len(next(iter(columns.values()))))


def kinds_of(table: Table, **options: Any) -> dict[str, str]:
    _, taken = fit_preparation([table], **options)
    return {column: kind for column, (kind, _) in taken.items()}


def test_kinds_are_detected() -> None:
    n = 40
    draw = np.random.default_rng(0)
    molecules = ["CCO", "c1ccccc1O", "CC(=O)Oc1ccccc1C(=O)O", "CN1C=NC2=C1C(=O)N(C)C(=O)N2C"] * (n // 4)
    words = [" ".join(draw.choice(["the", "bread", "rises", "slowly", "burnt", "crust"], size=6)) for _ in range(n)]
    table = table_of(
        number=[f"{value:.3f}" for value in draw.normal(size=n)],
        count=[str(value) for value in draw.integers(0, 5, n)],
        some=["", *["1.5"] * (n - 1)],
        oven=list(draw.choice(["gas", "wood"], size=n)),
        notes=words,
        smiles=molecules,
        name=[f"x{number}" for number in range(n)],
        nothing=[""] * n,
        y=["1"] * n,
    )
    assert kinds_of(table, response="y", impute=True) == {
        "number": "numeric",
        "count": "numeric",
        "some": "numeric",
        "oven": "categorical",
        "notes": "text",
        "smiles": "smiles",
        "name": "ignore",
        "nothing": "ignore",
    }


def test_kinds_can_be_set_and_wrong_ones_are_refused() -> None:
    table = table_of(a=["1", "2", "1"], b=["x", "y", "x"], y=["1", "2", "3"])
    assert kinds_of(table, response="y", kinds={"a": "categorical", "b": "ignore"}) == {
        "a": "categorical",
        "b": "ignore",
    }
    for kinds, message in (({"a": "colour"}, "is one of numeric"), ({"z": "numeric"}, "no 'z'")):
        with pytest.raises(dkaf.InputError, match=message):
            kinds_of(table, response="y", kinds=kinds)
    with pytest.raises(dkaf.InputError, match="no column is one"):
        kinds_of(table, response="y", kinds={"a": "ignore", "b": "ignore"})
    with pytest.raises(dkaf.InputError, match=r"row 1 of t\.csv has 'x' in column 'b'"):
        fit_preparation([table], response="y", kinds={"b": "numeric"})


def test_an_id_is_a_feature_only_where_it_is_a_molecule() -> None:
    table = table_of(smiles=["CCO", "CCC", "CCN"], n=["1", "2", "4"], y=["1", "2", "3"])
    assert kinds_of(table, response="y", id="smiles") == {"smiles": "smiles", "n": "numeric"}
    assert kinds_of(table, response="y", id="n")["n"] == "ignore"


def test_features_are_what_their_kind_says() -> None:
    table = table_of(x=["1", "3"], c=["b", "a"], t=["bread bread crust", "crust"])
    numeric = Numeric.fitted("x", [table], False)
    np.testing.assert_allclose(numeric.matrix(table, False), [[-1.0], [1.0]])
    category = Categorical.fitted("c", [table], False)
    np.testing.assert_allclose(category.matrix(table, False), [[0.0, 1.0], [1.0, 0.0]])
    text = Text.fitted("t", [table], False)
    assert text.words == ("bread", "crust")
    words: Any = text.matrix(table, False)
    np.testing.assert_allclose(words.toarray(), np.log1p([[2, 1], [0, 1]]))
    molecules: Any = Smiles("t", 2, 64).matrix(table_of(t=["CCO", "CCO"]), False)
    np.testing.assert_allclose(
        molecules.toarray(), np.log1p(dkaf.morgan_fingerprints(["CCO", "CCO"], bits=64).toarray())
    )


def test_sparse_and_dense_columns_stand_beside_each_other() -> None:
    table = table_of(x=["1", "3"], t=["bread bread crust", "crust"])
    preparation, _ = fit_preparation([table], kinds={"x": "numeric", "t": "text"})
    matrix: Any = preparation.matrix(table)
    assert sp.issparse(matrix)
    np.testing.assert_allclose(matrix.toarray(), np.hstack([[[-1.0], [1.0]], np.log1p([[2, 1], [0, 1]])]))


def test_a_preparation_comes_back_from_its_description_and_a_damaged_one_is_refused() -> None:
    table = table_of(x=["1", "3"], c=["b", "a"], t=["bread bread crust", "crust"], smiles=["CCO", "C"])
    preparation, _ = fit_preparation(
        [table], id="c", response="y", minimise=True, kinds={"c": "categorical", "t": "text"}
    )
    import json

    description = json.loads(json.dumps(preparation.describe()))
    assert Preparation.of(description) == preparation
    for damage in (
        None,
        {},
        description | {"minimise": 1},
        description | {"features": [{"kind": "pickle"}]},
        description | {"features": [{"kind": "numeric", "column": "x", "shift": "0", "scale": 1.0}]},
        description | {"features": [{"kind": "numeric", "column": "x"}]},
        description | {"features": 3},
    ):
        with pytest.raises(dkaf.InputError, match="does not describe"):
            Preparation.of(damage)


@pytest.mark.parametrize(
    ("column", "values", "message", "imputed"),
    [
        ("x", ["2", "", "3"], "row 2 of new.csv has '' in column 'x'; fill it in, or --impute", [0.0]),
        ("x", ["2", "oops", "3"], "row 2 of new.csv has 'oops' in column 'x'", None),
        ("x", ["2", "3", "inf"], "row 3 of new.csv has 'inf' in column 'x'", None),
        ("c", ["a", "d", "a"], "one of 'a', 'b', row 2 of new.csv has 'd' in column 'c'", [0.0, 0.0]),
        ("c", ["a", "", "a"], "row 2 of new.csv has '' in column 'c'", [0.0, 0.0]),
        ("smiles", ["C", "xyz", "C"], "row 2 of new.csv has 'xyz' in column 'smiles'", None),
    ],
)
def test_what_a_pool_lacks_is_refused_with_row_and_column_and_imputed_only_when_asked(
    column: str, values: list[str], message: str, imputed: list[float] | None
) -> None:
    columns = {"x": ["1", "3", "2"], "c": ["b", "a", "a"], "smiles": ["CCO", "C", "CC"]}
    preparation, _ = fit_preparation([table_of(**columns)], kinds={"c": "categorical"})
    new = Table("new.csv", columns | {column: values}, 3)
    with pytest.raises(dkaf.InputError, match=re.escape(message)):
        preparation.matrix(new)
    if imputed is None:
        with pytest.raises(dkaf.InputError, match=re.escape(message)):
            preparation.matrix(new, impute=True)
    else:
        first = {"x": 0, "c": 1}[column]
        matrix: Any = preparation.matrix(new, impute=True)
        np.testing.assert_allclose(matrix.toarray()[1, first : first + len(imputed)], imputed)
    with pytest.raises(dkaf.InputError, match="has no column 'x'"):
        preparation.matrix(table_of(c=["a"], smiles=["C"]))


@quick
@given(st.lists(st.floats(-1e150, 1e150), min_size=1, max_size=8))
def test_any_finite_numbers_become_finite_features(values: list[float]) -> None:
    table = table_of(x=[repr(value) for value in values])
    assert np.isfinite(np.asarray(fit_preparation([table])[0].matrix(table))).all()


def test_numbers_that_are_too_large_are_refused() -> None:
    with pytest.raises(dkaf.InputError, match="those of column 'x' are too large"):
        fit_preparation([table_of(x=["0", "1e300"])])
    preparation, _ = fit_preparation([table_of(x=["0", "1"])])
    with pytest.raises(dkaf.InputError, match=r"row 2 of t\.csv has '1e30' in column 'x'"):
        preparation.matrix(table_of(x=["0", "1e30"]))


def test_tasks_of_files_and_of_one_long_table_are_the_same(tmp_path: Path) -> None:
    days = {"mon": [1.0, 2.0, 4.0], "tue": [3.0, 1.0, 0.0]}
    long = ["day,name,x,y"]
    for day, xs in days.items():
        lines = [f"{day},{day}{n},{x},{x * 2}" for n, x in enumerate(xs)]
        csv_file(tmp_path, "\n".join(["day,name,x,y", *lines]), f"{day}.csv")
        long += lines
    separate = dkaf.read_tasks(
        [tmp_path / "mon.csv", tmp_path / "tue.csv"], response="y", id="name", kinds={"day": "ignore"}
    )
    together = dkaf.read_tasks(csv_file(tmp_path, "\n".join(long), "long.csv"), response="y", id="name", task="day")
    assert separate.names == together.names == ("mon", "tue")
    for one, other in zip(separate, together, strict=True):
        np.testing.assert_array_equal(separate.features[one.pool], together.features[other.pool])
        np.testing.assert_array_equal(one.responses, other.responses)
    part = together.subset([1])
    assert (part.names, part.preparation) == (("tue",), together.preparation)
    lower = dkaf.read_tasks(tmp_path / "mon.csv", response="y", id="name", minimise=True, kinds={"day": "ignore"})
    np.testing.assert_array_equal(lower.responses[0], -separate.responses[0])


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("n,x,y\na,1,2\na,2,3\n", {"id": "n"}, "rows 1 and 2 of .*t.csv both have 'a' in column 'n'"),
        ("n,x,y\n,1,2\na,2,3\n", {"id": "n"}, "row 1 of .*t.csv has none in column 'n'"),
        ("x,y\n1,2\n2,\n", {}, "every row has a response, row 2 of .*t.csv has none in column 'y'"),
        ("x,y\n1,2\n2,high\n", {}, "responses are numbers, row 2 of .*t.csv has 'high' in column 'y'"),
        ("x,y\n1,2\n2,1e300\n", {}, "row 2 of .*t.csv has 1e\\+300 in column 'y'"),
        ("x,y\n1,2\n2,-inf\n", {}, "row 2 of .*t.csv has -inf in column 'y'"),
        ("x,y\n", {}, "has a header and no rows"),
        ("x,z\n1,2\n", {}, "--response names a column, .*t.csv has 'x', 'z' and no 'y'"),
        ("x,y\n1,2\n", {"id": "n"}, "--id names a column"),
        ("x,y\n1,2\n", {"task": "n"}, "--task names a column"),
        ("x,y\n1,2\n", {"id": "y"}, "columns of their own"),
        ("d,x,y\nm,1,2\n,1,2\n", {"task": "d"}, "row 2 of .*t.csv does not in column 'd'"),
        ("x,y\n1,2\n,3\n", {}, "row 2 of .*t.csv has '' in column 'x'"),
        ("x,y\n" + "1,2\n" * 20 + "a,2\n", {}, "row 21 of .*t.csv has 'a' in column 'x'"),
    ],
)
def test_wrong_past_tasks_are_refused_with_file_row_and_column(
    tmp_path: Path, text: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(dkaf.InputError, match=message):
        dkaf.read_tasks(csv_file(tmp_path, text), response="y", **options)  # type: ignore[arg-type]


def test_a_column_that_a_file_lacks_is_refused_by_name(tmp_path: Path) -> None:
    csv_file(tmp_path, "x,z,y\n1,2,3\n", "a.csv")
    csv_file(tmp_path, "x,y\n1,3\n", "b.csv")
    with pytest.raises(dkaf.InputError, match=r"b\.csv has no column 'z'.*--kind z=ignore"):
        dkaf.read_tasks(tmp_path, response="y")
    assert dkaf.read_tasks(tmp_path, response="y", kinds={"z": "ignore"}).names == ("a", "b")
    (tmp_path / "none").mkdir()
    with pytest.raises(dkaf.InputError, match="has none; name another"):
        dkaf.read_tasks(tmp_path / "none", response="y")


def test_a_policy_keeps_its_preparation_and_its_tasks_names(tmp_path: Path) -> None:
    import campaigns

    policy = dkaf.load(campaigns.policy(tmp_path))
    assert policy.preparation is not None
    assert [(f.column, f.kind) for f in policy.preparation.features] == [
        ("oven", "categorical"),
        ("heat", "numeric"),
        ("flour", "text"),
    ]
    assert policy.training_log.tasks[0] == ("day0", 24)
    assert policy.inputs.kind == "raw"
    policy.save(tmp_path / "again")
    again = dkaf.load(tmp_path / "again")
    assert (again.preparation, again.training_log) == (policy.preparation, policy.training_log)


def test_a_transformer_of_the_users_own_prepares_features_and_is_asked_for_again(tmp_path: Path) -> None:
    import campaigns
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    folder = campaigns.past(tmp_path / "past", 4)
    every = pd.concat([pd.read_csv(path) for path in sorted(folder.iterdir())])
    own = ColumnTransformer([("number", StandardScaler(), ["heat"]), ("oven", OneHotEncoder(), ["oven"])])
    own.fit(every[["oven", "heat"]])
    tasks = dkaf.read_tasks(folder, response="rise", id="loaf", transformer=own)
    assert tasks.n_features == 3
    np.testing.assert_allclose(tasks.features, own.transform(every[["oven", "heat"]]))
    policy = dkaf.fit(tasks, method="dkl", acquisition="ucb", **campaigns.SMALL)  # type: ignore[arg-type]
    policy.save(tmp_path / "own")
    content = (tmp_path / "own").read_bytes()
    assert b"ColumnTransformer" in content
    assert b"StandardScaler" not in content
    with pytest.raises(
        dkaf.InputError, match="transformer of the caller's, 'ColumnTransformer'; pass it as transformer="
    ):
        dkaf.load(tmp_path / "own")
    with pytest.raises(dkaf.InputError, match="'StandardScaler' came; pass that one"):
        dkaf.load(tmp_path / "own", transformer=StandardScaler())
    again = dkaf.load(tmp_path / "own", transformer=own)
    assert again.preparation == policy.preparation
    truth = campaigns.pool(tmp_path / "pool.csv")
    campaign = dkaf.Campaign.create(tmp_path / "own.db", tmp_path / "pool.csv", again)
    chosen = dkaf.Campaign.open(campaign.path).ask()[0]  # whose features are kept prepared
    assert chosen.id in truth
    with pytest.raises(dkaf.InputError, match="ColumnTransformer takes the column 'oven'"):
        dkaf.Campaign.create(tmp_path / "x.db", pd.DataFrame({"heat": [1.0], "loaf": ["a"]}), again)
    with pytest.raises(dkaf.InputError, match="ColumnTransformer failed on the frame"):
        dkaf.Campaign.create(tmp_path / "x.db", pd.DataFrame({"heat": [1.0], "oven": ["sun"], "loaf": ["a"]}), again)
    numbers_only = ColumnTransformer([("number", StandardScaler(), ["heat"])]).fit(every[["oven", "heat"]])
    narrow = dkaf.load(tmp_path / "own", transformer=numbers_only)
    with pytest.raises(dkaf.InputError, match="gives 3 features a row, ColumnTransformer gave shape"):
        dkaf.Campaign.create(tmp_path / "x.db", tmp_path / "pool.csv", narrow)
    with pytest.raises(dkaf.InputError, match="leave one of them out"):
        dkaf.read_tasks(folder, response="rise", id="loaf", transformer=own, kinds={"oven": "text"})
    with pytest.raises(dkaf.InputError, match="dict has not; pass one"):
        dkaf.read_tasks(folder, response="rise", id="loaf", transformer={})


def test_ids_of_many_digits_keep_them(tmp_path: Path) -> None:
    ids = [1234567890123456789, 1234567890123456790, 9007199254740993]
    frame = pd.DataFrame({"n": ids, "x": [1.0, 2.0, 3.0]})
    frame.to_parquet(tmp_path / "t.parquet")
    for source in (frame, tmp_path / "t.parquet", pl.from_pandas(frame)):
        assert read_table(source).texts("n") == [str(value) for value in ids]


def test_sodium_and_no_additive_are_values() -> None:
    table = table_of(ion=["Na", "Li", "K", "Na"] * 2, add=["none", "NaCl", "none", "None"] * 2)
    matrix = fit_preparation([table])[0].matrix(table)
    assert matrix.shape == (8, 6)
    with pytest.raises(dkaf.InputError, match=r"row 1 of t\.csv has 'NA' in column 'ion'"):
        fit_preparation([table])[0].matrix(table_of(ion=["NA"], add=["none"]))


@pytest.mark.parametrize("text", ["1_000", "\u0661\u0662", "0x10", "1,5"])
def test_what_no_person_means_as_a_number_is_none(text: str) -> None:
    from dkaf.sources.tables import number_of, numbers

    assert number_of(text) is None
    assert numbers([text, "1"])[1] == [0]


def test_decimal_commas_are_named() -> None:
    with pytest.raises(dkaf.InputError, match="numbers have decimal points, column 'x' has commas"):
        fit_preparation([table_of(x=["0,5", "1,5", "2,25"])])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04rest", "a spreadsheet or a zip archive; save it as CSV"),
        (b"\x1f\x8brest", "unpack it with gunzip"),
        ("a,b\n1,2\n".encode("utf-16"), "pass --encoding utf-16"),
    ],
)
def test_files_that_are_no_text_are_called_what_they_are(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(dkaf.InputError, match=message):
        read_table(path)
    path.write_bytes("a,b\n1,2\n".encode("utf-16"))
    assert list(read_table(path, encoding="utf-16").columns) == ["a", "b"]
    path.write_bytes("a,b\n1,2\n".encode("utf-8-sig"))
    assert list(read_table(path, encoding="utf-8").columns) == ["a", "b"]
    for wrong in ("undefined", "punycode"):
        with pytest.raises(dkaf.InputError, match="encoding"):
            read_table(path, encoding=wrong)


def test_dates_and_half_characters_are_refused() -> None:
    with pytest.raises(dkaf.InputError, match="column 'd' of the frame has dates or times"):
        read_table(pd.DataFrame({"d": pd.to_datetime(["2020-01-01"])}))
    with pytest.raises(dkaf.InputError, match="an id is text, row 1"):
        dkaf.read_tasks(
            Table("t.csv", {"n": ["a\ud800"], "x": np.array([1.0]), "y": np.array([1.0])}, 1), response="y", id="n"
        )


def test_a_table_in_parts_gives_the_same_features_and_counts_its_rows_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkaf.sources.preparation.AT_ONCE", 3)
    table = table_of(x=[str(n) for n in range(8)], smiles=["C" * (n + 1) for n in range(8)])
    preparation, _ = fit_preparation([table])
    whole: Any = preparation.matrix(table)
    said: list[tuple[int, int]] = []
    parts: Any = preparation.matrix(table, progress=lambda done, total: said.append((done, total)))
    np.testing.assert_array_equal(parts.toarray(), whole.toarray())
    assert said == [(3, 8), (6, 8), (8, 8)]
    wrong = table_of(x=[*"012345", "x", "7"], smiles=["C"] * 8)
    with pytest.raises(dkaf.InputError, match=r"row 7 of t\.csv has 'x' in column 'x'"):
        preparation.matrix(wrong, progress=lambda done, total: None)


@quick
@given(data=st.data(), rows=st.integers(1, 5), n=st.integers(1, 3))
def test_any_small_table_becomes_tasks_and_a_campaign_or_is_refused(
    tmp_path: Path, data: Any, rows: int, n: int
) -> None:
    values = st.one_of(fields, st.integers(-(10**30), 10**30).map(str), st.floats().map(repr))
    columns: dict[str, Any] = {
        f"c{column}": data.draw(st.lists(values, min_size=rows, max_size=rows)) for column in range(n)
    }
    y = [str(value) for value in data.draw(st.lists(st.floats(-1e9, 1e9), min_size=rows, max_size=rows))]
    try:
        tasks = dkaf.read_tasks(Table("t.csv", columns | {"y": y}, rows), response="y", impute=data.draw(st.booleans()))
    except dkaf.InputError:
        return
    features: Any = tasks.features
    assert np.isfinite(features.data if sp.issparse(features) else features).all()
    path = tmp_path / "any.db"
    path.unlink(missing_ok=True)
    try:
        campaign = dkaf.Campaign.create(path, Table("t.csv", columns, rows), "gp", impute=True)
    except dkaf.InputError:
        return
    campaign.tell("1", y[0])
    assert campaign.columns_of([0])[0] == {name: column[0] for name, column in columns.items()}
    if rows == 1:
        with pytest.raises(dkaf.InputError, match="0 are neither told"):
            campaign.ask()
    else:
        assert campaign.ask()[0].id != "1"


def test_a_parquet_file_that_is_large_once_it_is_read_is_refused_before_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra dkaf[parquet]")
    import pyarrow.parquet as pq

    monkeypatch.setattr(tables, "MOST_DECODED", 1 << 20)
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), pa.array(["x" * 20_000]))
    for column in (long, long.dictionary_decode(), pa.array([1.0] * 200_000), pa.nulls(200_000)):
        pq.write_table(pa.table({"a": column}), tmp_path / "t.parquet", compression="zstd")
        assert (tmp_path / "t.parquet").stat().st_size < 50_000
        with pytest.raises(InputError, match="read whole, into at most 1 MiB"):
            read_table(tmp_path / "t.parquet")
    pq.write_table(pa.table({"a": long.slice(0, 10), "b": ["é", None] * 5}), tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    assert table.texts("a") == ["x" * 20_000] * 10
    assert table.texts("b") == ["é", ""] * 5


def test_texts_of_a_parquet_file_that_are_no_utf8_are_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra dkaf[parquet]")
    import pyarrow.parquet as pq

    wrong = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(struct.pack("<iii", 0, 1, 2)), pa.py_buffer(b"\xff\xfe")]
    )
    pq.write_table(pa.table({"a": wrong}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match="not a whole Parquet file"):
        read_table(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    ("text", "delimiter", "columns"),
    [
        ("id;Temp, C;t\nc0;20,5;x\nc1;21,5;y\n", ";", ["id", "Temp, C", "t"]),
        ("a,b\n1,2\n", None, ["a", "b"]),
        ("a,b\n'x;y',2\n", None, ["a", "b"]),
        ("a\tb\n1\t2\n", "\t", ["a", "b"]),
        ("a\n1\n", None, ["a"]),
        ("sep=;\r\na;b\r\n1;2\r\n", None, ["a", "b"]),
    ],
)
def test_what_separates_columns_is_found(tmp_path: Path, text: str, delimiter: str | None, columns: list[str]) -> None:
    path = csv_file(tmp_path, text)
    assert tables.detected_reading(path) == (delimiter, None)
    assert list(read_table(path, delimiter=delimiter).columns) == columns
