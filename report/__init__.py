"""Tables, HTML, Chrome traces, pictures."""
