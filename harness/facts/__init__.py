"""What a rank records: the plan that it declares, the shapes of facts, how numbers are compared."""
