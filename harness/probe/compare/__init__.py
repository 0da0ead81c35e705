"""What must be equal between the layouts of a script: the relations, and how they are judged."""
