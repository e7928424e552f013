"""Tests of SQLiteTable."""

import contextlib
import functools
import os
import pickle
import random
import sqlite3
import threading

import numpy as np
import pytest

from learner.data import DataLoaderBuilder, SQLiteTable
from tests.support.codes import raises_code

ROWS = [(3, 70.5, "flat", b"\1\2", "train"), (5, 120, "house", b"\3\4", "train"), (1, 30.25, "flat", b"\5\6", "valid")]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a b?.db"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(
            'CREATE TABLE houses (rooms INTEGER, area REAL, kind VARCHAR(9), "the pixels" BLOB, part TEXT)'
        )
        database.executemany("INSERT INTO houses VALUES (?, ?, ?, ?, ?)", ROWS)
        database.execute("CREATE TABLE empty (a INT)")
    return path


def change(path, *statements):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


def test_rows_are_items_by_declared_types(path):
    houses = SQLiteTable(path, "houses")
    assert len(houses) == 3
    item = houses[1]
    assert {name: getattr(value, "dtype", type(value)) for name, value in item.items()} == {
        "rooms": np.int32,
        "area": np.float32,
        "kind": str,
        "the pixels": bytes,
        "part": str,
    }
    assert [houses[i]["area"].item() for i in range(3)] == [70.5, 120, 30.25]


def test_fields_labels_types_and_a_condition(path):
    houses = SQLiteTable(
        path,
        "houses",
        {"x": ["area", "rooms"], "kind": "kind", "image": "the pixels"},
        dtypes={"image": "uint8"},
        labels={"kind": None},
        where="part = 'train'",
    )
    loader = DataLoaderBuilder().batch_size(2).build(houses)
    (batch,) = list(loader)
    assert batch["x"].tolist() == [[70.5, 3], [120, 5]]
    assert batch["x"].dtype == np.float32
    assert batch["kind"].tolist() == [0, 1]
    assert batch["image"].tolist() == [[1, 2], [3, 4]]
    assert houses.labels == {"kind": ("flat", "house")}


def test_reading_in_threads_and_after_pickling(path):
    houses = SQLiteTable(path, "houses", {"rooms": "rooms"})
    rooms = []
    threads = [threading.Thread(target=lambda i=i: rooms.append(houses[i]["rooms"].item())) for i in range(3)]
    for thread in threads:
        thread.start()
        thread.join()
    assert rooms == [3, 5, 1]
    assert pickle.loads(pickle.dumps(houses))[2]["rooms"].item() == 1


def test_forked_process_reopens_the_database(path, monkeypatch):
    opened, connect = [], sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *arguments, **options: opened.append(arguments) or connect(*arguments, **options)
    )
    houses = SQLiteTable(path, "houses", {"rooms": "rooms"})
    assert houses[0]["rooms"].item() == 3
    before = len(opened)
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)  # simulates a fork
    assert houses[0]["rooms"].item() == 3
    assert len(opened) == before + 1


def test_connection_is_read_only(path):
    houses = SQLiteTable(path, "houses")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        houses._opened.get().execute("DELETE FROM houses")


def test_rowids_with_gaps_keep_their_order(path):
    change(path, "DELETE FROM houses WHERE rowid = 2", "INSERT INTO houses (rowid, rooms) VALUES (-5, 9)")
    houses = SQLiteTable(path, "houses", {"rooms": "rooms"})
    assert [houses[i]["rooms"].item() for i in range(3)] == [9, 3, 1]


@pytest.mark.parametrize(
    ("arguments", "code", "values"),
    [
        ({"table": "house"}, "data-table-unknown", ("house", "'houses'")),
        ({"table": 'x"; DROP TABLE houses; --'}, "data-table-unknown", ()),
        ({"fields": {"x": ["roms", "area"]}}, "data-columns-unreadable", ("'houses'", "'roms'", "'rooms'")),
        ({"where": "no such thing"}, "data-file-unreadable", ("syntax error",)),
        ({"where": "rooms > 100"}, "data-without-rows", ("100",)),
        ({"table": "empty"}, "data-without-rows", ("'empty'",)),
        ({"dtypes": {"rooms": "texts"}}, "data-columns-unreadable", ("dtypes.rooms", "'texts'")),
    ],
)
def test_wrong_arguments(path, arguments, code, values):
    with raises_code(code, *values):
        SQLiteTable(path, **{"table": "houses", **arguments})


