"""scipy.stats: frozen distributions as laws, and back, where both hold the same law exactly.

========================================  ==========================================================
``norm``                                  :class:`Gaussian` of one coordinate
``multivariate_normal``                   :class:`Gaussian`
``gamma``, ``erlang``, ``expon``,         :class:`Gamma`, whose rate is ``1/scale``
``chi2``
``beta``, ``uniform(0, 1)``               :class:`Beta`
``dirichlet``                             :class:`Dirichlet`
``wishart``                               :class:`Wishart`
``lognorm``                               :class:`Transformed`: the exponential of a Gaussian
========================================  ==========================================================

Arrays of parameters are batches, of the shape that they broadcast to. Tested with SciPy 1.17.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from posterity import families
from posterity.adapters.laplace import of_covariance
from posterity.adapters.shared import check_one, numbers, unsupported
from posterity.errors import ParameterError, StructureError
from posterity.families.checks import check_proper
from posterity.families.distribution import Distribution
from posterity.families.supports import PositiveNumbers

NEAREST = {
    "Gaussian, whose tails are lighter": "t cauchy laplace logistic skewnorm multivariate_t",
    "Gamma": "weibull_min halfnorm halfcauchy chi rayleigh genextreme pareto",
    "Beta, of (z - loc)/scale": "triang",
    "Gamma, exactly, of the inverse: scipy.stats.gamma(a, scale=1/scale)": "invgamma",
    "Wishart, exactly, of the inverse: scipy.stats.wishart(df, inverse of scale)": "invwishart",
}
"""SciPy's names, by nearest family."""
UNIVARIATE = ("norm", "lognorm", "gamma", "erlang", "expon", "chi2", "beta", "uniform")


def from_frozen(frozen: Any, *, names: Sequence[str] | None = None) -> Any:
    """Convert a frozen distribution, such as ``scipy.stats.gamma(2.0, scale=3.0)``, exactly.

    The law is that of the table above, with ``names`` for its coordinates; arrays of parameters
    give a batch of that shape.

    Raises:
        UsageError: for objects that are not frozen distributions of ``scipy.stats``.
        StructureError: for distributions without an equal law; the nearest family is named, if any.
        ParameterError: for NaN, infinity, parameters out of range, and a singular covariance.

    >>> from scipy import stats
    >>> q = from_frozen(stats.gamma(2.0, scale=[1.0, 4.0]))
    >>> q.mean
    array([2., 8.])
    """
    kind = _kind(frozen)
    if kind == "multivariate_normal":
        mean = np.atleast_1d(frozen.mean)
        covariance = np.atleast_2d(frozen.cov)
        coordinates = [f"z{k}" for k in range(len(mean))]
        law = of_covariance(mean, covariance, coordinates, f"scipy.stats.{kind}")
        law = families.Gaussian(law.precision_mean, law.precision)
    elif kind == "dirichlet":
        law = families.Dirichlet.from_standard(np.asarray(frozen.alpha, np.float64))
    elif kind == "wishart":
        scale = np.atleast_2d(np.asarray(frozen.scale, np.float64))
        law = families.Wishart.from_standard(scale, float(frozen.df))
    elif kind in UNIVARIATE:
        law = _univariate(kind, frozen)
    else:
        near = [f"The nearest is {own}." for own, kinds in NEAREST.items() if kind in kinds.split()]
        known = sorted([*UNIVARIATE, "multivariate_normal", "dirichlet", "wishart"])
        raise StructureError(
            found=f"scipy.stats.{kind}",
            expected=f"one of {known}, which have an exact counterpart",
            fix=f"{' '.join(near) or 'None is similar.'} To approximate, fit a family to draws: "
            "from_samples(frozen.rvs(10_000)) of posterity.adapters.",
        )
    return law if names is None else law.named(names)


