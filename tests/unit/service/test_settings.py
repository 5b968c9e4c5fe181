from __future__ import annotations

from pathlib import Path

import pytest
from darksight_service.errors import SettingsError
from darksight_service.settings import Settings, read_settings, setting_names


def test_options_win_over_the_environment_and_that_over_the_file(tmp_path: Path):
    """Three sources, in a fixed order."""
    file = tmp_path / "darksight.toml"
    file.write_text('grpc_port = 1\nhttp_port = 2\nworkers = 3\nlog_level = "debug"\nreflection = true\n')

    settings = read_settings(file, {"DARKSIGHT_HTTP_PORT": "20", "DARKSIGHT_WORKERS": "30", "HOME": "/"}, workers=300)

    assert (settings.grpc_port, settings.http_port, settings.workers) == (1, 20, 300)
    assert (settings.log_level, settings.reflection) == ("debug", True)


def test_settings_travel_to_a_child_process_unchanged():
    """The supervisor hands its settings on through the environment."""
    settings = read_settings(
        None, {}, data_dir=Path("x"), reflection=True, retention_days=1.5, database_url="sqlite:///y"
    )

    assert read_settings(None, settings.environment()) == settings


def test_a_secret_can_be_read_from_a_file(tmp_path: Path):
    """NAME_FILE names a file with the value of NAME."""
    secret = tmp_path / "url"
    secret.write_text("postgresql://user:word@host/db\n")

    settings = read_settings(None, {"DARKSIGHT_DATABASE_URL_FILE": str(secret)})

    assert settings.database_url == "postgresql://user:word@host/db"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"DARKSIGHT_WORKRES": "2"}, "'workres' is not a setting"),
        ({"DARKSIGHT_WORKERS": "two"}, "workers must be a whole number, not 'two'"),
        ({"DARKSIGHT_REFLECTION": "perhaps"}, "reflection must be true or false"),
        ({"DARKSIGHT_GRPC_PORT": "70000"}, "grpc_port must be a port"),
        ({"DARKSIGHT_MAX_MESSAGE_BYTES": "100000000"}, "max_message_bytes must be"),
        ({"DARKSIGHT_DURABILITY": "perhaps"}, "durability must be process or fsync"),
        ({"DARKSIGHT_TLS_CERT": "cert.pem"}, "together with tls_key"),
        ({"DARKSIGHT_DATABASE_URL_FILE": "no-such-file"}, "cannot be read"),
        ({"DARKSIGHT_HOST": "0.0.0.0"}, "needs TLS"),
        ({"DARKSIGHT_HOST": "db.example", "DARKSIGHT_TLS_CERT": "c", "DARKSIGHT_TLS_KEY": "k"}, "needs tokens"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_bad_setting_is_refused_by_name(variables: dict[str, str], words: str):
    """Nothing is ignored and nothing is guessed."""
    with pytest.raises(SettingsError, match=words):
        read_settings(None, variables)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_needs_neither_tls_nor_tokens(host: str):
    """The first minute is without certificates."""
    assert read_settings(None, {"DARKSIGHT_HOST": host}).host == host


def test_the_world_can_be_served_without_tls_only_if_that_is_said_loudly():
    """One setting, with a name that cannot be overlooked."""
    assert read_settings(None, {"DARKSIGHT_HOST": "0.0.0.0", "DARKSIGHT_INSECURE": "true"}).insecure


def test_a_bad_file_is_named(tmp_path: Path):
    """What, where and why."""
    file = tmp_path / "darksight.toml"
    file.write_text("workers = ")

    with pytest.raises(SettingsError, match=r"darksight\.toml: is not TOML"):
        read_settings(file, {})


def test_every_setting_has_a_text():
    """`service/README.md` is checked against the same list."""
    assert all(setting_names().values())
    assert set(setting_names()) == set(Settings.__dataclass_fields__)
