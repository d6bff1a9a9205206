"""Schedules by the tokens trained: pure functions, no clock, no counter of their own."""
