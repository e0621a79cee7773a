"""What is: frozen, validated descriptions and the reader of the data files."""
