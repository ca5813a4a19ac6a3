"""Makes, keeps and publishes keys: private key files, public key texts, and the signed key document."""
