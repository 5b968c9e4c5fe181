from __future__ import annotations

from pathlib import Path

import pytest
from darksight_service.errors import SettingsError
from darksight_service.settings import Settings, read_settings
from darksight_service.settings import service_links as ignored_links

from tests.support.replicas import service_links


@pytest.fixture
def setenv(monkeypatch: pytest.MonkeyPatch):
    """Sets variables of the environment."""

    def set_all(variables: dict[str, str]) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_all


def test_options_override_the_environment_and_that_the_file(tmp_path: Path, setenv):
    """Three sources, in a fixed order."""
    file = tmp_path / "darksight.toml"
    file.write_text('grpc_port = 1\nhttp_port = 2\nworkers = 3\nlog_level = "debug"\nreflection = true\n')
    setenv({"DARKSIGHT_HTTP_PORT": "20", "DARKSIGHT_WORKERS": "30"})

    settings = read_settings(file, workers=300, host=None)

    assert (settings.grpc_port, settings.http_port, settings.workers) == (1, 20, 300)
    assert (settings.log_level, settings.reflection, settings.host) == ("debug", True, "127.0.0.1")


def test_a_variable_can_name_the_file(tmp_path: Path, setenv):
    """DARKSIGHT_CONFIG is the file of every command that reads settings."""
    file = tmp_path / "darksight.toml"
    file.write_text("workers = 3\n")
    setenv({"DARKSIGHT_CONFIG": str(file)})

    assert read_settings().workers == 3


def test_settings_travel_to_a_child_process_unchanged(setenv):
    """The supervisor passes its settings on through the environment."""
    settings = read_settings(data_dir=Path("x"), reflection=True, retention_days=1.5, database_url="sqlite:///y")
    setenv(settings.environment())

    assert read_settings() == settings


def test_how_events_are_read_is_a_table_or_json(tmp_path: Path, setenv):
    """Both give the same, also to a child process; mistakes name the place."""
    file = tmp_path / "darksight.toml"
    file.write_text('[passive.digits]\nservice = "team/digits"\noutput = "probs"\n\n[passive.other]\nlogits = true\n')
    settings = read_settings(file)
    setenv({"DARKSIGHT_PASSIVE": settings.environment()["DARKSIGHT_PASSIVE"]})

    assert settings.passive["digits"].service == "team/digits"
    assert settings.passive["other"].logits
    assert read_settings().passive == settings.passive


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("digits", "must be a JSON object"),
        ('{"digits": {"out": 1}}', r"DARKSIGHT_PASSIVE\.digits\.out"),
        ('{"digits": {}, "other": {"service": "digits"}}', "the same service 'digits'"),
        ('{"digits": {"tags": {"Camera": "namespace"}}}', "'Camera' is not a key"),
        ('{"digits": {"tags": {"camera": "request.camera"}}}', "the source of camera is 'request.camera'"),
    ],
)
def test_mistakes_in_how_events_are_read(setenv, text: str, words: str):
    """Not JSON, an unknown field, and two models of one service."""
    setenv({"DARKSIGHT_PASSIVE": text})

    with pytest.raises(SettingsError, match=words):
        read_settings()


def test_a_secret_can_be_read_from_a_file(tmp_path: Path, setenv):
    """NAME_FILE names a file with the value of NAME; the variable NAME itself comes first."""
    secret = tmp_path / "url"
    secret.write_text("postgresql://user:word@host/db\n")
    setenv({"DARKSIGHT_DATABASE_URL_FILE": str(secret)})

    assert read_settings().database_url == "postgresql://user:word@host/db"

    setenv({"DARKSIGHT_DATABASE_URL": "sqlite:///x"})
    assert read_settings().database_url == "sqlite:///x"


def test_the_content_of_a_secret_file_is_not_passed_on(tmp_path: Path, setenv):
    """A child process inherits the name of the file, and reads what is in it now."""
    secret = tmp_path / "url"
    secret.write_text("postgresql://user:first@host/db\n")
    setenv({"DARKSIGHT_DATABASE_URL_FILE": str(secret)})
    settings = read_settings()
    setenv(settings.environment())

    assert not any("first" in value for value in settings.environment().values())
    assert read_settings() == settings
    secret.write_text("postgresql://user:second@host/db\n")
    assert settings.read_store_url() == "postgresql://user:second@host/db"
    assert read_settings(database_url="sqlite:///x").environment()["DARKSIGHT_DATABASE_URL"] == "sqlite:///x"


def test_service_links_of_kubernetes_are_ignored(setenv):
    """Also where their name is that of a setting; a mistake in the name of a setting is still an error."""
    setenv(service_links())

    assert read_settings() == Settings()
    assert "DARKSIGHT_HTTP_PORT" in ignored_links()
    setenv({"DARKSIGHT_HTPP_PORT": "8080"})
    with pytest.raises(SettingsError, match="DARKSIGHT_HTPP_PORT is not a setting"):
        read_settings()


