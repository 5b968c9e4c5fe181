"""Login through an OpenID provider: what it permits, and the attacks that it must withstand."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import requests
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from darksight_service.control.tokens import Grant, make_token, permit_by_grants
from darksight_service.errors import ForbiddenError, SettingsError
from darksight_service.http.explorer import oidc
from darksight_service.http.explorer.app import make_app
from darksight_service.http.web.server import WebServer
from darksight_service.http.web.sockets import EXPLORER, listen
from darksight_service.processes.explorer import _sources
from darksight_service.processes.start_checks import check_files
from darksight_service.settings import Settings, read_settings
from playwright.sync_api import expect

from tests.support.browser import running_browser
from tests.support.openid import CLIENT_ID, CLIENT_SECRET, OpenIdProvider, hmac_signer, running_provider

GROUPS = {
    "analysts": "read",
    "digits-admins": "read,admin models=digits",
    "letters-admins": "read,admin models=letters",
    "robots": "score",
}
SECRET, TOKEN = make_token("operator", ["read", "admin"])


@dataclass(frozen=True, slots=True)
class Site:
    """An explorer and its provider."""

    url: str
    provider: OpenIdProvider
    settings: Settings


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An explorer on real sockets, which knows a provider."""
    folder = tmp_path_factory.mktemp("explorer")
    (folder / "tokens").write_text(TOKEN.line())
    # Another site than the explorer: browsers tell them apart by name.
    with running_provider("localhost") as provider:
        given: dict[str, Any] = {
            "data_dir": folder,
            "tokens_file": folder / "tokens",
            "explorer_port": 0,
            "oidc_issuer": provider.issuer,
            "oidc_client_id": CLIENT_ID,
            "oidc_client_secret": CLIENT_SECRET,
            "oidc_groups": GROUPS,
        }
        bound = listen(Settings(data_dir=folder, explorer_port=0), "explorer_port")
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        settings = Settings(**given, explorer_url=url)
        check_files(settings)
        server = WebServer(make_app(_sources(settings, folder / "counts")), settings, bound, EXPLORER)
        server.start()
        yield Site(url, provider, settings)
        server.stop(10.0)


@pytest.fixture
def browser(site: Site) -> Iterator[httpx.Client]:
    """A browser without cookies, at a provider that says the truth."""
    site.provider.reset()
    with httpx.Client(base_url=site.url, headers={"origin": site.url}, timeout=60.0, verify=False) as client:
        yield client


def begin(browser: httpx.Client, target: str = "/map") -> str:
    """Start a login; returns the URL that the provider sends the browser back to."""
    started = browser.get("/oidc/login", params={"next": target})
    assert started.status_code == 303, started.text
    return httpx.get(started.headers["location"], timeout=60.0).headers["location"]


def session(browser: httpx.Client) -> dict[str, Any]:
    """The session; empty without one."""
    found = browser.get("/api/session")
    return found.json() if found.is_success else {}


def test_a_user_logs_in_and_out(site: Site, browser: httpx.Client) -> None:
    """The session has the name and the scopes of the user, and its cookie is for this site alone."""
    returned = browser.get(begin(browser, "/map?model=digits"))

    assert (returned.status_code, returned.headers["location"]) == (303, "/login?next=%2Fmap%3Fmodel%3Ddigits")
    cookies = returned.headers.get_list("set-cookie")
    assert any(each.startswith("darksight=") and "HttpOnly" in each and "SameSite=strict" in each for each in cookies)
    found = session(browser)
    assert (found["name"], found["scopes"]) == ("oidc:ann@example.com", ["read"])
    assert browser.get("/api/models").status_code == 200
    ended = browser.post("/api/logout")
    url = urlsplit(ended.json()["url"])
    assert ended.json()["url"].startswith(f"{site.provider.issuer}/logout?")
    assert parse_qs(url.query)["post_logout_redirect_uri"] == [f"{site.url}/login"]
    assert len(parse_qs(url.query)["id_token_hint"][0].split(".")) == 3
    assert session(browser) == {}


def test_a_browser_logs_in_and_is_shown_the_page_it_asked_for(site: Site) -> None:
    """The provider is another site, from which a browser sends no strict cookie."""
    site.provider.reset()
    with running_browser() as chromium:
        page = chromium.new_context(base_url=site.url).new_page()
        page.set_default_timeout(60_000)
        page.goto("/points?model=digits")
        page.get_by_role("link", name="single sign-on").click()
        expect(page.locator("#who")).to_have_text("oidc:ann@example.com")
        expect(page).to_have_url(re.compile(r"/points\?model=digits$"))
        page.get_by_role("button", name="Log out").click()
        expect(page).to_have_url(f"{site.url}/login")
        site.provider.claims = {"groups": []}
        page.get_by_role("link", name="single sign-on").click()
        expect(page.get_by_role("alert")).to_contain_text("no group of oidc:ann@example.com")


