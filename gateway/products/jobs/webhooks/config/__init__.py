"""The sections `webhooks` and `webhook_settings` of the config, and the secrets that sign."""
