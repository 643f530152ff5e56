"""What a run is told to do: the keys, the model shapes, the checks, and the YAML files they come from."""
