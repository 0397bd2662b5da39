"""This lowering is the plain form: four macros inside T.Pipelined, whose waits TileLang places."""
