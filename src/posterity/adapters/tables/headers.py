"""Which column of a table is what: the headers that are understood."""

import re
from collections.abc import Sequence
from typing import Any

from posterity.errors import StructureError
from posterity.families.names import some

HEADERS: dict[str, tuple[str, ...]] = {
    "name": ("", "name", "names", "parameter", "param", "term", "variable", "unnamed: 0",
             "rowname", "rownames", "index"),
    "mean": ("mean", "posterior mean", "estimate", "coef", "coefficient"),
    "sd": ("sd", "std", "stdev", "std dev", "standard deviation", "se", "std err", "std error",
           "standard error", "bse"),
    "variance": ("variance", "var"),
    "lower": ("2.5 %", "[0.025", "0.025", "conf low", "[95% conf", "lower", "lower 95%", "q2.5"),
    "upper": ("97.5 %", "0.975]", "0.975", "conf high", "interval]", "upper", "upper 95%",
              "q97.5"),
}  # fmt: skip
"""By role. Capitals and blanks do not matter, nor, in words, dots and low lines."""


def _key(header: str) -> str:
    """``Std. Error``, ``std.error`` and ``std_error`` are one; ``2.5 %`` is not ``25 %``."""
    wordy = not any(map(str.isdigit, header.replace("95%", "")))
    return re.sub(r"[\s._]" if wordy else r"\s", "", header.lower())


ROLES = {_key(header): role for role, headers in HEADERS.items() for header in headers}


def roles_of(header: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """The place of each role's column, and the headers that have none.

    Raises:
        StructureError: if a role is there twice, or what is needed is not there.

    >>> roles_of(["", "Estimate", "Std. Error", "t value"])
    ({'name': 0, 'mean': 1, 'sd': 2}, ['t value'])
    """
    found: dict[str, int] = {}
    unused = []
    for place, name in enumerate(header):
        role = ROLES.get(_key(name))
        if role is None:
            unused.append(name)
        elif role in found:
            raise _unclear(
                f"two columns of a parameter's {role}: {header[found[role]]!r} and {name!r}",
                "Leave one out.",
            )
        else:
            found[role] = place
    spread = [role for role in ("sd", "variance") if role in found]
    if len(spread) > 1:
        sd, variance = header[found["sd"]], header[found["variance"]]
        raise _unclear(f"both {sd!r} and {variance!r}", "Leave one out.")
    if "name" not in found or "mean" not in found:
        raise _unclear(f"columns {some(list(header))}", "Name the columns so, or rename them.")
    if ("lower" in found) != ("upper" in found):
        raise _unclear("one limit of an interval without the other", "Give both, or neither.")
    return found, unused


def has_spread(roles: dict[str, Any]) -> bool:
    """Whether a table says how far off its means may be."""
    return bool({"sd", "variance", "upper"} & roles.keys())


def _unclear(found: str, fix: str) -> StructureError:
    return StructureError(
        found=found,
        expected="one column 'name', one 'mean' (or 'estimate', 'coef'), and one 'sd' (or "
        "'se', 'std. error', 'variance', or the limits '2.5 %' and '97.5 %')",
        fix=fix,
    )
