"""Build hooks of the documentation site: files outside of `docs/`, and checks of the built pages.

`docs/` is read in a repository as well as on the site, so its pages link to files such as
`../examples/quickstart.py`. The site has a page for each of these files, under `files/`, and links are
rewritten to it. After the build, every link within the site is checked, and no page may load anything from
another server.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from site_leaderboard import render_leaderboard
from site_reference import PAGES as REFERENCE_PAGES

log = logging.getLogger("mkdocs.hooks.site")

ROOT = Path(__file__).parent.parent
DOCS = "docs"
FILES = "files"
ALWAYS_INCLUDED = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "benchmarks/README.md",
)
PAGES = {**REFERENCE_PAGES, "leaderboard.md": render_leaderboard}
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".sh": "sh", ".mjs": "js", ".json": "json"}

FENCE = re.compile(r"^ *(```+|~~~+)", re.MULTILINE)
CODE_SPAN = re.compile(r"(`+)[^`].*?\1")
TABLE_ROW = re.compile(r"^\|.*$", re.MULTILINE)
LINK = re.compile(r"(?P<before>\]\(|(?:src|href)=\")(?P<target>[^)\s\"#]+)(?P<anchor>#[^)\s\"]*)?(?=[)\"])")
BUILT_LINK = re.compile(r"<(?P<tag>\w+)\b[^>]*?\s(?:href|src)=\"?(?P<target>[^\s\">]*)[^>]*>")
BUILT_ID = re.compile(r"\sid=\"?([^\s\">]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated reference, and a page for every file outside of `docs/` that a page links to."""
    for uri, render in PAGES.items():
        files.append(File.generated(config, uri, content=render()))
    pages = [file.src_uri for file in files.documentation_pages() if file.src_uri not in PAGES]
    pending = [f"{DOCS}/{uri}" for uri in pages]
    pending += ALWAYS_INCLUDED
    seen = set(pending)
    for path in pending:
        if not path.startswith(f"{DOCS}/"):
            files.append(File.generated(config, locate_on_site(path), content=render_file(path)))
        if not path.endswith(".md"):
            continue
        new = {each for each in find_linked_files(path) if each not in seen}
        seen |= new
        pending += sorted(new)
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Rewrite links to files outside of `docs/`, so that they lead to the pages of these files."""
    uri = page.file.src_uri
    path = uri.removeprefix(f"{FILES}/") if uri.startswith(f"{FILES}/") else f"{DOCS}/{uri}"
    markdown = TABLE_ROW.sub(lambda row: unescape_bars(row[0]), markdown)
    if path.endswith(".md") and (ROOT / path).is_file():
        return rewrite_links(markdown, path)
    return markdown


def on_post_build(config: MkDocsConfig) -> None:
    """Warn about broken links and external assets, which fails the build in strict mode."""
    for problem in check_pages(Path(config.site_dir)):
        log.warning(problem)


def unescape_bars(row: str) -> str:
    """Remove the backslash before bars in code spans of a table row, as Python-Markdown expects."""
    return CODE_SPAN.sub(lambda span: span[0].replace(r"\|", "|"), row)


def find_linked_files(path: str) -> Iterator[str]:
    """Yield the files and directories outside of `docs/` that a Markdown file links to."""
    text = (ROOT / path).read_text(encoding="utf-8")
    for begin, end in find_prose(text):
        for match in LINK.finditer(text, begin, end):
            target = resolve_link(path, match["target"])
            if target and not target.startswith(f"{DOCS}/"):
                yield target


def rewrite_links(text: str, path: str) -> str:
    """Return the text of a Markdown file with links that are valid on the site."""
    directory = posixpath.dirname(locate_on_site(path))

    def rewrite(match: re.Match[str]) -> str:
        target = resolve_link(path, match["target"])
        if target is None:
            return match[0]
        uri = posixpath.relpath(locate_on_site(target), directory or ".")
        return f"{match['before']}{uri}{match['anchor'] or ''}"

    parts, last = [], 0
    for begin, end in find_prose(text):
        parts += [text[last:begin], LINK.sub(rewrite, text[begin:end])]
        last = end
    return "".join([*parts, text[last:]])


def find_prose(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of every part of a Markdown text that is outside code blocks and code spans."""
    begin, fence = 0, ""
    for match in FENCE.finditer(text):
        if not fence:
            yield from split_at_code_spans(text, begin, match.start())
            fence = match[1]
        elif match[1].startswith(fence):
            begin, fence = match.end(), ""
    if not fence:
        yield from split_at_code_spans(text, begin, len(text))


def split_at_code_spans(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each part of a passage that lies between code spans."""
    for span in CODE_SPAN.finditer(text, begin, end):
        yield begin, span.start()
        begin = span.end()
    yield begin, end


def resolve_link(path: str, target: str) -> str | None:
    """Return the path of the repository file that a link leads to; None for links to anything else."""
    if re.match(r"[a-z]+:|/", target):
        return None
    found = posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(target)))
    return found if (ROOT / found).exists() else None


def locate_on_site(path: str) -> str:
    """Return the source URI that a file of the repository has on the site."""
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    if (ROOT / path).is_dir():
        return f"{FILES}/{path}/index.md"
    return f"{FILES}/{path}" if path.endswith(".md") else f"{FILES}/{path}.md"


def render_file(path: str) -> str:
    """Return a page with the content of a file or the listing of a directory."""
    file = ROOT / path
    if file.is_dir():
        return render_directory(path)
    text = file.read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    fence = "`" * max(3, *(len(each) + 1 for each in re.findall(r"`+", text)), 3)
    header = (
        "---\nsearch: {exclude: true}\n---\n"  # the documentation is easier to search without program text
    )
    return (
        f"{header}# {file.name}\n\n`{path}`\n\n{fence}{LANGUAGES.get(file.suffix, 'text')}\n{text}{fence}\n"
    )


def render_directory(path: str) -> str:
    """Return a page with the texts of the files in a directory, one after the other."""
    files = [
        file
        for file in sorted((ROOT / path).iterdir())
        if file.suffix in LANGUAGES and file.name != "__init__.py"
    ]
    texts = (
        f"## {file.name}\n\n````{LANGUAGES[file.suffix]}\n{file.read_text(encoding='utf-8')}````\n"
        for file in files
    )
    return "\n".join([f"---\nsearch: {{exclude: true}}\n---\n# {path}/\n", *texts])


def check_pages(site: Path) -> Iterator[str]:
    """Yield a message for each broken link within the site, and for each asset from another server."""
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(site.rglob("*.html"))}
    ids = {path: set(BUILT_ID.findall(text)) for path, text in pages.items()}
    for path, text in pages.items():
        if path.name == "404.html":  # its links are absolute
            continue
        for match in BUILT_LINK.finditer(text):
            if problem := check_link(path, match["tag"], match["target"], ids):
                yield f"{path.relative_to(site)}: {problem}"


def check_link(page: Path, tag: str, target: str, ids: dict[Path, set[str]]) -> str | None:
    """Return the problem with a link in a built page; None if the link is valid."""
    if re.match(r"[a-z]+:|//", target):
        external = tag != "a" and not target.startswith("data:")
        return f"<{tag}> loads {target} from another server" if external else None
    location, _, anchor = unquote(target).partition("#")
    file = (page.parent / location).resolve() if location else page
    if not file.is_file():
        return f"{target} does not exist"
    if anchor and file in ids and anchor not in ids[file]:
        return f"{target}: the page has no such anchor"
    return None
