"""The ledger is a join semilattice, and forgetting is exact to the last bit."""

import itertools
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from posterity import artifact
from posterity.arrays import stacks
from posterity.arrays.tree_sums import TreeSum
from posterity.entries import Entry
from posterity.errors import LedgerError, ParameterError, PosterityError, StructureError
from posterity.families import DiagonalGaussian, Gamma, Gaussian, Plate, Product
from posterity.federation import federate, forget
from posterity.ledger import Ledger
from posterity.models import GammaPoisson
from posterity.receipt import verify
from tests.laws.table import identical

SITES = ["north", "south", "east", "west", "a/b"]
PRIOR = DiagonalGaussian.from_standard(mean=[0.0, 1.0], variance=[2.0, 3.0])
Rng = np.random.Generator


def factor_of(rng: Rng) -> DiagonalGaussian:
    """What a site contributes, with magnitudes so uneven that every order rounds differently."""
    scale = 10.0 ** rng.integers(-3, 6)
    return DiagonalGaussian(scale * rng.normal(size=2), scale * rng.uniform(0, 1, 2))


def states_of(rng: Rng, count: int) -> list[Ledger]:
    """States of several replicas of one federation: every version has one content."""
    contents: dict[tuple[str, int, int], DiagonalGaussian] = {}
    states = []
    for _ in range(count):
        entries = {}
        for site in SITES:
            if rng.random() < 0.3:
                continue
            epoch, sequence = (int(n) for n in rng.integers(0, 3, 2))
            gone = rng.random() < 0.3
            content = contents.setdefault((site, epoch, sequence), factor_of(rng))
            entries[site] = Entry(epoch, sequence, None if gone else content)
        states.append(Ledger(PRIOR, entries))
    return states


def same(left: Ledger, right: Ledger) -> bool:
    """Equal to the last bit, in everything that a file would hold."""
    return left == right and artifact.digest(left) == artifact.digest(right)


@given(seed=st.integers(0, 2**32 - 1))
def test_merging_is_a_join(seed: int) -> None:
    """Commutative, associative, idempotent, and monotone in every site's version."""
    a, b, c = states_of(np.random.default_rng(seed), 3)
    assert same(a | b, b | a)
    assert same((a | b) | c, a | (b | c))
    assert same(a | a, a)
    assert same((a | b) | b, a | b)
    for site in SITES:
        held = [state.entries[site].rank for state in (a, b) if site in state.entries]
        assert (a | b).entries.get(site, Entry(0, 0, None)).rank == max(
            held, default=Entry(0, 0, None).rank
        )


