"""Define the input of every effect handler: a program with its arguments, and a path classifier."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from shellverdict.options import Options
from shellverdict.paths import PathClassifier, PathInfo, PathKind
from shellverdict.shell.runs import ProgramRun
from shellverdict.shell.words import EMPTY, GAP, Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["UNKNOWN_WORD", "EffectHandlers", "RunContext"]

UNKNOWN_WORD = Word(GAP)
MAX_OPERANDS = 400  # examined one by one; more are treated as unknown
# Writing a key or an `.env` in these is routine; elsewhere it may replace an existing secret.
_USUAL_SECRET_KINDS = frozenset({PathKind.PROJECT, PathKind.TEMP, PathKind.UNKNOWN})
_FINDERS = frozenset(("find", "xargs", "parallel", "fd", "fdfind"))
_HIDDEN_DIRECTORY = re.compile(r"(?:^|/)\.[^/.][^/]*/|\.\./")
_RECORD_SUFFIXES = (
    ".csv",
    ".tsv",
    ".sql",
    ".xls",
    ".xlsx",
    ".doc",
    ".docx",
    ".parquet",
    ".jsonl",
    ".dump",
    ".bak",
    ".pdf",
)
_REFILLED_SUFFIXES = (".log", ".out", ".tmp", ".cache")  # programs fill these files again
_SPARE_COPY_NAME = re.compile(
    "test|dev|tmp|temp|bak|backup|copy|local|sample|demo|old|seed|scratch", re.IGNORECASE
)
_WHOLE_SYSTEM_KINDS = (PathKind.ROOT, PathKind.SYSTEM_ROOT, PathKind.SYSTEM)
AS_ROOT = frozenset(
    ("sudo", "doas", "pkexec", "su", "runuser", "sudoedit", "please", "run0", "gosu", "su-exec")
)


@dataclass(frozen=True, slots=True)
class RunContext:
    """Context of an effect handler: a program that would be started, and a classifier for paths."""

    run: ProgramRun
    paths: PathClassifier

    @property
    def as_root(self) -> bool:
        """Return True if sudo or a similar program starts the program with root privileges."""
        return not AS_ROOT.isdisjoint(self.run.wrappers)

    def parse_options(self, takes_value: frozenset[str] = frozenset(), **how: bool) -> Options:
        return Options.parse(self.run.argv, takes_value, attached=frozenset(), **how)

    def new_effect(
        self, kind: EffectKind, *traits: str, target: Word = EMPTY, detail: str = ""
    ) -> CommandEffect:
        return CommandEffect(kind, target, frozenset(traits) | self._run_traits(), self.run.span, detail)

    def classify(self, word: Word, *, follow_link: bool = True, recursive: bool = False) -> PathInfo:
        return self.paths.classify(word, self.run.cwd, follow_link=follow_link, recursive=recursive)

    def write_effect(
        self, word: Word, *traits: str, kind: EffectKind = EffectKind.OVERWRITE
    ) -> CommandEffect:
        """Return the effect of writing to the file that `word` names.

        A home directory as the target is written into, not replaced.
        """
        path_info = self.classify(word)
        all_traits = set(path_info.traits)
        if PathKind.HOME in path_info:
            all_traits ^= {f"in:{PathKind.HOME}", f"in:{PathKind.INSIDE_HOME}"}
            all_traits |= {"over-home"} if "extracted" in traits else set()
        if PathKind.DEVICE in path_info:
            all_traits.add("raw")
        if word in (".", "./") and self.run.cwd in (".", ""):
            all_traits -= {
                f"in:{place}" for place in _WHOLE_SYSTEM_KINDS
            }  # the working directory of the session is meant to be written to
        if "empty" in traits and word.is_pattern and not word.endswith(_REFILLED_SUFFIXES):
            all_traits.add("many")
        if (
            PathKind.DATA in path_info
            and PathKind.TEMP not in path_info
            and not _SPARE_COPY_NAME.search(path_info.path.rpartition("/")[2])
        ):
            all_traits.add("kept")
        if "empty" not in traits and (_USUAL_SECRET_KINDS & path_info.kinds or self._is_local_name(word)):
            all_traits -= {f"in:{PathKind.SECRET}"}
            all_traits -= {f"in:{PathKind.DATA}"} if path_info.path.endswith((".env", ".local")) else set()
        return self.new_effect(kind, *traits, *all_traits, target=path_info.path or word)

    def fill_effect(self, word: Word, *traits: str) -> CommandEffect:
        """Return the effect of writing files with unknown names into the directory that `word` names."""
        effect = self.write_effect(word, *traits)
        replaced = frozenset(
            f"in:{place}" for place in self.paths.kinds_replaced_by_filling(word, self.run.cwd)
        )
        return replace(effect, traits=effect.traits | replaced)

    def _is_local_name(self, word: Word) -> bool:
        """Return True if a path is below the initial working directory and has no hidden directory in it."""
        return (
            self.run.cwd in (".", "")
            and not word.startswith(("/", "~"))
            and not _HIDDEN_DIRECTORY.search(word)
        )

    def delete_effect(self, word: Word, *traits: str, recursive: bool = False) -> CommandEffect:
        """Return the effect of deleting the file or directory that `word` names."""
        recursive = recursive and not self.paths.is_plain_file(word, self.run.cwd)
        path_info = self.classify(word, follow_link=False, recursive=recursive)
        if (recursive or path_info.covers_everything) and self.paths.is_regenerable(
            word, self.run.cwd, path_info
        ):
            traits = (*traits, "regenerable")
        records = ("records",) if word.is_pattern and word.lower().endswith(_RECORD_SUFFIXES) else ()
        return self.destroy_effect(
            EffectKind.DELETE, word, path_info, *traits, *records, *(("recursive",) if recursive else ())
        )

    def destroy_effect(
        self, kind: EffectKind, word: Word, path_info: PathInfo, *traits: str
    ) -> CommandEffect:
        """Return the effect of destroying the file, directory or device that `word` names.

        If the path has unknown parts, the effect also has the traits for the case that they are empty.
        """
        everything = ("everything",) if path_info.covers_everything else ()
        return self.new_effect(
            kind, *traits, *everything, *path_info.worst_case_traits, target=path_info.path or word
        )

    def iter_operands(self, operands: Iterable[Word]) -> Iterator[Word]:
        """Yield a program's operands up to a limit, then a placeholder if there may be more operands."""
        for count, word in enumerate(operands):
            if count == MAX_OPERANDS:
                yield UNKNOWN_WORD
                return
            yield word
        if self.run.has_unknown_operands:
            yield UNKNOWN_WORD

    def _has_search_results(self) -> bool:
        r"""Return True if an argument is a search result, as in `find -exec sh -c 'rm "$0"' {} \;`."""
        return not _FINDERS.isdisjoint(self.run.wrappers) and any(GAP in word for word in self.run.argv)

    def _run_traits(self) -> frozenset[str]:
        """Return keywords (traits) that apply to all effects of this program, such as `as-root`."""
        traits = {"as-root"} if self.as_root else set()
        if self.run.is_remote:
            traits.add("elsewhere")
        if self.run.has_unknown_operands or self._has_search_results():
            traits.add("more-operands")
        return frozenset(traits)


EffectHandlers = Mapping[str, Callable[[RunContext], Iterator[CommandEffect]]]
