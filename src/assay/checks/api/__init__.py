"""A test of training APIs: loops of the official SDKs through lost and repeated messages and restarts.

    client process (SDK)  -->  proxy with faults  -->  any server, known by its URL

It knows nothing of the server behind the URL. Each loop runs undisturbed; then it runs again with faults, and all that
the client sees (losses, logprobs, samples; files, jobs, events) has to be the same.
"""
