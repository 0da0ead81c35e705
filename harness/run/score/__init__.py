"""What somebody's detector finds of each bug, and where it is wrong."""
