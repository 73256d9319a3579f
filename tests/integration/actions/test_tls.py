"""Webhooks go to targets that can show who they are, and to no others."""

import contextlib
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hourbell.actions.egress import GuardedResolver
from hourbell.actions.names import Names
from hourbell.actions.trust import tls_context
from hourbell.actions.webhook import WebhookRunner
from hourbell.model.errors import ConfigurationError
from hourbell.model.executions import Failed, Outcome, Succeeded
from hourbell.security.egress import LOOPBACK, Egress
from integration.actions.test_guard import sent
from integration.actions.test_webhook import Secrets
from integration.test_roles import hourbell
from ports import free_port

HOST = "hooks.example"
FROM, UNTIL = datetime(2020, 1, 1, tzinfo=UTC), datetime(2090, 1, 1, tzinfo=UTC)
SIGNS_CERTIFICATES = x509.KeyUsage(
    key_cert_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """An authority that signs certificates."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.file = folder / f"{name}.pem"
        authority = x509.BasicConstraints(ca=True, path_length=0)
        unsigned = self._unsigned(self.name, self.key, UNTIL).add_extension(
            authority, critical=True
        )
        signed = unsigned.add_extension(SIGNS_CERTIFICATES, critical=True)
        self.file.write_bytes(pem(signed.sign(self.key, hashes.SHA256())))

    def certificate(self, host: str, until: datetime = UNTIL) -> Path:
        """A file with a certificate for a host, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        hosts = x509.SubjectAlternativeName([x509.DNSName(host)])
        unsigned = self._unsigned(name, key, until).add_extension(hosts, critical=False)
        file = self.folder / f"{host}-{until.year}.pem"
        file.write_bytes(pem(unsigned.sign(self.key, hashes.SHA256())) + pem_of_key(key))
        return file

    def _unsigned(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, until: datetime
    ) -> x509.CertificateBuilder:
        ours = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(FROM)
            .not_valid_after(until)
            .add_extension(ours, critical=False)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
        )


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


class Secured(msgspec.Struct):
    """A target that has a certificate, and notes who is asked for."""

    port: int = 0
    asked_for: list[str | None] = []
    hosts: list[str] = []


@contextlib.asynccontextmanager
async def secured(certificate: Path) -> AsyncIterator[Secured]:
    target = Secured()

    async def answer(request: web.Request) -> web.Response:
        target.hosts.append(request.host)
        return web.Response(text="done")

    def note(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        target.asked_for.append(name)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.sni_callback = note
    application = web.Application()
    application.router.add_post("/", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    target.port = runner.addresses[0][1]
    yield target
    await runner.cleanup()


async def outcome(url: str, ca_file: Path | None = None) -> Outcome:
    """Every name is this machine's."""
    egress = Egress.parse(",".join(LOOPBACK))
    resolver = GuardedResolver(egress, Names(lambda host: ["127.0.0.1"]))
    webhooks = WebhookRunner.open(2, resolver, Secrets(), lambda: 0.0, ca_file)
    try:
        return await sent(webhooks, url)
    finally:
        await webhooks.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


async def test_a_target_is_asked_for_by_its_host_and_trusted_by_who_signed_for_it(
    authority: Authority,
) -> None:
    async with secured(authority.certificate(HOST)) as target:
        found = await outcome(f"https://{HOST}:{target.port}/", authority.file)
    assert isinstance(found, Succeeded)
    assert target.asked_for == [HOST]
    assert target.hosts == [f"{HOST}:{target.port}"]


@pytest.mark.parametrize(
    ("certified", "until", "asked", "known", "problem"),
    [
        (HOST, UNTIL, HOST, False, "unable to get local issuer certificate"),
        (
            "other.example",
            UNTIL,
            HOST,
            True,
            "Hostname mismatch, certificate is not valid for 'hooks.example'",
        ),
        (
            HOST,
            UNTIL,
            "127.0.0.1",
            True,
            "IP address mismatch, certificate is not valid for '127.0.0.1'",
        ),
        (HOST, FROM + timedelta(days=1), HOST, True, "certificate has expired"),
    ],
)
async def test_a_target_that_cannot_show_who_it_is_hears_nothing(
    authority: Authority, certified: str, until: datetime, asked: str, known: bool, problem: str
) -> None:
    async with secured(authority.certificate(certified, until)) as target:
        url = f"https://{asked}:{target.port}/"
        found = await outcome(url, authority.file if known else None)
    assert found == Failed(f"The certificate is not trusted: {problem}.", "tls")
    assert target.hosts == []


async def test_a_target_that_signed_for_itself_hears_nothing(
    authority: Authority, tmp_path: Path
) -> None:
    alone = tmp_path / "alone.pem"
    alone.write_bytes(authority.file.read_bytes() + pem_of_key(authority.key))
    async with secured(alone) as target:
        found = await outcome(f"https://{HOST}:{target.port}/")
    assert found == Failed("The certificate is not trusted: self-signed certificate.", "tls")
    assert target.hosts == []


async def test_who_does_not_speak_tls_is_told_so(authority: Authority) -> None:
    application = web.Application()
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found = await outcome(f"https://{HOST}:{runner.addresses[0][1]}/")
    await runner.cleanup()
    assert isinstance(found, Failed)
    assert found.kind == "tls"
    assert found.error.startswith("The TLS handshake failed: ")


async def test_who_is_in_the_file_is_trusted_besides_those_whom_the_machine_trusts(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = Authority(tmp_path, "the machine's")
    monkeypatch.setenv("SSL_CERT_FILE", str(machines.file))
    for signer in (authority, machines):
        async with secured(signer.certificate(HOST)) as target:
            found = await outcome(f"https://{HOST}:{target.port}/", authority.file)
        assert isinstance(found, Succeeded)


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_without_certificates_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigurationError, match="HOURBELL_CA_FILE: cannot read certificates"):
        tls_context(file)


@pytest.mark.timeout(60)
def test_a_worker_does_not_start_with_a_file_that_is_not_there(
    database: str, tmp_path: Path
) -> None:
    file = tmp_path / "none.pem"
    worker = hourbell("worker", database, free_port(), HOURBELL_CA_FILE=str(file))
    said, _ = worker.communicate(timeout=50)
    assert worker.returncode != 0
    assert f"HOURBELL_CA_FILE: cannot read certificates from {file}" in said
    assert "Traceback" not in said