def test_tokens_work_beside_it(browser: httpx.Client) -> None:
    """Also while the provider does not answer."""
    page = browser.get("/login").text
    assert "/oidc/login" in page
    assert 'id="token"' in page

    assert browser.post("/api/login", json={"token": SECRET}).status_code == 200

    assert session(browser)["name"] == "operator"
    assert browser.post("/api/logout").json() == {"ok": True, "url": ""}


@pytest.mark.parametrize(
    ("groups", "scopes", "digits", "letters"),
    [
        (["analysts"], ["read"], 404, 404),
        (["digits-admins"], ["read", "admin"], 404, 403),
        (["analysts", "digits-admins", "unknown"], ["read", "admin"], 404, 404),
        ("letters-admins", ["read", "admin"], 403, 404),
    ],
)
def test_groups_give_scopes_and_models(
    site: Site, browser: httpx.Client, groups: Any, scopes: list[str], digits: int, letters: int
) -> None:
    """Those of all groups together; 404 is what a permitted model that does not exist gives."""
    site.provider.claims = {"groups": groups}

    assert browser.get(begin(browser)).status_code == 303

    assert session(browser)["scopes"] == scopes
    found = [browser.get("/api/map", params={"model": model}).status_code for model in ("digits", "letters")]
    assert found == [digits, letters]


def test_a_scope_is_for_the_models_of_its_group() -> None:
    """One who reads all models and changes one does not change all."""
    grants = [Grant.read(GROUPS[name], name) for name in ("analysts", "digits-admins", "letters-admins")]

    assert permit_by_grants("ann", grants, "read").models is None
    assert permit_by_grants("ann", grants, "admin").models == {"digits", "letters"}
    with pytest.raises(ForbiddenError):
        permit_by_grants("ann", grants, "report")


@pytest.mark.parametrize("groups", [None, [], ["strangers"], ["robots"], 5, {"analysts": 1}, [["analysts"]]])
def test_a_user_without_a_group_that_may_read_is_refused(site: Site, browser: httpx.Client, groups: Any) -> None:
    """Whoever the provider knows is not yet a user of this service."""
    site.provider.claims = {"groups": groups}

    returned = browser.get(begin(browser))

    assert returned.status_code == 403
    assert "no group of oidc:ann@example.com" in returned.text
    assert session(browser) == {}


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"email": None}, "oidc:user-1"),
        ({"email_verified": False}, "oidc:user-1"),
        ({"email_verified": None}, "oidc:user-1"),
        ({"email_verified": "true"}, "oidc:user-1"),
        ({"email": 5}, "oidc:user-1"),
        ({"email": "operator"}, "oidc:operator"),
    ],
)
def test_the_name_of_a_user_is_not_that_of_a_token(
    site: Site, browser: httpx.Client, claims: dict[str, Any], name: str
) -> None:
    """An address that was not checked is not used; a prefix keeps users and tokens apart."""
    site.provider.claims = claims

    browser.get(begin(browser))

    assert session(browser)["name"] == name


