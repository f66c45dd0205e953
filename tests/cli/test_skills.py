"""`toolfold skills`, with real files."""

from __future__ import annotations

from tests.cli.conftest import Toolfold
from toolfold.config import load_config


def test_skills_list_says_where_a_skill_is_expected_and_lists_it_with_its_problem(toolfold: Toolfold) -> None:
    directory = load_config().paths.config_dir / "skills"
    assert str(directory) in toolfold("skills", "list").out
    for name, text in {
        "release": "---\ndescription: Publish a release\n---\n",
        "broken": "no front matter",
    }.items():
        (directory / name).mkdir(parents=True)
        (directory / name / "SKILL.md").write_text(text)
    shown = toolfold("skills", "list").out
    assert "Publish a release" in shown
    assert "front matter" in shown
    assert [each["name"] for each in toolfold("skills", "list", "--json").json] == ["broken", "release"]
