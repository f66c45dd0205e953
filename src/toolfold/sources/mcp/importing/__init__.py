"""Servers out of the files other programs keep them in.

`places` knows where those files lie, `documents` reads them without trust, `entries`, `variables` and the
modules of programs turn what they say into our settings, `gateways` knows our own among them, `candidates`
gives each a name of its own. Writes nothing and starts nothing: a person decides what becomes of it.
"""

from toolfold.sources.mcp.importing.candidates import Candidate, candidates, own_name
from toolfold.sources.mcp.importing.clients import CLIENTS, guessed, read, read_snippet
from toolfold.sources.mcp.importing.found import Answer, Found, Place, Unusable
from toolfold.sources.mcp.importing.gateways import is_gateway, without_gateways
from toolfold.sources.mcp.importing.places import existing, own_file
from toolfold.sources.mcp.importing.secrets import literal_secrets, referring, veiled

__all__ = [
    "CLIENTS",
    "Answer",
    "Candidate",
    "Found",
    "Place",
    "Unusable",
    "candidates",
    "existing",
    "guessed",
    "is_gateway",
    "literal_secrets",
    "own_file",
    "own_name",
    "read",
    "read_snippet",
    "referring",
    "veiled",
    "without_gateways",
]
