"""Tests of CSV files: columns become arrays, and errors name the line."""

import bz2
import gzip
import io
import lzma
import zipfile

import numpy as np
import pytest

from learner.data import DataLoaderBuilder, csv
from learner.errors import LearnerError
from tests.support.codes import raises_code

IRIS = "length,width,count,kind\n5.1,3.5,2,setosa\n6.2,3.4,3,virginica\n5.9,3,4,setosa\n"


@pytest.fixture
def write(tmp_path):
    def write(content, name="a.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_columns_become_fields(write):
    table = csv(write(IRIS), labels={"kind": None})
    arrays = table.arrays
    assert {name: str(array.dtype) for name, array in arrays.items()} == {
        "length": "float32",
        "width": "float32",
        "count": "int32",
        "kind": "int32",
    }
    assert arrays["length"].tolist() == np.float32([5.1, 6.2, 5.9]).tolist()
    assert arrays["count"].tolist() == [2, 3, 4]
    assert arrays["kind"].tolist() == [0, 1, 0]
    assert table.labels == {"kind": ("setosa", "virginica")}


def test_fields_of_several_columns_with_types(write):
    fields = {"x": ["width", "length"], "count": "count"}
    arrays = csv(write(IRIS), fields, dtypes={"x": "float64", "count": "uint8"}).arrays
    assert list(arrays) == ["count", "x"]
    assert arrays["x"].tolist() == [[3.5, 5.1], [3.4, 6.2], [3.0, 5.9]]
    assert (arrays["x"].dtype, arrays["count"].dtype) == (np.float64, np.uint8)


def test_labels_in_a_given_order(write):
    table = csv(write(IRIS), {"kind": "kind"}, labels={"kind": ["virginica", "none", "setosa"]})
    assert table.arrays["kind"].tolist() == [2, 0, 2]


def test_empty_cells_of_labels(write):
    path = write("city,age\nBerlin,3\n,4\nBonn,\n")
    table = csv(path, labels={"city": None}, missing=-1)
    assert table.labels == {"city": ("", "Berlin", "Bonn")}
    assert [x.tolist() for x in (table.arrays["city"], table.arrays["age"])] == [[1, 0, 2], [3, 4, -1]]
    table = csv(path, ["city"], labels={"city": ["Bonn", "Berlin", ""]})
    assert table.arrays["city"].tolist() == [1, 2, 0]
    with raises_code("data-columns-unreadable", "line 3: column 'city': it is missing; missing=-1, or a list"):
        csv(path, ["city"], labels=["city"])
    with raises_code("data-columns-unreadable", "line 3: column 'city': it is missing; labels={'city': ['', ...]}"):
        csv(path, ["city"], labels={"city": ["Berlin", "Bonn"]}, missing=-1)


@pytest.mark.parametrize("cell", ["1_000", "20_2.4", "\u0663"])
def test_number_syntax_of_python_is_text(write, cell):
    with raises_code("data-columns-unreadable", cell):
        csv(write(f"n\n1\n{cell}\n"))
    assert csv(write(f"n\n1\n{cell}\n"), labels=["n"]).labels == {"n": ("1", cell)}


def test_loader_of_a_csv_file(write):
    loader = DataLoaderBuilder().batch_size(2).build(csv(write(IRIS), {"n": "count"}))
    assert loader.arrays["n"].tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ("a;b\n1;2\n3;4\n", {"delimiter": ";"}),
        ("1,2\n3,4\n", {"names": ["a", "b"]}),
        ("\ufeffa,b\r\n1,2\r\n\r\n3,4\r\n", {}),
        ('"a","b"\n"1","2"\n3,"4"', {}),
        ('\ufeff"a","b"\n1,2\n3,4\n', {}),
        ("\ufeff1,2\n3,4\n", {"names": ["a", "b"]}),
        ("\ufeffa,b\n1,2\n3,4\n".encode("utf-16-le"), {"encoding": "utf-16-le"}),
        ("a,b\n1,2\n3,4\n".encode("utf-16"), {"encoding": "utf-16"}),
        (gzip.compress(b"a,b\n1,2\n3,4\n", mtime=0), {}),
    ],
)
def test_files_of_many_kinds(write, content, options):
    arrays = csv(write(content), **options).arrays
    assert {name: array.tolist() for name, array in arrays.items()} == {"a": [1, 3], "b": [2, 4]}


