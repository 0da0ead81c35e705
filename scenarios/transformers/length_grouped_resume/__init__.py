"""A resumed Trainer that groups rows by length continues in another order."""
