"""Files that appear whole or not at all, and the one format of what was released: arrays with a header, without pickle."""

import json
import os
import secrets
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

# What numpy, zip and JSON raise for a file that is none of theirs or is damaged.
_UNREADABLE = (KeyError, ValueError, OSError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error)


@contextmanager
def replacing(path: str | os.PathLike[str], *, binary: bool = False) -> Iterator[IO[Any]]:
    """A new file open for writing that takes the place of ``path`` once everything is on disk; an error leaves the old one."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        with temporary.open("xb") if binary else temporary.open("x", newline="", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_record(
    path: str | os.PathLike[str], kind: str, version: int, header: dict[str, Any], arrays: dict[str, np.ndarray]
) -> None:
    """Write an .npz file whose header, JSON text, says what kind of record it holds and in which version of the format."""
    text = json.dumps({"format": kind, "version": version, **header})
    with replacing(path, binary=True) as file:
        np.savez_compressed(file, allow_pickle=False, header=np.frombuffer(text.encode(), dtype=np.uint8), **arrays)


def read_record(path: str | os.PathLike[str], kind: str, version: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays that :func:`write_record` wrote.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no such record, is damaged, or was written by a newer version.
    """
    with Path(path).open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{os.fspath(path)} is no {kind}: it is not an .npz file.")
        file.seek(0)
        try:
            with np.load(file, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            header = _header(arrays.pop("header"))
        except _UNREADABLE as error:
            raise ValueError(f"{os.fspath(path)} is no {kind}, or it is damaged: {error}") from error
    if not isinstance(header, dict) or header.get("format") != kind:
        raise ValueError(f"{os.fspath(path)} is no {kind}: its header does not say so.")
    if header.get("version") != version:
        raise ValueError(
            f"{os.fspath(path)} is a {kind} of format version {header.get('version')}; this dpinfer reads version {version}. "
            "Upgrade dpinfer to read it."
        )
    return header, arrays


def _header(stored: np.ndarray) -> Any:
    return json.loads(stored.tobytes().decode())


def record_kind(path: str | os.PathLike[str]) -> str | None:
    """What kind of record a file says that it holds; None if it is none, so that whoever reads it says why."""
    if not zipfile.is_zipfile(path):
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            header = _header(stored["header"])
    except _UNREADABLE:
        return None
    return header.get("format") if isinstance(header, dict) else None


@contextmanager
def reading(path: str | os.PathLike[str], kind: str) -> Iterator[None]:
    """Says that a record is damaged where its header lacks something or holds something else than it should."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ZeroDivisionError, IndexError) as error:
        raise ValueError(f"{os.fspath(path)} is a damaged {kind}: {error!r} is wrong in its header.") from error
