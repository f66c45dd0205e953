"""The files a session may work on, and what can be done with their text.

`workspace` says which files may be touched and opens them, by way of `descent`, `walk` and `protected`;
`text` tells text from anything else; `page` reads a part, `edit` finds and replaces in memory, `search`
looks through many files with the help of a `matcher`. Knows nothing of tools: how a model calls all this
is theirs to say.
"""

from toolfold.files.edit import Document, Edit, Found, choose_edits, diff, find_edits, require_wanted
from toolfold.files.page import PAGE_LINES, Page
from toolfold.files.search import MATCHES, Query, Search
from toolfold.files.text import MAX_FILE_BYTES, encode, require_small, require_text
from toolfold.files.workspace import Workspace, Written

__all__ = [
    "MATCHES",
    "MAX_FILE_BYTES",
    "PAGE_LINES",
    "Document",
    "Edit",
    "Found",
    "Page",
    "Query",
    "Search",
    "Workspace",
    "Written",
    "choose_edits",
    "diff",
    "encode",
    "find_edits",
    "require_small",
    "require_text",
    "require_wanted",
]
