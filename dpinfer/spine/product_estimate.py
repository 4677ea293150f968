"""Least squares over all units of a product, in bounded memory, to be resumed where it was stopped."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from dpinfer import _checks
from dpinfer._progress import reporter
from dpinfer.spine import functionals
from dpinfer.spine.areas import AreaAnswers, Areas
from dpinfer.spine.certificate import Certificate, Walk
from dpinfer.spine.chunks import Chunk, make_plan, whole_level
from dpinfer.spine.functionals import Form, Terms
from dpinfer.spine.messages import fingerprint, load_message, message_path, save_message
from dpinfer.spine.missing_units import check_children
from dpinfer.spine.passes import Below, Estimate, join
from dpinfer.spine.product import Product, level_named, listed
from dpinfer.spine.supports import Supports
from dpinfer.spine.tree import down, up


@final
class ProductEstimate:
    """Estimates of all units of a product; see :func:`product_least_squares`.

    Attributes:
        product: what was measured.
        cut: the lowest level whose estimates are held; those of lower ones are made anew, from the files, when they are wanted.
    """

    def __init__(self, product: Product, memory: int, cut: int | None, leaf_dtype: Any):
        self.product = product
        self._dtype = leaf_dtype
        self._supports = Supports(product.classes, product.queries)
        self._plan = make_plan(product, memory, cut)
        self.cut = product.units[self._plan.cut].name
        self._chunks = [Chunk(product, self._supports, self._plan, one) for one in self._plan.chunks]
        self._lowest = len(product.units) - 1

    def _messages(
        self, folder: Path | None, under: Sequence[str] | None, progress: bool | Callable[[int, int], None]
    ) -> list[Below | None]:
        wanted = self._chunks if under is None else [chunk for chunk in self._chunks if self._is_under(chunk, under)]
        if folder is not None:
            if folder.exists() and not folder.is_dir():
                raise ValueError(f"work must be a folder, {folder} is a file.")
            folder.mkdir(parents=True, exist_ok=True)
        tell = reporter(progress, sum(map(len, wanted)), self.product.units[-1].name)
        found: list[Below | None] = []
        try:
            for chunk in wanted:
                found.append(self._message(chunk, folder, keep=under is None))
                tell(len(chunk))
        finally:
            tell(None)
        return found

    def _is_under(self, chunk: Chunk, under: Sequence[str]) -> bool:
        codes = self.product.units[self._plan.cut].packed[chunk.cut]
        return any(code.decode().startswith(tuple(under)) for code in codes)

    def _message(self, chunk: Chunk, folder: Path | None, *, keep: bool) -> Below | None:
        if folder is None:
            return chunk.up()[0]
        path, mark = message_path(folder, self.product, self._plan, chunk), fingerprint(self.product, self._plan, chunk)
        below = load_message(path, mark, self._supports)
        if below is None:
            below = chunk.up()[0]
            save_message(path, mark, below, self._supports)
        return below if keep else None

    def _solve(self, messages: Sequence[Below]) -> None:
        levels = [
            whole_level(self.product, self._supports, depth, (0, len(self.product.units[depth])), 0)
            for depth in range(self._plan.cut + 1)
        ]
        below = join(messages)
        self._stages = up(levels, self._supports, below)
        for depth, stage in enumerate(self._stages):
            check_children(stage, self.product, depth, self._supports)
        self._estimates = down(self._stages, self.product.classes)

    # ---- answers ----

    def areas(self, level: str, codes: str | Sequence[str] | None = None) -> Areas:
        """Estimates and covariances of units of a level: all in order of their codes, or some in the order given.

        Args:
            level: its name.
            codes: of the units.

        Cost: at the cut and above it none; below, reading the files of the units' chunks again. All blocks of a state do not
            fit into memory: use :meth:`iterate`.
        """
        depth = self.product.depth(level)
        places = np.arange(len(self.product.units[depth]))
        if codes is not None:
            given = listed(codes)
            depths, places = self.product.find(given)
            if (depths != depth).any():
                raise ValueError(f"codes must be of {level}, got {given[int(np.flatnonzero(depths != depth)[0])]!r}.")
        if depth <= self._plan.cut:
            return self._held(depth, places)
        parts = []
        order = np.argsort(places, kind="stable")
        for chunk in self._chunks:
            start, stop = chunk.span(depth)
            inside = places[order][(places[order] >= start) & (places[order] < stop)]
            if inside.size:
                ends = (int(inside[0]), int(inside[-1]) + 1)
                parts += [_chosen(span, areas, inside) for span, areas in self._of_chunk(chunk, depth, ends)]
        parts = [part for part in parts if len(part)]
        if not parts:
            return self._held(0, np.zeros(0, dtype=np.int64))
        found = Areas.join(parts)
        back = np.argsort(order, kind="stable")
        return Areas(found.names[back], found.classes, found.mean[back], found.covariance[back])

    def iterate(self, level: str) -> Iterator[Areas]:
        """All units of a level in the order of their codes, some at a time."""
        depth = self.product.depth(level)
        if depth <= self._plan.cut:
            size = len(self.product.units[depth])
            for start in range(0, size, self._plan.at_once):
                yield self._held(depth, np.arange(start, min(size, start + self._plan.at_once)))
            return
        for chunk in self._chunks:
            for _, areas in self._of_chunk(chunk, depth, None):
                yield areas

    def _held(self, depth: int, places: np.ndarray) -> Areas:
        estimate, codes = self._estimates[depth], self.product.units[depth].packed
        return Areas(codes[places].astype(str), self.product.classes, estimate.mean[places], estimate.covariance[places])

    def _top(self, chunk: Chunk) -> Estimate:
        held = self._estimates[self._plan.cut]
        return Estimate(held.mean[chunk.cut], held.covariance[chunk.cut])

    def _of_chunk(self, chunk: Chunk, depth: int, wanted: tuple[int, int] | None) -> Iterator[tuple[tuple[int, int], Areas]]:
        codes, classes = self.product.units[depth].packed, self.product.classes
        below, stages = chunk.up()
        estimates = chunk.down(self._top(chunk), below, stages)
        if depth < self._lowest:
            found = estimates[depth - self._plan.cut - 1]
            start, stop = chunk.span(depth)
            yield (start, stop), Areas(codes[start:stop].astype(str), classes, *found)
            return
        above, heard = (estimates[-1], stages[-1].below) if stages else (self._top(chunk), below)
        for (start, stop), _, found, _ in chunk.leaves(above, heard, covariances=True, dtype=self._dtype, wanted=wanted):
            yield (start, stop), Areas(codes[start:stop].astype(str), classes, *found)

    def regions(self, regions: Mapping[str, Mapping[str, float] | Sequence[str] | str]) -> Areas:
        """Sums of any units, such as places or districts that are no unit: for each name codes, or codes and weights.

        Codes may be of any levels, and weights negative. Covariances in one sweep up; chunks without such units are not read.
        """
        classes = self.product.classes
        weighted = functionals.with_weights(regions)
        form = functionals.by_node(classes)
        weights = np.array([w for one in weighted for w in one.values()], dtype=float)

        def terms(at: np.ndarray) -> np.ndarray:
            return functionals.of_whole_nodes(classes, weights[at])

        def means(at: np.ndarray, mean: np.ndarray) -> np.ndarray:
            return weights[at][:, None, None] * mean

        mean, covariance = self._sweep(weighted, form, terms, means, (classes.num_dense, classes.num_columns))
        return Areas(np.array(list(regions), dtype=object), classes, mean, covariance)

    def functional(self, coefficients: Sequence[Mapping[str, Any]]) -> AreaAnswers:
        """Any linear functionals: for each the codes of units and the coefficient of every cell there, in C order.

        Returns:
            values and stddev [functionals, 1].
        """
        classes = self.product.classes
        given = [vector for one in coefficients for vector in one.values()]
        vectors = classes.rotate(functionals.as_vectors(given, classes.schema.size))

        def means(at: np.ndarray, mean: np.ndarray) -> np.ndarray:
            return np.einsum("tij,tij->t", vectors[at], mean)

        form = functionals.by_cell(classes)
        values, variance = self._sweep(list(coefficients), form, lambda at: vectors[at], means, ())
        return AreaAnswers(values[:, None], np.sqrt(np.maximum(variance, 0.0))[:, None])

    def _sweep(
        self,
        given: Sequence[Mapping[str, Any]],
        form: Form,
        factors: Callable[[np.ndarray], np.ndarray],
        means: Callable[[np.ndarray, np.ndarray], np.ndarray],
        shape: tuple[int, ...],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Estimates and variances of sums over units; ``factors`` and ``means`` take the places of some of all terms."""
        num_sums = len(given)
        sums = np.repeat(np.arange(num_sums), [len(one) for one in given]).astype(np.int64)
        depths, places = self.product.find([code for one in given for code in one])
        values = np.zeros((num_sums, *shape))
        variance: Any = 0.0

        def own(depth: int, span: tuple[int, int]) -> np.ndarray:
            return np.flatnonzero((depths == depth) & (places >= span[0]) & (places < span[1]))

        def add(at: np.ndarray, mean: np.ndarray) -> None:
            values[:] += functionals.add_up(means(at, mean), sums[at], num_sums)

        def empty() -> Terms:
            nothing = np.zeros(0, dtype=np.int64)
            return Terms(nothing, nothing, np.zeros((0, *form.shape)))

        risen = empty()
        for chunk in self._chunks:
            if not any(own(depth, chunk.span(depth)).size for depth in range(self._plan.cut + 1, self._lowest + 1)):
                continue
            below, stages = chunk.up()
            estimates = chunk.down(self._top(chunk), below, stages)
            above, heard = (estimates[-1], stages[-1].below) if stages else (self._top(chunk), below)
            terms = empty()
            leaves = own(self._lowest, chunk.span(self._lowest))
            if leaves.size:
                # Whole families, since what a sum owes to the parent is of all of its terms.
                partial = []
                wanted = (int(places[leaves].min()), int(places[leaves].max()) + 1)
                for span, level, found, kinds in chunk.leaves(above, heard, covariances=False, dtype=np.float64, wanted=wanted):
                    at = own(self._lowest, span)
                    local = places[at] - span[0]
                    add(at, found.mean[local])
                    parent = level.parent[local]
                    is_only = heard.families[parent] == 1
                    kind = kinds.kind[local]
                    partial.append(functionals.lift(form, sums[at], parent, is_only, kinds.variance, kind, factors(at)))
                terms, spent = functionals.close(form, functionals.gathered(partial), heard, num_sums)
                variance = variance + spent
            for number in reversed(range(len(stages))):
                depth = self._plan.cut + 1 + number
                at = own(depth, chunk.span(depth))
                local = places[at] - chunk.span(depth)[0]
                add(at, estimates[number].mean[local])
                terms = functionals.merge(terms, Terms(sums[at], local, factors(at)))
                upper = stages[number - 1].below if number else below
                stage = stages[number]
                terms, spent = functionals.rise(form, terms, stage.level.parent, stage.belief, upper, num_sums)
                variance = variance + spent
            risen = functionals.merge(risen, terms._replace(nodes=terms.nodes + chunk.cut.start))
        for depth in range(self._plan.cut, -1, -1):
            at = own(depth, (0, len(self.product.units[depth])))
            add(at, self._estimates[depth].mean[places[at]])
            terms = functionals.merge(risen, Terms(sums[at], places[at], factors(at)))
            if depth == 0:
                variance = variance + functionals.at_the_top(form, terms, self._estimates[0].covariance, num_sums)
            else:
                stage, upper = self._stages[depth], self._stages[depth - 1].below
                risen, spent = functionals.rise(form, terms, stage.level.parent, stage.belief, upper, num_sums)
                variance = variance + spent
        return values, variance

    def certificate(self, progress: bool | Callable[[int, int], None] = False) -> Certificate:
        """How far all estimates are from the optimum, by the normal equations; see ``certificate``. Reads all files again."""
        walk, paths = Walk(self._supports), []
        tell = reporter(progress, len(self.product.units[-1]), self.product.units[-1].name)
        for depth, (stage, estimate) in enumerate(zip(self._stages, self._estimates, strict=True)):
            paths.append(walk.step(stage.level, stage.below, estimate, paths[-1] if depth else None))
            if depth:
                upper = self._stages[depth - 1].below.families > 0
                walk.sums(self._estimates[depth - 1].mean, estimate.mean, stage.level.parent, upper)
        try:
            for chunk in self._chunks:
                below, stages = chunk.up()
                estimates = chunk.down(self._top(chunk), below, stages)
                above, heard, inside = self._top(chunk), below, paths[-1][chunk.cut]
                for stage, estimate in zip(stages, estimates, strict=True):
                    inside = walk.step(stage.level, stage.below, estimate, inside)
                    walk.sums(above.mean, estimate.mean, stage.level.parent, heard.families > 0)
                    above, heard = estimate, stage.below
                total = np.zeros(above.mean.shape)
                for _, level, found, _ in chunk.leaves(above, heard, covariances=True, dtype=np.float64):
                    walk.step(level, None, found, inside)
                    np.add.at(total, level.parent, found.mean)
                walk.sums(above.mean, total, np.arange(len(total)), heard.families > 0)
                tell(len(chunk))
        finally:
            tell(None)
        return walk.result()