def test_models_come_from_a_table_or_a_variable(tmp_path: Path, setenv):
    """A TOML table has names and bundles, a variable has pairs of them."""
    file = tmp_path / "darksight.toml"
    file.write_text('[models]\ndigits = "digits.safetensors"\nother = "/b/other.safetensors"\n')

    settings = read_settings(file)
    file.write_text("[models]\ndigits = 3\n")
    with pytest.raises(SettingsError, match=r"darksight.toml: models.digits must be a path, not 3"):
        read_settings(file)
    setenv({"DARKSIGHT_MODELS": "digits=digits.safetensors, other=/b/other.safetensors"})

    assert settings.models == {"digits": Path("digits.safetensors"), "other": Path("/b/other.safetensors")}
    assert read_settings() == settings


def test_an_empty_variable_is_not_set(setenv):
    """As compose files write a variable that nobody has given a value."""
    setenv({"DARKSIGHT_TOKENS_FILE": "", "DARKSIGHT_WORKERS": ""})

    assert (read_settings().tokens_file, read_settings().workers) == (None, 0)


def test_a_path_may_begin_with_the_home_directory(setenv):
    """A tilde is expanded."""
    setenv({"DARKSIGHT_DATA_DIR": "~/data"})

    assert read_settings().data_dir == Path.home() / "data"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"DARKSIGHT_WORKRES": "2"}, "DARKSIGHT_WORKRES is not a setting; did you mean workers?"),
        ({"DARKSIGHT_QZX": "2"}, "DARKSIGHT_QZX is not a setting; the documentation lists all settings"),
        ({"DARKSIGHT_WORKRES_FILE": "2"}, "DARKSIGHT_WORKRES_FILE is not a setting; did you mean workers?"),
        ({"DARKSIGHT_WORKERS": "two"}, "DARKSIGHT_WORKERS must be a whole number, not 'two'"),
        ({"DARKSIGHT_REFLECTION": "perhaps"}, "DARKSIGHT_REFLECTION must be true or false, not 'perhaps'"),
        ({"DARKSIGHT_RETENTION_DAYS": "nan"}, "DARKSIGHT_RETENTION_DAYS must be a finite number, not 'nan'"),
        ({"DARKSIGHT_GRPC_PORT": "70000"}, "DARKSIGHT_GRPC_PORT must be at most 65535, not '70000'"),
        ({"DARKSIGHT_MAX_MESSAGE_BYTES": "9"}, "DARKSIGHT_MAX_MESSAGE_BYTES must be at least 1024, not '9'"),
        ({"DARKSIGHT_MODELS": "digits"}, "DARKSIGHT_MODELS must be NAME=BUNDLE,NAME=BUNDLE, not 'digits'"),
        ({"DARKSIGHT_DURABILITY": "perhaps"}, "DARKSIGHT_DURABILITY must be process or fsync, not 'perhaps'"),
        ({"DARKSIGHT_TLS_CERT": "cert.pem"}, "tls_cert and tls_key must be set together"),
        ({"DARKSIGHT_TLS_CLIENT_CA": "ca.pem"}, "tls_client_ca needs tls_cert and tls_key"),
        (
            {"DARKSIGHT_DATABASE_URL_FILE": "no-such-file"},
            "DARKSIGHT_DATABASE_URL_FILE: no-such-file cannot be read: No such file or directory",
        ),
        (
            {"DARKSIGHT_HOST": "0.0.0.0", "DARKSIGHT_TOKENS_FILE": "t"},
            "host 0.0.0.0 is not loopback, so the service needs TLS (tls_cert, tls_key); "
            "set DARKSIGHT_INSECURE=true to serve without them in a trusted network",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_bad_variable_is_refused_by_name(setenv, variables: dict[str, str], message: str):
    """One sentence says which variable is wrong and what it must be."""
    setenv(variables)

    with pytest.raises(SettingsError) as refused:
        read_settings()

    assert refused.value.message == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workers = ", "darksight.toml: is not TOML: Invalid value (at end of document)"),
        ('workers = "two"', "darksight.toml: workers must be a whole number, not 'two'"),
        ("workres = 2", "darksight.toml: workres is not a setting; did you mean workers?"),
        (None, "darksight.toml: the settings file does not exist"),
    ],
    ids=["not TOML", "value", "name", "missing"],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, message: str):
    """One sentence names the file and the setting."""
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("darksight.toml").write_text(text)

    with pytest.raises(SettingsError) as refused:
        read_settings(Path("darksight.toml"))

    assert refused.value.message == message


def test_a_bad_option_is_refused_by_name():
    """Options of a command are settings, too."""
    with pytest.raises(SettingsError, match=r"^setting workers must be at least 0, not -1$"):
        read_settings(workers=-1)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_needs_neither_tls_nor_tokens(host: str):
    """A first try needs no certificates."""
    assert read_settings(host=host).host == host


def test_serving_beyond_loopback_without_tls_needs_a_setting_of_its_own():
    """`insecure` allows it."""
    assert read_settings(host="0.0.0.0", insecure=True).insecure
