"""Counts whose rate is one of a grid of rates: what a noisy count says of each rate, and of the count given the rate.

A count is Poisson at rates up to 20, summed up count by count; above it is normal, with the Poisson law's variance and that of
half a step of the grid, so that the grid leaves no gaps. What noise does to a normal count is known in closed form: under Laplace
noise what is left of it is the normal law on either side of the noisy count, tilted by exp(-+x / b). A discrete law is its
continuous one and a little more right at the noisy count, which is what the sum of exp(-|k| / b), or exp(-k^2 / (2 s^2)), over
integers has beyond the integral; beside a normal law of standard deviation above 4 hardly anything else of the steps is seen.

All moments are of the count less its noisy value, so that large counts lose no digits.
"""

from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr

from dpinfer import _checks
from dpinfer._pytree import pytree, static
from dpinfer.measurement import Measurement

# The rates of Poisson states, the same for all; of 0, and geometric.
_POISSON = np.append(0.0, np.geomspace(0.02, 20.0, 47))
# How many normal states there are above, and the counts at which Poisson laws end: beyond, 20 has less than 1e-20.
_NUM_NORMAL, _MOST_COUNT = 80, 80
# How far the grid goes beyond the largest noisy count, and at least.
_BEYOND, _LEAST_TOP = 1.2, 40.0
# Of a step of the grid, how much goes into a normal state's standard deviation.
_SPREAD = 0.5
# Noise of less than this is taken for this: an exact count stays what it is, to as much.
_LEAST_SCALE = 1e-3
# Where series of the normal law's tail begin.
_FAR = 50.0

NUM_POISSON = _POISSON.size
NUM_STATES = NUM_POISSON + _NUM_NORMAL


