"""What runs showed of releases, and what follows from that."""
