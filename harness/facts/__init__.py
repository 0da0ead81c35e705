"""What a rank records: what it promises beforehand, the shapes of facts, numbers compared."""
