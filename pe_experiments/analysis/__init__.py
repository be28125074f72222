"""What can be said of an encoding without training a task: audits, probes and pictures."""
