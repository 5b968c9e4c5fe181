"""What goes into an image is what the repository names."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from darksight_service.control.tokens import TokenFile
from darksight_service.errors import ForbiddenError
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "deploy" / "requirements.txt").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))["services"]


def locked() -> dict[str, str]:
    """Versions of the packages of the image."""
    return {canonicalize_name(name): version for name, version in re.findall(r"(?m)^([\w.-]+)==(\S+)", LOCK)}


def test_every_package_of_the_image_has_hashes() -> None:
    """pip refuses a file with another hash; torch is not part of the service."""
    blocks = re.split(r"(?m)^(?=[\w.-]+==)", re.sub(r"(?m)^#.*\n", "", LOCK))

    assert len(locked()) > 30
    assert [block for block in blocks if block.strip() and not re.search(r"--hash=sha256:[0-9a-f]{64}", block)] == []
    assert "torch" not in locked()
    assert not re.search(r"https?://|--index", LOCK)


def test_the_packages_are_those_that_the_project_asks_for() -> None:
    """Within the ranges of pyproject.toml and of constraints.txt, which are tested together."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["service"], "setuptools>=77"]
    tested = re.findall(r"(?m)^[a-zA-Z][^#\n]*", (ROOT / "constraints.txt").read_text(encoding="utf-8"))
    versions = locked()

    assert [text for text in wanted if canonicalize_name(Requirement(text).name) not in versions] == []
    for text in (*wanted, *tested):
        requirement = Requirement(text)
        version = versions.get(canonicalize_name(requirement.name))
        assert version is None or requirement.specifier.contains(version, prereleases=True), text


def test_the_image_installs_by_hash_alone() -> None:
    """Nothing is built, and no dependency is looked up."""
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")

    assert "--require-hashes --only-binary :all: -r requirements.txt" in text
    assert "--no-deps --no-build-isolation ." in text
    ignored = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert "!deploy/requirements.txt" in ignored


@pytest.mark.parametrize(
    ("image", "oldest"),
    [("postgres", (17,)), ("prom/prometheus", (3, 13)), ("prom/alertmanager", (0, 34)), ("grafana/grafana", (13, 2))],
)
def test_images_of_others_are_current(image: str, oldest: tuple[int, ...]) -> None:
    """Releases that still get security fixes."""
    tags = [each["image"].partition(":")[2] for each in COMPOSE.values() if each["image"].startswith(f"{image}:")]

    assert tags
    for tag in tags:
        numbers = tuple(int(number) for number in re.findall(r"\d+", tag))
        assert numbers >= oldest


def test_grafana_needs_a_login() -> None:
    """Dashboards show names of models and their traffic."""
    environment = COMPOSE["grafana"]["environment"]

    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    assert environment["GF_USERS_ALLOW_SIGN_UP"] == "false"
    assert "GF_SECURITY_ADMIN_PASSWORD__FILE" in environment


def test_containers_beside_the_service_need_a_token(tmp_path: Path) -> None:
    """Everything in the network of the compose file could deploy models and change gates."""
    script = COMPOSE["secrets"]["command"][0].replace("$$", "$").replace("/secrets", str(tmp_path))
    run = ["sh", "-euc", f"chown() {{ :; }}\n{script}"]
    subprocess.run(run, check=True, timeout=60)
    made = (tmp_path / "tokens").read_text()
    subprocess.run(run, check=True, timeout=60)

    assert COMPOSE["darksight"]["environment"]["DARKSIGHT_TOKENS_FILE"] == "/secrets/tokens"
    assert (tmp_path / "tokens").read_text() == made
    tokens = TokenFile(tmp_path / "tokens")
    tokens.check()
    secrets = {name: (tmp_path / f"{name}_token").read_text() for name in ("operator", "gateway")}
    assert tokens.permit(f"Bearer {secrets['operator']}", "admin").name == "operator"
    assert tokens.permit(f"Bearer {secrets['gateway']}", "score").name == "gateway"
    with pytest.raises(ForbiddenError):
        tokens.permit(f"Bearer {secrets['gateway']}", "admin")


def test_the_threat_model_names_who_what_and_which_door() -> None:
    """SECURITY.md has a row for each, and says what does not hold."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]

    assert rows[0] == ["who", "what they want", "door", "what holds", "what does not"]
    assert len(rows) >= 8
    assert all(len(row) == 5 and all(row) for row in rows)


def test_the_table_of_attacks_has_a_row_for_every_file_of_tests() -> None:
    """docs/security.md says what was tried, how often, and what happened."""
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]

    assert [row for row in rows if row[0] == "attack"] == [
        ["attack", "door", "count", "before", "after"],
        ["attack", "count", "result"],
    ]
    assert len(rows) > len(list(Path(__file__).parent.glob("test_*.py")))
    assert {len(row) for row in rows} == {3, 5}
