"""Answers on generating responses: schedules, staleness, caches."""
