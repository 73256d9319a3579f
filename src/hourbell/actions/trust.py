"""Whom webhooks trust: targets whose certificate is for the host of the URL, and signed by somebody whom this machine or an
administrator trusts. Nothing switches that off; who has certificates of his own names who signs them, in HOURBELL_CA_FILE.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import aiohttp

from hourbell.model.errors import ConfigurationError


def trust(ca_file: Path | None = None) -> ssl.SSLContext:
    """Those whom this machine trusts, and those in the file."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:  # ssl.SSLError among them
            raise ConfigurationError(
                f"HOURBELL_CA_FILE: no certificates can be read from {ca_file}: {error.strerror or error}. "
                f"Name a file that has them as PEM."
            ) from error
    return context


def certificate_problem(error: aiohttp.ClientConnectorCertificateError) -> str:
    """What is wrong with a certificate, in the words of OpenSSL."""
    found = error.certificate_error
    why = found.verify_message if isinstance(found, ssl.SSLCertVerificationError) else str(found)
    return why.rstrip(".")


def tls_problem(error: aiohttp.ClientConnectorSSLError) -> str:
    """Why two ends do not understand each other."""
    found = error.os_error
    reason = found.reason if isinstance(found, ssl.SSLError) else None
    return (reason or "no reason is known").replace("_", " ").lower()
