"""The package index, asked over HTTP: a server of our own stands in for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.errors import Fault
from harness.upstream import index
from harness.upstream.index import Release
from tests.index import Handler, address, file, page, serving

VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Handler]]:
    """An index whose pages are made up, named as the user's."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as server:
        monkeypatch.setenv("PIP_INDEX_URL", address(server, "me:secret@"))
        yield Handler


def ask(package: str = "deepspeed") -> list[Release] | Fault:
    ((name, found),) = index.releases_of([package])
    assert name == package
    return found


def test_a_release_is_as_old_as_its_first_file_and_yanked_where_all_are(
    served: type[Handler],
) -> None:
    served.pages["deepspeed"] = page(
        file("deepspeed-0.10.0.tar.gz", "2023-07-19T18:00:00"),
        file("deepspeed-0.9.5-py3-none-any.whl", "2023-06-23T00:30:00"),
        file("deepspeed-0.9.5.tar.gz", "2023-06-22T19:00:34", "broken"),
        file("deepspeed-0.9.4.tar.gz", "2023-06-09T19:31:38", "a reason"),
        file("deepspeed-0.11.0rc1.tar.gz", "2023-09-01T00:00:00"),
        file("deepspeed-0.9.3.tar.gz", None),
        file("deepspeed-what_is_this.tar.gz", "2023-06-09T19:31:38"),
        file("readme.txt", "2023-06-09T19:31:38"),
    )
    assert ask() == [
        Release("deepspeed", "0.9.4", "2023-06-09", yanked=True),
        Release("deepspeed", "0.9.5", "2023-06-22"),
        Release("deepspeed", "0.10.0", "2023-07-19"),
        Release("deepspeed", "0.11.0rc1", "2023-09-01"),
    ]
    assert [release.final for release in ask()] == [True, True, True, False]  # type: ignore[union-attr]


def test_each_package_is_asked_once(served: type[Handler]) -> None:
    served.pages = {name: page(file("a-1.tar.gz", "2023-06-09T00:00:00")) for name in ("a", "b")}
    assert [name for name, _ in index.releases_of(["a", "b"])] == ["a", "b"]
    assert served.asked == ["/simple/a/", "/simple/b/"]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (404, "the index has no package deepspeed"),
        (503, "the index responds 503 to a request for deepspeed"),
        (page(), "the index has no release of deepspeed"),
        (
            page(file("deepspeed-1.tar.gz", None)),
            "the index names no upload day for any release of deepspeed",
        ),
        ("{", "the index's response for deepspeed cannot be read"),
        (
            {**page(), "meta": {"api-version": "9.0"}},
            "the index's response for deepspeed cannot be read",
        ),
        ({"files": 3}, "the index's response for deepspeed cannot be read"),
    ],
)
def test_what_the_index_cannot_say_is_one_line_without_its_address(
    served: type[Handler], said: object, why: str
) -> None:
    served.pages["deepspeed"] = said
    fault = ask()
    assert isinstance(fault, Fault)
    assert str(fault).startswith(why)
    assert "secret" not in str(fault)
    assert "\n" not in str(fault)


def test_no_network_is_one_line_and_nothing_is_logged_beside_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://me:secret@127.0.0.1:9/simple")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    fault = ask()
    told = "the package index does not respond (ConnectionError): is there a network?"
    assert str(fault) == told
    assert caplog.records == []


def test_an_address_that_cannot_be_meant_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "file:///srv/simple")
    assert str(ask()).startswith("the address of the index in the configuration of pip or uv")


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
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, address: str
) -> None:
    for other in VARIABLES:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(variable, value)
    assert index.configured() == address


def test_the_index_of_pips_own_file_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for other in VARIABLES:
        monkeypatch.delenv(other, raising=False)
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = http://four/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert index.configured() == "http://four/simple"
    (tmp_path / "pip.conf").write_text("[global]\ntimeout = 3\n")
    assert index.configured() is None


def test_where_there_is_no_pip_there_is_no_configuration_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for other in VARIABLES:
        monkeypatch.delenv(other, raising=False)
    (tmp_path / "python").write_text("#!/bin/sh\necho 'No module named pip' >&2; exit 1\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert index.configured() is None


def test_who_waits_for_an_index_that_is_slow_is_told_so(
    served: type[Handler], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert index.SILENCE < 2
    served.pages["deepspeed"] = page(file("deepspeed-1.tar.gz", "2023-06-09T00:00:00"))
    assert ask()
    assert capsys.readouterr().err == ""
    index.forget()
    monkeypatch.setattr(index, "SILENCE", 0.05)
    monkeypatch.setattr(served, "slow", 0.5)
    assert ask()
    told = capsys.readouterr().err
    assert told.startswith("harness: waiting for the package index to list the releases of deep")
    assert told.count("\n") == 1


def test_the_authority_is_requests_own_then_uvs_then_pips(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "PIP_CERT"):
        monkeypatch.delenv(variable, raising=False)
    assert index._authority() is None
    monkeypatch.setenv("PIP_CERT", "pip.pem")
    assert index._authority() == "pip.pem"
    monkeypatch.setenv("SSL_CERT_FILE", "uv.pem")
    assert index._authority() == "uv.pem"
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "requests.pem")
    assert index._authority() is None


def test_a_network_that_is_gone_is_not_tried_for_each_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = []

    def gone(_: Any, package: str) -> Any:
        tried.append(package)
        raise index.NoNetwork("no network")

    monkeypatch.setattr(index, "_releases", gone)
    found = dict(index.releases_of(["deepspeed", "transformers", "datasets"]))
    assert tried == ["deepspeed"]
    assert [str(each) for each in found.values()] == ["no network"] * 3


def test_an_index_that_lacks_one_package_is_asked_for_the_others(served: type[Handler]) -> None:
    served.pages = {"deepspeed": page(file("deepspeed-1.tar.gz", "2023-06-09T00:00:00"))}
    found = dict(index.releases_of(["nobody-has-this", "deepspeed"]))
    assert isinstance(found["nobody-has-this"], Fault)
    assert not isinstance(found["deepspeed"], Fault)
