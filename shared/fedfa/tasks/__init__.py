"""Tasks: what to train and on whose data. `base` says what a task is; the rest are built in."""
