"""Toolfold's gateway in the settings of other programs: put there, and taken out again without a trace.

`starting` says how the gateway is started, `needed` which variables its servers want, `entries` how each
program writes that down. `json_text`, `toml_text` and `yaml_text` change one place of a text and no other,
`originals` reads a program's file and makes the new one, `steps` replaces it with a backup and undoes that.
Asks nobody and prints nothing.
"""

from toolfold.connecting.differences import difference
from toolfold.connecting.entries import Way, address_in, entry_of, section_of, with_path
from toolfold.connecting.needed import needed_by
from toolfold.connecting.originals import Original, changed, opened, opened_again
from toolfold.connecting.starting import Running, command_of, here
from toolfold.connecting.steps import ChangedSince, Step, Steps

__all__ = [
    "ChangedSince",
    "Original",
    "Running",
    "Step",
    "Steps",
    "Way",
    "address_in",
    "changed",
    "command_of",
    "difference",
    "entry_of",
    "here",
    "needed_by",
    "opened",
    "opened_again",
    "section_of",
    "with_path",
]
