"""NumPyro: a model as a target of :func:`posterity.pursue`, and guides as posteriors.

Events are dictionaries by the names of the model's latent sites, of values as the model has them: a
scale is positive, probabilities sum to one. Supports are the real numbers, positive numbers, those
between zero and one, simplices and positive definite matrices; others are refused.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.tree import static
from posterity.arrays.typing import Bool, Float, KeyArray, Real
from posterity.errors import MissingExtraError, UsageError
from posterity.families.diagonal_gaussian import DiagonalGaussian
from posterity.families.distribution import Distribution
from posterity.families.gaussian import Gaussian
from posterity.families.low_rank_gaussian import LowRankGaussian
from posterity.families.supports import (
    Continuous,
    PositiveDefiniteMatrices,
    PositiveNumbers,
    RealNumbers,
    Simplex,
    UnitInterval,
    map_supports,
)
from posterity.families.transformed import Supports, Transformed
from posterity.pursuit.target import Target

ROUNDING = 1e-4
"""Relative to one more than the size: how far a guide's medians, in float32, may be from ours."""


# --- models ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Call:
    """A model and its arguments, but for the arrays among them: what can be hashed."""

    model: Callable[..., Any]
    structure: Any
    """A JAX tree definition of positional and named arguments."""
    others: tuple[tuple[int, Any], ...]
    """Arguments that are no arrays, with their places among the leaves."""

    @classmethod
    def of(cls, model: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Self, list[Any]]:
        """The call, and the arrays among its arguments, of floating point in double precision."""
        leaves, structure = jax.tree.flatten((args, kwargs))
        others, arrays = [], []
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, np.ndarray | jax.Array):
                array = np.asarray(leaf)
                arrays.append(array.astype(float) if array.dtype.kind == "f" else array)
            else:
                others.append((place, leaf))
        call = cls(model, structure, tuple(others))
        try:
            hash(call)
        except TypeError as error:
            raise UsageError(
                found=f"an argument of the model that cannot be hashed ({error})",
                expected="arrays, numbers, texts, and lists, tuples and dictionaries of them",
                fix="Pass an array, or close over it: joint(lambda x: model(x, options), x).",
            ) from error
        return call, arrays

    def arguments(self, arrays: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """As the model takes them."""
        left, others = iter(arrays), dict(self.others)
        count = self.structure.num_leaves
        leaves = [others[place] if place in others else next(left) for place in range(count)]
        return jax.tree.unflatten(self.structure, leaves)


class Prior(Distribution):
    """The law of a model's latent sites before any data, by name."""

    arrays: Any
    call: Call = static()
    supports: Supports = static()

    @classmethod
    def from_standard(cls, model: Callable[..., Any], *args: Any, **kwargs: Any) -> Self:
        """Of a model and its arguments, as :func:`joint` takes them."""
        target = joint(model, *args, **kwargs)
        return cls(target.arrays, target.call, target.supports)

    def standard_parameters(self) -> dict[str, Any]:
        """``model``; its arguments go by position, which this dictionary cannot say."""
        return {"model": self.call.model}

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """``()``: one law."""
        return ()

    @property
    def event_shape(self) -> Any:
        """The shape of each site, by name."""
        return map_supports(lambda support: support.shape, self.supports.tree)

    @property
    def support(self) -> Any:
        """Where each site lies, by name."""
        return self.supports.tree

    def is_proper(self) -> Bool[Real, ""]:
        """True: improper sites cannot be drawn from, and are refused."""
        return np.asarray(True)

    def sample(self, key: KeyArray, shape: tuple[int, ...] = ()) -> Any:
        """Draws of the model's own, kept within the support where rounding ends on its border."""
        infer, args, kwargs = _import().infer, *self.call.arguments(self.arrays)
        names, count = list(self.supports.tree), math.prod(shape)
        draw = infer.Predictive(
            self.call.model, num_samples=count, return_sites=names, parallel=True
        )
        drawn = draw(key, *args, **kwargs)
        inside = lambda support, values: _inside(support, values.reshape(*shape, *support.shape))
        return map_supports(inside, self.supports.tree, drawn)

    def _log_prob(self, z: Any) -> Float[Real, "..."]:
        numpyro, args, kwargs = _import(), *self.call.arguments(self.arrays)
        seen = lambda site: site["type"] == "sample" and site["is_observed"]
        unseeing = numpyro.handlers.block(self.call.model, hide_fn=seen)
        one = lambda event: numpyro.infer.util.log_density(unseeing, args, kwargs, event)[0]
        return _each(one, z, self.event_shape)


class Model(Target):
    """``log p(z, x)`` of a NumPyro model at its latent sites; made by :func:`joint`."""

    arrays: Any
    call: Call = eqx.field(static=True)
    supports: Supports = eqx.field(static=True)

    @property
    def prior(self) -> Prior:
        """The law of the sites before any data, which says where to look."""
        return Prior(self.arrays, self.call, self.supports)

    def log_density(self, z: Any) -> Float[jax.Array, ""]:
        """By NumPyro, of all sites and factors."""
        args, kwargs = self.call.arguments(self.arrays)
        found = _import().infer.util.log_density(self.call.model, args, kwargs, dict(z))[0]
        return jnp.asarray(found)


def joint(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Model:
    """A NumPyro model as a target, of which :func:`posterity.pursue` finds the posterior.

    Args:
        model: a function of NumPyro's primitives, or one with handlers around it.
        args: what it takes, its data among them.
        kwargs: the same, by name.

    Returns:
        A target whose events are dictionaries of the latent sites. It has a ``prior``, so that
        ``"diagonal"``, ``"full"`` and ``"low-rank"`` say which components to take.

    Raises:
        MissingExtraError: numpyro is not installed.
        UsageError: a model without latent sites, or with such as no map of the library leads to:
            labels, intervals other than from zero to one; with parameters, or plates that draw
            minibatches; and what the model raises itself.

    For example, of data ``y``::

        def model(y):
            scale = numpyro.sample("scale", dist.HalfNormal(1.0))
            with numpyro.plate("records", len(y)):
                numpyro.sample("y", dist.Normal(0.0, scale), obs=y)

        found = posterity.pursue(joint(model, y), "diagonal", key=jax.random.key(0))
    """
    numpyro = _import()
    call, arrays = Call.of(model, args, kwargs)
    args, kwargs = call.arguments(arrays)
    seeded = numpyro.handlers.seed(model, jax.random.key(0))
    try:
        with jax.enable_x64(True):
            trace = numpyro.handlers.trace(seeded).get_trace(*args, **kwargs)
    except Exception as error:  # whatever the model raises
        raise UsageError(
            found=f"{type(error).__name__}: {error} from the model",
            expected="a model that runs with these arguments, of proper laws",
            fix="Run it in numpyro.handlers.seed(model, jax.random.key(0)) by itself.",
        ) from error
    _check_sites(trace)
    return Model(arrays, call, _supports(trace))


def _check_sites(trace: Mapping[str, Any]) -> None:
    for name, site in trace.items():
        if site["type"] == "param":
            raise UsageError(
                found=f"the parameter {name!r} in the model",
                expected="latent sites and data alone",
                fix="Fix it: numpyro.handlers.substitute(model, {name: value}) within a block, or "
                "give it a prior with numpyro.sample.",
            )
        if site["type"] == "plate" and len(site["value"]) < site["args"][0]:
            raise UsageError(
                found=f"plate {name!r}, which draws {len(site['value'])} of {site['args'][0]}",
                expected="plates of all records: the log density must not change between calls",
                fix="Leave subsample_size out; for minibatches use posterity.pursuit.Joint.",
            )


# --- guides ---------------------------------------------------------------------------------------


def from_guide(guide: Any, params: Mapping[str, Any]) -> Transformed:
    """A fitted guide as a posterior over dictionaries of the sites' values.

    The Gaussian over unconstrained numbers is kept as it is (its covariance is computed in double
    precision), and the maps onto the sites' supports with it, so that it can be saved, compared
    and pursued from: it is a base of :func:`posterity.pursue` for :func:`joint` of the same model.

    Args:
        guide: an ``AutoNormal``, ``AutoDiagonalNormal``, ``AutoMultivariateNormal`` or
            ``AutoLowRankMultivariateNormal`` that has been run, by ``SVI.init`` say.
        params: as ``SVI.get_params(state)`` gives them.

    Raises:
        MissingExtraError: numpyro is not installed.
        UsageError: for other guides, one that has not been run, and parameters that are missing.
        ParameterError: for parameters that are not finite.

    For example::

        found = svi.run(jax.random.key(0), 2000, y)
        posterity.save(from_guide(guide, found.params), "guide.safetensors")
    """
    guides = _import().infer.autoguide
    if getattr(guide, "prototype_trace", None) is None:
        raise UsageError(
            found=f"a guide {type(guide).__name__} that has not been run",
            expected="an automatic guide that knows the sites of its model",
            fix="Fit it first, and pass what SVI.get_params(state) gives.",
        )
    kinds = {
        guides.AutoNormal: _of_sites,
        guides.AutoDiagonalNormal: _diagonal,
        guides.AutoMultivariateNormal: _full,
        guides.AutoLowRankMultivariateNormal: _low_rank,
    }
    if type(guide) not in kinds:
        raise UsageError(
            found=f"a guide of type {type(guide).__name__}",
            expected=f"one of {[kind.__name__ for kind in kinds]}",
            fix="Of others take draws, with guide.sample_posterior.",
        )
    supports = _supports(guide.prototype_trace)
    try:
        if type(guide) is not guides.AutoNormal:
            supports = _in_order(guide, params, supports)
        law, medians = kinds[type(guide)](guide, params, supports), guide.median(params)
    except KeyError as error:
        raise UsageError(
            found=f"no parameter {error} for {type(guide).__name__}",
            expected="the parameters of this guide",
            fix="Pass what SVI.get_params(state) gives.",
        ) from error
    found = Transformed(law, supports)
    _check_map(found, medians)
    return found


def _of_sites(guide: Any, params: Mapping[str, Any], supports: Supports) -> DiagonalGaussian:
    """AutoNormal has a place and a scale for each site."""
    parts: dict[str, list[np.ndarray]] = {
        part: [_wide(params[f"{name}_{guide.prefix}_{part}"]).ravel() for name in supports.tree]
        for part in ("loc", "scale")
    }
    mean, scale = np.concatenate(parts["loc"]), np.concatenate(parts["scale"])
    return DiagonalGaussian.from_standard(mean, scale**2)


def _diagonal(guide: Any, params: Mapping[str, Any], supports: Supports) -> DiagonalGaussian:
    normal = guide.get_posterior(params)
    return DiagonalGaussian.from_standard(_wide(normal.mean), _wide(normal.variance))


def _full(guide: Any, params: Mapping[str, Any], supports: Supports) -> Gaussian:
    normal = guide.get_posterior(params)
    root = _wide(normal.scale_tril)
    return Gaussian.from_standard(_wide(normal.mean), root @ root.T)


def _low_rank(guide: Any, params: Mapping[str, Any], supports: Supports) -> LowRankGaussian:
    normal = guide.get_posterior(params)
    parts = (_wide(part) for part in (normal.mean, normal.cov_factor, normal.cov_diag))
    return LowRankGaussian.from_standard(*parts)


def _in_order(guide: Any, params: Mapping[str, Any], supports: Supports) -> Supports:
    """The sites as they lie in the guide's vector, which it says by the medians of a rising one."""
    loc = f"{guide.prefix}_loc"
    rising = np.linspace(-1.0, 1.0, np.size(params[loc]), dtype=np.float32)
    medians = guide.median({**params, loc: jnp.asarray(rising)})
    heights = {
        name: float(np.mean(support.inverse(namespace(values := _wide(medians[name])), values)))
        for name, support in supports.tree.items()
    }
    return Supports.of(
        {name: supports.tree[name] for name in sorted(heights, key=heights.__getitem__)}
    )


def _check_map(found: Transformed, medians: Mapping[str, Any]) -> None:
    """Raise a UsageError unless our map takes the Gaussian's centre where the guide's does."""
    bijection = found.bijection
    law: Any = found.law
    ours = bijection.forward(bijection.unravel(np.asarray(law.mean)))
    for name, own in ours.items():
        theirs = _wide(medians[name])
        if not np.allclose(own, theirs, rtol=ROUNDING, atol=ROUNDING):
            raise UsageError(
                found=f"a site {name!r} whose map onto its support is not the library's",
                expected="the maps that NumPyro has by default: exp, logistic, stick-breaking",
                fix="Take draws instead, with guide.sample_posterior.",
            )


# --- sites and their supports ---------------------------------------------------------------------


def _supports(trace: Mapping[str, Any]) -> Supports:
    """Of the latent sites; a UsageError if there is none, or one of another kind."""
    latent = {
        name: site
        for name, site in trace.items()
        if site["type"] == "sample" and not site["is_observed"]
    }
    if not latent:
        raise UsageError(
            found="a model without latent sites",
            expected="one at least, whose posterior is sought",
            fix="Pass the data as the model takes them, and let the rest be sampled.",
        )
    return Supports.of({name: _support(name, site) for name, site in latent.items()})


def _support(name: str, site: Mapping[str, Any]) -> Continuous:
    constraints = _import().distributions.constraints
    constraint, shape = site["fn"].support, tuple(np.shape(site["value"]))
    while hasattr(constraint, "base_constraint"):
        constraint = constraint.base_constraint
    for known, kind in (
        (constraints.real, RealNumbers),
        (constraints.positive, PositiveNumbers),
        (constraints.nonnegative, PositiveNumbers),
        (constraints.unit_interval, UnitInterval),
        (constraints.simplex, Simplex),
        (constraints.positive_definite, PositiveDefiniteMatrices),
    ):
        if type(constraint) is type(known) or _equal(constraint, known):
            return kind(shape)
    if constraint.is_discrete:
        fix = "Sum it out of the model: numpyro.distributions.MixtureSameFamily, or by hand."
    else:
        fix = "Write it as a function of sites that are: low + (high - low) * Beta(1, 1), say."
    raise UsageError(
        found=f"site {name!r} on {constraint!r}",
        expected="real or positive numbers, those between zero and one, a simplex, or positive "
        "definite matrices",
        fix=fix,
    )


def _equal(constraint: Any, known: Any) -> bool:
    """NumPyro compares bounds; traced ones, which depend on other sites, are none of ours."""
    try:
        return bool(constraint == known)
    except Exception:  # of arrays of bounds there is no one truth
        return False


def _inside(support: Any, values: Any) -> Any:
    """Draws off the border, which floating point reaches and no bijection leads to."""
    limits = jnp.finfo(values.dtype)
    least, below_one = limits.tiny / limits.eps, 1 - limits.epsneg
    if isinstance(support, PositiveNumbers):
        return jnp.clip(values, least, 1 / least)
    if isinstance(support, UnitInterval):
        return jnp.clip(values, least, below_one)
    if isinstance(support, Simplex):
        values = jnp.maximum(values, least)
        return values / values.sum(-1, keepdims=True)
    return values


def _each(function: Callable[[Any], Any], z: Any, shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """A function of one event, along the leading axes that events share."""
    xp = namespace(*z.values())
    leading = np.broadcast_shapes(
        *(np.shape(part)[: np.ndim(part) - len(shapes[name])] for name, part in z.items())
    )
    flat = {
        name: jnp.broadcast_to(part, (*leading, *shapes[name])).reshape(-1, *shapes[name])
        for name, part in z.items()
    }
    return xp.np.asarray(jax.vmap(function)(flat)).reshape(leading)


def _wide(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=float)


def _import() -> Any:
    try:
        import numpyro
        import numpyro.distributions
        import numpyro.infer.autoguide
        import numpyro.infer.util
    except ImportError as error:
        raise MissingExtraError.of("numpyro", "numpyro") from error
    return numpyro
