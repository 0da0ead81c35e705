"""The Trainer multiplies the evaluation loss of BERT's heads by the number of ranks."""
