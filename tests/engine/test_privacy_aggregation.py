"""Secure aggregation: what comes out is the sum to the last bit, and nothing else does."""

import itertools
import shutil

import numpy as np
import pytest
from engine.keys import KEYS, PUBLIC
from hypothesis import given, settings
from hypothesis import strategies as st

from posterity.engine.privacy import aggregation
from posterity.engine.privacy.aggregation import GRID, MODULUS, Participant, Plan, total
from posterity.engine.refusal import Refusal
from posterity.engine.signing import Envelope, PrivateKey, Statement
from posterity.errors import LedgerError, ParameterError, StructureError, UsageError
from posterity.families import Beta, Dirichlet, Gaussian, NormalWishart, Plate
from posterity.ledger import Ledger

PRIOR = Dirichlet.from_standard(np.array([1.7, 2.3, 1.1]))
SITES = tuple(PUBLIC)


def plan(**options) -> Plan:
    return Plan(**({"name": "autumn", "prior": PRIOR, "members": PUBLIC, "least": 3} | options))


def factors(prior=PRIOR, seed=0, scale=1.0, sites=SITES):
    rng = np.random.default_rng(seed)
    return {site: prior * (scale * rng.uniform(0.1, 1.0)) for site in sites}


class Round:
    """All sites' parts in one aggregation, each in a folder, and all letters so far."""

    def __init__(self, folder, agreed=None, sites=SITES, keys=KEYS):
        self.plan, self.letters = agreed or plan(), []
        folder.mkdir(exist_ok=True)
        make = lambda site: Participant(self.plan, site, keys[site], folder / site)
        self.sites = {site: make(site) for site in sites}
        self.letters += [site.keys() for site in self.sites.values()]

    def mask(self, factors, sites=None):
        made = {s: self.sites[s].masked(factors[s], self.letters) for s in sites or self.sites}
        self.letters += made.values()
        return made

    def close(self, sites=None):
        there = [self.sites[site] for site in sites or self.sites]
        self.letters += [site.survivors(self.letters) for site in there]
        self.letters += [site.opening(self.letters) for site in there]
        return total(self.plan, self.letters)


def words(letter) -> np.ndarray:
    said = Statement.from_bytes(Envelope.from_bytes(letter).payload).predicate
    return aggregation._words(aggregation._raw(said["words"]))


def on_grid(factor) -> list[int]:
    return list(aggregation._integers(plan(), factor))


def ledger(prior, factors):
    return Ledger(prior).extend(factors)


@pytest.mark.parametrize(
    "prior",
    [
        PRIOR,
        Beta.from_standard(2.0, 3.0),
        Gaussian.from_standard(np.zeros(3), np.eye(3)),
        NormalWishart.from_standard(np.zeros(2), 1.0, np.eye(2), 4.0),
        Plate(Gaussian.from_standard(np.zeros((2, 2)), np.broadcast_to(np.eye(2), (2, 2, 2)))),
    ],
    ids=lambda prior: type(prior).__name__,
)
def test_the_sum_is_that_of_a_ledger_to_the_last_bit(tmp_path, prior):
    mine = factors(prior, scale=1e4)  # above 2^-12: on the grid
    run = Round(tmp_path / "run", plan(prior=prior))
    run.mask(mine)
    found = run.close()
    assert found.survivors == SITES and found.dropped == ()
    assert found.posterior == ledger(prior, mine).posterior
    rounded = sum(mine.values(), prior.zero()).natural_parameters
    np.testing.assert_allclose(found.factor.natural_parameters, rounded, rtol=1e-14)


@settings(max_examples=6, deadline=None)
@given(
    st.lists(
        st.lists(st.floats(-(2.0**40), 2.0**40), min_size=3, max_size=3), min_size=4, max_size=4
    )
)
def test_the_integers_are_the_exact_sum_of_those_of_the_sites(tmp_path_factory, rows):
    mine = {s: Dirichlet(np.array(row)) for s, row in zip(SITES, rows, strict=True)}
    run = Round(tmp_path_factory.mktemp("run"))
    run.mask(mine)
    found = run.close()
    columns = zip(*(on_grid(factor) for factor in mine.values()), strict=True)
    assert list(found.integers) == [sum(column) for column in columns]
    exact = np.abs(np.array(rows).sum(0))
    error = np.abs(found.factor.natural_parameters - np.array(rows).sum(0))
    assert (error <= 4 / GRID + 4 * np.finfo(float).eps * np.maximum(exact, 2.0**40)).all()


def test_those_who_dropped_out_are_named_and_left_out(tmp_path):
    mine = factors(scale=100.0)
    run = Round(tmp_path / "run")
    run.mask(mine, "abd")
    found = run.close("abd")
    assert (found.survivors, found.dropped) == (("a", "b", "d"), ("c",))
    assert found.posterior == ledger(PRIOR, {s: mine[s] for s in "abd"}).total


