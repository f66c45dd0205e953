"""The `file` toolset: read, write, patch and search files.

Defines the schemas and the answers. `tools.files` does the work, and the workspace decides which files
may be used; this module opens no file itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolfold.core.types import CallContext, Effect, Handler, Json, Precheck, Source, Tool
from toolfold.core.untrusted_text import PassageFinder, describe_untrusted_lines, find_nothing
from toolfold.tools.builtin import Services
from toolfold.tools.builtin._builtin import build_builtin_tool
from toolfold.tools.files import (
    DEFAULT_MATCHES,
    DEFAULT_PAGE_LINES,
    MAX_FILE_BYTES,
    Document,
    FileQuery,
    FileSearch,
    PageReader,
    Workspace,
    choose_edits,
    encode_text,
    find_edits,
    render_diff,
    require_not_cancelled,
    require_size,
    require_text,
)

_PATH: Json = {"type": "string", "description": "Relative to the workspace, or absolute."}
_READ_FILE: Json = {
    "description": (
        "Read a text file in pages. Lines come as number, tab, text; number and tab are not in the file."
        "{search_files? Use search_files to find the place to read.}"
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "path": _PATH,
            "offset": {"type": "integer", "minimum": 1, "default": 1, "description": "First line, from 1."},
            "limit": {"type": "integer", "minimum": 1, "maximum": 2000, "default": DEFAULT_PAGE_LINES},
        },
        "required": ["path"],
        "additionalProperties": False,
    },
}
_WRITE_FILE: Json = {
    "description": (
        "Create a file or replace it as a whole. Missing directories are created."
        "{patch? To change a part of a file use patch.}"
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "path": _PATH,
            "content": {"type": "string", "description": "The complete text of the file."},
            "append": {"type": "boolean", "default": False, "description": "Add content to the end instead."},
        },
        "required": ["path", "content"],
        "additionalProperties": False,
    },
}
_PATCH: Json = {
    "description": (
        "Replace one piece of text in a file and see the diff. `old` must name one place only: copy it from"
        " the file{read_file? (read_file, without the line numbers)}, whole lines, with a line or two around"
        " the change. Small differences in whitespace are forgiven."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "path": _PATH,
            "old": {"type": "string", "description": "The text that is there now."},
            "new": {"type": "string", "description": "The text to put in its place; empty to delete."},
            "replace_all": {"type": "boolean", "default": False, "description": "Replace every match."},
        },
        "required": ["path", "old", "new"],
        "additionalProperties": False,
    },
}
_SEARCH_FILES: Json = {
    "description": (
        "Find text in files (file, line number, line) or, with kind 'name', find files. Leaves out binary and"
        " very large files and directories such as .git and node_modules."
        "{read_file? Read around a match with read_file.}"
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "pattern": {
                "type": "string",
                "minLength": 1,
                "maxLength": 1000,
                "description": "The text to find. For kind 'name': a part of the name, or a glob like *.py.",
            },
            "path": {"type": "string", "default": ".", "description": "Directory or file to search in."},
            "kind": {"type": "string", "enum": ["content", "name"], "default": "content"},
            "glob": {
                "type": "string",
                "maxLength": 1000,
                "description": "Only these files: *.py, src/**/*.ts",
            },
            "limit": {"type": "integer", "minimum": 1, "maximum": 500, "default": DEFAULT_MATCHES},
            "ignore_case": {"type": "boolean", "default": False},
            "regex": {
                "type": "boolean",
                "default": False,
                "description": "The pattern is a Python regular expression, applied line by line.",
            },
        },
        "required": ["pattern"],
        "additionalProperties": False,
    },
}


def tools(services: Services) -> list[Tool]:
    """Return the four file tools, bound to one workspace."""
    files = FileTools(services.workspace, services.outside_text.find_injections)
    return [
        _build_file_tool(
            "read_file",
            _READ_FILE,
            files.read_file,
            "📖",
            Effect.READ,
            precheck=files.check_reading,
            synonyms=("open", "view", "show", "cat", "load"),
        ),
        _build_file_tool(
            "write_file",
            _WRITE_FILE,
            files.write_file,
            "💾",
            Effect.WRITE,
            precheck=files.check_writing,
            synonyms=("save", "create", "overwrite", "store"),
        ),
        _build_file_tool(
            "patch",
            _PATCH,
            files.patch,
            "🩹",
            Effect.WRITE,
            precheck=files.check_writing,
            synonyms=("edit", "change", "modify", "replace", "fix"),
        ),
        _build_file_tool(
            "search_files",
            _SEARCH_FILES,
            files.search_files,
            "🔍",
            Effect.READ,
            precheck=files.check_reading,
            synonyms=("grep", "find", "locate", "look up", "glob"),
        ),
    ]


@dataclass(frozen=True, slots=True)
class FileTools:
    """Handlers of the file tools."""

    workspace: Workspace
    find_injections: PassageFinder = find_nothing

    def check_reading(self, args: Json, context: CallContext) -> None:
        self.workspace.resolve(args.get("path", "."), context.readable)

    def check_writing(self, args: Json, _: CallContext) -> None:
        self.workspace.resolve_for_writing(args["path"])

    def read_file(self, args: Json, context: CallContext) -> Json:
        path = self.workspace.resolve(args["path"], context.readable)
        with self.workspace.open_for_reading(path, context.readable) as file:
            size = require_text(file, self.workspace.relative(path))
            page = PageReader(
                file, args.get("offset", 1), args.get("limit", DEFAULT_PAGE_LINES), context.cancelled
            )
            answer = {"path": self.workspace.relative(path), **page.read(size)}
        return self._add_notice(
            answer, [(f"line {number}", line) for number, line in enumerate(page.lines, page.offset)]
        )

    def write_file(self, args: Json, _: CallContext) -> Json:
        content = args["content"]
        data = encode_text(content, "content")
        require_size(len(data), "The content")
        before = self._read_bytes(args["path"]) if args.get("append") else b""
        require_size(len(before) + len(data), "The file")
        written = self.workspace.write_atomically(args["path"], before + data)
        return {
            "path": self.workspace.relative(written.path),
            "result": "created" if written.created else "appended" if args.get("append") else "replaced",
            "bytes": len(before) + len(data),
            "lines": content.count("\n") + (not content.endswith("\n") and content != ""),
        }

    def _read_bytes(self, given: str) -> bytes:
        """Return what a file contains; nothing if it does not exist."""
        path = self.workspace.resolve(given)
        if not path.exists():
            return b""
        with self.workspace.open_for_reading(path) as file:
            require_text(file, self.workspace.relative(path))
            return file.read(MAX_FILE_BYTES + 1)

    def patch(self, args: Json, context: CallContext) -> Json:
        path = self.workspace.resolve(args["path"])
        shown_path = self.workspace.relative(path)
        document = self._read_document(path)
        candidates = find_edits(document, args["old"], args["new"], shown_path, context.cancelled)
        edits = choose_edits(
            candidates, document.text, shown_path, replace_all=args.get("replace_all", False)
        )
        data = document.encode_edits(edits)
        require_not_cancelled(context.cancelled)
        # The path as given: it may contain a protected name that the real path does not.
        self.workspace.write_atomically(args["path"], data, make_parents=False)
        return {
            "path": shown_path,
            "replacements": len(edits),
            "matched": candidates.strategy,
            "diff": render_diff(document.text, edits, shown_path),
        }

    def _read_document(self, path: Path) -> Document:
        with self.workspace.open_for_reading(path) as file:
            require_text(file, self.workspace.relative(path))
            data = file.read(MAX_FILE_BYTES + 1)
            require_size(max(len(data), os.fstat(file.fileno()).st_size), repr(self.workspace.relative(path)))
            return Document.from_bytes(data)

    def search_files(self, args: Json, context: CallContext) -> Json:
        query = FileQuery(
            pattern=args["pattern"],
            path=args.get("path", "."),
            glob=args.get("glob"),
            limit=args.get("limit", DEFAULT_MATCHES),
            ignore_case=args.get("ignore_case", False),
            regex=args.get("regex", False),
        )
        search = FileSearch(self.workspace, query, context)
        if args.get("kind", "content") == "name":
            return self._add_notice(search.search_names(), [(path, path) for path in search.matches])
        answer = search.search_contents()
        found = [(f"{each['file']}:{each['line']}", each["text"]) for each in search.matches]
        return self._add_notice(answer, found)

    def _add_notice(self, answer: Json, lines: Sequence[tuple[str, str]]) -> Json:
        """Add a notice to the result if lines or matches look like instructions to the model."""
        notice = describe_untrusted_lines(lines, self.find_injections)
        return {"untrusted": notice, **answer} if notice else answer


def _build_file_tool(
    name: str,
    schema: Json,
    handler: Handler,
    emoji: str,
    effect: Effect,
    *,
    precheck: Precheck,
    synonyms: tuple[str, ...],
) -> Tool:
    return build_builtin_tool(
        name=name,
        toolset="file",
        schema=schema,
        handler=handler,
        emoji=emoji,
        effects=(effect,),
        parallel=effect is Effect.READ,
        precheck=precheck,
        synonyms=synonyms,
        source=Source("builtin", "file"),
    )