@pytest.mark.parametrize(
    ("statement", "arguments", "code", "values"),
    [
        ("UPDATE houses SET rooms = NULL", {}, "data-cell-null", ("1", "'rooms'")),
        ("UPDATE houses SET rooms = 'many'", {}, "data-cell-too-large", ("1", "'rooms'", "int32", "'many'")),
        ("UPDATE houses SET rooms = 5000000000", {}, "data-cell-too-large", ("'rooms'", "int32")),
        ("UPDATE houses SET rooms = 2.5", {}, "data-cell-too-large", ("'rooms'", "int32", "2.5")),
        (
            "UPDATE houses SET kind = 'tent'",
            {"labels": {"kind": ["flat"]}},
            "data-label-unknown",
            ("'kind'", "'tent'"),
        ),
        ("UPDATE houses SET area = x'010203'", {"fields": {"a": "area"}}, "data-cell-too-large", ("'area'", "float32")),
    ],
)
def test_wrong_cells_raise_when_read(path, statement, arguments, code, values):
    change(path, statement)
    with raises_code(code, *values):
        SQLiteTable(path, "houses", **arguments)[0]


def test_null_as_a_number(path):
    change(path, "UPDATE houses SET area = NULL WHERE rowid = 2")
    houses = SQLiteTable(path, "houses", {"area": "area"}, missing=-1)
    assert [houses[i]["area"].item() for i in range(3)] == [70.5, -1, 30.25]


def test_removed_row(path):
    houses = SQLiteTable(path, "houses")
    change(path, "DELETE FROM houses WHERE rowid = 2")
    with raises_code("data-row-gone", place="rowid 2"):
        houses[1]
    with pytest.raises(IndexError, match=r"which has .*: give 0 to"):
        houses[3]


def test_wrong_files(path, tmp_path):
    (tmp_path / "other.db").write_bytes(b"this is not a database" * 100)
    with raises_code("data-file-unreadable", "file is not a database"):
        SQLiteTable(tmp_path / "other.db", "houses")
    with raises_code("data-file-missing"):
        SQLiteTable(tmp_path / "no.db", "houses")
    assert not (tmp_path / "no.db").exists()


TABLES = (
    "(rowid INT, v INT)",
    "(_ROWID_ INT, rowid TEXT, v INT)",
    "(rowid INT, oid INT, _rowid_ INT, id INTEGER PRIMARY KEY, v INT)",
    "(id INTEGER PRIMARY KEY, rowid INT, v INT)",
    "(id TEXT PRIMARY KEY, v INT)",
    "(id INT PRIMARY KEY, v INT) WITHOUT ROWID",
    "(rowid INT PRIMARY KEY, oid INT, v INT) WITHOUT ROWID",
    "(v INT, id TEXT COLLATE NOCASE, rowid INT, PRIMARY KEY (id, rowid)) WITHOUT ROWID",
    "(id REAL, a BLOB, v INT, PRIMARY KEY (a, id)) WITHOUT ROWID",
)


