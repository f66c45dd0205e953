"""Compute the output of text filters for known text: `tr`, `rev`, `head`, `cut`, `sed s///`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shellverdict.shell.outputs.text_conversion import encode_text, rejoin_bytes
from shellverdict.shell.words import GAP, MAX_TEXT_CHARS, Word

__all__ = ["cut_fields", "reverse_lines", "substitute_text", "take_head", "take_tail", "translate_characters"]

_CHARACTER_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "digit": "0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "space": "\t\n\v\f\r ",
    "blank": "\t ",
    "punct": "!-/:-@[-`{-~",
    "xdigit": "0-9A-Fa-f",
    "print": " -~",
    "graph": "!-~",
    "cntrl": "\x00-\x1f\x7f",
}


def reverse_lines(text: str) -> str:
    return "\n".join(line[::-1] for line in text.split("\n"))


def split_lines(text: str) -> list[str]:
    """Split text into lines that include their newline; the last line may have no newline."""
    return [line + "\n" for line in text.split("\n")[:-1]] + (
        [last] if (last := text.rpartition("\n")[2]) else []
    )


def _parse_amount(words: Sequence[Word], letters: str) -> tuple[str, str]:
    """Return the unit (`n` lines, `c` bytes) and the amount in the arguments of `head` or `tail`."""
    unit, amount = "n", "10"
    rest = iter(words)
    for word in rest:
        if re.fullmatch(r"[-+]\d+", word):
            unit, amount = "n", word.lstrip("-")
        elif word in ("--lines", "--bytes"):
            unit, amount = "n" if word == "--lines" else "c", next(rest, Word("10"))
        elif word.startswith(("--lines=", "--bytes=")):
            unit, amount = "n" if word.startswith("--l") else "c", word.partition("=")[2]
        elif word[:1] == "-" and len(word) > 1 and word[:2] != "--":
            at = next((i for i, letter in enumerate(word) if letter in letters), 0)
            if at:
                unit = word[at]
                amount = word[at + 1 :] or next(rest, Word("10"))
    return unit, amount


def _split_bytes(text: str) -> list[str] | None:
    """Split text into one string per byte; None if the text has unknown parts."""
    data = encode_text(text)
    return None if data is None else [bytes([byte]).decode("utf-8", "surrogateescape") for byte in data]


_AMOUNT = re.compile(r"([-+]?)(\d{1,9})([kKMG]?)B?")


def take_head(text: str, words: Sequence[Word]) -> str | None:
    """Return the output of `head`; None if its arguments or the text are not known."""
    if not (selection := _select_amount(text, words)):
        return None
    pieces, sign, count = selection
    selected = pieces[: len(pieces) - count] if sign == "-" and count <= len(pieces) else pieces[:count]
    return rejoin_bytes("".join(selected))


def take_tail(text: str, words: Sequence[Word]) -> str | None:
    """Return the output of `tail`; None if its arguments or the text are not known."""
    if not (selection := _select_amount(text, words)):
        return None
    pieces, sign, count = selection
    if sign == "+":
        return rejoin_bytes("".join(pieces[max(count - 1, 0) :]))
    return rejoin_bytes("".join(pieces[-count:] if count else ()))


def _select_amount(text: str, words: Sequence[Word]) -> tuple[list[str], str, int] | None:
    """Return the lines or bytes of a text, and the sign and count for `head` or `tail`; None if unknown."""
    unit, amount = _parse_amount(words, "nc")
    found = _AMOUNT.fullmatch(amount)
    pieces = split_lines(text) if unit == "n" else _split_bytes(text)
    if found is None or pieces is None:
        return None
    return pieces, found[1], int(found[2]) * (1024 if found[3] else 1)


def translate_characters(text: str, words: Sequence[Word]) -> str | None:
    """Return the output of `tr` (ranges, classes, -d, -s, -c); None if its arguments are not known."""
    flags = {
        letter
        for word in words
        if word[:1] == "-" and len(word) > 1 and word[1] != "-"
        for letter in word[1:]
    }
    flags |= {{"--delete": "d", "--squeeze-repeats": "s", "--complement": "c"}.get(w, "") for w in words}
    sets = [word for word in words if word[:1] != "-" or word == "-"]
    if not sets or any(not word.is_known for word in sets):
        return None
    first = _expand_set(sets[0])
    complement = bool(flags & {"c", "C"})
    if "d" in flags:
        deleted = set(first)
        return "".join(c for c in text if c == GAP or (c in deleted) == complement)
    if len(sets) == 1:
        return _squeeze_repeats(text, set(first)) if "s" in flags and not complement else None
    second = _expand_set(sets[1]) or first[-1:]
    if not second:
        return text
    if complement:
        selected = set(first)
        return "".join(c if c in selected or c == GAP else second[-1] for c in text)
    second += second[-1] * (len(first) - len(second))
    result = text.translate({ord(a): b for a, b in reversed(list(zip(first, second, strict=False)))})
    return _squeeze_repeats(result, set(second)) if "s" in flags else result


def _squeeze_repeats(text: str, letters: set[str]) -> str:
    return "".join(c for i, c in enumerate(text) if not (i and c in letters and text[i - 1] == c))


_SET_PART = re.compile(r"\[:(\w+):\]|\\([0-7]{1,3})|\\(.)|(.)", re.DOTALL)


def _expand_set(characters: str) -> str:
    """Expand a character set of `tr`, such as `a-z` or `[:digit:]`; other brackets are literal characters."""
    atoms: list[str | None] = []
    for found in _SET_PART.finditer(characters[:1024]):
        name, octal, escaped, plain = found.groups()
        if name:
            atoms += _expand_ranges(list(_CHARACTER_CLASSES.get(name, "")))
        elif octal:
            atoms.append(chr(int(octal, 8) & 0xFF))
        elif escaped:
            atoms.append(
                {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}.get(
                    escaped, escaped
                )
            )
        else:
            atoms.append(plain)
    return "".join(atom for atom in _expand_ranges(atoms) if atom)


def _expand_ranges(atoms: list[str | None]) -> list[str | None]:
    out: list[str | None] = []
    at = 0
    while at < len(atoms):
        begin, end = atoms[at], atoms[at + 2] if at + 2 < len(atoms) else None
        if begin and end and atoms[at + 1] == "-" and ord(begin) <= ord(end) <= ord(begin) + 1024:
            out += [chr(code) for code in range(ord(begin), ord(end) + 1)]
            at += 3
        else:
            out.append(begin)
            at += 1
    return out


def cut_fields(text: str, words: Sequence[Word]) -> str | None:
    """Return the output of `cut -d x -f 1,3-4` or `cut -c 2-`; None for other options."""
    options: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if word[:2] in ("-d", "-f", "-c", "-b"):
            options[word[1]] = word[2:] or next(rest, Word(""))
        elif word.startswith(("--delimiter=", "--fields=", "--characters=", "--bytes=")):
            options[word[2]] = word.partition("=")[2]
        elif word[:1] == "-" and len(word) > 1:
            return None
    selection = options.get("f") or options.get("c") or options.get("b")
    wanted = _parse_field_list(selection or "")
    if wanted is None or GAP in text:
        return None
    delimiter = options.get("d", "\t") if "f" in options else ""
    if not delimiter:
        text = "".join(_split_bytes(text) or ())
    return rejoin_bytes("".join([_cut_line(line, delimiter, wanted) for line in split_lines(text)]))


def _parse_field_list(selection: str) -> list[tuple[int, int]] | None:
    found: list[tuple[int, int]] = []
    for part in selection.split(",")[:256]:
        begin, dash, end = part.partition("-")
        if not (begin or end) or not (begin + end).isdigit() or len(begin + end) > 12:
            return None
        low = int(begin or 1)
        found.append((low, int(end) if end else (MAX_TEXT_CHARS if dash else low)))
    return found


def _cut_line(line: str, delimiter: str, wanted: list[tuple[int, int]]) -> str:
    body, end = line.removesuffix("\n"), "\n"
    if delimiter and delimiter not in body:
        return body + end
    parts: Sequence[str] = body.split(delimiter) if delimiter else body
    chosen = [part for i, part in enumerate(parts, 1) if any(low <= i <= high for low, high in wanted)]
    return delimiter.join(chosen) + end


_SUBSTITUTE_COMMAND = re.compile(
    r"s([/|#,:@!_~%])((?:(?!\1)[^\\\n]|\\.)*)\1((?:(?!\1)[^\\\n]|\\.)*)\1([gI]*)"
)
_PLAIN_PATTERN = re.compile(r"[\w\s,:;@=\"'<>!~#%&-]*")


def substitute_text(text: str, script: str) -> str | None:
    """Return the output of sed for one simple `s/text/replacement/`; None for other scripts."""
    found = _SUBSTITUTE_COMMAND.fullmatch(script.strip())
    if not found or not _PLAIN_PATTERN.fullmatch(found[2]) or re.search(r"[&\\\n]", found[3]) or not found[2]:
        return None
    count = -1 if "g" in found[4] else 1
    if text.count(found[2]) * len(found[3]) > MAX_TEXT_CHARS:
        return None
    result = "".join(line.replace(found[2], found[3], count) for line in split_lines(text))
    return result if len(result) <= MAX_TEXT_CHARS else None
