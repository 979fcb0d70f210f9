"""The latent sites of a run of NumPyro's MCMC, on the supports that its model gives them."""

from typing import Any

from posterity.adapters.numpyro.sites import latent_sites, library, support_of
from posterity.adapters.samples.variables import Variable, on, variable
from posterity.errors import UsageError


def latent(mcmc: Any) -> tuple[list[Variable], list[str]]:
    """Variables, and a note for each site whose support has no map of the library.

    Raises:
        UsageError: for a run without draws, and discrete sites.
    """
    if getattr(mcmc, "last_state", None) is None:
        raise UsageError(
            found="an MCMC that has not been run",
            expected="one with draws",
            fix="Call mcmc.run(key, ...) first.",
        )
    drawn = mcmc.get_samples(group_by_chain=True)
    sites = _sites(mcmc)
    if sites is None:
        if not isinstance(drawn, dict):
            return [variable("", drawn, "first")], []
        return [variable(name, values, "first") for name, values in drawn.items()], []
    found, notes = [], []
    for name, site in sites.items():
        if name not in drawn:
            continue
        own = variable(name, drawn[name], "first")
        try:
            own = on(own, support_of(name, site))
        except UsageError as error:
            if site["fn"].support.is_discrete:
                raise
            notes.append(f"{error.found} is taken for any real number")
        found.append(own)
    return found, notes


def _sites(mcmc: Any) -> dict[str, Any] | None:
    """Of the model, run once as it was run then; None of a sampler of a potential alone."""
    model = getattr(mcmc.sampler, "model", None)
    if model is None:
        return None
    import jax

    handlers = library().handlers
    seeded = handlers.seed(model, jax.random.key(0))
    # What a run was made with it keeps for itself alone; ArviZ reads it there too.
    trace = handlers.trace(seeded).get_trace(*mcmc._args, **mcmc._kwargs)
    return latent_sites(trace)
