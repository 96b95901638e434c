"""A certificate for a server on this machine, signed by an authority that nobody else knows."""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

if TYPE_CHECKING:
    from pathlib import Path


class Certificate(NamedTuple):
    """Files: the authority's certificate; the server's, and its key."""

    authority: Path
    server: Path
    key: Path


def certificate_in(folder: Path) -> Certificate:
    """Make one for 127.0.0.1, good for a day."""
    own_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = _named("shardloader tests")
    certified = _Authority(name, own_key)
    files = Certificate(*(folder / each for each in ("authority.pem", "server.pem", "key.pem")))
    files.authority.write_bytes(certified.of_itself())
    files.server.write_bytes(certified.of_server(key))
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files


class _Authority:
    """Signs with one key."""

    def __init__(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> None:
        self._name, self._key = name, key

    def of_itself(self) -> bytes:
        """The authority's own certificate."""
        builder = self._for(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        return self._signed(builder)

    def of_server(self, key: ec.EllipticCurvePrivateKey) -> bytes:
        """The certificate of a server on this machine."""
        here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        return self._signed(self._for(_named("127.0.0.1"), key).add_extension(here, critical=False))

    def _for(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=1))
        )

    def _signed(self, builder: x509.CertificateBuilder) -> bytes:
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
