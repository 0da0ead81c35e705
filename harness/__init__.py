"""A runnable record of the bugs that silently ruin distributed training."""
