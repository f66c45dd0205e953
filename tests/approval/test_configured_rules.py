"""Rules from `approval.rules`: an error names the file and the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Opened
from toolfold.errors import ConfigError

RULES_IN_A_FILE = """\
approval:
  rules:
    - {name: one, category: c, severity: low, description: d, programs: [a]}
    - name: two
      category: c
      severity: %s
      description: d
      programs: [b]
"""


class TestWhereARuleStands:
    def problem(self, opened: Opened, **settings: Any) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            opened(settings)
        return caught.value

    def test_what_cannot_be_used_is_named_with_file_and_line(self, opened: Opened, home: Path) -> None:
        (home / "config.yaml").write_text(RULES_IN_A_FILE % "lowish")
        error, file = self.problem(opened), str(home / "config.yaml")
        assert (error.file, error.line) == (file, 6)
        assert f"rule 'two': `severity` has the invalid value 'lowish' ({file}, line 6)\n  did you" in str(error)

    def test_a_key_that_is_missing_stands_where_the_rule_does(self, opened: Opened, home: Path) -> None:
        (home / "config.yaml").write_text(RULES_IN_A_FILE.replace("      severity: %s\n", ""))
        assert self.problem(opened).line == 4

    def test_the_file_of_a_project_is_named_for_its_own(
        self, opened: Opened, home: Path, tmp_path: Path
    ) -> None:
        (home / "config.yaml").write_text(RULES_IN_A_FILE % "low")
        (tmp_path / "toolfold.yaml").write_text("approval:\n  rules:\n    - {name: three}\n")
        error = self.problem(opened)
        assert (error.file, error.line) == (str(tmp_path / "toolfold.yaml"), 3)

    def test_what_is_in_no_file_is_named_by_where_it_comes_from(self, opened: Opened) -> None:
        assert self.problem(opened, **{"approval.rules": [{"name": "x"}]}).file == "argument"

    def test_a_name_that_is_taken_and_a_denial_of_nothing_are_placed_too(
        self, opened: Opened, home: Path
    ) -> None:
        file = home / "config.yaml"
        file.write_text((RULES_IN_A_FILE % "low").replace("two", "git-force-push"))
        assert self.problem(opened).file == f"user file {file}:2"
        file.write_text("approval:\n  deny: ['rule:nothing']\n")
        assert self.problem(opened).file == f"user file {file}:2"