def product_least_squares(
    product: Product,
    *,
    work: str | os.PathLike[str] | None = None,
    memory: int = 2**31,
    cut: str | None = None,
    leaf_dtype: Any = np.float64,
    progress: bool | Callable[[int, int], None] = False,
) -> ProductEstimate:
    """The best linear unbiased estimates of all units of a product, with their exact covariances, in bounded memory.

    As :func:`~dpinfer.spine.tree_least_squares`. The files of the lowest levels are read in chunks, some units at a time; what
    the units of a chunk say of the units of a level above them, the cut, is its message, and only messages are kept. Estimates
    below the cut are made from the files again when they are asked for.

    Args:
        product: the opened files.
        work: a folder for messages; a run that was stopped goes on from there, and so does one whose messages were prepared by
            :func:`prepare_messages`, here or on other machines. A message is made anew where the cut, the zeros or exact levels,
            or what the files below hold is other: all their bytes are read to see that.
        memory: bytes that arrays should stay below, the codes and variances of all units not counted.
        cut: the name of the level at which the tree is cut; by default the lowest whose units fit into a third of the memory.
        leaf_dtype: numpy.float32 for faster estimates of the lowest level, with errors below 1e-4 of their standard deviations;
            all other levels are in 64 bit.
        progress: True for a bar, or a function of (units done, units in all).

    Cost: O(units * cells); 300,000 blocks of 2,016 cells in some 25 s and 1 GB on two cores.

    Raises:
        ValueError: if the measurements do not determine every cell of every unit, or if the total of a unit at the cut or above
            is more than 6 standard deviations from what the units below it say, as where some of these are missing.
    """
    memory = _checks.integer("memory", memory, least=2**20)
    estimate = ProductEstimate(product, memory, _cut(product, cut), _leaf_dtype(leaf_dtype))
    messages = estimate._messages(None if work is None else Path(work), None, progress)
    estimate._solve([message for message in messages if message is not None])
    return estimate


