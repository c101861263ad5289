"""The offline executor: an OpenAI-compatible service that builds programs from a catalogue of mechanisms."""