def test_large_numbers_and_missing_ones(write):
    arrays = csv(write("a,b,c\n1,5000000000,\n2,1,nan\n"), missing=-1).arrays
    assert arrays["b"].dtype == np.int64
    assert arrays["b"].tolist() == [5000000000, 1]
    np.testing.assert_array_equal(arrays["c"], np.float32([-1, np.nan]))
    assert np.isnan(csv(write('a\n1\n""\n'), missing=float("nan")).arrays["a"][1])


@pytest.mark.parametrize(
    ("content", "options", "code", "values"),
    [
        (IRIS, {"fields": {"x": ["lenght", "width"]}}, "data-columns-unreadable", ("a.csv", "'lenght'", "'length'")),
        (
            IRIS,
            {"fields": {"x": "size"}},
            "data-columns-unreadable",
            ("'size'", "'length'", "'width'", "'count'", "'kind'"),
        ),
        (IRIS, {"fields": {}}, "data-columns-unreadable", ()),
        (IRIS, {"fields": {"x": []}}, "data-columns-unreadable", ("'x'",)),
        (IRIS, {"dtypes": {"cuont": "int8"}}, "data-columns-unreadable", ("'cuont'", "'count'")),
        (IRIS, {"dtypes": {"count": "int9"}}, "data-columns-unreadable", ("dtypes.count", "'int9'", "float32")),
        (IRIS, {"dtypes": {"count": "U4"}}, "data-columns-unreadable", ("dtypes.count", "'U4'")),
        (IRIS, {"labels": {"kinds": None}}, "data-columns-unreadable", ("'kinds'",)),
        (IRIS, {}, "data-columns-unreadable", ("a.csv", "2", "'kind'", "'setosa'")),
        (IRIS, {"labels": {"kind": ["setosa"]}}, "data-columns-unreadable", ("3", "'kind'", "'virginica'")),
        ("a,b\n1,2\n3\n4,5,6\n", {}, "data-file-malformed", ("2", "a.csv", "3", "1", "4")),
        ('a,b\n"1\n2",3\n4\n', {}, "data-file-malformed", ("a.csv", "4", "1", "2")),
        ('a,b\n1,"2\n', {}, "data-file-malformed", ("a.csv", "2")),
        ("a\n1\nx\n", {}, "data-columns-unreadable", ("3", "'a'", "'x'")),
        ('a\n1\n""\n', {}, "data-columns-unreadable", ("3", "'a'")),
        ("a,b\n1,\n", {"labels": {"b": ["x"]}}, "data-columns-unreadable", ("2", "'b'")),
        ("a\n300\n1\n", {"dtypes": {"a": "uint8"}}, "data-columns-unreadable", ("2", "'a'", "300", "uint8")),
        ("a\n-1\n1\n", {"dtypes": {"a": "uint8"}}, "data-columns-unreadable", ("2", "'a'", "-1", "uint8")),
        ("a\n1\n1.5\n", {"dtypes": {"a": "int32"}}, "data-columns-unreadable", ("3", "'a'", "1.5", "int32")),
        ("a\n1e39\n", {"dtypes": {"a": "float32"}}, "data-columns-unreadable", ("2", "'a'", "1e+39", "float32")),
        ("a\n1\n1e999\n", {}, "data-columns-unreadable", ("3", "'a'", "'1e999' is too large")),
        ("a\n" + "9" * 5000 + "\n", {}, "data-columns-unreadable", ("2", "'a'", "9999")),
        ("a\n99999999999999999999999\n", {}, "data-columns-unreadable", ("2", "'a'")),
        ("a,a\n1,2\n", {}, "data-csv-header", ("'a'",)),
        ("a,\n1,2\n", {}, "data-csv-header", ("has a column without a name",)),
        ("a,b\n", {}, "data-without-rows", ("a.csv",)),
        ("", {}, "data-without-rows", ("a.csv",)),
        (b"a\n1\n\xff\n", {}, "data-file-malformed", ("a.csv", "3", "utf-8")),
        (
            b"a\n" + b"1\n" * 20_000 + b"2\xe4\n" + b"3\n" * 20_000,
            {},
            "data-file-malformed",
            ("a.csv", "20002", "utf-8"),
        ),
        (b"a\n1\n\xc3", {}, "data-file-malformed", ("a.csv", "3", "utf-8")),
        ("a\n1\n", {"delimiter": ",,"}, "data-csv-option-value", ()),
        ("a\n1\n", {"encoding": "utf-9"}, "data-csv-option-value", ("utf-9", "unknown encoding")),
        ("a\n" + "1" * 200_000 + "\n", {}, "data-file-malformed", ("a.csv", "2")),
        (
            IRIS,
            {"fields": {"a": "kind", "b": "kind"}, "labels": {"a": None}},
            "data-column-labels-mixed",
            (),
        ),
    ],
)
def test_wrong_input(write, content, options, code, values):
    with raises_code(code, *values):
        csv(write(content), **options)


