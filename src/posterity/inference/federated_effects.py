"""Random effects of a ledger that a federation left: each site's own Gaussian, from its factor.

The sum of a federation's factors is too narrow for few sites (:mod:`.population`). Its factors tell
the Gaussians of sites' own coefficients, though, and these are random effects like a fusion's: one
estimate of the population serves both.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from posterity.entries import with_factors
from posterity.errors import UsageError
from posterity.families import Gaussian
from posterity.families.marginals import numbered
from posterity.inference.expectation_propagation import Normal
from posterity.inference.population import BLOCKS, messages
from posterity.inference.random_effects import Effects, RandomEffects
from posterity.ledger import Ledger

TAKEN_AS_IT_IS = (
    "the posterior of what sites share is taken as it is, which with few sites is too narrow"
)
"""Note on a federation whose sites' own Gaussians cannot be recovered."""
ROUGH = (
    "where sites differ by more than their own errors, or some were forgotten without refinement, "
    "a federation's factors tell these errors and the deviations of known sites only roughly, and "
    "no Q, p or I² is given: posterity fuse --personal, of sites' own fits, has them"
)
"""Note on a federation whose sites' own errors are less than the spread, or whose factors may have
been found beside those of sites that are forgotten."""


def is_pooled(posterior: Any) -> bool:
    """Return whether a posterior is that of a regression with partially pooled coefficients."""
    return dict(posterior.independent_blocks()).keys() == {*BLOCKS}


def taken_as_it_is(ledger: Any) -> bool:
    """Return whether a ledger's posterior is the sum of factors of sites that differ, too narrow if
    these are few.
    """
    return bool(ledger.sites) and ledger.prior.additive and is_pooled(ledger.prior)


def with_random_effects(value: Any) -> Any:
    """Return a federation's ledger whose sites differ as one of :class:`RandomEffects`, whose
    posterior is correct for few sites, too.

    Anything else is returned as it is; and so is a ledger whose factors do not determine the
    Gaussian of each site's own coefficients (:func:`posterity.inference.population.message_of`).
    """
    prior: Any = getattr(value, "prior", None)
    if not isinstance(value, Ledger) or not taken_as_it_is(value):
        return value
    blocks = [dict(prior.independent_blocks())[name] for name in BLOCKS]
    names = blocks[0].names or numbered(blocks[0].own_size)
    differ = blocks[1].names or names
    called = len(differ) == blocks[1].own_size and {*differ} <= {*names}
    proper = bool(np.all(value.total.is_proper()))
    if not called or not proper or {*map(type, blocks)} != {Gaussian}:
        return value
    own = np.array([names.index(name) for name in differ])
    factors = {site: value.factor(site) for site in value.sites}
    effects = effects_at(prior, value.total, factors, own)
    if effects is None:
        return value
    entries = with_factors(
        value.entries, lambda site, _: effects.prior.factor(effects.messages[site])
    )
    return Ledger(effects.prior, entries)


def effects_at(prior: Any, posterior: Any, factors: Mapping[str, Any], own: Any) -> Effects | None:
    """Return the population whose sites have these ``factors``, found under a ``posterior``; None
    if they do not determine the Gaussian of each site's own coefficients, as early in a run.

    ``prior`` and ``posterior`` are Products of ``coefficients`` and ``log_spread``; ``own`` are the
    columns that vary between sites.
    """
    found = messages(posterior, factors, own)
    if found is None:
        return None
    names = prior.coefficients.names or numbered(prior.coefficients.own_size)
    called = dict(zip(BLOCKS, (names, [names[place] for place in own]), strict=True))
    laws = {block: Normal.of(getattr(prior, block)).law.named(of) for block, of in called.items()}
    return Effects(RandomEffects(laws), found)


def caveats_of(value: Any, hidden: float = 1.0) -> list[str]:
    """Return notes on what a federation's ledger does not tell of sites that differ.

    A factor tells the errors of its site roughly if a spread is more than ``hidden`` of them: by
    the default tolerance of a federation Q was up to 5 % off at one, a sixth at two, a third at
    four, and tenfold at a hundred.
    """
    if not isinstance(value, Ledger) or not taken_as_it_is(value):
        return []
    known = with_random_effects(value)
    if known is value:
        return [TAKEN_AS_IT_IS]
    effects = effects_of(known)
    apart = bool((effects.spread > hidden * effects.errors).any())
    return [ROUGH] * (apart or bool(value.forgotten))


def effects_of(ledger: Any) -> Effects:
    """Return the population of a ledger whose sites differ. Raises UsageError for another."""
    ledger = with_random_effects(ledger)
    if not isinstance(getattr(ledger, "prior", None), RandomEffects):
        raise UsageError(
            found=f"the population of {ledger!r}",
            expected="a ledger whose sites differ",
            fix="Fuse by posterity.fuse(..., personal=True), or federate so until it converges.",
        )
    return Effects.of(ledger.prior, {site: ledger.factor(site) for site in ledger.sites})
