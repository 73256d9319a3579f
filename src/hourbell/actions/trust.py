"""TLS verification of webhook targets.

A certificate must match the host of the URL and be signed by a CA that this machine or the
administrator trusts. Verification cannot be disabled; set HOURBELL_CA_FILE to trust a private CA.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import aiohttp

from hourbell.model.errors import ConfigurationError


def tls_context(ca_file: Path | None = None) -> ssl.SSLContext:
    """A TLS context that trusts the system's CAs and those in the file."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:  # includes ssl.SSLError
            raise ConfigurationError(
                f"HOURBELL_CA_FILE: cannot read certificates from {ca_file}: "
                f"{error.strerror or error}. Set it to a PEM file with certificates."
            ) from error
    return context


def certificate_problem(error: aiohttp.ClientConnectorCertificateError) -> str:
    """The error of a certificate, as reported by OpenSSL."""
    found = error.certificate_error
    why = found.verify_message if isinstance(found, ssl.SSLCertVerificationError) else str(found)
    return why.rstrip(".")


def tls_problem(error: aiohttp.ClientConnectorSSLError) -> str:
    """Why the TLS handshake failed."""
    found = error.os_error
    reason = found.reason if isinstance(found, ssl.SSLError) else None
    return (reason or "unknown reason").replace("_", " ").lower()
