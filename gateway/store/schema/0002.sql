-- The keyed sum over the hot records as the last batch left them; the store only keeps it (gateway/ledger/seal.py).

ALTER TABLE head ADD COLUMN seal BLOB NOT NULL DEFAULT x'';
