"""What runs in a process that checks models: small models, and the relations that must hold."""
