"""What runs in a process that checks models: small models, and the relations they must keep."""
