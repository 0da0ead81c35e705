"""What report.md proposes, as an edit: BERT's head for sequences, one of many."""

from scenarios.transformers._heads_proposal import PROPOSAL

__all__ = ["PROPOSAL"]
