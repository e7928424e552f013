"""CSV files: columns become arrays, and what is wrong is named with its line."""

import gzip

import numpy as np
import pytest

from learner.data import DataLoaderBuilder, csv
from learner.errors import LearnerError

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


def test_labels_in_an_order_of_ones_own(write):
    table = csv(write(IRIS), {"kind": "kind"}, labels={"kind": ["virginica", "none", "setosa"]})
    assert table.arrays["kind"].tolist() == [2, 0, 2]


def test_it_is_an_array_dataset_for_loaders(write):
    loader = DataLoaderBuilder().batch_size(2).build(csv(write(IRIS), {"n": "count"}))
    assert loader.arrays["n"].tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ("a;b\n1;2\n3;4\n", {"delimiter": ";"}),
        ("1,2\n3,4\n", {"names": ["a", "b"]}),
        ("\ufeffa,b\r\n1,2\r\n\r\n3,4\r\n", {}),
        ('"a","b"\n"1","2"\n3,"4"', {}),
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
    ("content", "options", "message"),
    [
        (IRIS, {"fields": {"x": ["lenght", "width"]}}, "a.csv has no column 'lenght': did you mean 'length'"),
        (IRIS, {"fields": {"x": "size"}}, "has no column 'size': there are: 'length', 'width', 'count', 'kind'"),
        (IRIS, {"fields": {}}, "there are no fields"),
        (IRIS, {"fields": {"x": []}}, "the field 'x' has no columns"),
        (IRIS, {"dtypes": {"cuont": "int8"}}, "dtypes has 'cuont', which is no field .*: did you mean 'count'"),
        (IRIS, {"dtypes": {"count": "int9"}}, "dtypes.count is 'int9': it needs a type such as float32"),
        (IRIS, {"dtypes": {"count": "U4"}}, "dtypes.count is 'U4': it needs a type of numbers"),
        (IRIS, {"labels": {"kinds": None}}, "labels has 'kinds', which is no field"),
        (IRIS, {}, "a.csv, line 2: column 'kind': 'setosa' is no number"),
        (IRIS, {"labels": {"kind": ["setosa"]}}, "line 3: column 'kind': 'virginica' is none of its labels"),
        ("a,b\n1,2\n3\n4,5,6\n", {}, r"(?s)2 problems:.*a.csv, line 3: 1 cells, not 2.*line 4: 3 cells, not 2"),
        ('a,b\n"1\n2",3\n4\n', {}, "a.csv, line 4: 1 cells, not 2"),
        ('a,b\n1,"2\n', {}, "a.csv, after line 2: unexpected end of data"),
        ("a\n1\nx\n", {}, "line 3: column 'a': 'x' is no number"),
        ('a\n1\n""\n', {}, "line 3: column 'a': it is missing"),
        ("a,b\n1,\n", {"labels": {"b": ["x"]}}, "line 2: column 'b': it is missing"),
        ("a\n300\n1\n", {"dtypes": {"a": "uint8"}}, "line 2: column 'a': 300 does not fit into uint8"),
        ("a\n-1\n1\n", {"dtypes": {"a": "uint8"}}, "line 2: column 'a': -1 does not fit into uint8"),
        ("a\n1\n1.5\n", {"dtypes": {"a": "int32"}}, "line 3: column 'a': 1.5 does not fit into int32"),
        ("a\n1e39\n", {"dtypes": {"a": "float32"}}, r"line 2: column 'a': 1e\+39 does not fit into float32"),
        ("a\n1\n1e999\n", {}, "line 3: column 'a': '1e999' is no number"),
        ("a\n" + "9" * 5000 + "\n", {}, "line 2: column 'a': '9999"),
        ("a\n99999999999999999999999\n", {}, "line 2: column 'a'"),
        ("a,a\n1,2\n", {}, "its first row has 'a' twice"),
        ("a,\n1,2\n", {}, "its first row has a column without a name"),
        ("a,b\n", {}, "a.csv has no rows"),
        ("", {}, "a.csv has no rows"),
        (b"a\n1\n\xff\n", {}, r"a.csv, line 3: it is no utf-8 \(invalid start byte\)"),
        (b"a\n" + b"1\n" * 20_000 + b"2\xe4\n" + b"3\n" * 20_000, {}, "a.csv, line 20002: it is no utf-8"),
        (b"a\n1\n\xc3", {}, r"a.csv, line 3: it is no utf-8 \(unexpected end of data\)"),
        ("a\n1\n", {"delimiter": ",,"}, "delimiter=',,'"),
        ("a\n1\n", {"encoding": "utf-9"}, "encoding='utf-9': unknown encoding"),
        ("a\n" + "1" * 200_000 + "\n", {}, "a.csv, after line .: field larger than field limit"),
        (
            IRIS,
            {"fields": {"a": "kind", "b": "kind"}, "labels": {"a": None}},
            "in a field with labels and in one without",
        ),
    ],
)
def test_what_is_wrong_is_named(write, content, options, message):
    with pytest.raises(LearnerError, match=message):
        csv(write(content), **options)


def test_many_problems_are_a_few_and_a_number(write):
    with pytest.raises(LearnerError) as error:
        csv(write("a\n" + "x\n" * 100))
    assert len(str(error.value).splitlines()) == 7
    assert "and 95 more" in str(error.value)


def test_no_file(write):
    path = write(IRIS, "iris.csv")
    with pytest.raises(LearnerError, match=r"csv: there is no file .*irs\.csv: did you mean iris\.csv\?"):
        csv(path.parent / "irs.csv")


def test_damaged_gzip(write):
    with pytest.raises(LearnerError, match="cannot be read"):
        csv(write(gzip.compress(IRIS.encode() * 100)[:-9]))
