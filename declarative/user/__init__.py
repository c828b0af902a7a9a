"""What a user passes: functions, unknowns, starts and bounds, and what to say if they are wrong."""
