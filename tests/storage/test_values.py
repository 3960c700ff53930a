from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roma_ray.errors import FolderUnusable, ValueLost
from roma_ray.storage.size import size_of
from roma_ray.storage.values import ValueStore
from roma_ray.types import Json, ValueHandle

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
# Lone surrogates too: a model's JSON answer may contain them.
TEXTS = st.text(st.characters(codec=None))
PLAIN = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=8)
RECORDS = st.sets(st.text(), min_size=1, max_size=4).flatmap(
    lambda names: st.lists(st.fixed_dictionaries(dict.fromkeys(sorted(names), PLAIN)), max_size=5)
)


@pytest.fixture(scope="module")
def store() -> ValueStore:
    return ValueStore("memory://values", "run1")


@settings(max_examples=200, deadline=None)
@given(value=PLAIN | RECORDS | TEXTS)
def test_every_value_comes_back_as_it_was_put_types_and_order_included(store: ValueStore, value: Json) -> None:
    assert repr(store.get(store.put(value))) == repr(value)


def test_records_become_a_table_that_other_tools_can_read(tmp_path: Path) -> None:
    records = [{"name": f"n{i}", "score": i / 2, "tags": ["a", "b"], "at": {"x": i, "y": None}} for i in range(500)]

    handle = ValueStore(str(tmp_path), "run1").put(records)

    assert (handle.kind, handle.rows, handle.columns) == ("table", 500, ("name", "score", "tags", "at"))
    table = pq.read_table(tmp_path / handle.path)
    assert str(table.schema.field("at").type) == "struct<x: int64, y: null>"
    assert table.to_pylist() == records
    assert len(handle.preview) <= 600 and handle.preview.startswith('[{"name": "n0"') and handle.preview.endswith(" …")


@pytest.mark.parametrize(
    "records",
    [
        [{"a": 1}, {"a": 1.0}],
        [{"a": 1}, {"a": True}],
        [{"a": 1}, {"b": 1}],
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
        [{"a": {"x": 1}}, {"a": {}}],
        [{"a": [1, 2.5]}],
        [{"a": {}}],
        [{"a": 2**70}],
        [{"a": "\ud800"}],
        [{}],
    ],
)
def test_records_that_a_table_would_change_are_kept_as_json(store: ValueStore, records: list[Json]) -> None:
    handle = store.put(records)
    assert handle.kind == "json"
    assert repr(store.get(handle)) == repr(records)


def test_a_long_text_is_stored_by_lines_and_overlong_lines_in_pieces(tmp_path: Path) -> None:
    text = "first\n\nthird\r\n" + "x" * 200_000
    handle = ValueStore(str(tmp_path), "run1").put(text)
    rows = pq.read_table(tmp_path / handle.path).column("text").to_pylist()
    assert rows[:3] == ["first\n", "\n", "third\r\n"] and max(map(len, rows)) == 65_536
    assert handle.kind == "text" and "".join(rows) == text


def test_the_same_value_put_by_many_threads_is_one_whole_file(tmp_path: Path) -> None:
    store = ValueStore(str(tmp_path), "run1")
    with ThreadPoolExecutor(8) as pool:
        handles = list(pool.map(store.put, ["the same\n" * 20_000] * 32))
    assert len(set(handles)) == 1
    assert [path.name for path in (tmp_path / "executions/run1/results").iterdir()] == [f"{handles[0].sha256}.parquet"]


def test_a_missing_a_cut_and_a_flipped_file_are_lost_values_and_putting_it_again_mends_them(tmp_path: Path) -> None:
    store = ValueStore(str(tmp_path), "run1")
    handle = store.put("text " * 1000)
    file = tmp_path / handle.path
    whole = file.read_bytes()
    for damaged in (whole[:-1], b"", whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]):
        file.write_bytes(damaged)
        with pytest.raises(ValueLost, match="damaged"):
            store.get(handle)
    file.unlink()
    with pytest.raises(ValueLost, match="missing"):
        store.get(handle)
    assert store.put("text " * 1000) == handle
    assert store.get(handle) == "text " * 1000


def test_a_handle_that_points_elsewhere_reads_nothing(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    store = ValueStore(str(tmp_path / "base"), "run1")
    for path in ("../secret", str(tmp_path / "secret"), "executions/../../secret"):
        with pytest.raises(ValueLost, match="outside"):
            store.get(ValueHandle(path=path, sha256="", size_bytes=1, kind="json"))


def test_a_base_path_that_cannot_be_written_is_named_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderUnusable, match=r"file.*Not a directory") as error:
        ValueStore(str(tmp_path / "file"), "run1").put("x")
    assert "storage.base_path" in error.value.cure


def test_values_live_behind_any_url_that_fsspec_opens() -> None:
    store = ValueStore("memory://bucket/prefix", "run1")
    handle = store.put({"a": [1, None]})
    assert ValueStore("memory://bucket/prefix", "run2").get(handle) == {"a": [1, None]}
    with pytest.raises(ValueLost, match="missing"):
        ValueStore("memory://bucket/elsewhere", "run1").get(handle)


def test_the_size_that_decides_what_stays_inline_is_that_of_the_json() -> None:
    assert [size_of(v) for v in ("äb", None, {"a": [1, 2]}, 2**70, "\ud800")] == [3, 4, 11, 22, 3]
