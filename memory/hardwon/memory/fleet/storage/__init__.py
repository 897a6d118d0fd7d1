"""Files of snapshots in a folder outside the database, such as a bucket of an object storage."""