def stranger_key() -> Callable[[bytes], bytes]:
    """Signs with a key that the provider does not have."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return lambda data: key.sign(data, padding.PKCS1v15(), hashes.SHA256())


def public_pem(provider: OpenIdProvider) -> bytes:
    """The published key as text, which some libraries took for the secret of HS256."""
    kinds = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return provider.key.public_key().public_bytes(*kinds)


NOW = int(time.time())
LIES: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[OpenIdProvider], Any] | None]] = {
    "wrong nonce": ({"nonce": "another"}, {}, None),
    "no nonce": ({"nonce": None}, {}, None),
    "expired": ({"exp": NOW - 3600, "iat": NOW - 7200}, {}, None),
    "no expiry": ({"exp": None}, {}, None),
    "expiry is no number": ({"exp": "tomorrow"}, {}, None),
    "not yet valid": ({"nbf": NOW + 7200}, {}, None),
    "issued in the future": ({"iat": NOW + 7200, "exp": NOW + 9000}, {}, None),
    "wrong audience": ({"aud": "another"}, {}, None),
    "no audience": ({"aud": None}, {}, None),
    "for another party": ({"aud": [CLIENT_ID, "another"], "azp": "another"}, {}, None),
    "wrong issuer": ({"iss": "https://evil.example"}, {}, None),
    "no subject": ({"sub": None}, {}, None),
    "of another access token": ({"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"}, {}, None),
    "wrong signature": ({}, {}, lambda _: stranger_key()),
    "no signature": ({}, {}, lambda _: lambda data: b""),
    "unknown key": ({}, {"kid": "unknown"}, lambda _: stranger_key()),
    "alg none": ({}, {"alg": "none"}, lambda _: lambda data: b""),
    "alg None": ({}, {"alg": "None"}, lambda _: lambda data: b""),
    "signed with the client secret": ({}, {"alg": "HS256"}, lambda _: hmac_signer(CLIENT_SECRET.encode())),
    "signed with the public key": ({}, {"alg": "HS256"}, lambda provider: hmac_signer(public_pem(provider))),
    "key in the header": ({}, {"jwk": {"kty": "oct", "k": "AAAA"}, "alg": "HS256"}, lambda _: hmac_signer(b"\0\0\0")),
}
"""Claims and headers that are not right, and other signatures."""


@pytest.mark.parametrize("lie", LIES)
def test_an_id_token_that_is_not_right_is_refused(site: Site, browser: httpx.Client, lie: str) -> None:
    """It comes over a connection that the explorer made, and is checked all the same."""
    claims, header, sign = LIES[lie]
    site.provider.claims, site.provider.header = claims, {**site.provider.header, **header}
    if sign is not None:
        site.provider.sign = sign(site.provider)

    returned = browser.get(begin(browser))

    assert returned.status_code == 401
    assert "the ID token of the provider is not valid" in returned.text
    assert session(browser) == {}


def test_a_new_key_of_the_provider_is_taken_up(site: Site, browser: httpx.Client) -> None:
    """At the first token that is signed with it; else the keys are not read again."""
    browser.get(begin(browser))
    before = site.provider.keys_read
    site.provider.rotate()

    assert browser.get(begin(browser)).status_code == 303
    assert browser.get(begin(browser)).status_code == 303
    assert site.provider.keys_read == before + 1


def changed(url: str, **parameters: str) -> httpx.URL:
    """A URL with other parameters."""
    return httpx.URL(url).copy_merge_params(parameters)


def test_an_answer_to_another_login_is_refused(site: Site, browser: httpx.Client) -> None:
    """A wrong state, none, and the answer that another browser got, which would log the victim in as the attacker."""
    with httpx.Client(base_url=site.url, timeout=60.0, verify=False) as attacker:
        stolen = begin(attacker)
    url = begin(browser)

    for forged in (changed(url, state="wrong"), httpx.URL(url).copy_remove_param("state"), stolen):
        refused = browser.get(forged)
        assert refused.status_code == 401
        assert "another login" in refused.text or "this browser" in refused.text
        assert session(browser) == {}
        url = begin(browser)
    browser.cookies.clear()
    assert browser.get(url).status_code == 401


def test_a_code_of_another_login_is_refused(site: Site, browser: httpx.Client) -> None:
    """Its PKCE verifier is in the browser that started it: an injected code is worth nothing."""
    with httpx.Client(base_url=site.url, timeout=60.0, verify=False) as attacker:
        code = httpx.URL(begin(attacker)).params["code"]

    refused = browser.get(changed(begin(browser), code=code))

    assert refused.status_code == 401
    assert "refused the code" in refused.text


def test_an_answer_is_for_one_use(browser: httpx.Client) -> None:
    """With the cookie of the login still there, which a browser deletes."""
    url = begin(browser)
    cookies = dict(browser.cookies)
    assert browser.get(url).status_code == 303
    browser.cookies.clear()
    browser.cookies.update(cookies)

    again = browser.get(url)

    assert again.status_code == 401
    assert "refused the code" in again.text


def test_a_login_is_finished_once_whatever_the_provider_does(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it takes a code twice. Answers that are refused take no memory: anybody can send them."""
    site.provider.reset()
    provider = oidc.Provider(site.settings)
    url, sealed = provider.start("/")
    answer = dict(httpx.URL(httpx.get(url, timeout=60.0).headers["location"]).params)
    for wrong in ({**answer, "error": "denied"}, {**answer, "iss": "https://evil.example"}, {**answer, "code": ""}):
        with pytest.raises(oidc.UnauthenticatedError):
            provider.finish(wrong, sealed)
    assert provider._finished == {}
    token = provider._exchange(answer["code"], provider._unseal(sealed)["verifier"])
    monkeypatch.setattr(provider, "_exchange", lambda *_: token)

    assert provider.finish(answer, sealed)[0].name == "oidc:ann@example.com"
    with pytest.raises(oidc.UnauthenticatedError, match="finished before"):
        provider.finish(answer, sealed)


