"""One page that says what the runs show."""
