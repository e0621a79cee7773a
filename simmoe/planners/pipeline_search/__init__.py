"""The best division of a model into pipeline stages of unlike devices, searched on tables of times and bytes."""