def to_frozen(law: object) -> Any:
    """Convert a proper law of the table above to a frozen distribution of ``scipy.stats``, exactly.

    Names are dropped. A batch of scalar laws becomes one distribution with arrays of parameters;
    batches of vectors or matrices, and other laws, are a StructureError.

    >>> from posterity.families import Gamma
    >>> float(to_frozen(Gamma.from_standard(shape=2.0, rate=4.0)).mean())
    0.5
    """
    from scipy import stats

    if not isinstance(law, Distribution):
        raise unsupported(law, "a law of posterity", "Pass a posterior: ledger.posterior, say.")
    check_proper(law, "the law for SciPy")
    if isinstance(law, families.Gamma):
        return stats.gamma(np.asarray(law.shape), scale=1 / np.asarray(law.rate))
    if isinstance(law, families.Beta):
        return stats.beta(np.asarray(law.a), np.asarray(law.b))
    below, supports = law.unmapped
    positive = supports is not None and supports.tree == PositiveNumbers()
    inner: Any = below if positive else law
    if inner.gaussian and inner.event_shape == (1,):

        def numbers_of(values):
            return np.reshape(values, inner.batch_shape)

        slope, precision = map(numbers_of, (inner.precision_mean, inner.precision))
        mean = slope / precision
        sd = np.sqrt(1 / precision)
        return stats.lognorm(sd, scale=np.exp(mean)) if positive else stats.norm(mean, sd)
    if not inner.gaussian and not isinstance(inner, families.Dirichlet | families.Wishart):
        raise StructureError(
            found=f"{law!r}",
            expected="a Gaussian, Gamma, Beta, Dirichlet or Wishart, or exp of one Gaussian number",
            fix="Pass one part of it, such as a Product's block; scipy.stats has no counterpart.",
        )
    check_one(law)
    if isinstance(inner, families.Dirichlet):
        return stats.dirichlet(np.asarray(inner.concentration))
    if isinstance(inner, families.Wishart):
        return stats.wishart(float(inner.degrees_of_freedom), np.asarray(inner.scale))
    own: Any = law
    spread: Any = own.variance if own.diagonal else own.covariance
    spread = stats.Covariance.from_diagonal(spread) if own.diagonal else spread
    return stats.multivariate_normal(np.asarray(own.mean), spread)


def _kind(frozen: Any) -> str:
    own = type(frozen)
    if own.__module__.startswith("scipy.stats"):
        if hasattr(getattr(frozen, "dist", None), "name") and hasattr(frozen, "args"):
            return frozen.dist.name
        if own.__name__.endswith("_frozen"):
            return own.__name__.removesuffix("_frozen")
    fix = "Call it with its parameters, if it is one of SciPy's: scipy.stats.norm(0.0, 1.0)."
    raise unsupported(frozen, "a frozen distribution of scipy.stats", fix)


def _univariate(
    kind: str, frozen: Any
) -> families.Gaussian | families.Gamma | families.Beta | families.Transformed:
    """Convert a batch of laws of numbers, in the shape that their parameters broadcast to."""
    shapes, loc, scale = frozen.dist._parse_args(*frozen.args, **frozen.kwds)
    what = f"the parameters of scipy.stats.{kind}"
    *shapes, loc, scale = np.broadcast_arrays(*(numbers(v, what) for v in (*shapes, loc, scale)))
    asked = f"scipy.stats.{kind} of shapes {[v.tolist() for v in shapes]} with loc={loc.tolist()}, "
    asked += f"scale={scale.tolist()}"
    if not (np.all(scale > 0) and np.all(frozen.dist._argcheck(*shapes))):
        # SciPy accepts invalid parameters, and returns NaN for them.
        raise ParameterError(found=asked, expected="parameters in its range, and a positive scale")
    stretched = kind in ("beta", "uniform")
    if kind != "norm" and (np.any(loc != 0) or (stretched and np.any(scale != 1))):
        raise StructureError(
            found=asked,
            expected="loc=0" + " and scale=1" * stretched,
            fix="Use the distribution of z - loc, divided by the scale if that is named.",
        )
    ones = np.ones_like(scale)
    if kind in ("norm", "lognorm"):
        mean, sd = (loc, scale) if kind == "norm" else (np.asarray(np.log(scale)), shapes[0])
        law = families.Gaussian.from_standard(mean[..., None], (sd**2)[..., None, None])
        return law if kind == "norm" else families.Transformed.from_standard(law, PositiveNumbers())
    if stretched:
        return families.Beta.from_standard(*(shapes or (ones, ones)))
    if kind == "chi2":
        return families.Gamma.from_standard(shapes[0] / 2, 1 / (2 * scale))
    return families.Gamma.from_standard(ones if kind == "expon" else shapes[0], 1 / scale)
