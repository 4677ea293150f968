"""Counting groups of more entities than memory holds: by DuckDB, which puts aside in temporary files what does not fit.

The same numbers as ``group_tables`` counts. What is put aside is private: it lies in a folder of its own that only its owner may
enter, and goes with it. An engine's own message may quote a record and is replaced.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpinfer import tables
from dpinfer.axes.categories import key_text, key_texts

_BYTES_OF_A_THREAD = 1 << 28
# Of which any two are compared without a cast that could fail, and tell of a value by failing.
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
# What makes of a column's values integers, or the texts that key_text has for them: Python reads what is not plain.
_EXPRESSIONS = dict.fromkeys(_INTEGERS, "{0}") | {
    "VARCHAR": "CASE WHEN regexp_full_match({0}, '[A-Za-z0-9_-]+') AND lower({0}) NOT IN ('true', 'false') THEN {0} "
    "ELSE text_of_text({0}) END",
    "BOOLEAN": "CASE WHEN {0} THEN 'True' WHEN NOT {0} THEN 'False' END",
}
_EXPRESSIONS |= dict.fromkeys(
    ("FLOAT", "DOUBLE"),
    "CASE WHEN abs({0}) < 1e15 AND {0} = trunc({0}) THEN {0}::BIGINT::VARCHAR ELSE text_of_number({0}::DOUBLE) END",
)


class _Keys(NamedTuple):
    """A table of keys as DuckDB reads it.

    Attributes:
        rows: what follows FROM; its columns are ``row``, the number of the row, and the keys ``a`` and ``b``.
        are_integers: whether ``a`` and ``b`` are, or else texts.
    """

    rows: str
    are_integers: tuple[bool, bool]


def is_large(entities: Any) -> bool:
    """Whether a table is counted here: a Parquet file, or a relation of DuckDB."""
    return tables.is_parquet(entities) or _relation(entities) is not None


def _relation(table: Any) -> Any:
    """The relation if a table is one of DuckDB's, wrapped by narwhals or not."""
    if not hasattr(table, "to_native") and not type(table).__module__.partition(".")[0].endswith("duckdb"):
        return None
    import narwhals as nw

    native = nw.to_native(table, pass_through=True)
    return native if type(native).__name__ == "DuckDBPyRelation" else None


