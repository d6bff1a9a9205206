"""The trainer itself: data lines, engine, training loop and supervision. Never imports Prefect."""
