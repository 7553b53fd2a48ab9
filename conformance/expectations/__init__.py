"""Known failures: the entries, the versions they hold in, and the edits a record makes to them."""
