"""Settings: `DARKSIGHT_*` in the environment over a TOML file over defaults.

A name that is not a setting is an error, because a typing mistake in a setting must not be silent. A setting whose name
ends in `_FILE` in the environment is read from that file, so that secrets need not stand in the environment.
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from darksight_service.errors import SettingsError

__all__ = ["Settings", "read_settings", "setting_names"]

_PREFIX = "DARKSIGHT_"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set; the text of each stands in service/README.md too."""

    host: str = field(
        default="127.0.0.1",
        metadata={"text": "address to listen on; beyond loopback this needs TLS and tokens, or `insecure`"},
    )
    grpc_port: int = field(default=8081, metadata={"text": "port of gRPC; 0 for any free one"})
    http_port: int = field(default=8080, metadata={"text": "port of /metrics and health; 0 for any free one"})
    explorer_port: int = field(default=8082, metadata={"text": "port of the explorer; 0 for any free one"})
    explorer: bool = field(default=True, metadata={"text": "whether `darksight serve` runs the explorer"})
    workers: int = field(
        default=0, metadata={"text": "worker processes, each on a core of its own; 0 for as many as there are cores"}
    )
    data_dir: Path = field(default=Path("darksight-data"), metadata={"text": "folder of everything that is kept"})
    bundle_dir: Path | None = field(
        default=None, metadata={"text": "folder that bundles are deployed from; default: bundles in the data folder"}
    )
    database_url: str = field(
        default="", metadata={"text": "sqlite:///FILE or postgresql://...; default: SQLite in the data folder"}
    )
    durability: Literal["process", "fsync"] = field(
        default="process",
        metadata={"text": "`process`: acknowledged points survive a crash of the process; `fsync`: of the machine"},
    )
    spool_bytes: int = field(
        default=1 << 30, metadata={"text": "disk quota of each worker's spool while the database is away"}
    )
    keep_probabilities: str = field(
        default="float16", metadata={"text": "probabilities kept in the store: `float16`, `topK:5`, or `none`"}
    )
    retention_days: float = field(default=0.0, metadata={"text": "days after which points are dropped; 0 for never"})
    retention_rows: int = field(
        default=0, metadata={"text": "stored points beyond which the oldest are dropped; 0 for no limit"}
    )
    retention_bytes: int = field(
        default=0, metadata={"text": "size of the store beyond which the oldest points are dropped; 0 for no limit"}
    )
    max_message_bytes: int = field(
        default=4 << 20, metadata={"text": "largest request, after decompression; at most 16 MiB"}
    )
    max_concurrent_calls: int = field(
        default=64, metadata={"text": "calls that a worker has in hand or waiting; more are refused"}
    )
    max_streams: int = field(
        default=16, metadata={"text": "ScoreStream calls open at a time in a worker; more are refused"}
    )
    max_connection_streams: int = field(default=256, metadata={"text": "calls at a time on one connection"})
    connection_seconds: float = field(
        default=300.0,
        metadata={"text": "age at which a connection is made anew, so that clients find added replicas; 0 for never"},
    )
    grace_seconds: float = field(default=30.0, metadata={"text": "time for calls in flight to end after SIGTERM"})
    reflection: bool = field(
        default=False, metadata={"text": "whether clients may ask which services and messages there are"}
    )
    tokens_file: Path | None = field(
        default=None, metadata={"text": "file of hashed bearer tokens; see `darksight token`"}
    )
    tls_cert: Path | None = field(default=None, metadata={"text": "certificate chain of the server, PEM"})
    tls_key: Path | None = field(default=None, metadata={"text": "its private key, PEM"})
    tls_client_ca: Path | None = field(
        default=None, metadata={"text": "certificates that clients must be signed by (mTLS), PEM"}
    )
    insecure: bool = field(default=False, metadata={"text": "permit plaintext or missing tokens beyond loopback"})
    max_models: int = field(default=64, metadata={"text": "versions of models with metrics of their own"})
    log_level: str = field(
        default="info",
        metadata={"text": "`debug`, `info`, `warning` or `error`; probabilities are only ever logged at debug"},
    )

    def __post_init__(self) -> None:
        for name in ("grpc_port", "http_port", "explorer_port"):
            _demand(0 <= getattr(self, name) < 65536, name, "a port between 0 and 65535")
        for name in ("workers", "retention_days", "retention_rows", "retention_bytes", "connection_seconds"):
            _demand(getattr(self, name) >= 0, name, "0 or more")
        for name in ("spool_bytes", "max_concurrent_calls", "max_streams", "max_connection_streams", "max_models"):
            _demand(getattr(self, name) > 0, name, "1 or more")
        _demand(0.0 < self.grace_seconds <= 3600.0, "grace_seconds", "between 0 and 3600 seconds")
        _demand(1024 <= self.max_message_bytes <= 16 << 20, "max_message_bytes", "between 1,024 and 16,777,216")
        _demand(self.durability in ("process", "fsync"), "durability", "process or fsync")
        _demand(self.log_level in ("debug", "info", "warning", "error"), "log_level", "debug, info, warning or error")
        _demand((self.tls_cert is None) == (self.tls_key is None), "tls_cert", "given together with tls_key")
        _demand(
            self.tls_client_ca is None or self.tls_cert is not None, "tls_client_ca", "given with tls_cert, tls_key"
        )
        self._check_exposure()

    def _check_exposure(self) -> None:
        """Refuse to listen to the world without TLS and tokens, unless that was asked for by name."""
        if self.insecure or _is_loopback(self.host):
            return
        missing = [
            what
            for what, there in (
                ("TLS (tls_cert, tls_key)", self.tls_cert is not None),
                (
                    "tokens (tokens_file) or client certificates (tls_client_ca)",
                    bool(self.tokens_file or self.tls_client_ca),
                ),
            )
            if not there
        ]
        if missing:
            raise SettingsError(
                f"host {self.host} is not loopback, so the service needs {' and '.join(missing)}; "
                f"set {_PREFIX}INSECURE=true to serve without, in a network that you trust",
                host=self.host,
            )

    @property
    def bundles(self) -> Path:
        """Folder that bundles are deployed from."""
        return self.data_dir / "bundles" if self.bundle_dir is None else self.bundle_dir

    @property
    def store_url(self) -> str:
        """Where points are stored."""
        return self.database_url or f"sqlite:///{self.data_dir.absolute() / 'darksight.db'}"

    @property
    def worker_count(self) -> int:
        """Worker processes to run."""
        return self.workers or len(os.sched_getaffinity(0))

    def environment(self) -> dict[str, str]:
        """These settings as variables of the environment, for a child process."""
        values = {name: getattr(self, name) for name in setting_names()}
        return {f"{_PREFIX}{name.upper()}": _as_text(value) for name, value in values.items() if value is not None}


