"""What chunks say of the units of the cut, as files, whole or not at all, that know what they depend on."""

import hashlib
from pathlib import Path

import numpy as np

from dpinfer._files import read_record, write_record
from dpinfer.spine.chunks import Chunk, Plan
from dpinfer.spine.passes import Below
from dpinfer.spine.product import Product
from dpinfer.spine.supports import Supports

_KIND, _VERSION = "dpinfer spine message", 1


def fingerprint(product: Product, plan: Plan, chunk: Chunk) -> str:
    """What a message depends on: the units below, their variances and zeros, the coordinates, and what the files hold."""
    found = hashlib.blake2b(digest_size=16)
    found.update(repr((_VERSION, product.schema.labels, [(q.name, q.groups) for q in product.queries])).encode())
    found.update(repr((product.classes.dense_names, plan.cut - len(product.units))).encode())
    for depth in range(plan.cut, len(product.units)):
        units, (start, stop) = product.units[depth], chunk.span(depth)
        for array in (units.packed, units.variances, units.is_zero):
            found.update(np.ascontiguousarray(array[start:stop]).tobytes())
        if depth > plan.cut:
            found.update(repr(product.content(depth, start, stop)).encode())
    return found.hexdigest()


def message_path(folder: Path, product: Product, plan: Plan, chunk: Chunk) -> Path:
    """Where a chunk's message is kept."""
    first = product.units[plan.cut].packed[chunk.cut.start].decode()
    return folder / f"message-{plan.cut - len(product.units)}-{first or 'top'}.npz"


def save_message(path: Path, mark: str, below: Below, supports: Supports) -> None:
    """Write a message, whole or not at all."""
    used, support = np.unique(below.support, return_inverse=True)
    arrays = {
        "matrix": below.matrix,
        "vector": below.vector,
        "support": support,
        "projectors": supports.projectors(used),
        "measured": below.measured,
        "families": below.families,
    }
    if below.offset is not None:
        arrays["offset"] = below.offset
    write_record(path, _KIND, _VERSION, {"fingerprint": mark}, arrays)


def load_message(path: Path, mark: str, supports: Supports) -> Below | None:
    """The message, if there is one and it is of the same measurements; a damaged one is made anew."""
    if not path.exists():
        return None
    try:
        header, arrays = read_record(path, _KIND, _VERSION)
        if header["fingerprint"] != mark:
            return None
        numbers = np.array([supports.number(projector) for projector in arrays["projectors"]], dtype=np.int64)
        support, offset = numbers[arrays["support"]], arrays.get("offset")
        return Below(arrays["matrix"], arrays["vector"], support, arrays["measured"], arrays["families"], offset)
    except (ValueError, KeyError):
        return None
