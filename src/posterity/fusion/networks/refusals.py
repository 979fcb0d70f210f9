"""Arguments that say nothing of networks."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from posterity.arguments import Constraint
from posterity.errors import ParameterError, UsageError
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Matching
from posterity.fusion.networks.locals import Local
from posterity.fusion.networks.options import Options

LARGEST = 1e30
"""Of weights: over a few layers, and squared, they are still finite."""
WIDTH = Constraint(
    "a positive whole number",
    lambda n: isinstance(n, Integral) and not isinstance(n, bool) and int(n) > 0,
)


def check_arguments(divergence: Any, absorb: bool | None, budget: int | None) -> None:
    """Refuse what is only said of plates.

    Raises:
        UsageError: for ``absorb=True``, a ``budget`` or a divergence that is not KL.
    """
    if not isinstance(divergence, Divergence):
        raise UsageError(
            found=f"divergence={divergence.value!r} for networks",
            expected="a direction of KL: 'reverse' or 'forward'",
            fix="Leave divergence out.",
        )
    if absorb:
        raise UsageError(
            found="absorb=True for networks",
            expected="absorb=None: two units of one site are never one",
            fix="Leave absorb out.",
        )
    if budget is not None:
        raise UsageError(
            found=f"budget={budget} for networks",
            expected="budget=None: networks are matched in memory",
            fix="Leave budget out, or fuse regions of fewer sites first.",
        )


def check_sizes(locals_: list[Local]) -> None:
    """Refuse weights whose products over layers overflow.

    Raises:
        ParameterError: naming the site.
    """
    for local in locals_:
        size = max(float(np.abs(array).max()) for own in local.mean for array in own.values())
        if size > LARGEST:
            raise ParameterError(
                found=f"weights of {size:.2g} at site {local.name!r}",
                expected=f"means of at most {LARGEST:g}",
                fix="Check how the network was trained, and the scale of its data.",
            )


def widths_wanted(
    components: Any, locals_: list[Local], matching: Matching, options: Options
) -> tuple[int, ...] | None:
    """A width for each hidden layer, where the user names them, no more than there are units.

    Raises:
        UsageError: for widths that are none, or of another number of layers.
    """
    if options.units == "selected" and matching is not Matching.EVIDENCE:
        raise UsageError(
            found=f"matching={matching.value!r} with networks=Options(units='selected')",
            expected="units='matched', or no matching",
            fix="Leave one of them out.",
        )
    searched = components is None and matching is Matching.EVIDENCE
    if options.most is not None and not searched:
        raise UsageError(
            found=f"networks=Options(most={options.most}) with components={components!r} and "
            f"matching={matching.value!r}",
            expected="most= where the width is searched for: no components=, and no matching=",
            fix="Leave one of them out.",
        )
    if components is None:
        return None
    wanted = _by_layer(components, locals_[0], "components")
    total = side_by_side(locals_)
    if any(width > top for width, top in zip(wanted, total, strict=True)):
        raise UsageError(
            found=f"components={components!r}",
            expected=f"no more than {total}: all sites' units side by side, none made up",
            fix="Pass components=None to have widths found.",
        )
    return wanted


def widths_searched(
    locals_: list[Local], options: Options
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """From and to which widths the search goes: the widest site's to all units, within ``most``.

    Raises:
        UsageError: for a ``most`` of another number of layers.
    """
    top = side_by_side(locals_)
    if options.most is not None:
        top = tuple(map(min, top, _by_layer(options.most, locals_[0], "most")))
    widest = np.max([local.layers.widths for local in locals_], axis=0).tolist()
    return tuple(map(min, widest, top)), top


def side_by_side(locals_: list[Local]) -> tuple[int, ...]:
    """Hidden units of each layer, of all sites together."""
    return tuple(np.sum([local.layers.widths for local in locals_], axis=0).tolist())


def _by_layer(given: Any, like: Local, name: str) -> tuple[int, ...]:
    hidden = len(like.layers.widths)
    several = isinstance(given, Sequence) and not isinstance(given, str)
    wanted: tuple[Any, ...] = tuple(given) if several else (given,) * hidden
    if len(wanted) != hidden or not all(map(WIDTH.allows, wanted)):
        raise UsageError(
            found=f"{name}={given!r}",
            expected=f"a positive whole number, or one for each of {hidden} hidden layers",
            fix=f"Pass {name}=None to have widths found.",
        )
    return tuple(map(int, wanted))
