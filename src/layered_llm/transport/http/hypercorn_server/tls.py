"""The certificate that the server shows.

Must not know: sockets, the application.

It is read once before the server listens: hypercorn reads it only then, where a fault would be a traceback, and a key with a
password would wait for somebody to type it.
"""

import ssl
from pathlib import Path
from typing import Final, NoReturn

import attrs

from layered_llm.formats.untrusted_files import is_regular

_NO_PEM: Final = "one of them holds none in PEM"
"""Of such a file OpenSSL says no reason."""


class BadCertificate(Exception):  # noqa: N818 - states what happened
    """The files cannot be used; the message names them and says why."""


@attrs.frozen(kw_only=True)
class TlsFiles:
    """A certificate with the chain behind it, and its key, in PEM."""

    certificate: Path
    key: Path

    def check(self) -> None:
        """Raises BadCertificate."""
        for path in (self.certificate, self.key):
            if not is_regular(path):
                raise BadCertificate(f"{path}: there is no such file")
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate, self.key, password=self._refuse_password)
        except OSError as error:
            reason = error.reason or _NO_PEM if isinstance(error, ssl.SSLError) else error.strerror
            raise BadCertificate(f"{self.certificate} and {self.key} are no certificate and its key: {reason}") from error

    def _refuse_password(self) -> NoReturn:
        raise BadCertificate(f"{self.key}: the key has a password; give one without")
