"""This part is the laboratory, which authors and tuners of schedules run. The library imports none of it."""
