"""Certificates that a provider shows and TLS does not take: what is wrong with them, and who can mend it.

Nothing was sent then, and nothing will be until somebody renews a certificate or corrects the config.
"""

from __future__ import annotations

import ssl

_EXPIRED, _NOT_YET_VALID, _WRONG_NAME, _WRONG_ADDRESS = 10, 9, 62, 64
_SELF_SIGNED = frozenset((18, 19))
_UNKNOWN_AUTHORITY = frozenset((2, 20, 21, 27))
"""OpenSSL's X509_V_ERR_ numbers (x509_vfy.h): they are the same in every version, its words are not."""


def certificate_error(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """The refused certificate that an error comes from, however often it was wrapped; None: it is about something else."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__  # httpcore raises again `from None`
    return cause


def explain(error: ssl.SSLCertVerificationError, provider: str) -> tuple[str, str]:
    """What is wrong, fit for everybody; and the remedy, for the operator."""
    code = error.verify_code
    there = f"providers.{provider}"
    if code == _EXPIRED:
        return "its TLS certificate has expired", "it has to be renewed there"
    if code == _NOT_YET_VALID:
        return "its TLS certificate is not valid yet", "is the clock of this machine right?"
    if code in (_WRONG_NAME, _WRONG_ADDRESS):
        return "its TLS certificate is for another name", f"correct {there}.base_url, or the certificate there"
    if code in _SELF_SIGNED or code in _UNKNOWN_AUTHORITY:
        return "its TLS certificate is of an unknown authority", f"name the authority's certificate in {there}.ca_file"
    said = str(error.verify_message or error.reason or "certificate verify failed")[:100]
    return f"its TLS certificate is not accepted: {said}", f"see {there}.ca_file and {there}.base_url"
