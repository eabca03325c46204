// Package etcddb reads etcd's database file, a bbolt file, without trusting it: whatever the file holds, reading it ends,
// and damage is an error that names the page. bbolt itself can fault or loop on a damaged page.
//
// The file is mapped into memory and never copied: memory of its own does not grow with the database.
package etcddb

import (
	"fmt"

	"etcdsnapshot.dev/agent/archive"
)

// corruptf is an error that is archive.ErrCorrupt and says what was found.
func corruptf(format string, args ...any) error {
	return fmt.Errorf("database is %w: %w", archive.ErrCorrupt, fmt.Errorf(format, args...))
}
