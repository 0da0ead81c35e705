"""The package index, read from a local HTTP server."""

from __future__ import annotations

import io
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from packaging.tags import platform_tags

from harness.releases import index, index_pages, wheel_metadata
from harness.releases.index import Release
from harness.system.errors import Fault
from tests.index import Handler, file, no_network, page, served

__all__ = ["no_network", "served"]

VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
DAY = "2023-06-09T00:00:00"
UNREADABLE = "the index's response for deepspeed cannot be read"


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that names no index."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    return monkeypatch


def read(package: str = "deepspeed") -> list[Release] | Fault:
    ((name, answer),) = index.releases_of([package])
    assert name == package
    return answer


def test_a_release_has_the_day_of_its_first_file_and_is_yanked_if_all_files_are(
    served: type[Handler],
) -> None:
    served.pages["deepspeed"] = page(
        file("deepspeed-0.10.0.tar.gz", "2023-07-19T18:00:00"),
        file("deepspeed-0.9.5-py3-none-any.whl", "2023-06-23T00:30:00"),
        file("deepspeed-0.9.5.tar.gz", "2023-06-22T19:00:34", "broken"),
        file("deepspeed-0.9.4.tar.gz", DAY, "a reason"),
        file("deepspeed-0.11.0rc1.tar.gz", "2023-09-01T00:00:00"),
        file("deepspeed-0.9.3.tar.gz"),
        file("deepspeed-what_is_this.tar.gz", DAY),
        file("readme.txt", DAY),
    )
    releases = read()
    assert releases == [
        Release("deepspeed", "0.9.4", "2023-06-09", yanked=True),
        Release("deepspeed", "0.9.5", "2023-06-22"),
        Release("deepspeed", "0.10.0", "2023-07-19"),
        Release("deepspeed", "0.11.0rc1", "2023-09-01"),
    ]
    assert [release.final for release in releases] == [True, True, True, False]


def test_each_package_is_requested_once_and_a_missing_one_does_not_affect_others(
    served: type[Handler],
) -> None:
    served.pages = {"b": page(file("a-1.tar.gz", DAY))}
    answers = dict(index.releases_of(["a", "b"]))
    assert [isinstance(each, Fault) for each in answers.values()] == [True, False]
    assert served.requests == ["/simple/a/", "/simple/b/"]


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (404, "the index has no package deepspeed"),
        (503, "the index responds 503 to a request for deepspeed"),
        (page(), "the index has no release of deepspeed"),
        (page(file("deepspeed-1.tar.gz")), "the index names no upload day for any release of dee"),
        ("{", UNREADABLE),
        ({**page(), "meta": {"api-version": "9.0"}}, UNREADABLE),
        ({"files": 3}, UNREADABLE),
    ],
)
def test_an_unusable_response_is_one_line_without_the_address(
    served: type[Handler], response: object, why: str
) -> None:
    served.pages["deepspeed"] = response
    fault = read()
    assert isinstance(fault, Fault)
    assert str(fault).startswith(why)
    assert "secret" not in str(fault)
    assert "\n" not in str(fault)


@pytest.mark.usefixtures("no_network")
def test_no_network_is_one_line_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    message = "the package index does not respond (ConnectionError): is there a network?"
    assert str(read()) == message
    assert caplog.records == []


def test_an_invalid_address_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "file:///srv/simple")
    assert str(read()).startswith("the address of the index in the configuration of pip or uv")


@pytest.mark.parametrize(
    ("variable", "value", "address"),
    [
        ("UV_DEFAULT_INDEX", "http://one/simple", "http://one/simple"),
        ("UV_DEFAULT_INDEX", "company=https://one/simple", "https://one/simple"),
        ("UV_INDEX_URL", "http://two/simple", "http://two/simple"),
        ("PIP_INDEX_URL", "http://three/simple", "http://three/simple"),
    ],
)
def test_the_index_is_the_one_that_the_user_named(
    unset: pytest.MonkeyPatch, variable: str, value: str, address: str
) -> None:
    unset.setenv(variable, value)
    assert index.configured() == address


