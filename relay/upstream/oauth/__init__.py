"""Access tokens for an account at an upstream: asked for, understood, kept until their end.

    token_server   what each grant asks a token server, and what its answer means
    tokens         one token for all connections of an account, fetched when a login finds none
    login          a person's consent: by a code on another device, or by a browser

Signing is PyJWT's, HTTP aiohttp's.  Nothing here reads or writes a file: the sender hands in how secrets are
read and how a rotated refresh token becomes durable.
"""
