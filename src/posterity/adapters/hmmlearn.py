"""hmmlearn: fitted variational hidden Markov models as ledgers, and back.

``scale_posterior_`` is the *inverse* scale of the Wishart, undivided: the expected precision is
``dof_posterior_ scale_posterior_⁻¹``, and ``covars_`` its inverse. The diagonal type is read
feature by feature as ``Gamma(ν/2, rate s/2)`` with the one ``ν`` of its state, so that posterior
less prior is exactly a state's expected count, sum and sum of squares, as for scikit-learn's
mixtures; the spherical type as a diagonal one whose features share their scale. Predictions of
hmmlearn are those of expected parameters, which these readings keep.
"""

from typing import Any, NamedTuple

import numpy as np

from posterity.adapters.exchangeable import shared_value
from posterity.arrays.linear_algebra import symmetric
from posterity.arrays.typing import Float
from posterity.checks import check_proper
from posterity.errors import MissingExtraError, ParameterError, StructureError, UsageError
from posterity.families import (
    Dirichlet,
    ExponentialFamily,
    HiddenMarkov,
    NormalGamma,
    NormalWishart,
    Plate,
    at_rest,
)
from posterity.ledger import Ledger

Array = np.ndarray
KINDS = ("full", "diag", "spherical")
SMALL = 1e-3
"""hmmlearn's default scale of the prior."""


class Gaussians(NamedTuple):
    """hmmlearn's parameters of ``K`` states: ``m`` (K, d), ``κ`` and ``ν`` (K,) and ``S⁻¹``."""

    means: Float[Array, "k d"]
    beta: Float[Array, " k"]
    dof: Float[Array, " k"]
    scale: Float[Array, "k ..."]


def to_ledger(model: Any, site: str) -> Ledger:
    """A fitted variational HMM of hmmlearn as the ledger of one site: its prior and its factor.

    Args:
        model: a fitted ``VariationalGaussianHMM`` with ``covariance_type`` ``"full"``, ``"diag"``
            or ``"spherical"``, or a fitted ``VariationalCategoricalHMM``. The default of
            ``means_prior`` is the mean of each site's data: to fuse by ``rule="product"``
            fit all sites with one prior, or pass ``prior=``.
        site: the name that the factor goes by.

    Returns:
        A ledger over a :class:`HiddenMarkov` whose emissions are :class:`NormalWishart`
        (``"full"``), :class:`NormalGamma` or :class:`Dirichlet`.

    Raises:
        MissingExtraError: hmmlearn is not installed.
        UsageError: the model is not fitted, or is none of these.
        StructureError: ``covariance_type="tied"``: states that share one are not independent.
        ParameterError: NaN, infinite or improper parameters.

    >>> from hmmlearn.vhmm import VariationalCategoricalHMM
    >>> x = np.array([0, 0, 0, 1, 1, 1, 0, 0, 1, 1])[:, None]
    >>> model = VariationalCategoricalHMM(n_components=2, random_state=0, n_iter=5, tol=0.1).fit(x)
    >>> to_ledger(model, "north").posterior.states
    2
    """
    gaussian, categorical = _models()
    if not isinstance(model, gaussian | categorical):
        raise UsageError(
            found=f"a {type(model).__name__}",
            expected="a fitted VariationalGaussianHMM or VariationalCategoricalHMM",
            fix="Other models of hmmlearn are point estimates: fit the variational ones.",
        )
    if not hasattr(model, "startprob_posterior_") or not hasattr(model, "transmat_"):
        raise UsageError(
            found=f"a {type(model).__name__} that is not fitted",
            expected="a fitted one",
            fix="Call fit first.",
        )
    if isinstance(model, gaussian) and model.covariance_type not in KINDS:
        raise StructureError(
            found=f"covariance_type={model.covariance_type!r}",
            expected=f"one of {KINDS}: a conjugate posterior for each state",
            fix="Fit again with covariance_type='full', or 'diag' if data are scarce.",
        )
    try:
        prior, posterior = _law(model, "prior"), _law(model, "posterior")
        check_proper(prior, "the prior")
        check_proper(posterior, "the posterior")
    except ParameterError as error:
        raise error.at(f"site {site!r}") from error
    return Ledger.of_site(site, prior=prior, posterior=posterior)


