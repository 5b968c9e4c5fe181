"""Certificates for tests of TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.tools import find_tool

__all__ = ["Certificates"]


class Certificates:
    """A certificate authority and what it signs, made by openssl."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.ca = folder / "ca.pem"
        self._openssl("req", "-x509", "-subj", "/CN=test ca", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2")

    def make(self, name: str, host: str = "localhost", days: int = 2) -> tuple[Path, Path]:
        """Certificate and key for a host."""
        (self.folder / f"{name}.ext").write_text(f"subjectAltName=DNS:{host}")
        self._openssl("req", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        self._openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", str(days)),
            *("-extfile", f"{name}.ext", "-out", f"{name}.pem"),
        )
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"

    def _openssl(self, command: str, *arguments: str) -> None:
        keys = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes") if command == "req" else ()
        program = find_tool("openssl")
        subprocess.run([program, command, *keys, *arguments], cwd=self.folder, check=True, capture_output=True)
