"""Known failures: findings, snapshots of judged series, and snapshots from records."""
