"""Notices: signed statements that members exchange, and the rules on who may make them.

A *tombstone* states that a member was forgotten, an *agreement* that a member takes part, an
*absence* that a member does not answer. A *survey* asks all members for their relation to a
posterior, a *residual* answers it, and a *certificate* summarises the answers. A *checkpoint* gives
the state of a member's log, and a *cosignature* states that another member verified it. A
*rotation* replaces a member's key. Each is an in-toto statement in an envelope signed by its maker.
A notice replaces the older one of its place.
"""

import base64
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from posterity.artifact.artifact import from_bytes
from posterity.engine.admission import check_posterior, check_report, check_structure
from posterity.engine.agreement import Rotation, Terms
from posterity.engine.log import TreeHead, key_name
from posterity.engine.messages import MOST_EPOCHS, MOST_SEQUENCES, digest_of
from posterity.engine.refusal import Reason, Refusal, reading
from posterity.engine.signing import Claim, Envelope, PublicKey, Statement, from_base64
from posterity.families import ExponentialFamily
from posterity.federation.messages import Epoch, Report, loads
from posterity.status import State

NOTICE = "a notice as a member makes it"
"""The text for what was expected, in refusals of notices."""


@dataclasses.dataclass(frozen=True)
class Known:
    """A notice whose signature and form were checked. ``site`` is its subject, and also its signer
    except of what authorities sign, which a store does not tell, absences and cosignatures.
    ``version`` orders the notices of a ``place``.
    """

    claim: Claim
    site: str
    signer: str = dataclasses.field(compare=False)
    version: tuple[Any, ...]
    envelope: bytes

    @functools.cached_property
    def statement(self) -> Statement:
        """The in-toto statement in the envelope."""
        return Statement.from_bytes(Envelope.from_bytes(self.envelope).payload)

    @property
    def predicate(self) -> Mapping[str, Any]:
        """The predicate of the statement: its content by field."""
        return self.statement.predicate

    @property
    def subjects(self) -> Mapping[str, str]:
        """Digests of the notice's subject; for a tombstone, the ID of the member's key."""
        return self.statement.subjects

    @property
    def head(self) -> TreeHead:
        """The state of a log in a checkpoint or a cosignature."""
        return TreeHead.from_bytes(self.predicate["note"].encode())

    @property
    def text(self) -> str:
        """The envelope as text."""
        return self.envelope.decode()

    @property
    def recipient(self) -> str:
        """The site that needs a residual or a cosignature: the survey's maker or log's keeper."""
        return self.predicate["to"] if self.claim == "residual" else self.site

    @property
    def place(self) -> str:
        """The key under which a memory stores the notice; a newer notice replaces it."""
        by = f" by {self.signer}"
        more = {"absence": by, "cosignature": by, "rotation": f" from {self.version[0]}"}
        return f"{self.claim} of {self.site}{more.get(self.claim, '')}"

    @property
    def forgotten(self) -> frozenset[str]:
        """The members whose tombstones the maker of the notice had."""
        return frozenset(self.predicate["forgotten"])

    @property
    def rotation(self) -> Rotation:
        """The change of a key that a rotation states."""
        old, key, epoch = (self.predicate[name] for name in FIELDS["rotation"])
        keys = PublicKey.of(old), PublicKey.of(key)
        return Rotation(self.site, *keys, epoch, self.signer, self.text)

    @functools.cached_property
    def posterior_digest(self) -> str:
        """SHA-256 of the artifact of the posterior that the notice is about."""
        text = self.predicate["posterior"]
        return text if self.claim == "residual" else digest_of(base64.b64decode(text))

    @property
    def epoch(self) -> Epoch | None:
        """The epoch of the posterior that the notice is about; None for other notices."""
        return self.version[0] if self.claim in SPEAKS_OF_POSTERIOR else None

    @property
    def is_final(self) -> bool:
        """True for a certificate of a posterior that has converged, if all members answered."""
        return self.predicate["state"] == "converged" and not self.predicate["absent"]

    @property
    def digest(self) -> str:
        """SHA-256 of the envelope, in hexadecimal."""
        return digest_of(self.envelope)


SPEAKS_OF_POSTERIOR = ("survey", "residual", "certificate")


def parsed(envelope: bytes) -> Known:
    """Return a notice without any check, such as one that was checked before."""
    statement = Statement.from_bytes(Envelope.from_bytes(envelope).payload)
    claim = statement.claim
    predicate = statement.predicate
    site = predicate["site"]
    version_of = VERSIONS_AND_SUBJECTS[claim][0]
    return Known(claim, site, predicate.get("by", site), version_of(predicate), envelope)


