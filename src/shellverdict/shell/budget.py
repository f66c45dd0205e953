"""Limit the work that judging one command may take."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Budget", "BudgetExceeded"]


class BudgetExceeded(Exception):
    """Raised when analyzing a command would take more work than is allowed for one command."""


@dataclass(slots=True)
class Budget:
    """Budget of remaining work for analyzing one command, shared by all parts of the analysis."""

    steps: int = 10_000

    def spend(self, steps: int = 1) -> None:
        """Subtract steps from the remaining work; raise `BudgetExceeded` if too little work is left."""
        self.steps -= steps
        if self.steps < 0:
            raise BudgetExceeded
