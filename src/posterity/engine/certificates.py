"""Keys of members that the certificates of a deployment endorse."""

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

from posterity.engine.refusal import Refusal
from posterity.engine.signing import Envelope, PublicKey, Statement
from posterity.errors import MissingExtraError

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.x509 import verification
except ImportError as error:
    raise MissingExtraError.of("cryptography", "engine") from error


def endorse(key: PublicKey, certificate: bytes, private: bytes) -> Envelope:
    """An envelope in which the owner of a certificate says that ``key`` is theirs.

    ``certificate`` and ``private`` are in PEM, as a deployment's provisioning gives them to a
    site; RSA and elliptic curves are known. The private key is needed for this alone.

    Raises:
        Refusal: if they cannot be read.
    """
    try:
        owner = x509.load_pem_x509_certificate(certificate)
        signer = serialization.load_pem_private_key(private, password=None)
    except (ValueError, TypeError) as error:
        raise _certificate(f"a certificate or its key that cannot be read ({error})") from error
    envelope = Envelope(_endorsement(key, owner).to_bytes())
    if isinstance(signer, rsa.RSAPrivateKey):
        signature = signer.sign(envelope.encoding, padding.PKCS1v15(), hashes.SHA256())
    elif isinstance(signer, ec.EllipticCurvePrivateKey):
        signature = signer.sign(envelope.encoding, ec.ECDSA(hashes.SHA256()))
    else:
        raise _certificate(f"a {type(signer).__name__}")
    return dataclasses.replace(envelope, signatures={_fingerprint(owner): signature})


def endorsed(
    envelope: Envelope, chain: Sequence[bytes], root: bytes, at: datetime.datetime
) -> tuple[str, PublicKey]:
    """The member's name and key that a certificate endorses.

    ``chain`` is the certificate in PEM and those between it and the ``root``; ``at`` is the time
    at which all have to be valid, which is that of the endorsement: a member's key outlives the
    certificates of one year.

    Raises:
        Refusal: if the chain does not lead to the root, or does not endorse the key.
    """
    try:
        owner, *between = [x509.load_pem_x509_certificate(each) for each in chain]
        store = verification.Store([x509.load_pem_x509_certificate(root)])
        policy = verification.PolicyBuilder().store(store).time(at)
        authorities = verification.ExtensionPolicy.permit_all().require_present(
            x509.BasicConstraints, verification.Criticality.AGNOSTIC, _check_authority
        )
        owners = verification.ExtensionPolicy.permit_all()
        policy = policy.extension_policies(ca_policy=authorities, ee_policy=owners)
        policy.build_client_verifier().verify(owner, between)
    except (ValueError, verification.VerificationError) as error:
        raise _certificate(f"a chain of certificates that does not hold ({error})") from error
    public, signature = owner.public_key(), envelope.signatures.get(_fingerprint(owner), b"")
    try:
        if isinstance(public, rsa.RSAPublicKey):
            public.verify(signature, envelope.encoding, padding.PKCS1v15(), hashes.SHA256())
        elif isinstance(public, ec.EllipticCurvePublicKey):
            public.verify(signature, envelope.encoding, ec.ECDSA(hashes.SHA256()))
        else:
            raise _certificate(f"a {type(public).__name__}")
    except InvalidSignature as error:
        raise _certificate("an endorsement that the certificate's owner did not sign") from error
    statement = Statement.from_bytes(envelope.payload)
    key = PublicKey.of(str(statement.predicate.get("key")))
    if statement != _endorsement(key, owner):
        raise _certificate("an endorsement of another name, or of another claim")
    return _name(owner), key


def _endorsement(key: PublicKey, owner: x509.Certificate) -> Statement:
    return Statement("endorsement", {"key": key.id}, {"name": _name(owner), "key": str(key)})


def _check_authority(policy: Any, certificate: x509.Certificate, extension: Any) -> None:
    """Only an authority may issue certificates."""
    del policy
    if not extension.ca:
        raise ValueError(f"{certificate.subject.rfc4514_string()} is no authority")


def _name(certificate: x509.Certificate) -> str:
    names = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    if len(names) != 1:
        raise _certificate(f"a certificate with {len(names)} common names")
    return str(names[0].value)


def _fingerprint(certificate: x509.Certificate) -> str:
    return certificate.fingerprint(hashes.SHA256()).hex()


def _certificate(found: str) -> Refusal:
    return Refusal(
        found=found,
        expected="a certificate of the federation's authority, and what its owner signed",
        fix="Endorse the key with the certificate that provisioning gave to this site.",
        reason="signature",
    )
