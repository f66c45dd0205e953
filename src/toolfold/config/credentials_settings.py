"""Settings of the credentials that users have stored for MCP servers."""

from __future__ import annotations

from pydantic import Field

from toolfold.config.field_types import USER_ONLY, PathValue, Section, Text


class CredentialSettings(Section):
    """Settings of the keys that encrypt the credentials of users."""

    keys: Text = Field(
        default="",
        description="Keys that encrypt stored credentials, as a reference such as `${CREDENTIAL_KEYS}` or"
        " `${keyring:toolfold/keys}`; the first one encrypts, further ones only decrypt. Empty to use"
        " the keys in `key_file`.",
        json_schema_extra=USER_ONLY,
    )
    key_file: PathValue | None = Field(
        default=None,
        description="File with the keys that encrypt stored credentials; null for `credentials.key` in your"
        " settings directory, which is created when it is needed.",
        json_schema_extra=USER_ONLY,
    )
