"""Doubts about a fusion: their kinds, and one sentence for each, with advice."""

import dataclasses
import enum
import warnings
from collections.abc import Iterable
from typing import Any

from posterity.errors import FusionWarning, IdentificationWarning

LEVEL = 1e-3
"""Chance that sites of one truth are doubted, for each kind of doubt: one in a thousand, so that
all kinds together stay well below one in a hundred."""


class Kind(enum.StrEnum):
    """Kinds of doubts."""

    CONTRADICTION = "contradiction"
    DIFFERENCE = "difference"
    NOTHING = "nothing"
    LESS = "less"
    WIDER = "wider"
    COPY = "copy"
    FEW = "few"
    STRANGER = "stranger"
    APART = "apart"
    ONE = "one"
    OTHER = "other"
    NUMBER = "number"
    MATCH = "match"
    SCALE = "scale"
    FAR = "far"
    UNJUDGED = "unjudged"

    @property
    def of_matching(self) -> bool:
        """True for doubts about which components are one, rather than about what sites say."""
        return self in (Kind.NUMBER, Kind.MATCH, Kind.SCALE, Kind.FAR, Kind.UNJUDGED)


DIFFER = "let coefficients differ between sites ({verb}(..., personal=True))"
SENTENCES = {
    Kind.CONTRADICTION: (
        "site {site!r} contradicts {whom}{place}: {about}{where} is {sigmas:.1f} of both "
        "their deviations away ({nats:.0f} nats)",
        "look at units, labels and records",
    ),
    Kind.DIFFERENCE: (
        "sites{place} differ in {about} {times:.2g} times as much as sampling alone would make "
        "them ({nats:.0f} nats)",
        "look at units and records",
    ),
    Kind.NOTHING: (
        "site {site!r}{more} says nothing: its posterior is {nats:.2g} nats from its prior",
        "check its records and its fit, or leave it out",
    ),
    Kind.LESS: (
        "site {site!r}{more} is less sure than its prior, and takes away what other sites know",
        "look whether prior and posterior of its ledger are exchanged, or the prior that was "
        "passed is another than its own",
    ),
    Kind.WIDER: (
        "the posterior of site {site!r}{more} is wider than its prior in some direction, which "
        "records cannot cause; it is ignored there",
        "save both with all digits, and pass the prior that it started from",
    ),
    Kind.COPY: (
        "sites {site!r} and {other!r} hold {what}{more}",
        "if they have the same records, these count twice: leave one out",
    ),
    Kind.FEW: (
        "{count} of {matched} components{place} are known from fewer records than their {size} "
        "dimensions: of so few a full covariance says nothing, and no number of components is sure",
        "fit diagonal covariances (NormalGamma), or take fewer columns",
    ),
    Kind.STRANGER: (
        "site {site!r} shares {count} of its {size} components{place}, others {share:.0%} of "
        "theirs",
        "look at its units, the order of its columns, and its records",
    ),
    Kind.APART: (
        "no component{place} was matched: sites share nothing, or differ by more than their "
        "posteriors allow",
        "look at their units, or say how many components there are",
    ),
    Kind.ONE: (
        "fused components {component} and {other}{more}{place} may be one: no site has both, and "
        "what is known of them is no contradiction",
        "look at the records of both, or compare with one component fewer",
    ),
    Kind.OTHER: (
        "what site {site!r} has as fused component {component}{more}{place} is {nats:.1f} nats "
        "likelier to be {other}: what is known from few records lies near whatever is known from "
        "few",
        "look at its records, or compare with a matching in which it is",
    ),
    Kind.NUMBER: (
        "the number of components{place} is uncertain: {other} are {by}",
        "look at the evidence for each number, or say how many there are",
    ),
    Kind.MATCH: (
        "the matching{place} is uncertain: less than {least:g} nats better than the next best are "
        "{count} of {matched} matches, component {component} of {site!r} the least ({margin})",
        "look at the margins of matches",
    ),
    Kind.SCALE: (
        "the matching{place} is uncertain: Gaussian posteriors of two sites have no scale by which "
        "to tell components that differ between the sites from components that they do not share",
        "say how many components there are, or fuse posteriors that count records",
    ),
    Kind.FAR: (
        "the matching{place} is uncertain: sites differ by far more than sampling, so that which "
        "components are one is told only by how much more alike they are than others",
        "look at units, or say how many components there are",
    ),
    Kind.UNJUDGED: (
        "the number of components{place} was not compared with others",
        "match by evidence",
    ),
}
"""What is found and what to do, by kind."""


@dataclasses.dataclass(frozen=True)
class Doubt:
    """A reason not to rely on a fusion.

    Attributes:
        kind: a :class:`Kind`.
        site: the site that it is about most, None if about all.
        component: the component that it is about, None if about none: a fused one, but for
            ``match`` the site's own.
        nats: how much speaks for it: the negative logarithm of the chance of what was seen, or, of
            kinds about the matching, how much worse the alternative is; 0 if it has no such number.
        finding: what was found, in words.
        advice: what to do, in words.
    """

    kind: Kind
    site: str | None
    component: int | None
    nats: float
    finding: str
    advice: str

    def __str__(self) -> str:
        return f"{self.finding}: {self.advice}"


def doubt(
    kind: Kind,
    nats: float = 0.0,
    site: str | None = None,
    component: int | None = None,
    also: str = "",
    **facts: Any,
) -> Doubt:
    """Return a doubt whose sentence has these facts, with the kind's advice, and what it may be
    ``also``.
    """
    finding, advice = SENTENCES[kind]
    known = {
        "more": "",
        "place": "",
        "whom": "the others",
        **facts,
        "nats": nats,
        "site": site,
        "component": component,
    }
    return Doubt(kind, site, component, nats, finding.format(**known), advice + also)


def warn_of(found: Iterable[Doubt]) -> None:
    """Warn, for the caller of the verb, of each doubt."""
    for own in found:
        kind = IdentificationWarning if own.kind.of_matching else FusionWarning
        warnings.warn(str(own), kind, stacklevel=3)


def more(count: int) -> str:
    """Return how many there are besides one, in words; empty if none."""
    return f" (and {count} more)" if count > 0 else ""
