"""File access for the file tools: allowed paths of a session, and operations on text files.

`workspace` decides which files may be used and opens them, with the help of `descent`, `walk` and
`protected`; `text` distinguishes text from binary data; `page` reads a part, `edit` finds and replaces in
memory, `search` searches many files with the help of `matcher`. Knows nothing of tools and their schemas.
"""

from toolfold.tools.files.file_search import DEFAULT_MATCHES, FileQuery, FileSearch
from toolfold.tools.files.page import DEFAULT_PAGE_LINES, PageReader
from toolfold.tools.files.text_edit import (
    Document,
    Edit,
    EditCandidates,
    choose_edits,
    find_edits,
    render_diff,
    require_not_cancelled,
)
from toolfold.tools.files.text_files import MAX_FILE_BYTES, encode_text, require_size, require_text
from toolfold.tools.files.workspace import Workspace, WriteResult

__all__ = [
    "DEFAULT_MATCHES",
    "DEFAULT_PAGE_LINES",
    "MAX_FILE_BYTES",
    "Document",
    "Edit",
    "EditCandidates",
    "FileQuery",
    "FileSearch",
    "PageReader",
    "Workspace",
    "WriteResult",
    "choose_edits",
    "encode_text",
    "find_edits",
    "render_diff",
    "require_not_cancelled",
    "require_size",
    "require_text",
]