@pytest.mark.parametrize("columns", TABLES)
def test_items_have_the_order_of_the_table(path, columns):
    rng = random.Random(columns)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(f"CREATE TABLE t {columns}")
        names = [row[1] for row in database.execute("PRAGMA table_info(t)")]
        question_marks = ", ".join("?" * len(names))
        for number in range(60):  # with repeated values, unless the key is unique
            row = [rng.choice([10, 30, "a", "B", 2.5]) for _ in names]
            if "id" in names and number % 2:
                row[names.index("id")] = rng.randrange(-99, 99)
            row[names.index("v")] = number
            with contextlib.suppress(sqlite3.IntegrityError):
                database.execute(f"INSERT INTO t VALUES ({question_marks})", row)
        database.execute("DELETE FROM t WHERE v % 7 = 3")
        expected = [row[names.index("v")] for row in database.execute("SELECT * FROM t")]
        database.execute("CREATE INDEX covering ON t (v DESC)")  # in another order, which SQLite may prefer
    rows = SQLiteTable(path, "t", ["v"])
    assert len(rows) > 2
    assert [item["v"].item() for item in rows] == expected
    odd = SQLiteTable(path, "t", ["v"], where="v % 2 = 1")
    assert [item["v"].item() for item in odd] == [value for value in expected if value % 2]
    assert [item["v"].item() for item in pickle.loads(pickle.dumps(rows))] == expected


def test_views_with_a_key(path):
    change(path, "CREATE VIEW big AS SELECT rooms AS n, upper(kind) AS kind, area * 2 AS twice FROM houses WHERE n > 1")
    with raises_code("data-table-without-rowid", "'big'"):
        SQLiteTable(path, "big")
    big = SQLiteTable(path, "big", dtypes={"n": "int32"}, labels=["kind"], key="n")
    assert [(item["n"].item(), item["twice"].item()) for item in big] == [(3, 141), (5, 240)]
    by_text = SQLiteTable(path, "big", {"twice": "twice"}, key=["kind", "n"], where="n > 3")
    assert [item["twice"].item() for item in by_text] == [240]


@pytest.mark.parametrize(
    ("arguments", "code", "values"),
    [
        ({"key": "kind"}, "data-key-twice", ("'flat'", '"kind"')),
        ({"key": "kind", "where": "part = 'valid'"}, "data-key-twice", ("'flat'",)),
        ({"key": ["rooms", "size"]}, "data-column-unknown", ("size",)),
        ({"key": []}, "data-key-type", ("[]",)),
        ({"key": "area", "max_memory": 100}, "data-file-too-large", ()),
        ({"max_memory": 0}, "data-number-value", ("max_memory",)),
    ],
)
def test_wrong_keys(path, arguments, code, values):
    with raises_code(code, *values):
        SQLiteTable(path, "houses", **arguments)


@pytest.mark.parametrize(
    ("options", "labels", "codes"),
    [
        ({"labels": ["kind"], "missing": -1}, ("", "flat"), [1, 0, 1]),
        ({"labels": {"kind": ["house", "flat", ""]}}, ("house", "flat", ""), [1, 2, 1]),
        ({"labels": ["part"], "missing": -1}, ("", "train"), [1, 0, 0]),
    ],
)
def test_null_among_labels_is_the_empty_text(path, options, labels, codes):
    """As in tables of files."""
    change(
        path,
        "UPDATE houses SET kind = NULL, part = NULL WHERE rowid = 2",
        "UPDATE houses SET part = '' WHERE rowid = 3",
    )
    (field,) = options["labels"]
    houses = SQLiteTable(path, "houses", {field: field}, **options)
    assert (houses.labels[field], [item[field].item() for item in houses]) == (labels, codes)
    for without in ({"labels": ["kind"]}, {"labels": {"kind": ["flat", "house"]}, "missing": 0}):
        with raises_code("data-cell-null", "'kind'"):
            SQLiteTable(path, "houses", {"kind": "kind"}, **without)[1]


def test_unknown_texts_have_their_number(path):
    fields, labels = {"kind": "kind"}, {"kind": ["flat"]}
    assert {
        item["kind"].item() for item in SQLiteTable(path, "houses", fields, labels=labels, unknown={"kind": 5})
    } == {0, 5}
    with raises_code("data-columns-unreadable", "unknown.kind", "300", "uint8"):
        SQLiteTable(path, "houses", fields, labels=labels, unknown={"kind": 300}, dtypes={"kind": "uint8"})
    with raises_code("data-columns-unreadable", "unknown.kind", "100000", "float16"):
        SQLiteTable(path, "houses", fields, labels=labels, unknown={"kind": 100_000}, dtypes={"kind": "float16"})
    with raises_code("data-label-unknown", "'house'", "unknown={'kind': ...}"):
        list(SQLiteTable(path, "houses", fields, labels=labels))


