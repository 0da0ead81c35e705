"""What a training saves and loads: checkpoints, resumes and schedules."""