def test_few_logins_wait_for_a_provider_that_hangs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers can start logins, and the threads that wait are needed for the pages of others."""
    provider = oidc.Provider(site.settings)
    waiting, ended = threading.Semaphore(0), threading.Event()

    def hang(*_: Any, **__: Any) -> None:
        waiting.release()
        ended.wait(60.0)
        raise requests.ConnectionError

    monkeypatch.setattr(requests, "get", hang)
    threads = [threading.Thread(target=lambda: suppressed(provider)) for _ in range(oidc.MAX_WAITING)]
    for thread in threads:
        thread.start()
    for _ in threads:
        waiting.acquire(timeout=60.0)
    with pytest.raises(oidc.ProviderError, match="too many logins"):
        provider.start("/")
    ended.set()
    for thread in threads:
        thread.join()
    with pytest.raises(oidc.ProviderError, match="does not answer"):
        provider.start("/")


def suppressed(provider: oidc.Provider) -> None:
    """A login at a provider that does not answer."""
    with suppress(oidc.ProviderError):
        provider.start("/")


def test_an_answer_of_another_provider_is_refused(browser: httpx.Client) -> None:
    """A browser that was led to one by mistake brings its answer here."""
    assert browser.get(changed(begin(browser), iss="https://evil.example")).status_code == 401


def test_a_login_ends_after_ten_minutes(site: Site) -> None:
    """By the clock of the explorer."""
    now = [time.time()]
    provider = oidc.Provider(site.settings, clock=lambda: now[0])
    _, sealed = provider.start("/")
    now[0] += oidc.LOGIN_SECONDS + 1

    with pytest.raises(oidc.UnauthenticatedError, match="took too long"):
        provider.finish({}, sealed)


def test_what_the_provider_says_is_shown_as_text(browser: httpx.Client) -> None:
    """The parameters of the callback are anybody's."""
    url = begin(browser)
    state = httpx.URL(url).params["state"]

    refused = browser.get("/oidc/callback", params={"state": state, "error": "<script>alert(1)</script>"})

    assert refused.status_code == 401
    assert "<script>alert" not in refused.text
    assert "&lt;script&gt;" in refused.text
    assert "script-src 'self'" in refused.headers["content-security-policy"]


ELSEWHERE = (
    "https://evil.example", "//evil.example", "/\\evil.example", "\\\\evil.example", "/\t/evil.example",
    "/\n/evil.example", "javascript:alert(1)", " //evil.example", "http:evil.example", "", "map", "/" + "a" * 3000,
)  # fmt: skip


@pytest.mark.parametrize("target", ELSEWHERE)
def test_a_login_leads_to_no_other_site(browser: httpx.Client, target: str) -> None:
    """Only to a path of this one."""
    returned = browser.get(begin(browser, target))

    assert returned.headers["location"] == "/login?next=%2F"


def test_a_provider_that_does_not_answer_is_named(site: Site, browser: httpx.Client) -> None:
    """At the start of a login and at its end; nothing of the failure leaves the process."""
    url = begin(browser)
    site.provider.is_down = True

    assert browser.get(url).status_code == 503
    with running_provider() as other:
        settings = site.settings.model_copy(update={"oidc_issuer": other.issuer})
        other.is_down = True
        with pytest.raises(oidc.ProviderError, match="does not answer"):
            oidc.Provider(settings).start("/")
        other.is_down = False
        wrong = settings.model_copy(update={"oidc_issuer": f"{other.issuer}/"})
        with pytest.raises(oidc.ProviderError, match="another issuer"):
            oidc.Provider(wrong).start("/")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens_file": None}, "needs tokens_file"),
        ({"oidc_client_id": ""}, "needs oidc_client_id"),
        ({"oidc_groups": {}}, "needs oidc_groups"),
        ({"explorer_url": ""}, "needs explorer_url"),
        ({"explorer_url": "http://darksight.example.com"}, "explorer_url must be a URL with https"),
        ({"oidc_issuer": "http://login.example.com"}, "oidc_issuer must be a URL with https"),
        ({"oidc_scopes": "profile"}, "must have the scope openid"),
        ({"oidc_groups": {"a": "write"}}, "oidc_groups: a: unknown scope write"),
        ({"oidc_groups": {"a": "read models="}}, "oidc_groups: a: models must be names"),
        ({"oidc_groups": {"a": "read of all"}}, "oidc_groups: a: expected SCOPES"),
    ],
)
def test_settings_that_cannot_work_are_refused(site: Site, change: dict[str, Any], message: str) -> None:
    """At the start, and not at the first login."""
    given = {name: getattr(site.settings, name) for name in site.settings.model_fields_set}
    with pytest.raises(SettingsError, match=message):
        check_files(read_settings(**{**given, **change}))


def test_processes_get_the_groups(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the environment, with the names of groups as they are."""
    names = {"CN=admins, OU=a=b": "read", 'with "quotes"': "read,admin models=a,b"}
    for name, value in site.settings.model_copy(update={"oidc_groups": names}).environment().items():
        monkeypatch.setenv(name, value)

    assert read_settings().oidc_groups == names
