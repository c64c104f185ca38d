"""Surprising behaviour of libraries that psrun.tables works around.

A test that fails says that the library is mended: the workaround in the module that it names can go.
"""

import io

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import csv


@pytest.mark.parametrize(
    ("text", "read"),
    [("02/30/2021", "2021-03-02"), ("04/31/2021", "2021-05-01"), ("1/2/98", "0098-01-02")],
)
def test_arrow_reads_days_that_no_calendar_has(text, read):
    """psrun.tables.notations reads the parts of a date itself."""
    [day] = pc.strptime(pa.array([text]), "%m/%d/%Y", "s").to_pylist()
    assert day.date().isoformat() == read


@pytest.mark.parametrize("types", [(pa.uint64(), pa.int64()), (pa.int64(), pa.uint64())], ids=str)
def test_arrow_unifies_uint64_and_int64_as_int64(types):
    """psrun.tables.formats gives such columns a type that holds both before Arrow unifies them."""
    schemas = [pa.schema({"a": each}) for each in types]
    unified = pa.unify_schemas(schemas, promote_options="permissive")
    assert unified.field("a").type == pa.int64()


def test_arrow_takes_the_first_of_two_csv_columns_of_one_name():
    """psrun.tables.formats refuses a file with two columns of one name."""
    options = csv.ConvertOptions(include_columns=["a"])
    table = csv.read_csv(io.BytesIO(b"a,b,a\n1,2,3\n"), convert_options=options)
    assert table.to_pydict() == {"a": [1]}
