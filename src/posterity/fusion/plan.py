"""What a fusion is to do: its arguments, checked once, and whether sites are matched in memory."""

import dataclasses
import enum
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from posterity.arguments import COUNT
from posterity.artifact import open_artifact
from posterity.errors import UsageError
from posterity.families import ExponentialFamily
from posterity.fusion.block_table import BlockTable
from posterity.fusion.divergences.discrepancy import Discrepancy
from posterity.fusion.divergences.names import divergence_of
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Matching
from posterity.fusion.networks.options import Options, is_network
from posterity.fusion.paths import blocks
from posterity.fusion.refusals import PRIOR, beyond_memory, check_together
from posterity.fusion.rows import MemoryBudget
from posterity.fusion.rules import Rule
from posterity.fusion.sites import Sites, SitesInMemory, SitesInTables, TableOf
from posterity.fusion.sources import BUDGET, SHARE, items, within
from posterity.ledger import Ledger

Choice = TypeVar("Choice", bound=enum.StrEnum)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The arguments of :func:`posterity.fuse`; ``labels`` is a matching that is given."""

    rule: Rule
    divergence: Divergence | Discrepancy
    matching: Matching
    labels: Mapping[str, Any] | None
    components: int | tuple[int, ...] | None
    prior: ExponentialFamily | None
    absorb: bool | None
    budget: int | None
    networks: Options | None

    @classmethod
    def of(
        cls,
        rule: Any = Rule.BARYCENTER,
        divergence: Any = Divergence.REVERSE,
        matching: Any = Matching.EVIDENCE,
        components: Any = None,
        prior: Any = None,
        absorb: Any = None,
        budget: Any = None,
        networks: Any = None,
    ) -> "Plan":
        """From what a user passes; errors as of :func:`posterity.fuse`."""
        COUNT.or_none().check(budget=budget)
        PRIOR.check(prior=prior)
        labels = matching if isinstance(matching, Mapping) else None
        how = _choice(Matching, "identity" if labels is not None else matching, "matching")
        side = divergence_of(divergence)
        by = _choice(Rule, rule, "rule")
        check_together(how, side, components, absorb)
        return cls(by, side, how, labels, components, prior, absorb, budget, networks)

    @property
    def bytes(self) -> int:
        """Bytes of memory to work in."""
        return BUDGET if self.budget is None else self.budget

    def tables(self) -> TableOf:
        """What makes the tables of all blocks; a quarter of the budget is for their rows."""
        room, side = MemoryBudget(self.bytes // 4), self.divergence
        keep_all = self.matching is Matching.IDENTITY

        def table(path: str, like: Any, names: Sequence[str], labelled: bool) -> BlockTable:
            assert isinstance(side, Divergence)  # others are matched in memory
            return BlockTable(path, like, names, side, room, keep_all or labelled)

        return table

    def in_memory_only(self, first: Any) -> str:
        """What is matched in memory, however large; nothing if sums of parameters suffice."""
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


def read_planned(posteriors: Any, plan: Plan) -> Sites:
    """All sites: in memory where an eighth of the budget suffices for them, else as tables."""
    come, fits = within(items(posteriors), plan.bytes // SHARE)
    if not fits:
        first = next(come)
        come, what = itertools.chain([first], come), plan.in_memory_only(first[1])
        if what and plan.budget is not None:
            raise beyond_memory(what, plan.budget)
        fits = bool(what)
    sites = SitesInMemory(plan.prior) if fits else SitesInTables(plan.prior, plan.tables())
    sites.read(come)
    return sites


def _choice(kind: type[Choice], value: Any, argument: str) -> Choice:
    try:
        return kind(value)
    except ValueError:
        raise UsageError(
            found=f"{argument}={value!r}",
            expected=f"one of {[member.value for member in kind]}",
            fix=f"Choose one of these for {argument}.",
        ) from None
