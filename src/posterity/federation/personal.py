"""The posterior of a site's own parameters, which is computed at the site on request."""

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from posterity.arguments import check_shape
from posterity.arrays.tree import taken
from posterity.arrays.typing import Float
from posterity.errors import UsageError
from posterity.families import ExponentialFamily, Gaussian, Mixture
from posterity.families.names import names_of, with_names
from posterity.inference.expectation_propagation import in_float64
from posterity.inference.federated_effects import effects_at
from posterity.inference.joint import pieces
from posterity.inference.pooling import PartialPooling, own_law
from posterity.inference.random_effects import Effects
from posterity.inference.update import LocalUpdate
from posterity.ledger import Ledger
from posterity.models import Model, PersonalModel, PersonalRegression, Records
from posterity.models.nodes import normal_pairs
from posterity.models.personal import Law
from posterity.models.tables import Names, array, arrays, columns_of
from posterity.runtime.lazy import jax, jnp
from posterity.runtime.programs import program


@dataclasses.dataclass(frozen=True)
class SitePosterior:
    """The posterior of one site's own parameters ``b`` (p,), and its predictions.

    ``q(b) = ∫ q(b | z) q(z) dz``, where the shared posterior ``q(z)`` includes the site's own
    records, and ``q(b | z)`` is a Gaussian. For a regression it is the result of expectation
    propagation over the records, exact if the likelihood is Gaussian. For other models it is the
    Gaussian of the tightest evidence bound. The integral is a mean over fixed draws of ``z``.
    """

    model: PersonalModel
    shared: ExponentialFamily
    laws: Law
    """Gaussians of ``b`` given each draw of the shared parameters."""

    @functools.cached_property
    def posterior(self) -> Mixture:
        """The posterior of ``b``, a mixture with one Gaussian per draw of the shared parameters."""
        mean = np.asarray(self.laws.mean)
        scale = np.asarray(self.laws.scale)
        if scale.ndim == 2:
            scale = scale[:, :, None] * np.eye(scale.shape[-1])
        components = Gaussian.from_standard(mean, scale @ np.swapaxes(scale, -1, -2))
        return Mixture.from_standard(np.ones(len(mean)), components)

    @property
    def mean(self) -> Float[np.ndarray, " p"]:
        """The mean of ``b``."""
        return self.posterior.components.mean.mean(0)  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def covariance(self) -> Float[np.ndarray, "p p"]:
        """The covariance of ``b``: the mean conditional one plus that of conditional means."""
        members: Any = self.posterior.components
        of_means = np.cov(members.mean.T, bias=True).reshape(members.covariance.shape[1:])
        return members.covariance.mean(0) + of_means

    def log_predictive(self, data: Any) -> Float[np.ndarray, " n"]:
        """Return the log predictive density of each record at this site, in nats. Data frames are
        read by the names of their columns, as in the fit. Raises ParameterError or StructureError
        if the data are invalid for the model.
        """
        data = arrays(data, self._columns)
        self.model.check(data)
        if isinstance(self.model, PersonalRegression):
            values = self._by_draws(self.model.log_predictive, *data)
            return logsumexp(values, 0) - np.log(len(values))
        with jax.enable_x64(True):
            data = jax.tree.map(jnp.asarray, data)
            return np.asarray(_log_predictive(self.model, self._shared_draws, self.laws, data))

    def predict(self, x: Float[Any, "n d"]) -> Float[np.ndarray, " n"]:
        """Return ``E[y | x]`` at this site for each row, which is a probability for a binary ``y``.
        A data frame is read by the names of its columns, as in the fit. Raises UsageError if the
        model is not a regression or has no prediction, and ParameterError or StructureError if
        ``x`` is invalid for the regression.
        """
        if not isinstance(self.model, PersonalRegression):
            raise UsageError(
                found=f"a prediction asked of {type(self.model).__name__}",
                expected="a regression; of others `log_predictive`, or draws of `posterior`",
            )
        x = array(x, self._columns, "the inputs")
        self.model.check((x, np.zeros(len(x)) if x.ndim else x))
        z = self._shared_draws
        check_shape("x", x, None, z["coefficients"].shape[-1])
        return self._by_draws(self.model.predict, x).mean(0)

    @property
    def _columns(self) -> Names:
        return columns_of(self.shared) or None

    def _by_draws(
        self, each: Any, x: Any, *y: Any, most: int = 4096
    ) -> Float[np.ndarray, "draws n"]:
        """Evaluate ``each`` in batches of draws, whose number times that of records is at most
        ``most``, to limit memory.
        """
        x = np.asarray(x, float)
        data = (x, *y) if y else x
        regression: Any = self.model
        every = self._shared_draws, self.laws
        count = max(1, most // max(len(x), 1))
        found = []
        for start in range(0, len(self.laws.mean), count):
            z, laws = taken(every, slice(start, start + count))
            with in_float64(regression.model):
                found.append(np.asarray(each(z, laws, data)))
        return np.concatenate(found)

    @functools.cached_property
    def _shared_draws(self) -> Any:
        return _draws(self.shared)


def own_laws(model: Model, shared: ExponentialFamily, records: Records | None) -> Law:
    """Return the distribution of a site's own parameters for each draw of the shared ones. Raises
    UsageError if the model has no site-specific parameters.
    """
    check_personal(model)
    z = _draws(shared)
    if PartialPooling.serves(model, shared):
        return own_law(model, shared, records, z)  # pyright: ignore[reportArgumentType]
    records = None if records is None or not records.size else records.padded()
    with jax.enable_x64(True):
        return _given(model, z, records)


def check_personal(model: Model) -> None:
    """Raise a UsageError if the model has no site-specific parameters."""
    if not isinstance(model, PersonalModel):
        raise UsageError(
            found=f"a site's own parameters asked of {type(model).__name__}",
            expected="a regression with `personal=True`, or a PersonalModel, where sites have some",
        )


def site_posterior(
    model: Model, shared: ExponentialFamily, records: Records | None = None
) -> SitePosterior:
    """Return the posterior of a site's own parameters from its records, if any. Raises UsageError
    if the model has no site-specific parameters.
    """
    laws = own_laws(model, shared, records)
    return SitePosterior(model, shared, laws)  # pyright: ignore[reportArgumentType]


class Population(NamedTuple):
    """The posterior of the shared parameters of a run in which sites differ."""

    law: Any
    """Gaussians of ``coefficients`` and ``log_spread``."""
    effects: Effects | None
    """The population that all factors tell together, whose moments the law has; None if ``law`` is
    the run's posterior, because they do not tell one."""


def population_of(model: Model, update: LocalUpdate, ledger: Ledger, reports: Any) -> Population:
    """Return the joint posterior of the shared parameters from all factors of a ledger. ``reports``
    is a function that returns, by site, reports with the gradient at the ledger's posterior. Raises
    UsageError if the model has no site-specific parameters.
    """
    check_personal(model)
    posterior: Any = ledger.posterior
    if not update.pools:
        return Population(posterior, None)
    factors = {}
    for site, report in reports().items():
        factor = ledger.entries[site].factor if site in ledger.entries else posterior.zero()
        # Adding the gradient updates all factors to the current spreads.
        factors[site] = factor if report.direction is None else factor + report.direction
    own = np.array(model.personal)  # pyright: ignore[reportAttributeAccessIssue]
    effects = effects_at(ledger.prior, posterior, factors, own)
    law = posterior if effects is None else with_names(effects.law, names_of(posterior))
    return Population(law, effects)


def _draws(shared: ExponentialFamily, number: int = 512) -> Any:
    """Return quasi-random draws from the shared posterior, the same for all sites."""
    parts = shared.independent_blocks()
    if parts and all(part.gaussian for part in parts.values()):
        noise = pieces(shared, normal_pairs(shared.event_size, number // 2))
        pairs = zip(parts.items(), noise, strict=True)
        return {name: part.at_noise(own) for (name, part), own in pairs}
    with jax.enable_x64(True):
        return jax.tree.map(jnp.asarray, shared).sample(jax.random.key(0), (number,))


@program
def _given(model: Any, z: Any, records: Any) -> Any:
    def local(one: Any) -> Any:
        return model.local(one, records)

    return jax.lax.map(local, z)


@program
def _log_predictive(model: Any, z: Any, laws: Any, data: Any, some: int = 32) -> Any:
    # In batches of some draws, to limit memory if there are many records.
    def one(draw):
        return model.log_predictive(*draw, data)

    values = jax.lax.map(one, (z, laws), batch_size=some)
    return jax.scipy.special.logsumexp(values, 0) - jnp.log(len(values))