def setting_names() -> dict[str, str]:
    """Text of every setting by its name."""
    return {each.name: each.metadata["text"] for each in fields(Settings)}


def read_settings(
    file: Path | None = None, environment: Mapping[str, str] | None = None, **overrides: object
) -> Settings:
    """Settings from all their sources.

    Parameters
    ----------
    file
        TOML file; None for none.
    environment
        Variables; by default those of the process.
    overrides
        Values by name that win over everything, as options of a command do; None for not given.
    """
    known = {each.name: each for each in fields(Settings)}
    found: dict[str, Any] = {}
    for source, values in ((str(file), _from_file(file)), ("the environment", _from_environment(environment))):
        for name, value in values.items():
            if name not in known:
                raise SettingsError(
                    f"{source}: {name!r} is not a setting; there are {', '.join(sorted(known))}", name=name
                )
            found[name] = _convert(known[name], value, source)
    found |= {name: value for name, value in overrides.items() if value is not None}
    return replace(Settings(insecure=True), **{"insecure": False, **found})


def _from_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{file}: cannot be read: {error.strerror}", file=str(file)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: is not TOML: {error}", file=str(file)) from error


def _from_environment(environment: Mapping[str, str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    names = {each.name for each in fields(Settings)}
    for variable, value in (os.environ if environment is None else environment).items():
        if not variable.startswith(_PREFIX):
            continue
        name = variable.removeprefix(_PREFIX).lower()
        if name not in names and name.endswith("_file") and name.removesuffix("_file") in names:
            name = name.removesuffix("_file")
            try:
                value = Path(value).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise SettingsError(f"{variable}: {value} cannot be read: {error.strerror}", name=variable) from error
        found[name] = value
    return found


def _convert(setting: Field[Any], value: object, source: str) -> object:
    """A value from TOML or from text as the type of its setting."""
    kind = str(setting.type).removesuffix(" | None")
    kind = "str" if kind.startswith("Literal") else kind
    text = str(value).strip()
    try:
        if kind == "bool":
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
        if kind == "Path":
            return Path(text).expanduser() if text else (None if setting.default is None else setting.default)
        return {"int": int, "float": float, "str": str}[kind](text)
    except (KeyError, ValueError):
        wanted = {"bool": "true or false", "int": "a whole number", "float": "a number"}[kind]
        raise SettingsError(f"{source}: {setting.name} must be {wanted}, not {text!r}", name=setting.name) from None


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _demand(is_true: bool, name: str, wanted: str) -> None:
    if not is_true:
        raise SettingsError(f"setting {name} must be {wanted}", name=name)
