"""Tables of SQLite databases, made here."""

import contextlib
import os
import pickle
import sqlite3
import threading

import numpy as np
import pytest

from learner.data import DataLoaderBuilder, SQLiteTable
from learner.errors import LearnerError

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


def test_it_is_read_in_any_thread_and_after_a_journey(path):
    houses = SQLiteTable(path, "houses", {"rooms": "rooms"})
    found = []
    threads = [threading.Thread(target=lambda i=i: found.append(houses[i]["rooms"].item())) for i in range(3)]
    for thread in threads:
        thread.start()
        thread.join()
    assert found == [3, 5, 1]
    assert pickle.loads(pickle.dumps(houses))[2]["rooms"].item() == 1


def test_a_forked_process_opens_it_anew(path):
    houses = SQLiteTable(path, "houses", {"rooms": "rooms"})
    before = houses._opened.get()
    houses._opened._own.process = os.getpid() + 1  # as after a fork
    assert houses[0]["rooms"].item() == 3
    assert houses._opened.get() is not before


def test_nothing_can_be_written(path):
    houses = SQLiteTable(path, "houses")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        houses._opened.get().execute("DELETE FROM houses")


def test_rowids_with_gaps_keep_their_order(path):
    change(path, "DELETE FROM houses WHERE rowid = 2", "INSERT INTO houses (rowid, rooms) VALUES (-5, 9)")
    houses = SQLiteTable(path, "houses", {"rooms": "rooms"})
    assert [houses[i]["rooms"].item() for i in range(3)] == [9, 3, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"table": "house"}, "has no table 'house': did you mean 'houses'"),
        ({"table": 'x"; DROP TABLE houses; --'}, "has no table"),
        ({"fields": {"x": ["roms", "area"]}}, "table 'houses' has no column 'roms': did you mean 'rooms'"),
        ({"where": "no such thing"}, "cannot be read: .*syntax error"),
        ({"where": "rooms > 100"}, "has no rows where rooms > 100"),
        ({"table": "empty"}, "table 'empty' has no rows"),
        ({"dtypes": {"rooms": "texts"}}, "dtypes.rooms is 'texts'"),
    ],
)
def test_what_is_wrong_is_told_at_once(path, arguments, message):
    with pytest.raises(LearnerError, match=message):
        SQLiteTable(path, **{"table": "houses", **arguments})


@pytest.mark.parametrize(
    ("statement", "arguments", "message"),
    [
        ("UPDATE houses SET rooms = NULL", {}, "rowid 1, column 'rooms' is NULL"),
        ("UPDATE houses SET rooms = 'many'", {}, "rowid 1, column 'rooms' does not fit into int32: 'many' is a text"),
        ("UPDATE houses SET rooms = 5000000000", {}, "column 'rooms' does not fit into int32"),
        ("UPDATE houses SET rooms = 2.5", {}, "column 'rooms' does not fit into int32: 2.5"),
        (
            "UPDATE houses SET kind = 'tent'",
            {"labels": {"kind": ["flat"]}},
            "column 'kind': 'tent' is none of its labels",
        ),
        ("UPDATE houses SET area = x'010203'", {"fields": {"a": "area"}}, "column 'area' does not fit into float32"),
    ],
)
def test_a_cell_that_does_not_fit_is_named_when_it_is_read(path, statement, arguments, message):
    change(path, statement)
    with pytest.raises(LearnerError, match=message):
        SQLiteTable(path, "houses", **arguments)[0]


def test_null_as_a_number(path):
    change(path, "UPDATE houses SET area = NULL WHERE rowid = 2")
    houses = SQLiteTable(path, "houses", {"area": "area"}, missing=-1)
    assert [houses[i]["area"].item() for i in range(3)] == [70.5, -1, 30.25]


def test_a_row_that_is_removed(path):
    houses = SQLiteTable(path, "houses")
    change(path, "DELETE FROM houses WHERE rowid = 2")
    with pytest.raises(LearnerError, match="the row with rowid 2 is gone"):
        houses[1]
    with pytest.raises(IndexError, match=r"which has .*: give 0 to"):
        houses[3]


def test_no_database(path, tmp_path):
    (tmp_path / "other.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(LearnerError, match="cannot be read: file is not a database"):
        SQLiteTable(tmp_path / "other.db", "houses")
    with pytest.raises(LearnerError, match="there is no file"):
        SQLiteTable(tmp_path / "no.db", "houses")
    assert not (tmp_path / "no.db").exists()


def test_a_table_without_rowids_is_refused(path):
    change(path, "CREATE TABLE w (a INT PRIMARY KEY) WITHOUT ROWID", "INSERT INTO w VALUES (1)")
    with pytest.raises(LearnerError, match="cannot be read: no such column: rowid"):
        SQLiteTable(path, "w")
