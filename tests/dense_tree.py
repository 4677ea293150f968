"""Trees of vectors with everything written out: one big least-squares problem over the cells of all leaves."""

import numpy as np

from dpinfer.spine import Measured


def random_parents(rng, most, chain=0.3):
    """Ragged: 1 to 3 children each, many only ones, leaves all over the last depths; nodes in random order."""
    parents = [-1]
    edge = [0]
    while edge and len(parents) < most:
        node = edge.pop(0)
        for _ in range(1 if rng.random() < chain else rng.integers(2, 4)):
            edge.append(len(parents))
            parents.append(node)
    order = rng.permutation(len(parents))
    place = np.argsort(order)
    mixed = np.array(parents)[order]
    return np.where(mixed < 0, -1, place[mixed])


def leaves_of(parents):
    """[nodes, leaves], ones where a leaf lies in a node."""
    leaves = np.setdiff1d(np.arange(len(parents)), parents)
    inside = np.zeros((len(parents), len(leaves)))
    for column, leaf in enumerate(leaves):
        node = leaf
        while node >= 0:
            inside[node, column] = 1
            node = parents[node]
    return inside


def matrix(query, size):
    return query.answer(np.eye(size)).T


def dense_least_squares(schema, parents, measured, zeros=(), push_down=True):
    """Estimates [nodes * cells] and their covariance, by orthogonal matrices, within the null space of what is exact."""
    inside, k = leaves_of(parents), schema.size
    to_nodes = np.kron(inside, np.eye(k))
    rows, values, held, known = [], [], [], []
    for one in measured:
        query = schema.query(one.query) if isinstance(one.query, str) else one.query
        nodes = np.arange(len(parents)) if one.nodes is None else np.asarray(one.nodes)
        answers, variances = np.reshape(one.values, (len(nodes), -1)), np.broadcast_to(one.variances, len(nodes))
        for node, y, v in zip(nodes, answers, variances, strict=True):
            block = np.kron(inside[node], matrix(query, k))
            if v == 0:
                held.append(block)
                known.append(y)
            elif np.isfinite(v):
                rows.append(block / np.sqrt(v))
                values.append(y / np.sqrt(v))
    for one in zeros:
        query = schema.query(one.query) if isinstance(one.query, str) else one.query
        nodes = np.arange(len(parents)) if one.nodes is None else np.asarray(one.nodes)
        for node, is_zero in zip(nodes, np.broadcast_to(one.is_zero, (len(nodes), query.size)), strict=True):
            cells = np.flatnonzero(matrix(query, k)[np.asarray(is_zero)].any(axis=0))
            block = np.eye(k)[cells]
            for some in np.eye(inside.shape[1])[inside[node] > 0] if push_down else [inside[node]]:
                held.append(np.kron(some, block))
                known.append(np.zeros(len(cells)))
    size = to_nodes.shape[1]
    held = np.concatenate([*held, np.zeros((1, size))])
    known = np.concatenate([*known, np.zeros(1)])
    left, sizes, right = np.linalg.svd(held)
    rank = int((sizes > 1e-9 * max(1.0, sizes[0])).sum())
    start = right[:rank].T @ ((left[:, :rank].T @ known) / sizes[:rank])
    free = right[rank:].T
    a, y = np.concatenate(rows) @ free, np.concatenate(values) - np.concatenate(rows) @ start
    q, r = np.linalg.qr(a)
    half = free @ np.linalg.inv(r)
    x = start + half @ (q.T @ y)
    to_nodes = to_nodes @ half
    return np.kron(inside, np.eye(k)) @ x, to_nodes @ to_nodes.T


def random_problem(schema, queries, parents, rng, *, unmeasured=0.3, spread=2.0):
    """Noisy answers to all queries at all nodes but some that are not leaves, with variances of their own, exp(N(0, 4))."""
    inside, k = leaves_of(parents), schema.size
    truth = inside @ rng.poisson(6.0, (inside.shape[1], k))
    children = np.bincount(parents[parents >= 0], minlength=len(parents))
    is_leaf = children == 0
    measured = []
    for name in queries:
        query = schema.query(name)
        variances = np.exp(rng.normal(0, spread, len(parents)))
        lost = (rng.random(len(parents)) < unmeasured) & ~is_leaf
        values = query.answer(truth) + rng.normal(size=(len(parents), query.size)) * np.sqrt(variances)[:, None]
        variances[lost] = np.inf
        measured.append(Measured(name, values, variances))
    return truth, measured


def without_only_leaves(parents, measured):
    """The same without the measurements of leaves that have no siblings, the nodes above them being measured in full."""
    children = np.bincount(parents[parents >= 0], minlength=len(parents))
    is_only = (children == 0) & (parents >= 0) & (children[parents] == 1)
    above = parents[is_only]
    found = []
    for one in measured:
        variances = np.where(is_only, np.inf, one.variances)
        values = np.where(is_only[:, None], np.nan, one.values)
        variances[above] = np.where(np.isinf(variances[above]), 2.0, variances[above])
        found.append(Measured(one.query, values, variances))
    return found
