"""The Trainer of one release never divides LLaMA's loss by the number of micro-batches."""