class GroupCounter:
    """A database in a folder of its own; to be used in a ``with``."""

    def __init__(self, memory_limit: int):
        self._memory_limit = memory_limit

    def __enter__(self) -> "GroupCounter":
        import duckdb

        self._folder = tempfile.TemporaryDirectory(prefix="dpinfer-")  # which nobody else may enter
        self._num_tables = 0
        path = Path(self._folder.name)
        threads = max(1, min(os.cpu_count() or 1, self._memory_limit // _BYTES_OF_A_THREAD))
        with _without_quoting():
            self._database = duckdb.connect(
                path / "groups.duckdb",
                config={
                    "temp_directory": str(path / "aside"),
                    "memory_limit": f"{self._memory_limit}B",
                    "threads": threads,
                    "preserve_insertion_order": False,
                },
            )
            self._database.execute("SET enable_progress_bar = false")
            for name, kind in (("text_of_text", "VARCHAR"), ("text_of_number", "DOUBLE")):
                self._database.create_function(name, key_text, [kind], "VARCHAR", null_handling="special")  # type: ignore[arg-type]
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
        self._folder.cleanup()

    def place_groups(self, groups: Any, leaf_of: dict[str, int]) -> None:
        """Give each group its leaf; of several rows with one group the first in a region of the hierarchy counts."""
        self._groups = self._keys(groups, ("group", "region"))
        self._hold({"region": np.array(list(leaf_of), dtype=object), "leaf": np.array(list(leaf_of.values()))})
        self._run(
            f"CREATE TABLE read AS SELECT row, a AS key, leaf FROM {self._groups.rows} LEFT JOIN held ON b::VARCHAR = region"
        )
        self._run(
            "CREATE TABLE placed AS SELECT key, min(row) AS first, arg_min(leaf, row) AS leaf FROM read "
            "WHERE key IS NOT NULL AND leaf IS NOT NULL GROUP BY key"
        )

    def check_public(self, check: Callable[[int, Any, Any, int | None, int | None], None]) -> None:
        """Show the first row that public groups must not have: its number, group, region, leaf, and the leaf it had before."""
        [found] = self._run(
            "SELECT min(row) FROM read LEFT JOIN placed USING (key) "
            "WHERE read.key IS NULL OR read.leaf IS NULL OR read.leaf <> placed.leaf"
        ).fetchall()
        if found[0] is not None:
            [row] = self._run(
                f"SELECT row, a::VARCHAR, b::VARCHAR, read.leaf, coalesce(placed.leaf, read.leaf) FROM {self._groups.rows} "
                f"JOIN read USING (row) LEFT JOIN placed ON read.key = placed.key AND first < row WHERE row = {found[0]}"
            ).fetchall()
            check(*row)

    def sizes(self, entities: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """int64 leaves, sizes and how many groups are so, by leaf and size upward."""
        rows, (_, is_integer) = self._keys(entities, ("entity", "group"))
        same = "b = key" if is_integer and self._groups.are_integers[0] else "b::VARCHAR = key::VARCHAR"
        self._run(
            "CREATE TABLE counted AS SELECT first, count(*) AS size FROM ("
            f"SELECT arg_min(coalesce(first, -1), entities.row) AS first FROM {rows} AS entities LEFT JOIN placed ON {same} "
            "WHERE a IS NOT NULL GROUP BY a) WHERE first >= 0 GROUP BY first"
        )
        found = self._run(
            "SELECT leaf, coalesce(size, 0) AS size, count(*) AS number FROM placed LEFT JOIN counted USING (first) "
            "GROUP BY ALL ORDER BY ALL"
        ).fetchnumpy()
        leaves, sizes, counts = (np.asarray(found[name]).astype(np.int64) for name in ("leaf", "size", "number"))
        return leaves, sizes, counts

    def _run(self, query: str) -> Any:
        with _without_quoting():
            return self._database.execute(query)

    def _keys(self, table: Any, names: tuple[str, str]) -> _Keys:
        relation = _relation(table)
        if relation is not None:
            self._num_tables += 1
            table = Path(self._folder.name) / f"{self._num_tables}.parquet"
            with _without_quoting():
                relation.project(", ".join(map(_quoted, names))).write_parquet(str(table))
        kinds = tables.parquet_columns(table) if tables.is_parquet(table) else {}
        read = [_EXPRESSIONS.get(kinds.get(name, "")) for name in names]
        if None in read:
            return self._texts(table, names)
        a, b = (expression.format(_quoted(name)) for expression, name in zip(read, names, strict=True) if expression)
        path = os.fspath(table).replace("'", "''")
        rows = (
            f"(SELECT file_row_number AS row, {a} AS a, {b} AS b FROM "
            f"read_parquet('{path}', hive_partitioning = false, file_row_number = true))"
        )
        return _Keys(rows, (kinds[names[0]] in _INTEGERS, kinds[names[1]] in _INTEGERS))

    def _texts(self, table: Any, names: tuple[str, str]) -> _Keys:
        """A table whose keys Python reads."""
        self._num_tables += 1
        name, begin = f"texts_{self._num_tables}", 0
        self._run(f"CREATE TABLE {name} (row BIGINT, a VARCHAR, b VARCHAR)")
        for chunk in tables.chunks(table, names):
            first, second = (_encodable(key_texts(column)) for column in chunk)
            self._hold({"row": begin + np.arange(first.size), "a": first, "b": second})
            self._run(f"INSERT INTO {name} FROM held")
            begin += first.size
        return _Keys(name, (False, False))

    def _hold(self, arrays: dict[str, np.ndarray]) -> None:
        self._database.register("held", arrays)


def _quoted(name: str) -> str:
    return f'"{name}"'


def _encodable(texts: np.ndarray) -> np.ndarray:
    """Halves of characters, which no file holds, spelled out."""
    for place, text in enumerate(texts.tolist()):
        if text is not None and not text.isascii():
            texts[place] = text.encode(errors="backslashreplace").decode()
    return texts


@contextmanager
def _without_quoting() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        import duckdb

        if isinstance(error, duckdb.OutOfMemoryException):
            raise ValueError("memory_limit is too small, or the disk too full, for these tables.") from None
        raise ValueError("The tables of entities and groups could not be read.") from None
