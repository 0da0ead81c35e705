"""What several bugs share. Grading imports it without torch: only what ranks call needs it."""
