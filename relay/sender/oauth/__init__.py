"""OAuth where disk and network meet: the token of each account, and the refresh token behind it.

account_tokens        one `relay.upstream.oauth.tokens.Tokens` for each upstream of the policy
refresh_token_file    a refresh token on disk, replaced whole
consent               what `relay login` does
"""
