"""Why a run ran out of memory: the log's message, held against the simulated step of its configuration."""

from vramplan.planner.out_of_memory.explanation import Explanation, explain

__all__ = ["Explanation", "explain"]
