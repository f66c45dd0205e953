"""Credentials of APIs: read security schemes of an OpenAPI document, and add credentials to requests.

Settings name environment variables; their values are read for each call, added to the request, and stored
nowhere.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from toolfold.core.errors import CallError, shorten
from toolfold.tools.openapi.api_document import OpenApiDocument, UnresolvedReference
from toolfold.tools.openapi.operations import split_words
from toolfold.tools.openapi.requests import ApiRequest

__all__ = ["Credentials", "SecurityScheme", "read_security_schemes", "suggest_variable"]

_BASIC, _BEARER, _KEY = "basic", "bearer", "key"


@dataclass(frozen=True, slots=True)
class SecurityScheme:
    """Security scheme of an API: bearer token, user and password, or API key."""

    name: str
    kind: str
    """`bearer`, `basic` (the variable has `user:password`) or `key`."""
    location: str = "header"
    """Where a key is sent: `header`, `query` or `cookie`."""
    field: str = "Authorization"


def read_security_schemes(document: OpenApiDocument) -> list[SecurityScheme]:
    """Return the security schemes in a document for which environment variables can provide credentials."""
    components = document.root.get("components")
    schemes = components.get("securitySchemes") if isinstance(components, dict) else None
    found = []
    for name, reference in schemes.items() if isinstance(schemes, dict) else ():
        try:
            scheme = _read_scheme(name, document.resolve(reference))
        except UnresolvedReference:
            continue
        if scheme:
            found.append(scheme)
    return found


def _read_scheme(name: str, value: Any) -> SecurityScheme | None:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "apiKey" and value.get("in") in ("header", "query", "cookie"):
        return SecurityScheme(name, _KEY, value["in"], str(value.get("name", name)))
    if kind == "http" and str(value.get("scheme", "")).lower() == "basic":
        return SecurityScheme(name, _BASIC)
    if kind in ("oauth2", "openIdConnect") or (
        kind == "http" and str(value.get("scheme", "")).lower() == "bearer"
    ):
        return SecurityScheme(name, _BEARER)
    return None


def suggest_variable(api: str, scheme: SecurityScheme, others: int) -> str:
    """Suggest a variable name for a credential; include the scheme's name if there are other schemes."""
    ending = {_BEARER: "TOKEN", _BASIC: "BASIC_AUTH", _KEY: "API_KEY"}[scheme.kind]
    middle = [word.upper() for word in split_words(scheme.name)] if others else []
    return "_".join([*(word.upper() for word in split_words(api)), *middle, ending])


@dataclass(frozen=True, slots=True)
class Credentials:
    """Security schemes of one API, and the environment variables with their credentials."""

    schemes: Mapping[str, SecurityScheme]
    variables: Mapping[str, str]
    """Names of environment variables by security scheme."""
    environment: Mapping[str, str]

    def list_variables(self, alternatives: Sequence[Sequence[str]]) -> list[str]:
        """Return the names of the environment variables that an operation may need."""
        names = (self.variables.get(name) for group in alternatives for name in group)
        return list(dict.fromkeys(name for name in names if name))

    def add_to(self, request: ApiRequest, alternatives: Sequence[Sequence[str]]) -> ApiRequest:
        """Add the credentials of the first security requirement whose environment variables are all set.

        Raises CallError with the names of the missing variables if there is none.
        """
        if not alternatives:
            return request
        complete = [group for group in alternatives if group and all(map(self._find_value, group))]
        if not complete:
            if any(not group for group in alternatives):
                return request
            raise CallError(self._describe_missing(alternatives))
        for name in complete[0]:
            request = _add_credential(request, self.schemes[name], self._find_value(name))
        return request

    def _find_value(self, scheme: str) -> str:
        if scheme not in self.schemes:
            return ""
        return self.environment.get(self.variables.get(scheme, ""), "").strip()

    def _describe_missing(self, alternatives: Sequence[Sequence[str]]) -> str:
        groups = list(dict.fromkeys(filter(None, map(self._describe_group, alternatives))))
        if groups:
            variables = " or ".join(groups)
            return f"The API needs a credential, and the user has not set the variable {variables}."
        names = ", ".join(shorten(name, 60) for group in alternatives for name in group)
        return f"The API needs a credential ({names}), and no environment variable is configured for it."

    def _describe_group(self, group: Sequence[str]) -> str:
        return " and ".join(f"`{self.variables[name]}`" for name in group if name in self.variables)


def _add_credential(request: ApiRequest, scheme: SecurityScheme, value: str) -> ApiRequest:
    if not (value.isascii() and value.isprintable()):
        raise CallError("The credential of the API contains characters that cannot be sent in a header.")
    if scheme.kind == _BASIC:
        value = f"Basic {base64.b64encode(value.encode()).decode()}"
    elif scheme.kind == _BEARER:
        value = f"Bearer {value}"
    if scheme.location == "query":
        joiner = "&" if "?" in request.url else "?"
        pair = f"{quote(scheme.field, safe='')}={quote(value, safe='')}"
        return replace(request, url=f"{request.url}{joiner}{pair}")
    if scheme.location == "cookie":
        cookies = "; ".join(_list_cookies(request, f"{scheme.field}={quote(value, safe='')}"))
        return replace(request, headers={**request.headers, "Cookie": cookies})
    return replace(request, headers={**request.headers, scheme.field: value})


def _list_cookies(request: ApiRequest, added: str) -> Iterator[str]:
    if before := request.headers.get("Cookie"):
        yield before
    yield added
