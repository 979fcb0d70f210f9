"""hmmlearn: fitted variational hidden Markov models as ledgers, and back.

``scale_posterior_`` is the *inverse* scale of the Wishart, undivided: the expected precision is
``dof_posterior_ scale_posterior_⁻¹``, and ``covars_`` its inverse. The diagonal type is read as
in :class:`posterity.adapters.plates.Gaussians`, the spherical type as a diagonal one whose features
share one scale. hmmlearn predicts with expected parameters, which this conversion preserves.
"""

from typing import Any

import numpy as np

from posterity import families
from posterity.adapters import shared
from posterity.adapters.plates import Gaussians, conjugate
from posterity.adapters.shared import library
from posterity.ledger import Ledger

Array = np.ndarray
GAUSSIAN = ("means", "beta", "dof", "scale")
"""hmmlearn's names of the fields of :class:`Gaussians`."""
DETERMINED = ("n_components", "n_features", "covariance_type")
"""Constructor arguments, besides those of the prior, that a posterior and its prior determine."""


def to_ledger(model: Any, site: str) -> Ledger:
    """Convert a fitted variational HMM of hmmlearn to a site's ledger: its prior and its factor.

    The model is a ``VariationalGaussianHMM`` with ``covariance_type`` ``"full"``, ``"diag"`` or
    ``"spherical"``, or a ``VariationalCategoricalHMM``; others are refused. The default of
    ``means_prior`` is the mean of each site's data: to fuse by ``rule="product"`` fit all sites
    with one prior, or pass ``prior=``. The ledger is over a :class:`HiddenMarkov` whose emissions
    are :class:`NormalWishart` (``"full"``), :class:`NormalGamma` or :class:`Dirichlet`.

    >>> from hmmlearn.vhmm import VariationalCategoricalHMM
    >>> x = np.array([0, 0, 0, 1, 1, 1, 0, 0, 1, 1])[:, None]
    >>> model = VariationalCategoricalHMM(n_components=2, random_state=0, n_iter=5, tol=0.1).fit(x)
    >>> to_ledger(model, "north").posterior.states
    2
    """
    gaussian, categorical = _models()
    if not isinstance(model, gaussian | categorical):
        expected = "a fitted VariationalGaussianHMM or VariationalCategoricalHMM: others of "
        raise shared.unsupported(model, expected + "hmmlearn are point estimates")
    shared.check_fitted(model, "startprob_posterior_", "transmat_")
    if isinstance(model, gaussian):
        conjugate("full", "diag", "spherical").check(covariance_type=model.covariance_type)
    with shared.at_site(site):
        prior = _law(model, "prior")
        posterior = _law(model, "posterior")
    return shared.Laws(posterior, prior).ledger(site)


def to_model(posterior: families.ExponentialFamily | Ledger, **parameters: Any) -> Any:
    """Convert a posterior to a fitted variational HMM of hmmlearn that can predict and score.

    The posterior is a :class:`HiddenMarkov`, or a ledger of one, whose prior becomes the model's.
    Without a ledger the model has no prior (NaN): it predicts, and a new fit takes hmmlearn's
    default. ``parameters`` are constructor arguments that no posterior holds, such as
    ``algorithm``, ``random_state`` or ``tol``; others are a UsageError. A posterior that no such
    model can represent is a StructureError.

    >>> from posterity.families import Dirichlet, HiddenMarkov, Plate
    >>> rows = Dirichlet.from_standard([[9.0, 1.0], [1.0, 9.0]])
    >>> start = Dirichlet.from_standard([1.0, 1.0])
    >>> q = HiddenMarkov(emissions=Plate(rows), initial=start, transitions=Plate(rows))
    >>> to_model(q).predict(np.array([[0], [0], [1], [1]])).tolist()
    [0, 0, 1, 1]
    """
    gaussian, categorical = _models()
    kinds = (families.NormalWishart, families.NormalGamma, families.Dirichlet)

    def fits(law: Any) -> bool:
        return getattr(law, "is_tied", False) and isinstance(law.emissions.members, kinds)

    prior, q = shared.prior_and_law(
        posterior,
        fits,
        "hmmlearn",
        expected="one HiddenMarkov that emits NormalWishart, NormalGamma or Dirichlet, or a "
        "Ledger of one",
        fix="For a Product pass the block.",
    )
    members = q.emissions.members
    priors = [name for name in parameters if name.endswith("_prior")]
    shared.check_undetermined(parameters, (*DETERMINED, *priors))
    own = _parts(q)
    symbols = members.emits_symbols
    if not symbols:
        parameters["covariance_type"] = "full" if members.whole else "diag"
    given = {}
    fitted = {f"{name}_prior_": np.full_like(value, np.nan) for name, value in own.items()}
    if prior is not None:
        given = {f"{name}_prior": value for name, value in _parts(families.at_rest(prior)).items()}
        fitted = {f"{name}_": value for name, value in given.items()}
    model = (categorical if symbols else gaussian)(n_components=q.states, **given, **parameters)
    fitted |= {f"{name}_posterior_": value for name, value in own.items()}
    fitted["startprob_"] = q.expected_initial
    fitted["transmat_"] = q.expected_transitions
    if symbols:
        fitted |= {"emissionprob_": members.mean, "n_features": members.own_size}
    else:
        fitted["_covars_"] = Gaussians(*(own[name] for name in GAUSSIAN)).covariance
        fitted["n_features"] = own["means"].shape[1]
    for name, value in fitted.items():
        setattr(model, name, value)
    return model


def _models() -> tuple[type, type]:
    vhmm = library("hmmlearn.vhmm", extra="hmm").vhmm
    return vhmm.VariationalGaussianHMM, vhmm.VariationalCategoricalHMM


def _law(model: Any, which: str) -> families.HiddenMarkov:
    def read(name):
        return np.asarray(getattr(model, f"{name}_{which}_"), np.float64)

    members: families.ExponentialFamily
    if hasattr(model, "emissionprob_posterior_"):
        members = families.Dirichlet.from_standard(read("emissionprob"))
    else:
        members = Gaussians(*map(read, GAUSSIAN)).law
    return families.HiddenMarkov(
        emissions=families.Plate(members),
        initial=families.Dirichlet.from_standard(read("startprob")),
        transitions=families.Plate(families.Dirichlet.from_standard(read("transmat"))),
    )


def _parts(law: Any) -> dict[str, Array]:
    """Return all arrays of a prior or posterior by hmmlearn's names."""
    members = law.emissions.members
    result = {
        "startprob": law.initial.concentration,
        "transmat": law.transitions.members.concentration,
    }
    if members.emits_symbols:
        return {**result, "emissionprob": members.concentration}
    return {**result, **dict(zip(GAUSSIAN, Gaussians.of(members, "hmmlearn"), strict=True))}