def test_long_errors_are_cut(write):
    with pytest.raises(LearnerError) as error:
        csv(write("a\n" + "".join(f"x{number}\n" for number in range(100))))
    assert len(str(error.value).splitlines()) == 7
    assert "and 95 more" in str(error.value)


def test_missing_file(write):
    path = write(IRIS, "iris.csv")
    with raises_code("data-file-missing", "csv", "irs.csv", "iris.csv"):
        csv(path.parent / "irs.csv")


def test_files_of_a_pattern_are_joined_by_name(write):
    """Integers and fractions are joined as floats, and labels are numbered over all files."""
    write("x,kind\n1,dog\n2,cat\n", "part-1.csv")
    write("x,kind\n0.5,ant\n", "part-3.csv")
    directory = write("x,kind\n16777217,dog\n", "part-2.csv").parent
    with pytest.warns(UserWarning, match="column 'x' holds 16777217"):
        joined = csv(directory / "part-*.csv", labels=["kind"])
    assert joined.labels == {"kind": ("ant", "cat", "dog")}
    assert joined.arrays["kind"].tolist() == [2, 1, 2, 0]
    np.testing.assert_array_equal(joined.arrays["x"], np.array([1, 2, 16777217, 0.5], np.float32))
    assert {field: array.dtype for field, array in joined.arrays.items()} == {"x": np.float32, "kind": np.int32}


def test_rounded_whole_numbers_warn_once_per_column(write, tmp_path):
    """Of all files together. Texts of digits are ids, also beyond 2**53; 1e17 is a measurement."""
    first = write("id,time,x\n16777217,9007199254740993,1e17\n1.5,0.5,2\n").rename(tmp_path / "b.csv")
    second = write("id,time,x\n1.5,2,3\n16777219,3,4\n")
    with pytest.warns(UserWarning, match="as float32") as warned:
        table = csv([first, second])
    assert [str(each.message).partition(" as ")[0] for each in warned] == [
        "column 'id' holds 16777217, which is 16777216",
        "column 'time' holds 9007199254740993, which is 9007199254740992",
    ]
    assert table.arrays["x"].tolist() == np.float32([1e17, 2, 3, 4]).tolist()


def test_times_with_fractions_warn_once_per_column(write):
    files = [write("t,x\n" + "".join(f"{1700000000 + t}.5,{t / 7}\n" for t in range(20)), f"{i}.csv") for i in range(2)]
    with pytest.warns(UserWarning, match=r"'t' holds 1700000000.5 and 1700000001.5, .* equal as float32") as warned:
        table = csv(files)
    assert len(warned) == 1
    assert set(table.arrays["t"].tolist()) == {1.7e9}
    times = csv(files, dtypes={"t": "float64"}).arrays["t"]
    assert (times - times[0]).tolist() == 2 * [*range(20)]


def test_files_of_a_list_are_joined_in_its_order(write):
    paths = [write(f"x\n{number}\n", f"{number}.csv") for number in range(3)]
    joined = csv([paths[2], str(paths[0].parent / "[01].csv"), paths[2]])
    assert joined.arrays["x"].tolist() == [2, 0, 1, 2]
    assert joined.arrays["x"].dtype == np.int32


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "float16", "float32"])
@pytest.mark.parametrize("labels", [None, ["no", "yes"]])
def test_labels_of_several_files_in_a_type(write, dtype, labels):
    files = [write(f"k\n{rows}\n", f"{index}.csv") for index, rows in enumerate(("yes\nyes", "no", "yes"))]
    joined = csv(files, labels={"k": labels}, dtypes={"k": dtype})
    np.testing.assert_array_equal(joined.arrays["k"], np.array([1, 1, 0, 1], dtype))
    assert (joined.arrays["k"].dtype, joined.labels) == (dtype, {"k": ("no", "yes")})


