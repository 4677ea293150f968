"""What count-of-counts estimates say, and how often the bootstrap's intervals cover it."""

from typing import Any

import jax
import numpy as np
import pytest

import dpinfer as dp
from dpinfer.inference import CountOfCountsEstimate, bootstrap_count_of_counts, consistent_count_of_counts
from dpinfer.inference.size_runs import SizeRuns
from dpinfer.mechanisms import count_of_counts_from_histograms

REGIONS = dp.RegionTree([("US", "a"), ("US", "b"), ("US", "c")])
# Sizes 0, 0, 1, 3, 3, 3 in a, none in b, 2 in c.
CELLS = np.array([[2, 1, 0, 3], [0, 0, 0, 0], [0, 0, 1, 0]])


def test_what_an_estimate_says():
    runs = SizeRuns.of_histograms(CELLS)
    estimate = CountOfCountsEstimate(REGIONS, 3, [runs._replace(nodes=0 * runs.nodes), runs])
    assert estimate.cumulative(1).tolist() == [[2, 3, 3, 6], [0, 0, 0, 0], [0, 0, 1, 1]]
    nan = np.nan
    np.testing.assert_array_equal(estimate.quantiles(1, [0, 1 / 3, 0.34, 0.5, 0.51, 1]), [[0, 0, 1, 1, 3, 3], [nan] * 6, [2] * 6])
    np.testing.assert_array_equal(estimate.largest(1, [1, 3, 4, 6, 7]), [[3, 3, 1, 0, nan], [nan] * 5, [2, nan, nan, nan, nan]])
    np.testing.assert_array_equal(estimate.shares(1, [0, 3, 2]), [[1 / 3, 1 / 2, 0], [nan] * 3, [0, 0, 1]])
    assert estimate.shares(1, []).shape == (3, 0)
    sizes = np.sort(np.repeat(np.tile(np.arange(4), 3), CELLS.ravel()))
    # One node in runs that are not in order of size: matched, merged and summed up they are.
    whole = CountOfCountsEstimate(REGIONS, 3, [SizeRuns.of_histograms(CELLS.sum(axis=0)[None]), runs])
    assert whole.largest(0, range(1, 8))[0].tolist() == sizes[::-1].tolist()
    nobody = SizeRuns.of_histograms(0 * CELLS)
    assert np.isnan(CountOfCountsEstimate(REGIONS, 3, [nobody, nobody]).quantiles(1, [0.5])).all()
    for question, message in (
        (lambda: estimate.quantiles(1, [1.5]), "shares must be"),
        (lambda: estimate.largest(1, [0]), "ranks must be at least 1"),
        (lambda: estimate.shares(1, [4]), "sizes must be from 0 to max_size 3"),
    ):
        with pytest.raises(ValueError, match=message):
            question()


def test_without_noise_there_is_no_error():
    release = count_of_counts_from_histograms(CELLS, REGIONS, epsilon=1000, method="H_c x fusion")
    found = bootstrap_count_of_counts(release, lambda e: e.cumulative(1), key=jax.random.key(0), num_draws=5)
    assert np.asarray(found.values).tolist() == np.cumsum(CELLS, axis=1).tolist()
    assert not np.asarray(found.errors).any()
    lower, upper = found.interval(0.9, joint=True)
    assert lower.shape == upper.shape == (3, 4)
    assert (np.asarray(lower) == np.asarray(upper)).all()


@pytest.mark.slow
def test_keys_decide_and_options_are_used():
    release = count_of_counts_from_histograms(50 * CELLS, REGIONS, epsilon=0.5, private_groups=True)

    def errors(seed, **how):
        return np.asarray(
            bootstrap_count_of_counts(release, lambda e: e.cumulative(0), key=jax.random.key(seed), num_draws=4, **how).errors
        )

    assert (errors(0) == errors(0)).all()
    assert (errors(0) != errors(1)).any()
    assert (errors(0) != errors(0, method="bottom_up")).any()
    for arguments, message in (
        ({"key": 3}, "key must be one typed key"),
        ({"num_draws": 1}, "num_draws must be at least 2"),
        ({"norm": "l3"}, "norm must be one of"),
        ({"statistic": lambda e: "many"}, "statistic must return numbers"),
    ):
        given: dict[str, Any] = {"statistic": lambda e: e.cumulative(0), "key": jax.random.key(0), "num_draws": 2} | arguments
        with pytest.raises(ValueError, match=message):
            bootstrap_count_of_counts(release, given.pop("statistic"), **given)


@pytest.mark.slow
def test_coverage():
    # 90% intervals in 25 releases of four counties: of entries of H_c where sizes are common, of quantiles and shares.
    rng = np.random.default_rng(4)
    cells = rng.multinomial(2000, [0.05, 0.3, 0.3, 0.15, 0.1, 0.05, 0.03, 0.02], size=4)
    regions = dp.RegionTree([("US", county) for county in range(4)])
    cumulative = np.cumsum(cells, axis=1)

    def statistic(estimate):
        return np.concatenate([estimate.cumulative(1)[:, :7], estimate.shares(1, [1, 2]), estimate.quantiles(1, [0.5])], axis=1)

    share = cells[:, 1:3] / 2000
    median = np.argmax(cumulative >= 1000, axis=1)[:, None]
    truth = np.concatenate([cumulative[:, :7], share, median], axis=1)
    covered, estimates = [], []
    for number in range(25):
        release = count_of_counts_from_histograms(cells, regions, epsilon=0.5)
        found = bootstrap_count_of_counts(release, statistic, key=jax.random.key(number), num_draws=40)
        lower, upper = (np.asarray(end) for end in found.interval(0.9))
        estimates.append(np.asarray(found.values))
        covered.append((lower - 1e-9 <= truth) & (truth <= upper + 1e-9))
    rate = np.mean(covered, axis=(0, 1))
    # 100 intervals each, 700 and 200 in all, those of a county not independent: 4 standard errors of 100 are 0.12.
    assert rate[:7].mean() == pytest.approx(0.9, abs=0.12)
    assert rate[7:9].mean() == pytest.approx(0.9, abs=0.12)
    assert rate[9] >= 0.9  # a median of whole sizes is found exactly
    assert (np.array(estimates)[:, :, 9:] == median).all()


def test_parts_are_kept_in_a_folder(tmp_path, monkeypatch):
    release = count_of_counts_from_histograms(50 * CELLS, REGIONS, epsilon=0.5, method="H_c x naive")
    done = []
    folder = tmp_path / "parts"
    first = consistent_count_of_counts(release, resume_folder=folder, memory_limit=1, progress=lambda *x: done.append(x))
    assert done[-1] == (4, 4)
    # With so little memory a node at a time.
    assert len(list(folder.glob("*.npz"))) == 4
    monkeypatch.setattr("dpinfer.inference.node_histograms._of_cumulative", None)
    monkeypatch.setattr("dpinfer.inference.node_histograms._of_naive", None)
    again = consistent_count_of_counts(release, resume_folder=folder, memory_limit=1)
    assert (again.level(1) == first.level(1)).all()
    with pytest.raises(TypeError):
        consistent_count_of_counts(release, memory_limit=1)
    with pytest.raises(TypeError):  # another fit is another part
        consistent_count_of_counts(release, resume_folder=folder, memory_limit=1, norm="l2")