def prepare_messages(
    product: Product,
    work: str | os.PathLike[str],
    *,
    under: str | Sequence[str],
    memory: int = 2**31,
    cut: str | None = None,
    progress: bool | Callable[[int, int], None] = False,
) -> int:
    """Write the messages of the units under some codes; how many there are. :func:`product_least_squares` reads them.

    So states are done one after the other, or on several machines: each needs the files of its states at all levels, and of the
    levels above them. The final estimate is made where all messages and all files are; it takes codes, variances and zeros from
    these, and the values of the cut and above.

    Args:
        product: the opened files.
        work: the folder of the messages.
        under: beginnings of codes, such as "050" and "150" for the two parts of a state.
        memory, cut: as there; name the cut where machines are to share messages, since it must be the same.
        progress: as there.
    """
    memory = _checks.integer("memory", memory, least=2**20)
    estimate = ProductEstimate(product, memory, _cut(product, cut), np.float64)
    codes = product.level_codes(estimate.cut)
    lost = [one for one in listed(under) if not any(code.startswith(one) for code in codes)]
    if lost or not listed(under):
        raise ValueError(
            f"under must be beginnings of the codes of units at {estimate.cut}, such as {', '.join(codes[:3])}; none begins with "
            f"{', '.join(lost) or 'nothing'}."
        )
    return len(estimate._messages(Path(work), listed(under), progress))


def _cut(product: Product, cut: str | None) -> int | None:
    return None if cut is None else product.level_names.index(level_named(product.level_names[:-1], cut, "cut"))


def _leaf_dtype(dtype: Any) -> np.dtype:
    if dtype not in (np.float32, np.float64, "float32", "float64", np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"leaf_dtype must be numpy.float32 or numpy.float64, got {dtype!r}.")
    return np.dtype(dtype)


def _chosen(span: tuple[int, int], areas: Areas, places: np.ndarray) -> Areas:
    """Those of a run of units that are wanted, as often as they are."""
    at = places[(places >= span[0]) & (places < span[1])] - span[0]
    return Areas(areas.names[at], areas.classes, areas.mean[at], areas.covariance[at])
