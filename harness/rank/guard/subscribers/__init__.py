"""What subscribes to the events of a training, beside what samples and reads."""