def to_model(posterior: ExponentialFamily | Ledger, **parameters: Any) -> Any:
    """A posterior as a fitted variational HMM of hmmlearn, ready to predict and to score.

    Args:
        posterior: a :class:`HiddenMarkov`, or a ledger of one, whose posterior is taken and whose
            prior becomes the model's.
        parameters: constructor arguments that no posterior holds, such as ``algorithm``,
            ``random_state`` or ``tol``.

    Returns:
        A ``VariationalGaussianHMM``, ``"full"`` or ``"diag"``, or a
        ``VariationalCategoricalHMM``. Without a ledger the prior is not known: the model then has
        hmmlearn's defaults, with the mean of the states in place of that of the data.

    Raises:
        MissingExtraError: hmmlearn is not installed.
        UsageError: ``parameters`` that the posterior already determines.
        StructureError: a posterior that no such model can hold.
        ParameterError: NaN, infinite or improper parameters.

    >>> rows = Dirichlet.from_standard([[9.0, 1.0], [1.0, 9.0]])
    >>> start = Dirichlet.from_standard([1.0, 1.0])
    >>> q = HiddenMarkov(emissions=Plate(rows), initial=start, transitions=Plate(rows))
    >>> to_model(q).predict(np.array([[0], [0], [1], [1]])).tolist()
    [0, 0, 1, 1]
    """
    gaussian, categorical = _models()
    prior = None
    if isinstance(posterior, Ledger):
        prior, posterior = posterior.prior, posterior.posterior  # pyright: ignore
    _check_posterior(posterior)
    q: Any = at_rest(posterior)  # type: ignore[type-var]
    members: Any = q.emissions.members
    emissions, kind = _emissions(members), categorical
    given = dict(parameters)
    if not isinstance(members, Dirichlet):
        kind = gaussian
        full = isinstance(members, NormalWishart)
        _check_determined(given)
        given["covariance_type"] = "full" if full else "diag"
    _check_determined(parameters)
    start = _default_prior(q, emissions) if prior is None else _parts(at_rest(prior))
    model = kind(
        n_components=q.states,
        **{f"{name}_prior": value for name, value in start.items()},
        **given,
    )
    for name, value in start.items():
        setattr(model, f"{name}_prior_", value)
    for name, value in _parts(q).items():
        setattr(model, f"{name}_posterior_", value)
    model.startprob_ = np.asarray(q.expected_initial)
    model.transmat_ = np.asarray(q.expected_transitions)
    if isinstance(emissions, Gaussians):
        dof = emissions.dof.reshape(-1, *[1] * (emissions.scale.ndim - 1))
        model._covars_ = emissions.scale / dof
        model.n_features = emissions.means.shape[1]
    else:
        model.emissionprob_ = np.asarray(members.mean)
        model.n_features = members.own_size
    return model


def _models() -> tuple[type, type]:
    """The two classes, if hmmlearn is installed."""
    try:
        from hmmlearn.vhmm import VariationalCategoricalHMM, VariationalGaussianHMM
    except ImportError as error:
        raise MissingExtraError.of("hmmlearn", "hmm") from error
    return VariationalGaussianHMM, VariationalCategoricalHMM


# --- from hmmlearn -------------------------------------------------------------------------------


def _law(model: Any, which: str) -> HiddenMarkov:
    """``which`` is the prior or the posterior."""
    get = lambda name: np.asarray(getattr(model, f"{name}_{which}_"), np.float64)
    if hasattr(model, "emissionprob_posterior_"):
        members: ExponentialFamily = Dirichlet.from_standard(get("emissionprob"))
    else:
        found = Gaussians(get("means"), get("beta"), get("dof"), get("scale"))
        members = _members(found, model.covariance_type)
    return HiddenMarkov(
        emissions=Plate(members),
        initial=Dirichlet.from_standard(get("startprob")),
        transitions=Plate(Dirichlet.from_standard(get("transmat"))),
    )


