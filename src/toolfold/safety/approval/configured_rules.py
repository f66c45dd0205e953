"""Read danger rules from the configuration; errors name the file and line of the invalid rule.

The configuration records only where the list begins; the line of a rule is looked up when an error is
reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shellverdict.errors import RuleError
from shellverdict.rules import Rule, Rules
from shellverdict.rules.loading import read_rule
from toolfold.config import Config, read_file_value
from toolfold.config.yaml_document import SourceLocation, compose_yaml, read_text
from toolfold.core.errors import ConfigError

__all__ = ["add_location", "config_error", "configured_rules"]

KEY = "approval.rules"


def configured_rules(config: Config) -> Rules:
    """Return the rules in `approval.rules`. A ConfigError names the file and line of an invalid rule."""
    return Rules(_read_rule(config, table, number) for number, table in enumerate(config.approval.rules))


def config_error(error: RuleError) -> ConfigError:
    """Convert the error about an invalid danger rule to a ConfigError."""
    return ConfigError(error.problem, key=error.key, hint=error.hint)


def add_location(error: ConfigError, config: Config) -> ConfigError:
    """Return the error with the file and line of the setting that caused it, if they are known."""
    origin = config.origins.get(error.key) or config.origins.get(KEY, "")
    if error.file or origin in ("", "default"):
        return error
    return ConfigError(error.problem, key=error.key, file=origin, hint=error.hint)


def _read_rule(config: Config, table: Mapping[str, Any], number: int) -> Rule:
    try:
        return read_rule(table, number)
    except RuleError as error:
        for file in (config.paths.project_file, config.paths.user_file):
            if file is not None and (line := _find_line(file, table, error.key)):
                raise ConfigError(
                    error.problem, key=error.key, file=str(file), line=line, hint=error.hint
                ) from None
        raise add_location(config_error(error), config) from None


def _find_line(file: Path, table: Mapping[str, Any], key: str) -> int:
    """Return the line number of a rule's key in a file or, if the rule lacks that key, of the rule itself.

    Returns 0 if the file does not contain the rule.
    """
    try:
        tables = read_file_value(file, KEY)
        node = compose_yaml(read_text(file), SourceLocation())
    except ConfigError:
        return 0
    if not isinstance(tables, list) or table not in tables:
        return 0
    for name in KEY.split("."):
        node = next(value for at, value in node.value if at.value == name)
    rule = node.value[tables.index(table)]
    keys = rule.value if rule.id == "mapping" else ()
    mark = next((at.start_mark for at, _ in keys if at.value == key), rule.start_mark)
    return int(mark.line) + 1