def test_more_labels_than_a_type_has_numbers(write):
    files = [write("k\n" + "\n".join(f"{name}{row}" for row in range(100)), f"{name}.csv") for name in "ab"]
    assert csv(files[0], labels=["k"], dtypes={"k": "int8"}).arrays["k"].tolist() == [
        *np.argsort(np.argsort([f"a{row}" for row in range(100)]))
    ]
    with raises_code("data-labels-dtype", "int8"):
        csv(files, labels=["k"], dtypes={"k": "int8"})


def test_files_without_rows_are_skipped(write):
    files = [write("x\n", "0.csv"), write("x\n3\n", "1.csv"), write("", "2.csv")]
    assert csv(files).arrays["x"].tolist() == [3]
    with raises_code("data-without-rows"):
        csv([files[0], files[2]])


def test_patterns_below_a_directory_with_brackets(write):
    directory = write("x\n1\n").parent / "sub[1]"
    (directory / "b.csv").mkdir(parents=True)
    (directory / "a.csv").write_text("x\n2\n")
    assert csv(directory / "*.csv").arrays["x"].tolist() == [2]


@pytest.mark.parametrize("nulls", ["NA", [2], 3])
def test_wrong_null_values(write, nulls):
    with raises_code("data-csv-null-values"):
        csv(write("x\n1\n"), null_values=nulls)


def test_file_whose_name_looks_like_a_pattern(write):
    path = write("x\n1\n", "a[1].csv")
    write("x\n2\n", "a1.csv")
    assert csv(path).arrays["x"].tolist() == [1]


def test_files_that_cannot_be_joined(write):
    path = write(IRIS, "iris.csv")
    with raises_code("data-files-missing", "j*.csv"):
        csv(path.parent / "j*.csv")
    with raises_code("data-files-missing"):
        csv([])
    with raises_code("data-path-type"):
        csv([path, 3])
    with raises_code("data-file-missing", "irs.csv"):
        csv([path, path.parent / "irs.csv"])
    others = [write("x\n1\n", "x.csv"), write("y\n1\n", "y.csv")]
    with raises_code("data-files-differ", *map(str, others)):
        csv(others)


def test_blank_lines_of_one_column_are_empty_cells(write):
    """With `missing`, and except at the end: a file may end with any number of line ends."""
    arrays = csv(write("t\n\n1\n\n3\n\n\n"), missing=-1).arrays
    assert arrays["t"].tolist() == [-1, 1, -1, 3]
    assert csv(write('1\n\n""\n\n'), names=["t"], missing=-1).arrays["t"].tolist() == [1, -1, -1]
    assert csv(write("t,u\n\n1,2\n\n3,4\n")).arrays["u"].tolist() == [2, 4]
    assert csv(write("t\n1\n\n3\n")).arrays["t"].tolist() == [1, 3]
    assert csv(write("t\r\r\na\r\r\nb\r\r\n"), labels=["t"]).arrays["t"].tolist() == [0, 1]  # Windows, twice
    with raises_code("data-without-rows"):
        csv(write("t\n\n\n"), missing=-1)


@pytest.mark.parametrize("names", ["ab", ["a", "a"], [1, 2]])
def test_wrong_names(write, names):
    with raises_code("data-csv-names", repr(names)):
        csv(write("1,2\n"), names=names)


def test_null_values(write):
    path = write("x,kind\nNA,a\n1.5,?\n,b\n", "na.csv")
    rows = csv(path, labels=["kind"], missing=-1, null_values=["NA", "?"])
    assert rows.arrays["x"].tolist() == [-1, 1.5, -1]
    assert (rows.labels, rows.arrays["kind"].tolist()) == ({"kind": ("", "a", "b")}, [1, 0, 2])


@pytest.mark.parametrize("packer", ["bzip2", "xz", "zip"])
def test_other_compressions_are_named(write, packer):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("iris.csv", IRIS)
    packed = {"bzip2": bz2.compress(IRIS.encode()), "xz": lzma.compress(IRIS.encode()), "zip": content.getvalue()}
    with raises_code("data-file-packed", f"by {packer}"):
        csv(write(packed[packer]))


def test_damaged_gzip(write):
    with raises_code("data-file-unreadable"):
        csv(write(gzip.compress(IRIS.encode() * 100)[:-9]))
