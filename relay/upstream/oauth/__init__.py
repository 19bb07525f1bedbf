"""OAuth2 access tokens for an account at an upstream: this package requests them and keeps them in memory.

    token_server   builds the request of each grant, and reads the token server's answer
    tokens         keeps one token for all connections of an account; fetches one if a login finds none
    login          gets a person's consent: by a code on another device, or by a browser

PyJWT signs, aiohttp does HTTP.  Nothing here reads or writes a file: the sender supplies the calls that read
secrets and make a rotated refresh token durable.
"""
