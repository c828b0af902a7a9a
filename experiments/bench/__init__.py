"""Every speed claim, as a ratio measured in one run."""