def _members(found: Gaussians, kind: str) -> ExponentialFamily:
    means, beta, dof, scale = found
    if kind == "full":
        return NormalWishart.from_inverse_scale(means, beta, symmetric(scale), dof)
    wide = np.ones_like(means)
    scale = scale[:, None] * wide if kind == "spherical" else scale
    return NormalGamma.from_standard(means, beta[:, None] * wide, scale, dof[:, None] * wide)


# --- to hmmlearn ---------------------------------------------------------------------------------


def _check_posterior(posterior: Any) -> None:
    if not isinstance(posterior, HiddenMarkov) or posterior.batch_shape:
        raise StructureError(
            found=repr(posterior),
            expected="one HiddenMarkov, or a Ledger of one",
            fix="Index a batch; of a Product pass the block.",
        )
    check_proper(posterior, "the posterior for hmmlearn")


def _check_determined(parameters: dict[str, Any]) -> None:
    taken = sorted(
        name
        for name in parameters
        if name.endswith("_prior") or name in ("n_components", "covariance_type", "n_features")
    )
    if taken:
        raise UsageError(
            found=f"parameters {taken}",
            expected="only parameters that the posterior does not determine",
            fix="Leave them out.",
        )


def _emissions(members: Any) -> Gaussians | Array:
    """Hmmlearn's parameters of the emissions."""
    if isinstance(members, Dirichlet):
        return np.asarray(members.concentration)
    if isinstance(members, NormalWishart):
        values = members.mean_precision, members.degrees_of_freedom
        return Gaussians(members.mean, *values, symmetric(members.inverse_scale))
    if not isinstance(members, NormalGamma):
        raise StructureError(
            found=f"emissions {members!r}",
            expected="NormalWishart, NormalGamma or Dirichlet",
            fix="hmmlearn has no other variational models.",
        )
    kappa = _shared(members.mean_precision, "mean_precision")
    nu = _shared(members.degrees_of_freedom, "degrees_of_freedom")
    return Gaussians(members.mean, kappa, nu, np.asarray(members.inverse_scale))


def _shared(values: Any, name: str) -> Array:
    found = shared_value(np.moveaxis(values, -1, 0))
    if found is None:
        raise StructureError(
            found=f"a NormalGamma whose {name} differs between features",
            expected="one value a state: hmmlearn's diagonal type has no more",
            fix="Use posterity.models.label, or fuse with rule='product' or divergence='reverse'.",
        )
    return np.asarray(found)


def _parts(law: Any) -> dict[str, Array]:
    """All of a prior or a posterior by hmmlearn's names."""
    found = _emissions(law.emissions.members)
    shared = {
        "startprob": np.asarray(law.initial.concentration),
        "transmat": np.asarray(law.transitions.members.concentration),
    }
    if isinstance(found, Gaussians):
        return {**shared, **{name: np.asarray(v) for name, v in found._asdict().items()}}
    return {**shared, "emissionprob": found}


def _default_prior(posterior: HiddenMarkov, emissions: Gaussians | Array) -> dict[str, Array]:
    """Hmmlearn's defaults."""
    states = posterior.states
    shared = {
        "startprob": np.full(states, 1 / states),
        "transmat": np.full((states, states), 1 / states),
    }
    if not isinstance(emissions, Gaussians):
        return {**shared, "emissionprob": np.full_like(emissions, 1 / emissions.shape[1])}
    size = emissions.means.shape[1]
    share = posterior.occupancy() / posterior.occupancy().sum()
    one = np.eye(size) if emissions.scale.ndim == 3 else np.ones(size)
    return {
        **shared,
        "means": np.tile(share @ emissions.means, (states, 1)),
        "beta": np.ones(states),
        "dof": np.full(states, float(size)),
        "scale": np.stack([SMALL * one] * states),
    }
