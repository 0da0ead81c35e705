"""What is noted of a probed training as a whole: what it saves, freezes, schedules, leaves out."""
