"""A folder of finished parts, so that a long estimate that is stopped goes on where it was."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import numpy as np

from dpinfer._files import read_record, write_record
from dpinfer.inference.size_runs import SizeRuns

_FORMAT = "dpinfer part of a count-of-counts estimate"
_VERSION = 1


@final
class Store:
    """Runs by what they were made from: a file each, named by a digest of it, so that no file is taken for another's."""

    def __init__(self, folder: str | os.PathLike[str]):
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)

    def kept(self, how: str, arrays: tuple[np.ndarray, ...], make: Callable[[], SizeRuns]) -> SizeRuns:
        """What ``make`` returns, from the folder if it is there, else made and put there."""
        digest = hashlib.sha256(how.encode())
        for array in arrays:
            digest.update(f"{array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        path = self._folder / f"{digest.hexdigest()}.npz"
        if path.exists():
            _, stored = read_record(path, _FORMAT, _VERSION)
            return SizeRuns(*(stored[name] for name in SizeRuns._fields))
        runs = make()
        write_record(path, _FORMAT, _VERSION, {}, dict(zip(SizeRuns._fields, runs, strict=True)))
        return runs


def store_of(folder: Any) -> Store | None:
    """The store in a folder, which is made if need be; None without one."""
    return None if folder is None else Store(folder)