@final
@pytree
class Evidence:
    """What noisy counts say of each state, [n, states] each.

    Attributes:
        log: the logarithm of the noisy count's density, but for a factor that is the same for all states of a cell.
        mean: of the count less the noisy one, given the state.
        square: the mean of its square.
    """

    log: jax.Array
    mean: jax.Array
    square: jax.Array

    def moments(self, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean of the count less the noisy one, and variance, [n] each, for probabilities of the states [n, states]."""
        mean = (weights * self.mean).sum(axis=1)
        off = self.square - 2 * mean[:, None] * self.mean + jnp.square(mean)[:, None]
        return mean, jnp.maximum((weights * off).sum(axis=1), 0.0)


@final
@pytree
class RateStates:
    """The states of noisy counts [n].

    Attributes:
        values: [n], the noisy counts.
        scale: [n], the law's parameter; infinite where there is no count.
        normal_rates: the rates above 20, increasing.
        noise: the law's name.
    """

    values: jax.Array
    scale: jax.Array
    normal_rates: jax.Array
    noise: str = static()

    @property
    def rates(self) -> jax.Array:
        """[states], increasing, the first 0."""
        return jnp.concatenate([jnp.asarray(_POISSON, self.values.dtype), self.normal_rates])

    def evidence(self, tilts: jax.Array | None = None) -> Evidence:
        """What the noisy counts say; with ``tilts`` [n], of densities times exp(tilt (count - noisy count))."""
        tilts = jnp.zeros_like(self.values) if tilts is None else tilts
        poisson, normal = self._of_poisson(tilts), self._of_normal(tilts)
        return Evidence(*(jnp.concatenate(pair, axis=1) for pair in zip(poisson, normal, strict=True)))

    def at_most(self, counts: jax.Array, weights: jax.Array) -> jax.Array:
        """Of each cell, the probability that its count is at most ``counts`` [n] whole numbers; ``weights`` as in ``moments``."""
        said = jnp.exp(self._log_said(jnp.zeros_like(self.values))[0])
        sums = said @ _masses().T
        shares = jnp.where(sums > 0, weights[:, :NUM_POISSON] / jnp.where(sums > 0, sums, 1.0), 0.0)
        below = np.arange(_MOST_COUNT + 1)[None] <= counts[:, None]
        total = (shares @ _masses() * said * below).sum(axis=1)
        offset = counts + 0.5 - self.values
        return total + (weights[:, NUM_POISSON:] * self._normal_below(offset[:, None])).sum(axis=1)

    def _log_noise(self, offsets: jax.Array) -> jax.Array:
        """[n, k]: but for a constant, of count less noisy count."""
        scale = self.scale[:, None]
        return -jnp.abs(offsets) / scale if "laplace" in self.noise else -jnp.square(offsets / scale) / 2

    def _log_said(self, tilts: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Of the counts 0, 1, ...: what is said of them, [n, counts], less the most, [n, 1]; the most; and the offsets."""
        offsets = jnp.arange(_MOST_COUNT + 1.0, dtype=self.values.dtype)[None] - self.values[:, None]
        logs = self._log_noise(offsets) + tilts[:, None] * offsets
        most = logs.max(axis=1, keepdims=True)
        return logs - most, most, offsets

    def _of_poisson(self, tilts: jax.Array) -> tuple[jax.Array, ...]:
        logs, most, offsets = self._log_said(tilts)
        said, masses = jnp.exp(logs), _masses()
        sums = said @ masses.T
        is_possible = sums > 0
        safe = jnp.where(is_possible, sums, 1.0)
        log = jnp.where(is_possible, jnp.log(safe) + most, -jnp.inf)
        return log, (said * offsets) @ masses.T / safe, (said * jnp.square(offsets)) @ masses.T / safe

    def _normal(self) -> tuple[jax.Array, jax.Array]:
        """Means less the noisy counts [n, k] and standard deviations [1, k] of counts in normal states."""
        rates = self.normal_rates
        step = rates * (1 - rates[0] / rates[1])
        return rates[None] - self.values[:, None], jnp.sqrt(rates + jnp.square(_SPREAD * step))[None]

    def _log_atom(self, mean: jax.Array, stddev: jax.Array) -> jax.Array:
        """[n, k]: the density of a normal count at the noisy one, times what a discrete law has there beyond its integral."""
        at = -jnp.square(mean / stddev) / 2 - jnp.log(stddev) - np.log(2 * np.pi) / 2
        return jnp.log(_beyond_integral(self.noise, self.scale[:, None])) + at

    def _under_gaussian(self, mean: jax.Array, stddev: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """[n, k]: log of the density of noisy counts over that of no noise; mean and variance of the normal count then."""
        scale = self.scale[:, None]
        share = 1 / (1 + jnp.square(scale / stddev))
        log = -jnp.square(mean) / (2 * (jnp.square(stddev) + jnp.square(scale))) - jnp.log1p(jnp.square(stddev / scale)) / 2
        return log, (1 - share) * mean, jnp.square(stddev) * (1 - share)

    def _of_normal(self, tilts: jax.Array) -> tuple[jax.Array, ...]:
        mean, stddev = self._normal()
        scale, tilt, variance = self.scale[:, None], tilts[:, None], jnp.square(stddev)
        log_atom = self._log_atom(mean, stddev)
        if "laplace" not in self.noise:
            log, center, left = self._under_gaussian(mean, stddev)
            log, center = log + tilt * center + jnp.square(tilt) * left / 2, center + tilt * left
            atom = jnp.exp(log_atom - log)
            return log + jnp.log1p(atom), center / (1 + atom), (left + jnp.square(center)) / (1 + atom)
        place = -mean / stddev
        above, over, over_square = _tail(place, stddev * (1 / scale - tilt))
        below, under, under_square = _tail(-place, stddev * (1 / scale + tilt))
        most = jnp.maximum(above, below)
        parts = [jnp.exp(x - most) for x in (above, below, log_atom)]
        total = parts[0] + parts[1] + parts[2]
        return (
            most + jnp.log(total),
            stddev * (parts[0] * over - parts[1] * under) / total,
            variance * (parts[0] * over_square + parts[1] * under_square) / total,
        )

    def _normal_below(self, offset: jax.Array) -> jax.Array:
        """[n, k]: of counts in normal states the probability that they are at most the noisy count and ``offset`` [n, 1]."""
        mean, stddev = self._normal()
        log_atom = self._log_atom(mean, stddev)
        if "laplace" not in self.noise:
            log, center, left = self._under_gaussian(mean, stddev)
            atom = jnp.exp(log_atom - log)
            return (jnp.exp(log_ndtr((offset - center) / jnp.sqrt(left))) + atom * (offset >= 0)) / (1 + atom)
        place, rate, far = -mean / stddev, stddev / self.scale[:, None], offset / stddev
        above, below = _tail(place, rate)[0], _tail(-place, rate)[0]
        # Beyond ``far`` on the right; before it on the left: the same tails, begun elsewhere.
        beyond = _log_tail(place, rate, jnp.maximum(far, 0.0))
        before = _log_tail(-place, rate, jnp.maximum(-far, 0.0))
        most = jnp.maximum(above, below)
        total = jnp.exp(above - most) + jnp.exp(below - most) + jnp.exp(log_atom - most)
        right = jnp.exp(above - most) - jnp.exp(beyond - most) + jnp.exp(below - most) + jnp.exp(log_atom - most)
        return jnp.where(offset >= 0, right, jnp.exp(before - most)) / total


def rate_states(measurement: Measurement) -> RateStates:
    """The states for noisy counts; their rates reach 1.2 times as far as the largest that was measured."""
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError("Posteriors of counts need 64-bit numbers: type dpinfer.enable_x64() first.")
    _checks.finite("measurement", measurement.values)
    values = jnp.asarray(measurement.values).astype(float)
    scale = jnp.maximum(jnp.broadcast_to(jnp.asarray(measurement.scale, float), values.shape), _LEAST_SCALE)
    values = jnp.where(jnp.isinf(scale), 0.0, values)
    top = jnp.maximum(_BEYOND * values.max(initial=0.0), _LEAST_TOP)
    powers = np.arange(1, _NUM_NORMAL + 1) / _NUM_NORMAL
    return RateStates(values, scale, _POISSON[-1] * (top / _POISSON[-1]) ** powers, measurement.noise)


def _masses() -> np.ndarray:
    """[Poisson states, counts], how probable the counts 0, 1, ... are."""
    counts = np.arange(_MOST_COUNT + 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = counts * np.log(_POISSON)[:, None] - _POISSON[:, None] - np.cumsum(np.log(np.maximum(counts, 1)))
    logs[0] = np.where(counts == 0, 0.0, -np.inf)
    return np.exp(logs)


def _beyond_integral(noise: str, scale: jax.Array) -> jax.Array:
    """The sum of the noise's weights exp(...) over integers, less their integral; 0 of a continuous law."""
    if noise == "discrete_laplace":
        small = jnp.minimum(scale, 50.0)
        return jnp.where(scale < 50.0, 1 / jnp.tanh(1 / (2 * small)) - 2 * small, 1 / (6 * scale))
    if noise == "discrete_gaussian":
        small = jnp.minimum(scale, 2.0)[..., None]
        sums = jnp.exp(-jnp.square(np.arange(-24.0, 25.0)[None, None] / small) / 2).sum(axis=-1)
        return jnp.where(scale < 2.0, jnp.maximum(sums - jnp.sqrt(2 * np.pi) * small[..., 0], 0.0), 0.0)
    return jnp.zeros_like(scale)


def _tail(place: jax.Array, rate: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Of exp(-rate x) times a standard normal density about -place, over x > 0: log of the integral, mean of x and of x^2."""
    a = place + rate
    far = jnp.maximum(a, _FAR)
    near = jnp.minimum(a, _FAR)
    hazard = jnp.exp(-jnp.square(near) / 2 - np.log(2 * np.pi) / 2 - log_ndtr(-near))
    inverse = 1 / jnp.square(far)
    mean = jnp.where(a > _FAR, (1 - 2 * inverse + 10 * jnp.square(inverse)) / far, hazard - near)
    square = jnp.where(a > _FAR, inverse * (2 - 10 * inverse + 74 * jnp.square(inverse)), 1 - near * (hazard - near))
    return _log_tail(place, rate, jnp.zeros_like(a)), mean, square


def _log_tail(place: jax.Array, rate: jax.Array, start: jax.Array) -> jax.Array:
    """The logarithm of the integral over x > start."""
    a = place + rate + start
    far, near = jnp.maximum(a, _FAR), jnp.minimum(a, _FAR)
    inverse = 1 / jnp.square(far)
    # log of the normal law's tail beyond a, times exp(a^2 / 2), which is what is left of large numbers that cancel.
    scaled = jnp.where(
        a > _FAR,
        jnp.log1p(-inverse + 3 * jnp.square(inverse)) - jnp.log(far) - np.log(2 * np.pi) / 2,
        log_ndtr(-near) + jnp.square(near) / 2,
    )
    return scaled - jnp.square(place + start) / 2 - rate * start
