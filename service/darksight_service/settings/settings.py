"""Settings: command options over `DARKSIGHT_*` in the environment over a TOML file over defaults.

An unknown name is an error, so that a typing mistake is not silent. The variable `DARKSIGHT_<NAME>_FILE` names a file
that holds the value, so that a secret need not be in the environment. Kubernetes sets variables of the same prefix in
every pod, for services whose name starts with `darksight`; these are ignored.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from darksight_core.errors import did_you_mean
from darksight_core.rows.tags import find_problem
from darksight_service.errors import SettingsError
from darksight_service.settings.validation import first_problem, parse_origin

__all__ = ["PassiveModel", "Settings", "read_settings", "service_links"]

_PREFIX = "DARKSIGHT_"
_CONFIG = f"{_PREFIX}CONFIG"

# Names that Kubernetes derives from the name of a service, and the values of <SERVICE>_PORT, in lower case.
_LINK_NAME = re.compile(
    r"darksight(_\w+)?_(service_host|service_port(_\w+)?|port_\d+_(tcp|udp|sctp)(_(proto|port|addr))?)"
)
_LINK_URL = re.compile(r"(tcp|udp|sctp)://.*")


def _read_models(value: object) -> object:
    """The models of a text `NAME=BUNDLE,NAME=BUNDLE`; other values as they are."""
    if not isinstance(value, str):
        return value
    pairs = [part.partition("=")[::2] for part in value.split(",")]
    if not all(name.strip() and path.strip() for name, path in pairs):
        raise ValueError(f"must be NAME=BUNDLE,NAME=BUNDLE, not {value!r}")
    return {name.strip(): path.strip() for name, path in pairs}


def _read_object(value: object) -> object:
    """The object of a text in JSON; other values as they are."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError(f"must be a JSON object, not {value[:40]!r}") from None


def _check_codec(text: str) -> str:
    # `store.probabilities` reads the same forms; this module imports nothing of the store.
    if not re.fullmatch(r"float16|none|topK:[1-9][0-9]{0,3}", text):
        raise ValueError(f"must be float16, topK:<k> or none, not {text[:40]!r}")
    return text


