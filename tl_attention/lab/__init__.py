"""This part is the laboratory: what authors and tuners of schedules run. It imports the library, which imports none of it."""
