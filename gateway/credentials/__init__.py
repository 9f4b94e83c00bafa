"""Credentials of clouds: where they are looked for, how long they last, and how requests are signed with them.

`sources.CredentialSources` has one `live.LiveCredential` for each `CloudAuth` of the config, which asks `google` or `aws` for
the credential itself, ahead of its end. `gateway.upstream.credentials.signing` puts it on requests."""
