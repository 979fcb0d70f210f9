"""ArviZ: draws of any law of the library, for its summaries, diagnostics and plots.

ArviZ 0.x gives an ``InferenceData``, and 1.x an xarray ``DataTree``; both come from its own
``from_dict``. Tested with 0.23.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posterity.arguments import COUNT
from posterity.arrays.typing import KeyArray
from posterity.errors import MissingExtraError, UsageError
from posterity.families.distribution import Distribution

SEPARATOR = "/"
"""Between the names of a block and of what is in it."""
EVENT = "z"
"""What an event without names is called."""


def to_arviz(
    posterior: Distribution,
    *,
    key: KeyArray,
    chains: int = 4,
    draws: int = 1000,
    names: Sequence[str] | None = None,
) -> Any:
    """Independent draws of a posterior as ArviZ has those of samplers.

    Blocks of an event go by their names, those within others as ``outer/inner``; parts of a tuple
    go by their numbers; an event that is one array is ``z``. Axes of events are called
    ``NAME_dim_0`` and so on.

    Args:
        posterior: one proper law: a family, a mixture, a fusion's posterior.
        key: of the draws; equal keys give equal draws.
        chains: how many the draws are shared out to. They are independent throughout, so the
            diagnostics of chains say what they say of the best of samplers.
        draws: of each chain.
        names: of the numbers of an event that is one vector, such as the columns of a regression;
            each is then a variable of its own.

    Returns:
        An ``InferenceData``, or from ArviZ 1.0 on a ``DataTree``, whose group ``posterior`` has
        the draws, each variable of shape (chains, draws, ...).

    Raises:
        MissingExtraError: arviz is not installed.
        UsageError: for what is no single proper law, names that do not fit, or counts below one.

    For example::

        import arviz

        print(arviz.summary(to_arviz(found.posterior, key=jax.random.key(1))))
    """
    arviz = _import()
    COUNT.check(chains=chains, draws=draws)
    if not isinstance(posterior, Distribution) or posterior.batch_shape:
        raise UsageError(
            found=f"{posterior!r}",
            expected="one law",
            fix="Pass a posterior: found.posterior of a pursuit, ledger.posterior, or one member "
            "of a batch.",
        )
    if not np.all(posterior.is_proper()):
        raise UsageError(
            found=f"an improper {type(posterior).__name__}",
            expected="a distribution, which can be drawn from",
            fix="Add a proper prior, or data.",
        )
    import jax
    import jax.numpy as jnp

    with jax.enable_x64(True):
        law = jax.tree.map(jnp.asarray, posterior)
        drawn = jax.tree.map(np.asarray, law.sample(key, (chains, draws)))
    told = dict(_named(drawn)) if names is None else _columns(drawn, names)
    if int(arviz.__version__.split(".")[0]) >= 1:
        return arviz.from_dict({"posterior": told})
    return arviz.from_dict(posterior=told)


def _named(drawn: Any, path: str = "") -> list[tuple[str, np.ndarray]]:
    if drawn is None:
        return []
    if isinstance(drawn, Mapping):
        parts = list(drawn.items())
    elif isinstance(drawn, tuple | list):
        parts = [(str(number), part) for number, part in enumerate(drawn)]
    else:
        return [(path or EVENT, drawn)]
    return [
        found
        for name, part in parts
        for found in _named(part, f"{path}{SEPARATOR}{name}" if path else name)
    ]


def _columns(drawn: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
    shape = drawn.shape[2:] if isinstance(drawn, np.ndarray) else None
    if shape != (len(names),) or len(set(names)) < len(names):
        what = "events of several blocks" if shape is None else f"events of shape {shape}"
        raise UsageError(
            found=f"{len(names)} names, {len(set(names))} of them distinct, for {what}",
            expected="a name for each number of an event that is one vector",
            fix="Leave names out, or give as many as there are numbers.",
        )
    return {name: drawn[..., place] for place, name in enumerate(names)}


def _import() -> Any:
    try:
        import arviz
    except ImportError as error:
        raise MissingExtraError.of("arviz", "arviz") from error
    return arviz
