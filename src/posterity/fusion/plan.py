"""The arguments of a fusion, checked once."""

import os
from collections.abc import Mapping
from typing import Any

from posterity.arguments import COUNT, Constraint, one_of
from posterity.artifact import open_artifact
from posterity.errors import StructureError, UsageError
from posterity.families import ExponentialFamily
from posterity.fusion.divergences import Discrepancy, divergence_of
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Matching
from posterity.fusion.networks.options import Options, is_network
from posterity.fusion.paths import blocks
from posterity.fusion.rules import Rule
from posterity.fusion.sources import BUDGET
from posterity.ledger import Ledger

PRIOR = Constraint(
    "an exponential family; that of a ledger is ledger.prior, that in a file posterity.load(path)",
    lambda value: value is None or isinstance(value, ExponentialFamily),
    StructureError,
)


class Plan:
    """The arguments of :func:`posterity.fuse`; ``labels`` is a matching that the user has, and
    ``rule`` None if sites are to decide.

    Raises:
        UsageError, StructureError: as :func:`posterity.fuse`.
    """

    def __init__(
        self,
        rule: Rule | str | None = None,
        divergence: Divergence | Discrepancy | str = Divergence.REVERSE,
        matching: Matching | str | Mapping[str, Any] = Matching.EVIDENCE,
        components: int | tuple[int, ...] | None = None,
        prior: Any = None,
        absorb: bool | None = None,
        budget: int | None = None,
        networks: Options | None = None,
    ):
        COUNT.or_none().check(budget=budget)
        PRIOR.check(prior=prior)
        self.labels = matching if isinstance(matching, Mapping) else None
        name = Matching.IDENTITY if isinstance(matching, Mapping) else matching
        one_of(*map(str, Matching)).check(matching=name)
        one_of(*map(str, Rule)).or_none().check(rule=rule)
        self.rule, self.matching, self.divergence = (
            None if rule is None else Rule(rule),
            Matching(name),
            divergence_of(divergence),
        )
        self.components, self.prior, self.absorb = components, prior, absorb
        self.budget, self.networks = budget, networks
        searched = self.matching is Matching.EVIDENCE and components is None
        if absorb and not searched:
            raise UsageError(
                found="absorb=True with a matching that does not find the number of components",
                expected="matching='evidence' and components=None",
                fix="Leave absorb out.",
            )
        if isinstance(self.divergence, Discrepancy) and self.matching is Matching.KL_FUSION:
            raise UsageError(
                found=f"divergence={self.divergence.value!r} with matching='kl-fusion'",
                expected="a direction of KL, which the paper's problem (9) is about",
                fix="Leave matching out, or choose divergence='reverse' or 'forward'.",
            )

    @property
    def bytes(self) -> int:
        """Bytes of memory to work in."""
        return BUDGET if self.budget is None else self.budget

    def in_memory_only(self, first: Any) -> str:
        """The name of a choice that is made in memory, however large; empty if sums suffice."""
        if isinstance(self.divergence, Discrepancy):
            return f"divergence={self.divergence.value!r}"
        if self.matching is Matching.KL_FUSION:
            return "matching='kl-fusion'"
        value = open_artifact(first)[0] if isinstance(first, str | os.PathLike) else first
        value = getattr(value, "value", getattr(value, "posterior", value))
        law = value.prior if isinstance(value, Ledger) else value
        tied = isinstance(law, ExponentialFamily) and any(
            block.is_tied for block in blocks(law).values()
        )
        return "posteriors whose blocks share labels" * tied or "networks" * is_network(law)
