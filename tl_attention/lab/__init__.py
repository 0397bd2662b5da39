"""This part is the laboratory: what authors and tuners of schedules run. The library imports none of it."""
