"""Checks of requests that browsers send."""

from __future__ import annotations

import pytest

from toolfold.serving.gateway.browser_requests import read_cookie


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("own=right", "right"),
        ("other=1; own=right; more=2", "right"),
        ('bad{name}=x; @=; json={"a":[1, 2]}; own=right', "right"),
        ("own=", ""),
        ("owner=wrong", ""),
        ("", ""),
    ],
)
def test_cookie_is_found_among_cookies_of_other_programs_on_the_same_host(header: str, value: str) -> None:
    assert read_cookie({"cookie": header}, "own") == value
    assert read_cookie({}, "own") == ""