def test_the_late_factor_of_who_was_left_out_stays_masked(tmp_path):
    """With one mask alone it would be open: the survivors told all masks shared with its site."""
    mine = factors(scale=100.0)
    run = Round(tmp_path / "run", plan(members=PUBLIC))
    run.mask(mine, "abd")
    late = run.sites["c"].masked(mine["c"], run.letters)
    run.close("abd")
    openings = aggregation._read(run.plan, run.letters)["opening"]
    numbers = words(late)
    for peer in "abd":
        seed = aggregation._raw(openings[peer]["dropped"]["c"])
        numbers = numbers - aggregation._sign("c", peer) * aggregation._mask(seed, 3)
    own = aggregation._mask(run.sites["c"]._random("own"), 3)
    assert [int(n % MODULUS) for n in numbers - own] == [n % MODULUS for n in on_grid(mine["c"])]
    assert all(abs(int(n % MODULUS) - MODULUS // 2) < MODULUS // 2 - 2**100 for n in numbers)
    with pytest.raises(Refusal, match="another list of survivors from 'a'"):
        run.letters.append(run.sites["c"].survivors([*run.letters, late]))
        run.sites["c"].opening(run.letters)


@pytest.mark.parametrize(
    "colluding", [p for n in (0, 1, 2) for p in itertools.combinations("abcd", n)]
)
def test_colluding_sites_see_the_sum_of_the_others_alone(tmp_path, colluding):
    """Given what colluders know, other inputs of the same sum fit the transcript: by other masks.

    What they know of the others' masked factors is all letters less all masks that they share, and
    less own masks, which are opened. What is left of two honest sites is each factor plus masks
    that cancel in the sum alone: for any inputs of the same sum there are such masks.
    """
    mine, run = factors(scale=100.0), Round(tmp_path / "run")
    made = run.mask(mine)
    run.close()
    keys = run.sites["a"]._sent("masked")["roster"]
    honest = [site for site in SITES if site not in colluding]
    left = {}
    for site in honest:
        numbers = words(made[site]) - aggregation._mask(run.sites[site]._random("own"), 3)
        for peer in colluding:
            seed = run.sites[peer]._seed(site, keys)
            numbers = numbers - aggregation._sign(site, peer) * aggregation._mask(seed, 3)
        left[site] = numbers
        assert [int(n) % MODULUS for n in numbers] != [n % MODULUS for n in on_grid(mine[site])]
    whole = [int(n) % MODULUS for n in sum(left.values())]
    assert whole == [
        sum(c) % MODULUS for c in zip(*map(on_grid, map(mine.get, honest)), strict=True)
    ]
    swapped = dict(zip(honest, [*honest[1:], honest[0]], strict=True))
    masks = {s: left[s] - np.array(on_grid(mine[swapped[s]]), object) for s in honest}
    assert all(int(n) % MODULUS == 0 for n in sum(masks.values()))


def test_a_site_answers_the_same_after_a_crash_and_never_anything_else(tmp_path):
    mine, run = factors(), Round(tmp_path / "run")
    made = run.mask(mine)
    again = Participant(run.plan, "a", KEYS["a"], tmp_path / "run" / "a")
    assert again.keys() == run.letters[0] and again.masked(mine["a"], run.letters) == made["a"]
    with pytest.raises(Refusal, match="another letter 'masked'") as error:
        again.masked(mine["b"], run.letters)
    assert error.value.reason == "replay"
    again.survivors([made[site] for site in "bcd"])
    with pytest.raises(Refusal, match="another letter 'survivors'"):
        again.survivors([made[site] for site in "bc"])
    with pytest.raises(Refusal, match="another letter 'keys'"):
        Participant(plan(most=3.0), "a", KEYS["a"], tmp_path / "run" / "a")


def test_a_folder_from_a_backup_does_not_mask_two_factors_alike(tmp_path):
    mine, run = factors(scale=100.0), Round(tmp_path / "run")
    shutil.copytree(tmp_path / "run" / "a", tmp_path / "backup")
    first = run.sites["a"].masked(mine["a"], run.letters)
    second = Participant(run.plan, "a", KEYS["a"], tmp_path / "backup").masked(
        mine["b"], run.letters
    )
    told = [(int(n)) % MODULUS for n in words(first) - words(second)]
    true = zip(on_grid(mine["a"]), on_grid(mine["b"]), strict=True)
    assert told != [(a - b) % MODULUS for a, b in true]


def test_folders_are_for_their_owner_alone(tmp_path):
    run = Round(tmp_path / "run")
    assert (tmp_path / "run" / "a").stat().st_mode & 0o777 == 0o700
    assert run.sites["a"].folder.joinpath("secret").read_bytes() not in b"".join(run.letters)


def test_letters_of_another_aggregation_are_refused(tmp_path):
    mine, old, new = factors(), Round(tmp_path / "old"), Round(tmp_path / "new")
    made = old.mask(mine)
    with pytest.raises(Refusal, match="two letters 'keys' of 'a'"):
        new.sites["b"].masked(mine["b"], [old.letters[0], *new.letters])
    with pytest.raises(Refusal, match="an old key of 'a'"):
        new.sites["a"].masked(mine["a"], old.letters[:4])
    new.mask(mine, "abc")
    with pytest.raises(Refusal, match="other keys at 'd'"):
        new.sites["a"].survivors([*new.letters, made["d"]])
    other = Round(tmp_path / "other", plan(most=2.0))
    with pytest.raises(Refusal, match="of this plan"):
        new.sites["a"].survivors([*new.letters, other.letters[1]])


def test_letters_that_a_member_did_not_sign_are_refused(tmp_path):
    run = Round(tmp_path / "run")
    forged = Envelope.from_bytes(run.letters[1])
    stranger = PrivateKey(bytes([9]) * 32)
    with pytest.raises(Refusal) as error:
        alone = Envelope(forged.payload).signed(stranger).to_bytes()
        run.sites["a"].masked(factors()["a"], [*run.letters[2:], alone])
    assert error.value.reason == "signature"
    with pytest.raises(Refusal, match="a letter of 'b'"):  # of another member
        alone = Envelope(forged.payload).signed(KEYS["c"]).to_bytes()
        run.sites["a"].masked(factors()["a"], [*run.letters[2:], alone])
    twice = forged.signed(KEYS["c"]).to_bytes()  # one more signature makes no second letter
    run.sites["a"].masked(factors()["a"], [*run.letters, twice])
    with pytest.raises(Refusal, match="not that of 'a'"):
        Participant(run.plan, "a", KEYS["b"], tmp_path / "x")


@pytest.mark.parametrize(
    "change",
    [
        {"round": "sum"},
        {"key": "AAAA"},
        {"key": None},
        {"more": 1},
        {"site": ["b"]},
        {"site": None},
        {"round": ["keys"]},
    ],
    ids=str,
)
def test_a_letter_that_is_none_is_refused(tmp_path, change):
    run = Round(tmp_path / "run")
    said = {"site": "b", "round": "keys", "key": "A" * 43 + "="} | change
    letter = Statement("aggregation", {"plan": run.plan.digest}, said).signed(KEYS["b"]).to_bytes()
    with pytest.raises(Refusal):
        run.sites["a"].masked(factors()["a"], [letter])


def test_a_key_that_would_give_all_the_same_secret_is_refused(tmp_path):
    run = Round(tmp_path / "run")
    said = {"site": "b", "round": "keys", "key": "A" * 43 + "="}  # the point of order two
    letter = Statement("aggregation", {"plan": run.plan.digest}, said).signed(KEYS["b"]).to_bytes()
    with pytest.raises(Refusal, match="an invalid key of 'b'"):
        run.sites["a"].masked(factors()["a"], [letter, *run.letters[2:]])


def test_nothing_is_opened_unless_all_survivors_signed_one_list(tmp_path):
    run = Round(tmp_path / "run")
    made = run.mask(factors())
    full = [site.survivors(run.letters) for name, site in run.sites.items() if name != "d"]
    with pytest.raises(Refusal, match="no list of survivors from 'd'"):
        run.sites["a"].opening(full)
    lie = run.sites["d"].survivors([made[site] for site in "bc"])  # "a has dropped out"
    for site in "abc":
        with pytest.raises(Refusal, match="another list of survivors from 'd'"):
            run.sites[site].opening([*full, lie])


def test_too_few_are_refused_at_every_step(tmp_path):
    run = Round(tmp_path / "run")
    with pytest.raises(Refusal, match="without \\['c', 'd'\\]"):
        run.sites["a"].masked(factors()["a"], run.letters[:2])
    with pytest.raises(Refusal, match="no letter 'masked'"):
        run.sites["a"].survivors(run.letters)
    with pytest.raises(Refusal, match="no letter 'survivors'"):
        run.sites["a"].opening(run.letters)
    run.mask(factors(), "ab")
    with pytest.raises(Refusal, match="at least 3"):
        run.sites["a"].survivors(run.letters)
    for letters in ([], run.letters):
        with pytest.raises(Refusal, match="openings of"):
            total(run.plan, letters)


def test_a_sum_without_the_opening_of_a_survivor_is_refused(tmp_path):
    run = Round(tmp_path / "run")
    run.mask(factors())
    run.close()
    with pytest.raises(Refusal, match="openings of"):
        total(run.plan, run.letters[:-1])
    with pytest.raises(Refusal, match="other than those opened"):
        total(run.plan, [each for n, each in enumerate(run.letters) if n != 5])


def test_masks_that_do_not_cancel_are_noticed(tmp_path):
    run = Round(tmp_path / "run")
    run.mask(factors())
    found = run.close()
    last = Statement.from_bytes(Envelope.from_bytes(run.letters[-1]).payload)
    false = {**last.predicate, "own": "A" * 43 + "="}
    lie = Statement("aggregation", last.subjects, false).signed(KEYS["d"]).to_bytes()
    with pytest.raises(Refusal) as error:
        total(run.plan, [*run.letters[:-1], lie])
    assert error.value.reason == "magnitude" and found.dropped == ()


@pytest.mark.parametrize(
    ("value", "error"),
    [(np.nan, ParameterError), (np.inf, ParameterError), (2.0**41, Refusal), (-1e300, Refusal)],
)
def test_a_factor_that_might_wrap_the_sum_is_refused(tmp_path, value, error):
    run = Round(tmp_path / "run")
    with pytest.raises(error):
        run.sites["a"].masked(Dirichlet(np.array([value, 0.0, 0.0])), run.letters)
    with pytest.raises(StructureError):
        run.sites["a"].masked(Beta(1.0, 1.0), run.letters)
    assert not (tmp_path / "run" / "a" / "masked.json").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"members": {"a": PUBLIC["a"]}, "least": None},
        {"members": {s: PUBLIC[s] for s in "ab"}, "least": None},
        {"members": {s: PUBLIC[s] for s in "ab"}, "least": 2},
        {"least": 2},
        {"least": 5},
        {"members": {s: PUBLIC["a"] for s in "abc"}},
        {"most": 0.0},
        {"most": float("inf")},
        {"most": float("nan")},
        {"most": 2.0**51},
        {"name": " "},
        {"prior": Dirichlet(np.array([-3.0, 1.0, 1.0]))},
        {"members": {"a": PUBLIC["a"], "\u0430": PUBLIC["b"], "c": PUBLIC["c"]}},
    ],
)
def test_a_plan_that_would_reveal_a_factor_or_wrap_is_refused(options):
    with pytest.raises((UsageError, ParameterError, LedgerError)):
        plan(**options)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["", "a", "b", "z", "keys", "AAAA", "A" * 43 + "=", "ab" * 32, "\u2603"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "c", "z"]), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = ["site", "round", "key", "roster", "words", "masked", "own", "dropped", "more"]


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES), st.sampled_from([0, 4, 8, 12]))
@settings(max_examples=60, deadline=None)
def test_whatever_a_member_signs_is_taken_or_refused(whole, changes, at):
    """A liar's letter instead of its own: nothing but refusals, and no sum but the true one."""
    run, truth, folder = whole
    said = Statement.from_bytes(Envelope.from_bytes(run.letters[at]).payload)
    lie = Statement("aggregation", said.subjects, {**said.predicate, **changes})
    letters = [*run.letters[:at], lie.signed(KEYS["a"]).to_bytes(), *run.letters[at + 1 :]]
    honest = Participant(run.plan, "b", KEYS["b"], folder / "b")
    for attempt in (honest.survivors, honest.opening, lambda letters: total(run.plan, letters)):
        try:
            found = attempt(letters)
        except Refusal:
            continue
        assert found in (run.letters[9], run.letters[13]) or found.integers == truth


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """All letters of an aggregation of four, its sum, and the folders."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run = Round(folder)
    run.mask(factors())
    return run, run.close().integers, folder


def test_two_groups_cannot_be_made_to_open_sums_that_tell_one_site(tmp_path):
    """Five members, `least` four: one who lies to both groups cannot part them."""
    keys = {**KEYS, "e": PrivateKey(bytes([4]) * 32)}
    members = {site: key.public for site, key in keys.items()}
    run = Round(tmp_path / "run", plan(members=members, least=4), tuple("abcde"), keys)
    made = run.mask(factors(sites=tuple("abcde")))
    for group in ("abe", "ce"):
        with pytest.raises(Refusal, match="at least 4"):
            run.sites[group[0]].survivors([made[site] for site in group])
    first = run.sites["a"].survivors([made[site] for site in "abce"])
    second = run.sites["c"].survivors([made[site] for site in "bcde"])
    said = Statement.from_bytes(Envelope.from_bytes(first).payload)
    lies = [
        Statement("aggregation", said.subjects, {**said.predicate, "site": "e"})
        .signed(keys["e"])
        .to_bytes()
    ]
    with pytest.raises(Refusal, match=r"no list of survivors from 'b'|another list"):
        run.sites["a"].opening([first, second, *lies])
