"""Limit on the work of one verdict."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Budget", "BudgetExceeded"]


class BudgetExceeded(Exception):
    """The analysis of the command needs more work than one verdict may cost."""


@dataclass(slots=True)
class Budget:
    """Remaining amount of work, shared by everything that analyses one command."""

    steps: int = 10_000

    def spend(self, steps: int = 1) -> None:
        """Use up the steps; raise `BudgetExceeded` if none are left."""
        self.steps -= steps
        if self.steps < 0:
            raise BudgetExceeded