@settings(max_examples=settings().max_examples // 4)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_order_any_number_of_deliveries(seed: int) -> None:
    """Twenty random histories an example: replicas gossip until they agree, to the bit."""
    rng = np.random.default_rng(seed)
    for _ in range(20):
        messages = states_of(rng, 3)
        finals = []
        for _ in range(2):
            order = [*range(3), *rng.integers(0, 3, 2)]
            rng.shuffle(order)
            replica = messages[order[0]]
            for message in order[1:]:
                replica = replica | messages[message]
            finals.append(replica)
        assert finals[0] == finals[1]
        assert all(
            identical(finals[0].factor(site), finals[1].factor(site)) for site in finals[0].sites
        )
        assert identical(finals[0].posterior, finals[1].posterior)


class History(RuleBasedStateMachine):
    """Three replicas live through updates, departures, returns, gossip and replays.

    The model is a dictionary of the highest version of each site, kept beside each replica
    with none of the ledger's code.
    """

    @initialize(seed=st.integers(0, 2**32 - 1))
    def start(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.replicas = [Ledger(PRIOR) for _ in range(3)]
        self.models: list[dict[str, tuple[int, bool, int]]] = [{} for _ in range(3)]
        self.contents: dict[tuple[str, int, int], DiagonalGaussian] = {}
        self.sequence = dict.fromkeys(SITES, 0)
        self.epoch = dict.fromkeys(SITES, 0)
        self.past: list[tuple[Ledger, dict[str, tuple[int, bool, int]]]] = []

    def send(self, i: int, site: str, epoch: int, sequence: int) -> None:
        factor = self.contents[site, epoch, sequence]
        version, held = (epoch, False, sequence), self.models[i].get(site)
        if held is not None and version <= held:
            before = self.replicas[i]
            with pytest.raises(LedgerError, match="version above"):
                before.update(site, factor, epoch=epoch, sequence=sequence)
            return
        self.replicas[i] = self.replicas[i].update(site, factor, epoch=epoch, sequence=sequence)
        self.models[i][site] = version

    @rule(i=st.integers(0, 2), site=st.sampled_from(SITES))
    def update(self, i: int, site: str) -> None:
        self.sequence[site] += 1
        version = (self.epoch[site], self.sequence[site])
        self.contents[site, *version] = factor_of(self.rng)
        self.send(i, site, *version)

    @rule(i=st.integers(0, 2), site=st.sampled_from(SITES))
    def rejoin(self, i: int, site: str) -> None:
        self.epoch[site] += 1
        self.sequence[site] = -1
        self.update(i, site)

    @precondition(lambda self: self.contents)
    @rule(i=st.integers(0, 2), data=st.data())
    def replay_a_message(self, i: int, data: st.DataObject) -> None:
        self.send(i, *data.draw(st.sampled_from(sorted(self.contents))))

    @rule(i=st.integers(0, 2), site=st.sampled_from(SITES))
    def forget(self, i: int, site: str) -> None:
        held = self.models[i].get(site)
        if held is None or held[1]:
            with pytest.raises(LedgerError, match="no factor"):
                self.replicas[i].forget(site)
            return
        self.replicas[i] = self.replicas[i].forget(site)
        self.models[i][site] = (held[0], True, held[2])

    @rule(i=st.integers(0, 2), j=st.integers(0, 2))
    def gossip(self, i: int, j: int) -> None:
        self.receive(i, self.replicas[j], self.models[j])

    @rule(i=st.integers(0, 2))
    def remember(self, i: int) -> None:
        self.past.append((self.replicas[i], dict(self.models[i])))

    @precondition(lambda self: self.past)
    @rule(i=st.integers(0, 2), data=st.data())
    def replay_a_ledger(self, i: int, data: st.DataObject) -> None:
        past = data.draw(st.integers(0, len(self.past) - 1))
        self.receive(i, *self.past[past])

    def receive(self, i: int, ledger: Ledger, model: dict[str, tuple[int, bool, int]]) -> None:
        self.replicas[i] = self.replicas[i] | ledger
        for site, version in model.items():
            self.models[i][site] = max(version, self.models[i].get(site, version))

    @invariant()
    def replicas_are_what_their_versions_say(self) -> None:
        for ledger, model in zip(
            getattr(self, "replicas", []), getattr(self, "models", []), strict=True
        ):
            assert {s: e.rank for s, e in ledger.entries.items()} == model
            assert list(ledger.entries) == sorted(model)
            # As if the forgotten had never been: built anew from those who stayed.
            stayed = {s: v for s, v in model.items() if not v[1]}
            anew = Ledger(PRIOR)
            for site, (epoch, _, sequence) in sorted(stayed.items(), reverse=True):
                content = self.contents[site, epoch, sequence]
                anew = anew.update(site, content, epoch=epoch, sequence=sequence)
            assert identical(ledger.posterior, anew.posterior)
            assert same(ledger.compact(), anew)


History.TestCase.settings = settings(
    max_examples=settings().max_examples // 3, stateful_step_count=25
)
TestHistory = History.TestCase


@settings(max_examples=settings().max_examples // 4)
@given(seed=st.integers(0, 2**32 - 1))
def test_forgetting_equals_never_having_seen(tmp_path_factory: Any, seed: int) -> None:
    """Posterior, cavities, compacted ledger and its saved bytes."""
    folder: Path = tmp_path_factory.mktemp("ledgers")
    rng = np.random.default_rng(seed)
    factors = {site: factor_of(rng) for site in SITES}
    leavers = set(rng.choice(SITES, rng.integers(1, 5), replace=False))
    full, never = Ledger(PRIOR), Ledger(PRIOR)
    for site in rng.permutation(SITES):
        full = full.update(str(site), factors[str(site)])
        if site not in leavers:
            never = never.update(str(site), factors[str(site)])
    left = full.forget(*leavers)
    assert left.forgotten == tuple(sorted(leavers))
    assert left.sites == never.sites
    assert identical(left.posterior, never.posterior)
    assert all(identical(left.cavity(s), never.cavity(s)) for s in left.sites)
    assert left != never
    assert left.compact() == never
    artifact.save(left.compact(), folder / "left")
    artifact.save(never, folder / "never")
    assert (folder / "left").read_bytes() == (folder / "never").read_bytes()


@pytest.fixture
def ledger() -> Ledger:
    rng = np.random.default_rng(0)
    held = Ledger(PRIOR)
    for site in ("north", "south"):
        held = held.update(site, factor_of(rng))
    return held


def test_a_forgotten_site_does_not_come_back_by_replay(ledger: Ledger) -> None:
    left = ledger.forget("south")
    for merged in (left | ledger, ledger | left, (left | ledger) | ledger):
        assert merged == left
    later = ledger.update("south", ledger.factor("north"))  # overtook the deletion
    assert (left | later).sites == ("north",)
    assert identical((later | left).posterior, left.posterior)
    with pytest.raises(LedgerError, match="epoch=1"):
        left.update("south", ledger.factor("south"))
    with pytest.raises(LedgerError, match="forgotten"):
        left.update("south", ledger.factor("south"), sequence=99)


def test_a_site_rejoins_in_a_higher_epoch(ledger: Ledger) -> None:
    left = ledger.forget("south")
    back = left.update("south", ledger.factor("south"), epoch=1)
    assert back.sites == ("north", "south")
    assert back.entries["south"].rank == (1, False, 0)
    assert identical(back.posterior, ledger.posterior)
    assert (back | left) == (left | back) == (ledger | back) == back
    again = back.forget("south")
    assert (again | back).forgotten == ("south",)


def test_versions_count_up(ledger: Ledger) -> None:
    assert ledger.entries["north"].rank == (0, False, 0)
    twice = ledger.update("north", ledger.factor("south"))
    assert twice.entries["north"].rank == (0, False, 1)
    assert (twice | ledger) == twice
    for sequence in (0, 1):
        with pytest.raises(LedgerError, match="sequence 1"):
            twice.update("north", ledger.factor("south"), sequence=sequence)
    with pytest.raises(LedgerError, match=r"epoch -1.*whole numbers"):
        twice.update("north", ledger.factor("south"), epoch=-1, sequence=7)


def test_one_version_with_two_contents_raises(ledger: Ledger) -> None:
    forged = Ledger(PRIOR).update("south", ledger.factor("north"))
    for left, right in [(ledger, forged), (forged, ledger)]:
        with pytest.raises(LedgerError, match="two different factors of site 'south'"):
            left | right


@pytest.mark.parametrize("verb", ["forget", "factor", "cavity"])
def test_unknown_sites_raise(ledger: Ledger, verb: str) -> None:
    with pytest.raises(LedgerError, match=r"'west'.*\['north', 'south'\]"):
        getattr(ledger, verb)("west")
    with pytest.raises(LedgerError, match="it was forgotten"):
        getattr(ledger.forget("north"), verb)("north")


def test_forgetting_is_all_or_nothing(ledger: Ledger) -> None:
    before = artifact.digest(ledger)
    with pytest.raises(LedgerError):
        ledger.forget("north", "west")
    assert artifact.digest(ledger) == before
    assert ledger.forget() == ledger


def test_differing_priors_raise(ledger: Ledger) -> None:
    other = Ledger(2.0 * PRIOR)
    with pytest.raises(LedgerError, match="different priors"):
        ledger | other
    with pytest.raises(StructureError, match="prior of the other ledger"):
        ledger | Ledger(DiagonalGaussian.from_standard([0.0], [1.0]))
    with pytest.raises(StructureError):
        ledger | Ledger(Gamma.from_standard(1.0, 1.0))


WRONG = {
    "another family": Gamma(1.0, 1.0),
    "another dimension": DiagonalGaussian(np.zeros(3), np.ones(3)),
    "a batch": DiagonalGaussian(np.zeros((1, 2)), np.ones((1, 2))),
    "a product": Product(a=PRIOR),
}


@pytest.mark.parametrize("factor", WRONG.values(), ids=WRONG)
def test_a_factor_of_another_kind_raises(ledger: Ledger, factor: Any) -> None:
    with pytest.raises(StructureError, match="factor of site 'east'"):
        ledger.update("east", factor)
    with pytest.raises(StructureError, match="site 'east'"):
        Ledger.of_site("east", prior=PRIOR, posterior=factor)
    with pytest.raises(StructureError, match="factor of site 'east'"):
        Ledger(PRIOR, {"east": Entry(0, 0, factor)})


def test_product_blocks_must_agree() -> None:
    held = Ledger(Product(a=PRIOR, b=Gamma.from_standard(1.0, 1.0)))
    with pytest.raises(StructureError):
        held.update("east", Product(a=PRIOR, c=Gamma.from_standard(1.0, 1.0)))
    with pytest.raises(StructureError):
        held.update("east", Product(a=PRIOR))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_factor_that_is_not_finite_raises(ledger: Ledger, value: float) -> None:
    spoilt = DiagonalGaussian(np.array([0.0, value]), np.ones(2))
    with pytest.raises(
        ParameterError, match=r"precision_mean of the factor of site 'east', member \[1\]"
    ):
        ledger.update("east", spoilt)
    with pytest.raises(ParameterError, match="site 'east'"):
        Ledger.of_site("east", prior=PRIOR, posterior=spoilt)
    with pytest.raises(ParameterError, match="the prior"):
        Ledger(spoilt)


def test_improper_priors_and_posteriors_raise(ledger: Ledger) -> None:
    with pytest.raises(ParameterError, match="the prior"):
        Ledger(-1.0 * PRIOR)
    with pytest.raises(ParameterError, match="posterior of site 'east'"):
        Ledger.of_site("east", prior=PRIOR, posterior=-1.0 * PRIOR)
    thief = ledger.update("thief", -2.0 * (ledger.posterior - PRIOR) - PRIOR)
    with pytest.raises(ParameterError, match="improper DiagonalGaussian in the posterior"):
        _ = thief.posterior
    assert identical(thief.forget("thief").posterior, ledger.posterior)


def test_factors_may_be_improper(ledger: Ledger) -> None:
    """A cavity or a factor need not be a distribution; only the sum must be."""
    held = ledger.update("east", -0.5 * PRIOR)
    assert not held.factor("east").is_proper()
    assert np.all(held.posterior.is_proper())


def test_all_is_numpy_float64_at_rest() -> None:
    prior = Gamma(jnp.float32(1.0), jnp.float32(2.0))
    held = Ledger(prior).update("north", Gamma(jnp.float32(3.0), jnp.float32(4.0)))
    for member in (held.prior, held.factor("north"), held.posterior, held.cavity("north")):
        for leaf in (member.shape_minus_one, member.rate):
            assert isinstance(leaf, np.ndarray | np.generic)
            assert leaf.dtype == np.float64
    assert (held.posterior.shape_minus_one, held.posterior.rate) == (4.0, 6.0)


def test_a_ledger_does_not_change_when_what_it_was_given_does() -> None:
    rate, mean = np.array(2.0), np.zeros(2)
    prior, entries = Gamma(np.array(1.0), rate), {}
    held = Ledger(prior, entries).update("north", Gamma(np.array(1.0), rate))
    before = artifact.digest(held)
    rate += 1
    entries["south"] = Entry(0, 0, prior)
    assert artifact.digest(held) == before
    with pytest.raises(AttributeError):
        held.prior = prior  # type: ignore[misc]
    factor = DiagonalGaussian(mean, np.ones(2))
    other = Ledger(PRIOR).update("north", factor)
    before = artifact.digest(other)
    mean += 1
    assert artifact.digest(other) == before


def test_no_verb_changes_the_ledger_it_is_called_on(ledger: Ledger) -> None:
    before = artifact.digest(ledger)
    ledger.update("north", ledger.factor("south"))
    ledger.forget("north")
    ledger.compact()
    _ = ledger | Ledger(PRIOR).update("east", ledger.factor("north"))
    _ = ledger.posterior, ledger.cavity("north")
    assert artifact.digest(ledger) == before


def test_the_sign_of_zero_does_not_tell_ledgers_apart() -> None:
    """A prior centred at the origin may come out as -0 at one site and as 0 at another."""
    plus, minus = (DiagonalGaussian(np.full(2, zero), np.ones(2)) for zero in (0.0, -0.0))
    left, right = Ledger(plus).update("north", minus), Ledger(minus).update("north", plus)
    assert same(left | right, right | left)
    assert same(left, right)


def test_a_ledger_is_equal_to_ledgers_only(ledger: Ledger) -> None:
    assert ledger != PRIOR
    assert ledger != Ledger(PRIOR)
    assert ledger != Ledger(2.0 * PRIOR, ledger.entries)
    assert ledger != Ledger(PRIOR, {**ledger.entries, "north": Entry(0, 0, PRIOR)})
    assert ledger == Ledger(PRIOR, dict(reversed(ledger.entries.items())))
    with pytest.raises(TypeError):
        hash(ledger)


def test_an_empty_ledger_is_its_prior() -> None:
    held = Ledger(PRIOR)
    assert identical(held.posterior, PRIOR)
    assert held.sites == held.forgotten == ()
    assert held | held == held.compact() == held


def test_the_sum_runs_in_one_order_whatever_the_order_of_arrival() -> None:
    """Floating-point addition does not associate: the law is not met by accident."""
    rng = np.random.default_rng(0)
    factors = {site: factor_of(rng) for site in SITES}
    posteriors, naive = [], set()
    for order in itertools.permutations(SITES):
        held, total = Ledger(PRIOR), PRIOR
        for site in order:
            held = held.update(site, factors[site])
            total = total + factors[site]
        posteriors.append(held.posterior)
        naive.add(total.precision_mean.tobytes())
    assert all(identical(p, posteriors[0]) for p in posteriors)
    assert len(naive) > 1


def test_many_sites_at_once_are_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever arrays they came in, and however many are looked at in one go."""
    rng = np.random.default_rng(1)
    made: dict[str, DiagonalGaussian] = {f"site {n:02d}": factor_of(rng) for n in range(40)}
    odd = made["site 07"]
    made["site 07"] = DiagonalGaussian(jnp.float32(odd.mean), jnp.float32(odd.precision))
    made["site 20"] = DiagonalGaussian(np.array([0.0, -0.0]), np.array([-0.0, 1.0]))
    one_by_one, total = Ledger(PRIOR), TreeSum.of([PRIOR])
    for site, factor in made.items():
        one_by_one = one_by_one.update(site, factor)
        total = total.changed(add=[one_by_one.factor(site)])
    for chunk in (1, 2, 6, 31, stacks.CHUNK):
        monkeypatch.setattr(stacks, "CHUNK", chunk)
        held = Ledger(PRIOR).extend(dict(reversed(made.items())))
        assert same(held, one_by_one)
        assert same(held, Ledger(PRIOR, one_by_one.entries))
        assert identical(held.posterior, total.value)
        for site in held.sites:
            for leaf in held.factor(site).children():
                assert leaf.dtype == np.float64 and not leaf.flags.writeable
                assert not np.signbit(leaf[leaf == 0]).any()
        with pytest.raises(ParameterError, match="factor of site 'site 33'"):
            spoilt = DiagonalGaussian(np.zeros(2), np.array([1.0, np.nan]))
            Ledger(PRIOR).extend({**made, "site 33": spoilt})
        with pytest.raises(StructureError, match="factor of site 'site 33'"):
            Ledger(PRIOR).extend({**made, "site 33": DiagonalGaussian(np.zeros(3), np.ones(3))})


@pytest.mark.parametrize("independent", ["north", ["south"], 0, None])
def test_sites_that_are_not_those_of_the_factors_are_not_independent(independent: Any) -> None:
    factors = {"north": Gamma(3.0, 2.0), "or": Gamma(1.0, 1.0)}
    start = Ledger(Gamma.from_standard(1.0, 1.0))
    with pytest.raises(LedgerError, match="independent="):
        start.extend(factors, independent=independent)
    entries = start.extend(factors, independent=["or"]).entries
    assert [entry.independent for entry in entries.values()] == [False, True]


VERSIONS: dict[str, tuple[Any, Any, Any]] = {
    "a fraction": (0.5, 0, False),
    "a float": (1.0, 0, False),
    "a flag": (0, True, False),
    "text": ("1", 0, False),
    "a negative epoch": (-1, 0, False),
    "a negative sequence": (0, -1, False),
    "more than 63 bits": (0, 2**63, False),
    "a word for a flag": (0, 0, "no"),
    "a number for a flag": (0, 0, 0),
    "nothing for a flag": (0, 0, None),
}


@pytest.mark.parametrize("case", VERSIONS)
def test_versions_are_whole_numbers_and_flags_are_flags(case: str) -> None:
    epoch, sequence, independent = VERSIONS[case]
    entry = Entry._make((epoch, sequence, PRIOR, independent))
    with pytest.raises(LedgerError, match="site 'north'; expected"):
        Ledger(PRIOR, {"north": entry})
    with pytest.raises(LedgerError, match="site 'north'; expected"):
        Ledger(PRIOR, {"north": entry._replace(factor=None)})


def test_numbers_of_numpy_become_python_s() -> None:
    entry = Entry._make((np.int32(2), np.uint8(3), PRIOR, np.bool_(True)))
    assert Ledger(PRIOR, {"north": entry}).entries["north"][:2] == (2, 3)
    kinds = [type(part) for part in Ledger(PRIOR, {"north": entry}).entries["north"]]
    assert kinds == [int, int, DiagonalGaussian, bool]


def test_plates_and_full_gaussians_are_kept_as_well() -> None:
    components = Gaussian.from_standard(np.zeros((3, 2)), np.stack([np.eye(2)] * 3))
    held = Ledger(Plate(components)).update("north", Plate(2.0 * components))
    np.testing.assert_allclose(held.posterior.members.precision, 3 * components.precision)
    with pytest.raises(ParameterError, match=r"improper Plate \(Gaussian member \[1\]\)"):
        _ = held.update("east", Plate(np.array([0.0, -9.0, 0.0]) * components)).posterior


def test_every_error_says_what_to_do(ledger: Ledger) -> None:
    with pytest.raises(PosterityError) as caught:
        ledger.forget("west")
    error = caught.value
    assert error.found and error.expected
    assert error.exit_code == LedgerError.exit_code == 6
    assert str(error).startswith("found no factor of site 'west'; expected ")


LOOK_ALIKE = [
    *(" north", "north ", "n\u043erth", "no\u200brth", "\uff4eorth", "n\u03bfrth"),
    *("North", "NORTH", "N\u041eRTH", "\u039dorth"),
]


@pytest.mark.parametrize("name", LOOK_ALIKE)
def test_names_that_look_alike_are_refused(name: str) -> None:
    prior = Gamma.from_standard(1.0, 1.0)
    one, other = (Ledger(prior).update(site, Gamma(3.0, 2.0)) for site in ("north", name))
    entries = {**one.entries, **other.entries}
    for make in (
        lambda: one.update(name, Gamma(3.0, 2.0)),
        lambda: one.extend({name: Gamma(3.0, 2.0)}),
        lambda: one.merge(other),
        lambda: Ledger(prior, entries),
        lambda: one.forget("north").update(name, Gamma(3.0, 2.0)),
        lambda: federate({"north": [1], name: [0]}, GammaPoisson(), prior),
    ):
        with pytest.raises(LedgerError, match="look alike"):
            make()


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("\u0412\u043e\u0441\u0442\u043e\u043a", "\u0432\u043e\u0441\u0442\u043e\u043a"),
        ("\u039d\u03cc\u03c4\u03bf\u03c2", "\u03bd\u03cc\u03c4\u03bf\u03c2"),
        ("S\u00d8R", "s\u00f8r"),
    ],
)
def test_names_of_other_letters_that_differ_in_case_alone_are_refused(name: str, other: str):
    ledger = Ledger(Gamma.from_standard(1.0, 1.0)).update(name, Gamma(3.0, 2.0))
    with pytest.raises(LedgerError, match="look alike"):
        ledger.update(other, Gamma(3.0, 2.0))


@pytest.mark.parametrize("name", ["", "  ", "\u200b\ufeff", "\ud83d"])
def test_names_that_cannot_be_seen_or_written_are_refused(name: str) -> None:
    ledger = Ledger(Gamma.from_standard(1.0, 1.0))
    with pytest.raises(LedgerError, match="can be seen"):
        ledger.update(name, Gamma(3.0, 2.0))


def test_names_that_differ_are_not_refused() -> None:
    names = [
        "north",
        "south",
        "site 1",
        "site 11",
        "S\u00f8r",
        "\u0441\u0435\u0432\u0435\u0440",
        "\u6771",
        "Stra\u00dfe",
        "Strasse",
        "a",
        "b",
        "1",
        "l",
    ]
    ledger = Ledger(Gamma.from_standard(1.0, 1.0))
    assert len(ledger.extend(dict.fromkeys(names, Gamma(3.0, 2.0))).sites) == len(names)


def test_a_receipt_is_not_borne_out_where_a_look_alike_stays() -> None:
    factor = Gamma(3.0, 2.0)
    ledger = Ledger(Gamma.from_standard(1.0, 1.0)).update("north", factor, independent=True)
    done = forget(ledger, "north")
    for name in LOOK_ALIKE:
        after = done.ledger.compact().update(name, factor, independent=True)
        broken = verify(done.receipt, ledger, after).broken
        assert any("looks like" in claim for claim in broken)