def read(terms: Terms, envelope: bytes) -> Known:
    """Read a notice and check its signature, its form and its terms. Raises a Refusal if it is
    invalid, or not signed by a member or authority that may make it.
    """
    content = Envelope.from_bytes(envelope, most=terms.limits.bytes)
    signers = content.verify({**terms.keys, **terms.authorities})
    statement = Statement.from_bytes(content.payload)
    claim = statement.claim
    predicate = statement.predicate
    with reading("a notice", NOTICE):
        if predicate["terms"] != terms.digest:
            raise ValueError("other terms")
        kinds = {"terms": _is_text, "site": _is_text, **FIELDS[claim]}
        fits = predicate.keys() == kinds.keys()
        if not fits or not all(kinds[name](value) for name, value in predicate.items()):
            raise ValueError("other fields, or values of another kind")
        version_of, subjects_of = VERSIONS_AND_SUBJECTS[claim]
        site = predicate["site"]
        version = version_of(predicate)
        if statement.subjects != subjects_of(terms, predicate):
            raise ValueError("another subject")
    if site not in terms.members:
        raise _refused(f"a notice about {site!r}", "membership")
    allowed = {predicate.get("by", site), *(terms.authorities if claim in ORDERED else ())}
    old = [r for r in terms.rotations if r.label in signers]
    by = allowed.intersection([*signers, *(r.site for r in old if _counts(r, claim, version))])
    if not by:
        reason = "retired" if old else "membership"
        raise _refused(f"a notice about {site!r} by {signers[0]!r}", reason)
    known = Known(claim, site, min(by), version, envelope)
    match claim:
        case "survey" | "certificate":
            posterior_of(terms, known)
        case "residual":
            standing_of(terms, known)
        case "checkpoint" | "cosignature":
            _check_head(terms, known)
    return known


ORDERED = ("tombstone", "rotation")
"""Claims that an authority may make about any member."""


def _counts(rotation: Rotation, claim: Claim, version: tuple[Any, ...]) -> bool:
    """Return whether the key before a rotation counts for a notice, such as the rotation itself."""
    is_before = claim in SPEAKS_OF_POSTERIOR and version[0] < (rotation.epoch, "")
    return is_before or version == (str(rotation.old),)


def _check_head(terms: Terms, known: Known) -> None:
    """Check the keeper's signature of a checkpoint, and the cosignature of the named witness."""
    head = known.head
    keeper = known.site
    if head.origin != key_name(terms.name, keeper):
        raise _refused(f"a note of {head.origin!r} by {keeper!r}", "membership")
    head.verify(*terms.keys_of(keeper))
    witness = known.predicate.get("by")
    if witness is not None:
        if witness not in terms.members.keys() - {keeper}:
            raise _refused(f"a cosignature of {witness!r} for {keeper!r}", "membership")
        if not head.witnesses({key_name(terms.name, witness): terms.keys[witness]}):
            raise _refused(f"a cosignature that {witness!r} did not sign", "signature")


def _is_count(value):
    return type(value) is int and 0 <= value < MOST_EPOCHS - 1


def _is_text(value):
    return type(value) is str


def _is_flag(value):
    return type(value) is bool


def _is_number(value):
    return type(value) is float and 0 <= value < math.inf


def _are_texts(value):
    return type(value) is list and all(map(_is_text, value))


def _by_site(value):
    return type(value) is dict and all(map(_is_text, value.values()))


def _is_path(value):
    return _are_texts(value) and all(len(bytes.fromhex(s)) == 32 for s in value)


def _are_paths(value):
    return type(value) is dict and all(map(_is_path, value.values()))


def _is_epoch(value):
    return list(map(type, value)) == [int, str] and _is_count(value[0])


