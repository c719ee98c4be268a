"""A judge of Tinker servers: loops of the official SDK through lost, doubled and reordered messages, and kills.

    client process (SDK)  -->  proxy with faults  -->  any server, known by its URL

It knows nothing of the server behind the URL. Each loop runs once undisturbed; then it runs again with one fault, and
all that the client saw (losses, log-probabilities, samples) has to be equal.
"""
