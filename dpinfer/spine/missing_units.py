"""Whether units are missing from a product: then the others do not add up to what is measured above them."""

import numpy as np

from dpinfer.spine.passes import restricted_inverse
from dpinfer.spine.product import Product
from dpinfer.spine.supports import Supports
from dpinfer.spine.tree import Stage

# A normal variable goes beyond in one of 5e8 cases, and units at the cut and above are some thousands.
_FAR = 6.0


def check_children(stage: Stage, product: Product, depth: int, supports: Supports) -> None:
    """Refuse units whose own total is far from what the units below them say: files of some of these are missing.

    Raises:
        ValueError: naming the unit and the distance in standard deviations.
    """
    units, classes = product.units[depth], supports.classes
    said = zip(stage.below.support, stage.below.measured, strict=True)
    is_known = np.array([supports.is_determined(int(support), measured) for support, measured in said], dtype=bool)
    told = np.flatnonzero((stage.below.families > 0) & is_known)
    everything = product.schema.query("total").groups
    totals = [number for number, query in enumerate(product.queries) if query.groups == everything]
    if not told.size or not totals:
        return
    spread = restricted_inverse(stage.below.matrix[told], stage.below.support[told], supports)
    vector = stage.below.vector[told]
    if stage.below.offset is None:
        sums = classes.apply(spread, vector)
    else:
        known = stage.below.offset[told]
        sums = known + classes.apply(spread, vector - classes.apply(stage.below.matrix[told], known))
    total = product.queries[totals[0]]
    expected, variance = total.answer(classes.unrotate(sums))[:, 0], classes.variances(total, spread)[:, 0]
    for number in totals:
        at, values = product.values(depth, 0, len(units))[number]
        place = np.searchsorted(told, at)
        inside = (place < len(told)) & (told[np.minimum(place, len(told) - 1)] == at)
        own = place[inside]
        noise = units.variances[at[inside], number]
        # Exact totals were compared before, up to rounding.
        rounding = 1e-6 * (1 + np.abs(values[inside, 0]))
        distance = np.abs(values[inside, 0] - expected[own]) / np.sqrt(noise + variance[own] + rounding**2)
        far = np.flatnonzero(distance > _FAR)
        if far.size:
            worst = far[np.argmax(distance[far])]
            raise ValueError(
                f"{units.name} {str(units.codes[told[own[worst]]])!r}: its own total is {distance[worst]:.0f} standard "
                f"deviations from what the units below it say. Are files of some of these missing? Of some states only, begin at "
                "top='State'."
            )
