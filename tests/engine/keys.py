"""Keys of three sites, the same in every run."""

from posterity.engine.signing import PrivateKey

KEYS = {name: PrivateKey(bytes([number]) * 32) for number, name in enumerate("abcd")}
PUBLIC = {name: key.public for name, key in KEYS.items()}
