"""The Trainer never divides by the number of micro-batches for modules of one's own."""
