"""An artificial language with known synonyms, and how close a model comes."""
