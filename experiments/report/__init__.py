"""One page that says what the runs show: it reads what the other rooms have left, and measures nothing."""
