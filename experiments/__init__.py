"""The bundled experiments and their command line."""
