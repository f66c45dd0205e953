"""Rules from `approval.rules`: an error names the file and the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RuntimeOpener
from toolfold.core.errors import ConfigError

FILE_TEXT = """\
approval:
  rules:
    - {name: one, category: c, severity: low, description: d, programs: [a]}
    - name: two
      category: c
      severity: %s
      description: d
      programs: [b]
"""


class TestErrorLocation:
    def open_with_error(self, opened: RuntimeOpener, **settings: Any) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            opened(settings)
        return caught.value

    def test_error_for_an_invalid_value_in_a_configured_danger_rule_names_file_and_line(
        self, open_test_runtime: RuntimeOpener, home: Path
    ) -> None:
        (home / "config.yaml").write_text(FILE_TEXT % "lowish")
        error, file = self.open_with_error(open_test_runtime), str(home / "config.yaml")
        assert (error.file, error.line) == (file, 6)
        assert f"rule 'two': `severity` has the invalid value 'lowish' ({file}, line 6)\n  did you" in str(
            error
        )

    def test_error_for_a_configured_danger_rule_with_a_missing_key_names_the_line_of_the_rule(
        self, open_test_runtime: RuntimeOpener, home: Path
    ) -> None:
        (home / "config.yaml").write_text(FILE_TEXT.replace("      severity: %s\n", ""))
        assert self.open_with_error(open_test_runtime).line == 4

    def test_error_for_an_invalid_danger_rule_in_project_settings_names_the_project_file(
        self, open_test_runtime: RuntimeOpener, home: Path, tmp_path: Path
    ) -> None:
        (home / "config.yaml").write_text(FILE_TEXT % "low")
        (tmp_path / "toolfold.yaml").write_text("approval:\n  rules:\n    - {name: three}\n")
        error = self.open_with_error(open_test_runtime)
        assert (error.file, error.line) == (str(tmp_path / "toolfold.yaml"), 3)

    def test_error_for_an_invalid_danger_rule_passed_to_open_runtime_names_the_argument(
        self, open_test_runtime: RuntimeOpener
    ) -> None:
        assert (
            self.open_with_error(open_test_runtime, **{"approval.rules": [{"name": "x"}]}).file == "argument"
        )

    def test_error_for_a_duplicate_danger_rule_or_an_unknown_deny_entry_names_file_and_line(
        self, open_test_runtime: RuntimeOpener, home: Path
    ) -> None:
        file = home / "config.yaml"
        file.write_text((FILE_TEXT % "low").replace("two", "git-force-push"))
        assert self.open_with_error(open_test_runtime).file == f"user file {file}:2"
        file.write_text("approval:\n  deny: ['rule:nothing']\n")
        assert self.open_with_error(open_test_runtime).file == f"user file {file}:2"