def test_the_index_of_pips_own_file_is_found(unset: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = http://four/simple\n")
    unset.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert index.configured() == "http://four/simple"
    (tmp_path / "pip.conf").write_text("[global]\ntimeout = 3\n")
    assert index.configured() is None


@pytest.mark.parametrize(
    ("texts", "address"),
    [
        ({"pip/pip.conf": "[global]\nindex-url = http://pip"}, "http://pip"),
        ({"pip/pip.conf": "[global\n"}, None),
        ({"uv/uv.toml": 'index-url = "http://uv"'}, "http://uv"),
        ({"uv/uv.toml": '[[index]]\nurl = "http://uv"\ndefault = true'}, "http://uv"),
        ({"uv/uv.toml": '[[index]]\nurl = "http://more"'}, None),
        ({"uv/uv.toml": 'index-url = "http://uv"', "pip/pip.conf": "[global]"}, "http://uv"),
    ],
)
def test_the_index_of_the_users_own_files_is_found(
    unset: pytest.MonkeyPatch, tmp_path: Path, texts: dict[str, str], address: str | None
) -> None:
    """An environment that uv makes has no pip to ask."""
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    unset.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert index.configured() == address


def test_waiting_for_a_slow_index_is_reported(
    served: type[Handler], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert index.SILENCE < 2
    served.pages["deepspeed"] = page(file("deepspeed-1.tar.gz", DAY))
    assert read()
    assert capsys.readouterr().err == ""
    index.forget()
    monkeypatch.setattr(index, "SILENCE", 0.05)
    monkeypatch.setattr(served, "slow", 0.5)
    assert read()
    err = capsys.readouterr().err
    assert err.startswith("harness: waiting for the package index to list the releases of deep")
    assert err.count("\n") == 1


def test_an_index_that_sends_a_byte_now_and_then_has_no_answer(
    served: type[Handler], monkeypatch: pytest.MonkeyPatch
) -> None:
    served.pages["deepspeed"] = page(file("deepspeed-1.tar.gz", DAY))
    monkeypatch.setattr(index_pages, "LIMIT", 0.2)
    monkeypatch.setattr(served, "dripping", 0.1)
    assert isinstance(answer := read(), index_pages.NoNetwork)
    assert str(answer).startswith("the index did not send its list of deepspeed within")


LINES = ("Requires-Dist: Down_=>1", "Requires-Dist: old_one>=1.7.*", "Requires-Dist: down (<2)")


@pytest.mark.parametrize("is_beside", [True, False])
def test_what_a_release_needs_is_in_the_metadata_of_its_wheel(
    served: type[Handler], monkeypatch: pytest.MonkeyPatch, is_beside: bool
) -> None:
    name = "up-1.0-py3-none-any.whl"
    text = "\n".join(["Metadata-Version: 2.1", "Name: up", *LINES, "", ""])
    served.pages["up"] = page(file(name, DAY))
    if is_beside:
        served.pages[f"up/{name}.metadata"] = text
    (release,) = index.releases("up")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("up/vendor/other-1.0.dist-info/METADATA", "Requires-Dist: wrong\n")
        archive.writestr("up-1.0.dist-info/METADATA", text)
    if not is_beside:
        assert index.needs(release, 11) is None, "the server sends no part of a file"
        index.forget()
        monkeypatch.setattr(wheel_metadata, "_RemoteFile", lambda _: io.BytesIO(content.getvalue()))
    needs = index.needs(release, 11)
    assert needs is not None
    assert [str(need) for need in needs] == ["old-one>=1.7", "down<2"], "the first is invalid"


@pytest.mark.parametrize(
    ("tag", "pythons"),
    [("py3-none", {7, 19}), ("cp311-cp311", {11}), ("cp38-abi3", {8, 19}), ("cp36-none", set())],
)
def test_a_wheel_is_for_some_pythons(tag: str, pythons: set[int]) -> None:
    wheel = f"up-1.0-{tag}-{next(iter(platform_tags()))}.whl"
    minors = index.Release("up", "1.0", DAY, wheels={wheel: wheel}).minors
    assert ({min(minors), max(minors)} if minors else set()) == pythons


def test_the_authority_is_requests_own_then_uvs_then_pips(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "PIP_CERT"):
        monkeypatch.delenv(variable, raising=False)
    steps = [("PIP_CERT", "pip"), ("SSL_CERT_FILE", "uv"), ("REQUESTS_CA_BUNDLE", None)]
    assert index_pages._authority() is None
    for variable, expected in steps:
        monkeypatch.setenv(variable, str(expected))
        assert index_pages._authority() == expected


def test_packages_are_read_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=20)

    def read_both(_: Any, package: str) -> list[Release]:
        both.wait()
        return [Release(package, "1", "2024-01-02")]

    monkeypatch.setattr(index, "_releases", read_both)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(index.releases, ("deepspeed", "datasets"))
    assert [first[0].package, second[0].package] == ["deepspeed", "datasets"]


def test_a_missing_network_is_not_tried_for_each_package(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def gone(_: Any, package: str) -> Any:
        tried.append(package)
        raise index_pages.NoNetwork("no network")

    monkeypatch.setattr(index, "_releases", gone)
    answers = dict(index.releases_of(["deepspeed", "transformers", "datasets"]))
    assert tried == ["deepspeed"]
    assert [str(each) for each in answers.values()] == ["no network"] * 3
