"""The trainer: takes jobs, trains clients from the newest model, delivers their updates."""
