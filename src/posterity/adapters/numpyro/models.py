"""NumPyro models as targets of :func:`posterity.pursue`: latent sites and their supports."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from posterity.adapters.shared import library as installed
from posterity.arrays.namespace import namespace
from posterity.arrays.tree import static
from posterity.arrays.typing import Bool, Float, Floats, KeyArray, Real, Shape
from posterity.errors import UsageError
from posterity.families import supports
from posterity.families.distribution import Distribution
from posterity.families.unconstrained import Supports
from posterity.pursuit.target import Target

SUPPORTS: dict[str, type[supports.Continuous]] = {
    "real": supports.RealNumbers,
    "positive": supports.PositiveNumbers,
    "nonnegative": supports.PositiveNumbers,
    "unit_interval": supports.UnitInterval,
    "simplex": supports.Simplex,
    "positive_definite": supports.PositiveDefiniteMatrices,
}
"""Supports by NumPyro's names of constraints."""


def library() -> Any:
    """Import NumPyro with the modules used here."""
    modules = ("distributions", "infer.autoguide", "infer.util")
    return installed(*(f"numpyro.{module}" for module in modules), extra="numpyro")


@dataclasses.dataclass(frozen=True)
class Call:
    """A model and its arguments; arrays among these are held apart, since they have no hash.

    ``structure`` is the tree of positional and keyword arguments, and ``others`` are its leaves,
    with None in place of each array.
    """

    model: Callable[..., Any]
    structure: Any
    others: tuple[Any, ...]

    @classmethod
    def of(
        cls, model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Self, list[Any]]:
        """Return the call, and the arrays among its arguments, with floats in double precision."""
        leaves, structure = jax.tree.flatten((args, kwargs))
        numeric = [isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves]
        arrays = [np.asarray(leaf) for leaf, own in zip(leaves, numeric, strict=True) if own]
        others = (None if own else leaf for leaf, own in zip(leaves, numeric, strict=True))
        call = cls(model, structure, tuple(others))
        try:
            hash(call)
        except TypeError as error:
            raise UsageError(
                found=f"an argument of the model that cannot be hashed ({error})",
                expected="arrays, numbers, texts, and lists, tuples and dictionaries of them",
            ) from error
        return call, [a.astype(float) if a.dtype.kind == "f" else a for a in arrays]

    def arguments(self, arrays: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments in the form that the model takes."""
        left = iter(arrays)
        leaves = [next(left) if other is None else other for other in self.others]
        return jax.tree.unflatten(self.structure, leaves)


class Prior(Distribution):
    """The prior of a model's latent sites, a law of the dictionary of their values by name. It
    samples the model without its observations, and its density leaves out observed sites.
    """

    arrays: Any
    call: Call = static()
    supports: Supports = static()

    @classmethod
    def from_standard(cls, model: Callable[..., Any], *args: Any, **kwargs: Any) -> Self:
        """Return the prior of a model and its arguments, as :func:`joint` takes them."""
        target = joint(model, *args, **kwargs)
        return cls(target.arrays, target.call, target.supports)

    def standard_parameters(self) -> dict[str, Any]:
        """Return ``model``; its positional arguments have no place in this dictionary."""
        return {"model": self.call.model}

    @property
    def batch_shape(self) -> Shape:
        return ()

    @property
    def event_shape(self) -> Any:
        return supports.map_supports(lambda support: support.shape, self.supports.tree)

    @property
    def support(self) -> Any:
        return self.supports.tree

    def is_proper(self) -> Bool[Real, ""]:
        """Return True: improper sites cannot be sampled, and are refused."""
        return np.asarray(True)

    def sample(self, key: KeyArray, shape: Shape = ()) -> Any:
        """Sample the model's sites; values that rounding puts on the border are moved inside."""
        infer, args, kwargs = library().infer, *self.call.arguments(self.arrays)
        options = {"num_samples": math.prod(shape), "return_sites": list(self.supports.tree)}
        drawn = infer.Predictive(self.call.model, parallel=True, **options)(key, *args, **kwargs)

        def inside(support, values):
            return _inside(support, values.reshape(*shape, *support.shape))

        return supports.map_supports(inside, self.supports.tree, drawn)

    def _log_prob(self, z: Any) -> Floats:
        numpyro, args, kwargs = library(), *self.call.arguments(self.arrays)

        def seen(site):
            return site["type"] == "sample" and site["is_observed"]

        unseeing = numpyro.handlers.block(self.call.model, hide_fn=seen)

        def one(event):
            return numpyro.infer.util.log_density(unseeing, args, kwargs, event)[0]

        shapes = self.event_shape
        leading = np.broadcast_shapes(
            *(np.shape(part)[: np.ndim(part) - len(shapes[name])] for name, part in z.items())
        )

        def wide(name, part):
            return jnp.broadcast_to(part, (*leading, *shapes[name]))

        flat = {n: wide(n, part).reshape(-1, *shapes[n]) for n, part in z.items()}
        return namespace(*z.values()).np.asarray(jax.vmap(one)(flat)).reshape(leading)


class Model(Target):
    """``log p(z, x)`` of a NumPyro model at its latent sites ``z``, a dictionary of values by name,
    with the model's arguments ``x``; made by :func:`joint`.
    """

    arrays: Any
    call: Call = eqx.field(static=True)
    supports: Supports = eqx.field(static=True)

    @property
    def prior(self) -> Prior:
        """The prior of the sites, which locates the search."""
        return Prior(self.arrays, self.call, self.supports)

    def log_density(self, z: Any) -> Float[jax.Array, ""]:
        """Return the log density of all sites and factors, by NumPyro."""
        args, kwargs = self.call.arguments(self.arrays)
        result = library().infer.util.log_density(self.call.model, args, kwargs, dict(z))[0]
        return jnp.asarray(result)


def joint(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Model:
    """Return a NumPyro model as a target, whose posterior :func:`posterity.pursue` approximates.

    The arguments are the model, a function of NumPyro's primitives, and the model's arguments,
    including its data. Events of the target are dictionaries of the latent sites; its ``prior``
    determines the form of components ``"diagonal"`` and ``"full"``.

    Raises:
        UsageError: for a model without latent sites, or with unsupported ones, such as discrete
            sites or intervals other than from zero to one; with parameters, or plates that draw
            minibatches; and for errors that the model raises.

    For example, with data ``y``::

        def model(y):
            scale = numpyro.sample("scale", dist.HalfNormal(1.0))
            with numpyro.plate("records", len(y)):
                numpyro.sample("y", dist.Normal(0.0, scale), obs=y)

        found = posterity.pursue(joint(model, y), "diagonal", key=jax.random.key(0))
    """
    numpyro = library()
    call, arrays = Call.of(model, args, kwargs)
    args, kwargs = call.arguments(arrays)
    seeded = numpyro.handlers.seed(model, jax.random.key(0))
    try:
        with jax.enable_x64(True):
            trace = numpyro.handlers.trace(seeded).get_trace(*args, **kwargs)
    except Exception as error:  # any error of the model
        raise UsageError(
            found=f"{type(error).__name__}: {error} from the model",
            expected="a model of proper laws that runs with these arguments",
        ) from error
    for name, site in trace.items():
        part = site["type"] == "plate" and len(site["value"]) < site["args"][0]
        if part or site["type"] == "param":
            raise UsageError(
                found=f"{'part of the plate' if part else 'the parameter'} {name!r} in the model",
                expected="latent sites and plates over all data, with one density for all calls",
                fix="Leave subsample_size out; for minibatches use posterity.pursuit.Joint. Give a "
                "parameter a prior, or fix it by numpyro.handlers.substitute.",
            )
    return Model(arrays, call, supports_of(trace))


def latent_sites(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sites that are sampled and not observed, by name."""

    def drawn(site):
        return site["type"] == "sample" and not site["is_observed"]

    return {name: site for name, site in trace.items() if drawn(site)}


def supports_of(trace: Mapping[str, Any]) -> Supports:
    """Return supports of the latent sites; a UsageError if there is none, or an unsupported one."""
    latent = latent_sites(trace)
    if not latent:
        raise UsageError(found="a model without latent sites", expected="at least one")
    return Supports({name: support_of(name, site) for name, site in latent.items()})


def support_of(name: str, site: Mapping[str, Any]) -> supports.Continuous:
    """Return the support of one site; a UsageError if it is unsupported."""
    constraints = library().distributions.constraints
    constraint = site["fn"].support
    shape = tuple(np.shape(site["value"]))
    while hasattr(constraint, "base_constraint"):
        constraint = constraint.base_constraint

    def same(known: Any) -> bool:
        """Compare bounds as NumPyro does; traced ones, which depend on other sites, differ."""
        try:
            return type(constraint) is type(known) or bool(constraint == known)
        except Exception:  # arrays of bounds have no single truth value
            return False

    for known, kind in SUPPORTS.items():
        if same(getattr(constraints, known)):
            return kind(shape)
    fix = "Write it as a function of sites that are: low + (high - low) * Beta(1, 1), say."
    if constraint.is_discrete:
        fix = "Sum it out of the model: numpyro.distributions.MixtureSameFamily, or by hand."
    raise UsageError(
        found=f"site {name!r} on {constraint!r}",
        expected="numbers that are real, positive or within (0, 1), a simplex, or matrices",
        fix=fix,
    )


def _inside(support: supports.Continuous, values: jax.Array) -> jax.Array:
    """Move draws off the border, which rounding reaches but no bijection does."""
    limits = jnp.finfo(values.dtype)
    least = limits.tiny / limits.eps
    if isinstance(support, supports.PositiveNumbers | supports.UnitInterval):
        most = 1 / least if isinstance(support, supports.PositiveNumbers) else 1 - limits.epsneg
        return jnp.clip(values, least, most)
    if isinstance(support, supports.Simplex):
        values = jnp.maximum(values, least)
        return values / values.sum(-1, keepdims=True)
    return values
