"""Write example messages for tools with a language model, so that tool search matches more phrasings.

`prompts` asks for messages and reads the reply, `writer` calls a model for many tools, and `task_file` passes
the work to another program through a file. Messages are checked and stored by `toolfold.selection.retrieval`.
"""

from toolfold.selection.enrichment.prompts import MessageOptions, build_request, parse_reply
from toolfold.selection.enrichment.task_file import export_task, import_task
from toolfold.selection.enrichment.writer import CostEstimate, MessageWriter, WriteReport, estimate_cost

__all__ = [
    "CostEstimate",
    "MessageOptions",
    "MessageWriter",
    "WriteReport",
    "build_request",
    "estimate_cost",
    "export_task",
    "import_task",
    "parse_reply",
]
