"""Cases of changed evidence, as tables: what is changed, how, and what grading says of it."""