_POSITION = {"epoch": _is_epoch, "sequence": lambda n: _is_count(n) and n < MOST_SEQUENCES}
FIELDS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "tombstone": {"highest": _is_count},
    "agreement": {"start": _is_count, "lost": _is_flag, "epoch": _is_epoch},
    "absence": {"start": _is_count, "number": _is_count, "by": _is_text},
    "survey": {**_POSITION, "posterior": _is_text, "forgotten": _are_texts},
    "residual": {
        **_POSITION,
        "posterior": _is_text,
        "to": _is_text,
        "counted": _is_flag,
        "silent": _is_flag,
        "independent": _is_flag,
        "report": lambda value: value is None or _is_text(value),
        "forgotten": _are_texts,
    },
    "certificate": {
        **_POSITION,
        "posterior": _is_text,
        "state": lambda value: value in get_args(State),
        "left": lambda value: value is None or _is_number(value),
        "tolerance": _is_number,
        "reasons": _are_texts,
        "independent": _is_flag,
        "residuals": _by_site,
        "absent": _are_texts,
        "envelopes": _are_texts,
        "forgotten": _by_site,
        "tombstones": _are_texts,
        "rotations": _are_texts,
        "time": _is_count,
    },
    "checkpoint": {"note": _is_text, "paths": _are_paths},
    "cosignature": {"note": _is_text, "by": _is_text},
    "rotation": {"old": _is_text, "key": _is_text, "epoch": _is_count},
}
"""For each claim, the fields of its predicate besides ``terms`` and ``site``, with their tests."""


def _place(p):
    return ((p["epoch"][0], p["epoch"][1]), p["sequence"])


def _size(p):
    return (TreeHead.from_bytes(p["note"].encode()).size,)


def _posterior(terms, p):
    return {"posterior": digest_of(posterior_bytes(p))}


def _terms(terms, p):
    return {"terms": terms.digest}


def _note(terms, p):
    return {"checkpoint": digest_of(p["note"].encode())}


VERSIONS_AND_SUBJECTS: dict[str, tuple[Callable[[Any], tuple[Any, ...]], Any]] = {
    "tombstone": (lambda p: (0,), lambda terms, p: {"key": terms.members[p["site"]].id}),
    "agreement": (lambda p: (p["start"],), _terms),
    "absence": (lambda p: (p["start"], p["number"]), _terms),
    "survey": (_place, _posterior),
    "residual": (_place, lambda terms, p: {"posterior": p["posterior"]}),
    "certificate": (lambda p: (*_place(p), len(p["residuals"])), _posterior),
    "checkpoint": (_size, _note),
    "cosignature": (_size, _note),
    "rotation": (lambda p: (p["old"],), lambda terms, p: {"key": PublicKey.of(p["key"]).id}),
}
"""For each claim, functions of the predicate: the version, by which newer notices replace older
ones (of tombstones the first stays; rotations are in order), and the subjects of the statement."""


def posterior_bytes(predicate: Mapping[str, Any]) -> bytes:
    """Return the artifact of the posterior that a survey or a certificate contains."""
    return from_base64(predicate["posterior"], "a posterior")


def posterior_of(terms: Terms, known: Known) -> ExponentialFamily:
    """Return the posterior of a survey or a certificate; raises a Refusal if it is invalid."""
    with reading("a posterior", NOTICE):
        posterior = from_bytes(posterior_bytes(known.predicate))
    check_structure(terms, posterior)
    check_posterior(terms, posterior)
    return posterior


def notices_in(terms: Terms, envelopes: Iterable[str], claim: str) -> dict[str, Known]:
    """Read notices of one claim, by the site each is about; a Refusal if one is invalid."""
    notices = {}
    for text in envelopes:
        known = read(terms, text.encode())
        if known.claim != claim:
            raise _refused(f"a {known.claim} where a {claim} should be", "schema")
        notices[known.site] = known
    return notices


def followed(terms: Terms, rotations: Iterable[str]) -> Terms:
    """Return the terms after some more changes of keys; a Refusal if one is invalid."""
    for text in rotations:
        terms = terms.rotated(read(terms, text.encode()).rotation)
    return terms


@dataclasses.dataclass(frozen=True)
class Standing:
    """The relation of a member to the posterior of a survey.

    ``counted`` tells whether the posterior contains its factor, ``silent`` whether it has no
    records, and ``independent`` whether its factor depends on its own records alone. ``report`` is
    None if it could not be made. ``forgotten`` are the members whose factors it destroyed.
    """

    counted: bool
    silent: bool
    independent: bool
    report: Report | None
    forgotten: tuple[str, ...] = ()


def standing_of(terms: Terms, known: Known) -> Standing:
    """Return the answer in a residual; a Refusal if it is invalid, or of another family."""
    with reading("a residual", NOTICE):
        content = {name: known.predicate[name] for name in Standing.__dataclass_fields__}
        report: Any = None
        if content["report"] is not None:
            report = loads(from_base64(content["report"], "a report"))
            if not isinstance(report, Report) or report.site != known.site:
                raise ValueError("another site's report")
            check_report(terms, report)
        return Standing(**{**content, "report": report, "forgotten": tuple(content["forgotten"])})


def _refused(found: str, reason: Reason) -> Refusal:
    return Refusal.of(found, NOTICE, reason)