def _read_origins(value: object) -> object:
    """Origins of a text with commas between them; other values as they are."""
    return tuple(part for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _check_origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(parse_origin(each) for each in origins)


def _check_sources(sources: dict[str, str]) -> dict[str, str]:
    problem = find_problem(dict.fromkeys(sources, "a"))
    if problem is not None:
        raise ValueError(problem)
    for key, source in sources.items():
        if not re.fullmatch(r"[a-z0-9]+|(metadata|annotations|data)\..+", source):
            raise ValueError(
                f"the source of {key} is {source[:40]!r}; it must be an attribute, metadata.NAME or data.PATH"
            )
    return sources


_Port = Annotated[int, Field(ge=0, le=65535)]
_Path = Annotated[Path, AfterValidator(Path.expanduser)]


class PassiveModel(BaseModel):
    """How the events of an inference logger become predictions of one model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    service: str = Field(
        default="",
        description="`inferenceservicename` or `modelid` of its events, or NAMESPACE/NAME; default: the model's name",
    )
    output: str = Field(
        default="", description="name of the output with the probabilities; default: the only one that fits"
    )
    logits: bool = Field(default=False, description="whether these are logits")
    tags: Annotated[dict[str, str], AfterValidator(_check_sources)] = Field(
        default={},
        description="where the value of each tag is: an attribute such as `namespace`, `metadata.HEADER`, or a path "
        "in the response such as `data.parameters.camera`",
    )


class Settings(BaseSettings):
    """All settings; the page docs/reference/settings.md is generated from them."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_ignore_empty=True, frozen=True, extra="forbid", allow_inf_nan=False
    )

    host: str = Field(
        "127.0.0.1", description="address to listen on; beyond loopback it needs TLS and tokens, or `insecure`"
    )
    grpc_port: _Port = Field(8081, description="gRPC port; 0 for any free port")
    http_port: _Port = Field(8080, description="HTTP port of /metrics and health; 0 for any free port")
    http_host: str = Field("", description="address of /metrics and health; default: that of `host`")
    http_tls: bool = Field(False, description="whether /metrics and health use TLS, with the certificate of the server")
    metrics_token: bool = Field(False, description="whether /metrics needs a token with the scope `metrics`")
    api_port: _Port | None = Field(
        None, description="port of the HTTP API; 0 for any free port; without a port there is none"
    )
    explorer_port: _Port = Field(8082, description="port of the explorer; 0 for any free port")
    explorer: bool = Field(True, description="whether `darksight serve` runs the explorer")
    workers: int = Field(
        0, ge=0, description="worker processes; 0 for one per core, each pinned to it, and on macOS for one"
    )
    data_dir: _Path = Field(Path("darksight-data"), description="data directory: all state of the service")
    models: Annotated[dict[str, _Path], NoDecode, BeforeValidator(_read_models)] = Field(
        {}, description="bundles to serve, by name of the model: a table, or `NAME=BUNDLE,NAME=BUNDLE`"
    )
    passive: Annotated[dict[str, PassiveModel], NoDecode, BeforeValidator(_read_object)] = Field(
        {}, description="how events of inference loggers are read, by name of the model: a table, or JSON; see below"
    )
    bundle_dir: _Path | None = Field(
        None, description="directory that bundles are deployed from; default: `bundles` in the data directory"
    )
    require_signature: _Path | None = Field(
        None, description="public Ed25519 key, PEM; bundles without its signature are refused (`darksight bundle sign`)"
    )
    database_url: str = Field(
        "", description="sqlite:///FILE or postgresql://...; default: SQLite in the data directory"
    )
    auto_upgrade: bool = Field(
        False,
        description="whether the service upgrades the schema of PostgreSQL at its start, as it does that of SQLite",
    )
    durability: Literal["process", "fsync"] = Field(
        "process",
        description="acknowledged points survive a crash of the process (`process`) or of the machine (`fsync`)",
    )
    spool_bytes: int = Field(
        1 << 30, ge=1, description="disk quota of each worker's spool while the database is unavailable"
    )
    keep_probabilities: Annotated[str, AfterValidator(_check_codec)] = Field(
        "float16", description="how the store keeps probabilities: `float16`, `topK:5` or `none`"
    )
    reference_dir: _Path | None = Field(
        None, description="folder of pictures, texts and sounds that the tag `reference` of a point names by their path"
    )
    reference_origins: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(_read_origins), AfterValidator(_check_origins)
    ] = Field(
        (), description="origins such as `https://images.example.com` from which the explorer may show references"
    )
    max_tag_values: int = Field(
        200, ge=1, description="values of a key of tags that the store keeps; further ones are stored as `_other`"
    )
    keep_accepted: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of accepted rows that are stored, beside all rejected, unusual and labelled ones and those "
        "drawn for an audit; all are counted. A label finds its row only if the row is stored",
    )
    audit_rate: float = Field(
        0.03, gt=0, le=1, description="share of the rows that are drawn for the audit, whose labels measure accuracy"
    )
    retention_days: float = Field(0.0, ge=0, description="age in days at which points are deleted; 0 for never")
    retention_rows: int = Field(
        0, ge=0, description="number of stored points above which the oldest are deleted; 0 for no limit"
    )
    retention_bytes: int = Field(
        0, ge=0, description="size of the store above which the oldest points are deleted; 0 for no limit"
    )
    max_message_bytes: int = Field(
        4 << 20, ge=1024, le=16 << 20, description="largest request after decompression; at most 16 MiB"
    )
    max_concurrent_calls: int = Field(
        256,
        ge=1,
        description="calls that a worker runs or queues, a quarter of them large; further calls are refused",
    )
    max_streams: int = Field(16, ge=1, description="open ScoreStream calls per worker; further calls are refused")
    stream_idle_seconds: float = Field(
        300.0, ge=0, description="time between two requests after which a ScoreStream call is ended; 0 for never"
    )
    max_connections: int = Field(
        4096, ge=1, description="gRPC connections of a worker; fewer if the limit of open files is lower"
    )
    max_connection_streams: int = Field(256, ge=1, description="concurrent calls per connection")
    connection_seconds: float = Field(
        300.0,
        ge=0,
        description="age at which a connection is closed, so that clients find new replicas; 0 for never",
    )
    grace_seconds: float = Field(30.0, gt=0, le=3600, description="time for running calls to finish after SIGTERM")
    reflection: bool = Field(False, description="whether clients may list services and messages (gRPC reflection)")
    tokens_file: _Path | None = Field(
        None, description="file of hashed bearer tokens and certificate names; see `darksight token`"
    )
    explorer_url: str = Field(
        "", description="public URL of the explorer, such as https://darksight.example.com; `oidc_issuer` needs it"
    )
    oidc_issuer: str = Field(
        "", description="issuer of an OpenID provider, through which browsers may log in; needs `tokens_file`"
    )
    oidc_client_id: str = Field("", description="client id of the explorer at the OpenID provider")
    oidc_client_secret: str = Field("", description="client secret; without one the explorer is a public client")
    oidc_scopes: str = Field("openid profile email", description="scopes that the explorer asks the provider for")
    oidc_name_claim: str = Field("email", description="claim that names a user in the audit trail; `sub` without it")
    oidc_groups_claim: str = Field("groups", description="claim with the groups of a user")
    oidc_groups: Annotated[dict[str, str], NoDecode, BeforeValidator(_read_object)] = Field(
        {},
        description='permissions by group: a table, or as JSON `{"GROUP": "SCOPES [models=A,B]"}`',
    )
    tls_cert: _Path | None = Field(None, description="certificate chain of the server, PEM")
    tls_key: _Path | None = Field(None, description="private key of the server, PEM")
    tls_client_ca: _Path | None = Field(
        None, description="certificates that must have signed those of clients (mTLS), PEM; needs `tokens_file`"
    )
    insecure: bool = Field(False, description="allow plaintext or missing tokens beyond loopback")
    max_models: int = Field(
        64, ge=1, description="versions with metrics of their own; active and shadow ones come first"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="`debug`, `info`, `warning` or `error`; probabilities are logged at `debug` only"
    )

    # Names of the settings that were read from a `_FILE` variable, and their files.
    _files: Mapping[str, Path] = PrivateAttr(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The constructor takes its arguments alone; `read_settings` merges the other sources."""
        return (init_settings,)

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, values: dict[str, Any]) -> dict[str, Any]:
        """An empty text means that the setting is not set; spaces around a text are not part of it."""
        stripped = {name: value.strip() if isinstance(value, str) else value for name, value in values.items()}
        return {name: value for name, value in stripped.items() if value != ""}

    @model_validator(mode="after")
    def _check_passive(self) -> Settings:
        seen: dict[str, str] = {}
        for model, passive in self.passive.items():
            service = passive.service or model
            if service in seen:
                raise SettingsError(
                    f"passive: the models {seen[service]!r} and {model!r} have the same service {service!r}",
                    name="passive",
                )
            seen[service] = model
        return self

    @model_validator(mode="after")
    def _check_tls(self) -> Settings:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingsError("tls_cert and tls_key must be set together", name="tls_cert")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise SettingsError("tls_client_ca needs tls_cert and tls_key", name="tls_client_ca")
        if self.tls_client_ca is not None and self.tokens_file is None:
            raise SettingsError(
                "tls_client_ca needs tokens_file, whose lines say what each certificate may do; add one with: "
                "darksight token FILE NAME --certificate --scopes score",
                name="tls_client_ca",
            )
        if self.http_tls and self.tls_cert is None:
            raise SettingsError("http_tls needs tls_cert and tls_key", name="http_tls")
        if self.metrics_token and self.tokens_file is None:
            raise SettingsError("metrics_token needs tokens_file", name="metrics_token")
        return self

    @model_validator(mode="after")
    def _check_exposure(self) -> Settings:
        """Beyond loopback the service needs TLS and tokens, unless `insecure` is set."""
        if self.insecure or _is_loopback(self.host):
            return self
        missing = [] if self.tls_cert else ["TLS (tls_cert, tls_key)"]
        if not self.tokens_file:
            missing.append("tokens (tokens_file)")
        if missing:
            raise SettingsError(
                f"host {self.host} is not loopback, so the service needs {' and '.join(missing)}; "
                f"set {_PREFIX}INSECURE=true to serve without them in a trusted network",
                host=self.host,
            )
        return self

    @model_validator(mode="after")
    def _check_oidc(self) -> Settings:
        if not self.oidc_issuer:
            return self
        for name, why in (
            ("tokens_file", "without it everybody may call the service"),
            ("oidc_client_id", "the provider knows the explorer by it"),
            ("oidc_groups", "without it no group permits anything"),
            ("explorer_url", "the provider sends browsers back to it"),
        ):
            if not getattr(self, name):
                raise SettingsError(f"oidc_issuer needs {name}: {why}", name=name)
        for name in ("oidc_issuer", "explorer_url"):
            if not _is_secure_url(getattr(self, name)):
                raise SettingsError(f"{name} must be a URL with https, or with http of this machine", name=name)
        if "openid" not in self.oidc_scopes.split():
            raise SettingsError("oidc_scopes must have the scope openid", name="oidc_scopes")
        return self

    @property
    def bundles(self) -> Path:
        """Directory that bundles are deployed from."""
        return self.data_dir / "bundles" if self.bundle_dir is None else self.bundle_dir

    @property
    def store_url(self) -> str:
        """URL of the database."""
        return self.database_url or f"sqlite:///{self.data_dir.absolute() / 'darksight.db'}"

    def read_store_url(self) -> str:
        """URL of the database; if it came from a file, the current content of the file."""
        file = self._files.get("database_url")
        try:
            return self.store_url if file is None else file.read_text(encoding="utf-8").strip()
        except OSError:
            # The file is being replaced.
            return self.store_url

    @property
    def upgrades_store(self) -> bool:
        """Whether the service runs missing migrations itself."""
        return self.auto_upgrade or self.store_url.startswith("sqlite")

    @property
    def http_url(self) -> str:
        """Address of /metrics and health, without the port."""
        host = self.http_host or self.host
        return f"{'https' if self.http_tls else 'http'}://{f'[{host}]' if ':' in host else host}"

    @property
    def worker_count(self) -> int:
        """Number of worker processes."""
        # Elsewhere than on Linux, processes can neither be pinned nor share a port evenly.
        return self.workers or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)

    def environment(self) -> dict[str, str]:
        """Environment variables that give a child process the same settings.

        Without those that were read from a file, whose name the child inherits, and without the models, which are in
        the state file.
        """
        values = self.model_dump(exclude_none=True, exclude={"models", *self._files})
        return {_variable(name): _as_text(value) for name, value in values.items()}


class _Environment(EnvSettingsSource):
    """Variables of the process, with `_FILE` variables; an unknown `DARKSIGHT_*` variable is an error."""

    def __init__(self) -> None:
        super().__init__(Settings)
        self.files: dict[str, Path] = {}

    def __call__(self) -> dict[str, Any]:
        found = super().__call__()
        # pydantic-settings has lowered the names.
        for variable, value in self.env_vars.items():
            name = variable.removeprefix(_PREFIX.lower())
            if name == variable or variable == _CONFIG.lower():
                continue
            if _is_service_link(variable, str(value)):
                found.pop(name, None)
                continue
            if name in Settings.model_fields:
                continue
            target = name.removesuffix("_file")
            if target == name or target not in Settings.model_fields:
                raise _unknown(variable.upper(), target)
            if target not in found:
                found[target] = _read_secret(variable.upper(), str(value))
                self.files[target] = Path(str(value)).absolute()
        return found


def read_settings(file: Path | None = None, **options: object) -> Settings:
    """Read the settings from all sources.

    Parameters
    ----------
    file
        TOML file; by default the file that `DARKSIGHT_CONFIG` names, if any.
    options
        Values by name that override every other source; None for an option that was not given.
    """
    if file is None and os.environ.get(_CONFIG):
        file = Path(os.environ[_CONFIG])
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    environment = _Environment()
    try:
        settings = Settings(**{**_read_file(file), **environment(), **given})
        settings._files = {name: path for name, path in environment.files.items() if name not in given}
        return settings
    except ValidationError as error:
        path, problem = first_problem(error)
        name = path.partition(".")[0]
        origin = _origin(name, given, file) + path.removeprefix(name)
        if name not in Settings.model_fields:
            raise _unknown(origin, name) from None
        raise SettingsError(f"{origin} {problem}", name=name) from None


def service_links() -> list[str]:
    """Names of the variables that Kubernetes set for services, and that settings ignore."""
    return sorted(name for name, value in os.environ.items() if _is_service_link(name.lower(), value))


def _is_service_link(variable: str, value: str) -> bool:
    is_url = variable.startswith(_PREFIX.lower()) and variable.endswith("_port") and _LINK_URL.fullmatch(value)
    return bool(is_url or _LINK_NAME.fullmatch(variable))


def _read_file(file: Path | None) -> dict[str, Any]:
    # pydantic-settings takes a missing file for an empty one.
    if file is not None and not file.is_file():
        raise SettingsError(f"{file}: the settings file does not exist", file=str(file))
    try:
        return TomlConfigSettingsSource(Settings, file)()
    except OSError as error:
        raise SettingsError(f"{file}: cannot be read: {error.strerror}", file=str(file)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: is not TOML: {error}", file=str(file)) from error


def _read_secret(variable: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError(f"{variable}: {path} cannot be read: {error.strerror}", name=variable) from error


def _origin(name: str, given: dict[str, object], file: Path | None) -> str:
    """Where the value of a setting came from, for error messages."""
    if name in given:
        return f"setting {name}"
    variables = (_variable(name), f"{_variable(name)}_FILE")
    return next((each for each in variables if each in os.environ), f"{file}: {name}")


def _unknown(origin: str, name: str) -> SettingsError:
    hint = did_you_mean(name, Settings.model_fields, "the documentation lists all settings")
    return SettingsError(f"{origin} is not a setting; {hint}", name=name)


def _variable(name: str) -> str:
    return _PREFIX + name.upper()


def _as_text(value: object) -> str:
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_secure_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (
            parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.hostname or ""))
        )
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
