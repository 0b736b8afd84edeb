"""What `fedfa doctor` judges without a server: versions, clocks, proxies."""

import pytest

from fedfa.doctor import judge_clock, judge_version, proxy


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("3.9.29", "bad"),
        ("3.10.0", "ok"),
        ("3.13.7", "ok"),
        ("4.2.1", "ok"),
        ("4.3.0", "bad"),
        ("4.3.5+rc.1", "bad"),
        ("4.3.6", "warn"),
        ("5.0", "warn"),
        ("unknown", "warn"),
    ],
)
def test_versions_are_judged(version: str, status: str) -> None:
    assert judge_version(version).status == status


@pytest.mark.parametrize(("offset", "status"), [(-0.9, "ok"), (4.0, "ok"), (61.0, "warn")])
def test_a_clock_that_differs_is_told(offset: float, status: str) -> None:
    assert judge_clock(offset).status == status
    assert judge_clock(61.0).text.startswith("this machine is 61 s behind the store")


@pytest.mark.parametrize(
    ("endpoint", "no_proxy", "status"),
    [
        ("http://127.0.0.1:9000", "", "warn"),
        ("http://10.1.2.3:9000", "", "warn"),
        ("http://minio:9000", "other", "warn"),
        ("http://minio:9000", "minio", "ok"),
        ("http://s3.example.com", "", "ok"),
        ("https://10.1.2.3", "", "ok"),
        (None, "", "ok"),
    ],
)
def test_a_proxy_before_a_store_next_door_is_noticed(
    endpoint: str | None, no_proxy: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example.com:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert proxy(endpoint).status == status