@pytest.mark.parametrize(("dtype", "most"), [("uint8", 256), ("bool", 2), ("float16", 2049)])
def test_labels_have_numbers_that_fit_into_their_type(path, dtype, most):
    names = ["flat", "house", *map(str, range(most - 2))]
    read = functools.partial(SQLiteTable, path, "houses", ["kind"], dtypes={"kind": dtype})
    assert [item["kind"].item() for item in read(labels={"kind": names})] == [0, 1, 0]
    with raises_code("data-columns-unreadable", f"the number of 'more' is {most}", dtype):
        read(labels={"kind": [*names, "more"]})


def test_numbers_beyond_float32_are_refused(path):
    change(path, "UPDATE houses SET area = 1e300 WHERE rowid = 1", "UPDATE houses SET area = 9e999 WHERE rowid = 2")
    houses = SQLiteTable(path, "houses", {"area": "area"})
    with raises_code("data-cell-too-large", "1e+300"):
        houses[0]
    assert houses[1]["area"] == np.inf
    assert SQLiteTable(path, "houses", {"area": "area"}, dtypes={"area": "float64"})[0]["area"] == 1e300


def test_ids_and_times_that_float32_changes_are_named(path):
    """Of columns that are not INT, whole numbers are floats or integers."""
    rows = ", ".join(f"({1700000000.5 + i}, {16777216 + i}, {16777216 + i}, {i}, 'x')" for i in range(20))
    change(path, "CREATE TABLE t (time REAL, id NUMERIC, n INT, small REAL, kind REAL)", f"INSERT INTO t VALUES {rows}")
    with pytest.warns(UserWarning, match="as float32") as warned:
        read = SQLiteTable(path, "t", {"time": "time", "id": "id", "n": "n", "x": ["small", "n"]}, where="id > 0")
    assert [str(each.message).partition(",")[0] for each in warned] == [
        "column 'time' holds 1700000000.5 and 1700000001.5",
        "column 'id' holds 16777217",
        "column 'n' holds 16777217",
    ]
    assert (read[1]["id"].item(), read[1]["n"].item()) == (16777216, 16777217)
    types = {"time": "float32", "id": "int64"}
    exact = SQLiteTable(path, "t", ["time", "id", "n", "small"], dtypes=types, where="small < 3")
    assert [item["id"].item() for item in exact] == [16777216, 16777217, 16777218]


def test_null_in_a_key(path):
    change(path, "UPDATE houses SET area = NULL WHERE rooms = 3")
    with raises_code("data-key-null"):
        SQLiteTable(path, "houses", ["rooms"], key="area")


def test_columns_that_hide_all_rowids(path):
    change(path, "CREATE TABLE hidden (rowid INT, oid INT, _rowid_ INT)", "INSERT INTO hidden VALUES (1, 2, 3)")
    with raises_code("data-table-without-rowid"):
        SQLiteTable(path, "hidden")
    assert SQLiteTable(path, "hidden", key="oid")[0]["_rowid_"].item() == 3


def test_endless_view(path):
    change(path, "CREATE VIEW n AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c")
    with raises_code("data-file-too-large", "100000"):
        SQLiteTable(path, "n", key="x", max_memory=100_000)


def test_large_computed_cell(path):
    change(path, "CREATE VIEW wide AS SELECT rooms, zeroblob(100000000) AS pixels FROM houses")
    wide = SQLiteTable(path, "wide", dtypes={"pixels": "uint8"}, key="rooms", max_memory=2**20)
    with raises_code("data-file-unreadable", "'wide'", "string or blob too big"):
        wide[0]


def test_rowids_do_not_count_as_memory(path):
    change(
        path,
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 9999) INSERT INTO empty SELECT x FROM c",
    )
    assert len(SQLiteTable(path, "empty", max_memory=10_000)) == 9999
