"""Arguments that say nothing of networks."""

from typing import Any

from posterity.arguments import Constraint
from posterity.errors import UsageError
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Matching
from posterity.fusion.networks.locals import Local
from posterity.fusion.networks.options import Options

WIDTH = Constraint("a positive whole number", lambda n: isinstance(n, int) and n > 0)


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


def widths_wanted(
    components: Any, locals_: list[Local], matching: Matching, options: Options
) -> tuple[int, ...] | None:
    """A width for each hidden layer, where the user names them, no more than there are units.

    Raises:
        UsageError: for widths that are none, or of another number of layers.
    """
    layers = locals_[0].layers
    hidden = len(layers.widths)
    if options.units == "selected" and matching is not Matching.EVIDENCE:
        raise UsageError(
            found=f"matching={matching.value!r} with networks=Options(units='selected')",
            expected="units='matched', or no matching",
            fix="Leave one of them out.",
        )
    if components is None:
        return None
    wanted = (components,) * hidden if isinstance(components, int) else tuple(components)
    if len(wanted) != hidden or not all(map(WIDTH.allows, wanted)) or not hidden:
        raise UsageError(
            found=f"components={components!r}",
            expected=f"a width, or a positive one for each of {hidden} hidden layers",
            fix="Pass components=None to have widths found.",
        )
    total = [sum(local.layers.widths[index] for local in locals_) for index in range(hidden)]
    over = [index for index in range(hidden) if wanted[index] > total[index]]
    if over:
        raise UsageError(
            found=f"components={components!r}",
            expected=f"no more than {total}: all sites' units side by side, none made up",
            fix="Pass components=None to have widths found.",
        )
    return wanted
