"""What the columns of a table of coefficients are, by their headers."""

import re
from collections.abc import Sequence

from posterity.errors import StructureError
from posterity.families.names import some

HEADERS = {
    "site": "study|site",
    "name": "|name|names|predictor|parameter|param|term|variable|unnamed: 0|rowname|rownames|index",
    "mean": "mean|posterior mean|estimate|coef|coefficient|b",
    "sd": "sd|std|stdev|std dev|standard deviation|se|std err|std error|standard error|bse",
    "variance": "variance|var",
    "lower": "2.5 %|[0.025|0.025|conf low|[95% conf|lower|lower 95%|q2.5",
    "upper": "97.5 %|0.975]|0.975|conf high|interval]|upper|upper 95%|q97.5",
}
"""Headers by role, separated by ``|``. Case, blanks and, in words, dots and underscores do not
matter.
"""


def _key(header: str) -> str:
    """Normalise a header: ``Std. Error`` matches ``std_error``, but ``2.5 %`` not ``25 %``."""
    wordy = not any(map(str.isdigit, header.replace("95%", "")))
    return re.sub(r"[\s._]" if wordy else r"\s", "", header.lower())


ROLES = {_key(header): role for role, headers in HEADERS.items() for header in headers.split("|")}


def roles_of(header: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Return the column of each role, and headers without a role; a StructureError if a role is
    duplicate or required and missing.

    >>> roles_of(["", "Estimate", "Std. Error", "t value"])
    ({'name': 0, 'mean': 1, 'sd': 2}, ['t value'])
    """
    result: dict[str, int] = {}
    unused = []
    wrong = ""
    for place, name in enumerate(header):
        role = ROLES.get(_key(name))
        if role is None:
            unused.append(name)
        elif role in result:
            wrong = f"two columns of a parameter's {role}: {header[result[role]]!r} and {name!r}"
        else:
            result[role] = place
    if "sd" in result and "variance" in result:
        wrong = f"both {header[result['sd']]!r} and {header[result['variance']]!r}"
    if not {"name", "site"} & result.keys() or "mean" not in result:
        wrong = f"columns {some(header)}"
    if ("lower" in result) != ("upper" in result):
        wrong = "one limit of an interval without the other"
    expected = "one column 'name' (or 'study'), one 'mean' (or 'estimate', 'coef'), and one 'sd' "
    expected += "(or 'se', 'std. error', 'variance', or the limits '2.5 %' and '97.5 %')"
    StructureError.check((wrong, wrong, expected))
    return result, unused
