"""The scheduler service: keeps every open job of every federation alive."""
